"""Mixing is something that can be applied: operators chosen by the structure of the weights.

The paper writes X·W with one agent a column. Agents lead here, so every operator applies Wᵀ from the left:
x_i ← Σ_j w_ji·x_j. Nothing costs n² on a graph with O(n) edges.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from pisco.networks.spectral import circulant_steps

if TYPE_CHECKING:
    from scipy.sparse import csr_array

__all__ = ["Dense", "Edges", "choose_operator"]

PRODUCT_UP_TO = 64
"""Below this many agents a dense product beats any sparse form."""

GATHER_DEGREE = 64
"""Up to this many neighbours an operator loops over neighbour slots instead of scattering along edges."""


class Leafwise:
    """A map of one leaf, applied to every leaf of a tree."""

    def leaf(self, x: jax.Array) -> jax.Array:
        raise NotImplementedError

    def __call__(self, tree: Any) -> Any:
        return jax.tree.map(self.leaf, tree)


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class Dense(Leafwise):
    """x ← Wᵀx as one matrix product."""

    matrix: jax.Array  # Wᵀ

    def leaf(self, x: jax.Array) -> jax.Array:
        # HIGHEST: accelerators would otherwise mix in reduced precision and lose mean(Y) = mean(G).
        return jnp.tensordot(self.matrix.astype(x.dtype), x, axes=1, precision=lax.Precision.HIGHEST)


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class Circulant(Leafwise):
    """x_i ← Σ_s c_s·x_{i−s}: shifts along the agent axis."""

    coefficients: jax.Array
    shifts: tuple[int, ...] = field(metadata={"static": True})

    def leaf(self, x: jax.Array) -> jax.Array:
        terms = (self.coefficients[k].astype(x.dtype) * jnp.roll(x, s, axis=0) for k, s in enumerate(self.shifts))
        return sum(terms, start=jnp.zeros_like(x))


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class Gather(Leafwise):
    """x_i ← Σ_slot w[i, slot]·x[neighbour[i, slot]], one slot after the other; for bounded degrees."""

    neighbours: jax.Array  # (n, slots)
    weights: jax.Array  # (n, slots), zero where an agent has fewer neighbours

    def leaf(self, x: jax.Array) -> jax.Array:
        total = jnp.zeros_like(x)
        for slot in range(self.neighbours.shape[1]):
            total += as_factor(self.weights[:, slot], x) * x[self.neighbours[:, slot]]
        return total


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class Edges(Leafwise):
    """x_i ← Σ over incoming edges of w·x[source]; for graphs with a few agents of very high degree."""

    sources: jax.Array
    targets: jax.Array
    weights: jax.Array

    def leaf(self, x: jax.Array) -> jax.Array:
        sent = as_factor(self.weights, x) * x[self.sources]
        return jax.ops.segment_sum(sent, self.targets, num_segments=x.shape[0])


Operator = Dense | Circulant | Gather | Edges


def as_factor(values: jax.Array, leaf: jax.Array) -> jax.Array:
    """One value per agent, shaped and typed to multiply a leaf whose leading axis is the agents."""
    return values.reshape(values.shape + (1,) * (leaf.ndim - 1)).astype(leaf.dtype)


def average(tree: Any) -> Any:
    """The server's J: every agent receives the mean of all."""
    return jax.tree.map(lambda x: jnp.broadcast_to(x.mean(axis=0, keepdims=True), x.shape), tree)


def outside_gossip(mask: jax.Array, sources: jax.Array, targets: jax.Array) -> tuple[Edges, jax.Array]:
    """Metropolis gossip among the agents outside `mask`, and how many directed edges carry it.

    `sources` and `targets` list every directed edge of the graph, sorted by target.
    """
    n = mask.shape[0]
    alive = ~mask[sources] & ~mask[targets]
    degrees = jax.ops.segment_sum(alive.astype(jnp.int32), targets, num_segments=n)
    larger = jnp.asarray(jnp.maximum(degrees[sources], degrees[targets]), float)  # int32 divides in float32
    weights = jnp.where(alive, 1.0 / (1.0 + larger), 0.0)
    own = 1.0 - jax.ops.segment_sum(weights, targets, num_segments=n)
    everyone = jnp.arange(n, dtype=sources.dtype)
    operator = Edges(
        jnp.concatenate([everyone, sources]), jnp.concatenate([everyone, targets]), jnp.concatenate([own, weights])
    )
    return operator, degrees.sum()


def choose_operator(weights: csr_array) -> Operator:
    """The cheapest operator for this matrix.

    >>> from pisco.networks import graphs, weights
    >>> type(choose_operator(weights.metropolis(graphs.ring(1000)))).__name__
    'Circulant'
    >>> type(choose_operator(weights.metropolis(graphs.star(1000)))).__name__
    'Edges'
    """
    n = int(weights.shape[0])  # pyright: ignore[reportOptionalSubscript]
    if n <= PRODUCT_UP_TO or weights.nnz > 0.25 * n * n:
        return Dense(jnp.asarray(weights.toarray().T))
    incoming = weights.T.tocsr()
    incoming.sort_indices()
    shifted = circulant_steps(incoming) if np.diff(incoming.indptr).max() <= GATHER_DEGREE else None
    if shifted is not None:
        return Circulant(jnp.asarray(shifted[1]), tuple((-shifted[0] % n).tolist()))
    return by_link(incoming)


def by_link(incoming: csr_array) -> Gather | Edges:
    """The operator of Wᵀ that holds its links one by one: by agent where all have about as many, else in one list."""
    n, counts = incoming.shape[0], np.diff(incoming.indptr)  # pyright: ignore[reportOptionalSubscript]
    slots = int(counts.max())
    if slots <= GATHER_DEGREE and n * slots <= 3 * incoming.nnz:
        used = np.arange(slots)[None, :] < counts[:, None]
        neighbours = np.broadcast_to(np.arange(n, dtype=np.int32)[:, None], (n, slots)).copy()
        values = np.zeros((n, slots))
        neighbours[used], values[used] = incoming.indices, incoming.data
        return Gather(jnp.asarray(neighbours), jnp.asarray(values))
    targets = np.repeat(np.arange(n, dtype=np.int32), counts)
    return Edges(jnp.asarray(incoming.indices.astype(np.int32)), jnp.asarray(targets), jnp.asarray(incoming.data))
