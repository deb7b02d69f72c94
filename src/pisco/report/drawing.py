"""Where to draw agents and links."""

from __future__ import annotations

from collections.abc import Sequence

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


def heads(graph: Graph, places: np.ndarray, lines: Sequence[np.ndarray]) -> list[list[np.ndarray]]:
    """For every link the triangles that show where it leads: none, or one or two where links go one way.

    They stand on the lines, before the agent who hears, so that they are seen however large agents are drawn.
    """
    found: list[list[np.ndarray]] = [[] for _ in lines]
    if graph.arcs is None:
        return found
    most = 0.08 * min(1.0, (200 / max(1, len(graph.arcs))) ** 0.5)
    keys = graph.edges[:, 0] * graph.num_agents + graph.edges[:, 1]
    for sender, receiver in graph.arcs.tolist():
        at = int(np.searchsorted(keys, min(sender, receiver) * graph.num_agents + max(sender, receiver)))
        line = lines[at] if sender < receiver else lines[at][::-1]
        length = float(np.hypot(*(line[-1] - line[0])))
        if length > 1e-12:
            share = max(0.62, 1 - 0.45 / length)
            tip, before = _along(line, share), _along(line, share - 0.02)
            ahead = (tip - before) / np.hypot(*(tip - before)) * min(most, 0.25 * length)
            aside = 0.4 * np.array([-ahead[1], ahead[0]])
            found[at].append(np.stack([tip, tip - ahead + aside, tip - ahead - aside, tip]))
    return found


def _along(line: np.ndarray, share: float) -> np.ndarray:
    """The point of a line after this share of its points."""
    at = share * (len(line) - 1)
    low = min(int(at), len(line) - 2)
    return line[low] + (at - low) * (line[low + 1] - line[low])


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
