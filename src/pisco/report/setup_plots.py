"""What a run starts from: who holds which labels, and who is linked to whom."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import numpy as np

from pisco.data.partition import label_counts
from pisco.display import plural
from pisco.errors import InputError
from pisco.networks.graph import Graph, as_graph
from pisco.report.drawing import heads, places_of, segments
from pisco.report.panels import Agents, Bars, Heat, LinkLines, Panel
from pisco.report.picture import draw, draw_panel, save

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

# Colours told apart with any colour vision: Okabe and Ito's blue and orange, then Tol's "muted" set.
TWO = ("#0072B2", "#E69F00")
MANY = (
    *("#332288", "#88CCEE", "#117733", "#DDCC77", "#CC6677"),
    *("#44AA99", "#882255", "#999933", "#AA4499", "#BBBBBB"),
)
DRAW_UP_TO, NUMBER_UP_TO = 500, 50
AGENT, LINK, NEGATIVE = "#2f5d8a", "#8a97a6", "#c8553d"


def plot_labels(
    labels: Any,
    parts: Sequence[np.ndarray],
    path: str | Path | None = None,
    ax: Axes | None = None,
    *,
    classes: Sequence[str] | None = None,
    title: str = "Labels held by each agent",
) -> Figure:
    """Draw how many samples of each label every agent holds.

    Up to ten classes are stacked bars, one bar an agent; more are a heat map.

    Args:
        labels: label of every sample.
        parts: sample indices of every agent, as the partitions return them.
        path: file to write, in the format its ending names; None writes none.
        ax: axes to draw into; None makes a figure of its own.
        classes: names for the labels in increasing order; None shows the label values.
        title: heading of the picture.
    """
    counts = label_counts(labels, parts)
    agents, num_classes = counts.shape
    values = np.unique(labels)
    names = [f"{value:+d}" if values[0] < 0 else str(value) for value in values]
    names = names if classes is None else list(classes)
    if len(names) != num_classes:
        raise InputError(f"{len(names)} class names were given for {num_classes} labels; name each label once")
    heading = f"{title}\n{plural(agents, 'agent')}, {counts.sum():,} samples"
    if num_classes <= len(MANY):
        colours = TWO if num_classes <= len(TWO) else MANY
        numbers = [str(agent) for agent in range(agents)]
        bars = Bars(numbers, dict(zip(names, counts.T, strict=True)), colours, horizontal=True)
        panel = Panel(heading, "samples", "agent", bars=bars, legend="right", legend_title="label")
    else:
        panel = Panel(heading, "label", "agent", heat=Heat(names, counts, "samples"))
    return _one(panel, path, ax, (8.0, float(np.clip(1.6 + 0.3 * agents, 3.0, 9.0))))


def plot_network(
    graph: Graph,
    weights: Any = None,
    path: str | Path | None = None,
    ax: Axes | None = None,
    *,
    agent_colours: Any = None,
) -> Figure:
    """Draw a graph; with weights, a link is as wide as its |w_ij| and dashed where w_ij is negative.

    One-way links have arrowheads.

    Args:
      graph: up to 500 agents.
      weights: a symmetric matrix on the graph, such as `weights.fdla(graph)`.
      path: file to write, in the format its ending names; None writes none.
      ax: axes to draw into; None makes a figure of its own.
      agent_colours: one colour for all agents, or one per agent.
    """
    graph = as_graph(graph)
    n = graph.num_agents
    if n > DRAW_UP_TO:
        raise InputError(f"{graph.name} has {n} agents, more than the {DRAW_UP_TO} a picture can show")
    colours = AGENT if agent_colours is None else agent_colours
    if not isinstance(colours, str) and len(colours) != n:
        raise InputError(f"agent_colours has {len(colours)} entries, expected one per agent, {n}")
    places = places_of(graph)
    agents = Agents(places, colours, numbered=n <= NUMBER_UP_TO)
    panel = Panel(graph.name, links=_links(graph, places, weights), agents=agents, legend="below")
    return _one(panel, path, ax, (5.2, 5.2))


def _links(graph: Graph, places: np.ndarray, weights: Any) -> list[LinkLines]:
    from pisco.networks.spectral import as_csr
    from pisco.networks.weights import check

    lines, base = segments(graph, places), max(0.1, min(1.6, 160 / max(graph.num_edges, 1)))
    pointing = heads(graph, places, lines)
    if weights is None or not graph.num_edges:  # no entries of a sparse matrix are no array
        return [LinkLines(lines, np.full(len(lines), base), LINK, heads=list(chain(*pointing)))]
    i, j = graph.edges.T
    if graph.one_way:  # a line is as wide as the heavier of its directions
        values = np.maximum(*(np.asarray(as_csr(weights)[ends]).ravel() for ends in ((i, j), (j, i))))
    else:
        values = np.asarray(check(weights, graph)[i, j]).ravel()
    share = np.abs(values) / max(float(np.abs(values).max(initial=0)), 1e-12)
    widths = base * (0.3 + (1.4 if graph.one_way else 2.7) * share)  # arrowheads stand on narrow lines
    found = []
    for sign, colour, word in ((1, LINK, "largest"), (-1, NEGATIVE, "most negative")):
        chosen = np.flatnonzero(values * sign > 0)
        if len(chosen):
            extreme = values[chosen[np.abs(values[chosen]).argmax()]]
            label = f"{word} weight {extreme:.3f}".replace("-", "−")
            shown, tips = [lines[k] for k in chosen], list(chain.from_iterable(pointing[k] for k in chosen))
            found.append(LinkLines(shown, widths[chosen], colour, sign < 0, label, tips))
    return found


def _one(panel: Panel, path: str | Path | None, ax: Axes | None, size: tuple[float, float]) -> Figure:
    if ax is None:
        return draw([[panel]], path, size=size)
    draw_panel(ax, panel)
    figure = cast("Figure", ax.get_figure(root=True))
    if path is not None:
        save(figure, path)
    return figure
