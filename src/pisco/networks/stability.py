"""Which step sizes are stable, mode by mode: ours, not the paper's.

On quadratics with one curvature a the agents' deviations from their mean split into the eigenmodes of W. In mode μ one
PISCO round is linear, (x, y) ← M·(x, y), with q = 1 − a·η_l and S = (1 − q^(T_o+1))/a, the sum of the round's steps:

    x⁺ = μ(x − η_c·S·y)
    y⁺ = μ(y − a·x + a·x⁺)                      two exchanges
    y⁺ = (μ − 1)·q^T_o·y + y − a·x + a·x⁺        one exchange

A server round sets every mode but the mean to zero, so with probability p of reaching the server the deviations shrink
in mean square iff (1 − p)·ρ(M)² < 1. The mean itself takes gradient steps: |1 − η_c·a·S| < 1.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

import numpy as np

from pisco.errors import InputError
from pisco.networks.spectral import eigenvalue_extremes

if TYPE_CHECKING:
    from pisco.networks.network import Network

CURVATURES = 24
"""The curvatures at which stability is tested, evenly up to L: the worst mode need not be the steepest."""


def round_matrix(
    mode: Any, curvature: Any, *, local_lr: float, comm_lr: float, local_steps: int, one_exchange: bool
) -> np.ndarray:
    """M: how one PISCO round maps (x, y) in the mode with eigenvalue `mode`; modes and curvatures may be arrays."""
    mode, curvature = np.broadcast_arrays(np.asarray(mode, float), np.asarray(curvature, float))
    shrink = 1 - curvature * local_lr
    steps = sum((shrink**t for t in range(local_steps + 1)), np.zeros_like(shrink)) * local_lr
    x = np.stack([mode, -mode * comm_lr * steps], axis=-1)
    one = np.ones_like(mode)
    fresh = np.stack([-curvature, one], axis=-1) + curvature[..., None] * x
    if one_exchange:
        y = fresh + np.stack([0 * one, (mode - 1) * shrink**local_steps], axis=-1)
    else:
        y = mode[..., None] * fresh
    return np.stack([x, y], axis=-2)


def _radius(matrices: np.ndarray) -> np.ndarray:
    """The spectral radius of 2×2 matrices, in closed form."""
    half = (matrices[..., 0, 0] + matrices[..., 1, 1]) / 2
    product = matrices[..., 0, 0] * matrices[..., 1, 1] - matrices[..., 0, 1] * matrices[..., 1, 0]
    inside = half**2 - product
    real = np.abs(half) + np.sqrt(np.maximum(inside, 0))
    return np.where(inside < 0, np.sqrt(np.maximum(product, 0)), real)


def growth(
    modes: Iterable[float],
    smoothness: float,
    *,
    local_lr: float,
    comm_lr: float = 1.0,
    local_steps: int,
    server_prob: float = 0.0,
    one_exchange: bool = False,
    condition: float | None = None,
) -> float:
    """The factor by which the worst squared deviation grows a round, in the mean over coins; below 1 is stable.

    Every curvature up to L counts, or with `condition` those from L/condition on: then the factor tells not only
    whether a quadratic of that condition number converges but how fast.

    >>> growth([-0.826], 1.0, local_lr=0.03, local_steps=0) > 1 > growth([-0.826], 1.0, local_lr=0.02, local_steps=0)
    True
    """
    chosen = np.asarray(list(modes), float)
    curvatures = smoothness * np.arange(1, CURVATURES + 1) / CURVATURES
    if condition is not None:
        curvatures = np.geomspace(smoothness / condition, smoothness, CURVATURES)
    with np.errstate(over="ignore", invalid="ignore"):
        steps = (1 - (1 - curvatures * local_lr) ** (local_steps + 1)) / curvatures
        worst = float(np.max((1 - comm_lr * curvatures * steps) ** 2))
        if chosen.size:
            matrices = round_matrix(
                chosen[:, None],
                curvatures,
                local_lr=local_lr,
                comm_lr=comm_lr,
                local_steps=local_steps,
                one_exchange=one_exchange,
            )
            worst = max(worst, (1 - server_prob) * float(np.max(_radius(matrices) ** 2)))
    return worst if np.isfinite(worst) else np.inf


def largest_stable_step(
    modes: Iterable[float],
    smoothness: float,
    *,
    comm_lr: float = 1.0,
    local_steps: int,
    server_prob: float = 0.0,
    one_exchange: bool = False,
) -> float:
    """The η_l up to which every smaller step is stable: scanned upwards from 10⁻⁶/L, then bisected.

    >>> round(largest_stable_step([-0.826238], 1.0, local_steps=0), 4)      # (1+μ)²/(2μ²)
    0.0221
    """
    modes = [mode for mode in modes if abs(mode) < 1 - 1e-12]

    def stable(step: float) -> bool:
        found = growth(
            modes,
            smoothness,
            local_lr=step,
            comm_lr=comm_lr,
            local_steps=local_steps,
            server_prob=server_prob,
            one_exchange=one_exchange,
        )
        return found < 1

    low = 1e-6 / smoothness
    if not stable(low):
        return 0.0
    while stable(low * 1.1) and low < 1e3 / smoothness:
        low *= 1.1
    high = low * 1.1
    for _ in range(20):
        middle = (low + high) / 2
        low, high = (middle, high) if stable(middle) else (low, middle)
    return low


def best_step(
    modes: Iterable[float],
    smoothness: float,
    *,
    condition: float,
    comm_lr: float = 1.0,
    local_steps: int,
    server_prob: float = 0.0,
    one_exchange: bool = False,
) -> tuple[float, float]:
    """(η_l, growth) of the step that shrinks the worst mode fastest on quadratics of this condition number.

    >>> step, shrink = best_step([0.0], 1.0, condition=10, local_steps=0)      # gradient descent: 2/(L + L/10)
    >>> round(step, 2), round(shrink, 2)
    (1.82, 0.67)
    """
    modes = list(modes)
    fixed: dict[str, Any] = {"comm_lr": comm_lr, "local_steps": local_steps, "server_prob": server_prob}

    def at(step: float) -> float:
        return growth(
            modes, smoothness, local_lr=step, one_exchange=one_exchange, condition=condition, **fixed
        )

    steps = np.geomspace(1e-4, 3, 60) / smoothness
    found = [at(step) for step in steps]
    centre = int(np.argmin(found))
    fine = np.geomspace(steps[max(centre - 1, 0)], steps[min(centre + 1, len(steps) - 1)], 21)
    values = [at(step) for step in fine]
    return float(fine[np.argmin(values)]), float(np.min(values))


def network_modes(network: Network) -> tuple[float, float]:
    """The eigenvalues of W that matter: the smallest and the second largest (W must be symmetric)."""
    if abs(network.weights - network.weights.T).max() > 1e-12:
        raise InputError("the weights are not symmetric, and stability is known for symmetric ones only")
    return eigenvalue_extremes(network.weights)
