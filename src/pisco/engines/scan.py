"""One device: agents stacked on a leading axis, chunks of rounds scanned in one compiled program.

Step sizes, probabilities, seeds, data and weights are arguments of the program, so changing their values does not
compile again. Several runs are one batched program on an accelerator; on a CPU, where batching does not pay, each
run is a call of the same program and the calls share the cores.
"""

from __future__ import annotations

import os
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from pisco.engines.evaluate import agent_errors, evaluate, round_metrics
from pisco.engines.job import Carry, Job, Run, Segment, seed_key
from pisco.engines.process_group import Alone, ProcessGroup
from pisco.engines.round import Rounds
from pisco.networks.rounds import Gossip, Links
from pisco.problems.problem import Problem


def _start(run: Run, problem: Problem, gossip: Gossip, batch_size: int | None) -> Carry:
    count = problem.num_agents
    return Rounds(run, problem, gossip, batch_size, num_agents=count).start(count)


def _advance(
    run: Run,
    carry: Carry,
    problem: Problem,
    gossip: Gossip,
    done: jax.Array,
    segment: Segment,
    batch_size: int | None,
) -> tuple[Carry, dict[str, jax.Array], Links]:
    rounds = Rounds(run, problem, gossip, batch_size, num_agents=problem.num_agents)
    carry, rows, links = rounds.advance(carry, done, segment, partial(_note, problem))
    return carry, evaluate(problem, rows) if segment.measured else {}, links


def _note(problem: Problem, state: Any) -> dict[str, Any]:
    return round_metrics(problem, state) | agent_errors(state)


def _batched(function, shared: int):
    """The same function over runs stacked on a leading axis, the last `shared` arguments common to all."""

    def call(run, *args):
        axes = (0, *[0] * (len(args) - shared), *[None] * shared)
        return jax.vmap(function, in_axes=axes)(run, *args)

    return call


@partial(jax.jit, static_argnames=("batch_size", "batched"))
def start(run, problem, gossip, *, batch_size, batched):
    call = partial(_start, batch_size=batch_size)
    return (_batched(call, shared=2) if batched else call)(run, problem, gossip)


@partial(jax.jit, static_argnames=("segment", "batch_size", "batched"), donate_argnames="carry")
def advance(run, carry, problem, gossip, done, *, segment, batch_size, batched):
    call = partial(_advance, segment=segment, batch_size=batch_size)
    return (_batched(call, shared=3) if batched else call)(run, carry, problem, gossip, done)


@partial(jax.jit, static_argnames="batched")
def measure_now(carry, problem, *, batched):
    def one(carry):
        row = jax.tree.map(lambda x: x[None], _note(problem, carry.state))
        return jax.tree.map(lambda x: x[0], evaluate(problem, row))

    return jax.vmap(one)(carry) if batched else one(carry)


def _cores() -> int:
    """The cores that this process may use, which can be fewer than the machine has."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


class ScanEngine:
    """Engine `scan`. States are one carry per run, or one stacked carry where the runs are batched.

    batched: force or forbid batching the runs; by default accelerators batch when there are several. (A batched program
    computes both the gossip and the server's average of every round, and a convolution of runs and agents at once.)
    """

    name = "scan"
    group: ProcessGroup = Alone()

    def __init__(self, batched: bool | None = None):
        self.batched = batched

    def start(self, job: Job) -> Any:
        shared = {"problem": job.problem, "gossip": job.network.gossip, "batch_size": job.batch_size}
        return self._each(partial(start, **shared), self._runs(job))

    def measure(self, job: Job, states: Any) -> dict[str, np.ndarray]:
        return self._host(self._each(partial(measure_now, problem=job.problem), states))

    def advance(
        self, job: Job, states: Any, done: int, segment: Segment
    ) -> tuple[Any, dict[str, np.ndarray], Links]:
        def call(run, carry, batched):
            return advance(
                run,
                carry,
                job.problem,
                job.network.gossip,
                jnp.int32(done),
                segment=segment,
                batch_size=job.batch_size,
                batched=batched,
            )

        out = self._each(call, self._runs(job), states)
        if isinstance(out, list):
            states, rows, links = map(list, zip(*out, strict=True))
        else:
            states, rows, links = out
        return states, self._host(rows), self._host(links)

    def pack(self, states: Any) -> Any:
        return self._host(states)

    def unpack(self, job: Job, packed: Any) -> Any:
        if self._batches(job):
            return jax.tree.map(jnp.asarray, packed)
        return [jax.tree.map(lambda x, i=i: jnp.asarray(x[i]), packed) for i in range(len(job.runs))]

    def _batches(self, job: Job) -> bool:
        if self.batched is None:
            return len(job.runs) > 1 and jax.default_backend() != "cpu"
        return self.batched

    def _runs(self, job: Job) -> Any:
        """Runs as the program takes them: one after the other, or all stacked into one."""
        runs = [run._replace(seed=seed_key(run.seed)) for run in job.runs]
        return jax.tree.map(lambda *leaves: jnp.stack(leaves), *runs) if self._batches(job) else runs

    def _host(self, trees: Any) -> Any:
        """Host copies with runs on the leading axis."""
        if isinstance(trees, list):
            return jax.tree.map(lambda *leaves: np.stack([np.asarray(leaf) for leaf in leaves]), *trees)
        return jax.tree.map(np.asarray, trees)

    def _each(self, call, *columns: Any) -> Any:
        """`call` on every run, or on all of them stacked; single runs share the cores."""
        if not isinstance(columns[0], list):
            return jax.block_until_ready(call(*columns, batched=True))
        first, *rest = zip(*columns, strict=True)
        done = [jax.block_until_ready(call(*first, batched=False))]  # alone, so that it compiles once
        if rest:
            # A context of the calling thread, unknown to the workers.
            double = jax.config.jax_enable_x64  # pyright: ignore[reportAttributeAccessIssue]

            def work(args):
                with jax.enable_x64(double):
                    return jax.block_until_ready(call(*args, batched=False))

            with ThreadPoolExecutor(_cores()) as pool:
                done += pool.map(work, rest)
        return done
