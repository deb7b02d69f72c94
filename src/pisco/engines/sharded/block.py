"""The agents of one device, seen from inside the program that all devices run."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

from pisco.engines.sharded.transfers import AXIS, BlockGossip, Blocks, packed
from pisco.networks.mixing import Operator
from pisco.tree import squared_norm


class Block:
    """The `Placement` of a device: sums over all agents are collective, and ghosts enter none."""

    def __init__(self, blocks: Blocks, exchange: BlockGossip):
        self.blocks, self.exchange = blocks, exchange
        self.first = lax.axis_index(AXIS) * blocks.block

    def numbers(self, count: int) -> jax.Array:
        return self.first + jnp.arange(count)

    def own(self, values: jax.Array) -> jax.Array:
        filled = jnp.pad(values, [(0, self.blocks.padded - self.blocks.agents)] + [(0, 0)] * (values.ndim - 1))
        return lax.dynamic_slice_in_dim(filled, self.first, self.blocks.block)

    def total(self, tree: Any) -> Any:
        return jax.tree.map(lambda x, total: total.astype(x.dtype), tree, self._sums(tree))

    def mean(self, tree: Any) -> Any:
        return jax.tree.map(lambda x: x[0], self._mean(tree))

    def average(self, tree: Any) -> Any:
        return jax.tree.map(lambda x, mean: jnp.broadcast_to(mean, x.shape), tree, self._mean(tree))

    def spread(self, tree: Any) -> jax.Array:
        away = jax.tree.map(lambda x, mean: self._only_real(x - mean), tree, self._mean(tree))
        return lax.psum(squared_norm(away), AXIS) / self.blocks.agents

    def add(self, tree: Any) -> Any:
        sums = packed(lambda part: lax.psum(part, AXIS), jax.tree.map(lambda x: x[None], tree))
        return jax.tree.map(lambda x: x[0], sums)

    def gather(self, tree: Any, count: int) -> Any:
        return jax.tree.map(lambda x: lax.all_gather(x, AXIS, tiled=True)[:count], tree)

    def everyone(self, tree: Any) -> Any:
        return self.gather(tree, self.blocks.agents)

    def apply(self, operator: Operator, tree: Any) -> Any:
        tree = jax.tree.map(self._only_real, tree)
        rows = self.exchange.collect(tree)
        local = self.exchange.own_operator(operator)
        if local is not None:
            return jax.tree.map(lambda x: x[: self.blocks.block], local(rows))
        everybody = operator(jax.tree.map(lambda x: x[: self.blocks.agents], rows))
        return jax.tree.map(self.own, everybody)

    def _mean(self, tree: Any) -> Any:
        count = self.blocks.agents
        return jax.tree.map(lambda x, total: (total / count).astype(x.dtype), tree, self._sums(tree))

    def _sums(self, tree: Any) -> Any:
        """Sums over all agents; half precision is summed in single, as one device does."""

        def local(x):
            wide = x.dtype if jnp.issubdtype(x.dtype, jnp.integer) else jnp.promote_types(x.dtype, jnp.float32)
            return self._only_real(x).astype(wide).sum(axis=0, keepdims=True)

        return packed(lambda sums: lax.psum(sums, AXIS), jax.tree.map(local, tree))

    def _only_real(self, x: jax.Array) -> jax.Array:
        """Zeros in place of ghosts, whatever they hold."""
        if self.blocks.padded == self.blocks.agents:
            return x
        real = self.numbers(x.shape[0]) < self.blocks.agents
        return jnp.where(real.reshape(-1, *[1] * (x.ndim - 1)), x, 0)
