"""What the theory says before a run: mixing, the paper's step sizes, and which step sizes are stable.

Stability is ours, not the paper's. On quadratics with one curvature a the agents' deviations from their mean split into
the eigenmodes of W. In mode μ one PISCO round is linear, (x, y) ← M·(x, y), with q = 1 − a·η_l and
S = (1 − q^(T_o+1))/a, the sum of the round's steps:

    x⁺ = μ(x − η_c·S·y)
    y⁺ = μ(y − a·x + a·x⁺)                      two exchanges
    y⁺ = (μ − 1)·q^T_o·y + y − a·x + a·x⁺        one exchange

A server round sets every mode but the mean to zero, so with probability p of reaching the server the deviations shrink
in mean square iff (1 − p)·ρ(M)² < 1. The mean itself takes gradient steps: |1 − η_c·a·S| < 1.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.flatten_util import ravel_pytree

from pisco.errors import InputError, check_number
from pisco.networks.network import Network
from pisco.networks.spectral import eigenvalue_extremes
from pisco.problems.problem import Problem

CURVATURES = 24
"""The curvatures at which stability is tested, evenly up to L: the worst mode need not be the steepest."""


class StepSizes(NamedTuple):
    """η_c and η_l."""

    comm_lr: float
    local_lr: float


def theorem_1(
    *, smoothness: float, mixing_rate: float, server_prob: float, local_steps: int, alpha: float = 1.0
) -> StepSizes:
    """The largest step sizes of the paper's Theorem 1: η_c = α√(1+p)·λ_p, η_l = √(1+p)·λ_p/(360·α·L·(T_o+1)).

    >>> steps = theorem_1(smoothness=1.0, mixing_rate=1.0, server_prob=1.0, local_steps=0)
    >>> round(steps.comm_lr, 3), round(steps.local_lr * 360, 3)
    (1.414, 1.414)
    """
    check_number("alpha", alpha, low=0.1)
    check_number("smoothness", smoothness, low=0, open_low=True)
    expected = mixing_rate + server_prob * (1 - mixing_rate)
    scale = math.sqrt(1 + server_prob) * expected
    return StepSizes(alpha * scale, scale / (360 * alpha * smoothness * (local_steps + 1)))


def corollary_1(
    *,
    smoothness: float,
    noise: float,
    gap: float,
    agents: int,
    batch_size: int,
    rounds: int,
    mixing_rate: float,
    server_prob: float,
    local_steps: int,
    alpha: float = 1.0,
) -> StepSizes:
    """The paper's Corollary 1 for mini-batches: η_c = α√(1+p)·λ_p and

        η_l = min{√(n·α²·b·T_o·f̃/(η_c²·L·σ²·K)), ∛(η_c·b·f̃/(α·L²·σ²·K))}/(α·T_o)

    with σ² the variance of one sample's gradient (`noise`) and f̃ = f(x⁰) − f* (`gap`).
    """
    check_number("local_steps", local_steps, low=1, integer=True)
    for name, value in (("noise", noise), ("gap", gap), ("smoothness", smoothness)):
        check_number(name, value, low=0, open_low=True)
    comm = theorem_1(
        smoothness=smoothness,
        mixing_rate=mixing_rate,
        server_prob=server_prob,
        local_steps=local_steps,
        alpha=alpha,
    ).comm_lr
    rate = agents * alpha**2 * batch_size * local_steps * gap / (comm**2 * smoothness * noise * rounds)
    drift = comm * batch_size * gap / (alpha * smoothness**2 * noise * rounds)
    return StepSizes(comm, min(math.sqrt(rate), drift ** (1 / 3)) / (alpha * local_steps))


def round_matrix(
    mode: float, curvature: float, *, local_lr: float, comm_lr: float, local_steps: int, one_exchange: bool
) -> np.ndarray:
    """M: how one PISCO round maps (x, y) in the mode with eigenvalue `mode`."""
    shrink = 1 - curvature * local_lr
    steps = sum(shrink**t for t in range(local_steps + 1)) * local_lr
    x = np.array([mode, -mode * comm_lr * steps])
    fresh = np.array([-curvature, 1.0]) + curvature * x
    if one_exchange:
        return np.stack([x, fresh + np.array([0.0, (mode - 1) * shrink**local_steps])])
    return np.stack([x, mode * fresh])


def growth(
    modes: Iterable[float],
    smoothness: float,
    *,
    local_lr: float,
    comm_lr: float = 1.0,
    local_steps: int,
    server_prob: float = 0.0,
    one_exchange: bool = False,
) -> float:
    """The factor by which the worst squared deviation grows a round, in the mean over coins; below 1 is stable.

    >>> growth([-0.826], 1.0, local_lr=0.03, local_steps=0) > 1 > growth([-0.826], 1.0, local_lr=0.02, local_steps=0)
    True
    """
    worst = 0.0
    for curvature in smoothness * np.arange(1, CURVATURES + 1) / CURVATURES:
        options = {"local_lr": local_lr, "comm_lr": comm_lr, "local_steps": local_steps}
        steps = (1 - (1 - curvature * local_lr) ** (local_steps + 1)) / curvature
        worst = max(worst, (1 - comm_lr * curvature * steps) ** 2)
        for mode in modes:
            matrix = round_matrix(mode, curvature, one_exchange=one_exchange, **options)
            radius = np.abs(np.linalg.eigvals(matrix)).max()
            worst = max(worst, (1 - server_prob) * radius**2)
    return float(worst)


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
        return (
            growth(
                modes,
                smoothness,
                local_lr=step,
                comm_lr=comm_lr,
                local_steps=local_steps,
                server_prob=server_prob,
                one_exchange=one_exchange,
            )
            < 1
        )

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


def network_modes(network: Network) -> tuple[float, float]:
    """The eigenvalues of W that matter: the smallest and the second largest (W must be symmetric)."""
    if abs(network.weights - network.weights.T).max() > 1e-12:
        raise InputError("the weights are not symmetric, and stability is known for symmetric ones only")
    return eigenvalue_extremes(network.weights)


def smoothness(problem: Problem, *, params: Any = None, iterations: int = 30, seed: int = 0) -> float:
    """L at x⁰ (or at `params`): the largest curvature of f there, by power iteration on Hessian products.

    >>> import pisco
    >>> round(smoothness(pisco.problems.quadratic([[[1.0]], [[3.0]]], [[0.0], [0.0]])), 4)
    2.0
    """
    key = jax.random.key(seed)
    params = problem.init(key) if params is None else params
    flat, unflatten = ravel_pytree(params)

    @jax.jit
    def product(direction):
        gradient = jax.grad(lambda x: problem.objective(unflatten(x)))
        return jax.jvp(gradient, (flat,), (direction,))[1]

    direction = jax.random.normal(key, flat.shape, flat.dtype)
    value = 0.0
    for _ in range(iterations):
        direction = direction / jnp.maximum(jnp.linalg.norm(direction), 1e-30)
        direction, before = product(direction), value
        value = float(jnp.linalg.norm(direction))
        if abs(value - before) <= 1e-4 * value:
            break
    return value
