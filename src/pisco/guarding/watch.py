"""The guard of a round's exchanges where agents are stacked: what is taken, what it shows, and who is named."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import lax

from pisco.guarding.apart import (
    SKETCH,
    alike,
    distances,
    largest_usual,
    lower_median,
    moved,
    norms,
    precision,
    rounding,
    sketch,
    split,
    squares,
    weighted,
)
from pisco.tree import where_agents, widened, zeros_like

if TYPE_CHECKING:
    from pisco.networks.guards import Guard
    from pisco.networks.placement import Placement

SETTLED = 3
"""The first rounds, in which one's own vectors say how large sums of rounds may become."""


class Evidence(NamedTuple):
    """What the exchanges of a round have shown. Rows are receivers, the last one is the server; columns are senders."""

    struck: Any  # (n + 1, n) a message was left out
    heard: Any  # (n + 1, n) there was one
    factor: Any  # (n,) the largest of every sender
    sums: Any  # (n + 1, n, SKETCH) differences from the receiver, of vectors that are not parameters
    norms: Any  # (n + 1,) the receivers' own such vectors

    def summed(self, rows: slice, apart: Any, sizes: Any) -> Evidence:
        """With one exchange's differences of these receivers."""
        sums = self.sums.at[rows].add(apart.astype(self.sums.dtype))
        return self._replace(sums=sums, norms=self.norms.at[rows].max(sizes.astype(self.norms.dtype)))


class Names(NamedTuple):
    """What goes from round to round: strikes in a row, who is left off from which round on, and the largest factors."""

    strikes: Any  # (n + 1, n); who has been named stays named
    left: Any  # (n,) the first round without it; -1: it is there
    factor: Any  # (n,) the largest that was seen
    sums: Any  # (n + 1, n, SKETCH) of all rounds
    first: Any  # (n + 1,) the receivers' own vectors in the first rounds, before poison can have changed them

    @classmethod
    def nobody(cls, agents: int) -> Names:
        """Before the first round."""
        strikes = jnp.zeros((agents + 1, agents), jnp.int32)
        sums, first = jnp.zeros((agents + 1, agents, SKETCH), jnp.float32), jnp.zeros(agents + 1, jnp.float32)
        return cls(strikes, jnp.full(agents, -1, jnp.int32), jnp.zeros(agents, jnp.float32), sums, first)

    def after(self, guard: Guard, seen: Evidence, round_index: Any) -> Names:
        """The names after a round. Never more than a minority is left off: whom would one believe then?"""
        known, sums = self.strikes >= guard.strikes, self.sums + seen.sums
        first = jnp.where(round_index < SETTLED, jnp.maximum(self.first, seen.norms), self.first)
        gathered = jnp.sqrt(jnp.square(sums).sum(axis=-1))
        ever = gathered > 0
        usual = jnp.maximum(largest_usual(gathered, ever), first)
        drifts = jnp.where(ever, gathered / jnp.maximum(usual, 1e-30)[:, None], 0.0)
        struck = seen.struck | (seen.heard & (guard.keep(drifts) == 0))
        shown = jnp.maximum(seen.factor, jnp.where(seen.heard, drifts, 0.0).max(axis=0))
        strikes = jnp.where(struck, self.strikes + 1, jnp.where(seen.heard & ~known, 0, self.strikes))
        gone, named = self.left >= 0, strikes >= guard.strikes
        votes = (named[:-1] & ~gone[:, None]).sum(axis=0)
        going = (gone | (votes >= guard.reports) | named[-1]) & (guard.reports > 0)
        minority = going.sum() <= (gone.shape[0] - 1) // 2
        leaving, shown = going & ~gone & minority, shown.astype(self.factor.dtype)
        left = jnp.where(leaving, jnp.asarray(round_index, jnp.int32) + 1, self.left)
        sums = jnp.where(leaving.any(), 0.0, sums)  # trackers start again
        return Names(strikes, left, jnp.maximum(self.factor, shown), sums, first)

    def told(self, guard: Guard) -> list[dict[str, Any]]:
        """Who was named by whom, by what factor, and from which round on it was left off (None: it was not)."""
        found = []
        for agent in (self.strikes >= guard.strikes).any(axis=0).nonzero()[0].tolist():
            by = (self.strikes[:, agent] >= guard.strikes).nonzero()[0].tolist()
            left = int(self.left[agent])
            told = {"agent": agent, "by": ["server" if i == len(self.left) else i for i in by]}
            found.append(
                told | {"factor": float(min(self.factor[agent], 1e30)), "left_off": None if left < 0 else left}
            )
        return found


class Watch:
    """The guard of one round's exchanges. Maps take and return a tree with the `Evidence` so far beside it."""

    def __init__(self, guard: Guard, drawn: Any, here: Placement, *, start: Any, key: jax.Array, round_index: Any):
        self.guard, self.drawn, self.here = guard, drawn, here
        self.key, self.round_index = key, round_index
        self.start = jax.tree.map(widened, jax.tree.leaves(here.everyone(start)))
        n = self.agents = drawn.present.shape[0]
        none = jnp.zeros((n + 1, n), bool)
        self.record = Evidence(none, none, *Names.nobody(n)[2:])

    def around(self, apply: Callable[[Any], Any]) -> Callable[[Any], Any]:
        """A map of such pairs as one of trees, that keeps the record."""

        def exchange(tree: Any) -> Any:
            out, self.record = apply((tree, self.record))
            return out

        return exchange

    def gossip(self, plain: Callable[[Any], Any]) -> Callable[[Any], Any]:
        """One gossip exchange, `plain` where every message is taken whole."""
        n, present = self.agents, self.drawn.present
        weights = self.drawn.operator(jnp.eye(n))  # row i is what agent i takes
        links = (weights != 0) & ~jnp.eye(n, dtype=bool) & present & present[:, None]

        def apply(pair: Any) -> Any:
            tree, record = pair
            own, sent, least = self._messages(tree)
            vectors, heard, eps = self._vectors(own), self._vectors(sent), precision(tree)
            factors = jnp.broadcast_to(least, (n, n))
            for z, message, start in zip(vectors, heard, self._starts(vectors), strict=True):
                apart = distances(z, message)
                usual = jnp.maximum(largest_usual(apart, links), moved(z, start))
                factors = jnp.maximum(factors, apart / jnp.maximum(usual, rounding(z, eps))[:, None])
                unlike = moved(z, start) >= 0.5 * norms(z)  # no parameters, but what adds up from round to round
                apart_now = jnp.where(
                    (links & unlike[:, None])[..., None], sketch(message)[None] - sketch(z)[:, None], 0
                )
                record = record.summed(slice(0, n), apart_now, jnp.where(unlike, norms(z), 0))
            keep, record = self._judge(factors, links, record, slice(0, n))
            taken = jnp.where(links, weights * keep, 0.0)

            def guarded(tree: Any) -> Any:
                mixed = weighted(taken, sent, own, 1.0 - taken.sum(axis=1))
                return jax.tree.map(lambda new, old: self.here.own(new).astype(old.dtype), mixed, tree)

            return self._choose(keep, links, plain, guarded, tree), record

        return apply

    def server(self, plain: Callable[[Any], Any], reporters: Any) -> Callable[[Any], Any]:
        """The server's average of `reporters`, a mask; `plain` where every message is taken whole."""
        judged = self.guard.guard_server
        if not judged and not getattr(self.guard, "poisons", False):
            return lambda pair: (plain(pair[0]), pair[1])

        def apply(pair: Any) -> Any:
            tree, record = pair
            own, sent, factors = self._messages(tree)
            vectors, heard, eps = self._vectors(own), self._vectors(sent), precision(tree)
            others = reporters & reporters[:, None] & ~jnp.eye(self.agents, dtype=bool)
            apart = [distances(message, message) for message in heard]
            spread = sum(lower_median(each, others) ** 2 for each in apart)  # of all vectors of a message together
            middle = jnp.argmin(jnp.where(reporters & jnp.isfinite(spread), spread, jnp.inf))
            for z, message, each, start in zip(vectors, heard, apart, self._starts(vectors), strict=True):
                told = largest_usual(moved(z, start)[None], reporters[None])[0]
                usual = jnp.maximum(largest_usual(each[middle][None], others[middle][None])[0], told)
                factors = jnp.maximum(factors, each[middle] / jnp.maximum(usual, rounding(z, eps)[middle]))
                size = lower_median(norms(z)[None], reporters[None])[0]
                seen, unlike = sketch(message), lower_median(moved(z, start)[None], reporters[None])[0] >= 0.5 * size
                centre = jax.vmap(lambda column: lower_median(column[None], reporters[None])[0], 1)(seen)
                apart_now = jnp.where((reporters & unlike)[:, None], seen - centre, 0)
                if judged:
                    record = record.summed(slice(-1, None), apart_now[None], jnp.where(unlike, size, 0)[None])
            keep = jnp.ones((1, self.agents))
            if judged:
                keep, record = self._judge(factors[None], others[middle][None], record, slice(self.agents, None))
            taken = jnp.where(reporters, keep[0], 0.0) / jnp.maximum(reporters.sum(), 1)
            weights = jnp.where(jnp.arange(self.agents) == middle, 1.0 + taken - taken.sum(), taken)

            def guarded(tree: Any) -> Any:
                mean = weighted(weights[None], sent, own, jnp.zeros(1))
                return jax.tree.map(lambda new, old: jnp.broadcast_to(new.astype(old.dtype), old.shape), mean, tree)

            return self._choose(keep, others[middle][None], plain, guarded, tree), record

        return apply

    def _judge(self, factors: Any, links: Any, record: Evidence, rows: slice) -> tuple[Any, Evidence]:
        keep = jnp.where(record.struck[rows], 0.0, self.guard.keep(factors))
        shown = jnp.where(links, factors, 0.0).max(axis=0).astype(jnp.float32)
        return keep, record._replace(
            struck=record.struck.at[rows].set(record.struck[rows] | (links & (keep == 0))),
            heard=record.heard.at[rows].set(record.heard[rows] | links),
            factor=jnp.maximum(record.factor, shown),
        )

    def _choose(self, keep: Any, links: Any, plain: Any, guarded: Any, tree: Any) -> Any:
        if getattr(self.guard, "poisons", False):
            return guarded(tree)  # `plain` knows nothing of what is sent instead
        return lax.cond(jnp.all((keep == 1) | ~links), plain, guarded, tree)

    def _messages(self, tree: Any) -> tuple[Any, Any, Any]:
        """What all agents hold, what they send, and a factor: of numbers that are none, infinite, and sent as zeros."""
        own = self.here.everyone(tree)
        sent = self.guard.sent(own, self.key, self.round_index)
        fine = jnp.isfinite(sum(squares(leaf) for leaf in jax.tree.leaves(sent)))
        return own, where_agents(fine, sent, zeros_like(sent)), jnp.where(fine, 0.0, jnp.inf)

    def _vectors(self, tree: Any) -> list[list[jax.Array]]:
        """The vectors of a message: as many as the parameters fit into it, or all of it as one."""
        return split(jax.tree.map(widened, jax.tree.leaves(tree)), [leaf.shape for leaf in self.start])

    def _starts(self, vectors: list[Any]) -> list[Any]:
        return [self.start if len(z) == len(self.start) and alike(z, self.start) else None for z in vectors]
