"""Figures as data: rows of panels, drawn to a picture (`picture.draw`) or to an interactive page (`interactive`)."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np

from pisco.statistics import median_curve

__all__ = ["Agents", "Bars", "Curve", "Heat", "Level", "LinkLines", "Panel", "Tiles"]

# Okabe and Ito's palette, which any colour vision tells apart, without yellow, which vanishes on white.
COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#56B4E9", "#E69F00", "#000000")
# Not the colours of curves: a bar stands for a kind of link.
GOSSIP, SERVER = "#B8C4CE", "#E69F00"
POWER, SUBSCRIPT = re.compile(r"\b10\^(-?[\d.]+)"), re.compile(r"(?<!\w)([λTη])_(\w)(?!\w)")
"""What words of panels write as 10^-0.5 and λ_w, and pictures and pages as formulas."""
HEAD = "#3f4b59"
"""The colour of arrowheads, darker than that of any link, so that they are seen on wide ones."""
HUGE = 1e30
"""Values above this are not drawn: they would flatten everything else."""


def failures_last(y: np.ndarray, *, rising: bool | None) -> np.ndarray:
    """What is no number, or none to be drawn, as worse than any: seeds that blew up are counted, not left out."""
    fine = np.isfinite(y) & (np.abs(y) < HUGE)
    return np.where(fine, y, -np.inf if rising else np.inf)


class Curve(NamedTuple):
    """One curve, or points: y is (seeds, rows), x the same or one row; `index` is its colour wherever it appears."""

    label: str
    x: np.ndarray
    y: np.ndarray
    index: int = 0
    points: bool = False

    @property
    def colour(self) -> str:
        """Colours are used again, with another line style, when there are more curves."""
        return COLOURS[self.index % len(COLOURS)]

    def median_and_band(self, panel: Panel) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
        """x, the median of y over seeds, and its 95% bootstrap interval, in the rows where the median can be drawn.

        >>> seeds = np.array([[1.0, np.nan, 0.0], [3.0, 4.0, 0.0], [2.0, 5.0, 1.0]])
        >>> Curve("", np.arange(3), seeds).median_and_band(Panel("", log_y=True))[:2]
        (array([0., 1.]), array([2., 5.]))
        """
        # Seeds reach other byte counts in the same round, so x has a median as well.
        x = np.median(np.broadcast_to(self.x, self.y.shape), axis=0)
        y = failures_last(self.y, rising=panel.rising)
        middle, low, high = median_curve(y)
        seen = y[np.isfinite(y)]
        if seen.size:
            low, high = np.clip([low, high], seen.min(), seen.max())
        some = np.isfinite(middle) & (x > 0 if panel.log_x else True)
        if panel.log_y:
            some, low = some & (middle > 0), np.where(low > 0, low, middle)
        return x[some], middle[some], low[some], high[some]


class Bars(NamedTuple):
    """Stacked bars: every part has a name, a colour and one value per label.

    A note is what stands above a bar: a few words in bold, and lines below them. `interval` is from where to where the
    end of every bar may lie. A capped bar ends where nobody looked further: it is hatched and has an arrow.
    """

    labels: Sequence[str]
    parts: Mapping[str, np.ndarray]
    colours: Sequence[str] = (GOSSIP, SERVER)
    notes: Sequence[tuple[str, str]] = ()
    horizontal: bool = False
    interval: tuple[np.ndarray, np.ndarray] | None = None
    capped: Sequence[bool] = ()

    def errors(self) -> np.ndarray:
        """How far the interval goes below and above every bar; nothing for a capped one, or beyond what was seen."""
        assert self.interval is not None
        ends = np.sum(list(self.parts.values()), axis=0)
        far = np.maximum([ends - self.interval[0], self.interval[1] - ends], 0)
        far = np.where(np.isfinite(far), far, np.maximum(1.05 * ends.max(initial=0.0) - ends, 0))
        return np.where(list(self.capped) or False, 0, far)


class Level(NamedTuple):
    """A line across the panel; one without a colour has its name written on it, one with a colour in the legend."""

    label: str
    value: float
    colour: str = ""


class Heat(NamedTuple):
    """A map of counts, one row of squares after the other."""

    labels: Sequence[str]
    values: np.ndarray
    unit: str


class Tiles(NamedTuple):
    """Squares with words in them, row by row: each has a kind, which is its colour, and a strength from 0 to 1."""

    across: Sequence[str]
    down: Sequence[str]
    kinds: Sequence[str]
    which: np.ndarray
    """The place of every square's kind in `kinds`, (down, across); −1 where there is nothing."""
    strength: np.ndarray
    words: Sequence[Sequence[str]]

    @property
    def colours(self) -> list[str]:
        """The colour of every kind."""
        return [COLOURS[place % len(COLOURS)] for place in range(len(self.kinds))]


class LinkLines(NamedTuple):
    """Lines of one kind between agents, each an array of points (n, 2); named in the legend after the widest one."""

    lines: Sequence[np.ndarray]
    widths: np.ndarray
    colour: str
    dashed: bool = False
    label: str = ""
    heads: Sequence[np.ndarray] = ()
    """Closed triangles that show where links lead."""


class Agents(NamedTuple):
    """Agents as dots at their places (n, 2), numbered where there is room."""

    places: np.ndarray
    colours: str | Sequence[str]
    numbered: bool


class Panel(NamedTuple):
    """One set of axes."""

    title: str
    x_title: str = ""
    y_title: str = ""
    curves: Sequence[Curve] = ()
    bars: Bars | None = None
    levels: Sequence[Level] = ()
    heat: Heat | None = None
    tiles: Tiles | None = None
    links: Sequence[LinkLines] = ()
    agents: Agents | None = None
    image: np.ndarray | None = None
    """Grey, from 0 to 1, row by row."""
    log_x: bool = False
    log_y: bool = False
    percent: bool = False
    rising: bool | None = None
    """Whether larger is better in its curves: seeds that blew up count as worse than any."""
    legend: str = ""
    """A corner of the panel, "right" or "below" it; where nothing is said, below the whole figure with the others."""
    legend_title: str = ""


PanelRows = Sequence[Sequence[Panel]]


def every_nth(count: int, most: int = 25) -> int:
    """So that at most `most` of `count` labels are shown: every one, second, fifth, tenth, …

    >>> every_nth(25), every_nth(26), every_nth(100)
    (1, 2, 5)
    """
    return next(step for step in (1, 2, 5, 10, 20, 50, 100, count) if step * most >= count)
