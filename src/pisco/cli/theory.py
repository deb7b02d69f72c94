"""`pisco plan --theory`: formulas and stability limits for one experiment; nothing is run but estimates."""

from __future__ import annotations

import math
from typing import Any

from pisco.cli.console import out, say, say_json, table


def say_theory(config: Any, goal: tuple[str, float], as_json: bool) -> None:
    """Estimates, mixing, step sizes for every p, and the second table's complexities."""
    facts = theory_facts(config, goal)
    if as_json:
        say_json(facts)
        return
    e = facts["estimates"]
    shown = table("Estimated from the problem at x⁰", "", "")
    shown.add_row("L, the largest curvature of f", f"{e['smoothness']:.4g}")
    shown.add_row("… of any agent's own f_i", f"{e['agent_smoothness']:.4g}")
    shown.add_row("… of f where a short descent ends", f"{e['end_smoothness']:.4g}")
    shown.add_row("σ², variance of one sample's gradient", f"{e['noise']:.4g}")
    shown.add_row("ζ², mean of ‖∇f_i − ∇f‖²", f"{e['heterogeneity']:.4g}")
    shown.add_row("f(x⁰) − f*, at least (150 accelerated steps)", f"{e['gap']:.4g}")
    out().print(shown)

    steps = table(
        f"Step sizes for T_o = {facts['local_steps']}; stable: largest η_l safe at the agents' curvatures, η_c = 1",
        "weights",
        "p",
        "λ_p",
        "stable η_l, two",
        "stable η_l, one",
        "Theorem 1 η_c",
        "Theorem 1 η_l",
        "Corollary 1 η_l",
        right=tuple(range(1, 8)),
    )
    for row in facts["steps"]:
        steps.add_row(
            row["weights"],
            f"{row['server_prob']:g}",
            f"{row['expected_mixing_rate']:.4g}",
            f"{row['stable two exchanges']:.3g}",
            f"{row['stable one exchange']:.3g}",
            *_columns(row["theorem_1"], "comm_lr", "local_lr"),
            *_columns(row["corollary_1"], "local_lr"),
        )
    out().print(steps)
    if any(row["theorem_1"] is None for row in facts["steps"]):
        say(next(row["note"] for row in facts["steps"] if row["theorem_1"] is None))
    needed = [row["corollary_1"]["rounds_needed"] for row in facts["steps"] if row["corollary_1"]]
    if needed and facts["rounds"] < max(needed):
        say(
            f"Corollary 1 holds from {min(needed):.2g} rounds on at the best p and weights, {max(needed):.2g} at the "
            f"worst; before that, as in {facts['rounds']}, its η_l is larger than it presupposes"
        )
    if any(row["corollary_2"] for row in facts["steps"]):
        say(
            "batches are large (b ≥ σ²/ε², or all samples): Corollary 2 holds, at Theorem 1's steps, not Corollary 1"
        )
    orders = table(
        f"Communication complexities of the paper's second table: ε² = {facts['epsilon'] ** 2:.3g}, constants 1",
        "method",
        "p",
        "server rounds",
        "gossip rounds",
        right=(1, 2, 3),
    )
    for row in facts["complexities"]:
        p = "–" if row["server_prob"] is None else f"{row['server_prob']:g}"
        orders.add_row(row["method"], p, _number(row["server rounds"]), _number(row["gossip rounds"]))
    out().print(orders)
    say("orders of magnitude: the formulas hide constants and L; compare methods, do not read off rounds")


def _columns(found: dict[str, float] | None, *names: str) -> list[str]:
    return ["–" if found is None else f"{found[name]:.3g}" for name in names]


def _number(value: float) -> str:
    return f"{value:.3g}" if math.isfinite(value) else "∞"


def theory_facts(config: Any, goal: tuple[str, float]) -> dict[str, Any]:
    """Everything that is shown, as plain values."""
    from pisco import theory
    from pisco.networks.network import Network
    from pisco.networks.spectral import expected_mixing_rate
    from pisco.planning.settings import PROBABILITIES

    problem, network = config.problem_and_network()
    found = theory.estimate(problem, batch_size=config.run.batch_size)
    steps = max(1, int(config.algorithm.taken_by("name").get("local_steps", 1)))
    batch = config.run.batch_size
    networks = {network.weights_name: network}
    for name in ("fdla", "pisco-step", "metropolis"):
        networks.setdefault(name, Network(network.graph, weights=name))
    column, bound = goal
    epsilon = math.sqrt(bound if column.startswith("grad_norm_sq") else 0.05)
    run = {"agents": problem.num_agents, "batch_size": batch, "rounds": config.run.rounds, "epsilon": epsilon}
    rows = []
    for name, each in networks.items():
        rate = each.mixing_rate
        for p in PROBABILITIES:
            common = {"server_prob": p, "local_steps": steps}
            limits = {
                f"stable {words}": theory.largest_safe_step(
                    found.agent_curvatures, each.weights, one_exchange=one, **common
                )
                for words, one in (("two exchanges", False), ("one exchange", True))
            }
            rows.append(
                {
                    "weights": name,
                    "mixing_rate": rate,
                    "server_prob": p,
                    "expected_mixing_rate": expected_mixing_rate(rate, p),
                    "network_dependency": float(theory.network_dependency(rate, [p])[0]),
                }
                | theory.guarantees(found, mixing_rate=rate, **run, **common)
                | limits
            )
    sigma = math.sqrt(found.noise / batch) if batch else 0.0
    setup = theory.Setup(problem.num_agents, steps, network.mixing_rate, sigma, epsilon)
    orders = []
    for p in PROBABILITIES:
        for method, (server, gossip) in theory.complexities(setup, p).items():
            if method == "pisco" or p == 0:
                chance = p if method == "pisco" else None
                orders.append(
                    {
                        "method": method,
                        "server_prob": chance,
                        "server rounds": server,
                        "gossip rounds": gossip,
                    }
                )
    orders.sort(key=lambda row: row["server_prob"] is not None)
    return {
        "estimates": found._asdict(),
        "local_steps": steps,
        "rounds": config.run.rounds,
        "epsilon": epsilon,
        "steps": rows,
        "complexities": orders,
    }
