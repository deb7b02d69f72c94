"""The one convolution of the paper's network, written by hand: a 3×3 kernel as patches and a matrix product."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax


@jax.custom_vjp
def convolve(images: jax.Array, kernel: jax.Array) -> jax.Array:
    """A 3×3 convolution with zero padding, images (batch, height, width, channels), as patches and a matrix product.

    Every agent has its own kernels, and a native convolution is slow for that: batched over agents it becomes a
    grouped one on a GPU, and inside a loop XLA's CPU backend falls back to a naive one. Matrix products do neither.
    `pisco.convolutions`, for any network, reaches 0.50 of the joint batch on an H200 here, this one 0.72.
    """
    return _forward(images, kernel)[0]


def _forward(images: jax.Array, kernel: jax.Array) -> tuple[jax.Array, tuple[jax.Array, jax.Array]]:
    patches = _patches(images)
    return _product(patches, kernel), (patches, kernel)


def _backward(kept: tuple[jax.Array, jax.Array], slope: jax.Array) -> tuple[jax.Array, jax.Array]:
    """Towards the images it is a convolution with the turned kernel; the patches' own gradient would scatter."""
    patches, kernel = kept
    to_images = _product(_patches(slope), kernel[::-1, ::-1].swapaxes(2, 3))
    to_kernel = patches.reshape(-1, patches.shape[-1]).T @ slope.reshape(-1, slope.shape[-1])
    return to_images, to_kernel.reshape(kernel.shape)


convolve.defvjp(_forward, _backward)


def _patches(images: jax.Array) -> jax.Array:
    """The nine neighbours' channels of every pixel, (batch, height, width, 9·channels).

    Barriers: what feeds the patches, activations and dropout, would otherwise be computed nine times over.
    """
    padded = lax.optimization_barrier(jnp.pad(images, ((0, 0), (1, 1), (1, 1), (0, 0))))
    # Whichever is quicker: on a GPU, a gather by 1.1 to 1.3 times; on a CPU, copies by 1.6.
    return lax.optimization_barrier(lax.platform_dependent(padded, cpu=_copied, default=_gathered))


def _copied(padded: jax.Array) -> jax.Array:
    height, width = padded.shape[1] - 2, padded.shape[2] - 2
    shifts = [padded[:, i : i + height, j : j + width, :] for i in range(3) for j in range(3)]
    return jnp.concatenate(shifts, axis=-1)


def _gathered(padded: jax.Array) -> jax.Array:
    batch, height, width, channels = (padded.shape[0], padded.shape[1] - 2, padded.shape[2] - 2, padded.shape[3])
    corner = np.arange(height)[:, None] * (width + 2) + np.arange(width)
    around = np.arange(3)[:, None] * (width + 2) + np.arange(3)
    pixels = (corner[..., None] + around.reshape(-1)).reshape(-1)
    gathered = padded.reshape(batch, -1, channels).at[:, pixels].get(mode="promise_in_bounds")
    return gathered.reshape(batch, height, width, 9 * channels)


def _product(patches: jax.Array, kernel: jax.Array) -> jax.Array:
    flat = patches.reshape(-1, patches.shape[-1]) @ kernel.reshape(patches.shape[-1], -1)
    return flat.reshape(*patches.shape[:-1], -1)
