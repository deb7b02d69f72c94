"""What private gradients spend: ε of a number of evaluations, and the noise or the rounds that an ε allows.

Two data sets are neighbours when one sample is replaced by another, so sizes are no secret. An evaluation sums b
clipped gradients, drawn with replacement from n samples, and adds noise of deviation σ·C. The replaced sample is drawn
k times, k ~ Bin(b, 1/n), and then moves the sum by 2Ck at most. For α' ≥ 1 the divergence of an evaluation is

    δ(α') ≤ η·[(1 − β)·H_α(Σₖ rₖ·N(2k) ‖ N(0)) + β·Σₖ rₖ·H_α(N(2k) ‖ N(0))],

η = P(k ≥ 1), rₖ = P(k)/η, α = 1 + (α' − 1)/η, β = α'/α, and normal distributions of deviation σ: the advanced joint
convexity of B. Balle, G. Barthe, M. Gaboardi, "Privacy amplification by subsampling", 2018 (whose theorem 10 takes the
second, larger sum for both). For α' < 1 it is that of the pair exchanged, as neighbours are so in both directions
(Y. Zhu, J. Dong, Y.-X. Wang, "Optimal accounting of differential privacy via characteristic function", 2022).
`dp_accounting` makes a distribution of the privacy loss of it and composes that over the evaluations; its own event for
sampling with replacement has no accountant yet. Full batches are the Gaussian mechanism itself.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Callable
from functools import lru_cache
from typing import Any

import numpy as np

from pisco.errors import InputError

GRID = 5_000
"""Points of a privacy loss distribution on either side of zero, at most; with fewer ε is larger, by 5e-4 at 3,000."""
FINEST = 1e-4
KNOTS = 16
"""At so many counts a curve of ε is computed; between them it is interpolated."""
MOST_NOISE = 1e6


def spent(noise: float, samples: int, batch_size: int | None, evaluations: int, delta: float) -> float:
    """ε of so many gradients of one agent with `samples` samples.

    >>> round(spent(1.0, 1000, 32, 100, 1e-5), 1)
    22.0
    """
    if evaluations == 0:
        return 0.0
    if noise == 0:
        return math.inf
    if batch_size is None:
        library = _library()
        return float(library.get_epsilon_gaussian(noise / 2 / math.sqrt(evaluations), delta))
    # The tail beyond the grid counts as if everything were lost there.
    tail = 1e-4 * delta / 1000 ** math.ceil(math.log10(evaluations) / 3 + 1e-9)
    return float(_once(noise, samples, batch_size, tail).self_compose(evaluations).get_epsilon_for_delta(delta))


def noise_for(epsilon: float, samples: int, batch_size: int | None, evaluations: int, delta: float) -> float:
    """The smallest σ, to a thousandth, with which so many gradients spend `epsilon` at most."""
    low, high = 0.0, 1.0
    while spent(high, samples, batch_size, evaluations, delta) > epsilon:
        low, high = high, 2 * high
        if high > MOST_NOISE:
            raise InputError(f"no noise keeps {evaluations} gradients within epsilon = {epsilon:g}; give a larger one")
    while high - low > 1e-3 * high:
        middle = (low + high) / 2
        enough = spent(middle, samples, batch_size, evaluations, delta) <= epsilon
        low, high = (low, middle) if enough else (middle, high)
    return high


def most(fits: Callable[[int], bool], high: int) -> int:
    """The largest count up to `high` that fits, where all smaller ones fit too; 0 where none does."""
    return high if fits(high) else bisect_left(range(1, high), True, key=lambda count: not fits(count))


def curve(noise: float, samples: int, batch_size: int | None, counts: Any, delta: float) -> np.ndarray:
    """`spent` at many counts: exact at up to `KNOTS` of them and at the last, to about a thousandth between."""
    counts = np.asarray(counts, np.int64)
    known = np.unique(counts)
    if batch_size is not None and len(known) > KNOTS:
        positive = known[known > 0]
        knots = np.unique(np.geomspace(positive[0], positive[-1], KNOTS).round().astype(np.int64))
        from scipy.interpolate import PchipInterpolator

        found = np.asarray([spent(noise, samples, batch_size, int(count), delta) for count in knots])
        smooth = PchipInterpolator(np.log(knots), np.log(np.maximum(found, 1e-12)))
        values = np.where(known > 0, np.exp(smooth(np.log(np.maximum(known, 1)))), 0.0)
    else:
        values = np.asarray([spent(noise, samples, batch_size, int(count), delta) for count in known])
    return values[np.searchsorted(known, counts)]


@lru_cache(maxsize=64)
def _once(noise: float, samples: int, batch_size: int, tail: float) -> Any:
    """The privacy loss distribution of one evaluation, made by connecting the dots of its profile."""
    _library()
    from dp_accounting.pld import pld_pmf, privacy_loss_distribution

    profile = _Profile(noise, samples, batch_size, tail)
    top = 0.25
    while profile.at(np.asarray([top]))[0] > 2 * tail and top < 1e4:
        top *= 1.25
    step = max(FINEST, top / GRID)
    points = math.ceil(top / step)
    above = profile.at(step * np.arange(points + 1))
    losses = step * np.arange(points, 0, -1)
    below = -np.expm1(-losses) + np.exp(-losses) * above[:0:-1]  # 1 − α + α·δ of the pair exchanged
    deltas = np.minimum.accumulate(np.clip(np.concatenate([below, above]), 0, 1))
    pmf = pld_pmf.create_pmf_pessimistic_connect_dots_fixed_gap(step, -points, points, deltas)
    return privacy_loss_distribution.PrivacyLossDistribution(pmf)


class _Profile:
    """δ of one evaluation as a function of ε ≥ 0."""

    def __init__(self, noise: float, samples: int, batch_size: int, tail: float):
        from scipy.stats import binom

        self.noise = noise
        self.drawn = float(-np.expm1(batch_size * np.log1p(-1 / samples))) if samples > 1 else 1.0
        times = np.arange(1, batch_size + 1)
        chances = binom.pmf(times, batch_size, 1 / samples)
        kept = chances > 1e-3 * tail
        self.times, self.chances = times[kept].astype(float), chances[kept] / self.drawn
        self.rest = max(0.0, 1.0 - self.chances.sum())  # drawn as often as is not looked at: everything is lost

    def at(self, epsilons: np.ndarray) -> np.ndarray:
        ratio = 1 + np.expm1(epsilons) / self.drawn  # α
        share = np.exp(epsilons) / ratio  # β
        told = (1 - share) * self._hidden(ratio) + share * self._revealed(ratio)
        return np.minimum(self.drawn * (told + self.rest), 1.0)

    def _revealed(self, ratio: np.ndarray) -> np.ndarray:
        """Σₖ rₖ·H_α(N(2k) ‖ N(0))."""
        from scipy.special import ndtr

        k, noise = self.times[:, None], self.noise
        edge = noise**2 * np.log(ratio) / (2 * k) + k
        return self.chances @ np.maximum(ndtr((2 * k - edge) / noise) - ratio * ndtr(-edge / noise), 0)

    def _hidden(self, ratio: np.ndarray) -> np.ndarray:
        """H_α(Σₖ rₖ·N(2k) ‖ N(0))."""
        from scipy.special import logsumexp, ndtr

        k, wanted = self.times[:, None], np.log(ratio)
        # The ratio of the densities rises with x: halve the interval that holds the place where it is α.
        high = np.full(ratio.shape, self.noise**2 * (wanted.max() - np.log(self.chances[0])) / 2 + 1.0)
        low = np.full(ratio.shape, -(self.noise**2) * 50.0)
        for _ in range(60):
            edge = (low + high) / 2
            found = logsumexp(2 * k * (edge - k) / self.noise**2, axis=0, b=self.chances[:, None])
            low, high = np.where(found < wanted, edge, low), np.where(found < wanted, high, edge)
        edge = high
        return np.maximum(self.chances @ ndtr((2 * k - edge) / self.noise) - ratio * ndtr(-edge / self.noise), 0)


def _library() -> Any:
    try:
        import dp_accounting
    except ImportError:
        raise InputError(
            "counting epsilon needs the package dp-accounting; run pip install 'pisco-fl[privacy]'"
        ) from None
    return dp_accounting
