"""What measured cells say about one that was not measured: which methods are worth trying first.

Rounds of a method relative to its cell's median carry over between networks that mix alike, and between tasks; what a
round costs is known of the new network exactly. So relative rounds are averaged over the measured cells, those of a
like mixing rate and of the same task counting most, and multiplied with what a round costs.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np

from pisco.algorithms.registry import ALGORITHMS
from pisco.experiments.bench.scores import RATIOS, Score, Setting, by_setting, middle
from pisco.experiments.bench.store import bundled

NEAR = 0.15
"""Mixing rates this far apart count e times less."""

ALIKE = 10.0
"""How much more a cell of the same task counts."""

MISSED = 4.0
"""A target that was missed counts as this many times the rounds that were run."""

Key = tuple[str, float | None]
"""A method and its p."""


class Proposal(NamedTuple):
    """A method, its p, and what it is expected to cost relative to others."""

    method: str
    server_prob: float | None
    price: float


def _rounds(score: Score) -> float:
    return middle(score.sample("round")) if score.reached else MISSED * score.cell["rounds"]


def _relative(scores: Sequence[Score]) -> dict[Key, float]:
    """The logarithm of every score's rounds over the median of its cell."""
    rounds = {(score.method, score.server_prob): _rounds(score) for score in scores}
    usual = float(np.median(list(rounds.values())))
    return {key: math.log(value / usual) for key, value in rounds.items()}


class Learned(NamedTuple):
    """Relative rounds of every method in every measured cell, with where it was measured."""

    cells: Mapping[Setting, Mapping[Key, float]]
    rates: Mapping[Setting, float]

    @classmethod
    def of(cls, scores: Mapping[Setting, Sequence[Score]]) -> Learned:
        """From scores."""
        return cls(
            {at: _relative(some) for at, some in scores.items()},
            {at: float(some[0].cell["mixing_rate"]) for at, some in scores.items()},
        )

    def expected(self, key: Key, mixing_rate: float, task: str | None, without: Setting | None = None) -> float:
        """The relative rounds that a method is expected to need; infinite where nobody measured it."""
        total = weight = 0.0
        for at, cell in self.cells.items():
            if at == without or key not in cell:
                continue
            near = math.exp(-abs(self.rates[at] - mixing_rate) / NEAR) * (ALIKE if at[0] == task else 1.0)
            total, weight = total + near * cell[key], weight + near
        return math.exp(total / weight) if weight else math.inf


def round_price(score: Score, ratio: float, currency: str) -> float:
    """What a round costs on average, as far as the counts of this cell go."""
    price = ratio * score.spent[f"{currency}_server"] + score.spent[f"{currency}_gossip"]
    return float(np.mean(price / np.maximum(score.spent["round"], 1)))


def propose(
    learned: Learned,
    scores: Sequence[Score],
    ratio: float,
    currency: str = "bytes",
    *,
    task: str | None = None,
    without: Setting | None = None,
) -> list[Proposal]:
    """The methods of a cell, the one that is expected to be cheapest first; each at its best p.

    Of `scores` only what a round sends is used, which is known before anything is run.
    """
    found: dict[str, Proposal] = {}
    for score in scores:
        key = (score.method, score.server_prob)
        rounds = learned.expected(key, float(score.cell["mixing_rate"]), task, without)
        made = Proposal(*key, rounds * round_price(score, ratio, currency))
        if score.method not in found or made.price < found[score.method].price:
            found[score.method] = made
    return sorted(found.values(), key=lambda each: (each.price, each.method))


class LeftOut(NamedTuple):
    """On cells that were left out: what the proposal costs over the best, alone and as the best of a short list."""

    alone: np.ndarray
    listed: np.ndarray
    new_task: np.ndarray
    """The same, alone, where no cell of the task was seen."""
    new_listed: np.ndarray


def leave_one_out(
    scores: Mapping[Setting, Sequence[Score]],
    ratios: Sequence[float] = RATIOS,
    currency: str = "bytes",
    shortlist: int = 5,
) -> LeftOut:
    """For every cell, the price of what the other cells propose over the best price that was measured in it."""
    learned = Learned.of(scores)
    alone, listed, new, new_listed = [], [], [], []
    for at, some in scores.items():
        others = learned._replace(cells={each: cell for each, cell in learned.cells.items() if each[0] != at[0]})
        for ratio in ratios:
            true: dict[Key, float] = {(s.method, s.server_prob): s.price(ratio, currency) for s in some}
            best = min(true.values())
            if not math.isfinite(best):
                continue
            for known, task, first, several in ((learned, at[0], alone, listed), (others, None, new, new_listed)):
                made = propose(known, some, ratio, currency, task=task, without=at)
                prices = [true[each.method, each.server_prob] / best for each in made if math.isfinite(each.price)]
                if prices:
                    first.append(prices[0])
                    several.append(min(prices[:shortlist]))
    return LeftOut(*(np.array(each) for each in (alone, listed, new, new_listed)))


def shortlist(mixing_rate: float, ratio: float, count: int = 5, currency: str = "messages") -> list[str]:
    """The methods that measured cells recommend for a network that mixes like this, the most promising first.

    What a round sends is taken from the measured networks that mix most alike. Methods that ask more of a network than
    its weights and when the server is reached, or that have to be told p, are left to those who set them up.
    """
    scores = by_setting(bundled())
    learned = Learned.of(scores)
    nearest: dict[str, Setting] = {}
    for at in sorted(scores, key=lambda at: abs(scores[at][0].cell["mixing_rate"] - mixing_rate)):
        nearest.setdefault(at[0], at)
    places: dict[str, float] = {}
    for at in nearest.values():
        for place, each in enumerate(propose(learned, scores[at], ratio, currency)):
            places[each.method] = places.get(each.method, 0.0) + place
    return [method for method in sorted(places, key=lambda method: places[method]) if _plain(method)][:count]


def _plain(method: str) -> bool:
    row = ALGORITHMS[method]
    return set(row.network) <= {"server", "weights"} and "server_prob" not in row.hyperparameters
