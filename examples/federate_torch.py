"""A PyTorch model in a federation: a module, a loss and a data loader become the local gradient.

Every agent keeps this file and its own data, and runs

    pisco agent --kit KIT --module federate_torch.py --data my.npz

The plan is made with `pisco federation init DIR --problem none …`. Run as a script it simulates four such agents.
Needs PyTorch: pip install 'pisco-fl[torch]'.
"""

import tempfile
from pathlib import Path

import numpy as np
import torch
from torch.nn import functional
from torch.utils.data import DataLoader, TensorDataset

import pisco
import pisco.interop.torch


def network():
    return torch.nn.Sequential(torch.nn.Linear(2, 16), torch.nn.Tanh(), torch.nn.Linear(16, 2))


def loader(data):
    with np.load(data) as arrays:
        return DataLoader(TensorDataset(torch.tensor(arrays["features"]), torch.tensor(arrays["labels"])))


def agent(data):
    """What `pisco agent` calls."""
    return pisco.interop.torch.problem(network, functional.cross_entropy, loader(data))


def make_data(folder, index):
    """A part of two rings, one inside the other: every agent sees another direction."""
    rng = np.random.default_rng(index)
    angle = rng.uniform(index, index + 2, 60) * np.pi / 2
    labels = np.arange(60) % 2
    radius = np.where(labels == 1, 2.0, 1.0) + 0.1 * rng.normal(size=60)
    features = np.stack([radius * np.cos(angle), radius * np.sin(angle)], axis=1).astype(np.float32)
    np.savez(folder / f"agent-{index}.npz", features=features, labels=labels)
    return folder / f"agent-{index}.npz"


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as folder:
        files = [make_data(Path(folder), index) for index in range(4)]
        agents = [pisco.interop.torch.local(network, functional.cross_entropy, loader(file)) for file in files]
    result = pisco.run(
        pisco.algorithms.pisco(local_lr=0.2, local_steps=2),
        pisco.interop.host.problem(*agents, name="two rings"),
        pisco.Network.ring(4, server=pisco.bernoulli(0.1)),
        rounds=150,
        batch_size=20,
        eval_every=50,
    )
    print("loss:", *(f"{value:.3f}" for value in result.history["loss"]))
