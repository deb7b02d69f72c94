"""Curves of one or several results, against rounds, bytes and, by a clock, seconds."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from pisco.errors import InputError, suggest
from pisco.report.panels import Curve, Panel
from pisco.report.picture import draw
from pisco.results import check_results, measured

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from pisco.metrics import Metric
    from pisco.results import Result


AGAINST = {
    "rounds": ("round",),
    "megabytes sent, all links": ("bytes_gossip", "bytes_server"),
    "seconds by the clock": ("seconds",),
}
"""The columns whose sum is along an axis."""


def plot_results(
    results: Sequence[Result], path: str | Path | None = None, columns: Sequence[str] | None = None
) -> Figure:
    """Draw results side by side: the median over seeds, with a band of its 95% bootstrap interval.

    Args:
      results: curves are labelled with `Result.label`.
      path: file to write, in the format its ending names; None writes none.
      columns: what to draw against rounds; None draws the usual ones, where some result has them, and the
        first of them against bytes and against seconds as well.

    >>> import pisco
    >>> problem = pisco.problems.quadratic([[[1.0]], [[1.0]]], [[0.0], [2.0]])
    >>> result = pisco.run(pisco.algorithms.dsgd(local_lr=0.1), problem, pisco.Network.path(2), rounds=20)
    >>> [ax.get_title() for ax in plot_results([result], columns=["loss"]).axes]
    ['loss f(x̄)']
    """
    if not results:
        raise InputError("there is no result to plot; give at least one")
    check_results("plot_results", results)
    panels = _panels(results, columns)
    return draw([panels[at : at + 3] for at in range(0, len(panels), 3)], path, title="Results")


def _panels(results: Sequence[Result], columns: Sequence[str] | None) -> list[Panel]:
    known = measured(results, costs=True)
    for name in columns or ():
        if name not in known:
            raise InputError(f"no result has a column {name!r}; {suggest(name, known)}")
    chosen = columns or [name for name, metric in measured(results).items() if metric.usual]
    if not chosen:
        raise InputError(f"the results hold none of the usual columns; choose among {', '.join(sorted(known))}")
    panels = [_panel(results, known[name]) for name in chosen]
    for axis in list(AGAINST)[1:]:
        if columns is None and known.keys() >= set(AGAINST[axis]):
            panels.append(_panel(results, known[chosen[0]], axis))
    return panels


def _panel(results: Sequence[Result], metric: Metric, axis: str = "rounds") -> Panel:
    """A column against rounds, or against the megabytes or seconds by then."""
    curves, unit = [], 1e6 if axis.startswith("megabytes") else 1
    for index, (result, label) in enumerate(zip(results, labels_of(results), strict=True)):
        if {metric.column, *AGAINST[axis]} <= result.history.keys():
            x = sum(result.column(name) for name in AGAINST[axis]) / unit
            curves.append(Curve(label, np.asarray(x), result.column(metric.column).astype(float), index))
    return column_panel(metric, curves, axis)


def column_panel(metric: Metric, curves: Sequence[Curve], x_title: str) -> Panel:
    """Curves of a column of the history, with its title and scale."""
    shown = {"log_y": metric.log, "percent": metric.unit == "%", "rising": metric.rising}
    return Panel(metric.title, x_title, curves=curves, **shown)


def labels_of(results: Sequence[Result]) -> list[str]:
    """Every result's label, told apart by number where two are the same, and marked where it diverged."""
    plain = [result.label or str(result.settings.get("network", "")) or "result" for result in results]
    out = []
    for index, (label, result) in enumerate(zip(plain, results, strict=True)):
        if plain.count(label) > 1:
            label = f"{label} ({index + 1})"
        out.append(f"{label} — diverged" if result.diverged else label)
    return out
