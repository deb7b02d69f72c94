"""Pictures of a network: agents, links, and how much each link weighs."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from pisco.errors import InputError
from pisco.networks.graph import Graph

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

DRAW_UP_TO = 500
NUMBER_UP_TO = 50
AGENT, LINK, NEGATIVE = "#2f5d8a", "#8a97a6", "#c8553d"


def draw(
    graph: Graph,
    weights: Any = None,
    path: str | Path | None = None,
    ax: Axes | None = None,
    node_colors: Any = None,
) -> Figure:
    """Draw a graph; with weights, a link is as wide as its |w_ij| and dashed where w_ij is negative.

    weights: a symmetric matrix on the graph, such as `weights.fdla(graph)`.
    path: where to save the picture; the ending chooses the format.
    ax: axes to draw into; a new figure otherwise.
    node_colors: one colour for all agents, or one per agent.
    """
    from matplotlib.figure import Figure

    if graph.num_agents > DRAW_UP_TO:
        raise InputError(
            f"{graph.name} has {graph.num_agents} agents, more than the {DRAW_UP_TO} a picture can show"
        )
    if ax is None:
        ax = Figure(figsize=(5.2, 5.2), layout="constrained").add_subplot()
    places = layout(graph)
    _draw_links(ax, graph, places, weights)
    _draw_agents(ax, graph, places, node_colors)
    ax.set_title(graph.name, fontsize=11, color="#333333")
    ax.set_aspect("equal")
    ax.set_axis_off()
    ax.margins(0.08)
    figure = ax.get_figure(root=True)
    assert figure is not None
    if path is not None:
        figure.savefig(path, dpi=150)
    return figure


def layout(graph: Graph) -> np.ndarray:
    """Where to draw every agent: the family's own places, or those of a spring model; within [−1, 1]."""
    places = graph.positions if graph.positions is not None else _sprung(graph)
    places = places - places.mean(axis=0)
    return places / max(float(np.abs(places).max()), 1e-12)


def _sprung(graph: Graph) -> np.ndarray:
    """Springs within every component; the largest in the middle, the others around it, lest they be flung away."""
    import networkx as nx

    drawn = nx.empty_graph(graph.num_agents)
    drawn.add_edges_from(graph.edges.tolist())
    parts = sorted(nx.connected_components(drawn), key=len, reverse=True)
    places = np.zeros((graph.num_agents, 2))
    reach = np.sqrt(len(parts[0]) / graph.num_agents)
    for number, part in enumerate(parts):
        members = sorted(part)
        size = np.sqrt(len(members) / graph.num_agents)
        layout = nx.spring_layout(drawn.subgraph(members), seed=0, scale=size if len(members) > 1 else 1)
        angle = 2 * np.pi * number / max(len(parts) - 1, 1)
        centre = np.array([np.cos(angle), np.sin(angle)]) * (reach + 1.2 * size) if number else np.zeros(2)
        places[members] = centre + np.array([layout[agent] for agent in members])
    return places


def _edge_weights(graph: Graph, weights: Any) -> np.ndarray:
    from pisco.networks.weights import check

    i, j = graph.edges.T
    return np.asarray(check(weights, graph)[i, j]).ravel()


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


def _draw_links(ax: Axes, graph: Graph, places: np.ndarray, weights: Any) -> None:
    from matplotlib.collections import LineCollection
    from matplotlib.lines import Line2D

    lines = segments(graph, places)
    if not lines:
        return
    base = 1.6 if graph.num_edges < 200 else 0.7
    if weights is None:
        ax.add_collection(LineCollection(lines, colors=LINK, linewidths=base, zorder=1))
        return
    values = _edge_weights(graph, weights)
    largest = max(float(np.abs(values).max()), 1e-12)
    widths = base * (0.3 + 2.7 * np.abs(values) / largest)
    legend: list[Any] = []
    style: Any
    for sign, colour, style, word in (
        (1, LINK, "solid", "largest"),
        (-1, NEGATIVE, "dashed", "most negative"),
    ):
        chosen = np.flatnonzero(values * sign > 0)
        if len(chosen):
            ax.add_collection(
                LineCollection(
                    [lines[k] for k in chosen],
                    colors=colour,
                    linewidths=widths[chosen],
                    linestyles=style,
                    zorder=1,
                )
            )
            extreme = int(chosen[np.abs(values[chosen]).argmax()])
            label = f"{word} weight {values[extreme]:.3f}".replace("-", "−")
            legend.append(
                Line2D([], [], color=colour, linewidth=widths[extreme], linestyle=style, label=label)
            )
    if legend:
        ax.legend(
            handles=legend, loc="upper center", bbox_to_anchor=(0.5, 0.0), ncols=2, frameon=False, fontsize=9
        )


def _draw_agents(ax: Axes, graph: Graph, places: np.ndarray, node_colors: Any) -> None:
    n = graph.num_agents
    if node_colors is not None and not isinstance(node_colors, str) and len(node_colors) != n:
        raise InputError(f"node_colors has {len(node_colors)} entries, expected one per agent, {n}")
    numbered = n <= NUMBER_UP_TO
    area = (420 if n <= 20 else 240) if numbered else max(12.0, 6000 / n)
    colours = AGENT if node_colors is None else node_colors
    ax.scatter(
        *places.T, s=area, c=colours, edgecolors="white", linewidths=1.5 if numbered else 0.5, zorder=2
    )
    if numbered:
        for agent, (x, y) in enumerate(places):
            ax.text(
                x,
                y,
                str(agent),
                ha="center",
                va="center",
                fontsize=9 if n <= 20 else 7,
                color="white",
                zorder=3,
            )
