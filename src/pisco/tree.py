"""The handful of leafwise operations that algorithms, engines and metrics share.

Scalars are cast to each leaf's dtype, so a step size never changes the precision of the parameters.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

__all__ = ["add", "descend", "lerp", "repeat", "scale", "subtract", "track", "where_agents", "zeros_like"]

Tree = Any


def _like(scalar: Any, leaf: jax.Array) -> jax.Array:
    return jnp.asarray(scalar, dtype=leaf.dtype)


def _wide(leaf: jax.Array) -> Any:
    return jnp.promote_types(leaf.dtype, jnp.float32)


def widened(leaf: jax.Array) -> jax.Array:
    """In single precision at least."""
    return leaf.astype(_wide(leaf))


def like_one(tree: Tree) -> Tree:
    """Shapes and dtypes without the leading axis: of one agent, or of one sample."""
    return jax.tree.map(lambda leaf: jax.ShapeDtypeStruct(leaf.shape[1:], leaf.dtype), tree)


def like_many(tree: Tree, count: int) -> Tree:
    """Shapes and dtypes of so many, on a new leading axis."""
    return jax.tree.map(lambda leaf: jax.ShapeDtypeStruct((count, *leaf.shape), leaf.dtype), tree)


def descend(params: Tree, lr: Any, direction: Tree) -> Tree:
    """`params − lr·direction`.

    >>> descend({"w": jnp.array([1.0])}, 0.5, {"w": jnp.array([2.0])})
    {'w': Array([0.], dtype=float32)}
    """
    return jax.tree.map(lambda x, d: x - _like(lr, x) * d, params, direction)


def lerp(start: Tree, end: Tree, weight: Any) -> Tree:
    """`(1 − weight)·start + weight·end`."""
    return jax.tree.map(lambda a, b: _like(1 - weight, a) * a + _like(weight, b) * b, start, end)


def track(tracker: Tree, new: Tree, old: Tree) -> Tree:
    """`tracker + new − old`: the gradient-tracking correction."""
    return jax.tree.map(lambda y, g, h: y + g - h, tracker, new, old)


def add(first: Tree, second: Tree, weight: Any = 1) -> Tree:
    """`first + weight·second`."""
    return jax.tree.map(lambda a, b: a + _like(weight, b) * b, first, second)


def subtract(first: Tree, second: Tree) -> Tree:
    """`first − second`."""
    return jax.tree.map(jnp.subtract, first, second)


def scale(tree: Tree, factor: Any) -> Tree:
    """`factor·tree`."""
    return jax.tree.map(lambda x: _like(factor, x) * x, tree)


def zeros_like(tree: Tree) -> Tree:
    """Zeros of the same shapes and dtypes."""
    return jax.tree.map(jnp.zeros_like, tree)


def where_agents(mask: Any, yes: Tree, no: Tree) -> Tree:
    """`yes` for the agents in the mask, `no` for the others; a single agent has a single boolean."""
    mask = jnp.asarray(mask)

    def leaf(a, b):
        return jnp.where(mask.reshape(mask.shape + (1,) * (a.ndim - mask.ndim)), a, b)

    return jax.tree.map(leaf, yes, no)


def stack_agents(params: Tree, num_agents: int) -> Tree:
    """The same parameters for every agent, on a new leading axis: X⁰ = x⁰1ᵀ."""
    return jax.tree.map(lambda x: jnp.broadcast_to(x, (num_agents, *jnp.shape(x))), params)


def mean_over_agents(tree: Tree) -> Tree:
    """The average over the leading (agent) axis."""
    return jax.tree.map(lambda x: x.mean(axis=0), tree)


def squared_norm(tree: Tree) -> jax.Array:
    """The squared Euclidean norm of all leaves together, in float32 at least: a square is soon beyond float16."""
    squares = (jnp.vdot(x, x, preferred_element_type=_wide(x)) for x in jax.tree.leaves(tree))
    return sum(squares, start=jnp.zeros(()))


def spread(tree: Tree) -> jax.Array:
    """(1/n)·Σᵢ‖xᵢ − x̄‖²: how far the agents are from their mean."""
    centred = jax.tree.map(lambda x: x - x.mean(axis=0), tree)
    count = jax.tree.leaves(tree)[0].shape[0]
    return squared_norm(centred) / count


def repeat(step: Callable[[Tree, jax.Array], Tree], start: Tree, key: jax.Array, times: int) -> Tree:
    """`start` after so many steps in one compiled loop, each with a key of its own.

    >>> repeat(lambda x, key: 2 * x, jnp.ones(2), jax.random.key(0), 3)
    Array([8., 8.], dtype=float32)
    """
    return lax.scan(lambda so_far, key: (step(so_far, key), None), start, jax.random.split(key, times))[0]


def num_bytes(tree: Tree) -> int:
    """Bytes of all leaves, from their shapes alone."""
    return sum(leaf.size * jnp.dtype(leaf.dtype).itemsize for leaf in jax.tree.leaves(tree))
