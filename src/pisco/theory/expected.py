"""What is left of ‖∇f‖² after K rounds with and without tracking: a few terms, for comparing settings.

The terms are those of the known bounds: descent, noise of the mean, and agents that are apart by unlike data or noise.
Bounds have L in them; here it is what differences meet in fact (`gradient_spread`): agents that are apart move the mean
gradient only as far as their curvatures differ too. Constants are rough, so compare errors, do not read them off:
docs/planning.md has runs beside them.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import numpy as np

from pisco.errors import choose
from pisco.theory.spread import Spread


class Facts(NamedTuple):
    """What an error depends on, whatever the method."""

    agents: int
    rounds: int
    """K."""
    curvature: float
    """L: of the steepest agent."""
    gap: float
    """f(x) − f*: how far there is to go."""
    spread: Spread
    """How gradients differ, and how that moves the gradient of f."""
    unlike_curvature: float = 0.0
    """δ: how far an agent's Hessian is from that of f, in the worst direction (`theory.unlike_curvature`)."""


def _untracked(facts: Facts, steps: int, mixed: float, within: float, noisy: float) -> float:
    """Agents leave in directions of their own: T steps of them, and noise that is new at every step."""
    return steps**2 * facts.spread.drift * (mixed + within) + steps * facts.spread.noise_drift / facts.agents * noisy


def _last(facts: Facts, steps: int, mixed: float, within: float, noisy: float) -> float:
    """The tracker holds the difference of two batches, the same in all steps of a round."""
    return 2 * steps**2 * facts.spread.noise_drift / facts.agents * (mixed + within)


def _averaged(facts: Facts, steps: int, mixed: float, within: float, noisy: float) -> float:
    """The correction holds the mean of a round's batches."""
    return steps * facts.spread.noise_drift / facts.agents * (2 * (mixed + within) + noisy)


TRACKING: dict[str, Callable[[Facts, int, float, float, float], float]] = {
    "none": _untracked,
    "last gradient": _last,
    "averaged": _averaged,
}
"""How far agents that are apart move the gradient of f, at η = 1: gossip SGD with local steps, `pisco`, `pisco-vr`."""


def expected_error(facts: Facts, *, tracking: str, steps: int, mixing_rate: float, local_lr: float) -> float:
    """The size of the mean of ‖∇f(x̄)‖² over K rounds of T = `steps` local steps each.

        2·gap/(η·T·K) + η·E[ξ·H·ξ]/(2n) + η²·D,    D: what agents that are apart do, at η = 1

    λ is `mixing_rate` (λ_p with a server); T counts all gradient steps between two exchanges, T_o + 1 for PISCO.

    >>> spread = Spread(0.01, heterogeneity=1.0, drift=1.0, noise_drift=0.01, noise_energy=0.01, top_tenth=1.0)
    >>> facts = Facts(agents=10, rounds=100, curvature=1.0, gap=1.0, spread=spread)
    >>> setting = {"steps": 4, "mixing_rate": 0.4, "local_lr": 0.1}
    >>> errors = [expected_error(facts, tracking=how, **setting) for how in TRACKING]
    >>> [round(error, 2) for error in errors]      # unlike agents, little noise
    [0.69, 0.05, 0.05]
    """
    apart = choose("tracking", tracking, TRACKING)
    mixed, within, noisy = _apart(steps, mixing_rate)
    return (
        2 * facts.gap / (local_lr * steps * facts.rounds)
        + local_lr * facts.spread.noise_energy / (2 * facts.agents)
        + local_lr**2 * apart(facts, steps, mixed, within, noisy)
    )


def _apart(steps: int, mixing_rate: float) -> tuple[float, float, float]:
    """How many squared steps agents are apart, of those that last: by rounds before, within a round; and of noise."""
    rate = max(mixing_rate, 1e-9)
    within = (steps - 1) * (2 * steps - 1) / (6 * steps**2)
    return (1 - rate) / rate**2, within, (1 - rate) / rate + (steps - 1) / (2 * steps)


def largest_step(facts: Facts, *, steps: int, mixing_rate: float) -> float:
    """The largest η that is tried: 1/L, and with unlike Hessians less, the less the more steps and the less mixing.

    A round moves everybody by about ηT·∇f. Where Hessians differ by δ, agents' gradients then differ by ηT·δ·∇f, and
    once they are apart by (mixed + within) squared steps that must stay below half of ∇f itself.

    >>> facts = Facts(agents=10, rounds=100, curvature=1.0, gap=1.0, spread=Spread(*[0.0] * 6))
    >>> largest_step(facts, steps=8, mixing_rate=0.5)
    1.0
    >>> round(largest_step(facts._replace(unlike_curvature=1.0), steps=8, mixing_rate=0.5), 3)
    0.041
    """
    mixed, within, _ = _apart(steps, mixing_rate)
    unlike = 2 * steps * facts.unlike_curvature * (mixed + within) ** 0.5
    return 1 / max(facts.curvature, unlike, 1e-30)


def least_error(
    facts: Facts, *, tracking: str, steps: int, mixing_rate: float, largest: float | None = None
) -> tuple[float, float]:
    """The least `expected_error` over step sizes η up to `largest`, by default `largest_step`, and that η.

    >>> facts = Facts(agents=10, rounds=100, curvature=1.0, gap=1.0, spread=Spread(*[0.0] * 6))
    >>> least_error(facts, tracking="none", steps=2, mixing_rate=0.5)
    (0.01, 1.0)
    """
    largest = largest or largest_step(facts, steps=steps, mixing_rate=mixing_rate)
    tried = [
        (expected_error(facts, tracking=tracking, steps=steps, mixing_rate=mixing_rate, local_lr=step), step)
        for step in (largest * np.geomspace(1, 1e-4, 41)).tolist()
    ]
    return min(tried)
