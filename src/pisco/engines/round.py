"""A round, written once. Engines differ in where agents are held, how they are batched, and what is compiled."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

from pisco.engines.evaluate import with_params
from pisco.engines.job import Carry, Run, Segment, first_memories
from pisco.networks.placement import EVERYBODY, Placement
from pisco.networks.rounds import Gossip, Links, draw_round, draw_start
from pisco.networks.schedules import watches_loss
from pisco.problems.gradient import Batching, buffers, gradient, mean_loss
from pisco.problems.problem import Problem
from pisco.tree import stack_agents, where_agents


class Rounds:
    """The rounds of one run for the agents that are `here`; of all places together there are `num_agents`."""

    def __init__(
        self,
        run: Run,
        problem: Problem,
        gossip: Gossip,
        *,
        num_agents: int,
        batch_size: int | None,
        here: Placement = EVERYBODY,
        batching: Batching | None = None,
    ):
        self.run, self.problem, self.gossip = run, problem, gossip
        self.num_agents, self.here, self.keys = num_agents, here, run.seed
        self.grad = gradient(problem, batch_size, here, batching)
        self.loss = mean_loss(problem, batch_size, here, batching)
        self.renew = buffers(problem, batch_size, here, batching) if problem.renews else None

    def start(self, held: int) -> Carry:
        """X⁰ = x⁰1ᵀ of the `held` agents here, and whatever the algorithm makes of it."""
        run, keys = self.run, self.keys
        params = stack_agents(self.problem.init(keys.start), held)
        mix = draw_start(self.gossip, keys.links, self.here)
        state = run.algorithm.init(params, keys.batch_key(-1), self.grad, mix)
        return Carry(state, run.server.start(), *first_memories(self.gossip, self.num_agents))

    def one_round(self, carry: Carry, k: Any) -> tuple[Carry, Links]:
        """Round k: the schedule decides, the round's map is drawn, the algorithm takes its steps.

        Who is absent keeps the state it had; what all agents hold together, such as a counter, goes on.
        """
        run, keys = self.run, self.keys
        key = keys.batch_key(k)
        who, memory = run.server.decide(carry.memory, keys.coins, k, lambda: self.loss(carry.state.params, key))
        present, attendance, presence = None, carry.attendance, self.gossip.presence
        if presence is not None:
            present, attendance = presence.decide(attendance, keys.presence, k)
        before, names, guard = carry.state, carry.names, self.gossip.guard
        if guard is not None:
            there = names.left < 0
            present = there if present is None else present & there
            if run.algorithm.rebase is not None:
                fresh = run.algorithm.rebase(before)  # somebody is gone: what must hold for the mean of the others
                before = jax.tree.map(lambda new, old: jnp.where((names.left == k).any(), new, old), fresh, before)
        mix, links = draw_round(
            self.gossip, who, keys.links, k, self.num_agents, self.here, present, start=before.params
        )
        state = run.algorithm.round(before, key, self.grad, mix)
        if mix.watch is not None:
            names = names.after(mix.watch.guard, mix.watch.record, k)
        if self.renew is not None:
            state = with_params(state, self.renew(state.params, key))
        if present is not None:
            own = self.here.own(present)
            state = jax.tree.map(
                lambda new, old: where_agents(own, new, old) if new.shape[:1] == own.shape else new, state, before
            )
        return Carry(state, memory, attendance, names), links

    def advance(
        self, carry: Carry, done: Any, segment: Segment, note: Callable[[Any], dict[str, Any]]
    ) -> tuple[Carry, dict[str, Any], Links]:
        """`segment` rounds from round `done` on; what `note` says of the state, and the links used, a stretch a row.

        What a schedule decides that watches the loss is known from the run alone: there links are told round by round.
        """
        each = watches_loss(self.run.server)

        def one_round(so_far, k):
            carry, links = self.one_round(so_far[0], k)
            # One vector: each number on its own would be a small kernel in every round.
            used = jnp.stack([jnp.asarray(count, jnp.int32) for count in links])
            return (carry, so_far[1] + used), used if each else None

        def stretch(carry, first):
            rounds = first + jnp.arange(segment.stride, dtype=jnp.int32)
            none = jnp.zeros(len(Links._fields), jnp.int32)
            (carry, total), by_round = lax.scan(one_round, (carry, none), rounds)
            used: Any = by_round if each else total
            return carry, (note(carry.state) if segment.measured else {}, used)

        starts = done + segment.stride * jnp.arange(segment.evals, dtype=jnp.int32)
        carry, (rows, used) = lax.scan(stretch, carry, starts)
        return carry, rows, Links(*jnp.moveaxis(used, -1, 0))
