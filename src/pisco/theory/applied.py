"""What the paper guarantees for one problem on one network: estimates put into its theorem and corollaries."""

from __future__ import annotations

from typing import Any

from pisco.networks.spectral import expected_mixing_rate
from pisco.theory.estimates import Estimates
from pisco.theory.paper import NO_MIXING, corollary_1, corollary_2, theorem_1, theorem_1_bound


def guarantees(
    found: Estimates,
    *,
    agents: int,
    batch_size: int | None,
    rounds: int,
    epsilon: float,
    mixing_rate: float,
    server_prob: float,
    local_steps: int,
) -> dict[str, Any]:
    """What the theorem and the corollary that fits the batches say of one problem, as plain values.

    `theorem_1`, `bound` (at its largest steps), `corollary_1` (mini-batches: σ²/b > ε²) and `corollary_2` (otherwise)
    are None where they say nothing; `note` is then the reason in one sentence, else empty.
    """
    none = dict.fromkeys(("theorem_1", "bound", "corollary_1", "corollary_2"))
    if expected_mixing_rate(mixing_rate, server_prob) <= 1e-12:
        return none | {"note": NO_MIXING}
    smooth = max(found.agent_smoothness, found.smoothness)
    where: dict[str, Any] = {"mixing_rate": mixing_rate, "server_prob": server_prob, "local_steps": local_steps}
    facts: dict[str, Any] = {"smoothness": smooth, "noise": found.noise, "agents": agents, "batch_size": batch_size}
    steps = theorem_1(smoothness=smooth, **where)
    gap = max(found.gap, 0.0)
    bound = theorem_1_bound(
        **facts, **where, gap=gap, heterogeneity=found.heterogeneity, rounds=rounds, **steps._asdict()
    )
    out = none | {"theorem_1": steps._asdict(), "bound": bound._asdict() | {"total": bound.total}, "note": ""}
    if batch_size is None or found.noise <= batch_size * epsilon**2:
        out["corollary_2"] = corollary_2(**facts, **where, epsilon=epsilon)._asdict()
    elif gap == 0:
        out["note"] = "f(x⁰) − f* is estimated as 0, so there is nothing to gain and Corollary 1 has no step size"
    else:
        tuned = corollary_1(**facts, **where, gap=gap, rounds=rounds)
        out["corollary_1"] = tuned._asdict()
        if rounds < tuned.rounds_needed:
            out["note"] = (
                f"Corollary 1 needs {tuned.rounds_needed:.2g} rounds at least; in {rounds} its η_l is "
                f"{tuned.local_lr / tuned.allowed:.3g} times what it presupposes"
            )
    return out
