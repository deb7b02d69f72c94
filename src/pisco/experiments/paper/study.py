"""Runs over probabilities × step sizes × seeds as one program, and the two protocols that read them.

The paper gives no step sizes. *Tuned*: for every p the step size that `tune.RULE` picks on the tuning seeds. *Common*:
one step size for all p, the one tuned for p = 0. Both are reported on other seeds than they were chosen on.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from pisco.engines.run import sweep
from pisco.experiments.tune import Tuned, pick
from pisco.networks.network import Network
from pisco.networks.schedules import bernoulli
from pisco.problems.problem import Problem
from pisco.results import Result
from pisco.targets import Targets
from pisco.types import Algorithm

PROBABILITIES: dict[str, float] = {
    "0": 0.0,
    "10^-2": 10**-2,
    "10^-1.75": 10**-1.75,
    "10^-1.5": 10**-1.5,
    "10^-1.25": 10**-1.25,
    "0.1": 0.1,
    "10^-0.75": 10**-0.75,
    "10^-0.5": 10**-0.5,
    "1": 1.0,
}
FEW = ("0", "0.1", "10^-0.5", "1")
TRAINING, ACCURACY = "grad_norm_sq_mean", "test_accuracy"


class Cell(NamedTuple):
    """One p under one protocol: the step size used and the result on the reported seeds."""

    label: str
    server_prob: float
    local_lr: float
    result: Result

    def to_target(self, column: str, bound: float, wanted: str = "round") -> np.ndarray:
        """`wanted` at the target for every seed; the last value where the target was missed."""
        found = self.result.at_target(column, wanted, bound=bound)
        return np.where(np.isnan(found), self.result.final(wanted), found)

    def missed(self, column: str, bound: float) -> int:
        """How many seeds never met the target."""
        return int(np.isnan(self.result.at_target(column, bound=bound)).sum())


def cell_of(cells: Sequence[Cell], label: str) -> Cell:
    """The cell of one p."""
    return next(cell for cell in cells if cell.label == label)


def larger_step(full: Cell, small: Cell) -> str:
    """Why a smaller p may fall behind p = 1: its step size, where that is smaller too."""
    if full.local_lr <= small.local_lr:
        return ""
    return f"p = 1 takes η_l = {full.local_lr:g}, p = {small.label} only {small.local_lr:g}"


class Study(NamedTuple):
    """Both protocols of one set-up."""

    name: str
    tuned: list[Cell]
    common: list[Cell]
    trials: dict[str, Tuned]
    grid: tuple[float, ...]
    seeds: tuple[int, ...]
    tuning_seeds: tuple[int, ...]

    def settings(self) -> dict[str, Any]:
        """What was chosen, for the record."""
        return {
            "name": self.name,
            "grid": [round(lr, 10) for lr in self.grid],
            "seeds": list(self.seeds),
            "tuning_seeds": list(self.tuning_seeds),
            "tuned local_lr": {cell.label: round(cell.local_lr, 10) for cell in self.tuned},
            "at the edge of the grid": [
                cell.label for cell in self.tuned if cell.local_lr in (min(self.grid), max(self.grid))
            ],
            "common local_lr": self.common[0].local_lr,
            "run": self.tuned[0].result.settings,
        }


def study(
    name: str,
    rule: Callable[..., Algorithm],
    probabilities: Mapping[str, float],
    problem: Problem,
    network: Network,
    *,
    grid: Sequence[float],
    seeds: Sequence[int],
    tuning_seeds: Sequence[int],
    targets: Targets,
    **how: Any,
) -> Study:
    """Run `rule(local_lr=…)` for every p, step size and seed, `how` as `sweep` takes it; then pick."""
    cells = [(label, p, lr) for label, p in probabilities.items() for lr in grid]
    points = [(rule(local_lr=lr), bernoulli(p)) for _, p, lr in cells]
    results = sweep(points, problem, network, seeds=(*tuning_seeds, *seeds), **how)
    found = {(label, lr): result for (label, _, lr), result in zip(cells, results, strict=True)}
    trials = {
        label: pick(grid, [found[label, lr].only(tuning_seeds) for lr in grid], targets) for label in probabilities
    }

    def cell(label: str, lr: float) -> Cell:
        result = found[label, lr].only(seeds)
        result.label = f"p = {label}"
        return Cell(label, probabilities[label], lr, result)

    shared = trials[next(iter(probabilities))].local_lr
    return Study(
        name,
        [cell(label, trials[label].local_lr) for label in probabilities],
        [cell(label, shared) for label in probabilities],
        trials,
        tuple(grid),
        tuple(seeds),
        tuple(tuning_seeds),
    )
