"""What every device holds: its agents' samples and links, its share of the test data, and little else."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

from pisco.engines.job import Job
from pisco.engines.sharded.transfers import AXIS, BlockGossip, Blocks, block_gossip
from pisco.networks.rounds import Gossip
from pisco.networks.varying import Fixed
from pisco.problems.blocks import weighted_total
from pisco.problems.problem import Problem

SPLIT, WHOLE = P(AXIS), P()


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class Shard:
    """A job as the devices hold it. Outside the program arrays lead with the devices; inside, they are one's own."""

    problem: Problem  # samples of the own agents; sizes and offsets of all
    first_sample: jax.Array  # of the own samples, in the numbering of all
    weights: jax.Array  # of every own sample in the objective
    measured: jax.Array | None  # the own samples that are measured; None is all
    exchange: BlockGossip
    gossip: Gossip

    def inside(self, blocks: Blocks) -> Shard:
        """What a device works with: the leading axis of length one is gone, offsets count from the own first."""
        own = jax.tree.map(lambda x: x[0], self.exchange)
        problem = jax.tree.map(lambda x: x, self.problem)
        real = jnp.arange(blocks.padded) < blocks.agents
        first = 0 if problem.streams else self.first_sample[0]  # a stream's numbers are the same everywhere
        problem.offsets = jnp.where(real, self.problem.offsets - first, 0)
        return replace(self, problem=problem, exchange=own)

    def specs(self) -> Any:
        """Which parts are split over the devices: a tree of specs above this one."""
        # As `Problem.tree_flatten` lists its children.
        leading = (SPLIT, WHOLE, WHOLE, WHOLE, SPLIT, WHOLE, WHOLE, WHOLE)
        problem = Problem.tree_unflatten(self.problem.tree_flatten()[1], leading)
        return replace(
            self,
            problem=problem,
            first_sample=SPLIT,
            weights=SPLIT,
            measured=SPLIT,
            exchange=jax.tree.map(lambda _: SPLIT, self.exchange),
            gossip=jax.tree.map(lambda _: WHOLE, self.gossip),
        )

    def objective(self, params: Any) -> jax.Array:
        """The part of f that the samples here make up."""
        problem, data = self.problem, self.problem.data
        if problem.streams:
            own = jnp.arange(self.weights.shape[0]) if self.measured is None else self.measured
            data = problem.take(jnp.minimum(self.first_sample[0] + own, problem.num_samples - 1))
        elif self.measured is not None:
            data = jax.tree.map(lambda leaf: leaf[self.measured], data)
        return weighted_total(problem.weighted_loss, params, data, self.weights, problem.eval_batch)


def split(mesh: Mesh, rows: Callable[[int], np.ndarray]) -> jax.Array:
    """An array split over the devices; `rows(i)` makes the part of device i, on the process that holds it alone."""
    mine = [(i, d) for i, d in enumerate(mesh.devices.flat) if d.process_index == jax.process_index()]
    parts = [jax.device_put(rows(i), device) for i, device in mine]
    shape = (parts[0].shape[0] * mesh.size, *parts[0].shape[1:])
    return jax.make_array_from_single_device_arrays(shape, NamedSharding(mesh, SPLIT), parts)


def split_rows(mesh: Mesh, array: Any, cuts: np.ndarray, length: int) -> jax.Array:
    """The rows from a cut to the next on every device, filled up to one length with a row that exists.

    (A loss need not be finite anywhere else.)
    """
    host = np.asarray(array)

    def rows(device):
        own = host[cuts[device] : cuts[device + 1]]
        return np.concatenate([own, np.repeat(host[:1], length - len(own), axis=0)])

    return split(mesh, rows)


def whole(mesh: Mesh, tree: Any) -> Any:
    """The same arrays on every device."""
    sharding = NamedSharding(mesh, WHOLE)

    def leaf(x):
        host = np.asarray(x)
        return jax.make_array_from_callback(host.shape, sharding, lambda index: host[index])

    return jax.tree.map(leaf, tree)


def shard(job: Job, blocks: Blocks, mesh: Mesh) -> Shard:
    """Put every agent's samples and links on its device."""
    problem = job.problem
    sizes = np.concatenate([np.asarray(problem.sizes), np.ones(blocks.padded - blocks.agents, np.int32)])
    offsets = np.concatenate([np.asarray(problem.offsets), np.zeros(blocks.padded - blocks.agents, np.int32)])
    ends = np.append(np.asarray(problem.offsets), problem.num_samples)
    cuts = ends[np.minimum(blocks.cuts, blocks.agents)]
    longest = int(np.diff(cuts).max())
    placed = jax.tree.map(lambda x: x, problem)
    placed.data = jax.tree.map(lambda leaf: split_rows(mesh, leaf, cuts, longest), problem.data)
    placed.sizes, placed.offsets = whole(mesh, (sizes, offsets))
    if problem.scales is not None:
        placed.scales = whole(mesh, np.pad(problem.scales, (0, blocks.padded - blocks.agents)))
    if problem.protection is not None:
        more = blocks.padded - blocks.agents
        placed.protection = whole(mesh, jax.tree.map(lambda x: np.pad(x, (0, more), "edge"), problem.protection))
    placed.start = problem.start if problem.draws_start else whole(mesh, problem.start)
    placed.frozen = whole(mesh, problem.frozen)
    placed.test = _split_test(problem, blocks, mesh)
    measured, weights = _measured(problem, blocks, cuts, longest)
    exchange = block_gossip(job.network, blocks)
    gossip = job.network.gossip
    if exchange.operator is not None and gossip.guard is None:  # a device needs its own links only
        gossip = replace(gossip, rule=Fixed(None, gossip.rule.num_edges))  # type: ignore[arg-type, union-attr]
    return Shard(
        placed,
        split(mesh, lambda device: cuts[device : device + 1].astype(np.int32)),
        split(mesh, weights),
        None if measured is None else split(mesh, measured),
        jax.tree.map(lambda leaf: split(mesh, lambda device: leaf[device : device + 1]), exchange),
        whole(mesh, gossip),
    )


def _measured(problem: Problem, blocks: Blocks, cuts: np.ndarray, longest: int):
    """For every device the samples that are measured (None: all) and their weights in f."""
    sizes, offsets = np.asarray(problem.sizes), np.asarray(problem.offsets)
    scales = np.ones(blocks.agents) if problem.scales is None else np.asarray(problem.scales)
    few, block = problem.eval_samples or 0, blocks.block
    floating = jnp.zeros(()).dtype

    def agents(device):
        return np.arange(device * block, min((device + 1) * block, blocks.agents))

    def all_weights(device):
        own = sizes[agents(device)]
        filled = np.zeros(longest)
        filled[: own.sum()] = np.repeat(scales[agents(device)] * (1.0 / (blocks.agents * own)), own)
        return filled.astype(floating)

    def held(device):  # of the first samples of every agent; one may have fewer
        return np.arange(few) < np.minimum(sizes[agents(device)], few)[:, None]

    def few_rows(device):
        rows = np.where(held(device), offsets[agents(device), None] - cuts[device] + np.arange(few), 0).reshape(-1)
        return np.pad(rows, (0, block * few - len(rows))).astype(np.int32)

    def few_weights(device):
        there, own = held(device), scales[agents(device), None]
        weights = np.where(there, own * (1.0 / (blocks.agents * there.sum(axis=1, keepdims=True))), 0.0).reshape(-1)
        return np.pad(weights, (0, block * few - len(weights))).astype(floating)

    return (None, all_weights) if not few else (few_rows, few_weights)


def _split_test(problem: Problem, blocks: Blocks, mesh: Mesh) -> Any:
    """The test samples, a part on every device."""
    if not problem.num_test:
        return None
    part = Blocks(problem.num_test, blocks.devices)
    return jax.tree.map(lambda leaf: split_rows(mesh, leaf, part.cuts, part.block), problem.test)
