"""The picture of a plan: what each p costs, and what the theory says of the network."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np

from pisco.errors import InputError
from pisco.report.panels import Bars, Curve, Panel, draw, interactive


class PlannedCost(NamedTuple):
    """The cheapest setting of one p: its price split by kind of link; not finite where no pilot came near."""

    server_prob: float
    gossip: float
    server: float
    measured: bool


def plan_panels(
    costs: Sequence[PlannedCost],
    chosen: float,
    unit: str,
    target: str,
    dependency: tuple[np.ndarray, np.ndarray],
) -> list[list[Panel]]:
    """Stacked bars of the price for every p, and λ_p^-2 beside them."""
    known = [cost for cost in costs if math.isfinite(cost.gossip + cost.server)]
    labels = [f"{cost.server_prob:.3g}" + ("" if cost.measured else " *") for cost in known]
    parts = {
        "between agents": np.array([cost.gossip for cost in known]),
        "to and from the server": np.array([cost.server for cost in known]),
    }
    bars = Bars(labels, parts, {"the plan": chosen} if math.isfinite(chosen) else {"the plan": 0.0})
    words = "seconds" if unit == "s" else "price"
    probs, values = dependency
    curve = Curve("network dependency", probs, values[None], 2)
    return [
        [
            Panel(
                f"{words} to {target}, best setting for each p",
                "p (* predicted, not measured)",
                words,
                bars=bars,
            ),
            Panel("what the theory expects of the network", "p", "λ_p⁻²", [curve], log_x=True, log_y=True),
        ]
    ]


def plot_plan(panels: list[list[Panel]], path: Path, title: str) -> Path:
    """As .png, or as an interactive .html page."""
    if path.suffix == ".html":
        return interactive(panels, path, title)
    if path.suffix != ".png":
        raise InputError(
            f"the picture {path} ends in {path.suffix or 'nothing'}; give a name in .png or .html"
        )
    draw(panels, path)
    return path
