"""Many devices, processes and hosts: agents split over a mesh, one program for all, collectives where they talk."""

from __future__ import annotations

from functools import partial
from typing import Any

import jax
import numpy as np
from jax.sharding import Mesh

from pisco.engines.cluster.processes import Processes
from pisco.engines.evaluate import evaluate, round_metrics
from pisco.engines.job import Job, Run, Segment, carry_shapes
from pisco.engines.process_group import Alone, ProcessGroup
from pisco.engines.round import Rounds
from pisco.engines.sharded.block import Block
from pisco.engines.sharded.shard import SPLIT, WHOLE, Shard, shard, split_rows, whole
from pisco.engines.sharded.transfers import AXIS, Blocks
from pisco.errors import InputError
from pisco.networks.rounds import Links
from pisco.seeds import seed_key, streams

CarryForm = tuple[Any, tuple[bool, ...]]
"""The structure of a carry, and which of its leaves lead with the agents."""


def _inside(held: Shard, blocks: Blocks) -> tuple[Shard, Block]:
    """A device's own part, and its place among the others."""
    held = held.inside(blocks)
    return held, Block(blocks, held.exchange)


def _rounds(run: Run, held: Shard, here: Block, batch_size: int | None) -> Rounds:
    run = run._replace(seed=streams(jax.random.wrap_key_data(run.seed, impl="threefry2x32")))
    count = here.blocks.agents
    return Rounds(run, held.problem, held.gossip, num_agents=count, batch_size=batch_size, here=here)


def _carry_specs(form: CarryForm) -> Any:
    structure, leads = form
    return jax.tree.unflatten(structure, [SPLIT if lead else WHOLE for lead in leads])


def _on(mesh: Mesh, ins: Any, outs: Any) -> Any:
    """Run by every device of the mesh, on its part of the arguments."""
    return partial(jax.shard_map, mesh=mesh, in_specs=ins, out_specs=outs, check_vma=False)


@partial(jax.jit, static_argnames=("mesh", "blocks", "form", "batch_size"))
def start(run, held, *, mesh, blocks, form, batch_size):
    @_on(mesh, (WHOLE, held.specs()), _carry_specs(form))
    def local(run, held):
        held, here = _inside(held, blocks)
        return _rounds(run, held, here, batch_size).start(blocks.block)

    return local(run, held)


@partial(jax.jit, static_argnames=("mesh", "blocks", "form", "batch_size", "segment"), donate_argnames="carry")
def advance(run, carry, held, done, *, mesh, blocks, form, batch_size, segment):
    carries = _carry_specs(form)

    @_on(mesh, (WHOLE, carries, held.specs(), WHOLE), (carries, WHOLE, WHOLE))
    def local(run, carry, held, done):
        held, here = _inside(held, blocks)
        note = partial(round_metrics, held.problem, here=here)
        carry, rows, links = _rounds(run, held, here, batch_size).advance(carry, done, segment, note)
        return carry, evaluate(held.problem, rows, here, held.objective) if segment.measured else {}, links

    return local(run, carry, held, done)


@partial(jax.jit, static_argnames=("mesh", "blocks", "form"))
def measure_now(carry, held, *, mesh, blocks, form):
    @_on(mesh, (_carry_specs(form), held.specs()), WHOLE)
    def local(carry, held):
        held, here = _inside(held, blocks)
        rows = jax.tree.map(lambda x: x[None], round_metrics(held.problem, carry.state, here))
        return evaluate(held.problem, rows, here, held.objective)

    return local(carry, held)


class ShardedEngine:
    """Agents shared out over several devices, also of several processes and hosts (see `pisco launch`).

    They lie in blocks on `devices` devices of every process, on all of them unless given.

    Runs follow one another: several in flight would let two processes meet in different collectives.
    """

    name = "sharded"

    def __init__(self, devices: int | None = None):
        self.mesh = device_mesh(devices)
        self.group: ProcessGroup = Processes() if jax.process_count() > 1 else Alone()
        self._job: Job | None = None

    def start(self, job: Job) -> list[Any]:
        fixed = self._fixed(job)
        return [start(self._run(run), self.held, batch_size=job.batch_size, **fixed) for run in job.runs]

    def measure(self, job: Job, states: list[Any]) -> dict[str, np.ndarray]:
        rows = [measure_now(carry, self.held, **self._fixed(job)) for carry in states]
        return {name: np.stack([_host(row[name])[0] for row in rows]) for name in rows[0]}

    def advance(
        self, job: Job, states: list[Any], done: int, segment: Segment
    ) -> tuple[list[Any], dict[str, np.ndarray], Links]:
        fixed = self._fixed(job) | {"batch_size": job.batch_size, "segment": segment}
        out = []
        for run, carry in zip(job.runs, states, strict=True):
            made = advance(self._run(run), carry, self.held, np.int32(done), **fixed)
            out.append(jax.block_until_ready(made))
        rows = [(row, links) for _, row, links in out]
        stacked = jax.tree.map(lambda *leaves: np.stack([_host(leaf) for leaf in leaves]), *rows)
        return [carry for carry, _, _ in out], *stacked

    def pack(self, states: list[Any]) -> Any:
        agents = self.blocks.agents
        leads = jax.tree.unflatten(*self.form)

        def leaf(lead, *parts):
            return np.stack([_host(x)[:agents] if lead else _host(x) for x in parts])

        return jax.tree.map(leaf, leads, *states)

    def own_rows(self, states: list[Any]) -> tuple[int, Any, Any]:
        """What this process holds: its first agent, its agents' rows with runs leading, and what all hold alike."""
        agents, leads = self.blocks.agents, jax.tree.unflatten(*self.form)
        firsts: set[int] = set()

        def rows(lead, *parts):
            if not lead:
                return None
            out = []
            for array in parts:
                shards = sorted(array.addressable_shards, key=lambda shard: shard.index[0].start or 0)
                firsts.add(min(shards[0].index[0].start or 0, agents))
                kept = [np.asarray(s.data)[: max(0, agents - (s.index[0].start or 0))] for s in shards]
                out.append(np.concatenate(kept))
            return np.stack(out)

        own = jax.tree.map(rows, leads, *states)
        common = jax.tree.map(
            lambda lead, *parts: None if lead else np.stack([_host(x) for x in parts]), leads, *states
        )
        return firsts.pop(), own, common

    def unpack(self, job: Job, packed: Any) -> list[Any]:
        self._fixed(job)
        blocks, leads = self.blocks, jax.tree.unflatten(*self.form)

        def leaf(lead, x):
            return split_rows(self.mesh, x, blocks.cuts, blocks.block) if lead else whole(self.mesh, x)

        return [jax.tree.map(lambda lead, x, i=i: leaf(lead, x[i]), leads, packed) for i in range(len(job.runs))]

    def _fixed(self, job: Job) -> dict[str, Any]:
        """Place a job's data once; what the programs need to know of it."""
        if self._job is not job:
            self.blocks = Blocks(job.problem.num_agents, self.mesh.size)
            self.held = shard(job, self.blocks, self.mesh)
            self.form = _form(job)
            self._job = job
        return {"mesh": self.mesh, "blocks": self.blocks, "form": self.form}

    def _run(self, run: Run) -> Run:
        return run._replace(seed=np.asarray(jax.random.key_data(seed_key(run.seed))))


def device_mesh(devices: int | None) -> Mesh:
    """All devices in a row, or the first `devices` of every process."""
    found = jax.devices()
    if devices is not None:
        local = jax.local_device_count()
        if not 1 <= devices <= local:
            raise InputError(
                f"--devices is {devices}, but this process has {local} {found[0].platform} "
                f"device{'s' if local > 1 else ''}; give a number from 1 up to that"
            )
        places = sorted({d.process_index for d in found})
        found = [d for p in places for d in [d for d in found if d.process_index == p][:devices]]
    return Mesh(np.asarray(found), (AXIS,), axis_types=(jax.sharding.AxisType.Auto,))


def _form(job: Job) -> CarryForm:
    """A leaf leads with the agents when its shape follows their number."""
    some, more = carry_shapes(job), carry_shapes(job, job.problem.num_agents + 1)
    leads = jax.tree.map(lambda a, b: a.shape != b.shape, some, more)
    leaves, structure = jax.tree.flatten(leads)
    return structure, tuple(leaves)


def _host(array: jax.Array) -> np.ndarray:
    """The whole array in this process's memory, also where other processes hold parts of it."""
    if array.is_fully_addressable:
        return np.asarray(array)
    if array.is_fully_replicated:
        return np.asarray(array.addressable_data(0))
    from jax.experimental.multihost_utils import process_allgather

    return np.asarray(process_allgather(array, tiled=True))
