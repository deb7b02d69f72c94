"""Figures `iter-p` and `different-p`: logistic regression with the nonconvex regulariser on sorted a9a, ring of 10."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

import numpy as np

from pisco import algorithms
from pisco.data.registry import load
from pisco.experiments.paper import a9a
from pisco.experiments.paper.figure import Figure, Shown, curves, records
from pisco.experiments.paper.study import ACCURACY, FEW, PROBABILITIES, SPREAD, TRAINING, WORST, Cell, Study, study
from pisco.experiments.paper.work import QUIET, Work
from pisco.networks.network import Network
from pisco.problems.logistic import logistic
from pisco.report.panels import COLOURS, Bars, Level, Panel

KINDS = {"agent-to-agent rounds": "gossip_rounds", "agent-to-server rounds": "server_rounds"}
Studies = dict[str, Study]


def _compute(forms: Sequence[str], local_steps: int, labels: Sequence[str], quick: bool, work: Work) -> Studies:
    """Some forms with T_o local steps, 1000 rounds, twenty seeds (fewer, and fewer step sizes, when quick)."""
    few: dict[str, Any] = {"grid": QUICK_GRID[local_steps], "seeds": (0, 1), "tuning_seeds": (100,)}
    how: dict[str, Any] = few if quick else {}
    found = {}
    for form in forms:
        weights, one_exchange = a9a.FORMS[form]
        found[form] = study(
            f"a9a, T_o = {local_steps}, {form}",
            partial(algorithms.pisco, local_steps=local_steps, one_exchange=one_exchange),
            {label: PROBABILITIES[label] for label in labels},
            logistic(load("a9a"), agents=10, partition="sorted", rho=0.01),
            Network.ring(10, weights=weights),
            targets=a9a.TARGETS,
            fixed=[("0.1", a9a.SAME_STEP)],
            work=work,
            rounds=400 if quick else 1000,  # p = 0 needs as many with the paper's form
            batch_size=256,
            eval_every=4 if quick else 1,  # measuring on all samples is most of the work
            **how,
        )
    return found


QUICK_GRID = {1: (0.01, 0.04, 0.16), 10: (0.0025, 0.01, 0.04)}
ALL, SOME = tuple(PROBABILITIES), ("0", "10^-1.25", "0.1", "10^-0.5", "1")


def compute_iter_p(quick: bool = False, work: Work = QUIET) -> Studies:
    """Every form with T_o = 1 and nine values of p; the paper's and Metropolis, and five p, when quick."""
    return _compute(list(a9a.FORMS)[: 2 if quick else 3], 1, SOME if quick else ALL, quick, work)


def present_iter_p(found: Studies) -> Shown:
    """A row of panels per form: bars of gossip and server rounds for every p, both targets, both protocols."""
    rows, table = [], []
    for form, each in found.items():
        row = []
        for protocol in a9a.PROTOCOLS:
            for column, target in a9a.TARGETS.items():
                cells = getattr(each, protocol)
                bars = _bars(cells, column, target)
                ends = np.sum(list(bars.parts.values()), axis=0)
                levels = [Level("p = 0, all", ends[0], COLOURS[0]), Level("p = 1, all", ends[-1], COLOURS[1])]
                title = f"{form}\n{a9a.WHAT[column]}, {protocol}"
                row.append(Panel(title, "p", "rounds, median of seeds", bars=bars, levels=levels))
                for cell in cells:
                    record: dict[str, Any] = {"form": form, "protocol": protocol}
                    record |= {"target": f"{column} {target:g}", "p": cell.label, "local_lr": f"{cell.local_lr:g}"}
                    record["seeds that missed"] = int(cell.to_target(column, target).missed.sum())
                    for name in ("round", *KINDS.values()):
                        sample = cell.to_target(column, target, name)
                        record[f"{name} median (95% interval)"] = str(sample.median)
                        by_seed = zip(sample.values, sample.missed, strict=True)
                        record[f"{name} by seed"] = " ".join(
                            f"{'>' if miss else ''}{value:g}" for value, miss in by_seed
                        )
                    table.append(record)
        rows.append(row)
    verdicts = [verdict for form, each in found.items() for verdict in a9a.judge_iter_p(each, form)]
    settings = {each.name: each.settings() for each in found.values()}
    return Shown(rows, table, verdicts + a9a.judge_forms(found), settings)


def _bars(cells: Sequence[Cell], column: str, target: float) -> Bars:
    """The median rounds of every cell with their interval, cut by the shares of gossip and server rounds."""
    samples = [cell.to_target(column, target) for cell in cells]
    found = [sample.median for sample in samples]
    capped = [not np.isfinite(each.value) for each in found]
    ends = np.array([each.cap if cap else each.value for each, cap in zip(found, capped, strict=True)])
    kinds = {
        name: np.array([np.median(cell.to_target(column, target, kind).values) for cell in cells])
        for name, kind in KINDS.items()
    }
    whole = np.maximum(sum(kinds.values()), 1)
    interval = np.array([each.low for each in found]), np.array([each.high for each in found])
    parts = {name: ends * values / whole for name, values in kinds.items()}
    return Bars([cell.label for cell in cells], parts, interval=interval, capped=capped)


def compute_different_p(quick: bool = False, work: Work = QUIET) -> dict[int, Studies]:
    """Every form with T_o = 1, which `iter-p` has computed as well, and with T_o = 10 for four p."""
    labels, forms = {1: SOME if quick else ALL, 10: FEW}, list(a9a.FORMS)[: 1 if quick else 3]
    return {steps: _compute(forms, steps, labels[steps], quick, work) for steps in labels}


def present_different_p(found: dict[int, Studies]) -> Shown:
    """Curves of four p in the paper's form, a row per T_o, the protocols side by side; verdicts for every form."""
    rows, table = [], []
    for steps, forms in found.items():
        row = []
        for form, protocol in ((form, protocol) for form in forms for protocol in a9a.PROTOCOLS):
            cells = getattr(forms[form], protocol)
            columns, most = (TRAINING, ACCURACY, WORST, SPREAD), 60 if form == a9a.PAPERS_FORM else 20
            table += records(cells, columns, FEW, most=most, form=form, T_o=steps, protocol=protocol)
            if form == a9a.PAPERS_FORM:
                training, accuracy = (curves(cells, column, FEW) for column in (TRAINING, ACCURACY))
                title = f"T_o = {steps}, {protocol}"
                row.append(Panel(title, "rounds", "running mean of ‖∇f(x̄)‖²", training, log_x=True, log_y=True))
                row.append(Panel(title, "rounds", "test accuracy", accuracy, log_x=True, percent=True, rising=True))
        rows.append(row)
    settings = {each.name: each.settings() for forms in found.values() for each in forms.values()}
    verdicts = [v for form in found[1] for v in a9a.judge_different_p(found[1][form], found[10][form], form)]
    return Shown(rows, table, verdicts, settings)


ITER_P = Figure("iter-p", "a9a: gossip and server rounds to both targets for nine p", compute_iter_p, present_iter_p)
DIFFERENT_P = Figure(
    "different-p", "a9a: curves for four p with T_o = 1 and 10", compute_different_p, present_different_p
)
