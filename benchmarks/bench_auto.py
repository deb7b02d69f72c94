"""`local_lr = "auto"` against the best of a grid: the final ‖∇f(x̄)‖; prints a JSON object a problem.

The grid is 1-2-5 from 0.005 to 1; every step of it and the automatic one run on the same five seeds, none of which the
trials use. Where a run ends is the mean of the last tenth of its measured rows; the median over seeds is compared. The
grid's best is picked on those very seeds, so a ratio a little above 1 is what chance alone gives.

    python benchmarks/bench_auto.py            # all, some minutes on 2 idle cores
    python benchmarks/bench_auto.py quadratics a9a-gossip
"""

from __future__ import annotations

import argparse
import functools
import json
import os
import time
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

import pisco
from pisco.algorithms.registry import build
from pisco.engines.run import sweep
from pisco.planning import auto_step

GRID = (0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0)
SEEDS, ROWS, LAST = tuple(range(5)), 40, 4


class Case(NamedTuple):
    """A problem on a network, a method, and how long it runs."""

    problem: Any
    network: pisco.Network
    method: str
    rounds: int
    batch_size: int | None
    options: dict[str, Any]


def quadratics(method: str, network: pisco.Network, rounds: int, **options: Any) -> Case:
    """Agents with Hessians and minimisers of their own, full gradients."""
    random, n, d = np.random.default_rng(0), network.num_agents, 10
    roots = random.normal(size=(n, d, d))
    hessians = roots @ roots.transpose(0, 2, 1) / d + 0.1 * np.eye(d)
    return Case(pisco.problems.quadratic(hessians, random.normal(size=(n, d))), network, method, rounds, None, options)


@functools.cache
def _a9a(partition: str) -> Any:
    return pisco.problems.logistic(pisco.data.load("a9a"), agents=10, partition=partition)


def a9a(method: str, rounds: int, partition: str = "sorted", batch_size: int = 256, **options: Any) -> Case:
    """The paper's regression on a ring of 10, p = 0.1 where the method has the server."""
    server = pisco.always() if method == "scaffold" else pisco.bernoulli(options.pop("p", 0.1))
    network = pisco.Network.ring(10, weights=options.pop("weights", "fdla"), server=server)
    return Case(_a9a(partition), network, method, rounds, batch_size, options)


STEPS = {"local_steps": 1}
CASES: dict[str, Callable[[], Case]] = {
    "quadratics": lambda: quadratics("pisco", pisco.Network.ring(8, server=pisco.bernoulli(0.1)), 100, **STEPS),
    "quadratics-gossip": lambda: quadratics("pisco-one-exchange", pisco.Network.path(8, weights="fdla"), 300, **STEPS),
    "a9a": lambda: a9a("pisco", 400, **STEPS),
    "a9a-gossip": lambda: a9a("pisco", 400, p=0.0, **STEPS),
    "a9a-one-exchange": lambda: a9a("pisco-one-exchange", 300, local_steps=4),
    "a9a-small-batches": lambda: a9a("pisco-one-exchange", 400, batch_size=16, **STEPS),
    "a9a-dsgd": lambda: a9a("dsgd", 300, "iid", p=0.0, weights="metropolis"),
    "a9a-scaffold": lambda: a9a("scaffold", 200, local_steps=4),
}


def ends(case: Case, steps: list[float]) -> list[float]:
    """Where every step ends, the median over seeds; infinite where one diverged."""
    made = [(build(case.method, local_lr=step, **case.options), case.network.server) for step in steps]
    every = max(1, case.rounds // ROWS)
    options: Any = {"rounds": case.rounds, "batch_size": case.batch_size, "seeds": SEEDS, "eval_every": every}
    results = sweep(made, case.problem, case.network, **options)
    tails = [result.column("grad_norm_sq")[:, -LAST:].mean(axis=1) ** 0.5 for result in results]
    return [float("inf" if r.diverged else np.median(tail)) for r, tail in zip(results, tails, strict=True)]


def measure(name: str, seconds: float) -> dict[str, Any]:
    """The record of one problem."""
    case, began = CASES[name](), time.perf_counter()
    step = auto_step(
        lambda lr: build(case.method, local_lr=lr, **case.options),
        case.problem,
        case.network,
        rounds=case.rounds,
        batch_size=case.batch_size,
        local_steps=case.options.get("local_steps", 1),
        seconds=seconds,
    )
    took = time.perf_counter() - began
    own, *grid = ends(case, [step, *GRID])
    best = int(np.argmin(grid))
    return {
        "problem": name,
        "auto": step,
        "ends_at": own,
        "grid_best": GRID[best],
        "grid_ends_at": grid[best],
        "ratio": own / grid[best],
        "seconds": round(took, 1),
        "cores": os.cpu_count(),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("problems", nargs="*", help=f"of {', '.join(CASES)}; all unless given")
    parser.add_argument("--seconds", type=float, default=30.0, help="the time of the trials, as `auto_step` has it")
    given = parser.parse_args()
    for name in given.problems or CASES:
        print(json.dumps(measure(name, given.seconds)), flush=True)


if __name__ == "__main__":
    main()
