"""Runs over probabilities × step sizes × seeds as one program, and the two protocols that read them.

The paper gives no step sizes. *Tuned*: for every p the step size that `tune.RULE` picks on the tuning seeds. *Common*:
one step size for all p, the one tuned for p = 0. Both are reported on other seeds than they were chosen on.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import jax
import numpy as np
from jax import lax

from pisco.engines.evaluate import exact_products, measure_test
from pisco.engines.run import sweep
from pisco.experiments.paper.pieces import in_pieces
from pisco.experiments.paper.work import QUIET, Work, uncut
from pisco.experiments.tune import GRID, RULE, TUNING_SEEDS, Tuned, pick
from pisco.networks.network import Network
from pisco.networks.schedules import bernoulli
from pisco.problems.problem import Problem
from pisco.results import Result
from pisco.statistics import Sample
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


WORST, SPREAD = f"{ACCURACY}_worst", f"{ACCURACY}_spread"
"""Over agents, and at the end only: NaN in the rows before."""

COLUMNS = ("round", "loss", TRAINING, ACCURACY, WORST, SPREAD, "server_rounds", "gossip_rounds")
"""What figures read: the rest, and the parameters, are not kept."""

SEEDS = tuple(range(20))
"""Those that claims are judged on; `tune.TUNING_SEEDS` are others."""


class Cell(NamedTuple):
    """One p under one protocol: the step size used and the result on the reported seeds."""

    label: str
    server_prob: float
    local_lr: float
    result: Result

    def to_target(self, column: str, bound: float, wanted: str = "round") -> Sample:
        """`wanted` at the target for every seed; those that missed it are censored at what they had spent."""
        return Sample.of(self.result.at_target(column, wanted, bound=bound), self.result.final(wanted))

    def final(self, column: str) -> Sample:
        """A column at the end, for every seed."""
        return Sample.of(self.result.final(column))


def cell_of(cells: Sequence[Cell], label: str) -> Cell:
    """The cell of one p."""
    return next(cell for cell in cells if cell.label == label)


def worst_agents(*cells: Cell) -> str:
    """What the worst agents of some cells reach, where that was measured."""
    if any(WORST not in cell.result.history for cell in cells):
        return ""
    return f"; worst agents {' against '.join(f'{cell.final(WORST).median.value:.1%}' for cell in cells)}"


def larger_step(full: Cell, small: Cell) -> str:
    """Why a smaller p may fall behind p = 1: its step size, where that is smaller too."""
    if full.local_lr <= small.local_lr:
        return ""
    return f"p = 1 takes η_l = {full.local_lr:g}, p = {small.label} only {small.local_lr:g}"


class Study(NamedTuple):
    """Both protocols of one set-up, and some p at given step sizes."""

    name: str
    tuned: list[Cell]
    common: list[Cell]
    fixed: list[Cell]
    trials: dict[str, Tuned]
    seeds: tuple[int, ...]
    tuning_seeds: tuple[int, ...]

    def settings(self) -> dict[str, Any]:
        """What was chosen, for the record."""
        grid = [trial.local_lr for trial in next(iter(self.trials.values())).trials]
        return {
            "name": self.name,
            "grid": grid,
            "rule": RULE,
            "seeds": list(self.seeds),
            "tuning_seeds": list(self.tuning_seeds),
            "tuned local_lr": {cell.label: cell.local_lr for cell in self.tuned},
            "fails on some tuning seeds at every step size": [p for p, tuned in self.trials.items() if tuned.failed],
            "at the edge of the grid": [cell.label for cell in self.tuned if cell.local_lr in (grid[0], grid[-1])],
            "common local_lr": self.common[0].local_lr,
            "run": self.tuned[0].result.settings,
            "computed with": self.tuned[0].result.versions,
        }


def study(
    name: str,
    rule: Callable[..., Algorithm],
    probabilities: Mapping[str, float],
    problem: Problem,
    network: Network,
    *,
    targets: Targets,
    grid: Sequence[float] = GRID,
    seeds: Sequence[int] = SEEDS,
    tuning_seeds: Sequence[int] = TUNING_SEEDS,
    fixed: Sequence[tuple[str, float]] = (),
    work: Work = QUIET,
    tuning_rounds: int | None = None,
    at_once: int | None = None,
    **how: Any,
) -> Study:
    """Run `rule(local_lr=…)` for every p and step size on the tuning seeds, pick, and run that on the reported seeds.

    `fixed` are (p, step size) to be run there as well; `how` is what `sweep` takes, its rounds also for tuning unless
    `tuning_rounds` says otherwise. With `at_once` no more runs than that are one call, smaller steps first, and what is
    finished is kept; processes that work in one folder share the rest.
    """
    facts = [rule(local_lr=1.0).hyperparameters, problem.name, repr(network), targets, dict(probabilities), how]
    facts += [list(grid), list(seeds), list(tuning_seeds), list(fixed)]
    kept = work.keeper(name, facts if tuning_rounds is None else [*facts, tuning_rounds])

    def runs(
        cells: Sequence[tuple[str, float]], words: str, seeds: Sequence[int], rounds: int, ended: Callable[..., Result]
    ) -> dict[tuple[str, float], Result]:
        options: Any = how | {"rounds": rounds}

        def some(cells: Sequence[Any]) -> list[Result]:
            points = [(rule(local_lr=lr), bernoulli(probabilities[label])) for label, lr in cells]
            with work.stage(f"{name}: {words}", rounds) as progress:
                results = uncut(sweep(points, problem, network, seeds=seeds, progress=progress, **options))
            return [_slim(ended(result)) for result in results]

        if at_once is None:
            return dict(zip(cells, some(cells), strict=True))
        cells, size = sorted(cells, key=lambda cell: cell[1]), max(1, at_once // len(seeds))
        pieces = [cells[at : at + size] for at in range(0, len(cells), size)]
        return dict(zip(cells, in_pieces(kept.folder, pieces, [list(seeds), rounds], some), strict=True))

    found = kept.load()
    if found is None:
        every = [(label, lr) for label in probabilities for lr in grid]
        tried = runs(every, "every step size", tuning_seeds, tuning_rounds or how["rounds"], lambda result: result)
        trials = {label: pick(grid, [tried[label, lr] for lr in grid], targets) for label in probabilities}
        cells = dict.fromkeys((p, lr) for p, tuned in trials.items() for lr in (tuned.local_lr, _shared(trials)))
        cells = list(cells | dict.fromkeys(fixed))
        found = trials, runs(cells, "what was picked", seeds, how["rounds"], lambda each: with_agents(each, problem))
        kept.save(*found)
    trials, results = found

    def cell(label: str, lr: float) -> Cell:
        result = results[label, lr]
        result.label = f"p = {label}"
        return Cell(label, probabilities[label], lr, result)

    tuned = [cell(label, tuned.local_lr) for label, tuned in trials.items()]
    common = [cell(label, _shared(trials)) for label in trials]
    return Study(name, tuned, common, [cell(*each) for each in fixed], trials, tuple(seeds), tuple(tuning_seeds))


def _shared(trials: Mapping[str, Tuned]) -> float:
    """The step size of the first p, for all."""
    return next(iter(trials.values())).local_lr


def with_agents(result: Result, problem: Problem) -> Result:
    """The result with the worst agent's test accuracy at the end, and the best one's minus that, if there is one."""
    if ACCURACY not in problem.columns:
        return result

    @jax.jit
    @exact_products
    def by_agent(problem: Problem, params: Any) -> jax.Array:
        return jax.vmap(lambda run: lax.map(lambda own: measure_test(problem, own)[ACCURACY], run))(params)

    found, history = np.asarray(by_agent(problem, result.params)), dict(result.history)
    for name, over in ((WORST, np.min), (SPREAD, np.ptp)):
        history[name] = np.full(history["round"].shape, np.nan)
        history[name][:, -1] = over(found, axis=1)
    return replace(result, history=history)


def _slim(result: Result) -> Result:
    history = {name: values for name, values in result.history.items() if name in COLUMNS}
    return replace(result, params={}, agents={}, history=history)
