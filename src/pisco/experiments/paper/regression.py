"""Figures `iter-p` and `different-p`: logistic regression with the nonconvex regulariser on sorted a9a, ring of 10."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

import numpy as np

from pisco import algorithms
from pisco.data.registry import load
from pisco.experiments.paper import a9a
from pisco.experiments.paper.figure import Figure, Shown, Stage, curves, quiet, records
from pisco.experiments.paper.study import ACCURACY, FEW, PROBABILITIES, TRAINING, Study, study
from pisco.networks.network import Network
from pisco.problems.logistic import logistic
from pisco.report.panels import COLOURS, Bars, Level, Panel

KINDS = {"agent-to-agent rounds": "gossip_rounds", "agent-to-server rounds": "server_rounds"}
Found = dict[str, Study]


GRID = (0.005, 0.007, 0.01, 0.015, 0.02, 0.03, 0.05, 0.07, 0.1, 0.15, 0.2, 0.3, 0.5, 0.7)
"""Step sizes for T_o = 1; a fifth of them for T_o = 10, since the product η_l(T_o + 1) counts."""


def _compute(forms: Sequence[str], local_steps: int, quick: bool, stage: Stage) -> Found:
    """Some forms with T_o local steps: nine values of p, 1000 rounds, five seeds (fewer when quick)."""
    found, rounds = {}, 400 if quick else 1000  # p = 0 needs as many with the paper's form
    chosen = ("0", "10^-1.25", "0.1", "10^-0.5", "1") if quick else tuple(PROBABILITIES)
    grid = GRID if local_steps < 5 else tuple(lr / 5 for lr in GRID)
    for form in forms:
        weights, one_exchange = a9a.FORMS[form]
        name = f"a9a, T_o = {local_steps}, {form}"
        with stage(name, rounds) as progress:
            found[form] = study(
                name,
                partial(algorithms.pisco, local_steps=local_steps, one_exchange=one_exchange),
                {label: PROBABILITIES[label] for label in chosen},
                logistic(load("a9a"), agents=10, partition="sorted", rho=0.01),
                Network.ring(10, weights=weights),
                grid=grid[2:11:4] if quick else grid,
                rounds=rounds,
                batch_size=256,
                seeds=(0, 1) if quick else (0, 1, 2, 3, 4),
                tuning_seeds=(100,) if quick else tuple(range(100, 110)),
                targets=a9a.TARGETS,
                eval_every=4 if quick else 1,  # measuring on all samples is most of the work
                progress=progress,
            )
    return found


def compute_iter_p(quick: bool = False, stage: Stage = quiet) -> Found:
    """Every form with T_o = 1; the paper's and Metropolis when quick."""
    return _compute(list(a9a.FORMS)[: 2 if quick else 3], 1, quick, stage)


def present_iter_p(found: Found) -> Shown:
    """A row of panels per form: bars of gossip and server rounds for every p, both targets, both protocols."""
    rows, table = [], []
    for form, each in found.items():
        row = []
        for protocol in a9a.PROTOCOLS:
            for column, target in a9a.TARGETS.items():
                cells = getattr(each, protocol)
                parts = {
                    name: np.array([np.mean(cell.to_target(column, target, kind)) for cell in cells])
                    for name, kind in KINDS.items()
                }
                levels = [
                    Level("p = 0, all", parts["agent-to-agent rounds"][0], COLOURS[0]),
                    Level("p = 1, all", parts["agent-to-server rounds"][-1], COLOURS[1]),
                ]
                title = f"{form}\n{a9a.WHAT[column]}, {protocol}"
                bars = Bars([cell.label for cell in cells], parts)
                row.append(Panel(title, "p", "rounds, mean over seeds", bars=bars, levels=levels))
                for cell in cells:
                    record: dict[str, Any] = {"form": form, "protocol": protocol}
                    record |= {"target": f"{column} {target:g}", "p": cell.label}
                    record |= {"local_lr": f"{cell.local_lr:g}", "seeds that missed": cell.missed(column, target)}
                    for name in ("round", *KINDS.values()):
                        values = cell.to_target(column, target, name)
                        record[f"{name} mean"] = f"{np.mean(values):.4g}"
                        record[f"{name} by seed"] = " ".join(f"{value:g}" for value in values)
                    table.append(record)
        rows.append(row)
    verdicts = [verdict for form, each in found.items() for verdict in a9a.judge_iter_p(each, form)]
    settings = {each.name: each.settings() for each in found.values()}
    return Shown(rows, table, verdicts + a9a.judge_forms(found), settings)


def compute_different_p(quick: bool = False, stage: Stage = quiet) -> dict[int, Found]:
    """T_o = 1 and 10 for every form; the paper's alone when quick."""
    forms = list(a9a.FORMS)[: 1 if quick else 3]
    return {steps: _compute(forms, steps, quick, stage) for steps in (1, 10)}


def present_different_p(found: dict[int, Found]) -> Shown:
    """Curves of four p, a row per form and T_o, the two protocols side by side."""
    rows, table, verdicts = [], [], []
    for form in found[1]:
        for steps in found:
            row = []
            for protocol in a9a.PROTOCOLS:
                cells = getattr(found[steps][form], protocol)
                training, accuracy = (curves(cells, column, FEW) for column in (TRAINING, ACCURACY))
                title = f"{form}\nT_o = {steps}, {protocol}"
                row.append(Panel(title, "rounds", "running mean of ‖∇f(x̄)‖²", training, log_x=True, log_y=True))
                row.append(Panel(title, "rounds", "test accuracy", accuracy, log_x=True, percent=True))
                same = {"form": form, "T_o": steps, "protocol": protocol}
                if form == a9a.PAPERS_FORM:
                    table += records(cells, (TRAINING, ACCURACY), FEW, **same)
            rows.append(row)
        verdicts += a9a.judge_different_p(found[1][form], found[10][form], form)
    settings = {each.name: each.settings() for forms in found.values() for each in forms.values()}
    return Shown(rows, table, verdicts, settings)


ITER_P = Figure("iter-p", "a9a: gossip and server rounds to both targets for nine p", compute_iter_p, present_iter_p)
DIFFERENT_P = Figure(
    "different-p", "a9a: curves for four p with T_o = 1 and 10", compute_different_p, present_different_p
)
