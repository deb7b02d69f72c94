"""Random changes of a batch for training, on the device: `Problem(transform=…)` takes any function of (batch, key)."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

__all__ = ["random_crop", "random_flip"]


def random_flip(images: jax.Array, key: Any) -> jax.Array:
    """Every image of (samples, height, width, …) mirrored left to right, or not, by a coin of its own."""
    coins = jax.random.bernoulli(key, shape=(images.shape[0],) + (1,) * (images.ndim - 1))
    return jnp.where(coins, jnp.flip(images, axis=2), images)


def random_crop(images: jax.Array, key: Any, *, padding: int = 4) -> jax.Array:
    """Every image of (samples, height, width, …) shifted by up to `padding` rows and columns; zeros come in.

    >>> random_crop(jnp.ones((2, 8, 8, 3)), jax.random.key(0), padding=2).shape
    (2, 8, 8, 3)
    """
    around = [(padding, padding), (padding, padding)] + [(0, 0)] * (images.ndim - 3)
    starts = jax.random.randint(key, (images.shape[0], 2), 0, 2 * padding + 1)

    def one(image, start):
        begin = (start[0], start[1], *[0] * (image.ndim - 2))
        return lax.dynamic_slice(jnp.pad(image, around), begin, image.shape)

    return jax.vmap(one)(images, starts)
