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
from pisco.engines.job import Carry, Job, Run, Segment
from pisco.engines.process_group import Alone, ProcessGroup
from pisco.engines.round import Rounds
from pisco.networks.rounds import Gossip, Links
from pisco.problems.gradient import Batching
from pisco.problems.problem import Problem
from pisco.seeds import seed_key, streams

__all__ = ["ScanEngine"]


def _note(problem: Problem, state: Any) -> dict[str, Any]:
    return round_metrics(problem, state) | agent_errors(state)


@partial(jax.jit, static_argnames=("batch_size", "batching", "batched"))
def start(run: Run, problem: Problem, gossip: Gossip, *, batched: bool, **how: Any) -> Carry:
    def one(run):
        rounds = Rounds(run, problem, gossip, num_agents=problem.num_agents, **how)
        return rounds.start(problem.num_agents)

    return (jax.vmap(one) if batched else one)(run)


@partial(jax.jit, static_argnames=("segment", "batch_size", "batching", "batched"), donate_argnames="carry")
def advance(
    run: Run,
    carry: Carry,
    problem: Problem,
    gossip: Gossip,
    done: jax.Array,
    *,
    segment: Segment,
    batched: bool,
    **how: Any,
) -> tuple[Carry, dict[str, jax.Array], Links]:
    def one(run, carry):
        rounds = Rounds(run, problem, gossip, num_agents=problem.num_agents, **how)
        carry, rows, links = rounds.advance(carry, done, segment, partial(_note, problem))
        return carry, evaluate(problem, rows) if segment.measured else {}, links

    return (jax.vmap(one) if batched else one)(run, carry)


@partial(jax.jit, static_argnames="batched")
def measure_now(carry: Carry, problem: Problem, *, batched: bool) -> dict[str, jax.Array]:
    def one(carry):
        row = jax.tree.map(lambda x: x[None], _note(problem, carry.state))
        return jax.tree.map(lambda x: x[0], evaluate(problem, row))

    return (jax.vmap(one) if batched else one)(carry)


def _stacked(leaves: tuple[Any, ...]) -> Any:
    """The same as `jnp.stack` of numbers or arrays of one kind."""
    return jnp.asarray(np.stack([np.asarray(leaf) for leaf in leaves]), jnp.asarray(leaves[0]).dtype)


class ScanEngine:
    """All agents on one device, chunks of rounds compiled into one program: the usual engine, and the fastest there.

    States are one carry per run, or one stacked carry where the runs are batched.

    batched: force or forbid batching the runs; by default accelerators batch when there are several. (A batched program
    computes both the gossip and the server's average of every round, and a convolution of runs and agents at once.)
    batching: how the agents of a run are put together (`problems.gradient`); by default as is usual for the problem.
    """

    name = "scan"
    group: ProcessGroup = Alone()

    def __init__(self, batched: bool | None = None, batching: Batching | None = None):
        self.batched, self.batching = batched, batching

    def start(self, job: Job) -> Any:
        how = {"batch_size": job.batch_size, "batching": self.batching}
        shared = {"problem": job.problem, "gossip": job.network.gossip}
        return self._each(partial(start, **shared, **how), self._runs(job))

    def measure(self, job: Job, states: Any) -> dict[str, np.ndarray]:
        return self._host(self._each(partial(measure_now, problem=job.problem), states))

    def advance(self, job: Job, states: Any, done: int, segment: Segment) -> tuple[Any, dict[str, np.ndarray], Links]:
        how = {"segment": segment, "batch_size": job.batch_size, "batching": self.batching}
        shared = {"problem": job.problem, "gossip": job.network.gossip, "done": jnp.int32(done)}
        out = self._each(partial(advance, **shared, **how), self._runs(job), states)
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
        if not self._batches(job):
            return [run._replace(seed=streams(seed_key(run.seed))) for run in job.runs]
        # On the host and at once: a call of the accelerator for every number of every run takes seconds.
        runs = jax.tree.map(lambda *leaves: _stacked(leaves), *(run._replace(seed=0) for run in job.runs))
        seeds: Any = np.array([run.seed for run in job.runs], np.uint32)
        return runs._replace(seed=jax.vmap(lambda seed: streams(seed_key(seed)))(seeds))

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
        if jax.config.jax_disable_jit:  # pyright: ignore[reportAttributeAccessIssue]
            done += [call(*args, batched=False) for args in rest]
        elif rest:
            # A context of the calling thread, unknown to the workers.
            double = jax.config.jax_enable_x64  # pyright: ignore[reportAttributeAccessIssue]

            def work(args):
                with jax.enable_x64(double):
                    return jax.block_until_ready(call(*args, batched=False))

            # A process may have fewer cores than the machine.
            cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
            with ThreadPoolExecutor(cores) as pool:
                done += pool.map(work, rest)
        return done
