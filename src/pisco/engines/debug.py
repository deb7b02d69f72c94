"""Plain Python, nothing compiled: for people who step through their own loss with a debugger or print."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from pisco.engines.evaluate import agent_errors, evaluate, round_metrics
from pisco.engines.job import Job, Run, Segment, seed_key
from pisco.engines.process_group import Alone, ProcessGroup
from pisco.engines.round import Rounds
from pisco.networks.rounds import Links
from pisco.problems.problem import Problem


def _one_by_one(own: Callable[..., Any]) -> Callable[..., Any]:
    """One agent after the other, each with its own concrete parameters."""

    def every(params, key, agents):
        parts = [own(jax.tree.map(lambda x, i=i: x[i], params), key, agent) for i, agent in enumerate(agents)]
        return jax.tree.map(lambda *leaves: jnp.stack(leaves), *parts)

    return every


def _note(problem: Problem, state: Any) -> dict[str, Any]:
    return round_metrics(problem, state) | agent_errors(state)


class DebugEngine:
    """Engine `debug`: every operation runs as it is written, slowly, on concrete values."""

    name = "debug"
    group: ProcessGroup = Alone()

    def start(self, job: Job) -> list[Any]:
        with jax.disable_jit():
            return [self._rounds(job, run).start(job.problem.num_agents) for run in job.runs]

    def measure(self, job: Job, states: list[Any]) -> dict[str, np.ndarray]:
        with jax.disable_jit():
            rows = [jax.tree.map(lambda x: x[None], _note(job.problem, carry.state)) for carry in states]
            return jax.tree.map(lambda x: x[:, 0], self.pack([evaluate(job.problem, row) for row in rows]))

    def advance(
        self, job: Job, states: list[Any], done: int, segment: Segment
    ) -> tuple[list[Any], dict[str, np.ndarray], Links]:
        new_states, rows, links = [], [], []
        with jax.disable_jit():  # loops and branches too are then Python's
            for run, carry in zip(job.runs, states, strict=True):
                carry, row, link = self._rounds(job, run).advance(
                    carry, done, segment, partial(_note, job.problem)
                )
                new_states.append(carry)
                rows.append(evaluate(job.problem, row) if segment.measured else {})
                links.append(link)
        return new_states, self.pack(rows), self.pack(links)

    def _rounds(self, job: Job, run: Run) -> Rounds:
        run = run._replace(seed=seed_key(run.seed))
        agents, gossip = job.problem.num_agents, job.network.gossip
        return Rounds(run, job.problem, gossip, job.batch_size, num_agents=agents, batching=_one_by_one)

    def pack(self, states: list[Any]) -> Any:
        return jax.tree.map(lambda *leaves: np.stack([np.asarray(leaf) for leaf in leaves]), *states)

    def unpack(self, job: Job, packed: Any) -> list[Any]:
        return [jax.tree.map(lambda x, i=i: jnp.asarray(x[i]), packed) for i in range(len(job.runs))]
