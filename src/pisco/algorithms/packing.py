"""Messages on the host: trees as vectors, and small whole numbers with as many bits as they need."""

from __future__ import annotations

import functools
import math
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from pisco.types import Key

AT_ONCE = 1 << 16
"""Numbers that are spread out to bits at a time; a multiple of 8, so that every part ends with a byte."""


def packed_bytes(count: int, bits: int) -> int:
    """Bytes of so many numbers."""
    return -(-count * bits // 8)


def pack(numbers: np.ndarray, bits: int) -> bytes:
    """Numbers from 0 to 2^bits − 1, one after the other, the lowest bit first.

    >>> unpack(pack(np.array([5, 0, 7, 2]), 3), 4, 3).tolist(), len(pack(np.array([5, 0, 7, 2]), 3))
    ([5, 0, 7, 2], 2)
    """
    parts = []
    for start in range(0, len(numbers), AT_ONCE):
        some = numbers[start : start + AT_ONCE].astype("<u4").view(np.uint8)
        spread = np.unpackbits(some, bitorder="little").reshape(-1, 32)
        parts.append(np.packbits(spread[:, :bits], bitorder="little").tobytes())
    return b"".join(parts)


def unpack(data: bytes | memoryview, count: int, bits: int) -> np.ndarray:
    """The numbers of `pack`."""
    parts = [np.zeros(0, "<u4")]
    for start in range(0, count, AT_ONCE):
        some = min(AT_ONCE, count - start)
        part = np.frombuffer(data, np.uint8, packed_bytes(some, bits), start * bits // 8)
        spread = np.zeros((some, 32), np.uint8)
        spread[:, :bits] = np.unpackbits(part, count=some * bits, bitorder="little").reshape(some, bits)
        parts.append(np.packbits(spread, bitorder="little").view("<u4"))
    return np.concatenate(parts)


def length(tree: Any) -> int:
    """Entries of all leaves."""
    return sum(leaf.size for leaf in jax.tree.leaves(tree))


def value_bits(tree: Any) -> int:
    """Bits of an entry, where all are made alike."""
    return 8 * max(jnp.dtype(leaf.dtype).itemsize for leaf in jax.tree.leaves(tree))


def place_bits(tree: Any) -> int:
    """Bits that tell one entry from the others."""
    return max(1, math.ceil(math.log2(max(2, length(tree)))))


def dtype(tree: Any) -> np.dtype:
    """The dtype of all leaves as one vector; theirs whether or not jax is in double precision here."""
    return functools.reduce(jnp.promote_types, (leaf.dtype for leaf in jax.tree.leaves(tree)))


def ravelled(tree: Any) -> np.ndarray:
    """All leaves as one vector on the host."""
    return np.concatenate([np.asarray(leaf).astype(dtype(tree)).ravel() for leaf in jax.tree.leaves(tree)])


def shaped(flat: np.ndarray, like: Any) -> Any:
    """A vector as a tree again."""
    leaves, structure = jax.tree.flatten(like)
    parts = zip(np.split(flat, np.cumsum([leaf.size for leaf in leaves])[:-1]), leaves, strict=True)
    return jax.tree.unflatten(structure, [part.reshape(leaf.shape).astype(leaf.dtype) for part, leaf in parts])


@functools.partial(jax.jit, static_argnums=(1, 2))
def drawn(key: Key, length: int, kept: int) -> jax.Array:
    """Different places, at random."""
    return jax.random.choice(key, length, (kept,), replace=False)


def drawn_here(key: Key, length: int, kept: int) -> np.ndarray:
    """The same on the host."""
    return _drawn(np.asarray(jax.random.key_data(key)).tobytes(), jax.random.key_impl(key), length, kept)


@functools.lru_cache(maxsize=4)  # a sender encodes and decodes with one key
def _drawn(key: bytes, kind: Any, length: int, kept: int) -> np.ndarray:
    return np.asarray(
        drawn(jax.random.wrap_key_data(jnp.asarray(np.frombuffer(key, np.uint32)), impl=kind), length, kept)
    )
