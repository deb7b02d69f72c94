"""What the theory says about a run before it starts: the paper's step sizes and complexities, and stable steps."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, NamedTuple

from pisco.engines.job import check_kinds
from pisco.errors import check_positive
from pisco.networks.network import Network
from pisco.networks.spectral import expected_mixing_rate
from pisco.planning.planner import WEIGHTS
from pisco.planning.settings import PROBABILITIES, is_plain
from pisco.problems.problem import Problem
from pisco.theory.applied import guarantees
from pisco.theory.estimates import Estimates, estimate
from pisco.theory.orders import Setup, complexities
from pisco.theory.paper import network_dependency
from pisco.theory.safe_steps import largest_safe_step

ODD = (
    "all of this is for steady links, one gossip exchange at a time and a server that hears everybody; this network "
    "is different, so read it as the theory of the same graph without that"
)


class Outlook(NamedTuple):
    """Formulas with the numbers of one problem and network in them."""

    estimates: Estimates
    local_steps: int
    epsilon: float
    """‖∇f‖² ≤ ε² is what the complexities are for."""
    steps: list[dict[str, Any]]
    """For every choice of weights and p: λ_w, λ_p, λ_p^-2, safe η_l, and what `theory.guarantees` says."""
    complexities: list[dict[str, Any]]
    """Server and gossip rounds of every method of the paper's second table; orders, constants are 1."""
    notes: list[str]
    """What does not hold, or only later, in sentences."""


def outlook(
    problem: Problem,
    network: Network,
    *,
    rounds: int,
    batch_size: int | None = None,
    local_steps: int = 1,
    epsilon: float = 0.05**0.5,
    probabilities: Sequence[float] = PROBABILITIES,
) -> Outlook:
    """Estimate a problem's constants and put them into the formulas of PISCO; nothing is trained.

    Args:
      problem: loss and data.
      network: its graph counts, and its weights besides FDLA, pisco-step and Metropolis.
      rounds: of the run to come, for Corollary 1.
      batch_size: samples per gradient, None for all; Corollary 1 needs a number.
      local_steps: T_o.
      epsilon: of the complexities.
      probabilities: the p to look at.

    >>> import numpy as np, pisco
    >>> problem = pisco.problems.quadratic(np.stack([np.eye(2)] * 4), np.arange(8.0).reshape(4, 2))
    >>> found = outlook(problem, pisco.Network.ring(4), rounds=100, probabilities=[1.0])
    >>> round(found.estimates.smoothness, 3), {row["expected_mixing_rate"] for row in found.steps}
    (1.0, {1.0})
    """
    check_kinds(problem=problem, network=network)
    check_positive(epsilon=epsilon)
    found, networks = estimate(problem, batch_size=batch_size), {network.weights_name: network}
    for name in WEIGHTS:
        networks.setdefault(name, Network(network.graph, weights=name))
    facts: dict[str, Any] = {"agents": problem.num_agents, "batch_size": batch_size, "rounds": rounds}
    steps = []
    for name, each in networks.items():
        rate = each.mixing_rate
        for p in probabilities:
            common: dict[str, Any] = {"server_prob": p, "local_steps": local_steps}
            two, one = (
                largest_safe_step(found.agent_curvatures, each.weights, one_exchange=one_exchange, **common)
                for one_exchange in (False, True)
            )
            said = guarantees(found, epsilon=epsilon, mixing_rate=rate, **facts, **common)
            steps.append(
                {
                    "weights": name,
                    "mixing_rate": rate,
                    "server_prob": p,
                    "expected_mixing_rate": expected_mixing_rate(rate, p),
                    "network_dependency": float(network_dependency(rate, [p])[0]),
                    "stable two exchanges": two,
                    "stable one exchange": one,
                }
                | said
            )
    sigma = math.sqrt(found.noise / batch_size) if batch_size else 0.0
    setup = Setup(problem.num_agents, local_steps, network.mixing_rate, sigma, epsilon)
    notes = [] if is_plain(network) else [ODD]
    return Outlook(found, local_steps, epsilon, steps, _orders(setup, probabilities), notes + _notes(steps, rounds))


def _notes(steps: list[dict[str, Any]], rounds: int) -> list[str]:
    """Each once, over all weights and p."""
    notes = list(dict.fromkeys(row["note"] for row in steps if row["theorem_1"] is None))
    needed = [row["corollary_1"]["rounds_needed"] for row in steps if row["corollary_1"]]
    if needed and rounds < max(needed):
        notes.append(
            f"Corollary 1 holds from {min(needed):.2g} rounds on at the best p and weights, {max(needed):.2g} at the "
            f"worst; before that, as in {rounds}, its η_l is larger than it presupposes"
        )
    if any(row["corollary_2"] for row in steps):
        notes.append(
            "batches are large (b ≥ σ²/ε², or all samples): Corollary 2 holds, at Theorem 1's steps, not Corollary 1"
        )
    return notes


def _orders(setup: Setup, probabilities: Sequence[float]) -> list[dict[str, Any]]:
    """One row a method, and for PISCO one a p."""
    rows = [
        {"method": method, "server_prob": None, "server rounds": server, "gossip rounds": gossip}
        for method, (server, gossip) in complexities(setup, 0.0).items()
        if method != "pisco"
    ]
    for p in probabilities:
        server, gossip = complexities(setup, p)["pisco"]
        rows.append({"method": "pisco", "server_prob": p, "server rounds": server, "gossip rounds": gossip})
    return rows
