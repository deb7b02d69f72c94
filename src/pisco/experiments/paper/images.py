"""Figures `different-topology` and `cnn` as they are shown."""

from __future__ import annotations

from typing import Any

from pisco.experiments.paper import cifar, mnist
from pisco.experiments.paper.figure import Figure, Shown, Stage, curves, quiet, records
from pisco.experiments.paper.study import ACCURACY, Study
from pisco.report.panels import Panel

COLUMNS = ("loss", ACCURACY)


def _pair(cells: Any, labels: tuple[str, ...], words: str, x_title: str, per_x: float = 1) -> list[Panel]:
    loss, accuracy = (curves(cells, column, labels, per_x=per_x) for column in COLUMNS)
    return [
        Panel(f"{words}: training loss", x_title, "f(x̄)", loss, log_y=True),
        Panel(f"{words}: test accuracy", x_title, "at x̄", accuracy, percent=True),
    ]


def compute_topology(quick: bool = False, stage: Stage = quiet) -> list[Study]:
    """Both graphs."""
    found = []
    for kind in mnist.GRAPHS:
        with stage(f"MNIST, {kind}", 60 if quick else 600) as progress:
            found.append(mnist.compute(kind, quick=quick, progress=progress))
    return found


def present_topology(found: list[Study]) -> Shown:
    """A row of panels per graph, the two protocols side by side."""
    rows, table = [], []
    for kind, study in zip(("connected", "disconnected"), found, strict=True):
        row = []
        for protocol in ("tuned", "common"):
            cells = getattr(study, protocol)
            row += _pair(cells, mnist.FEW, f"{kind}, {protocol}", "rounds")
            table += records(cells, COLUMNS, mnist.FEW, graph=kind, protocol=protocol)
        rows.append(row)
    return Shown(rows, table, mnist.judge(*found), {study.name: study.settings() for study in found})


def compute_cnn(quick: bool = False, stage: Stage = quiet) -> cifar.Found:
    """The tuning with short runs, then long ones at the common step size."""
    with stage("CIFAR-10, every step size", cifar.rounds(quick, long=False)) as progress:
        short = cifar.compute(quick=quick, progress=progress)
    with stage("CIFAR-10, the common step size", cifar.rounds(quick, long=True)) as progress:
        return cifar.Found(
            short, cifar.compute_long(short.common[0].local_lr, quick=quick, progress=progress)
        )


def present_cnn(found: cifar.Found) -> Shown:
    """Tuned and short above, the common step size and long below."""
    labels, rows, table = tuple(cifar.PROBABILITIES), [], []
    for words, cells in (("tuned", found.short.tuned), ("common", found.long)):
        rows.append(_pair(cells, labels, words, "epochs", per_x=cifar.ROUNDS_AN_EPOCH))
        table += records(cells, COLUMNS, labels, protocol=words)
    settings = found.short.settings() | {"long run": found.long[0].result.settings}
    return Shown(rows, table, cifar.judge(found), settings)


TOPOLOGY = Figure(
    "different-topology",
    "MNIST on a connected and a disconnected Erdős–Rényi graph",
    compute_topology,
    present_topology,
    "mnist",
)
CNN = Figure("cnn", "the convolutional network on CIFAR-10, ring of 5", compute_cnn, present_cnn, "cifar10")
