"""What an agent sends instead of a whole vector. All act on one agent's parameters as one long vector.

`encode` makes the bytes of a message and `decode` the message of the bytes: what a compressor returns, to the bit, in
as many bytes as `message_bytes` says. Sender and receiver have the key, so what is drawn from it does not travel.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.flatten_util import ravel_pytree

from pisco.algorithms.packing import (
    drawn,
    drawn_here,
    dtype,
    length,
    pack,
    packed_bytes,
    place_bits,
    ravelled,
    shaped,
    unpack,
    value_bits,
)
from pisco.errors import InputError, check_counts, check_number, choose
from pisco.registry import Registry
from pisco.tree import widened
from pisco.types import Compressor, Key

__all__ = ["Cast", "Identity", "Quantize", "RandomK", "TopK", "compressor"]


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
        return length(tree) * value_bits(tree) // 8

    def encode(self, tree: Any, key: Key) -> bytes:
        return ravelled(tree).tobytes()

    def decode(self, data: bytes, like: Any, key: Key) -> Any:
        return shaped(np.frombuffer(data, dtype(like), length(like)), like)


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
        places = _largest(flat, _kept(self.fraction, self.count, flat.size))
        return unflatten(jnp.zeros_like(flat).at[places].set(flat[places]))

    def message_bytes(self, tree: Any) -> int:
        kept = _kept(self.fraction, self.count, length(tree))
        return packed_bytes(kept, place_bits(tree)) + kept * value_bits(tree) // 8

    def encode(self, tree: Any, key: Key) -> bytes:
        flat = ravelled(tree)
        places = np.sort(np.asarray(_largest(flat, _kept(self.fraction, self.count, flat.size))))
        return pack(places, place_bits(tree)) + flat[places].tobytes()

    def decode(self, data: bytes, like: Any, key: Key) -> Any:
        size, bits = length(like), place_bits(like)
        kept = _kept(self.fraction, self.count, size)
        places = unpack(data, kept, bits).astype(np.int64)
        if places.max() >= size or (np.diff(places) <= 0).any():
            raise ValueError(f"its places are not {kept} different ones below {size} in their order")
        flat = np.zeros(size, dtype(like))
        flat[places] = np.frombuffer(data, flat.dtype, kept, packed_bytes(kept, bits))
        return shaped(flat, like)


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
        places = drawn(key, flat.size, kept)
        factor = jnp.asarray(flat.size / kept if self.unbiased else 1.0, flat.dtype)
        return unflatten(jnp.zeros_like(flat).at[places].set(factor * flat[places]))

    def message_bytes(self, tree: Any) -> int:
        kept = _kept(self.fraction, self.count, length(tree))
        return math.ceil(kept * value_bits(tree) / 8)

    def encode(self, tree: Any, key: Key) -> bytes:
        flat = ravelled(tree)
        kept = _kept(self.fraction, self.count, flat.size)
        factor = flat.dtype.type(flat.size / kept if self.unbiased else 1.0)
        return (factor * flat[drawn_here(key, flat.size, kept)]).tobytes()

    def decode(self, data: bytes, like: Any, key: Key) -> Any:
        size = length(like)
        kept = _kept(self.fraction, self.count, size)
        flat = np.zeros(size, dtype(like))
        flat[drawn_here(key, size, kept)] = np.frombuffer(data, flat.dtype, kept)
        return shaped(flat, like)


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
        norm, rounded = _rounded(flat, key, 2 ** (self.bits - 1))
        factor = jnp.asarray(self._factor(flat.size), rounded.dtype)
        made = factor * norm.astype(rounded.dtype) / 2 ** (self.bits - 1) * jnp.sign(flat) * rounded
        return unflatten(made.astype(flat.dtype))

    def _factor(self, length: int) -> float:
        levels = 2 ** (self.bits - 1)
        excess = min(length / levels**2, math.sqrt(length) / levels)
        return 1.0 if self.unbiased else 1 / (1 + excess)

    def message_bytes(self, tree: Any) -> int:
        # A level takes 0 … 2^(b−1), one value more than b − 1 bits hold; with its sign these are b + 1 bits.
        return packed_bytes(length(tree), self.bits + 1) + value_bits(tree) // 8

    def encode(self, tree: Any, key: Key) -> bytes:
        flat = ravelled(tree)
        norm, rounded = (np.asarray(each) for each in _rounded(flat, key, 2 ** (self.bits - 1)))
        signed = 2 * np.nan_to_num(rounded).astype(np.uint32) + np.signbit(flat)
        return norm.tobytes() + pack(signed, self.bits + 1)

    def decode(self, data: bytes, like: Any, key: Key) -> Any:
        size, held = length(like), dtype(like)
        norm, number = np.frombuffer(data, held, 1)[0], jnp.promote_types(held, jnp.float32).type
        if norm < 0:
            raise ValueError(f"its norm is {norm}")
        signed = unpack(memoryview(data)[norm.nbytes :], size, self.bits + 1)
        step = number(self._factor(size)) * number(norm) / number(2 ** (self.bits - 1))
        return shaped(np.where(signed & 1, -step, step) * (signed >> 1).astype(number), like)


@dataclass(frozen=True)
class Cast:
    """Every entry in 16 bits; what lies beyond their range is sent as the largest number.

    Args:
      dtype: "bfloat16" (the range of float32, 8 digits of 2) or "float16" (up to 65504, 11 digits).
    """

    dtype: str = "bfloat16"

    def __post_init__(self) -> None:
        choose("dtype", self.dtype, _HALVES)

    def __call__(self, tree: Any, key: Key) -> Any:
        most, normal = float(jnp.finfo(self.dtype).max), float(jnp.finfo(self.dtype).tiny)
        exponent, fraction, step = _HALVES[self.dtype]

        def leaf(x: jax.Array) -> jax.Array:
            # A pair of conversions would be simplified away inside a compiled program. This sets to zero what is
            # below the normal numbers; those of float16 are not small enough for that.
            cut = jax.lax.reduce_precision(jnp.clip(x, -most, most), exponent, fraction)
            return jnp.where(jnp.abs(x) < normal, jnp.round(x / step) * step, cut) if step else cut

        return jax.tree.map(leaf, tree)

    def message_bytes(self, tree: Any) -> int:
        return 2 * length(tree)

    def encode(self, tree: Any, key: Key) -> bytes:
        return ravelled(_compressed(self, tree, key)).astype(jnp.dtype(self.dtype)).tobytes()

    def decode(self, data: bytes, like: Any, key: Key) -> Any:
        return shaped(np.frombuffer(data, jnp.dtype(self.dtype), length(like)).astype(dtype(like)), like)


_HALVES = {"bfloat16": (8, 7, 0.0), "float16": (5, 10, 2.0**-24)}
"""Bits of the exponent and of the fraction, and the step below the normal numbers."""


COMPRESSORS = Registry[Callable[..., Compressor]](
    "compressor",
    "pisco.compressors",
    {"identity": Identity, "top-k": TopK, "random-k": RandomK, "quantize": Quantize, "cast": Cast},
)


def compressor(given: Compressor | str | Mapping[str, Any]) -> Compressor:
    """A compressor as it is, by name, or from a table such as {"name": "top-k", "fraction": 0.05}.

    >>> compressor({"name": "top-k", "fraction": 0.05})
    TopK(fraction=0.05, count=None)
    """
    if isinstance(given, str):
        given = {"name": given}
    if isinstance(given, Mapping) and "name" in given:
        return COMPRESSORS[given["name"]](**{key: value for key, value in given.items() if key != "name"})
    if not isinstance(given, Compressor):
        raise InputError(f'the compressor is {given!r}, expected a name such as "top-k", or a table with one')
    return given


def _check_fraction(fraction: float, count: int | None) -> None:
    check_number("fraction", fraction, low=0, high=1, open_low=True)
    if count is not None:
        check_counts(count=count)


@functools.partial(jax.jit, static_argnums=1)
def _largest(flat: jax.Array, kept: int) -> jax.Array:
    return jax.lax.top_k(jnp.abs(flat), kept)[1]


@functools.partial(jax.jit, static_argnums=2)
def _rounded(flat: jax.Array, key: Key, levels: int) -> tuple[jax.Array, jax.Array]:
    # Half precision has neither the range of a square nor the digits of a level and a fraction.
    wide = widened(flat)
    norm = jnp.linalg.norm(wide).astype(flat.dtype)
    safe = jnp.where(norm > 0, norm, 1).astype(wide.dtype)
    return norm, jnp.floor(levels * jnp.abs(wide) / safe + jax.random.uniform(key, wide.shape, wide.dtype))


@functools.partial(jax.jit, static_argnums=0)
def _compressed(compressor: Compressor, tree: Any, key: Key) -> Any:
    return compressor(tree, key)
