"""What measured cells say about a problem that was not measured: which methods are worth a pilot run.

Who is cheap depends on how the network mixes, and on what a round with the server costs over one without it. So a
measured cell speaks for a new network at the server's price that gives its rounds the same ratio, the louder the more
alike the two mix. The list holds methods that complement each other: one for every kind of problem that was seen.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from pisco.algorithms.registry import ALGORITHMS
from pisco.costs import Prices
from pisco.experiments.bench.scores import MAY_MISS, RATIOS, Case, Score, by_setting, whole
from pisco.experiments.bench.store import bundled
from pisco.networks.graph import Graph
from pisco.networks.network import Network
from pisco.planning.settings import can_plan

NEAR = 0.5
"""Mixing rates whose logarithms are this far apart count e times less."""

LEAST = 0.01
"""Added to mixing rates: below it all networks mix too slowly to tell them apart."""

ALIKE = 10.0
"""How much more a cell of the same task counts."""

LATE = 10.0
"""Nothing counts as worse than so many times the cheapest; a target that was missed counts as that."""

ALONE = 0.1
"""How much it counts that a method is good by itself, where 1 is what it adds to the list."""

SHORT = 5
"""How many methods are worth a pilot."""

MethodAt = tuple[str, float | None]
"""A method and its p."""


class Spot(NamedTuple):
    """What is known of a network before anything is run."""

    mixing_rate: float
    agents: int
    edges: int

    def ratio_at(self, other: Spot, ratio: float) -> float:
        """The server's price there at which a server round costs as many gossip rounds as here."""
        return ratio * (self.agents / max(1, self.edges)) / (other.agents / max(1, other.edges))

    def likeness(self, other: Spot) -> float:
        """1 for a network that mixes alike, less for others."""
        apart = math.log((self.mixing_rate + LEAST) / (other.mixing_rate + LEAST))
        return math.exp(-abs(apart) / NEAR)


class PriceTable(NamedTuple):
    """All scores of one task and network: what each seed had sent at the target, by row of method and p."""

    place: Spot
    keys: Sequence[MethodAt]
    server: np.ndarray
    gossip: np.ndarray
    missed: np.ndarray

    @classmethod
    def of(cls, scores: Sequence[Score], currency: str) -> PriceTable:
        """From scores."""
        cell = scores[0].cell
        server, gossip = (
            np.stack([score.spent[f"{currency}_{kind}"] for score in scores]) for kind in ("server", "gossip")
        )
        place = Spot(float(cell["mixing_rate"]), int(cell["agents"]), int(cell["edges"]))
        keys = [(score.method, score.server_prob) for score in scores]
        return cls(place, keys, server, gossip, np.stack([score.missed for score in scores]))

    def prices(self, ratio: float, seeds: slice = slice(None)) -> np.ndarray:
        """The median price of every row, infinite where too many of these seeds missed the target."""
        missed = self.missed[:, seeds]
        paid = np.where(missed, np.inf, ratio * self.server[:, seeds] + self.gossip[:, seeds])
        return np.where(missed.mean(axis=1) > MAY_MISS, np.inf, np.median(paid, axis=1))

    def costs(self, ratio: float) -> dict[MethodAt, float]:
        """The logarithm of every price over the cheapest, at most that of `LATE`."""
        prices = self.prices(ratio)
        least = max(float(prices.min()), 1e-9)
        over = np.full(len(prices), LATE) if math.isinf(least) else np.clip(prices / least, 1.0, LATE)
        return dict(zip(self.keys, np.log(over).tolist(), strict=True))


PriceTables = Mapping[Case, PriceTable]


def tables_of(scores: Mapping[Case, Sequence[Score]], currency: str = "bytes") -> dict[Case, PriceTable]:
    """One for every task and network."""
    return {at: PriceTable.of(some, currency) for at, some in scores.items()}


class Shortlist(NamedTuple):
    """Methods that are worth a pilot, the most promising first, and the p at which the first one is expected to win."""

    methods: list[str]
    first: MethodAt


def rank(
    seen: PriceTables,
    place: Spot,
    ratio: float,
    *,
    task: str | None = None,
    count: int = SHORT,
    usable: Callable[[str], bool] = lambda method: True,
) -> Shortlist:
    """What to try on a network, by the cells that were seen: every next method is the one that adds most."""
    costs = [table.costs(place.ratio_at(table.place, ratio)) for table in seen.values()]
    weights = _weights(seen, place, task)
    keys = [key for key in dict.fromkeys(key for cost in costs for key in cost) if usable(key[0])]
    late = math.log(LATE)
    by_key = np.array([[cost.get(key, late) for cost in costs] for key in keys])
    first = keys[int(np.argmin(by_key @ weights))]
    names = list(dict.fromkeys(method for method, _ in keys))
    rows = np.array([by_key[[key[0] == name for key in keys]].min(axis=0) for name in names])
    chosen, best = [first[0]], rows[names.index(first[0])]
    while len(chosen) < min(count, len(names)):
        left = (np.minimum(rows, best) + ALONE * rows) @ weights
        left[[names.index(name) for name in chosen]] = np.inf
        chosen.append(names[int(np.argmin(left))])
        best = np.minimum(best, rows[names.index(chosen[-1])])
    return Shortlist(chosen, first)


def _weights(seen: PriceTables, place: Spot, task: str | None) -> np.ndarray:
    """How much every cell counts: tasks alike, whatever the number of networks on which they were measured."""
    like = {at: place.likeness(table.place) for at, table in seen.items()}
    total = {name: sum(value for at, value in like.items() if at[0] == name) for name, _ in seen}
    share = [like[at] / total[at[0]] * (ALIKE if at[0] == task else 1.0) for at in seen]
    return np.array(share) / sum(share)


# ----------------------------------------------------------------------------------------- how good that is


class LeftOut(NamedTuple):
    """On cells that were left out: what is proposed over the best that was measured, by its price."""

    first: np.ndarray
    """The first proposal, where other networks of the task were seen."""
    piloted: np.ndarray
    """What pilots choose out of the list: on half of the judged seeds, paid for on the other half."""
    new_first: np.ndarray
    """The same where no cell of the task was seen."""
    new_piloted: np.ndarray


def leave_one_out(
    scores: Mapping[Case, Sequence[Score]], ratios: Sequence[float] = RATIOS, currency: str = "bytes"
) -> LeftOut:
    """For every cell, the price of what the other cells propose over the best price that was measured in it."""
    tables = tables_of(scores, currency)
    found: dict[str, list[float]] = {name: [] for name in LeftOut._fields}
    for at, table in tables.items():
        half = table.missed.shape[1] // 2
        usable = {method for method, _ in table.keys if fits(method)}
        others = {each: other for each, other in tables.items() if each != at}
        strangers = {each: other for each, other in others.items() if each[0] != at[0]}
        for ratio in ratios:
            pilots, judged = (table.prices(ratio, seeds) for seeds in (slice(0, half), slice(half, None)))
            best = float(judged.min())
            if math.isinf(best):
                continue
            for seen, task, new in ((others, at[0], ""), (strangers, None, "new_")):
                if not seen:
                    continue
                made = rank(seen, table.place, ratio, task=task, usable=usable.__contains__)
                listed = [row for row, key in enumerate(table.keys) if key[0] in made.methods]
                chosen = min(listed, key=lambda row: pilots[row])
                first = judged[table.keys.index(made.first)] if made.first in table.keys else math.inf
                found[f"{new}first"].append(first / best)
                found[f"{new}piloted"].append(float(judged[chosen]) / best)
    return LeftOut(*(np.array(found[name]) for name in LeftOut._fields))


WORDS = {
    "first": "first",
    "piloted": "of five, by pilots",
    "new_first": "first, task not seen",
    "new_piloted": "of five, by pilots, task not seen",
}


def summary(found: LeftOut) -> list[dict[str, Any]]:
    """Every kind of proposal in one record: how many squares, and what it costs over the best."""
    rows = []
    for name, words in WORDS.items():
        over = getattr(found, name)
        if len(over):
            middle, far = (float(np.quantile(over, q, method="higher")) for q in (0.5, 0.9))
            near = float(np.mean(over <= 1.15))
            rows.append({"proposal": words, "cells": len(over), "median": middle, "90%": far, "within 1.15": near})
    return rows


def shortlist(place: Spot, ratio: float, usable: Callable[[str], bool] = lambda method: fits(method)) -> list[str]:
    """The methods that the package's cells recommend for a network, the most promising first, out of `usable` ones."""
    return rank(tables_of(whole(by_setting(bundled())), "messages"), place, ratio, usable=usable).methods


def recommended(network: Network, prices: Prices) -> list[str]:
    """Out of all methods those that the package's cells recommend for a network at some prices."""
    place = Spot(max(network.mixing_rate, 0.0), network.num_agents, network.graph.num_edges)

    def usable(method: str) -> bool:
        return fits(method, network.graph) and can_plan(method, network)

    return shortlist(place, prices.server / max(prices.gossip, 1e-9), usable=usable)


def fits(method: str, graph: Graph | None = None) -> bool:
    """Whether a method is at home on a graph: one that is published on clusters needs them."""
    asked = ALGORITHMS[method].network
    return "graph" not in asked or ("clusters" in asked and graph is not None and graph.groups is not None)
