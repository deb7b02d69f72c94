"""The picture of a comparison: one measure against rounds, against bytes and against the price paid."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from pisco.metrics import METRICS
from pisco.report.style import curve, save, tidy

if TYPE_CHECKING:
    from matplotlib.figure import Figure


class Line(NamedTuple):
    """One method: what it reached and what it had paid by then, all (seeds, rows)."""

    label: str
    training: np.ndarray
    accuracy: np.ndarray | None
    rounds: np.ndarray
    megabytes: np.ndarray
    price: np.ndarray


def plot_comparison(lines: Sequence[Line], path: str | Path | None = None) -> Figure:
    """Training above, test accuracy below (where it is known); rounds, megabytes and price from left to right."""
    from matplotlib.figure import Figure

    with_accuracy = any(line.accuracy is not None for line in lines)
    figure = Figure(figsize=(15, 8.5 if with_accuracy else 4.6), layout="constrained", dpi=110)
    axes = figure.subplots(2 if with_accuracy else 1, 3, squeeze=False)
    for column, (name, title) in enumerate(
        (("rounds", "communication rounds"), ("megabytes", "MB sent by all"), ("price", "price paid"))
    ):
        for row, measure in enumerate(("training", "accuracy") if with_accuracy else ("training",)):
            ax = axes[row][column]
            for index, line in enumerate(lines):
                values = getattr(line, measure)
                if values is not None:
                    curve(ax, getattr(line, name), values, index, line.label, log=measure == "training")
            ax.set_xscale("symlog", linthresh=1)
            ax.set_xlim(left=0)
            if measure == "training":
                ax.set_yscale("log")
            ax.set_xlabel(title)
            tidy(ax)
    axes[0][0].set_ylabel(METRICS["grad_norm_sq_mean"].title)
    if with_accuracy:
        axes[1][0].set_ylabel(METRICS["test_accuracy"].title)
    handles, labels = axes[0][0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncols=min(len(labels), 6), frameon=False)
    if path is not None:
        save(figure, path)
    return figure
