"""What all figures share: colours that any colour vision tells apart, quiet axes, curves with bands."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from pisco.errors import InputError

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

# Okabe and Ito's palette without yellow, which vanishes on white.
COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#56B4E9", "#E69F00", "#000000")
DASHES = ("-", "--", ":", "-.")


def colour(index: int) -> str:
    """The colour of the curve with this number."""
    return COLOURS[index % len(COLOURS)]


def dash(index: int) -> str:
    """Its line style, which changes when the colours are used up."""
    return DASHES[index // len(COLOURS) % len(DASHES)]


def tidy(ax: Axes) -> None:
    """No box, a faint grid behind the curves."""
    ax.spines[["top", "right"]].set_visible(False)
    ax.grid(True, color="#dddddd", linewidth=0.6)
    ax.set_axisbelow(True)


def curve(ax: Axes, x: np.ndarray, y: np.ndarray, index: int, label: str, *, log: bool) -> bool:
    """Mean over seeds with a band from the least to the greatest; whether anything could be drawn.

    x, y: (seeds, rows). Values that cannot be drawn (not finite, or not positive on a log scale) leave a gap.
    """
    drawable = np.isfinite(y) & (np.abs(y) < 1e30) & ((y > 0) | (not log))
    y = np.where(drawable, y, np.nan)
    some = drawable.any(axis=0)
    if not some.any():
        return False
    # Seeds reach other byte counts in the same round, so x is averaged as well.
    x, y = x.mean(axis=0)[some], y[:, some]
    mark = "o" if len(x) == 1 else None
    mean = np.nanmean(y, axis=0)
    ax.plot(x, mean, color=colour(index), linestyle=dash(index), marker=mark, linewidth=1.6, label=label)
    if len(y) > 1:
        ax.fill_between(
            x, np.nanmin(y, axis=0), np.nanmax(y, axis=0), color=colour(index), alpha=0.18, linewidth=0
        )
    return True


def save(figure: Figure, path: str | Path) -> Path:
    """Write a figure in the format that the ending names."""
    path = Path(path)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        figure.savefig(path)
    except (OSError, ValueError) as error:
        raise InputError(
            f"cannot write the picture {path} ({error}); use a folder you may write to and .png, .svg or .pdf"
        ) from error
    return path
