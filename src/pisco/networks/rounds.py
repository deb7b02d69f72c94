"""One round's communication: a linear map drawn once, applied by every exchange, with its links counted."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from pisco.networks.mixing import Operator, outside_gossip, per_agent
from pisco.networks.placement import EVERYBODY, Placement
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
    """The `Mix` of stacked agents; `here` says which of them are."""

    def __init__(
        self,
        apply: Callable[[Any], Any],
        participates: Any,
        share: Any,
        server: Any,
        here: Placement = EVERYBODY,
    ):
        self.apply = apply
        self.participates = participates
        self.share = share
        self.server = server
        self.here = here

    def __call__(self, tree: Any, compressor: Compressor | None = None) -> Any:
        return self.apply(tree)

    def each(self, function: Callable[[Any, jax.Array], Any], key: jax.Array, tree: Any) -> Any:
        agents = self.here.numbers(jax.tree.leaves(tree)[0].shape[0])
        return each_agent(function, key, tree, agents)


def each_agent(
    function: Callable[[Any, jax.Array], Any], key: jax.Array, tree: Any, agents: jax.Array
) -> Any:
    """`function(own_tree, own_key)` over stacked agents, each with its own key."""
    return jax.vmap(lambda own, agent: function(own, jax.random.fold_in(key, agent)))(tree, agents)


def draw_start(gossip: Gossip, links_key: jax.Array, here: Placement = EVERYBODY) -> StartMix:
    """Communication before the first round: the server, or one gossip exchange on round 0's links."""
    return StartMix(here.average, lambda tree: here.apply(gossip.rule.draw(links_key, 0)[0], tree))


def draw_round(
    gossip: Gossip,
    who: Any,
    links_key: jax.Array,
    round_index: Any,
    num_agents: int,
    here: Placement = EVERYBODY,
) -> tuple[RoundMix, Links]:
    """This round's communication, drawn once: the map every exchange applies, and the links it uses.

    `who` is what the server schedule decided: a boolean for everybody, or a mask over agents.
    Where only some agents are `here`, the draw is still that of all, the same on every device.
    """
    if jnp.ndim(who) == 1:
        return _split_round(gossip, jnp.asarray(who), here)

    operator, num_edges = gossip.rule.draw(links_key, round_index)

    def gossiping(tree):
        return _repeat(operator, gossip.steps, tree, here)

    weights = None
    if gossip.sampling is not None:
        # Apart from the gossip's draws, which fold in the bare round.
        weights = gossip.sampling.weights(
            jax.random.fold_in(jax.random.fold_in(links_key, 2**31 - 1), round_index)
        )

    def serving(tree):
        sent = gossiping(tree) if gossip.before_server else tree
        return here.average(sent) if weights is None else _weighted_average(weights, sent, here)

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
    reached = here.own(jnp.broadcast_to(server > 0, (num_agents,)))
    if weights is None:
        return RoundMix(apply, here.own(everyone), 1.0, reached, here), links
    participates = jnp.where(server > 0, weights > 0, everyone)
    share = jnp.where(server > 0, jnp.asarray(reporters, float) / num_agents, 1.0)
    return RoundMix(apply, here.own(participates), share, reached, here), links


def _repeat(operator: Operator, steps: int, tree: Any, here: Placement) -> Any:
    for _ in range(steps):
        tree = here.apply(operator, tree)
    return tree


def _weighted_average(weights: jax.Array, tree: Any, here: Placement) -> Any:
    own = here.own(weights)
    totals = here.total(jax.tree.map(lambda x: per_agent(own, x) * x, tree))
    return jax.tree.map(lambda x, total: jnp.broadcast_to(total, x.shape), tree, totals)


def _split_round(gossip: Gossip, mask: jax.Array, here: Placement) -> tuple[RoundMix, Links]:
    """The agents in the mask average among themselves, the others gossip on the subgraph they induce."""
    assert gossip.sources is not None and gossip.targets is not None
    operator, edges = outside_gossip(mask, gossip.sources, gossip.targets)
    count, own = mask.sum(), here.own(mask)

    def apply(tree):
        def leaf(x, total, gossiped):
            mean = total / jnp.maximum(count, 1).astype(x.dtype)
            return jnp.where(per_agent(own, x).astype(bool), mean, gossiped)

        totals = here.total(jax.tree.map(lambda x: per_agent(own, x) * x, tree))
        return jax.tree.map(leaf, tree, totals, here.apply(operator, tree))

    flags = [jnp.asarray(flag, jnp.int32) for flag in (1, count > 0, edges > 0, count, count, edges)]
    return RoundMix(apply, jnp.ones(own.shape, bool), 1.0, own, here), Links(*flags)
