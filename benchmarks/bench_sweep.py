"""A sweep of 9 values of p × 5 seeds × 1000 rounds on a9a, against the 45 runs one after the other."""

import time

import jax
import numpy as np
from common import a9a, report, row, shortest

import pisco
from pisco.engines.job import Job, Run, Segment
from pisco.engines.scan import ScanEngine

ROUNDS, SEEDS = 1000, range(5)


def rows():
    problem = a9a()
    rule = pisco.algorithms.pisco(local_lr=0.03, local_steps=1)
    schedules = [pisco.bernoulli(float(p)) for p in np.geomspace(0.01, 1.0, 9)]
    runs = tuple(Run(rule, server, seed) for server in schedules for seed in SEEDS)
    network = pisco.Network.ring(10, weights="metropolis", server=schedules[0])
    together = Job(problem, network, runs, 256)
    alone = [Job(problem, network, (run,), 256) for run in runs]
    engine, segment = ScanEngine(), Segment(1, ROUNDS, measured=False)
    busy = []

    def sweep():
        wall, cpu = time.perf_counter(), time.process_time()
        out = jax.block_until_ready(engine.advance(together, engine.start(together), 0, segment)[0])
        busy.append((time.process_time() - cpu) / (time.perf_counter() - wall))
        return out

    def one_by_one():
        return [engine.advance(job, engine.start(job), 0, segment)[0] for job in alone]

    times = shortest({"ours": sweep, "alone": one_by_one}, repeats=2)
    target = "≤ 1" if jax.default_backend() == "cpu" else "ours ≤ 3 s"
    name = f"sweep: 9 p × 5 seeds × {ROUNDS} rounds, a9a"
    yield row(name, times["ours"], times["alone"], "s", target, cores_busy=round(max(busy), 2))


if __name__ == "__main__":
    report(rows())
