"""Curves of one or several results, against rounds and against bytes."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from pisco.errors import InputError, suggest
from pisco.report.panels import Curve, Panel
from pisco.report.picture import draw

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from pisco.results import Result


TITLES = {
    "grad_norm_sq_mean": "running mean of ‖∇f(x̄)‖²",
    "grad_norm_sq": "‖∇f(x̄)‖²",
    "loss": "loss f(x̄)",
    "test_accuracy": "test accuracy at x̄",
    "consensus_error": "consensus error (1/n)Σ‖xᵢ − x̄‖²",
    "tracking_error": "tracking error (1/n)Σ‖yᵢ − ȳ‖²",
}
LOG_SCALE = {"grad_norm_sq_mean", "grad_norm_sq", "consensus_error", "tracking_error"}
_USUAL = ("grad_norm_sq_mean", "loss", "test_accuracy", "consensus_error")
SENT = ("bytes_gossip", "bytes_server")


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
    if not results:
        raise InputError("there is no result to plot; give at least one")
    panels = _panels(results, columns)
    return draw([panels[at : at + 3] for at in range(0, len(panels), 3)], path, title="Results")


def _panels(results: Sequence[Result], columns: Sequence[str] | None) -> list[Panel]:
    known = {name for result in results for name in result.history}
    for name in columns or ():
        if name not in known:
            raise InputError(f"no result has a column {name!r}; {suggest(name, known)}")
    chosen = list(columns) if columns else [name for name in _USUAL if name in known]
    if not chosen:
        raise InputError(
            f"the results hold none of {', '.join(_USUAL)}; choose among {', '.join(sorted(known))}"
        )
    panels = [_panel(results, name) for name in chosen]
    if columns is None and set(SENT) <= known:
        panels.append(_panel(results, chosen[0], against_bytes=True))
    return panels


def _panel(results: Sequence[Result], name: str, *, against_bytes: bool = False) -> Panel:
    """A column against rounds, or against the megabytes sent by then."""
    needed = {name, *SENT} if against_bytes else {name}
    curves = []
    for index, (result, label) in enumerate(zip(results, labels_of(results), strict=True)):
        if needed <= result.history.keys():
            x = result.column("round")
            if against_bytes:
                x = (result.column("bytes_gossip") + result.column("bytes_server")) / 1e6
            curves.append(Curve(label, x, result.column(name).astype(float), index))
    return column_panel(name, curves, "megabytes sent, all links" if against_bytes else "rounds")


def column_panel(name: str, curves: Sequence[Curve], x_title: str) -> Panel:
    """Curves of a column of the history, with its title and scale."""
    title, percent = TITLES.get(name, name.replace("_", " ")), name == "test_accuracy"
    return Panel(title, x_title, curves=curves, log_y=name in LOG_SCALE, percent=percent)


def labels_of(results: Sequence[Result]) -> list[str]:
    """Every result's label, told apart by number where two are the same, and marked where it diverged."""
    plain = [result.label or str(result.settings.get("network", "")) or "result" for result in results]
    out = []
    for index, (label, result) in enumerate(zip(plain, results, strict=True)):
        if plain.count(label) > 1:
            label = f"{label} ({index + 1})"
        out.append(f"{label} — diverged" if result.diverged else label)
    return out
