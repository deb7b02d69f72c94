"""Curves of one or several results, against rounds and against bytes."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from pisco.errors import InputError, suggest
from pisco.report.style import curve, save, tidy
from pisco.results import measured

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

    from pisco.metrics import Metric
    from pisco.results import Result


class Panel(NamedTuple):
    """One set of axes: a column against rounds, or against the megabytes sent by then."""

    column: str
    metric: Metric
    against_bytes: bool = False


def plot_results(
    results: Sequence[Result], path: str | Path | None = None, columns: Sequence[str] | None = None
) -> Figure:
    """Draw results side by side: mean over seeds, with a band from the least to the greatest seed.

    Args:
      results: curves are labelled with `Result.label`.
      path: file to write, in the format its ending names; None writes none.
      columns: what to draw against rounds; None draws the usual ones, where some result has them, and the
        first of them against bytes as well.

    >>> import pisco
    >>> problem = pisco.problems.quadratic([[[1.0]], [[1.0]]], [[0.0], [2.0]])
    >>> result = pisco.run(pisco.algorithms.dsgd(local_lr=0.1), problem, pisco.Network.path(2), rounds=20)
    >>> [ax.get_title() for ax in plot_results([result], columns=["loss"]).axes]
    ['loss f(x̄)']
    """
    from matplotlib.figure import Figure

    if not results:
        raise InputError("there is no result to plot; give at least one")
    panels = _panels(results, columns)
    across = min(len(panels), 3)
    down = -(-len(panels) // across)
    figure = Figure(figsize=(4.2 * across, 3.2 * down + 0.3), dpi=150, layout="constrained")
    places = figure.subplots(down, across, squeeze=False).ravel()
    labels = labels_of(results)
    for ax, panel in zip(places, panels, strict=False):
        _draw(ax, panel, results, labels)
    for ax in places[len(panels) :]:
        ax.set_visible(False)
    _legend(figure, places[: len(panels)])
    if path is not None:
        save(figure, path)
    return figure


def _panels(results: Sequence[Result], columns: Sequence[str] | None) -> list[Panel]:
    known = measured(results, costs=True)
    for name in columns or ():
        if name not in known:
            raise InputError(f"no result has a column {name!r}; {suggest(name, known)}")
    chosen = columns or [name for name, metric in measured(results).items() if metric.usual]
    if not chosen:
        raise InputError(f"the results hold nothing usual; choose among {', '.join(sorted(known))}")
    panels = [Panel(name, known[name]) for name in chosen]
    if columns is None and {"bytes_gossip", "bytes_server"} <= known.keys():
        panels.append(panels[0]._replace(against_bytes=True))
    return panels


def _draw(ax: Axes, panel: Panel, results: Sequence[Result], labels: Sequence[str]) -> None:
    drawn = False
    for index, (result, label) in enumerate(zip(results, labels, strict=True)):
        if panel.column not in result.history:
            continue
        if panel.against_bytes:
            if not {"bytes_gossip", "bytes_server"} <= result.history.keys():
                continue
            x = (result.column("bytes_gossip") + result.column("bytes_server")) / 1e6
        else:
            x = result.column("round")
        drawn |= curve(ax, x, result.column(panel.column).astype(float), index, label, log=panel.metric.log)
    tidy(ax)
    if panel.metric.log and drawn:
        ax.set_yscale("log")
        low, high = ax.get_ylim()
        # A server round leaves a consensus error of rounding only, which would flatten everything else.
        ax.set_ylim(bottom=max(low, high * 1e-10))
    if not drawn:
        ax.text(0.5, 0.5, "nothing finite to draw", transform=ax.transAxes, ha="center", color="#777777")
    ax.set_title(panel.metric.title, fontsize=10)
    ax.set_xlabel("megabytes sent, all links" if panel.against_bytes else "rounds")
    if panel.metric.unit == "%" and drawn:
        ax.yaxis.set_major_formatter("{x:.0%}")


def labels_of(results: Sequence[Result]) -> list[str]:
    """Every result's label, told apart by number where two are the same, and marked where it diverged."""
    plain = [result.label or str(result.settings.get("network", "")) or "result" for result in results]
    out = []
    for index, (label, result) in enumerate(zip(plain, results, strict=True)):
        if plain.count(label) > 1:
            label = f"{label} ({index + 1})"
        out.append(f"{label} — diverged" if result.diverged else label)
    return out


def _legend(figure: Figure, places: np.ndarray) -> None:
    handles = {}
    for ax in places:
        for handle, label in zip(*ax.get_legend_handles_labels(), strict=True):
            handles.setdefault(label, handle)
    if handles:
        across = max(1, min(len(handles), 110 // (max(map(len, handles)) + 6)))
        figure.legend(
            handles.values(),
            handles.keys(),
            loc="outside lower center",
            ncols=across,
            frameon=False,
            fontsize=9,
        )
