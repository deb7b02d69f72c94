"""A Flax network with BatchNorm: running statistics are averaged like parameters, every agent keeps its own last layer.

Needs Flax: pip install flax.
"""

import flax.linen as nn
import jax
import numpy as np
import optax

import pisco


class Net(nn.Module):
    @nn.compact
    def __call__(self, x, train):
        x = nn.relu(nn.BatchNorm(use_running_average=not train, momentum=0.9)(nn.Dense(16, name="trunk")(x)))
        return nn.Dense(3, name="head")(x)


def loss(model, batch, key):  # with a key it trains, and BatchNorm makes new statistics
    logits, new = Net().apply(model, batch["x"], key is not None, mutable=["batch_stats"])
    return optax.softmax_cross_entropy_with_integer_labels(logits, batch["y"]), new


def hits(model, batch):
    return Net().apply(model, batch["x"], False).argmax(axis=1) == batch["y"]


rng = np.random.default_rng(0)
x = rng.normal(size=(4, 60, 8)).astype(np.float32)  # 4 agents, each with classes of its own order
y = np.stack([np.roll([0, 1, 2], i)[np.argmax(x[i, :, :3], axis=1)] for i in range(4)])
init = Net().init(jax.random.key(0), x[0], True)
parts = {"buffers": "batch_stats/*", "local": "params/head/*"}
problem = pisco.Problem(loss, init, {"x": x, "y": y}, parts=parts)
rule, network = pisco.algorithms.pisco(local_lr=0.2, local_steps=2), pisco.Network.ring(4)
result = pisco.run(rule, problem, network, rounds=60, batch_size=20, eval_every=20)
own = [float(hits(problem.model(result.params, i), {"x": x[i], "y": y[i]}).mean()) for i in range(4)]
print("loss:", *result.history["loss"].round(3), "  accuracy of every agent's own model:", *np.round(own, 2))
