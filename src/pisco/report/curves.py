"""Results as the numbers a page draws: curves of the points that a screen can show, networks frame by frame, labels."""

from __future__ import annotations

import base64
import itertools
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from pisco.networks.graph import Graph
from pisco.report.drawing import heads, places_of, segments
from pisco.report.panels import HUGE, failures_last
from pisco.report.plots import labels_of
from pisco.results import measured
from pisco.statistics import median_curve

if TYPE_CHECKING:
    from pisco.metrics import Metric
    from pisco.results import Result

POINTS = 400
"""About as many points of a curve are drawn."""
FRAME_BYTES = 750_000
"""What all playbacks of a page may take together, one byte for an agent in a frame."""
DECADES = 6
"""Agents closer to the mean than this many powers of ten below the furthest one get the same colour."""


def page_numbers(results: Sequence[Result]) -> dict[str, Any]:
    """Everything the charts of a page need, as plain lists and numbers."""
    known = measured(results)
    wild = any(result.diverged for result in results)
    measures = [
        {
            "name": name,
            "title": metric.title,
            "log": metric.log or (wild and metric.unit != "%"),
            "percent": metric.unit == "%",
        }
        for name, metric in known.items()
    ]
    drawn = [
        {"label": label, "seeds": len(result.seeds), "rounds": int(result.rounds), "wild": _wild(result)}
        | _curves(result, known)
        | {"network": _network(result, FRAME_BYTES // len(results)), "labels": _labels(result)}
        for result, label in zip(results, labels_of(results), strict=True)
    ]
    return {"measures": measures, "results": drawn}


def _wild(result: Result) -> bool:
    """Whether the median over seeds blew up, not only some of them."""
    return 2 * len(result.diverged_seeds) >= len(result.seeds)


def _curves(result: Result, known: Mapping[str, Metric]) -> dict[str, Any]:
    rows = drawn_rows(result)
    x = {"round": result.column("round")[0, rows].tolist()}
    if {"bytes_gossip", "bytes_server"} <= result.history.keys():
        sent = result.column("bytes_gossip") + result.column("bytes_server")
        x["megabytes"] = rounded(np.median(sent, axis=0)[rows] / 1e6, 6)
    counts = {"server": "messages_server", "gossip": "messages_gossip", "gradient": "gradients", "seconds": "seconds"}
    for kind, name in counts.items():
        if name in result.history:
            x[kind] = rounded(np.median(result.column(name), axis=0)[rows], 7)
    curves = {}
    for name, metric in known.items():
        if name not in result.history:
            continue
        values = failures_last(result.column(name)[:, rows].astype(float), rising=metric.rising)
        middle, low, high = median_curve(values)
        curves[name] = {"median": rounded(np.where(np.isfinite(middle), middle, np.nan))}
        seen = values[np.isfinite(values)]
        if len(values) > 1 and seen.size:
            curves[name] |= {"low": rounded(np.maximum(low, seen.min())), "high": rounded(np.minimum(high, seen.max()))}
    return {"measured": result.column("round").shape[1], "x": x, "y": curves}


def drawn_rows(result: Result) -> np.ndarray:
    """The measured rounds that are drawn: evenly and, for logarithmic axes, geometrically spaced; and every peak.

    A peak is where the mean loss is largest between two evenly spaced rounds, so that a short excursion is seen.
    """
    count = result.column("round").shape[1]
    if count <= POINTS:
        return np.arange(count)
    evenly = np.linspace(0, count - 1, POINTS // 2).astype(int)
    early = np.geomspace(1, count - 1, POINTS // 4).astype(int)
    if "loss" not in result.history:
        return np.unique(np.concatenate([evenly, early]))
    loss = result.column("loss").mean(axis=0)
    loss = np.where(np.isfinite(loss), loss, -np.inf)
    cuts = np.linspace(0, count, POINTS // 4 + 1).astype(int)
    peaks = [a + int(loss[a:b].argmax()) for a, b in itertools.pairwise(cuts)]
    return np.unique(np.concatenate([evenly, early, peaks]))


def _network(result: Result, budget: int) -> dict[str, Any]:
    known = result.agents
    if "num_agents" not in known:
        return {"absent": "this result does not describe its agents: there were too many, or it is an older result"}
    edges = known.get("edges", np.zeros((0, 2), int))
    one_way = "one_way" in known
    graph = Graph(int(known["num_agents"]), edges, positions=known.get("positions"), one_way=one_way)
    places = places_of(graph)
    lines: list[list[float | None]] = [[], []]
    drawn_lines = segments(graph, places)
    for segment in drawn_lines:
        for axis in (0, 1):
            lines[axis] += [*rounded(segment[:, axis], 3), None]
    drawn: dict[str, Any] = {"x": rounded(places[:, 0], 3), "y": rounded(places[:, 1], 3), "links": lines}
    drawn["degrees"] = [graph.out_degrees.tolist(), graph.in_degrees.tolist()] if one_way else [graph.degrees.tolist()]
    if one_way:
        tips = [
            points for each in heads(graph, places, drawn_lines) for head in each for points in (head, [[np.nan] * 2])
        ]
        drawn["heads"] = [rounded(column, 4) for column in np.concatenate([np.zeros((0, 2)), *tips]).T]
        drawn["note"] = "Links go one way, as their arrows show."
    if "edges" not in known:
        drawn["degrees"] = []
        drawn["note"] = "The links are too many to be drawn."
    if "frame_errors" in known:
        drawn["frames"] = _frames(result, budget)
    return drawn


def _frames(result: Result, budget: int) -> dict[str, Any]:
    rounds, errors = result.agents["frame_rounds"], result.agents["frame_errors"].astype(float)
    step = -(-errors.size // max(budget, 1))
    keep = np.unique(np.append(np.arange(0, len(rounds), step), len(rounds) - 1))
    rounds, errors = rounds[keep], np.where(np.isfinite(errors[keep]), errors[keep], HUGE)
    rows = np.searchsorted(result.column("round")[0], rounds)
    high = max(float(np.log10(max(errors.max(), 1e-30))), -29.0)
    low = max(high - DECADES, -30.0)
    with np.errstate(divide="ignore"):
        share = (np.log10(errors) - low) / (high - low)
    levels = np.clip(np.round(255 * share), 0, 255).astype(np.uint8)
    frames = {
        "round": rounds.tolist(),
        "error": rounded(errors.mean(axis=1), 3),
        "levels": base64.b64encode(levels.tobytes()).decode(),
        "low": low,
        "high": high,
        "seed": result.seeds[0],
    }
    for kind in ("server", "gossip"):
        used = result.column(f"{kind}_rounds")[0, rows]
        frames[kind] = np.diff(used, prepend=0).tolist()
    frames["part"] = _partly(result, rows).tolist()
    return frames


def _partly(result: Result, rows: np.ndarray) -> np.ndarray:
    """Whether, in the server rounds before each row, some links to or from the server were not used."""
    if not {"messages_server", "exchanges", "round"} <= result.history.keys():
        return np.zeros(len(rows), bool)
    messages, exchanges, server, rounds = (
        np.diff(result.column(name)[0, rows].astype(float), prepend=result.column(name)[0, 0])
        for name in ("messages_server", "exchanges", "server_rounds", "round")
    )
    each_round = exchanges / np.maximum(rounds, 1)
    return messages < server * each_round * 2 * int(result.agents["num_agents"]) - 0.5


def _labels(result: Result) -> dict[str, Any] | None:
    if "label_counts" not in result.agents:
        return None
    return {
        "names": [str(name) for name in result.agents["labels"].tolist()],
        "counts": result.agents["label_counts"].tolist(),
    }


def rounded(values: np.ndarray, digits: int = 4) -> list[float | None]:
    """Numbers with few digits, None where there is none: half the bytes, and nobody can see the rest.

    >>> rounded(np.array([1 / 3, 2.0, np.nan]))
    [0.3333, 2, None]
    """
    short = [float(f"{value:.{digits}g}") if np.isfinite(value) else None for value in np.asarray(values, float)]
    return [int(v) if v is not None and v.is_integer() and abs(v) < 1e15 else v for v in short]
