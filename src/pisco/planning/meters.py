"""What a pilot run pays: a price for messages and gradients, or seconds by a clock."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import cache, partial
from typing import Any, NamedTuple, Protocol

import jax
import numpy as np

from pisco.clock import Clock
from pisco.clock.stopwatch import Stopwatch
from pisco.costs import MessageSizes, Prices
from pisco.engines.job import Run, attendance
from pisco.networks.network import Network
from pisco.networks.rounds import Gossip, Links, count_links, draw
from pisco.networks.schedules import every
from pisco.planning.settings import Setting
from pisco.problems.problem import Problem
from pisco.seeds import seed_key, streams

TOGETHER = 3
"""Seeds that are timed in one call: all stages of a search have a multiple of it, and so share a program."""

TIMED = 256
"""Rounds whose mean is the expected time of one, and the expected number of its links."""


class Meter(Protocol):
    """What some seeds of one setting pay."""

    @property
    def unit(self) -> float:
        """The expected price of a round."""
        ...

    def paid(self, index: int, rounds: int, served: int, reached: Sequence[bool] = ()) -> float:
        """By one seed after so many rounds, of which so many reached the server.

        `reached` says which, where the schedule watches the loss.
        """
        ...

    def parts(self, price: float, served: float) -> dict[str, float]:
        """For what a price was paid, as is to be expected where this share of the rounds reaches the server."""
        ...


Metering = Callable[[Setting, tuple[int, ...]], Meter]
"""From a setting and its seeds to what they pay."""


class RoundPrices(NamedTuple):
    """What a gossip round and a server round cost, in each of them `work` for gradients, and what the start does."""

    gossip: float
    server: float
    work: float = 0.0
    start: float = 0.0
    before: float = 0.0
    """What of a server round is for gossip before the average."""

    @classmethod
    def of(cls, prices: Prices, sizes: MessageSizes, gossip: Links, server: Links, start_edges: float) -> RoundPrices:
        """From the links of an exchange in a gossip round and in a server round, and those of gossip at the start.

        >>> links = Links(1, 0, 1, 0, 0, 20, 10), Links(1, 1, 0, 10, 10, 0, 10)
        >>> RoundPrices.of(Prices(gradient=0.5), MessageSizes(10, [8, 8], [8, 8], [], [], work=(1, 1, 0)), *links, 20)
        RoundPrices(gossip=50.0, server=410.0, work=10.0, start=0.0, before=0.0)
        """
        exchanges, gradient = len(sizes.sent), prices.gradient * sizes.agents
        work = prices.gradient * gossip.present * sizes.gradients
        sent = [exchanges * prices.gossip * links.edges for links in (gossip, server)]
        up_down = exchanges * prices.server * (server.uplinks + server.downlinks)
        start = prices.gossip * start_edges * len(sizes.start_gossip) + gradient * sum(sizes.start_work)
        start += prices.server * 2.0 * sizes.agents * len(sizes.start_server)
        return cls(sent[0] + work, up_down + sent[1] + work, work, start, sent[1])

    def expected(self, server_prob: float) -> float:
        """The mean price of a round that reaches the server with probability p."""
        return (1 - server_prob) * self.gossip + server_prob * self.server


class PriceMeter(NamedTuple):
    """Prices of messages and gradients."""

    each: RoundPrices
    server_prob: float

    @property
    def unit(self) -> float:
        return self.each.expected(self.server_prob)

    def paid(self, index: int, rounds: int, served: int, reached: Sequence[bool] = ()) -> float:
        return self.each.start + served * self.each.server + (rounds - served) * self.each.gossip

    def parts(self, price: float, served: float) -> dict[str, float]:
        each, unit = self.each, self.each.expected(served)
        rounds = (price - each.start) / unit if unit else 0.0
        gossip = ((1 - served) * (each.gossip - each.work) + served * each.before) * rounds
        parts = {"between agents": gossip, "to and from the server": price - gossip - each.work * rounds}
        return parts | ({"gradients": each.work * rounds} if each.work else {})


class ClockMeter:
    """Seconds by a clock: known for any round before anything is trained."""

    def __init__(self, watches: Sequence[Stopwatch], rounds: int):
        self.watches, self.most, first = watches, rounds, min(rounds, TIMED)
        self.seconds = self._until(first)
        self.unit = float(np.mean(self.seconds[:, first] - self.seconds[:, 0])) / first

    def _until(self, rounds: int) -> np.ndarray:
        return np.concatenate([watch.at(range(rounds + 1)) for watch in self.watches])

    def paid(self, index: int, rounds: int, served: int, reached: Sequence[bool] = ()) -> float:
        if rounds >= self.seconds.shape[1]:
            self.seconds = self._until(min(self.most, 2 * rounds))
        return float(self.seconds[index, rounds])

    def parts(self, price: float, served: float) -> dict[str, float]:
        return {"seconds": price}


class SeenClockMeter:
    """Seconds by a clock where the schedule watches the loss: known from what the pilots did, a watch for each."""

    def __init__(self, watches: Sequence[Stopwatch], unit: float):
        self.watches, self.unit = watches, unit
        self.seconds = [watch.known[0] for watch in watches]

    def paid(self, index: int, rounds: int, served: int, reached: Sequence[bool] = ()) -> float:
        if rounds >= len(self.seconds[index]):
            seen = np.asarray(reached, bool)[None]
            self.seconds[index] = self.watches[index].at(range(seen.shape[1] + 1), seen)[0]
        return float(self.seconds[index][rounds])

    def parts(self, price: float, served: float) -> dict[str, float]:
        return {"seconds": price}


@partial(jax.jit, static_argnames=("server", "agents"))
def _used(gossip: Gossip, key: Any, rounds: Any, present: Any, *, server: bool, agents: int) -> Links:
    return jax.vmap(lambda k, there: count_links(gossip, draw(gossip, server, key, k, there), agents))(rounds, present)


def expected_links(network: Network, *, server: bool) -> Links:
    """What an exchange uses, the mean over some rounds that all reach the server, or none."""
    there = None if network.presence is None else attendance(network, rounds=TIMED)
    key, rounds = streams(seed_key(0)).links, np.arange(TIMED, dtype=np.int32)
    found = _used(network.gossip, key, rounds, there, server=server, agents=network.num_agents)
    return Links(*(float(np.mean(np.asarray(column, float))) for column in found))


def priced(problem: Problem, networks: Mapping[str, Network], prices: Prices) -> Metering:
    """A setting's messages and gradients at these prices."""

    @cache
    def of(alike: Setting) -> RoundPrices:
        network = alike.on(networks[alike.weights])
        gossip, server = (expected_links(network, server=reached) for reached in (False, True))
        edges = float(network.gossip.rule.draw(streams(seed_key(0)).links, 0)[1])
        sizes = alike.sizes(problem)._replace(agents=network.num_agents)
        return RoundPrices.of(prices, sizes, gossip, server, edges)

    return lambda setting, seeds: PriceMeter(of(setting._replace(local_lr=1.0, server_prob=1.0)), setting.server_prob)


def timed(problem: Problem, networks: Mapping[str, Network], clock: Clock, rounds: int) -> Metering:
    """A setting's seconds; steps of any size take as long."""

    @cache
    def of(alike: Setting, seeds: tuple[int, ...]) -> Meter:
        network, sizes = alike.on(networks[alike.weights]), alike.sizes(problem)
        server = alike.schedule(network)

        def watches(server: Any, at_once: int) -> list[Stopwatch]:
            runs = [Run(alike.algorithm, server, seed) for seed in seeds]
            groups = [runs[at : at + at_once] for at in range(0, len(runs), at_once)]
            return [Stopwatch(clock, network, group, sizes) for group in groups]

        own = watches(server, TOGETHER)
        if not own[0].watches:
            return ClockMeter(own, rounds)
        steady = ClockMeter(watches(every(round(1 / alike.server_prob)), TOGETHER), rounds)
        return SeenClockMeter(watches(server, 1), steady.unit)

    return lambda setting, seeds: of(setting._replace(local_lr=1.0), seeds)
