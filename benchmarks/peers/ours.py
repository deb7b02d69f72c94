"""Our side: the scan engine's rounds, metrics off. `ours.py workload.npz pisco|dsgt rounds`."""

from __future__ import annotations

import sys

import jax
import numpy as np
import wire

import pisco
from pisco.engines.job import Job, Run, Segment
from pisco.engines.scan import ScanEngine


def problem_of(workload: wire.Workload) -> pisco.Problem:
    """The library's own problem on the exported samples."""
    agents, samples, inputs = workload.features.shape
    rows = np.arange(agents * samples).reshape(agents, samples)
    data = pisco.data.Dataset(workload.name, workload.features.reshape(-1, inputs), workload.labels.reshape(-1))
    if workload.hidden:
        return pisco.problems.mlp(data, agents=agents, partition=list(rows), hidden=workload.hidden)
    return pisco.problems.logistic(
        data, agents=agents, partition=list(rows), rho=workload.rho, bias=False
    )  # exported with the constant feature


def rule_of(name: str, workload: wire.Workload):
    """PISCO, or DSGT for the peer that takes a single gradient a round."""
    if name == "dsgt":
        return pisco.algorithms.dsgt(local_lr=wire.LEARNING_RATE)
    return pisco.algorithms.pisco(local_lr=wire.LEARNING_RATE, local_steps=workload.local_steps)


def main(path: str, rule: str, rounds: int) -> None:
    workload = wire.load(path)
    problem = problem_of(workload)
    server = pisco.never() if rule == "dsgt" else pisco.bernoulli(workload.server_prob)
    network = pisco.Network(weights=workload.weights, server=server)
    job = Job(problem, network, (Run(rule_of(rule, workload), network.server, 0),), workload.batch_size)
    engine = ScanEngine()
    states, done = engine.start(job), 0
    segment = Segment(1, rounds, measured=False)

    def some_rounds() -> None:
        nonlocal states, done
        states, done = jax.block_until_ready(engine.advance(job, states, done, segment)[0]), done + rounds

    some_rounds()  # compiles
    wire.serve(["jax", "numpy"], lambda: wire.repeated(some_rounds, rounds))


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], int(sys.argv[3]))
