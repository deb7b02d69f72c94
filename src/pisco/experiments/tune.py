"""Choosing a step size by trying: one fixed grid, one stated rule, every trial one program."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from pisco.engines.driver import Progress
from pisco.engines.run import sweep
from pisco.errors import InputError, check_distinct
from pisco.metrics import METRICS
from pisco.results import Result
from pisco.targets import USUAL, Target, Targets

if TYPE_CHECKING:
    from pisco.experiments.config import Config

__all__ = ["tune"]

GRID = (
    *(0.001, 0.0016, 0.0025, 0.004, 0.0063),
    *(0.01, 0.016, 0.025, 0.04, 0.063),
    *(0.1, 0.16, 0.25, 0.4, 0.63),
    *(1.0, 1.6),
)
"""η_l, unless other values are given: five to a decade, so that none is more than a quarter away from the best."""

TUNING_SEEDS = tuple(range(100, 110))
"""Apart from the seeds that are reported; enough for a step that fails on one seed of ten to be found out mostly."""

RULE = (
    "the fewest mean rounds to the first target, among step sizes that fail on no tuning seed (by missing the target, "
    "diverging, or a larger loss at the end than at the start); where there is none, the fewest failures, then the "
    "lowest end"
)


class Trial(NamedTuple):
    """One step size: mean rounds to the first target (inf when a seed fails), where it ended, and how many failed."""

    local_lr: float
    rounds: float
    ending: float
    failed: int = 0


class Tuned(NamedTuple):
    """The step size that the rule picks, and every trial."""

    local_lr: float
    trials: tuple[Trial, ...]

    @property
    def failed(self) -> int:
        """On how many tuning seeds the step size that was picked fails: 0, unless every one fails somewhere."""
        return next(trial.failed for trial in self.trials if trial.local_lr == self.local_lr)


def tune(
    config: Config,
    *,
    grid: Sequence[float] = GRID,
    targets: Targets = USUAL,
    seeds: Sequence[int] = TUNING_SEEDS,
    progress: Callable[[Progress], None] | None = None,
) -> Tuned:
    """Try every step size of the grid on the tuning seeds and pick one by `RULE`; Ctrl-C raises, nothing is picked."""
    if not hasattr(config, "problem_and_network"):
        raise InputError(f"the experiment is {config!r}, expected one that is loaded, as in load('a9a')")
    problem, network = config.problem_and_network()
    first = next(iter(targets))
    for column, bound in targets.items():
        Target.of(column, bound, METRICS | problem.columns)
    if first not in problem.columns:
        raise InputError(
            f"{first} cannot tune a problem that does not measure it (no test data?); put another target first"
        )
    if not grid or min(grid) <= 0:
        raise InputError(f"the grid {list(grid)} is not a list of step sizes; give positive numbers, as in 0.01,0.1")
    check_distinct("step size", grid)
    results = sweep(
        [(config.algorithm.with_step(lr).build(), network.server) for lr in grid],
        problem,
        network,
        rounds=config.run.rounds,
        batch_size=config.run.batch_size,
        seeds=seeds,
        eval_every=config.run.eval_every or 1,
        engine=config.run.engine,
        chunk_rounds=config.run.chunk_rounds,
        progress=progress,
    )
    if any(result.asked_to_stop for result in results):
        raise KeyboardInterrupt
    return pick(grid, results, targets)


def pick(grid: Sequence[float], results: Sequence[Result], targets: Targets) -> Tuned:
    """Apply `RULE`; without a target, the loss at the end decides among step sizes that fail on no seed."""
    trials = []
    for lr, result in zip(grid, results, strict=True):
        ending = result.final("grad_norm_sq_mean" if targets else "loss").astype(float)
        rounds = np.zeros(len(ending))
        for first, bound in list(targets.items())[:1]:
            rounds = result.at_target(first, bound=bound)
        failed = np.isnan(rounds) | ~np.isfinite(ending) | _failed(result)
        trials.append(
            Trial(
                float(lr),
                math.inf if failed.any() else float(np.mean(rounds)),
                float(np.mean(ending)) if np.isfinite(ending).all() else math.inf,
                int(failed.sum()),
            )
        )
    best = min(trials, key=lambda trial: (trial.failed, trial.rounds, trial.ending))
    return Tuned(best.local_lr, tuple(trials))


def _failed(result: Result) -> np.ndarray:
    """Which seeds diverged, or have a larger loss at the end than at the start."""
    failed = np.array([seed in result.diverged_seeds for seed in result.seeds])
    if "loss" in result.history:
        loss = result.column("loss")
        failed |= ~(loss[:, -1] <= loss[:, 0])
    return failed
