"""`pisco network`."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from pisco.cli.completion import listed
from pisco.cli.console import key_values, note, out, say, say_json, table

if TYPE_CHECKING:
    from pisco.networks.network import Network

PROBABILITIES = (0.0, 0.01, 0.1, 0.316, 1.0)


def network(
    family: Annotated[
        str,
        typer.Argument(
            help="A graph (`pisco list graphs`), or a file such as roads.graphml.",
            autocompletion=listed("graphs"),
        ),
    ],
    agents: Annotated[
        int | None, typer.Option("--agents", "-n", help="How many agents (default: 10, or as a file has).")
    ] = None,
    weights: Annotated[str, typer.Option("--weights", "-w", help="See `pisco list weights`.")] = "metropolis",
    prob: Annotated[float | None, typer.Option(help="Chance of an edge (erdos-renyi).")] = None,
    rows: Annotated[int | None, typer.Option(help="Rows (grid, torus).")] = None,
    seed: Annotated[int | None, typer.Option(help="Of a random graph.")] = None,
    options: Annotated[
        list[str] | None,
        typer.Option("--option", metavar="KEY=VALUE", help="Any other option of graph or weights."),
    ] = None,
    picture: Annotated[
        Path | None, typer.Option("--out", "-o", help="File for the picture (default: FAMILY-AGENTS.png).")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print the numbers as JSON.")] = False,
) -> None:
    """Look at a network: degrees, how fast it mixes with and without the server, and a picture.

    Examples:

      pisco network ring --agents 10 --weights fdla

      pisco network erdos-renyi --agents 10 --prob 0.3 --seed 12 --option lazy=true
    """
    from pisco.networks.drawing import DRAW_UP_TO, draw
    from pisco.networks.graphs import GRAPHS
    from pisco.report.style import save
    from pisco.settings.tables import NetworkTable, checked

    named = {"prob": prob, "rows": rows, "seed": seed}
    given = {name: value for name, value in named.items() if value is not None} | key_values(options)
    settings = {"graph": family, "weights": weights} | given
    if agents is not None or not GRAPHS.is_data(family):
        settings["agents"] = 10 if agents is None else agents
    built = checked(NetworkTable, settings, "network").build()
    numbers = _numbers(built)
    if as_json:
        say_json(numbers)
    else:
        _print(built, numbers)
    if numbers["components"] > 1:
        note(
            f"warning: {built.graph.name} has {numbers['components']} components, so agents can only agree "
            "through the server; use another seed, more edges, or a server schedule"
        )
    if picture is not None or built.num_agents <= DRAW_UP_TO:
        picture = picture or Path(f"{Path(family).stem}-{built.num_agents}.png")
        save(draw(built.graph, built.weights), picture)
        (note if as_json else say)(f"picture: {picture}")


def _numbers(built: Network) -> dict[str, Any]:
    import numpy as np

    from pisco.networks.spectral import eigenvalue_extremes

    degrees = built.graph.degrees
    rate = built.mixing_rate
    return {
        "network": built.graph.name,
        "weights": built.weights_name,
        "agents": built.num_agents,
        "edges": built.graph.num_edges,
        "degree_min": int(degrees.min()),
        "degree_mean": float(degrees.mean()),
        "degree_max": int(degrees.max()),
        "components": len(np.unique(built.graph.components())),
        "mixing_rate": rate,
        "expected_mixing_rate": {f"{p:g}": built.expected_mixing_rate(p) for p in PROBABILITIES},
        "smallest_eigenvalue": eigenvalue_extremes(built.weights)[0],
    }


def _print(built: Network, numbers: dict[str, Any]) -> None:
    shown = table(f"{built.graph.name}, {built.weights_name} weights", "", "", right=(1,))
    degrees = f"{numbers['degree_min']} / {numbers['degree_mean']:.3g} / {numbers['degree_max']}"
    parts = numbers["components"]
    shown.add_row("agents", f"{numbers['agents']}")
    shown.add_row("edges", f"{numbers['edges']}")
    shown.add_row("degree, least / mean / most", degrees)
    shown.add_row("connected", "yes" if parts == 1 else f"no, {parts} components")
    shown.add_row("mixing rate λ_w", f"{numbers['mixing_rate']:.6g}")
    for p, rate in numbers["expected_mixing_rate"].items():
        shown.add_row(f"λ_p with the server at p = {p}", f"{rate:.6g}")
    shown.add_row("smallest eigenvalue of W", f"{round(numbers['smallest_eigenvalue'], 12):.6g}")
    out().print(shown)
