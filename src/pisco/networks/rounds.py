"""One round's communication: a linear map drawn once, applied by every exchange, with its links counted."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from pisco.guarding.watch import Watch
from pisco.networks.guards import Guard
from pisco.networks.mixing import Edges, Operator, as_factor, outside_gossip
from pisco.networks.placement import EVERYBODY, Placement
from pisco.networks.presence import Presence
from pisco.networks.sampling import Sampling
from pisco.networks.varying import Gossiping
from pisco.parts import only, sent_only
from pisco.privacy.summing import fixed_mean
from pisco.tree import where_agents, zeros_like
from pisco.types import Compressor, Pushed, StartMix


class Links(NamedTuple):
    """What one exchange of a round uses: whether each kind of link is used, and how many messages it carries."""

    rounds: Any  # 1; counts rounds where links are summed
    server: Any  # 1 when anybody reaches the server
    gossip: Any  # 1 when anybody gossips
    uplinks: Any  # messages to the server
    downlinks: Any  # messages from the server
    edges: Any  # messages between agents: directed edges
    present: Any  # agents that take part


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class Gossip:
    """How agents are linked, as traced data, and what a round does with the links."""

    rule: Gossiping
    push: Gossiping | None  # of what is `Pushed`, where links are one-way; None: the rule does for all
    sampling: Sampling | None  # who reports to the server; None is everybody
    sources: jax.Array | None  # every directed edge; for schedules that split a round, and to count those present
    targets: jax.Array | None
    presence: Presence | None  # who takes part; None is everybody
    steps: int = field(metadata={"static": True})  # gossip this often in an exchange
    before_server: bool = field(metadata={"static": True})  # gossip in server rounds too, before the average
    to_sampled: bool = field(metadata={"static": True})  # only those who reported hear the average
    guard: Guard | None = None  # what is done with messages that lie too far away; None takes all as they are
    masked: bool = field(default=False, metadata={"static": True})  # the server adds up fixed-point numbers


class Told(NamedTuple):
    """What a round function may know of the round, for all agents: see `pisco.types.Mix`."""

    participates: Any
    share: Any
    server: Any


class RoundMix:
    """The `Mix` of stacked agents; `here` says which of them are. Leaves that are not sent it leaves alone."""

    watch: Watch | None = None

    def __init__(self, apply: Callable[[Any], Any], told: Told, here: Placement = EVERYBODY, push: Any = None):
        self.apply, self.here, self.push = apply, here, push
        self.participates, self.share, self.server = told

    def __call__(self, tree: Any, compressor: Compressor | None = None) -> Any:
        return sent_only(self.exchange)(tree, compressor)

    def exchange(self, tree: Any, compressor: Compressor | None) -> Any:
        """One exchange of what is sent."""
        if self.push is None:
            return self.apply(tree)
        ways = {True: lambda part: Pushed(self.push(part.tree)), False: self.apply}
        return jax.tree.map(lambda part: ways[_is_pushed(part)](part), tree, is_leaf=_is_pushed)

    def each(self, function: Callable[[Any, jax.Array], Any], key: jax.Array, tree: Any) -> Any:
        def own(tree):
            agents = self.here.numbers(jax.tree.leaves(tree)[0].shape[0])
            return jax.vmap(lambda own, agent: function(own, jax.random.fold_in(key, agent)))(tree, agents)

        return sent_only(own)(tree)


def draw_start(gossip: Gossip, links_key: jax.Array, here: Placement = EVERYBODY) -> StartMix:
    """Communication before the first round: the server, or one gossip exchange on round 0's links."""
    everybody = Drawn(True, None, 0, None)  # type: ignore[arg-type]  (nobody gossips)
    return StartMix(
        _averaging(everybody, here, gossip.masked), lambda tree: here.apply(gossip.rule.draw(links_key, 0)[0], tree)
    )


class Drawn(NamedTuple):
    """What chance decides of a round, once for all its exchanges and the same in every process."""

    server: Any  # who reaches the server: a boolean for everybody, or a mask over agents
    operator: Operator  # the gossip of those who do not
    edges: Any  # directed edges of one gossip exchange
    weights: jax.Array | None  # of every agent's report, zero where there is none; None: all alike
    present: Any = None  # a mask over agents; None: everybody is
    push: Operator | None = None  # the gossip of what is `Pushed`; None: the same operator
    hears: Any = None  # whom the average of a whole server round goes to, a mask; None: everybody


def draw(gossip: Gossip, who: Any, links_key: jax.Array, round_index: Any, present: Any = None) -> Drawn:
    """Draw a round; `who` is what the server schedule decided: a boolean for everybody, or a mask over agents."""
    drawn = _draw_of_all(gossip, who, links_key, round_index)
    if present is None:
        return drawn
    ends, used = (gossip.sources, gossip.targets), True
    if isinstance(drawn.operator, Edges):
        ends, used = (drawn.operator.sources, drawn.operator.targets), drawn.operator.weights != 0
        used &= ends[0] != ends[1]
    edges = (used & present[ends[0]] & present[ends[1]]).sum()
    server = drawn.server & present if jnp.ndim(who) == 1 else who
    return drawn._replace(server=server, edges=edges, present=present)


def _draw_of_all(gossip: Gossip, who: Any, links_key: jax.Array, round_index: Any) -> Drawn:
    if jnp.ndim(who) == 1:
        assert gossip.sources is not None and gossip.targets is not None
        mask = jnp.asarray(who)
        return Drawn(mask, *outside_gossip(mask, gossip.sources, gossip.targets), None)
    weights = hears = None
    if gossip.sampling is not None:
        # Apart from the gossip's draws, which fold in the bare round.
        apart = jax.random.fold_in(links_key, 2**31 - 1)
        weights = gossip.sampling.weights(jax.random.fold_in(apart, round_index))
        hears = weights > 0 if gossip.to_sampled else None
    push = None if gossip.push is None else gossip.push.draw(links_key, round_index)[0]
    return Drawn(who, *gossip.rule.draw(links_key, round_index), weights, push=push, hears=hears)


def tell(drawn: Drawn, num_agents: int) -> Told:
    """Whose messages take part, which share of the agents that is, and who reaches the server."""
    reached, everyone = jnp.broadcast_to(drawn.server, (num_agents,)), jnp.ones(num_agents, bool)
    if drawn.present is not None:
        share = jnp.asarray(jnp.maximum(drawn.present.sum(), 1), float) / num_agents
        return Told(drawn.present, share, reached & drawn.present)
    if drawn.weights is None:
        return Told(everyone, 1.0, reached)
    reports = drawn.weights > 0
    share = jnp.asarray(reports.sum(), float) / num_agents
    hears = reached if drawn.hears is None else reached & drawn.hears
    return Told(jnp.where(reached, reports, everyone), jnp.where(drawn.server, share, 1.0), hears)


def count_links(gossip: Gossip, drawn: Drawn, num_agents: int) -> Links:
    """The links that one exchange of the round uses."""
    present = jnp.int32(num_agents) if drawn.present is None else drawn.present.sum().astype(jnp.int32)
    if jnp.ndim(drawn.server) == 1:
        count = drawn.server.sum()
        counts = (1, count > 0, drawn.edges > 0, count, count, drawn.edges, present)
        return Links(*(jnp.asarray(x, jnp.int32) for x in counts))
    server, anybody = jnp.asarray(drawn.server, jnp.int32), jnp.asarray(present > 0, jnp.int32)
    reporters = present if drawn.weights is None else jnp.count_nonzero(drawn.weights).astype(jnp.int32)
    hearers = present if drawn.hears is None else reporters
    gossips = jnp.int32(gossip.steps > 0) * (anybody if gossip.before_server else anybody * (1 - server))
    edges = (gossips * gossip.steps * drawn.edges).astype(jnp.int32)
    return Links(jnp.int32(1), server * anybody, gossips, server * reporters, server * hearers, edges, present)


def draw_round(
    gossip: Gossip,
    who: Any,
    links_key: jax.Array,
    round_index: Any,
    num_agents: int,
    here: Placement = EVERYBODY,
    present: Any = None,
    start: Any = None,
) -> tuple[RoundMix, Links]:
    """This round's communication, drawn once: the map every exchange applies, and the links it uses.

    Where only some agents are `here`, the draw is still that of all, the same on every device. A guard compares
    messages with `start`, the parameters before the round; what it saw is in `RoundMix.watch`.
    """
    drawn = draw(gossip, who, links_key, round_index, present)
    told = tell(drawn, num_agents)
    own = Told(here.own(told.participates), told.share, here.own(told.server))
    make, watch = _split_map if jnp.ndim(drawn.server) == 1 else _whole_map, None
    if gossip.guard is not None:
        key = jax.random.fold_in(jax.random.fold_in(links_key, 2**31 - 2), round_index)
        watch = Watch(gossip.guard, drawn, here, start=only(start), key=key, round_index=round_index)
    push = None if drawn.push is None else make(gossip, drawn._replace(operator=drawn.push), here, None)
    mix = RoundMix(make(gossip, drawn, here, watch), own, here, push)
    mix.watch = watch
    return mix, count_links(gossip, drawn, num_agents)


def _exchange(drawn: Drawn, here: Placement) -> Callable[[Any], Any]:
    """One gossip exchange among those present: news from them, and on one's own what the absent would have weighed."""
    if drawn.present is None:
        return lambda tree: here.apply(drawn.operator, tree)
    own = here.own(drawn.present)
    kept = here.apply(drawn.operator, jnp.asarray(~own, float))  # Σ over the absent j of w_ij

    def apply(tree):
        heard = here.apply(drawn.operator, _sent(own, tree))
        return jax.tree.map(lambda x, new: new + as_factor(kept, x) * x, tree, heard)

    return apply


def _whole_map(gossip: Gossip, drawn: Drawn, here: Placement, watch: Watch | None) -> Callable[[Any], Any]:
    """Everybody gossips, or everybody hears the server."""
    exchange, averaging = _exchange(drawn, here), _averaging(drawn, here, gossip.masked)
    if watch is not None:
        exchange, averaging = watch.gossip(exchange), watch.server(averaging, drawn.present)

    def gossiping(tree):
        for _ in range(gossip.steps):
            tree = exchange(tree)
        return tree

    def serving(tree):
        return averaging(gossiping(tree) if gossip.before_server else tree)

    def reached(tree):
        if isinstance(drawn.server, bool | np.bool_):
            return serving(tree) if drawn.server else gossiping(tree)
        return lax.cond(drawn.server, serving, gossiping, tree)

    return reached if watch is None else watch.around(reached)


def _averaging(drawn: Drawn, here: Placement, masked: bool) -> Callable[[Any], Any]:
    """The server's average of those who report; `masked`, as one has it who sees no vector."""

    def average(sent):
        if drawn.present is not None:
            told, reporters = _sent(here.own(drawn.present), sent), jnp.maximum(drawn.present.sum(), 1)
        elif drawn.weights is not None:
            told, reporters = _weighted(here.own(drawn.weights), sent), jnp.count_nonzero(drawn.weights)
        elif masked:
            told, reporters = sent, jnp.size(here.everyone(here.numbers(jax.tree.leaves(sent)[0].shape[0])))
        else:
            return here.average(sent)
        divisor = reporters if drawn.weights is None else 1  # weights add up to one
        if masked:
            means = fixed_mean(told, reporters, divisor, here)
        else:
            means = jax.tree.map(lambda total: total / jnp.asarray(divisor, total.dtype), here.total(told))
        averages = jax.tree.map(lambda x, mean: jnp.broadcast_to(mean, x.shape), sent, means)
        return averages if drawn.hears is None else where_agents(here.own(drawn.hears), averages, sent)

    return average


def _split_map(gossip: Gossip, drawn: Drawn, here: Placement, watch: Watch | None) -> Callable[[Any], Any]:
    """The agents in the mask average among themselves, the others gossip on the subgraph they induce."""
    count, own, exchange = drawn.server.sum(), here.own(drawn.server), _exchange(drawn, here)

    def average(tree):
        sent = tree if drawn.present is None else _sent(own, tree)
        totals = here.total(_weighted(own, sent))
        return jax.tree.map(lambda x, total: total / jnp.maximum(count, 1).astype(x.dtype), tree, totals)

    def combine(mean, gossiped):
        return jax.tree.map(lambda m, x: jnp.where(as_factor(own, x).astype(bool), m, x), mean, gossiped)

    if watch is None:
        return lambda tree: combine(average(tree), exchange(tree))
    spread = watch.server(
        lambda tree: jax.tree.map(lambda m, x: jnp.broadcast_to(m, x.shape), average(tree), tree), drawn.server
    )
    guarded = watch.gossip(exchange)

    def apply(pair):
        (mean, record), tree = spread(pair), pair[0]
        gossiped, record = guarded((tree, record))
        return combine(mean, gossiped), record

    return watch.around(apply)


def pushed_leaves(tree: Any) -> tuple[int, ...]:
    """Which leaves of a tree are in parts that are `Pushed`.

    >>> pushed_leaves((1, Pushed((2, 3)), 4))
    (1, 2)
    """
    parts = [(part, len(jax.tree.leaves(part))) for part in jax.tree.leaves(tree, is_leaf=_is_pushed)]
    return tuple(at for at, is_ in enumerate(_is_pushed(part) for part, count in parts for _ in range(count)) if is_)


def _is_pushed(part: Any) -> bool:
    return isinstance(part, Pushed)


def _sent(present: jax.Array, tree: Any) -> Any:
    """What arrives: nothing from the absent, whatever they hold."""
    return where_agents(present, tree, zeros_like(tree))


def _weighted(weights: jax.Array, tree: Any) -> Any:
    return jax.tree.map(lambda x: as_factor(weights, x) * x, tree)
