"""A network in numbers."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from pisco.networks.network import Network
from pisco.networks.spectral import eigenvalue_extremes, least_real_part

__all__ = ["facts"]


def facts(network: Network, server_probs: Sequence[float] = (0.0, 0.01, 0.1, 0.316, 1.0)) -> dict[str, Any]:
    """Degrees, components, λ_w, λ_p for some p, and the smallest eigenvalue of W (with one-way links its real part).

    With one-way links, `out_degree_…` counts those to whom an agent sends, and `in_degree_…` those it hears.

    Where that eigenvalue is near −1, PISCO with two exchanges a round allows tiny steps only.

    >>> found = facts(Network.ring(6))
    >>> found["edges"], found["components"], round(found["mixing_rate"], 3), found["expected_mixing_rate"]["1"]
    (6, 1, 0.556, 1.0)
    """
    graph, one_way = network.graph, network.graph.one_way
    degrees = {"out_degree": graph.out_degrees, "in_degree": graph.in_degrees} if one_way else {"degree": graph.degrees}
    smallest = least_real_part(network.weights) if network.push is not None else eigenvalue_extremes(network.weights)[0]
    return {
        "network": graph.name,
        "weights": network.weights_name,
        "agents": network.num_agents,
        "one_way": one_way,
        "edges": graph.num_edges if graph.arcs is None else len(graph.arcs),
        **{f"{name}_min": int(each.min()) for name, each in degrees.items()},
        **{f"{name}_mean": float(each.mean()) for name, each in degrees.items()},
        **{f"{name}_max": int(each.max()) for name, each in degrees.items()},
        "components": len(np.unique(graph.components())),
        "mixing_rate": network.mixing_rate,
        "expected_mixing_rate": {f"{p:g}": network.expected_mixing_rate(p) for p in server_probs},
        "smallest_eigenvalue": smallest,
    }
