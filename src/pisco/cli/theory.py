"""`pisco plan --theory`: formulas and stability limits for one experiment; nothing is run but estimates."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from pisco.cli.console import print_table, say, say_json

if TYPE_CHECKING:
    from pisco.experiments import Config


def say_theory(config: Config, goal: tuple[str, float], as_json: bool) -> None:
    """Estimates, mixing, step sizes for every p, and the second table's complexities."""
    from pisco.experiments.planned import outlook_of

    found = outlook_of(config, goal)
    if as_json:
        say_json(found)
        return
    e = found.estimates
    estimates = {
        "L, the largest curvature of f": e.smoothness,
        "… of any agent's own f_i": e.agent_smoothness,
        "… of f where a short descent ends": e.end_smoothness,
        "σ², variance of one sample's gradient": e.noise,
        "ζ², mean of ‖∇f_i − ∇f‖²": e.heterogeneity,
        "f(x⁰) − f*, at least (150 accelerated steps)": e.gap,
    }
    print_table("Estimated from the problem at x⁰", ("", ""), [(k, f"{v:.4g}") for k, v in estimates.items()])
    print_table(
        f"Step sizes for T_o = {found.local_steps}; stable: largest η_l safe at the agents' curvatures, η_c = 1",
        (
            *("weights", "p", "λ_p", "stable η_l, two", "stable η_l, one"),
            *("Theorem 1 η_c", "Theorem 1 η_l", "Corollary 1 η_l"),
        ),
        [
            (
                row["weights"],
                f"{row['server_prob']:g}",
                f"{row['expected_mixing_rate']:.4g}",
                f"{row['stable two exchanges']:.3g}",
                f"{row['stable one exchange']:.3g}",
                *_columns(row["theorem_1"], "comm_lr", "local_lr"),
                *_columns(row["corollary_1"], "local_lr"),
            )
            for row in found.steps
        ],
        right=range(1, 8),
    )
    for note in found.notes:
        say(note)
    print_table(
        f"Communication complexities of the paper's second table: ε² = {found.epsilon**2:.3g}, constants 1",
        ("method", "p", "server rounds", "gossip rounds"),
        [
            (
                row["method"],
                "–" if row["server_prob"] is None else f"{row['server_prob']:g}",
                _number(row["server rounds"]),
                _number(row["gossip rounds"]),
            )
            for row in found.complexities
        ],
        right=(1, 2, 3),
    )
    say("orders of magnitude: the formulas hide constants and L; compare methods, do not read off rounds")


def _columns(found: dict[str, float] | None, *names: str) -> list[str]:
    return ["–" if found is None else f"{found[name]:.3g}" for name in names]


def _number(value: float) -> str:
    return f"{value:.3g}" if math.isfinite(value) else "∞"
