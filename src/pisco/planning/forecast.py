"""Where a curve that has not reached its target leads: how many rounds it still takes, or that it never gets there."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np

BINS = 20
"""The later half of a curve is averaged over so many stretches: single rounds are noisy."""

FLOORS = (0.0, 0.3, 0.5, 0.7, 0.8, 0.9, 0.95, 0.98)
"""Where the curve may end, over its lowest stretch; all are tried."""

BELOW = (0.03, 0.1, 0.3, 1.0, 3.0, 10.0)
"""And by how much of what it moved it may end below that stretch: a loss that creeps towards f* moves little."""

HORIZON = 100.0
"""No forecast goes further than this many times the rounds that were run."""

Fit = Callable[[np.ndarray], np.ndarray]

FALLS, ENDS = 1.5, 1.2
"""A curve is flat unless one that falls fits this many times as well, and falls to 0 unless one with a floor does."""


def rows_to(values: np.ndarray, bound: float, *, running: bool = False) -> float:
    """How many rows a curve of positive values takes until it is at most `bound`; infinite where it will not be.

    The later half, or a short curve as a whole, is fitted by c + a·ρ^k (linear convergence) or by
    c + a·k^(-s), whichever fits better. With `running` it is the mean of all rows that has to get there.

    >>> k = np.arange(101)
    >>> round(rows_to(0.9**k, 0.9**200)), rows_to(0.01 + 0.9**k, 0.005)
    (200, inf)
    """
    curve = _fitted(values)
    if curve is None:
        return math.inf
    last = len(values) - 1
    k = np.geomspace(max(last, 1), HORIZON * max(last, 1), 4000)
    level = curve(k)
    if running:
        steps = np.diff(k, prepend=k[0])
        level = (np.sum(values) + np.cumsum(steps * level)) / (k + 1)
    met = level <= bound
    return float(k[met.argmax()]) if met.any() else math.inf


def _fitted(values: np.ndarray) -> Fit | None:
    """The curve through the later half, a function of the row; None where there is too little to tell."""
    k = np.arange(len(values))
    use = (k >= (len(values) // 2 if len(values) > 2 * BINS else 1)) & np.isfinite(values) & (values > 0)
    if use.sum() < 3:
        return None
    parts = np.array_split(np.flatnonzero(use), min(BINS, int(use.sum())))
    at, seen = (np.array([series[part].mean() for part in parts]) for series in (k.astype(float), values))
    height, least = np.log(seen), seen.min()
    best, error = _level(float(seen.mean())), float(np.sqrt(np.mean((height - height.mean()) ** 2))) / FALLS
    moved = float(seen.max() - least)
    floors = [*(share * least for share in FLOORS), *(least - share * moved for share in BELOW)]
    for floor in floors:
        if not 0 <= floor < least:
            continue
        for shape in (_same, np.log):
            slope, start = np.polyfit(shape(at), np.log(seen - floor), 1)

            def curve(k, floor=floor, shape=shape, slope=slope, start=start):
                return floor + np.exp(slope * shape(k) + start)

            misses = float(np.sqrt(np.mean((np.log(curve(at)) - height) ** 2))) * (ENDS if floor else 1)
            if slope < 0 and misses < error:
                best, error = curve, misses
    return best


def _level(value: float) -> Fit:
    return lambda k: np.full_like(k, value)


def _same(k: np.ndarray) -> np.ndarray:
    return k
