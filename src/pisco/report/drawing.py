"""Where to draw agents and links."""

from __future__ import annotations

import numpy as np

from pisco.networks.graph import Graph


def places_of(graph: Graph) -> np.ndarray:
    """Where to draw every agent: the family's own places, or those of a spring model; within [−1, 1]."""
    places = graph.positions if graph.positions is not None else _sprung(graph)
    places = places - places.mean(axis=0)
    return places / max(float(np.abs(places).max()), 1e-12)


def _sprung(graph: Graph) -> np.ndarray:
    """Springs within every component; the largest in the middle, the others close around it."""
    import networkx as nx

    drawn = nx.empty_graph(graph.num_agents)
    drawn.add_edges_from(graph.edges.tolist())
    parts = sorted(nx.connected_components(drawn), key=len, reverse=True)
    places = np.zeros((graph.num_agents, 2))
    reach = np.sqrt(len(parts[0]) / graph.num_agents)
    for number, part in enumerate(parts):
        members = sorted(part)
        size = np.sqrt(len(members) / graph.num_agents)
        sprung = nx.spring_layout(drawn.subgraph(members), seed=0, scale=size if len(members) > 1 else 1)
        angle = 2 * np.pi * number / max(len(parts) - 1, 1)
        centre = np.array([np.cos(angle), np.sin(angle)]) * (reach + 1.2 * size) if number else np.zeros(2)
        places[members] = centre + np.array([sprung[agent] for agent in members])
    return places


def segments(graph: Graph, places: np.ndarray) -> list[np.ndarray]:
    """Links as lines; one that would run through other agents (a torus wrapping around) becomes an arc."""
    return [_curve(places[i], places[j], places) for i, j in graph.edges]


def _curve(start: np.ndarray, end: np.ndarray, places: np.ndarray) -> np.ndarray:
    along = end - start
    length = float(np.hypot(*along))
    if length < 1e-12:
        return np.stack([start, end])
    across = np.array([-along[1], along[0]]) / length
    offset = places - start
    share = offset @ along / length**2
    on_the_way = (np.abs(offset @ across) < 1e-9) & (share > 1e-9) & (share < 1 - 1e-9)
    if not on_the_way.any():
        return np.stack([start, end])
    t = np.linspace(0, 1, 30)[:, None]
    return start + t * along + 0.5 * t * (1 - t) * length * across
