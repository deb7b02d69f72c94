"""What an agent sends instead of a whole vector. All act on one agent's parameters as one long vector."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
from jax.flatten_util import ravel_pytree

from pisco.errors import InputError, check_number
from pisco.registry import Registry
from pisco.types import Compressor, Key

__all__ = ["Identity", "Quantize", "RandomK", "TopK", "compressor"]


def _length(tree: Any) -> int:
    return sum(leaf.size for leaf in jax.tree.leaves(tree))


def _value_bits(tree: Any) -> int:
    return 8 * max(jnp.dtype(leaf.dtype).itemsize for leaf in jax.tree.leaves(tree))


def _kept(fraction: float, count: int | None, length: int) -> int:
    if count is not None and count > length:
        raise InputError(f"count is {count}, but the vector has only {length} entries; keep fewer or give a fraction")
    return max(1, math.ceil(fraction * length)) if count is None else count


@dataclass(frozen=True)
class Identity:
    """Everything, unchanged."""

    def __call__(self, tree: Any, key: Key) -> Any:
        return tree

    def message_bytes(self, tree: Any) -> int:
        return _length(tree) * _value_bits(tree) // 8


@dataclass(frozen=True)
class TopK:
    """The k entries of largest magnitude, with their places.

    Args:
      fraction: k/d.
      count: k itself, instead of a fraction.
    """

    fraction: float = 0.1
    count: int | None = None

    def __post_init__(self) -> None:
        _check_fraction(self.fraction, self.count)

    def __call__(self, tree: Any, key: Key) -> Any:
        flat, unflatten = ravel_pytree(tree)
        _, places = jax.lax.top_k(jnp.abs(flat), _kept(self.fraction, self.count, flat.size))
        return unflatten(jnp.zeros_like(flat).at[places].set(flat[places]))

    def message_bytes(self, tree: Any) -> int:
        return _sparse_bytes(tree, _kept(self.fraction, self.count, _length(tree)))


@dataclass(frozen=True)
class RandomK:
    """k entries chosen at random. Sender and receiver share the seed, so the places need not travel.

    Args:
      fraction: k/d.
      count: k itself, instead of a fraction.
      unbiased: scale by d/k, so that the mean is right; error feedback needs the unscaled form.
    """

    fraction: float = 0.1
    count: int | None = None
    unbiased: bool = False

    def __post_init__(self) -> None:
        _check_fraction(self.fraction, self.count)

    def __call__(self, tree: Any, key: Key) -> Any:
        flat, unflatten = ravel_pytree(tree)
        kept = _kept(self.fraction, self.count, flat.size)
        places = jax.random.choice(key, flat.size, (kept,), replace=False)
        factor = jnp.asarray(flat.size / kept if self.unbiased else 1.0, flat.dtype)
        return unflatten(jnp.zeros_like(flat).at[places].set(factor * flat[places]))

    def message_bytes(self, tree: Any) -> int:
        kept = _kept(self.fraction, self.count, _length(tree))
        return math.ceil(kept * _value_bits(tree) / 8)


@dataclass(frozen=True)
class Quantize:
    """b-bit stochastic quantisation: ‖x‖/2^(b−1)·sign(x)·⌊2^(b−1)|x|/‖x‖ + u⌋ with u uniform on [0, 1).

    A sign and a level of 0 … 2^(b−1) per entry, and the norm. Without `unbiased` the result is divided by
    1 + min(d/4^(b−1), √d/2^(b−1)), which makes it a contraction, as error feedback needs.

    Args:
      bits: b, at least 2.
      unbiased: leave the mean right.
    """

    bits: int = 8
    unbiased: bool = False

    def __post_init__(self) -> None:
        check_number("bits", self.bits, low=2, high=16, integer=True)

    def __call__(self, tree: Any, key: Key) -> Any:
        flat, unflatten = ravel_pytree(tree)
        levels = 2 ** (self.bits - 1)
        norm = jnp.linalg.norm(flat)
        safe = jnp.where(norm > 0, norm, 1)
        uniform = jax.random.uniform(key, flat.shape, flat.dtype)
        rounded = jnp.floor(levels * jnp.abs(flat) / safe + uniform)
        excess = min(flat.size / levels**2, math.sqrt(flat.size) / levels)
        factor = 1.0 if self.unbiased else 1 / (1 + excess)
        return unflatten(jnp.asarray(factor, flat.dtype) * norm / levels * jnp.sign(flat) * rounded)

    def message_bytes(self, tree: Any) -> int:
        # A level takes 0 … 2^(b−1), one value more than b − 1 bits hold.
        bits = _length(tree) * (1 + math.ceil(math.log2(2 ** (self.bits - 1) + 1))) + _value_bits(tree)
        return math.ceil(bits / 8)


COMPRESSORS = Registry[Callable[..., Compressor]](
    "compressor", "pisco.compressors", {"identity": Identity, "top-k": TopK, "random-k": RandomK, "quantize": Quantize}
)


def compressor(given: Compressor | str | Mapping[str, Any]) -> Compressor:
    """A compressor as it is, by name, or from a table such as {"name": "top-k", "fraction": 0.05}.

    >>> compressor({"name": "top-k", "fraction": 0.05})
    TopK(fraction=0.05, count=None)
    """
    if isinstance(given, str):
        given = {"name": given}
    if not isinstance(given, Mapping):
        return given
    options = {key: value for key, value in given.items() if key != "name"}
    return COMPRESSORS[str(given.get("name", ""))](**options)


def _check_fraction(fraction: float, count: int | None) -> None:
    check_number("fraction", fraction, low=0, high=1, open_low=True)
    if count is not None:
        check_number("count", count, low=1, integer=True)


def _sparse_bytes(tree: Any, kept: int) -> int:
    place_bits = max(1, math.ceil(math.log2(max(2, _length(tree)))))
    return math.ceil(kept * (_value_bits(tree) + place_bits) / 8)
