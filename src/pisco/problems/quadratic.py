"""Quadratics: the problem on which every algorithm is checkable to rounding."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from pisco.errors import InputError
from pisco.problems.problem import Problem


def quadratic(hessians: Any, minimizers: Any, *, init: Any = None) -> Problem:
    """fᵢ(x) = ½(x − bᵢ)ᵀAᵢ(x − bᵢ).

    Args:
      hessians: Aᵢ, shape (agents, d, d); or (agents, samples, d, d) for stochastic gradients.
      minimizers: bᵢ, shape (agents, d); or (agents, samples, d).
      init: x⁰, zeros unless given.

    >>> problem = quadratic([[[2.0]], [[2.0]]], [[0.0], [1.0]])
    >>> float(problem.objective(jnp.array([0.5])))
    0.25
    """
    try:
        a, b = np.asarray(hessians, dtype=float), np.asarray(minimizers, dtype=float)
    except (TypeError, ValueError):
        raise InputError("hessians and minimizers hold something else than numbers; give arrays of numbers") from None
    if a.ndim == 3 and b.ndim == 2:
        a, b = a[:, None], b[:, None]
    if a.ndim != 4 or b.ndim != 3 or a.shape[:3] != b.shape or a.shape[2] != a.shape[3]:
        raise InputError(
            f"hessians have shape {np.shape(hessians)} and minimizers {np.shape(minimizers)}, "
            "expected (agents, d, d) and (agents, d)"
        )
    start = jnp.zeros(b.shape[2:]) if init is None else jnp.asarray(init, jnp.zeros(()).dtype)
    if start.shape != b.shape[2:]:
        raise InputError(f"init has shape {start.shape}, expected {b.shape[2:]}")
    return Problem(_loss, start, {"hessian": a, "minimizer": b}, name="quadratic")


def _loss(params: jax.Array, batch: Any, key: Any) -> jax.Array:
    away = params - batch["minimizer"].astype(params.dtype)
    return 0.5 * jnp.einsum("bi,bij,bj->b", away, batch["hessian"].astype(params.dtype), away)
