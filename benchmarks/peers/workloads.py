"""The three workloads, from the library's own data: a9a, the MNIST network, a network of a million parameters."""

from __future__ import annotations

import numpy as np
import wire

import pisco

AGENTS = 10
SERVER_PROB = 0.1
RHO = 0.01


def a9a() -> wire.Workload:
    """The bundled a9a, sorted by label: logistic regression with the paper's regulariser, b = 256, T_o = 1."""
    problem = pisco.problems.logistic(pisco.data.load("a9a"), agents=AGENTS, partition="sorted", rho=RHO)
    leaves = {name: np.asarray(leaf) for name, leaf in problem.data.items()}
    return _workload(
        "a9a",
        leaves["features"].reshape(AGENTS, problem.max_size, -1),
        leaves["labels"].reshape(AGENTS, problem.max_size),
        batch_size=256,
        local_steps=1,
    )


def mnist() -> wire.Workload:
    """The paper's 784-32-10 network on bytes of MNIST's shape, b = 100, T_o = 10."""
    return _pictures("mnist", hidden=32)


def million() -> wire.Workload:
    """784-1258-10, 1,000,120 parameters; else as the MNIST network."""
    return _pictures("million", hidden=1258)


def _pictures(name: str, hidden: int) -> wire.Workload:
    # Random: times do not depend on the values, and nothing has to be downloaded.
    generator = np.random.default_rng(0)
    features = generator.integers(0, 256, (AGENTS, 6000, 784), dtype=np.uint8)
    labels = generator.integers(0, 10, (AGENTS, 6000), dtype=np.uint8)
    return _workload(name, features, labels, hidden=hidden, batch_size=100, local_steps=10)


def _workload(
    name: str, features: np.ndarray, labels: np.ndarray, *, hidden: int = 0, batch_size: int, local_steps: int
) -> wire.Workload:
    weights = pisco.Network.ring(AGENTS).weights.toarray()
    return wire.Workload(features, labels, weights, name, hidden, batch_size, local_steps, SERVER_PROB, RHO)


WORKLOADS = {"a9a": a9a, "mnist": mnist, "million": million}
