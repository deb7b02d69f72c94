"""One round's communication: a linear map drawn once, applied by every exchange, with its links counted."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from pisco.networks.mixing import Operator, average, outside_gossip, per_agent
from pisco.networks.sampling import Sampling
from pisco.networks.varying import Gossiping
from pisco.types import Compressor, StartMix


class Links(NamedTuple):
    """What one exchange of a round uses: whether each kind of link is used, and how many messages it carries."""

    rounds: Any  # 1; counts rounds where links are summed
    server: Any  # 1 when anybody reaches the server
    gossip: Any  # 1 when anybody gossips
    uplinks: Any  # messages to the server
    downlinks: Any  # messages from the server
    edges: Any  # messages between agents: directed edges


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class Gossip:
    """How agents are linked, as traced data, and what a round does with the links."""

    rule: Gossiping
    sampling: Sampling | None  # who reports to the server; None is everybody
    sources: jax.Array | None  # every directed edge; only for schedules that split a round
    targets: jax.Array | None
    steps: int = field(metadata={"static": True})  # gossip this often in an exchange
    before_server: bool = field(metadata={"static": True})  # gossip in server rounds too, before the average


class RoundMix:
    """The `Mix` of stacked agents."""

    def __init__(self, apply: Callable[[Any], Any], participates: Any, share: Any, server: Any):
        self.apply = apply
        self.participates = participates
        self.share = share
        self.server = server

    def __call__(self, tree: Any, compressor: Compressor | None = None) -> Any:
        return self.apply(tree)

    def each(self, function: Callable[[Any, jax.Array], Any], key: jax.Array, tree: Any) -> Any:
        return each_agent(function, key, tree)


def each_agent(function: Callable[[Any, jax.Array], Any], key: jax.Array, tree: Any) -> Any:
    """`function(own_tree, own_key)` over stacked agents, each with its own key."""
    agents = jnp.arange(jax.tree.leaves(tree)[0].shape[0])
    return jax.vmap(lambda own, agent: function(own, jax.random.fold_in(key, agent)))(tree, agents)


def draw_start(gossip: Gossip, links_key: jax.Array) -> StartMix:
    """Communication before the first round: the server, or one gossip exchange on round 0's links."""
    return StartMix(average, lambda tree: gossip.rule.draw(links_key, 0)[0](tree))


def draw_round(
    gossip: Gossip, who: Any, links_key: jax.Array, round_index: Any, num_agents: int
) -> tuple[RoundMix, Links]:
    """This round's communication, drawn once: the map every exchange applies, and the links it uses.

    `who` is what the server schedule decided: a boolean for everybody, or a mask over agents.
    """
    if jnp.ndim(who) == 1:
        return _split_round(gossip, jnp.asarray(who))

    operator, num_edges = gossip.rule.draw(links_key, round_index)

    def gossiping(tree):
        return _repeat(operator, gossip.steps, tree)

    weights = None
    if gossip.sampling is not None:
        # Apart from the gossip's draws, which fold in the bare round.
        weights = gossip.sampling.weights(
            jax.random.fold_in(jax.random.fold_in(links_key, 2**31 - 1), round_index)
        )

    def serving(tree):
        sent = gossiping(tree) if gossip.before_server else tree
        return average(sent) if weights is None else _weighted_average(weights, sent)

    if isinstance(who, bool | np.bool_):
        apply = serving if who else gossiping
    else:

        def apply(tree):
            return lax.cond(who, serving, gossiping, tree)

    server = jnp.asarray(who, jnp.int32)
    reporters = num_agents if weights is None else jnp.count_nonzero(weights).astype(jnp.int32)
    gossips = jnp.int32(gossip.steps > 0) * (jnp.int32(1) if gossip.before_server else 1 - server)
    edges = gossips * gossip.steps * num_edges
    links = Links(
        jnp.int32(1), server, gossips, server * reporters, server * num_agents, edges.astype(jnp.int32)
    )
    everyone = jnp.ones(num_agents, bool)
    if weights is None:
        return RoundMix(apply, everyone, 1.0, jnp.broadcast_to(server > 0, (num_agents,))), links
    participates = jnp.where(server > 0, weights > 0, everyone)
    share = jnp.where(server > 0, jnp.asarray(reporters, float) / num_agents, 1.0)
    return RoundMix(apply, participates, share, jnp.broadcast_to(server > 0, (num_agents,))), links


def _repeat(operator: Operator, steps: int, tree: Any) -> Any:
    for _ in range(steps):
        tree = operator(tree)
    return tree


def _weighted_average(weights: jax.Array, tree: Any) -> Any:
    def leaf(x):
        return jnp.broadcast_to((per_agent(weights, x) * x).sum(axis=0, keepdims=True), x.shape)

    return jax.tree.map(leaf, tree)


def _split_round(gossip: Gossip, mask: jax.Array) -> tuple[RoundMix, Links]:
    """The agents in the mask average among themselves, the others gossip on the subgraph they induce."""
    assert gossip.sources is not None and gossip.targets is not None
    operator, edges = outside_gossip(mask, gossip.sources, gossip.targets)
    count = mask.sum()

    def apply(tree):
        def leaf(x, gossiped):
            inside = per_agent(mask, x)
            mean = (inside * x).sum(axis=0, keepdims=True) / jnp.maximum(count, 1).astype(x.dtype)
            return jnp.where(inside.astype(bool), mean, gossiped)

        return jax.tree.map(leaf, tree, operator(tree))

    flags = [jnp.asarray(flag, jnp.int32) for flag in (1, count > 0, edges > 0, count, count, edges)]
    return RoundMix(apply, jnp.ones(mask.shape, bool), 1.0, mask), Links(*flags)
