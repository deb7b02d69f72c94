"""What the paper's theory says before a run: step sizes, communication complexities, the network dependency.

Theorem 1 and Corollary 1 give step sizes; the second table counts server and gossip rounds to ‖∇f‖² ≤ ε² for every
method there; the network enters through λ_p = λ_w + p(1 − λ_w) alone.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from pisco.errors import check_number
from pisco.networks.spectral import expected_mixing_rate


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
    scale = math.sqrt(1 + server_prob) * expected_mixing_rate(mixing_rate, server_prob)
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
        smoothness=smoothness, mixing_rate=mixing_rate, server_prob=server_prob, local_steps=local_steps, alpha=alpha
    ).comm_lr
    rate = agents * alpha**2 * batch_size * local_steps * gap / (comm**2 * smoothness * noise * rounds)
    drift = comm * batch_size * gap / (alpha * smoothness**2 * noise * rounds)
    return StepSizes(comm, min(math.sqrt(rate), drift ** (1 / 3)) / (alpha * local_steps))


class Setup(NamedTuple):
    """What the complexities depend on; constants in O(·) and L are taken as 1, as in the paper's table."""

    agents: int
    local_steps: int
    mixing_rate: float
    sigma: float = 1.0
    epsilon: float = 0.05**0.5
    """‖∇f‖² ≤ ε² is the a9a training target."""


def complexities(s: Setup, p: float) -> dict[str, tuple[float, float]]:
    """(server rounds, gossip rounds) of every method of the paper's second table; orders, not predictions.

    >>> server, gossip = complexities(Setup(10, 1, 0.3), p=0.1)["pisco"]
    >>> round(server / (server + gossip), 9)
    0.1
    """
    n, steps, rate, sigma, e = s.agents, s.local_steps, s.mixing_rate, s.sigma, s.epsilon
    check_number("local_steps", steps, low=1, integer=True)
    check_number("mixing_rate", rate, low=0, high=1)
    check_number("epsilon", e, low=0, open_low=True)

    def over(value: float) -> float:
        return 1 / value if value > 0 else math.inf  # gossip alone cannot agree when λ_w = 0

    noise = sigma**2 / (n * steps * e**4)
    ours = noise + sigma * over((rate + p) ** 2 * e**3) + 1 / (n * e**2)
    lsgt = sigma**4 * over(n * steps * rate**8 * e**4) + over(n * steps ** (1 / 3) * rate ** (8 / 3) * e ** (4 / 3))
    return {
        "scaffold": (noise + 1 / e**2, 0.0),
        "lsgt": (0.0, lsgt + 1 / (n * steps * e**2)),
        "periodical-gt": (0.0, noise + sigma * over(rate**2 * e**3) + over(rate**2 * e**2)),
        "kgt": (0.0, noise + sigma * over(rate**2 * steps**0.5 * e**3) + over(rate**2 * e**2)),
        "pisco": (p * ours if p else 0.0, (1 - p) * ours if p < 1 else 0.0),
    }


def network_dependency(mixing_rate: float, server_probs: Sequence[float] | np.ndarray) -> np.ndarray:
    """λ_p^-2 for every p: the factor by which the network slows the theory's rate; 1 at p = 1.

    >>> network_dependency(0.5, [0.0, 1.0]).tolist()
    [4.0, 1.0]
    """
    rates = np.array([expected_mixing_rate(mixing_rate, float(p)) for p in server_probs])
    with np.errstate(divide="ignore"):
        return rates**-2.0
