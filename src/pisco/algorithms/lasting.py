"""How much of a vector is the same from round to round, and how much is noise: for corrections that carry both."""

from __future__ import annotations

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from pisco.tree import zeros_like
from pisco.types import Params

MEMORY = 0.9
"""μ: about 1/(1 − μ) rounds are looked back on."""


class Lasting(NamedTuple):
    """Running means of a vector and of its square, leaf by leaf, and μᵏ, what is missing to their weights."""

    mean: Params
    square: Any
    missing: jax.Array

    @classmethod
    def start(cls, vector: Params) -> Lasting:
        """Before anything was seen; leaves lead with the agents."""
        agents = jax.tree.leaves(vector)[0].shape[:1]
        squares = jax.tree.map(lambda x: jnp.zeros(agents, x.dtype), vector)
        return cls(zeros_like(vector), squares, jnp.ones(agents))

    def seen(self, vector: Params) -> Lasting:
        """After one more round."""
        mean = jax.tree.map(lambda old, x: MEMORY * old + (1 - MEMORY) * x, self.mean, vector)
        square = jax.tree.map(lambda old, x: MEMORY * old + (1 - MEMORY) * _squared(x), self.square, vector)
        return Lasting(mean, square, MEMORY * self.missing)

    def part(self, vector: Params) -> Params:
        """What lasts of the vector: every leaf times r = (‖mean‖²/mean square − ν)/(1 − ν), cut to [0, 1].

        ν is the ratio that noise without any mean would have. A vector that stays as it is has r = 1; in the first two
        rounds nothing is known and r = 0.

        >>> import jax.numpy as jnp
        >>> known = Lasting.start(jnp.ones((2, 3)))
        >>> for sign in (1, -1, 1, -1, 1, -1, 1, -1):     # the first agent's stays, the second's turns round
        ...     known = known.seen(jnp.ones((2, 3)) * jnp.array([[1.0], [sign]]))
        >>> known.part(jnp.ones((2, 3)))[:, 0].round(2).tolist()
        [1.0, 0.0]
        """
        weight = jnp.maximum(1 - self.missing, 1e-6)
        noise = (1 - MEMORY) / (1 + MEMORY) * (1 + self.missing) / weight

        def shrunk(x: jax.Array, mean: jax.Array, square: jax.Array) -> jax.Array:
            # The product, not the square alone: less than tiny is zero to XLA, and 0/0 for who has been alone so far.
            ratio = _squared(mean) / jnp.maximum(weight * square, jnp.finfo(x.dtype).tiny)
            share = jnp.where(noise < 0.99, jnp.clip((ratio - noise) / (1 - noise), 0, 1), 0)
            return x * share.astype(x.dtype).reshape(-1, *[1] * (x.ndim - 1))

        return jax.tree.map(shrunk, vector, self.mean, self.square)


def _squared(x: jax.Array) -> jax.Array:
    return jnp.sum(x * x, axis=tuple(range(1, x.ndim)))
