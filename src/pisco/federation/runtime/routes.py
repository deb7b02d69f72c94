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

from pisco.engines.job import Streams, check_needs
from pisco.errors import InputError
from pisco.networks.mixing import outside_gossip
from pisco.networks.network import Network
from pisco.networks.schedules import AdaptiveSchedule
from pisco.types import Algorithm

BLOCK = 512
"""Coins are tossed for this many rounds at once: one by one would cost more than the rounds."""


class GossipHop(NamedTuple):
    """`incoming` weighs what is pulled, by place, one's own included; `readers` pull one's own message."""

    incoming: Mapping[int, float]
    readers: tuple[int, ...]


class ServerHop(NamedTuple):
    """The weight of every reporter; everybody in `receivers` pulls the average."""

    weights: Mapping[int, float] | None  # None: equal weights of all in `reporters`
    reporters: tuple[int, ...]
    receivers: tuple[int, ...]


Hop = GossipHop | ServerHop


class Flags(NamedTuple):
    """What a round function may know of the round: see `pisco.types.Mix`."""

    participates: np.ndarray
    share: Any
    server: np.ndarray


class Routes:
    """The hops of every round of one network."""

    def __init__(self, network: Network, keys: Streams):
        self.network, self.keys = network, keys
        self.num_agents = network.num_agents
        if isinstance(network.server, AdaptiveSchedule):
            raise InputError(
                f"server={network.server!r} looks at everybody's loss, which nobody has when data is private; "
                "use every(H) or bernoulli(p)"
            )
        self._blocks: dict[int, np.ndarray] = {}

    def server_mask(self, k: int) -> np.ndarray:
        """Who reaches the server in round k, one boolean for each agent."""
        block = k // BLOCK
        if block not in self._blocks:
            self._blocks = {block: np.asarray(self._toss(jnp.arange(BLOCK, dtype=jnp.int32) + block * BLOCK))}
        return np.broadcast_to(self._blocks[block][k % BLOCK], (self.num_agents,))

    def hops(self, k: int, place: int | None) -> list[Hop]:
        """What every exchange of round k consists of for the agent at a place, or for the server (None)."""
        mask = self.server_mask(k)
        if self.network.splits_rounds:
            if place is not None and not mask[place]:
                return [_gossip_hop(np.asarray(self._outside(jnp.asarray(mask))), place)]
            inside = tuple(np.flatnonzero(mask).tolist())
            return [ServerHop(None, inside, inside)] if inside else []
        gossip: list[Hop] = [] if place is None else [self.gossip_hop(k, place)] * self.network.gossip_steps
        if not mask[0]:
            return gossip
        before = gossip if self.network.gossip_before_server else []
        return [*before, self.server_hop(k)]

    def gossip_hop(self, k: int, place: int) -> GossipHop:
        """One gossip exchange of round k."""
        if self.network.varying is None:
            return _gossip_hop(self._transposed, place)
        return _gossip_hop(np.asarray(self._drawn(jnp.int32(k))), place)

    def server_hop(self, k: int | None) -> ServerHop:
        """One server exchange of round k; None is before the first round, when everybody reports."""
        everybody = tuple(range(self.num_agents))
        if self.network.sampling is None or k is None:
            return ServerHop(None, everybody, everybody)
        weights = {
            agent: float(weight)
            for agent, weight in enumerate(np.asarray(self._sampled(jnp.int32(k))))
            if weight
        }
        return ServerHop(weights, tuple(weights), everybody)

    def flags(self, k: int, place: int) -> Flags:
        """What the round function is told."""
        reached = bool(self.server_mask(k)[place])
        participates, share = True, 1.0
        if reached and self.network.sampling is not None:
            reporters = self.server_hop(k).reporters
            participates, share = place in reporters, len(reporters) / self.num_agents
        return Flags(
            np.array([participates]),
            np.asarray(share, jax.dtypes.canonicalize_dtype(float)),
            np.array([reached]),
        )

    @functools.cached_property
    def _toss(self) -> Any:
        server, key = self.network.server, self.keys.coins
        return jax.jit(jax.vmap(lambda k: jnp.asarray(server.participants(key, k))))

    @functools.cached_property
    def _transposed(self) -> np.ndarray:
        return self.network.weights.toarray().T

    @functools.cached_property
    def _drawn(self) -> Any:
        rule, key, eye = self.network.gossip.rule, self.keys.links, jnp.eye(self.num_agents)
        return jax.jit(lambda k: rule.draw(key, k)[0](eye))

    @functools.cached_property
    def _outside(self) -> Any:
        sources, targets = self.network.gossip.sources, self.network.gossip.targets
        assert sources is not None and targets is not None
        eye = jnp.eye(self.num_agents)
        return jax.jit(lambda mask: outside_gossip(mask, sources, targets)[0](eye))

    @functools.cached_property
    def _sampled(self) -> Any:
        sampling, key = self.network.sampling, self.keys.links
        assert sampling is not None
        # The same draw as in `networks.rounds.draw_round`.
        return jax.jit(lambda k: sampling.weights(jax.random.fold_in(jax.random.fold_in(key, 2**31 - 1), k)))


def check(algorithm: Algorithm, network: Network) -> None:
    """Refuse what cannot run between machines, with one sentence."""
    check_needs(algorithm, network)
    Routes(network, Streams(*[jax.random.key(0)] * 4))


def _gossip_hop(transposed: np.ndarray, place: int) -> GossipHop:
    """From Wᵀ: row i holds what agent i takes, column i who takes from it."""
    incoming = {int(j): float(transposed[place, j]) for j in np.flatnonzero(transposed[place])}
    incoming.setdefault(place, 0.0)
    readers = tuple(int(j) for j in np.flatnonzero(transposed[:, place]) if j != place)
    return GossipHop(dict(sorted(incoming.items())), readers)


def weigh(arrays: Mapping[int, Sequence[np.ndarray]], weights: Mapping[int, float]) -> list[np.ndarray]:
    """Σ w·x leaf by leaf, in the order of the places, so that every run adds up in the same order."""
    total: list[np.ndarray] | None = None
    for place in sorted(weights):
        parts = [array * array.dtype.type(weights[place]) for array in arrays[place]]
        if total is None:
            total = parts
        else:
            for sum_, part in zip(total, parts, strict=True):
                sum_ += part
    assert total is not None
    return total


def mean(arrays: Mapping[int, Sequence[np.ndarray]], places: Sequence[int]) -> list[np.ndarray]:
    """The plain average, added up in the order of the places."""
    total = [np.array(array) for array in arrays[places[0]]]
    for place in places[1:]:
        for sum_, part in zip(total, arrays[place], strict=True):
            sum_ += part
    for sum_ in total:
        sum_ /= sum_.dtype.type(len(places))
    return total
