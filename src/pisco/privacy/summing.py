"""Masked sums in simulation: the server adds up fixed-point numbers, as it does where it sees no vector.

A number x is the integer nearest to 2^28·x where it has 32 bits or fewer, and to 2^40·x in float64. Masks cancel in a
sum of such integers, so a simulation needs none: the mean is that of a federation with `server_sum = "masked"`
(`pisco.federation.runtime.fixed`), to the bit. A number larger than 2^16 (2^20) over the reporters is refused there;
here the mean is NaN, as of any numbers out of range.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from pisco.errors import InputError

if TYPE_CHECKING:
    from pisco.networks.placement import Placement


class WordSize(NamedTuple):
    """How a number travels: modulo 2^(8·size), as a multiple of 2^-bits, in sums of at most 2^sum_bits.

    The bits that are left, except the sign, are three: a sum that uses them is none.
    """

    size: int
    bits: int
    sum_bits: int


SHORT, WIDE = WordSize(6, 28, 16), WordSize(8, 40, 20)
FEWEST = 3
"""Members in a sum: of two, either would know the other's vector from it, and so would a server that has one's help."""


def word_of(dtype: Any) -> WordSize:
    """The word for numbers of a dtype.

    >>> word_of("float32").size, word_of("float64").size
    (6, 8)
    """
    return WIDE if np.dtype(dtype).itemsize > 4 else SHORT


def masked_bytes(tree: Any) -> int:
    """Bytes of all numbers of a tree as words."""
    return sum(math.prod(leaf.shape) * word_of(leaf.dtype).size for leaf in jax.tree.leaves(tree))


def fixed_mean(sent: Any, reporters: Any, divisor: Any, here: Placement) -> Any:
    """The sum of fixed-point numbers of so many reporters over the divisor, with an agent axis of length one."""
    with jax.enable_x64(True):  # 45 or 61 bits, whatever the precision of the model

        def words(x: jax.Array) -> tuple[jax.Array, jax.Array]:
            wide, word = x.astype(jnp.float64), word_of(x.dtype)
            fits = jnp.abs(wide) * reporters <= 2.0**word.sum_bits
            told = jnp.where(fits, 0.0, jnp.nan).sum(axis=tuple(range(1, x.ndim)), keepdims=True)
            return jnp.where(fits, jnp.rint(wide * 2.0**word.bits), 0.0).astype(jnp.int64), told

        def mean(x: jax.Array, total: jax.Array, trouble: jax.Array) -> jax.Array:
            # A whole array, behind a barrier: one number XLA would turn into a factor, which rounds otherwise.
            units = lax.optimization_barrier(jnp.full(total.shape, divisor * 2.0 ** word_of(x.dtype).bits, jnp.float64))
            return (total.astype(jnp.float64) / units + trouble).astype(x.dtype)

        leaves, structure = jax.tree.flatten(sent)
        totals = here.total([words(x) for x in leaves])
        return jax.tree.unflatten(structure, [mean(x, *total) for x, total in zip(leaves, totals, strict=True)])


def refuse_masks(guard: Any) -> None:
    """Refuse a guard at a server that sees only masked sums."""
    if guard is not None and guard.guard_server:
        raise InputError(
            f"guard = {guard!r} judges every member's vector, and a server that sees only masked sums has none; set "
            "network.guard_server = false, which guards gossip alone"
        )


def check(network: Any) -> None:
    """Refuse a network with an exchange whose sum would tell a member's vector."""
    refuse_masks(network.guard)
    if network.splits_rounds:
        raise InputError(
            'server_sum = "masked" needs rounds that reach the server for all agents or for none, since one alone '
            "could not hide; use server_prob or server_every"
        )
    reporters = network.num_agents if network.sampling is None else int(sum(network.sampling.quotas))
    if reporters < FEWEST:
        raise InputError(
            f'server_sum = "masked" hides a vector among at least {FEWEST}, and {reporters} agents report in a server '
            "round; take more of them"
        )
