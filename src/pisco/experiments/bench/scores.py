"""Measured cells as scores: what every method needed to reach a task's target, at any price of the server."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from pisco.experiments.bench.cells import COLUMNS
from pisco.statistics import Estimate, Sample

RATIOS = (0.1, 0.3, 1.0, 3.0, 10.0, 30.0, 100.0, 300.0, 1000.0)
"""What a byte or message to or from the server costs, where one between agents costs 1."""

MAY_MISS = 0.1
"""Where a larger share of the judged seeds missed the target, a method did not reach it."""

CURRENCIES = ("bytes", "messages")
BOTH, GOSSIP, SERVER = "server and gossip", "gossip alone", "server alone"
KINDS = (GOSSIP, BOTH, SERVER)


class Score(NamedTuple):
    """One method at one p on one task and network: what every judged seed had spent when it met the target."""

    cell: Mapping[str, Any]
    server_prob: float | None
    local_lr: float
    tuning_failed: int
    at_edge: bool
    missed: np.ndarray
    spent: Mapping[str, np.ndarray]

    @property
    def method(self) -> str:
        """The method's name."""
        return self.cell["method"]

    @property
    def label(self) -> str:
        """The method, with its p where it has one."""
        return self.method if self.server_prob is None else f"{self.method}, p = {self.server_prob:g}"

    @property
    def kind(self) -> str:
        """Whom its agents talk to."""
        if not self.spent["messages_server"].any():
            return GOSSIP
        return BOTH if self.spent["messages_gossip"].any() else SERVER

    @property
    def compressed(self) -> bool:
        """Whether its messages are smaller than what they stand for."""
        return self.cell["share_sent"] < 1

    @property
    def local_steps(self) -> bool:
        """Whether an agent takes more than one gradient a round."""
        return self.cell["gradients_a_round"] > 1

    def sample(self, column: str) -> Sample:
        """A column at the target; seeds that missed it are censored at what they had spent."""
        return Sample(self.spent[column], self.missed)

    def paid(self, ratio: float, currency: str = "bytes", gradient: float = 0.0) -> Sample:
        """The price, where what goes to or from the server costs `ratio` times as much as between agents."""
        sent = ratio * self.spent[f"{currency}_server"] + self.spent[f"{currency}_gossip"]
        return Sample(sent + gradient * self.spent["gradients"], self.missed)

    @property
    def reached(self) -> bool:
        """Whether it can be relied on: at most a tenth of the judged seeds missed the target."""
        return bool(self.missed.mean() <= MAY_MISS)

    def price(self, ratio: float, currency: str = "bytes") -> float:
        """The median of `paid`; infinite where too many seeds missed the target."""
        return middle(self.paid(ratio, currency)) if self.reached else math.inf

    def seconds(self) -> Estimate | None:
        """By the suite's clock; None where the cell was measured without."""
        return self.sample("seconds").median if "seconds" in self.spent else None


def middle(sample: Sample) -> float:
    """The median alone, without its interval."""
    from pisco.statistics import medians

    return float(medians(sample, np.ones((1, len(sample.values)), int))[0])


Case = tuple[str, str]
"""A task and a network."""


def by_setting(cells: Iterable[Mapping[str, Any]]) -> dict[Case, list[Score]]:
    """Every score by task and network; networks of a task from the quickest mixing to none."""
    found: dict[Case, list[Score]] = {}
    for cell in cells:
        for entry in cell["entries"]:
            found.setdefault((cell["task"], cell["network"]), []).append(score_of(cell, entry))
    tasks = list(dict.fromkeys(task for task, _ in found))
    order = sorted(found, key=lambda at: (tasks.index(at[0]), -found[at][0].cell["mixing_rate"], at[1]))
    return {at: found[at] for at in order}


def whole(scores: Mapping[Case, Sequence[Score]]) -> dict[Case, Sequence[Score]]:
    """Tasks and networks on which at least two fifths as many methods ran as on the one with the most.

    Among a few methods the cheapest says little about the field; `few` compares some by themselves. (Where a network
    falls apart, only those run that reach the server: a bit less than half.)
    """
    methods = {at: len({score.method for score in some}) for at, some in scores.items()}
    most = max(methods.values(), default=0)
    return {at: some for at, some in scores.items() if 5 * methods[at] >= 2 * most}


def few(scores: Mapping[Case, Sequence[Score]], methods: Collection[str]) -> dict[Case, Sequence[Score]]:
    """Some methods alone, on the tasks and networks where more than one of them ran."""
    found = {at: [score for score in some if score.method in methods] for at, some in scores.items()}
    return {at: some for at, some in found.items() if len({score.method for score in some}) > 1}


def score_of(cell: Mapping[str, Any], entry: Mapping[str, Any]) -> Score:
    """One entry of a cell."""
    seeds = cell["seeds"]
    missed = np.isin(np.arange(seeds), np.arange(seeds) if entry["missed"] == "all" else entry["missed"])
    spent = {"round": np.broadcast_to(np.asarray(entry["round"], float), (seeds,))}

    def column(given: Any) -> np.ndarray:
        if isinstance(given, Mapping):
            law = [*given["law"], 0][:3]
            return law[0] + law[1] * spent["round"] + (law[2] * spent["server_rounds"] if law[2] else 0.0)
        return np.broadcast_to(np.asarray(given, float), (seeds,))

    for name in ("server_rounds", *COLUMNS):
        if entry.get(name) is not None:
            spent[name] = column(entry[name])
    facts = ("server_prob", "local_lr", "tuning_failed", "at_edge")
    return Score(cell=cell, missed=missed, spent=spent, **{name: entry[name] for name in facts})


class Ranked(NamedTuple):
    """A method at its best p, and what it costs."""

    score: Score
    price: float


def ranking(scores: Sequence[Score], ratio: float, currency: str = "bytes") -> list[Ranked]:
    """Every method at its cheapest p, the cheapest first; those that did not reach the target at the end."""
    best: dict[str, Ranked] = {}
    for score in scores:
        found = Ranked(score, score.price(ratio, currency))
        if score.method not in best or found.price < best[score.method].price:
            best[score.method] = found
    return sorted(best.values(), key=lambda each: (each.price, each.score.method))


class Square(NamedTuple):
    """One square of the map: who is cheapest, and by how much."""

    setting: Case
    ratio: float
    first: Ranked
    second: Ranked | None
    margin: Estimate
    """The second's price over the first's."""


def chart(scores: Mapping[Case, Sequence[Score]], ratios: Sequence[float] = RATIOS, currency: str = "bytes"):
    """The squares of the map by task and network."""
    squares: dict[Case, list[Square]] = {}
    for at, some in scores.items():
        for ratio in ratios:
            ranked = [each for each in ranking(some, ratio, currency) if math.isfinite(each.price)]
            if not ranked:
                continue
            first, second = ranked[0], ranked[1] if len(ranked) > 1 else None
            margin = Estimate(math.inf, math.inf, math.inf)
            if second is not None:
                with np.errstate(divide="ignore", invalid="ignore"):  # some seeds get there before anything is sent
                    margin = second.score.paid(ratio, currency).over(first.score.paid(ratio, currency))
            squares.setdefault(at, []).append(Square(at, ratio, first, second, margin))
    return squares
