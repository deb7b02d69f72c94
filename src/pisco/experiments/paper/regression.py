"""Figures `iter-p` and `different-p` as they are shown."""

from __future__ import annotations

from typing import Any

import numpy as np

from pisco.experiments.paper import a9a
from pisco.experiments.paper.figure import Figure, Shown, Stage, curves, quiet, records
from pisco.experiments.paper.study import ACCURACY, TRAINING, Study
from pisco.report.panels import COLOURS, Bars, Level, Panel

KINDS = {"agent-to-agent rounds": "gossip_rounds", "agent-to-server rounds": "server_rounds"}
Found = dict[str, Study]


def _compute(forms: Any, local_steps: int, quick: bool, stage: Stage) -> Found:
    found = {}
    for form in forms:
        with stage(f"a9a, T_o = {local_steps}, {form}", a9a.rounds(quick)) as progress:
            found[form] = a9a.compute(form, local_steps, quick=quick, progress=progress)
    return found


def compute_iter_p(quick: bool = False, stage: Stage = quiet) -> Found:
    """Every form with T_o = 1; the paper's and Metropolis when quick."""
    return _compute(list(a9a.FORMS)[: 2 if quick else 3], 1, quick, stage)


def present_iter_p(found: Found) -> Shown:
    """A row of panels per form: bars of gossip and server rounds for every p, both targets, both protocols."""
    rows, table = [], []
    for form, study in found.items():
        row = []
        for protocol in a9a.PROTOCOLS:
            for column, target in a9a.TARGETS.items():
                cells = getattr(study, protocol)
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
                    record = {
                        "form": form,
                        "protocol": protocol,
                        "target": f"{column} {target:g}",
                        "p": cell.label,
                    }
                    record |= {
                        "local_lr": f"{cell.local_lr:g}",
                        "seeds that missed": cell.missed(column, target),
                    }
                    for name in ("round", *KINDS.values()):
                        values = cell.to_target(column, target, name)
                        record[f"{name} mean"] = f"{np.mean(values):.4g}"
                        record[f"{name} by seed"] = " ".join(f"{value:g}" for value in values)
                    table.append(record)
        rows.append(row)
    verdicts = [verdict for form, study in found.items() for verdict in a9a.judge_iter_p(study, form)]
    settings = {study.name: study.settings() for study in found.values()}
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
                training, accuracy = (curves(cells, column, a9a.FEW) for column in (TRAINING, ACCURACY))
                title = f"{form}\nT_o = {steps}, {protocol}"
                row.append(
                    Panel(title, "rounds", "running mean of ‖∇f(x̄)‖²", training, log_x=True, log_y=True)
                )
                row.append(Panel(title, "rounds", "test accuracy", accuracy, log_x=True, percent=True))
                same = {"form": form, "T_o": steps, "protocol": protocol}
                if form == a9a.PAPERS_FORM:
                    table += records(cells, (TRAINING, ACCURACY), a9a.FEW, **same)
            rows.append(row)
        verdicts += a9a.judge_different_p(found[1][form], found[10][form], form)
    settings = {study.name: study.settings() for studies in found.values() for study in studies.values()}
    return Shown(rows, table, verdicts, settings)


ITER_P = Figure(
    "iter-p", "a9a: gossip and server rounds to both targets for nine p", compute_iter_p, present_iter_p
)
DIFFERENT_P = Figure(
    "different-p", "a9a: curves for four p with T_o = 1 and 10", compute_different_p, present_different_p
)
