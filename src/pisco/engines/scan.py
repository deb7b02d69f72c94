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
from jax import lax

from pisco.engines.evaluate import agent_errors, evaluate, round_metrics
from pisco.engines.job import Carry, Job, Run, Segment, seed_key, streams
from pisco.engines.process_group import Alone, ProcessGroup
from pisco.networks.rounds import Gossip, Links, draw_round, draw_start
from pisco.problems.problem import Problem
from pisco.tree import stack_agents


def _start(run: Run, problem: Problem, gossip: Gossip, batch_size: int | None) -> Carry:
    """X⁰ = x⁰1ᵀ and whatever the algorithm makes of it."""
    keys = streams(run.seed)
    params = stack_agents(problem.init(keys.start), problem.num_agents)
    key, mix = jax.random.fold_in(keys.batches, 0), draw_start(gossip, keys.links)
    return Carry(run.algorithm.init(params, key, problem.gradient(batch_size), mix), run.server.start())


def _advance(
    run: Run,
    carry: Carry,
    problem: Problem,
    gossip: Gossip,
    done: jax.Array,
    segment: Segment,
    batch_size: int | None,
) -> tuple[Carry, dict[str, jax.Array], Links]:
    """`segment` rounds from round `done` on; the metrics and links after every stretch."""
    keys = streams(run.seed)
    grad = problem.gradient(batch_size)

    def one_round(so_far, k):
        carry, used = so_far
        key = jax.random.fold_in(keys.batches, k + 1)
        who, memory = run.server.decide(
            carry.memory, keys.coins, k, lambda: problem.mean_loss(carry.state.params, key, batch_size)
        )
        mix, links = draw_round(gossip, who, keys.links, k, problem.num_agents)
        # One vector: six numbers of their own would be six small kernels in every round.
        used += jnp.stack([jnp.asarray(count, jnp.int32) for count in links])
        return (Carry(run.algorithm.round(carry.state, key, grad, mix), memory), used), None

    def stretch(carry, first):
        rounds = first + jnp.arange(segment.stride, dtype=jnp.int32)
        none = jnp.zeros(len(Links._fields), jnp.int32)
        (carry, used), _ = lax.scan(one_round, (carry, none), rounds)
        return carry, (
            round_metrics(problem, carry.state) | agent_errors(carry.state) if segment.measured else {},
            used,
        )

    starts = done + segment.stride * jnp.arange(segment.evals, dtype=jnp.int32)
    carry, (rows, used) = lax.scan(stretch, carry, starts)
    return carry, evaluate(problem, rows) if segment.measured else {}, Links(*used.T)


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
        row = jax.tree.map(lambda x: x[None], round_metrics(problem, carry.state) | agent_errors(carry.state))
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
