"""Who sends what to whom in a round: every process works it out alone from the plan and the seed.

A round's exchange is one or more hops. In a gossip hop an agent pulls from its neighbours and adds up; in a server hop
the server pulls from the reporters, adds up in the roster's order, and agents pull the average.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from pisco.errors import InputError
from pisco.networks.network import Network
from pisco.networks.rounds import Gossip, Links, Told, count_links, draw, tell
from pisco.networks.schedules import Schedule, decided_shape
from pisco.seeds import Streams

BLOCK = 512
"""Coins are tossed for this many rounds at once: one by one would cost more than the rounds."""


# Networks and keys are arguments: another network of the same kind compiles nothing again.


@functools.partial(jax.jit, static_argnames="agents")
def _toss(server: Schedule, gossip: Gossip, keys: Streams, memory: Any, first: Any, *, agents: int) -> Any:
    """The memory after a block of rounds, and what is drawn in them."""

    def one(memory: Any, k: Any) -> tuple[Any, Any]:
        who, memory = server.decide(memory, keys.coins, k, lambda: jnp.zeros(()))  # who looks at a loss was refused
        drawn = draw(gossip, who, keys.links, k)
        return memory, (tell(drawn, agents), drawn.weights, count_links(gossip, drawn, agents))

    return jax.lax.scan(one, memory, jnp.int32(first) + jnp.arange(BLOCK, dtype=jnp.int32))


@jax.jit
def _weighing(gossip: Gossip, keys: Streams, who: Any, k: Any, some: Any) -> jax.Array:
    """What the links to some agents weigh for everybody in a round's gossip; of one after the other, Wᵀ."""
    return draw(gossip, who, keys.links, jnp.int32(k)).operator(jnp.asarray(some, float))


@functools.partial(jax.jit, static_argnames="agents")
def _counted(gossip: Gossip, keys: Streams, rows: Any, *, agents: int) -> Links:
    """The links of rounds, by who reaches the server, the round, and who is present."""

    def one(drawn: Any) -> Links:
        return count_links(gossip, draw(gossip, drawn[0], keys.links, drawn[1], drawn[2]), agents)

    return jax.lax.map(one, rows)


class GossipHop(NamedTuple):
    """`incoming` weighs what is pulled, by place, one's own included; `readers` pull one's own message.

    `kept` is what the links to the absent weigh, and stays on one's own. Where links are one-way, `shared` weighs those
    leaves of a message that are `pushed`.
    """

    incoming: Mapping[int, float]
    readers: tuple[int, ...]
    kept: float = 0.0
    shared: Mapping[int, float] | None = None
    pushed: tuple[int, ...] = ()


class ServerHop(NamedTuple):
    """The weight of every reporter; everybody in `receivers` pulls the average."""

    weights: Mapping[int, float] | None  # None: equal weights of all in `reporters`
    reporters: tuple[int, ...]
    receivers: tuple[int, ...]


Hop = GossipHop | ServerHop


def pushing(hops: Sequence[Hop], pushed: tuple[int, ...]) -> list[Hop]:
    """The hops of a message some of whose leaves are pushed."""
    return [hop._replace(pushed=pushed) if isinstance(hop, GossipHop) else hop for hop in hops]


def without_gone(hop: ServerHop, there: np.ndarray | None) -> ServerHop:
    """A server exchange of all, among those who are there."""
    if there is None:
        return hop
    places = tuple(place for place in hop.reporters if there[place])
    return ServerHop(None, places, places)


class Routes:
    """The hops of every round of one network: what `networks.rounds` draws, as messages.

    Where a method takes `present`, a mask over places, the round is one among those; None is everybody.
    """

    def __init__(self, network: Network, keys: Streams):
        self.network, self.keys = network, keys
        self.num_agents = network.num_agents
        decided_shape(network.server, self._nobody_knows)
        self._memories: dict[int, Any] = {0: network.server.start()}
        self._block: tuple[int, Any] = (-1, None)
        self._matrix: tuple[Any, Any] = (None, None)

    def told(self, k: int, place: int, present: np.ndarray | None = None) -> Told:
        """What the round function of the agent at a place is told of round k."""
        told: Told = self._drawn(k)[0]
        own = slice(place, place + 1)
        if present is not None:
            number = told.share.dtype.type  # the same division as in `tell`
            return Told(present[own], number(max(present.sum(), 1)) / number(self.num_agents), told.server[own])
        return Told(told.participates[own], told.share, told.server[own])

    def links(self, first: int, end: int) -> Links:
        """The links that one exchange uses, for every round from `first` to before `end`."""
        starts = range(first - first % BLOCK, end, BLOCK)
        columns = [np.concatenate(parts) for parts in zip(*(self._around(k)[2] for k in starts), strict=True)]
        return Links(*(column[first % BLOCK :][: end - first] for column in columns))

    def links_among(self, first: int, present: np.ndarray) -> Links:
        """The same where `present` has a row for every round from `first` on."""
        rounds = np.arange(first, first + len(present), dtype=np.int32)
        who = np.stack([self._drawn(k)[0].server for k in rounds.tolist()])
        who = who if self.network.splits_rounds else who[:, 0]
        columns = _counted(self.network.gossip, self.keys, (who, rounds, present), agents=self.num_agents)
        return Links(*map(np.asarray, columns))

    def hops(self, k: int, place: int | None, present: np.ndarray | None = None) -> list[Hop]:
        """What every exchange of round k consists of for the agent at a place, or for the server (None)."""
        mask = self._drawn(k)[0].server
        if self.network.splits_rounds:
            if place is not None and not mask[place]:
                return [self.gossip_hop(place, k, mask, present)]
            inside = tuple(np.flatnonzero(mask if present is None else mask & present).tolist())
            return [ServerHop(None, inside, inside)] if inside else []
        steps = self.network.gossip_steps
        gossip: list[Hop] = [] if place is None else [self.gossip_hop(place, k, present=present)] * steps
        if not mask.any():
            return gossip
        before = gossip if self.network.gossip_before_server else []
        if present is None:
            return [*before, self.server_hop(k)]
        there = tuple(np.flatnonzero(present).tolist())
        return [*before, ServerHop(None, there, there)]

    def gossip_hop(self, place: int, k: int = 0, who: Any = False, present: np.ndarray | None = None) -> GossipHop:
        """One gossip exchange of round k where `who` reach the server; the start's is round 0's of all."""
        at = (k if self.network.varying or who is not False else 0, who is False)
        if self._matrix[0] != at:
            self._matrix = (at, np.asarray(_weighing(self.network.gossip, self.keys, who, k, np.eye(self.num_agents))))
        transposed = self._matrix[1]  # row i holds what agent i takes, column i who takes from it
        if self.network.push is not None:
            return self._one_way_hop(place, transposed)
        incoming = {place: 0.0} | {int(j): float(transposed[place, j]) for j in np.flatnonzero(transposed[place])}
        readers = tuple(int(j) for j in np.flatnonzero(transposed[:, place]) if j != place)
        kept = 0.0
        if present is not None:
            incoming = {j: weight for j, weight in incoming.items() if present[j]}
            readers = tuple(j for j in readers if present[j])
            if not present.all():
                kept = float(_weighing(self.network.gossip, self.keys, who, k, ~present)[place])
        return GossipHop(dict(sorted(incoming.items())), readers, kept)

    def _one_way_hop(self, place: int, pull: np.ndarray) -> GossipHop:
        push = np.asarray(self._transposed_push)
        linked = (pull != 0) | (push != 0)
        senders = sorted({place, *np.flatnonzero(linked[place]).tolist()})
        readers = tuple(j for j in np.flatnonzero(linked[:, place]).tolist() if j != place)
        incoming, shared = ({j: float(weights[place, j]) for j in senders} for weights in (pull, push))
        return GossipHop(incoming, readers, shared=shared)

    def server_hop(self, k: int | None) -> ServerHop:
        """One server exchange of round k; None is before the first round, when everybody reports."""
        everybody = tuple(range(self.num_agents))
        if self.network.sampling is None or k is None:
            return ServerHop(None, everybody, everybody)
        weights = {agent: float(weight) for agent, weight in enumerate(self._drawn(k)[1]) if weight}
        return ServerHop(weights, tuple(weights), tuple(weights) if self.network.to_sampled else everybody)

    def _drawn(self, k: int) -> tuple[Told, Any, Links]:
        """What is drawn of round k: what agents are told, the weights of reports, the links."""
        return jax.tree.map(lambda column: column[k % BLOCK], self._around(k))

    def _around(self, k: int) -> tuple[Told, Any, Links]:
        """The same for the block of rounds around k."""
        block, memories = k // BLOCK, self._memories
        if self._block[0] != block:
            if not jax.tree.leaves(memories[0]):
                memories[block] = memories[0]  # nothing to remember: any block may come first
            for b in range(max(b for b in memories if b <= block), block + 1):
                memories[b + 1], drawn = _toss(
                    self.network.server, self.network.gossip, self.keys, memories[b], b * BLOCK, agents=self.num_agents
                )
            self._block = (block, jax.tree.map(np.asarray, drawn))
        return self._block[1]

    @functools.cached_property
    def _transposed_push(self) -> Any:
        """The same for what is pushed, where links are one-way: they never change."""
        drawn = draw(self.network.gossip, False, self.keys.links, jnp.int32(0))
        assert drawn.push is not None
        return drawn.push(jnp.eye(self.num_agents))

    def _nobody_knows(self) -> Any:
        raise InputError(
            f"server={self.network.server!r} looks at everybody's loss, which nobody has when data is private; "
            "use every(H) or bernoulli(p)"
        )


def weigh(arrays: Mapping[int, Sequence[np.ndarray]], weights: Mapping[int, float]) -> list[np.ndarray]:
    """Σ w·x leaf by leaf, in the order of the places, so that every run adds up in the same order."""
    first, *others = sorted(weights)
    total = [array * array.dtype.type(weights[first]) for array in arrays[first]]
    for place in others:
        for sum_, part in zip(total, arrays[place], strict=True):
            sum_ += part * part.dtype.type(weights[place])
    return total


def gossip(arrays: Mapping[int, Sequence[np.ndarray]], hop: GossipHop, place: int) -> list[np.ndarray]:
    """A gossip exchange of the agent at a place: what it pulled, and on its own what the absent would have weighed."""
    total = weigh(arrays, hop.incoming)
    if hop.shared is not None and hop.pushed:
        parts = {place: [leaves[at] for at in hop.pushed] for place, leaves in arrays.items()}
        for at, sum_ in zip(hop.pushed, weigh(parts, hop.shared), strict=True):
            total[at] = sum_
    for sum_, own in zip(total, arrays[place], strict=True) if hop.kept else ():
        sum_ += own * own.dtype.type(hop.kept)
    return total


def average(arrays: Mapping[int, Sequence[np.ndarray]], hop: ServerHop) -> list[np.ndarray]:
    """What the server makes of the reporters' vectors."""
    return mean(arrays, hop.reporters) if hop.weights is None else weigh(arrays, hop.weights)


def mean(arrays: Mapping[int, Sequence[np.ndarray]], places: Sequence[int]) -> list[np.ndarray]:
    """The plain average, added up in the order of the places."""
    total = [np.array(array) for array in arrays[places[0]]]
    for place in places[1:]:
        for sum_, part in zip(total, arrays[place], strict=True):
            sum_ += part
    for sum_ in total:
        sum_ /= sum_.dtype.type(len(places))
    return total
