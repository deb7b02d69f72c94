"""Medians over seeds with bootstrap intervals, where some seeds never met a target.

A seed that misses its target is *censored*: all that is known is that it needs more than it spent. It counts as such
(Kaplan and Meier's estimate), never with what it spent.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import cache
from typing import NamedTuple

import numpy as np

RESAMPLES = 2000
INTERVAL = 0.95


class Estimate(NamedTuple):
    """A statistic of some seeds and its bootstrap interval; above `cap` nothing is known, and values are infinite.

    >>> print(Estimate(40.0, 30.0, math.inf, cap=500.0))
    40 (30 to more than 500)
    """

    value: float
    low: float
    high: float
    cap: float = math.inf

    def words(self, write: Callable[[float], str] = "{:.3g}".format) -> str:
        """The value and its interval, each written by `write`."""
        middle, low, high = (f"more than {write(self.cap)}" if v == math.inf else write(v) for v in self[:3])
        return middle if low == middle == high else f"{middle} ({low} to {high})"

    def alone(self) -> Estimate:
        """The value without its interval."""
        return self._replace(low=self.value, high=self.value)

    def __str__(self) -> str:
        return self.words()


class Sample(NamedTuple):
    """One value per seed, and which of them are censored: what those spent without meeting the target.

    >>> print(Sample.of([30, 40, 50, math.nan, 35], spent=500).median)
    40 (30 to more than 500)
    """

    values: np.ndarray
    missed: np.ndarray

    @classmethod
    def of(cls, values: Sequence[float] | np.ndarray, spent: float | Sequence[float] | np.ndarray = 0.0) -> Sample:
        """Values by seed, NaN where the target was missed after `spent`."""
        values = np.asarray(values, float)
        missed = np.isnan(values)
        return cls(np.where(missed, spent, values), missed)

    @property
    def cap(self) -> float:
        """The most that any seed was watched for; infinite where none missed."""
        return float(self.values.max()) if self.missed.any() else math.inf

    @property
    def median(self) -> Estimate:
        """The median; where half of the seeds missed, more than what one of those spent.

        What a seed spends depends on its coins, so those that missed may have spent less than one that got there. By
        Kaplan and Meier alone there would then be a median price to a target that most seeds miss.

        >>> print(Sample.of([1880, math.nan, math.nan], spent=[0, 400, 600]).median.alone())
        more than 400
        """
        if not self.missed.any():
            return self._estimate(lambda counts: medians(self, counts), self.cap)

        def middle(counts: np.ndarray) -> np.ndarray:
            most = 2 * counts[:, self.missed].sum(axis=1) >= counts.sum(axis=1)
            return np.where(most, math.inf, medians(self, counts))

        found, least = self._estimate(middle, self.cap), float(self.values[self.missed].min())
        if found.value < math.inf:
            return found
        return found._replace(low=min(found.low, least) if found.low < math.inf else math.inf, cap=least)

    def over(self, other: Sample) -> Estimate:
        """The median over another's, seed by seed resampled together; a median beyond its cap counts with the cap."""
        below = other.median.value if math.isfinite(other.median.value) else other.cap

        def ratio(counts: np.ndarray) -> np.ndarray:
            return medians(self, counts) / np.minimum(medians(other, counts), other.cap)

        return self._estimate(ratio, self.cap / below)

    def below(self, other: Sample) -> Estimate:
        """The other's median minus this one's."""
        cap = other.cap - self.median.value
        return self._estimate(lambda counts: medians(other, counts) - medians(self, counts), cap)

    def _estimate(self, statistic: Callable[[np.ndarray], np.ndarray], cap: float) -> Estimate:
        count = len(self.values)
        (value,) = statistic(np.ones((1, count), int))
        found = statistic(_counts(count))
        ends = np.quantile(found, ((1 - INTERVAL) / 2, (1 + INTERVAL) / 2), method="inverted_cdf")
        return Estimate(float(value), float(ends[0]), float(ends[1]), cap)


@cache
def _counts(count: int) -> np.ndarray:
    """How often every seed is drawn in every resample: always the same draws, so that figures can be had again."""
    return np.random.default_rng(0).multinomial(count, np.full(count, 1 / count), RESAMPLES)


def median_curve(values: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """The median of every column of (seeds, columns), and its interval: `Sample.median` of the ordered values, at once.

    >>> [each.tolist() for each in median_curve(np.array([[1.0, 5.0], [2.0, 5.0], [9.0, 5.0]]))]
    [[2.0, 5.0], [1.0, 5.0], [9.0, 5.0]]
    """
    count, ordered = len(values), np.sort(values, axis=0)
    # The median of a resample lies in the middle of two of the ordered values: few such pairs occur, each often.
    drawn = np.cumsum(_counts(count), axis=1)
    middles = [(drawn <= place).sum(axis=1) for place in ((count - 1) // 2, count // 2)]
    pairs, times = np.unique(np.stack(middles, axis=1), axis=0, return_counts=True)
    found = (ordered[pairs[:, 0]] + ordered[pairs[:, 1]]) / 2
    order = np.argsort(found, axis=0)
    below = np.cumsum(times[order], axis=0) / RESAMPLES
    ends = [(below >= at - 1e-9).argmax(axis=0) for at in ((1 - INTERVAL) / 2, (1 + INTERVAL) / 2)]
    low, high = (np.take_along_axis(found, np.take_along_axis(order, end[None], 0), 0)[0] for end in ends)
    return (ordered[(count - 1) // 2] + ordered[count // 2]) / 2, low, high


def medians(sample: Sample, counts: np.ndarray) -> np.ndarray:
    """Kaplan and Meier's median of every resample (rows of `counts`), infinite where half of it is censored.

    The same as `scipy.stats.ecdf` of `CensoredData`, which takes one sample at a time; where the curve is flat at a
    half the middle of that stretch, so that without censored values it is the usual median.
    """
    order = np.lexsort((sample.missed, sample.values))  # what was met at a time comes before what was given up then
    values, happened, drawn = sample.values[order], ~sample.missed[order], counts[:, order]
    at_risk = np.cumsum(drawn[:, ::-1], axis=1)[:, ::-1]
    stay = np.where(happened, 1 - drawn / np.maximum(at_risk, 1), 1.0)
    alive = np.cumprod(stay, axis=1)
    found = []
    for bound in (0.5 + 1e-9, 0.5 - 1e-9):
        under = alive <= bound
        found.append(np.where(under.any(axis=1), values[under.argmax(axis=1)], math.inf))
    return (found[0] + found[1]) / 2
