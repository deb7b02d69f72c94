"""How far vectors of stacked agents are apart, and what is usual among such distances: the arithmetic of guards."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

from pisco.tree import widened

SKETCH = 32
"""Numbers that stand for a vector where rounds are added up."""


def split(leaves: list[Any], shapes: list[tuple[int, ...]]) -> list[list[Any]]:
    """Leaves in groups of these shapes, where they are made of such; else in one group.

    >>> [len(part) for part in split([jnp.ones(2)] * 4, [(2,), (2,)])]
    [2, 2]
    """
    size = max(len(shapes), 1)
    groups = [leaves[at : at + size] for at in range(0, len(leaves), size)]
    fits = all([leaf.shape for leaf in group] == list(shapes) for group in groups)
    return groups if fits and groups else [leaves]


def squares(leaf: jax.Array) -> jax.Array:
    """‖x_i‖² of every row."""
    return jnp.square(widened(leaf)).reshape(leaf.shape[0], -1).sum(axis=1)


def norms(z: list[jax.Array]) -> jax.Array:
    """‖z_i‖ of every row."""
    return jnp.sqrt(sum(squares(leaf) for leaf in z))


def sketch(arrays: Any, xp: Any = jnp) -> Any:
    """A few sums with fixed signs of every row's entries, whose norm is about that of the row.

    Sketches are linear: the sketch of a sum of differences needs no vector to be kept.
    """
    total = 0.0
    for at, leaf in enumerate(arrays):
        flat = leaf.reshape(leaf.shape[0], -1)
        number = xp.arange(flat.shape[1], dtype=xp.uint32) * xp.uint32(2654435761) + xp.uint32(at * 40503 % 2**32)
        number = (number ^ (number >> 15)) * xp.uint32(2246822519)
        signed = flat * xp.where((number >> 13) % 2 == 0, 1, -1).astype(flat.dtype)
        padded = xp.pad(signed, ((0, 0), (0, -flat.shape[1] % SKETCH)))
        total = total + padded.reshape(flat.shape[0], -1, SKETCH).sum(axis=1)
    return total


def distances(own: list[jax.Array], sent: list[jax.Array]) -> jax.Array:
    """‖own_i − sent_j‖ of every pair, row by row: no difference of large squares."""
    return jnp.sqrt(lax.map(lambda row: sum(squares(s - z) for z, s in zip(row, sent, strict=True)), own))


def moved(z: list[jax.Array], start: list[jax.Array] | None) -> jax.Array:
    """How far every agent's vector has come: from its parameters, or from zero where that is nearer."""
    if start is None:
        return norms(z)
    return jnp.minimum(norms(z), jnp.sqrt(sum(squares(a - b) for a, b in zip(z, start, strict=True))))


def largest_usual(values: jax.Array, links: jax.Array) -> jax.Array:
    """The largest of every row's values on links, without a quarter of them and at least one; 0 where none is left.

    >>> largest_usual(jnp.array([[3.0, 1.0, 900.0, 2.0]]), jnp.ones((1, 4), bool)).tolist()
    [3.0]
    """
    ranked, count = jnp.sort(jnp.where(links, values, jnp.inf), axis=1), links.sum(axis=1)
    place = count - 1 - jnp.maximum(1, (count - 1) // 4)
    found = jnp.take_along_axis(ranked, jnp.maximum(place, 0)[:, None], axis=1)[:, 0]
    return jnp.where(place >= 0, found, 0.0)


def lower_median(values: jax.Array, links: jax.Array) -> jax.Array:
    """The lower median of every row's values on links; 0 where there is none.

    >>> lower_median(jnp.array([[1.0, 5.0, 9.0]]), jnp.array([[True, False, True]])).tolist()
    [1.0]
    """
    ranked, count = jnp.sort(jnp.where(links, values, jnp.inf), axis=1), links.sum(axis=1)
    found = jnp.take_along_axis(ranked, jnp.maximum(count - 1, 0)[:, None] // 2, axis=1)[:, 0]
    return jnp.where(count > 0, found, 0.0)


def precision(tree: Any) -> float:
    """The coarsest rounding among the leaves."""
    return max(float(jnp.finfo(leaf.dtype).eps) for leaf in jax.tree.leaves(tree))


def rounding(z: list[jax.Array], eps: float) -> jax.Array:
    """Below this, differences are rounding."""
    return 16 * eps * norms(z) + jnp.finfo(jnp.float32).tiny


def weighted(weights: jax.Array, sent: Any, own: Any, kept: jax.Array) -> Any:
    """Σ_j w_ij·sent_j, and on one's own what is kept of it."""

    def leaf(message: jax.Array, z: jax.Array) -> jax.Array:
        wide = widened(message)
        mixed = jnp.tensordot(weights.astype(wide.dtype), wide, axes=1, precision=lax.Precision.HIGHEST)
        held = kept.reshape(-1, *[1] * (z.ndim - 1)).astype(wide.dtype)
        return mixed + (held * widened(z) if kept.shape[0] == z.shape[0] else 0)

    return jax.tree.map(leaf, sent, own)


def alike(z: list[jax.Array], start: list[jax.Array]) -> bool:
    """Whether they have the same shapes."""
    return all(a.shape == b.shape for a, b in zip(z, start, strict=True))
