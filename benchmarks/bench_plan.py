"""Plans on twelve problems, what they promise against what is paid, and against a grid; prints a JSON object a problem.

The planned setting runs on twenty other seeds; the mean of what they pay at the target is set against the plan's price.
Without `--no-grid` it also runs all its rounds, to see that it does not diverge, and meets an exhaustive grid:
weights × form × T_o × p × η_l, raced on three seeds without halving: a setting is stopped only when it has paid more
than one that already reached the target, or diverged, so its best is exact. The grid's best five run on the same twenty
seeds, and medians are compared.

    python benchmarks/bench_plan.py --no-grid             # all twelve, seven minutes on 2 idle cores
    python benchmarks/bench_plan.py a9a-ring quadratics   # with the grid, some minutes each
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
from pisco.planning.meters import priced, timed
from pisco.planning.pilot import REACHED
from pisco.planning.planner import networks_to_try
from pisco.planning.track import Track
from pisco.problems.subsample import subsample
from pisco.targets import Target

STEPS = (0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0)
PROBABILITIES = (0.0, 0.03, 0.1, 0.3, 1.0)
GRID_SEEDS, JUDGES = (0, 1, 2), tuple(range(10, 30))


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
    gradient: float = 0.0
    """The price of a gradient."""
    clock: str | None = None
    """Plan for this clock's seconds."""


def a9a(graph: Any, rounds: int = 1000, partition: str = "sorted", **options: Any) -> Case:
    """Sorted labels, b = 256, the paper's training target."""
    problem = pisco.problems.logistic(pisco.data.load("a9a"), agents=graph.num_agents, partition=partition)
    return Case(problem, graph, ("grad_norm_sq_mean", 0.05), rounds, 256)._replace(**options)


def small_digits() -> Any:
    """MNIST shrunk to 8 × 8 and 5,000 images."""
    whole = pisco.data.load("mnist")

    def small(images: np.ndarray, count: int) -> np.ndarray:
        square = images[:count].reshape(-1, 28, 28)[:, 2:26, 2:26]
        return square.reshape(-1, 8, 3, 8, 3).mean(axis=(2, 4)).reshape(-1, 64).astype(np.uint8)

    assert whole.test_features is not None and whole.test_labels is not None
    return pisco.data.Dataset(
        "digits",
        small(whole.features, 5000),
        whole.labels[:5000],
        small(whole.test_features, 2000),
        whole.test_labels[:2000],
    )


def digits() -> Case:
    """Agent i holds digit i, a 64-16-10 network on a 2 × 5 grid."""
    problem = pisco.problems.mlp(small_digits(), agents=10, hidden=16)
    return Case(problem, graphs.grid(2, 5), ("test_accuracy", 0.8), 1000, 50, 5, (1, 4, 10))


def softmax() -> Case:
    """The same digits by softmax regression on a random graph of 10, to a training loss."""
    problem = pisco.problems.softmax(small_digits(), agents=10)
    return Case(problem, graphs.erdos_renyi(10, 0.4, 3), ("loss", 0.6), 1000, 50, 2)


def quadratics(graph: Any = None, relative: float = 1e-5, seed: int = 0, **options: Any) -> Case:
    """Agents with Hessians and minimisers of their own, full gradients; a ring of twelve unless a graph is given."""
    random, graph = np.random.default_rng(seed), graph or graphs.ring(12)
    n, d = graph.num_agents, 20
    roots = random.normal(size=(n, d, d))
    hessians = roots @ roots.transpose(0, 2, 1) / d + 0.1 * np.eye(d)
    problem = pisco.problems.quadratic(hessians, 3 * random.normal(size=(n, d)))
    start = float(np.sum(np.asarray(jax.grad(problem.objective)(problem.start)) ** 2))
    case = Case(problem, graph, ("grad_norm_sq", relative * start), 2000, None, 1, (1, 4, 10))
    return case._replace(**options)


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
    "softmax": softmax,
    "a9a-iid": lambda: a9a(graphs.grid(2, 5), partition="iid", batch_size=64, target=("grad_norm_sq_mean", 0.02)),
    "a9a-gradients": lambda: a9a(graphs.erdos_renyi(10, 0.3, 12), gradient=5.0),
    "a9a-continents": lambda: a9a(graphs.ring(10), clock="continents"),
    "quadratics-path": lambda: quadratics(graphs.path(8), 1e-7, seed=1),
    "quadratics-apart": lambda: quadratics(graphs.from_edges([(0, 1), (2, 3), (4, 5), (6, 7)]), 1e-4, seed=2),
}


def exhaustive(case: Case, prices: Prices, say: Any) -> list[Any]:
    """Every setting of the grid, cheapest first."""
    networks, problem = networks_to_try(pisco.Network(case.graph)), case.problem
    clock = case.clock and pisco.Clock.of(case.clock)
    meters = timed(problem, networks, clock, case.rounds) if clock else priced(problem, networks, prices)
    track = Track(
        subsample(case.problem, 5_000, test=case.target[0].startswith("test_")),
        networks,
        batch_size=case.batch_size,
        target=Target.of(*case.target, case.problem.columns),
        meters=meters,
        rounds=case.rounds,
        eval_every=case.eval_every,
    )
    for local_steps in case.local_steps:
        for method in ("pisco-one-exchange", "pisco"):
            settings = [
                Setting(method, weights, local_steps, p, lr)
                for p in PROBABILITIES
                if p > 0 or case.graph.is_connected
                for weights in (networks if p < 1 else ["fdla"])
                for lr in STEPS
            ]
            track.race(settings, GRID_SEEDS, halve=False)
            say(f"T_o = {local_steps}, {method}: best {track.cheapest(GRID_SEEDS):.4g}")
    return sorted((p for p in track.finished if p.status == REACHED), key=lambda p: p.cost)


def judge(case: Case, setting: Setting, prices: Prices, rounds: int) -> tuple[np.ndarray, bool]:
    """What is really paid at the target, infinite where it is missed; whether a seed diverged."""
    network = networks_to_try(pisco.Network(case.graph)).get(setting.weights) or pisco.Network(
        case.graph, weights=setting.weights
    )
    (result,) = sweep(
        [(setting.algorithm, setting.schedule(network))],
        case.problem,
        network,
        rounds=rounds,
        batch_size=case.batch_size,
        seeds=JUDGES,
        eval_every=case.eval_every,
        clock=case.clock,
    )
    column, bound = case.target

    def spent(name: str) -> np.ndarray:
        return result.at_target(column, name, bound=bound)

    paid = spent("seconds") if case.clock else prices.paid(spent, result.history)
    return np.where(np.isnan(paid), math.inf, paid), result.diverged


def enough(case: Case, rounds: float) -> int:
    """Four times the rounds that are expected, or all."""
    least = min(case.rounds, max(50, 4 * math.ceil(rounds))) if math.isfinite(rounds) else case.rounds
    return math.ceil(least / case.eval_every) * case.eval_every


def measure(name: str, prices: Prices, seconds: float, grid: bool, say: Any) -> dict[str, Any]:
    """The record of one problem."""
    case = CASES[name]()
    prices = prices._replace(gradient=case.gradient)
    began = time.perf_counter()
    found = plan(
        case.problem,
        pisco.Network(case.graph),
        rounds=case.rounds,
        batch_size=case.batch_size,
        target=case.target,
        prices=prices,
        clock=case.clock,
        eval_every=case.eval_every,
        seconds=seconds,
    )
    planning = time.perf_counter() - began
    say(f"planned {found.setting.describe()}: {found.price:.4g} in {planning:.1f} s")
    paid, diverged = judge(case, found.setting, prices, case.rounds if grid else enough(case, found.rounds))
    missed = int(np.isinf(paid).sum())
    say(f"paid {np.mean(paid):.4g}, missed {missed}, diverged {diverged}")
    record = {
        "problem": name,
        "prices": {"clock": case.clock} if case.clock else prices._asdict(),
        "target": dict([case.target]),
        "plan": found.setting._asdict(),
        "promised": found.price,
        "measured": found.measured,
        "paid_mean": float(np.mean(paid)),
        "paid_median": float(np.median(paid)),
        "promised_over_paid": found.price / float(np.mean(paid)),
        "missed_of_20": missed,
        "diverged": diverged,
        "plan_seconds": round(planning, 1),
        "plan_interrupted": found.interrupted,
        "growth": found.growth,
        "estimates": found.estimates._asdict(),
        "by_probability": [dataclasses.asdict(row) for row in found.by_probability],
        "cores": os.cpu_count(),
    }
    return record | (against_grid(case, prices, float(np.median(paid)), say) if grid else {})


def against_grid(case: Case, prices: Prices, paid: float, say: Any) -> dict[str, Any]:
    """What the grid's best pays."""
    grid, best = exhaustive(case, prices, say), []
    for pilot in grid[:5]:
        rounds = enough(case, pilot.cost / pilot.unit)
        best.append((float(np.median(judge(case, pilot.setting, prices, rounds)[0])), pilot))
    cost, pilot = min(best, key=lambda each: each[0])
    return {
        "grid_best": pilot.setting._asdict(),
        "grid_best_price": cost,
        "grid_best_in_sample": grid[0].cost,
        "grid_reached": len(grid),
        "ratio": paid / cost,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("problems", nargs="*", help=f"of {', '.join(CASES)}; all unless given")
    parser.add_argument("--price-server", type=float, default=10.0)
    parser.add_argument("--price-gossip", type=float, default=1.0)
    parser.add_argument("--seconds", type=float, default=60.0, help="the budget of a plan")
    parser.add_argument("--no-grid", action="store_true", help="only what plans promise against what is paid")
    args = parser.parse_args()
    for name in args.problems or CASES:
        began = time.perf_counter()

        def say(words: str, name: str = name, began: float = began) -> None:
            print(f"{name} {time.perf_counter() - began:.0f} s: {words}", file=sys.stderr, flush=True)

        record = measure(name, Prices(args.price_server, args.price_gossip), args.seconds, not args.no_grid, say)
        print(json.dumps(record), flush=True)


if __name__ == "__main__":
    main()
