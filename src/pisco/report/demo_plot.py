"""The demo's figure: what it takes to reach the target, and how every p gets there."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from pisco.report.style import curve, save, tidy

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

    from pisco.results import Result

# Not the colours of the curves: a bar stands for a kind of link, not for a p.
_GOSSIP, _SERVER = "#B8C4CE", "#E69F00"


def plot_demo(
    results: Sequence[Result],
    records: Sequence[Mapping[str, Any]],
    *,
    training_target: float,
    accuracy_target: float,
    path: str | Path | None = None,
) -> Figure:
    """Left: gossip and server rounds to the training target, stacked. Right: the curves, targets marked."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(12.5, 4.4), dpi=150, layout="constrained")
    bars, training, accuracy = figure.subplots(1, 3, width_ratios=[1.25, 1, 1])
    _bars(bars, records)
    for ax, column, log in ((training, "grad_norm_sq_mean", True), (accuracy, "test_accuracy", False)):
        for index, (result, record) in enumerate(zip(results, records, strict=True)):
            rounds, values = result.column("round").astype(float), result.column(column).astype(float)
            # Round 0 has no place on a logarithmic axis.
            curve(ax, rounds[:, 1:], values[:, 1:], index, f"p = {_symbol(record['p'])}", log=log)
        ax.set_xscale("log")
        ax.set_xlabel("rounds")
        tidy(ax)
    training.set_yscale("log")
    training.set_title("Running mean of ‖∇f(x̄)‖²", fontsize=11)
    _target(training, training_target, f"target {training_target:g}")
    accuracy.set_title("Test accuracy at the mean model", fontsize=11)
    accuracy.yaxis.set_major_formatter("{x:.0%}")
    _target(accuracy, accuracy_target, f"target {accuracy_target:.0%}")
    training.legend(frameon=False, fontsize=9, loc="lower left")
    if path is not None:
        save(figure, path)
    return figure


def _bars(ax: Axes, records: Sequence[Mapping[str, Any]]) -> None:
    at = np.arange(float(len(records)))
    gossip = np.array([record["gossip_rounds"] or 0.0 for record in records])
    server = np.array([record["server_rounds"] or 0.0 for record in records])
    ax.bar(at, gossip, color=_GOSSIP, width=0.72, label="gossip rounds")
    ax.bar(at, server, bottom=gossip, color=_SERVER, width=0.72, label="server rounds")
    top = float((gossip + server).max(initial=1.0))
    for x, record, height in zip(at.tolist(), records, (gossip + server).tolist(), strict=True):
        if record["rounds"] is None:
            ax.text(x, 0.02 * top, "target\nnot reached", ha="center", va="bottom", fontsize=9)
            continue
        saved = record["gossip_saved"]
        lines = [f"{record['gossip_rounds']:.0f} gossip", f"{record['server_rounds']:.0f} server"]
        if 0 < record["server_prob"] < 1 and saved is not None:
            ax.text(x, height + 0.12 * top, f"−{saved:.0%}", ha="center", fontsize=12, weight="bold")
        ax.text(x, height + 0.015 * top, "\n".join(lines), ha="center", va="bottom", fontsize=8.5)
    ax.set_ylim(0, 1.16 * top)
    ax.set_xticks(at, [f"p = {_symbol(record['p'])}" for record in records])
    ax.set_xlabel(f"chance that a round reaches the server (median of {records[0]['seeds']} seeds)")
    ax.set_ylabel("rounds until the target (bold: gossip saved)")
    ax.set_title("A few server rounds save most of the gossip", fontsize=11, weight="bold")
    tidy(ax)
    ax.grid(False, axis="x")
    ax.legend(frameon=False, fontsize=9, loc="upper right")


def _target(ax: Axes, value: float, words: str) -> None:
    ax.axhline(value, color="#555555", linewidth=1, linestyle=(0, (4, 3)))
    ax.annotate(
        words,
        (0.0, value),
        xycoords=("axes fraction", "data"),
        xytext=(4, 3),
        textcoords="offset points",
        ha="left",
        fontsize=8.5,
        color="#555555",
    )


def _symbol(p: str) -> str:
    """10^-1.25 as mathematics, other numbers as they are."""
    base, power, exponent = p.partition("^")
    return f"${base}^{{{exponent}}}$" if power else p
