"""Sums and values over many samples, a block at a time, so that memory stays bounded."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp
from jax import lax

from pisco.data.stream import STREAM_BYTES, StreamRows, everything, piece
from pisco.tree import like_many, num_bytes, widened

if TYPE_CHECKING:
    from pisco.problems.problem import Problem

MOST, FEW = 65536, 256
"""Samples that are measured at once at most, and so many that no model is too large for them."""

BLOCK_BYTES = 1 << 30
"""About how much a measurement's pass may keep for the way back."""


def kept_bytes(function: Callable[..., Any], params: Any, *given: Any) -> int:
    """What a pass of function(params, ...) keeps for the way back to the parameters, these too, by shapes alone."""

    def kept(params: Any, *given: Any) -> Any:
        leaves = jax.tree.leaves(jax.vjp(lambda params: function(params, *given), params)[1])
        return [leaf for leaf in leaves if not jnp.issubdtype(leaf.dtype, jax.dtypes.extended)]

    return num_bytes(jax.eval_shape(kept, params, *given))


def samples_at_once(problem: Problem) -> int:
    """How many samples to measure at once: of a large model so many that their passes have room."""
    if max(problem.num_samples, problem.num_test) <= FEW:
        return MOST
    params = problem.params_like

    def kept(count: int) -> int:
        some = like_many(problem.sample_like, count)
        return kept_bytes(problem.weighted_loss, params, some, jax.ShapeDtypeStruct((count,), jnp.float32))

    return max(1, min(MOST, BLOCK_BYTES // max(1, kept(3) - kept(2))))


def weighted_total(
    summed: Callable[[Any, Any, jax.Array], jax.Array], params: Any, data: Any, weights: jax.Array, at_once: int
) -> jax.Array:
    """summed(params, data, weights) over samples, so many at a time; the last block overlaps with weight zero."""
    total = weights.shape[0]
    block = min(at_once, total)
    if block == total:
        return summed(params, everything(data), weights)

    # Gradients of blocks add up in float32 at least: in half precision a long sum stands still.
    params = jax.tree.map(jnp.asarray, params)
    wide = jax.tree.map(widened, params)

    def one(start):
        begin = jnp.minimum(start, total - block)
        batch = piece(data, begin, block)
        w = lax.dynamic_slice_in_dim(weights, begin, block)
        fresh = begin + jnp.arange(block) >= start
        own = jax.tree.map(lambda leaf, like: leaf.astype(like.dtype), wide, params)
        return summed(own, batch, jnp.where(fresh, w, 0))

    # Checkpointed: the backward pass recomputes a block instead of keeping all of them.
    return lax.map(jax.checkpoint(one), jnp.arange(0, total, block)).sum()


def sample_values(function: Callable[[Any], Any], data: Any, at_once: int) -> Any:
    """function(data), so many samples at a time: any tree whose leaves lead with the samples."""
    total = jax.tree.leaves(data)[0].shape[0]
    block = min(at_once, total)
    if isinstance(data, StreamRows):
        block = min(block, max(1, STREAM_BYTES // data.stream.sample_bytes))
    if block == total:
        return function(everything(data))

    def one(begin):
        return function(piece(data, begin, block))

    starts = jnp.arange(0, total, block)
    blocks = lax.map(one, jnp.minimum(starts, total - block))  # the last block overlaps the one before
    fresh = total - block * (len(starts) - 1)

    def joined(leaf):
        return jnp.concatenate([leaf[:-1].reshape(-1, *leaf.shape[2:]), leaf[-1, block - fresh :]])

    return jax.tree.map(joined, blocks)
