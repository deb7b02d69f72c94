"""Choosing a step size by trying: one fixed grid, one stated rule, every trial one program."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from pisco.engines.driver import Progress
from pisco.engines.run import sweep
from pisco.errors import InputError
from pisco.results import Result

if TYPE_CHECKING:
    from pisco.experiments.config import Config

GRID = (0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0)
"""η_l, unless other values are given."""

TUNING_SEEDS = (100, 101, 102)
"""Apart from the seeds that are reported."""

RULE = (
    "the fewest mean rounds to the first target, among step sizes with which every tuning seed gets there; "
    "where there is none, the lowest running mean of ‖∇f(x̄)‖² at the end"
)

Targets = Mapping[str, float]
TARGETS: Targets = {"grad_norm_sq_mean": 0.05, "test_accuracy": 0.8}


class Trial(NamedTuple):
    """One step size: mean rounds to the first target (inf when a seed misses it), and where it ended."""

    local_lr: float
    rounds: float
    ending: float


class Tuned(NamedTuple):
    """The step size that the rule picks, and every trial."""

    local_lr: float
    trials: tuple[Trial, ...]


def reached(result: Result, target: str, bound: float, wanted: str = "round") -> np.ndarray:
    """For every seed, `wanted` when the target is met: accuracies from below, everything else from above."""
    if "accuracy" in target:
        return result.at_target(target, wanted, at_least=bound)
    return result.at_target(target, wanted, at_most=bound)


def tune(
    config: Config,
    *,
    grid: Sequence[float] = GRID,
    targets: Targets = TARGETS,
    seeds: Sequence[int] = TUNING_SEEDS,
    progress: Callable[[Progress], None] | None = None,
) -> Tuned:
    """Try every step size of the grid on the tuning seeds and pick one by `RULE`; Ctrl-C raises, nothing is picked."""
    problem, network = config.problem_and_network()
    first = next(iter(targets))
    if first.startswith("test_") and first not in {f"test_{name}" for name, _ in problem.metrics}:
        raise InputError(
            f"{first} cannot tune a problem that does not measure it (no test data?); put another target first"
        )
    if not grid or min(grid) <= 0:
        raise InputError(
            f"the grid {list(grid)} is not a list of step sizes; give positive numbers, as in 0.01,0.1"
        )
    results = sweep(
        [(config.algorithm.with_step(lr).build(), network.server) for lr in grid],
        problem,
        network,
        rounds=config.run.rounds,
        batch_size=config.run.batch_size,
        seeds=seeds,
        eval_every=config.run.eval_every,
        engine=config.run.engine,
        chunk_rounds=config.run.chunk_rounds,
        progress=progress,
    )
    if any(result.interrupted for result in results):
        raise KeyboardInterrupt
    return pick(grid, results, targets)


def pick(grid: Sequence[float], results: Sequence[Result], targets: Targets) -> Tuned:
    """Apply `RULE`; without a target, the lowest loss at the end decides."""
    trials = []
    for lr, result in zip(grid, results, strict=True):
        rounds = reached(result, *next(iter(targets.items()))) if targets else np.array([math.nan])
        ending = result.final("grad_norm_sq_mean" if targets else "loss")
        trials.append(
            Trial(
                float(lr),
                math.inf if np.isnan(rounds).any() else float(np.mean(rounds)),
                float(np.mean(ending)) if np.isfinite(ending).all() else math.inf,
            )
        )
    best = min(trials, key=lambda trial: (trial.rounds, trial.ending))
    return Tuned(best.local_lr, tuple(trials))
