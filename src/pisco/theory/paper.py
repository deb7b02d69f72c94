"""What the paper's theory says before a run: step sizes and bounds.

Theorem 1 bounds the mean of ‖∇f(x̄)‖² over K rounds; Corollary 1 tunes its step for mini-batches, Corollary 2 is for
large and full ones. L is that of every agent's own f_i; the network enters through λ_p = λ_w + p(1 − λ_w) alone.
Constants in O(·) are taken as 1.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from pisco.errors import InputError, check_counts, check_number, check_positive
from pisco.networks.spectral import expected_mixing_rate
from pisco.theory.orders import large_batch_rounds

NO_MIXING = (
    "λ_p is 0: the graph is disconnected, or its weights do not mix, and the server is never reached, so nothing is "
    "guaranteed at any step size; use p > 0, a connected graph or other weights"
)


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
    check_positive(smoothness=smoothness)
    check_number("local_steps", local_steps, low=0, integer=True)
    scale = math.sqrt(1 + server_prob) * _mixing(mixing_rate, server_prob)
    return StepSizes(alpha * scale, scale / (360 * alpha * smoothness * (local_steps + 1)))


def _mixing(mixing_rate: float, server_prob: float) -> float:
    rate = expected_mixing_rate(mixing_rate, server_prob)
    if rate <= 1e-12:
        raise InputError(NO_MIXING)
    return rate


class Bound(NamedTuple):
    """Theorem 1's bound of the mean of ‖∇f(x̄)‖² over K rounds, term by term."""

    descent: float
    """f̃/(η·T_o·K), with η = η_c·η_l."""
    local_noise: float
    """L²·T_o²·η_l²·σ²/b."""
    shared_noise: float
    """L·η/n·σ²/b."""
    network_noise: float
    """(1−p)·L²·T_o²·η²/((1+p)²·λ_p⁴)·σ²/b."""
    start: float
    """E‖Y⁰ − Y⁰J‖²/(n·K) = (ζ² + (1 − 1/n)·σ²/b)/K: a mean over agents, so it does not fall with n."""
    broken: tuple[str, ...]
    """The theorem's conditions that do not hold, in words; with any of them the bound says nothing."""

    @property
    def total(self) -> float:
        """All terms."""
        return sum(self[:5])


def theorem_1_bound(
    *,
    smoothness: float,
    noise: float,
    gap: float,
    heterogeneity: float,
    agents: int,
    batch_size: int | None,
    rounds: int,
    mixing_rate: float,
    server_prob: float,
    local_steps: int,
    local_lr: float,
    comm_lr: float,
) -> Bound:
    """Theorem 1's bound at any step sizes, and which of its conditions they break.

    Args:
      smoothness: L of every agent's own f_i.
      noise: σ², the variance of one sample's gradient; counts as 0 with full batches.
      gap: f̃ = f(x⁰) − f*.
      heterogeneity: ζ², the mean of ‖∇f_i(x⁰) − ∇f(x⁰)‖².
      agents: n.
      batch_size: b, None for all samples.
      rounds: K.
      mixing_rate: λ_w.
      server_prob: p.
      local_steps: T_o, at least 1: the statement divides by it.
      local_lr: η_l.
      comm_lr: η_c.

    >>> facts = {"smoothness": 1.0, "mixing_rate": 0.3, "server_prob": 0.1, "local_steps": 1}
    >>> rest = {"noise": 1.0, "gap": 1.0, "heterogeneity": 1.0, "agents": 10, "batch_size": 1, "rounds": 10**6}
    >>> theorem_1_bound(**facts, **rest, **theorem_1(**facts)._asdict()).broken
    ()
    >>> theorem_1_bound(**facts, **rest, local_lr=0.1, comm_lr=1.0).broken
    ('η_l is 0.1, at most 0.000209 is allowed (√(1+p)·λ_p/(360·α·L·(T_o+1)), α = 2.58)',)
    """
    check_counts(local_steps=local_steps, agents=agents, rounds=rounds, batch_size=batch_size or 1)
    check_positive(smoothness=smoothness, local_lr=local_lr, comm_lr=comm_lr)
    rate = _mixing(mixing_rate, server_prob)
    scale = math.sqrt(1 + server_prob) * rate
    alpha = comm_lr / scale
    allowed = scale / (360 * alpha * smoothness * (local_steps + 1))
    broken = []
    if alpha < 0.1 * (1 - 1e-9):
        broken.append(f"α = η_c/(√(1+p)·λ_p) is {alpha:.3g}, at least 0.1 is needed")
    if local_lr > allowed * (1 + 1e-9):
        broken.append(
            f"η_l is {local_lr:.3g}, at most {allowed:.3g} is allowed (√(1+p)·λ_p/(360·α·L·(T_o+1)), α = {alpha:.3g})"
        )
    variance = noise / batch_size if batch_size else 0.0
    eta = comm_lr * local_lr
    drift = (smoothness * local_steps) ** 2
    return Bound(
        gap / (eta * local_steps * rounds),
        drift * local_lr**2 * variance,
        smoothness * eta / agents * variance,
        (1 - server_prob) * drift * eta**2 / ((1 + server_prob) ** 2 * rate**4) * variance,
        (heterogeneity + (1 - 1 / agents) * variance) / rounds,
        tuple(broken),
    )


class MiniBatch(NamedTuple):
    """Corollary 1's step sizes, and when it applies."""

    comm_lr: float
    local_lr: float
    allowed: float
    """The largest η_l that Theorem 1, which the corollary presupposes, allows."""
    rounds_needed: float
    """The K from which on η_l is allowed; with fewer rounds the corollary says nothing."""


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
) -> MiniBatch:
    """The paper's Corollary 1 for mini-batches: η_c = α√(1+p)·λ_p and

        η_l = min{√(n·α²·b·T_o·f̃/(η_c²·L·σ²·K)), ∛(η_c·b·f̃/(α·L²·σ²·K))}/(α·T_o)

    with σ² the variance of one sample's gradient (`noise`) and f̃ = f(x⁰) − f* (`gap`). It asks for K so large that this
    η_l is one of Theorem 1's, which on real problems is many millions: see `rounds_needed`.

    >>> facts = {"smoothness": 1.0, "noise": 1.0, "gap": 1.0, "agents": 10, "batch_size": 1, "local_steps": 1}
    >>> found = corollary_1(**facts, rounds=1000, mixing_rate=1.0, server_prob=0.0)
    >>> found.local_lr > found.allowed, f"{found.rounds_needed:.2g}"
    (True, '5.2e+06')
    """
    check_counts(local_steps=local_steps, agents=agents, rounds=rounds, batch_size=batch_size)
    check_positive(noise=noise, gap=gap, smoothness=smoothness)
    comm, allowed = theorem_1(
        smoothness=smoothness, mixing_rate=mixing_rate, server_prob=server_prob, local_steps=local_steps, alpha=alpha
    )
    # For K = 1; they fall like K^(−1/2) and K^(−1/3), so η_l is allowed once the first of them is.
    rate = math.sqrt(agents * alpha**2 * batch_size * local_steps * gap / (comm**2 * smoothness * noise))
    drift = (comm * batch_size * gap / (alpha * smoothness**2 * noise)) ** (1 / 3)
    shrunk = alpha * local_steps
    needed = min((rate / (shrunk * allowed)) ** 2, (drift / (shrunk * allowed)) ** 3)
    return MiniBatch(comm, min(rate / rounds**0.5, drift / rounds ** (1 / 3)) / shrunk, allowed, needed)


class LargeBatch(NamedTuple):
    """Corollary 2's rounds at Theorem 1's largest steps, and when it applies."""

    comm_lr: float
    local_lr: float
    rounds: float
    batch_needed: float
    """The b from which on it applies, σ²/ε²; 0 where gradients are exact."""


def corollary_2(
    *,
    smoothness: float,
    noise: float,
    epsilon: float,
    agents: int,
    batch_size: int | None,
    mixing_rate: float,
    server_prob: float,
    local_steps: int,
    alpha: float = 1.0,
) -> LargeBatch:
    """The paper's Corollary 2: L/((1+p)·λ_p²·ε²) + 1/ε² rounds, with batches of σ²/ε² or more.

    With all samples the second term is 1/(n·ε²). T_o does not occur: without noise local steps buy nothing in the
    bound.

    >>> facts = {"smoothness": 1.0, "noise": 0.0, "epsilon": 0.1, "agents": 10, "batch_size": None, "local_steps": 1}
    >>> [round(corollary_2(**facts, mixing_rate=rate, server_prob=0.0).rounds) for rate in (1.0, 0.1)]
    [110, 10010]
    """
    check_counts(agents=agents, batch_size=batch_size or 1)
    check_positive(epsilon=epsilon)
    steps = theorem_1(
        smoothness=smoothness, mixing_rate=mixing_rate, server_prob=server_prob, local_steps=local_steps, alpha=alpha
    )
    exact = batch_size is None or noise == 0
    rate = expected_mixing_rate(mixing_rate, server_prob)
    rounds = large_batch_rounds(smoothness, rate, server_prob, epsilon, agents if exact else 1)
    return LargeBatch(*steps, rounds, 0.0 if exact else noise / epsilon**2)


def network_dependency(mixing_rate: float, server_probs: Sequence[float] | np.ndarray) -> np.ndarray:
    """λ_p^-2 for every p: the factor by which the network slows the theory's rate; 1 at p = 1.

    >>> network_dependency(0.5, [0.0, 1.0]).tolist()
    [4.0, 1.0]
    """
    rates = np.array([expected_mixing_rate(mixing_rate, float(p)) for p in server_probs])
    with np.errstate(divide="ignore"):
        return rates**-2.0
