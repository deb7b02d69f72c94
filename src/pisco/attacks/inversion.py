"""Gradient inversion: samples whose gradient is the one that was seen.

After L. Zhu, Z. Liu, S. Han, "Deep leakage from gradients", 2019: minimise ‖∇ℓ(a, y) − g‖² over the features a. The
labels are given to the attacker, who can read them off the last layer's gradient or know them from the partition.
"""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from pisco.attacks.observed import Observed, sample_gradient
from pisco.errors import InputError
from pisco.problems.problem import Problem
from pisco.report.panels import Panel
from pisco.report.picture import draw
from pisco.tree import squared_norm
from pisco.types import Params

RECOVERED = 0.1
"""A sample is recovered when it is as near, in relation to its norm."""


class Inversion(NamedTuple):
    """What was found: features in the order of the true ones, and how far off each is in relation to its norm."""

    true: np.ndarray
    found: np.ndarray
    errors: np.ndarray

    @property
    def recovered(self) -> int:
        """How many samples were found."""
        return int((self.errors < RECOVERED).sum())


def invert(
    problem: Problem,
    params: Params,
    gradient: Params,
    labels: Any,
    shape: tuple[int, ...],
    *,
    limits: tuple[float, float] = (0.0, 1.0),
    clip: float | None = None,
    steps: int,
    seed: int = 0,
) -> np.ndarray:
    """Features within limits, as many as labels, whose mean gradient is nearest to the given one."""
    from scipy.optimize import minimize

    scale = 1 / float(squared_norm(gradient))

    @jax.jit
    def miss(flat: jax.Array) -> tuple[jax.Array, jax.Array]:
        def apart(flat: jax.Array) -> jax.Array:
            batch = {"features": flat.reshape(shape), "labels": labels}
            found = _mean_gradient(problem, params, batch, clip)
            return scale * squared_norm(jax.tree.map(jnp.subtract, found, gradient))

        return jax.value_and_grad(apart)(flat)

    def both(flat: np.ndarray) -> tuple[float, np.ndarray]:
        value, slope = miss(jnp.asarray(flat))
        return float(value), np.asarray(slope, np.float64)

    first = np.random.default_rng(seed).uniform(*limits, int(np.prod(shape)))
    options: Any = {"maxiter": steps, "maxfun": 2 * steps, "maxcor": 30, "ftol": 0.0, "gtol": 1e-10}
    found = minimize(both, first, jac=True, method="L-BFGS-B", bounds=[limits] * first.size, options=options)
    return found.x.reshape(shape)


def attack(seen: Observed, *, steps: int = 500) -> Inversion:
    """Invert the gradient that was seen, and compare with the samples that it was made of."""
    batch = seen.samples(seen.rows)
    true = _floats(batch["features"])
    every = _floats(seen.problem.data["features"])  # how features are coded is no secret
    limits = (float(every.min()), float(every.max()))
    given: Any = {"limits": limits, "clip": seen.clip, "steps": steps}
    found = invert(seen.problem, seen.start, seen.gradient, batch["labels"], true.shape, **given)
    left, order = list(range(len(true))), []
    for one in true.reshape(len(true), -1):  # the nearest of those not taken yet
        near = min(left, key=lambda at: float(np.linalg.norm(found[at].ravel() - one)))
        left.remove(near)
        order.append(near)
    found = found[order]
    norms = np.linalg.norm(true.reshape(len(true), -1), axis=1)
    apart = np.linalg.norm((found - true).reshape(len(true), -1), axis=1)
    return Inversion(true, found, apart / np.maximum(norms, 1e-12))


def draw_found(found: Inversion | None, path: Path) -> None:
    """A picture of square images: the true ones above, those found below."""
    side = 0 if found is None else math.isqrt(found.true[0].size)
    if found is None or side * side != found.true[0].size or side < 4:
        raise InputError("there are no square images to draw; leave out --figure")
    rows = [
        [Panel(title if at == 0 else "", image=np.reshape(image, (side, side))) for at, image in enumerate(images[:8])]
        for title, images in (("sample", found.true), ("found", found.found))
    ]
    draw(rows, path, size=(1.2, 1.3))


def _mean_gradient(problem: Problem, params: Params, batch: Any, clip: float | None) -> Params:
    """The mean gradient of a batch, its samples' clipped."""
    if clip is None or problem.privacy is None:
        return jax.grad(problem.batch_loss)(params, batch)
    found = jax.vmap(lambda sample: sample_gradient(problem, params, sample, clip))(batch)
    return jax.tree.map(lambda leaf: leaf.mean(axis=0), found)


def _floats(features: Any) -> np.ndarray:
    """Features as a loss sees them: bytes are shares of 255."""
    host = np.asarray(features)
    return host / 255.0 if host.dtype == np.uint8 else host.astype(np.float64)
