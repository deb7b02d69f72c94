"""Figures `iter_p` and `different_p`: logistic regression with the nonconvex regulariser on sorted a9a, ring of 10."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import numpy as np

from pisco import algorithms
from pisco.data.registry import load
from pisco.engines.driver import Progress
from pisco.experiments.paper.study import ACCURACY, PROBABILITIES, TRAINING, Cell, Study, study
from pisco.experiments.paper.verdict import Verdict, outcome, spread
from pisco.networks.network import Network
from pisco.problems.logistic import logistic
from pisco.types import Algorithm

TRAINING_TARGET, ACCURACY_TARGET = 0.05, 0.8
TARGETS = {TRAINING: TRAINING_TARGET, ACCURACY: ACCURACY_TARGET}
FORMS = {
    "FDLA, two exchanges (the paper's)": ("fdla", False),
    "Metropolis, two exchanges": ("metropolis", False),
    "FDLA, one exchange": ("fdla", True),
}
PAPERS_FORM = next(iter(FORMS))
GRID = (0.005, 0.007, 0.01, 0.015, 0.02, 0.03, 0.05, 0.07, 0.1, 0.15, 0.2, 0.3, 0.5, 0.7)
"""Step sizes for T_o = 1; a fifth of them for T_o = 10, since the product η_l(T_o + 1) counts."""

FEW = ("0", "0.1", "10^-0.5", "1")


def _rule(local_lr: float, *, local_steps: int, one_exchange: bool) -> Algorithm:
    return algorithms.pisco(local_lr=local_lr, local_steps=local_steps, one_exchange=one_exchange)


def compute(
    form: str, local_steps: int, *, quick: bool = False, progress: Callable[[Progress], None] | None = None
) -> Study:
    """One form of the method with T_o local steps: nine values of p, 1000 rounds, five seeds (fewer when quick)."""
    weights, one_exchange = FORMS[form]
    chosen = ("0", "10^-1.25", "0.1", "10^-0.5", "1") if quick else tuple(PROBABILITIES)
    grid = GRID if local_steps < 5 else tuple(lr / 5 for lr in GRID)
    return study(
        f"a9a, T_o = {local_steps}, {form}",
        partial(_rule, local_steps=local_steps, one_exchange=one_exchange),
        {label: PROBABILITIES[label] for label in chosen},
        logistic(load("a9a"), agents=10, partition="sorted", rho=0.01),
        Network.ring(10, weights=weights),
        grid=grid[2::3] if quick else grid,
        rounds=400 if quick else 1000,
        batch_size=256,
        seeds=(0, 1) if quick else (0, 1, 2, 3, 4),
        tuning_seeds=(100,) if quick else tuple(range(100, 110)),
        targets=TARGETS,
        progress=progress,
    )


def cell(cells: list[Cell], label: str) -> Cell:
    """The cell of one p."""
    return next(each for each in cells if each.label == label)


def judge_iter_p(found: Study) -> list[Verdict]:
    """Whether a few server rounds save most of the gossip, and whether more of them buy anything."""
    verdicts = []
    for column, target in TARGETS.items():
        alone, few, all_server = (cell(found.tuned, label) for label in ("0", "10^-1.25", "1"))
        gossip = alone.to_target(column, target, "gossip_rounds")
        saved = 1 - few.to_target(column, target, "gossip_rounds") / gossip
        server = few.to_target(column, target, "server_rounds")
        missed = few.missed(column, target) + alone.missed(column, target)
        verdicts.append(
            Verdict(
                f"p = 10^-1.25 saves about 60% of the gossip rounds of p = 0 ({column} target)",
                "share of gossip rounds saved, seed by seed; server rounds used",
                f"{spread(100 * saved, '%')}; {spread(server)} server rounds",
                outcome(bool(np.mean(saved) >= 0.4), bool(np.mean(saved) >= 0.2)),
                "" if not missed else f"{missed} runs missed the target and count with all their rounds",
                depends_on_size=True,
            )
        )
        half, full = cell(found.tuned, "10^-0.5"), all_server
        ratio = half.to_target(column, target) / np.mean(full.to_target(column, target))
        verdicts.append(
            Verdict(
                f"p above 0.1 buys no further rounds: p = 10^-0.5 is as good as p = 1 ({column} target)",
                "rounds of p = 10^-0.5 over the mean rounds of p = 1",
                spread(ratio),
                outcome(bool(np.mean(ratio) <= 1.5), bool(np.mean(ratio) <= 2.5)),
                "with its own step size each, the server in every round allows a larger one",
                depends_on_size=True,
            )
        )
    return verdicts


def judge_different_p(one: Study, ten: Study) -> list[Verdict]:
    """Whether local steps halve the rounds, under both protocols."""
    verdicts = []
    for protocol in ("tuned", "common"):
        for column, target in TARGETS.items():
            few, many = (cell(getattr(each, protocol), "0.1") for each in (one, ten))
            ratio = many.to_target(column, target) / np.mean(few.to_target(column, target))
            verdicts.append(
                Verdict(
                    f"T_o = 10 halves the rounds of T_o = 1 at p = 0.1 ({column} target), step size {protocol}",
                    "rounds of T_o = 10 over the mean rounds of T_o = 1",
                    f"{spread(ratio)} at η_l = {many.local_lr:g} against {few.local_lr:g}",
                    outcome(bool(np.mean(ratio) <= 0.6), bool(np.mean(ratio) <= 0.85)),
                    "a larger T_o needs a smaller η_l: their product counts" if protocol == "tuned" else "",
                    depends_on_size=True,
                )
            )
    return verdicts
