"""A PyTorch network on a trunk that is frozen, with BatchNorm, and a head that never leaves its agent.

Needs PyTorch: pip install 'pisco-fl[torch]'.
"""

import numpy as np
import torch
from torch.nn.functional import cross_entropy
from torch.utils.data import TensorDataset

import pisco
import pisco.interop.torch


def network():
    trunk = [torch.nn.Linear(8, 32), torch.nn.BatchNorm1d(32), torch.nn.Tanh()]
    net = torch.nn.Sequential(*trunk, torch.nn.Linear(32, 16), torch.nn.Linear(16, 3))
    net[0].requires_grad_(False)  # frozen: load pretrained weights here
    return net


def samples(agent):
    x = np.random.default_rng(agent).normal(size=(60, 8)).astype(np.float32)
    y = np.roll([0, 1, 2], agent)[np.argmax(x[:, :3], axis=1)]  # classes of every agent's own order
    return TensorDataset(torch.tensor(x), torch.tensor(y))


agents = [pisco.interop.torch.local(network, cross_entropy, samples(agent)) for agent in range(3)]
problem = pisco.interop.host.problem(*agents, parts={"local": "4.*"})  # running statistics are averaged
rule = pisco.algorithms.pisco(local_lr=0.2, local_steps=1)
result = pisco.run(rule, problem, pisco.Network.ring(3), rounds=30, batch_size=20, eval_every=10)
print("loss:", *result.history["loss"].round(3))
print("sent:", *(name for name in result.params if not name.startswith("4.")))
