"""Plans against an exhaustive grid on six problems; prints one JSON object a problem.

The grid: weights × form × T_o × p × η_l, raced on three seeds without halving: a setting is stopped only when it has
paid more than one that already reached the target, or diverged, so its best is exact. Then the planned setting and the
grid's best five run on ten other seeds, and the median of what they really paid is compared. The planned setting also
runs all its rounds on those seeds, to see that it does not diverge.

    python benchmarks/bench_plan.py                       # all six, the better part of an hour on 2 cores
    python benchmarks/bench_plan.py a9a-ring quadratics
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import math
import os
import sys
import time
from typing import Any, NamedTuple

import jax
import numpy as np

import pisco
from pisco.costs import Prices
from pisco.engines.run import sweep
from pisco.networks import graphs
from pisco.planning import Setting, plan
from pisco.planning.pilot import REACHED, Track
from pisco.planning.planner import networks_to_try, round_prices
from pisco.problems.subsample import subsample
from pisco.targets import Target

STEPS = (0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0)
PROBABILITIES = (0.0, 0.03, 0.1, 0.3, 1.0)
GRID_SEEDS, JUDGES = (0, 1, 2), tuple(range(10, 20))


class Case(NamedTuple):
    """A problem, a graph, a target and how long a run may be."""

    problem: Any
    graph: Any
    target: tuple[str, float]
    rounds: int
    batch_size: int | None
    eval_every: int = 1
    local_steps: tuple[int, ...] = (1, 4)
    """T_o of the grid."""


def a9a(graph: Any, rounds: int = 1000) -> Case:
    """Sorted labels, b = 256, the paper's training target."""
    problem = pisco.problems.logistic(pisco.data.load("a9a"), agents=graph.num_agents)
    return Case(problem, graph, ("grad_norm_sq_mean", 0.05), rounds, 256)


def digits() -> Case:
    """MNIST shrunk to 8 × 8 and 5,000 images, agent i holds digit i, a 64-16-10 network on a 2 × 5 grid."""
    whole = pisco.data.load("mnist")

    def small(images: np.ndarray, count: int) -> np.ndarray:
        square = images[:count].reshape(-1, 28, 28)[:, 2:26, 2:26]
        return square.reshape(-1, 8, 3, 8, 3).mean(axis=(2, 4)).reshape(-1, 64).astype(np.uint8)

    assert whole.test_features is not None and whole.test_labels is not None
    shrunk = pisco.data.Dataset(
        "digits",
        small(whole.features, 5000),
        whole.labels[:5000],
        small(whole.test_features, 2000),
        whole.test_labels[:2000],
    )
    problem = pisco.problems.mlp(shrunk, agents=10, hidden=16)
    return Case(problem, graphs.grid(2, 5), ("test_accuracy", 0.8), 1000, 50, 5, (1, 4, 10))


def quadratics() -> Case:
    """Twelve agents with Hessians and minimisers of their own, full gradients, on a ring."""
    random = np.random.default_rng(0)
    n, d = 12, 20
    roots = random.normal(size=(n, d, d))
    hessians = roots @ roots.transpose(0, 2, 1) / d + 0.1 * np.eye(d)
    problem = pisco.problems.quadratic(hessians, 3 * random.normal(size=(n, d)))
    start = float(np.sum(np.asarray(jax.grad(problem.objective)(problem.start)) ** 2))
    return Case(problem, graphs.ring(n), ("grad_norm_sq", 1e-5 * start), 2000, None, 1, (1, 4, 10))


def mnist() -> Case:
    """The paper's network on its connected graph, agent i holds digit i."""
    problem = pisco.problems.mlp(pisco.data.load("mnist"), agents=10, hidden=32)
    return Case(problem, graphs.erdos_renyi(10, 0.3, 12), ("test_accuracy", 0.8), 500, 100, 5, (1, 10))


CASES = {
    "a9a-ring": lambda: a9a(graphs.ring(10)),
    "a9a-path-20": lambda: a9a(graphs.path(20)),
    "a9a-disconnected": lambda: a9a(graphs.erdos_renyi(10, 0.1, 0)),
    "digits": digits,
    "quadratics": quadratics,
    "mnist": mnist,
}


def exhaustive(case: Case, prices: Prices, say: Any) -> list[Any]:
    """Every setting of the grid, cheapest first."""
    networks = networks_to_try(pisco.Network(case.graph))
    track = Track(
        subsample(case.problem, 5_000, test=case.target[0].startswith("test_")),
        networks,
        batch_size=case.batch_size,
        target=Target.of(*case.target, case.problem.columns),
        prices=round_prices(case.problem, networks["fdla"], prices),
        rounds=case.rounds,
        eval_every=case.eval_every,
    )
    for local_steps in case.local_steps:
        for one_exchange in (True, False):
            settings = [
                Setting(weights, one_exchange, local_steps, p, lr)
                for p in PROBABILITIES
                if p > 0 or case.graph.is_connected
                for weights in (networks if p < 1 else ["fdla"])
                for lr in STEPS
            ]
            track.race(settings, GRID_SEEDS, halve=False)
            say(f"T_o = {local_steps}, one exchange {one_exchange}: best {track.cheapest(GRID_SEEDS):.4g}")
    return sorted((p for p in track.finished if p.status == REACHED), key=lambda p: p.cost)


def judge(case: Case, setting: Setting, prices: Prices, rounds: int) -> tuple[float, int, bool]:
    """The median price really paid at the target, on ten seeds; how many missed it; whether one diverged."""
    network = networks_to_try(pisco.Network(case.graph)).get(setting.weights) or pisco.Network(
        case.graph, weights=setting.weights
    )
    (result,) = sweep(
        [(setting.algorithm, setting.server)],
        case.problem,
        network,
        rounds=rounds,
        batch_size=case.batch_size,
        seeds=JUDGES,
        eval_every=case.eval_every,
    )
    column, bound = case.target
    paid = prices.paid(lambda name: result.at_target(column, name, bound=bound), result.history)
    missed = int(np.isnan(paid).sum())
    return float(np.median(np.where(np.isnan(paid), math.inf, paid))), missed, result.diverged


def measure(name: str, prices: Prices, seconds: float, say: Any) -> dict[str, Any]:
    """The record of one problem."""
    case = CASES[name]()
    began = time.perf_counter()
    found = plan(
        case.problem,
        pisco.Network(case.graph),
        rounds=case.rounds,
        batch_size=case.batch_size,
        target=case.target,
        prices=prices,
        eval_every=case.eval_every,
        seconds=seconds,
    )
    planning = time.perf_counter() - began
    say(f"planned {found.setting.describe()}: {found.price:.4g} in {planning:.1f} s")
    paid, missed, diverged = judge(case, found.setting, prices, case.rounds)
    say(f"paid {paid:.4g}, missed {missed}, diverged {diverged}")
    grid = exhaustive(case, prices, say)
    best = []
    for pilot in grid[:5]:
        least = min(case.rounds, max(50, 4 * math.ceil(pilot.cost / pilot.unit)))
        rounds = math.ceil(least / case.eval_every) * case.eval_every
        best.append((judge(case, pilot.setting, prices, rounds)[0], pilot))
    cost, pilot = min(best, key=lambda each: each[0])
    return {
        "problem": name,
        "prices": prices._asdict(),
        "target": dict([case.target]),
        "plan": found.setting._asdict(),
        "plan_price_predicted": found.price,
        "plan_price": paid,
        "plan_missed_of_10": missed,
        "plan_diverged_in_all_rounds": diverged,
        "plan_seconds": round(planning, 1),
        "plan_interrupted": found.interrupted,
        "grid_best": pilot.setting._asdict(),
        "grid_best_price": cost,
        "grid_best_in_sample": grid[0].cost,
        "grid_reached": len(grid),
        "ratio": paid / cost,
        "growth": found.growth,
        "estimates": None if found.estimates is None else found.estimates._asdict(),
        "by_probability": [dataclasses.asdict(row) for row in found.by_probability],
        "cores": os.cpu_count(),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("problems", nargs="*", help=f"of {', '.join(CASES)}; all unless given")
    parser.add_argument("--price-server", type=float, default=10.0)
    parser.add_argument("--price-gossip", type=float, default=1.0)
    parser.add_argument("--seconds", type=float, default=60.0, help="the budget of a plan")
    args = parser.parse_args()
    for name in args.problems or CASES:
        began = time.perf_counter()

        def say(words: str, name: str = name, began: float = began) -> None:
            print(f"{name} {time.perf_counter() - began:.0f} s: {words}", file=sys.stderr, flush=True)

        record = measure(name, Prices(args.price_server, args.price_gossip), args.seconds, say)
        print(json.dumps(record), flush=True)


if __name__ == "__main__":
    main()
