"""Gossip between devices: what each sends to which, worked out once from the graph.

Agents are cut into blocks, one per device. A device needs the rows of its own agents and those of their neighbours
elsewhere. These travel as *transfers*: each is a set of (from, to) pairs in which no device sends or receives twice
(one `ppermute`), carrying the same number of rows. Where nearly everybody needs everybody, one gather replaces them.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from pisco.networks.mixing import GATHER_DEGREE, Dense, Edges, Gather, Operator
from pisco.networks.network import Network

AXIS = "agents"
"""The name of the mesh axis that agents are spread over."""

FULLNESS = 0.9
"""Pairs share a transfer when the smaller fills this much of it; transfers give way to a gather from this much on."""

DENSE_ROWS = 128
"""Up to this many rows at hand a block is mixed by a dense product."""

Pairs = tuple[tuple[int, int], ...]


@dataclass(frozen=True)
class Blocks:
    """n agents in contiguous blocks of equal length; the last blocks may end in ghosts, agents that do not exist."""

    agents: int
    devices: int

    @property
    def block(self) -> int:
        """Agents on a device, ghosts included."""
        return -(-self.agents // self.devices)

    @property
    def padded(self) -> int:
        """Agents and ghosts together."""
        return self.block * self.devices

    @property
    def cuts(self) -> np.ndarray:
        """Where blocks begin and end."""
        return np.arange(self.devices + 1) * self.block


class Transfer(NamedTuple):
    """Rows that travel at once: `rows[device]` are those it sends, as positions in its block."""

    pairs: Pairs
    rows: np.ndarray  # (devices, size)


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class BlockGossip:
    """How a block mixes with its neighbours. Arrays lead with the devices; on a device, they are its own.

    With fixed weights, `operator` maps the rows at hand to the block. Where links vary on the same edges, the
    device's edges are listed instead and weighted in every round. Neither: gather all, apply the round's operator.
    """

    sent: tuple[jax.Array, ...]
    operator: Operator | None
    edges: tuple[jax.Array, jax.Array, jax.Array] | None  # position of the source, target, place in the list
    pairs: tuple[Pairs, ...] = field(metadata={"static": True})
    gathers: bool = field(metadata={"static": True})

    def collect(self, tree: Any) -> Any:
        """The rows at hand after talking to the others: the own block, then what was received; or all agents."""
        if self.gathers:
            return packed(lambda rows: lax.all_gather(rows, AXIS, tiled=True), tree)
        parts = [tree]
        for pairs, rows in zip(self.pairs, self.sent, strict=True):
            leaving = jax.tree.map(lambda x, rows=rows: x[rows], tree)
            parts.append(packed(lambda rows, pairs=pairs: lax.ppermute(rows, AXIS, pairs), leaving))
        return jax.tree.map(lambda *rows: jnp.concatenate(rows), *parts) if len(parts) > 1 else tree

    def own_operator(self, drawn: Operator) -> Operator | None:
        """The map from the rows at hand to the block, weighted as in the round's operator for all agents."""
        if self.edges is None:
            return self.operator
        assert isinstance(drawn, Edges)
        sources, targets, places = self.edges
        return Edges(sources, targets, drawn.weights[places])


def packed(send: Any, tree: Any) -> Any:
    """`send` applied to all leaves of one dtype together: one message instead of one per leaf."""
    leaves, structure = jax.tree.flatten(tree)
    out: list[Any] = [None] * len(leaves)
    for dtype in dict.fromkeys(leaf.dtype for leaf in leaves):
        which = [i for i, leaf in enumerate(leaves) if leaf.dtype == dtype]
        flat = [leaves[i].reshape(leaves[i].shape[0], -1) for i in which]
        received = send(flat[0] if len(flat) == 1 else jnp.concatenate(flat, axis=1))
        ends = np.cumsum([part.shape[1] for part in flat])[:-1].tolist()
        for i, part in zip(which, jnp.split(received, ends, axis=1), strict=True):
            out[i] = part.reshape(part.shape[0], *leaves[i].shape[1:])
    return jax.tree.unflatten(structure, out)


def block_gossip(network: Network, blocks: Blocks) -> BlockGossip:
    """The exchange of a network's gossip on this blocks, as NumPy arrays that lead with the devices."""
    rule, gossip = network.gossip.rule, network.gossip
    values = None
    if network.splits_rounds:  # a schedule that splits rounds: `outside_gossip` lists agents, then edges
        agents = np.arange(blocks.agents)
        assert gossip.sources is not None and gossip.targets is not None
        sources = np.concatenate([agents, np.asarray(gossip.sources)])
        targets = np.concatenate([agents, np.asarray(gossip.targets)])
    elif network.varying is None and network.push is None:
        incoming = network.weights.T.tocoo()
        targets, sources, values = incoming.row, incoming.col, incoming.data
    elif getattr(rule, "same_ends", False):
        operator, _ = rule.draw(jax.random.key(0), 0)
        assert isinstance(operator, Edges)
        sources, targets = np.asarray(operator.sources), np.asarray(operator.targets)
    else:
        return BlockGossip((), None, None, (), gathers=True)

    transfers, halo = _transfers(blocks, sources, targets)
    moved = sum(len(t.pairs) * t.rows.shape[1] for t in transfers)
    gathers = moved >= FULLNESS * blocks.devices * (blocks.devices - 1) * blocks.block and moved > 0
    positions = sources.astype(np.int64) if gathers else _positions(blocks, sources, targets, halo)
    at_hand = blocks.padded if gathers else blocks.block + sum(t.rows.shape[1] for t in transfers)
    lists = _per_device(blocks, positions, targets)
    operator = None if values is None else _operator(blocks, lists, values, at_hand)
    return BlockGossip(
        () if gathers else tuple(t.rows for t in transfers),  # pyright: ignore[reportArgumentType]
        operator,
        None if values is not None else _edge_lists(lists, at_hand),  # pyright: ignore[reportArgumentType]
        () if gathers else tuple(t.pairs for t in transfers),
        gathers,
    )


def _transfers(blocks: Blocks, sources: np.ndarray, targets: np.ndarray):
    """The transfers, and for every row that travels (to device, agent) its place after the block."""
    start, end = sources // blocks.block, targets // blocks.block
    away = start != end
    # Columns (from device, to device, agent) for every row that must travel, sorted.
    needs = np.unique(np.stack([start[away], end[away], sources[away]]).astype(np.int64), axis=1)
    lists: dict[tuple[int, int], np.ndarray] = {}
    if needs.size:
        changes = np.flatnonzero(np.any(np.diff(needs[:2], axis=1) != 0, axis=0)) + 1
        for part in np.split(needs, changes, axis=1):
            lists[(int(part[0, 0]), int(part[1, 0]))] = part[2]
    waiting = sorted(lists, key=lambda pair: (-len(lists[pair]), (pair[1] - pair[0]) % blocks.devices, pair))
    transfers: list[Transfer] = []
    halo: dict[tuple[int, int], int] = {}
    offset = 0
    while waiting:
        size = len(lists[waiting[0]])
        chosen: list[tuple[int, int]] = []
        senders, receivers = set(), set()
        for pair in waiting:  # largest first, so that those of similar length travel together
            if len(lists[pair]) < FULLNESS * size:
                break
            if pair[0] not in senders and pair[1] not in receivers:
                chosen.append(pair)
                senders.add(pair[0])
                receivers.add(pair[1])
        rows = np.zeros((blocks.devices, size), np.int32)
        for start, end in chosen:
            agents = lists[(start, end)]
            rows[start, : len(agents)] = agents - start * blocks.block
            halo |= {(end, int(agent)): offset + place for place, agent in enumerate(agents)}
        transfers.append(Transfer(tuple(sorted(chosen)), rows))
        taken = set(chosen)
        waiting = [pair for pair in waiting if pair not in taken]
        offset += size
    return transfers, halo


def _positions(blocks: Blocks, sources: np.ndarray, targets: np.ndarray, halo: dict) -> np.ndarray:
    """Where every edge's source lies among the rows at hand of its target's device."""
    start, end = sources // blocks.block, targets // blocks.block
    positions = (sources - start * blocks.block).astype(np.int64)
    for edge in np.flatnonzero(start != end):
        positions[edge] = blocks.block + halo[(int(end[edge]), int(sources[edge]))]
    return positions


def _per_device(blocks: Blocks, positions: np.ndarray, targets: np.ndarray):
    """For every device its edges: position of the source, target in the block, place in the whole list."""
    device = targets // blocks.block
    order = np.lexsort((targets, device))
    cuts = np.searchsorted(device[order], np.arange(1, blocks.devices))
    return [(positions[e], (targets[e] % blocks.block), e) for e in np.split(order, cuts)]


def _edge_lists(lists, at_hand: int):
    """Lists of equal length; the target of a filler lies outside, where a sum drops it."""
    longest = max(len(places) for _, _, places in lists)

    def fill(column, value):
        return np.stack([np.pad(np.asarray(x), (0, longest - len(x)), constant_values=value) for x in column]).astype(
            np.int32
        )

    sources, targets, places = zip(*lists, strict=True)
    return fill(sources, 0), fill(targets, at_hand), fill(places, 0)


def _operator(blocks: Blocks, lists, values: np.ndarray, at_hand: int) -> Operator:
    """Fixed weights as the operator that suits the rows at hand, the same kind on every device."""
    if at_hand <= DENSE_ROWS:
        matrix = np.zeros((blocks.devices, blocks.block, at_hand))
        for device, (sources, targets, places) in enumerate(lists):
            matrix[device, targets, sources] = values[places]
        return Dense(matrix)  # pyright: ignore[reportArgumentType]
    slots = max((int(np.bincount(targets).max()) for _, targets, _ in lists if len(targets)), default=0)
    if slots <= GATHER_DEGREE:
        neighbours = np.zeros((blocks.devices, at_hand, slots), np.int32)
        weights = np.zeros((blocks.devices, at_hand, slots))
        for device, (sources, targets, places) in enumerate(lists):
            firsts = np.searchsorted(targets, targets)  # sorted by target
            slot = np.arange(len(targets)) - firsts
            neighbours[device, targets, slot], weights[device, targets, slot] = sources, values[places]
        return Gather(neighbours, weights)  # pyright: ignore[reportArgumentType]
    sources, targets, _ = _edge_lists(lists, at_hand)
    weights = np.zeros(sources.shape)
    for device, (_, _, places) in enumerate(lists):
        weights[device, : len(places)] = values[places]
    return Edges(sources, targets, weights)  # pyright: ignore[reportArgumentType]
