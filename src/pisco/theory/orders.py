"""How many rounds the bounds ask for: the paper's second table, method by method.

Server and gossip rounds to ‖∇f‖² ≤ ε²; orders, to compare methods and not to read off rounds.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np

from pisco.errors import check_number
from pisco.networks.spectral import expected_mixing_rate


class Setup(NamedTuple):
    """What the complexities depend on; constants in O(·) and L are taken as 1, as in the paper's table."""

    agents: int
    local_steps: int
    mixing_rate: float
    sigma: float = 1.0
    """The standard deviation of an agent's gradient: that of one sample's over √b; 0 with full batches."""
    epsilon: float = 0.05**0.5
    """‖∇f‖² ≤ ε² is the a9a training target."""

    @property
    def corollary(self) -> int:
        """Which one holds: 1 for mini-batches, 2 where b is at least σ²/ε² for single samples' σ, or all samples."""
        return 1 if self.sigma > self.epsilon else 2


def complexities(s: Setup, p: float) -> dict[str, tuple[float, float]]:
    """(server rounds, gossip rounds) of every method of the paper's second table; orders, not predictions.

    The table is for mini-batches. PISCO's row there loses its network term as σ goes to 0, because Corollary 1 is then
    asked for more than it says: from σ = ε downwards its row is Corollary 2's. What cannot be reached is infinite.

    >>> server, gossip = complexities(Setup(10, 1, 0.3), p=0.1)["pisco"]
    >>> round(server / (server + gossip), 9)
    0.1
    >>> [round(sum(complexities(Setup(10, 1, rate, sigma=0.0), p=0.0)["pisco"])) for rate in (1.0, 0.1)]
    [22, 2002]
    """
    n, steps, rate, sigma, e = s.agents, s.local_steps, s.mixing_rate, s.sigma, s.epsilon
    check_number("agents", n, low=1, integer=True)
    check_number("local_steps", steps, low=1, integer=True)
    check_number("mixing_rate", rate, low=0, high=1)
    check_number("p", p, low=0, high=1)
    check_number("epsilon", e, low=0, open_low=True)
    check_number("sigma", sigma, low=0)

    def noisy(factor: float, value: float) -> float:
        return factor * _over(value) if factor else 0.0

    noise = sigma**2 / (n * steps * e**4)
    if s.corollary == 1:
        ours = noise + noisy(sigma, (rate + p) ** 2 * e**3) + 1 / (n * e**2)
    else:
        ours = large_batch_rounds(1.0, expected_mixing_rate(rate, p), p, e, 1 if sigma else n)
    lsgt = noisy(sigma**4, n * steps * rate**8 * e**4) + _over(n * steps ** (1 / 3) * rate ** (8 / 3) * e ** (4 / 3))
    return {
        "scaffold": (noise + 1 / e**2, 0.0),
        "lsgt": (0.0, lsgt + 1 / (n * steps * e**2)),
        "periodical-gt": (0.0, noise + noisy(sigma, rate**2 * e**3) + _over(rate**2 * e**2)),
        "kgt": (0.0, noise + noisy(sigma, rate**2 * steps**0.5 * e**3) + _over(rate**2 * e**2)),
        "pisco": (p * ours if p else 0.0, (1 - p) * ours if p < 1 else 0.0),
    }


def where_below(s: Setup, other: str, *, p: float) -> list[tuple[float, float]]:
    """The ranges of σ in which PISCO's bound at this p is below another method's; from 0.001 to 1000, else open-ended.

    >>> [(round(low, 2), high) for low, high in where_below(Setup(10, 1, 0.318), "lsgt", p=0.0)]
    [(0.15, inf)]
    """

    def better(sigma: float) -> bool:
        found = complexities(s._replace(sigma=float(sigma)), p)
        return sum(found["pisco"]) < sum(found[other])

    grid = np.geomspace(1e-3, 1e3, 601)
    seen = [better(sigma) for sigma in grid]
    edges = [0.0] if seen[0] else []
    for low, high, before, after in zip(grid, grid[1:], seen, seen[1:], strict=False):
        if before != after:
            for _ in range(20):
                middle = math.sqrt(low * high)
                low, high = (middle, high) if better(middle) == before else (low, middle)
            edges.append(float(high))
    edges += [math.inf] if seen[-1] else []
    return list(zip(edges[::2], edges[1::2], strict=True))


def large_batch_rounds(smoothness: float, rate: float, p: float, epsilon: float, shared: int) -> float:
    """Corollary 2's rounds: L/((1+p)·λ_p²·ε²) + 1/(shared·ε²), shared = n with exact gradients and 1 otherwise."""
    return smoothness * _over((1 + p) * rate**2 * epsilon**2) + 1 / (shared * epsilon**2)


def _over(value: float) -> float:
    return 1 / value if value > 0 else math.inf  # gossip alone cannot agree when λ_w = 0
