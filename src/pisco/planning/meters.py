"""What a pilot run pays: a price for messages and gradients, or seconds by a clock."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import cache
from typing import NamedTuple, Protocol

import numpy as np

from pisco.clock import Clock
from pisco.costs import Prices, RoundPrices
from pisco.engines.job import Run
from pisco.engines.stopwatch import Stopwatch
from pisco.networks.network import Network
from pisco.planning.settings import Setting
from pisco.problems.problem import Problem

TOGETHER = 3
"""Seeds that are timed in one call: all stages of a search have a multiple of it, and so share a program."""

TIMED = 256
"""Rounds whose mean is the expected time of one."""


class Meter(Protocol):
    """What some seeds of one setting pay."""

    @property
    def unit(self) -> float:
        """The expected price of a round."""
        ...

    def paid(self, index: int, rounds: int, served: int) -> float:
        """By one seed after so many rounds, of which so many reached the server."""
        ...

    def parts(self, price: float) -> dict[str, float]:
        """For what a price was paid, as is to be expected."""
        ...


Metering = Callable[[Setting, tuple[int, ...]], Meter]
"""From a setting and its seeds to what they pay."""


class PriceMeter(NamedTuple):
    """Prices of messages and gradients."""

    each: RoundPrices
    server_prob: float

    @property
    def unit(self) -> float:
        return self.each.expected(self.server_prob)

    def paid(self, index: int, rounds: int, served: int) -> float:
        return self.each.start + served * self.each.server + (rounds - served) * self.each.gossip

    def parts(self, price: float) -> dict[str, float]:
        work, rounds = self.each.work, (price - self.each.start) / self.unit if self.unit else 0.0
        gossip = (1 - self.server_prob) * (self.each.gossip - work) * rounds
        parts = {"between agents": gossip, "to and from the server": price - gossip - work * rounds}
        return parts | ({"gradients": work * rounds} if work else {})


class ClockMeter:
    """Seconds by a clock: known for any round before anything is trained."""

    def __init__(self, watches: Sequence[Stopwatch], rounds: int):
        self.watches, self.most, first = watches, rounds, min(rounds, TIMED)
        self.seconds = self._until(first)
        self.unit = float(np.mean(self.seconds[:, first] - self.seconds[:, 0])) / first

    def _until(self, rounds: int) -> np.ndarray:
        return np.concatenate([watch.at(range(rounds + 1)) for watch in self.watches])

    def paid(self, index: int, rounds: int, served: int) -> float:
        if rounds >= self.seconds.shape[1]:
            self.seconds = self._until(min(self.most, 2 * rounds))
        return float(self.seconds[index, rounds])

    def parts(self, price: float) -> dict[str, float]:
        return {"seconds": price}


def priced(problem: Problem, network: Network, prices: Prices) -> Metering:
    """A setting's messages and gradients at these prices."""

    @cache
    def of(alike: Setting) -> RoundPrices:
        each = prices.of_round(alike.sizes(problem), network.graph)
        return each._replace(gossip=each.work + alike.gossip_steps * (each.gossip - each.work))

    return lambda setting, seeds: PriceMeter(of(setting._replace(weights="", local_lr=1.0)), setting.server_prob)


def timed(problem: Problem, networks: Mapping[str, Network], clock: Clock, rounds: int) -> Metering:
    """A setting's seconds; steps of any size take as long."""

    @cache
    def of(alike: Setting, seeds: tuple[int, ...]) -> ClockMeter:
        network, sizes = networks[alike.weights].with_gossip_steps(alike.gossip_steps), alike.sizes(problem)
        runs = [Run(alike.algorithm, alike.server, seed) for seed in seeds]
        groups = [runs[at : at + TOGETHER] for at in range(0, len(runs), TOGETHER)]
        return ClockMeter([Stopwatch(clock, network, group, sizes) for group in groups], rounds)

    return lambda setting, seeds: of(setting._replace(local_lr=1.0), seeds)
