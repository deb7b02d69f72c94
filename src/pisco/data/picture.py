"""A picture of who holds which labels."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import numpy as np

from pisco.data.partition import label_counts
from pisco.errors import InputError

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

# Colours told apart with any colour vision: Okabe and Ito's blue and orange, then Tol's "muted" set.
_TWO = ("#0072B2", "#E69F00")
_MANY = (
    *("#332288", "#88CCEE", "#117733", "#DDCC77", "#CC6677"),
    *("#44AA99", "#882255", "#999933", "#AA4499", "#BBBBBB"),
)


def plot_labels(
    labels: Any,
    parts: Sequence[np.ndarray],
    path: str | Path | None = None,
    ax: Axes | None = None,
    *,
    classes: Sequence[str] | None = None,
    title: str = "Labels held by each agent",
) -> Figure:
    """Draw how many samples of each label every agent holds.

    Up to ten classes are stacked bars, one bar an agent; more are a heat map.

    Args:
        labels: label of every sample.
        parts: sample indices of every agent, as the partitions return them.
        path: file to write, in the format its ending names; None writes none.
        ax: axes to draw into; None makes a figure of its own.
        classes: names for the labels in increasing order; None shows the label values.
        title: heading of the picture.
    """
    from matplotlib.figure import Figure

    counts = label_counts(labels, parts)
    agents, num_classes = counts.shape
    values = np.unique(labels)
    signed = values[0] < 0
    names = (
        [f"{value:+d}" if signed else str(value) for value in values] if classes is None else list(classes)
    )
    if len(names) != num_classes:
        raise InputError(
            f"{len(names)} class names were given for {num_classes} labels; name each label once"
        )
    if ax is None:
        height = float(np.clip(1.6 + 0.3 * agents, 3.0, 9.0))
        ax = Figure(figsize=(8.0, height), dpi=150, layout="constrained").subplots()
    if num_classes <= len(_MANY):
        _bars(ax, counts, names)
    else:
        _heat_map(ax, counts, names)
    step = int(np.ceil(agents / 25))
    step = next(nice for nice in (1, 2, 5, 10, 20, 50, 100, 10**9) if nice >= step)
    ax.set_yticks(range(0, agents, step))
    ax.set_ylabel("agent")
    ax.set_title(f"{title}\n{agents} agents, {counts.sum():,} samples", fontsize="medium")
    figure = cast("Figure", ax.get_figure())
    if path is not None:
        try:
            figure.savefig(path)
        except (OSError, ValueError) as error:
            raise InputError(
                f"cannot write the picture {path} ({error}); use a folder that exists and .png, .svg or .pdf"
            ) from error
    return figure


def _bars(ax: Axes, counts: np.ndarray, names: list[str]) -> None:
    colours = _TWO if len(names) <= len(_TWO) else _MANY
    edges = np.cumsum(counts, axis=1)
    rows = np.arange(len(counts))
    # A hundred bars with gaps between them flicker; let them touch.
    thick = 0.8 if len(counts) <= 40 else 1.0
    for column, name in enumerate(names):
        left = edges[:, column] - counts[:, column]
        ax.barh(rows, counts[:, column], left=left, height=thick, color=colours[column], label=name)
    ax.set_ylim(len(counts) - 0.5, -0.5)
    ax.set_xlabel("samples")
    ax.xaxis.set_major_formatter("{x:,.0f}")
    ax.spines[["top", "right"]].set_visible(False)
    ax.legend(title="label", loc="upper left", bbox_to_anchor=(1.0, 1.0), frameon=False)


def _heat_map(ax: Axes, counts: np.ndarray, names: list[str]) -> None:
    image = ax.imshow(counts, aspect="auto", cmap="Blues", interpolation="nearest", vmin=0)
    step = int(np.ceil(len(names) / 20))
    ax.set_xticks(range(0, len(names), step), names[::step], rotation=90 if max(map(len, names)) > 3 else 0)
    ax.set_xlabel("label")
    ax.figure.colorbar(image, ax=ax, label="samples")
