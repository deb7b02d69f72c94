"""Medians over seeds where some never got there, and their bootstrap intervals."""

import math

import numpy as np
import pytest

from pisco.statistics import Estimate, Sample, median_curve, medians


def scipys(values, missed):
    """Kaplan and Meier's median from scipy's survival function, in the middle of a stretch at a half."""
    from scipy import stats  # slow to import, and every worker imports every file of tests

    if missed.all():
        return math.inf
    alive = stats.ecdf(stats.CensoredData(uncensored=values[~missed], right=values[missed])).sf
    ends = []
    for bound in (0.5 + 1e-9, 0.5 - 1e-9):
        under = alive.probabilities <= bound
        ends.append(alive.quantiles[under.argmax()] if under.any() else math.inf)
    return sum(ends) / 2


@pytest.mark.parametrize("seed", range(40))
def test_the_median_is_kaplan_and_meiers(seed):
    rng = np.random.default_rng(seed)
    count = rng.integers(1, 25)
    values, missed = rng.integers(1, 40, count).astype(float), rng.random(count) < 0.7 * rng.random()
    drawn = rng.multinomial(count, np.full(count, 1 / count), 5)
    found = medians(Sample(values, missed), drawn)
    for counts, median in zip(drawn, found, strict=True):
        assert median == scipys(np.repeat(values, counts), np.repeat(missed, counts))
    assert medians(Sample(values, np.zeros(count, bool)), np.ones((1, count), int)) == np.median(values)


def test_a_seed_that_missed_is_never_counted_with_what_it_spent():
    near = Sample.of([10, 20, 30, 40, math.nan], spent=50)
    assert near.median.value == Sample.of([10, 20, 30, 40, math.nan], spent=5000).median.value == 30
    assert near.median.high == math.inf and str(near.median) == "30 (10 to more than 50)"
    lost = Sample.of([10, math.nan, math.nan], spent=50).median
    assert lost.value == math.inf and str(lost).startswith("more than 50")
    # Most missed it, and by their coins had spent less than the one that did not: no median all the same.
    dear = Sample.of([1880, math.nan, math.nan], spent=[0, 400, 600]).median
    assert dear.value == dear.high == math.inf and dear.cap == dear.low == 400
    assert str(Sample.of([math.nan] * 3, spent=50).median) == "more than 50"
    # One that gave up early says nothing about later, whatever the others did.
    assert Sample.of([100, 110, 120, math.nan], spent=[0, 0, 0, 5]).median.value == 110


def test_intervals_cover_the_median_as_often_as_they_say():
    rng = np.random.default_rng(0)
    held = [low <= 1 <= high for _, low, high, _ in (Sample.of(rng.lognormal(0, 1, 20)).median for _ in range(400))]
    assert 0.9 <= np.mean(held) <= 0.99


def test_ratios_and_differences_are_of_medians_and_resample_seeds_together():
    rng = np.random.default_rng(1)
    base = rng.lognormal(3, 1, 20)
    ratio = Sample.of(0.5 * base).over(Sample.of(base))
    assert ratio.value == ratio.low == ratio.high == 0.5, "the same seeds: nothing is left to chance"
    assert Sample.of(base - 2).below(Sample.of(base)).words("{:.3f}".format) == "2.000"
    never = Sample.of(np.full(4, math.nan), spent=100).over(Sample.of(np.full(4, 50.0)))
    assert str(never) == "more than 2"
    assert Sample.of(np.full(4, 50.0)).over(Sample.of(np.full(4, math.nan), spent=100)).value == 0.5


@pytest.mark.parametrize("seeds", [1, 2, 5, 20])
def test_many_medians_at_once_are_those_of_each(seeds):
    values = np.random.default_rng(seeds).lognormal(size=(seeds, 30)).round(1)  # with ties
    found = np.array(median_curve(values))
    for column, each in zip(values.T, found.T, strict=True):
        np.testing.assert_allclose(each, Sample.of(np.sort(column)).median[:3])


def test_the_same_values_give_the_same_interval():
    values = np.random.default_rng(2).random(20)
    assert Sample.of(values).median == Sample.of(values).median
    assert Estimate(1.0, 1.0, 1.0).words() == "1"
