"""Plain Python, nothing compiled: for people who step through their own loss with a debugger or print."""

from __future__ import annotations

from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from pisco.engines.evaluate import agent_errors, evaluate, round_metrics
from pisco.engines.job import Carry, Job, Segment, seed_key, streams
from pisco.engines.process_group import Alone, ProcessGroup
from pisco.networks.rounds import Links, draw_round, draw_start
from pisco.tree import stack_agents
from pisco.types import Grad


def _gradient(job: Job) -> Grad:
    """One agent after the other, each with its own concrete parameters."""

    def grad(params, key):
        own = []
        for agent in range(job.problem.num_agents):
            mine = jax.tree.map(lambda leaf, i=agent: leaf[i], params)
            own.append(job.problem.agent_gradient(mine, key, jnp.int32(agent), job.batch_size))
        return jax.tree.map(lambda *leaves: jnp.stack(leaves), *own)

    return grad


def _measure(job: Job, state: Any) -> dict[str, Any]:
    row = jax.tree.map(lambda x: x[None], round_metrics(job.problem, state) | agent_errors(state))
    return jax.tree.map(lambda x: x[0], evaluate(job.problem, row))


class DebugEngine:
    """Engine `debug`: every operation runs as it is written, slowly, on concrete values."""

    name = "debug"
    group: ProcessGroup = Alone()

    def start(self, job: Job) -> list[Any]:
        states = []
        with jax.disable_jit():
            for run in job.runs:
                keys = streams(seed_key(run.seed))
                params = stack_agents(job.problem.init(keys.start), job.problem.num_agents)
                key, mix = jax.random.fold_in(keys.batches, 0), draw_start(job.network.gossip, keys.links)
                states.append(Carry(run.algorithm.init(params, key, _gradient(job), mix), run.server.start()))
        return states

    def measure(self, job: Job, states: list[Any]) -> dict[str, np.ndarray]:
        with jax.disable_jit():
            return self.pack([_measure(job, carry.state) for carry in states])

    def advance(
        self, job: Job, states: list[Any], done: int, segment: Segment
    ) -> tuple[list[Any], dict[str, np.ndarray], Links]:
        new_states, rows, links = [], [], []
        with jax.disable_jit():
            for run, carry in zip(job.runs, states, strict=True):
                carry, row, link = self._advance_one(job, run, carry, done, segment)
                new_states.append(carry)
                rows.append(row)
                links.append(link)
        return new_states, self.pack(rows), self.pack(links)

    def _advance_one(self, job, run, carry, done, segment):
        keys, grad = streams(seed_key(run.seed)), _gradient(job)
        state, memory = carry
        rows, links = [], []
        for _ in range(segment.evals):
            used = []
            for k in range(done, done + segment.stride):
                key = jax.random.fold_in(keys.batches, k + 1)
                observe = partial(job.problem.mean_loss, state.params, key, job.batch_size)
                who, memory = run.server.decide(memory, keys.coins, k, observe)
                mix, link = draw_round(job.network.gossip, who, keys.links, k, job.problem.num_agents)
                state = run.algorithm.round(state, key, grad, mix)
                used.append(link)
            done += segment.stride
            links.append(Links(*(sum(int(x) for x in column) for column in zip(*used, strict=True))))
            rows.append(_measure(job, state) if segment.measured else {})
        return Carry(state, memory), self.pack(rows), self.pack(links)

    def pack(self, states: list[Any]) -> Any:
        return jax.tree.map(lambda *leaves: np.stack([np.asarray(leaf) for leaf in leaves]), *states)

    def unpack(self, job: Job, packed: Any) -> list[Any]:
        return [jax.tree.map(lambda x, i=i: jnp.asarray(x[i]), packed) for i in range(len(job.runs))]
