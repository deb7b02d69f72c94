"""`pisco network`."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Annotated

import typer

from pisco.cli.completion import listed
from pisco.cli.console import key_values, note, picture, print_table, say, say_json

DEGREES = {
    "degree": "degree",
    "out_degree": "out-degree (an agent sends to)",
    "in_degree": "in-degree (an agent hears)",
}


def network(
    family: Annotated[
        str,
        typer.Argument(
            help="A graph (`pisco list graphs`), or a file such as roads.graphml.", autocompletion=listed("graphs")
        ),
    ],
    agents: Annotated[
        int | None, typer.Option("--agents", "-n", help="How many agents (default: 10, or as a file has).")
    ] = None,
    weights: Annotated[
        str, typer.Option("--weights", "-w", help="See `pisco list weights`.", autocompletion=listed("weights"))
    ] = "metropolis",
    prob: Annotated[float | None, typer.Option(help="Chance of an edge (erdos-renyi).")] = None,
    rows: Annotated[int | None, typer.Option(help="Rows (grid, torus).")] = None,
    seed: Annotated[int | None, typer.Option(help="Seed of a random graph.")] = None,
    options: Annotated[
        list[str] | None, typer.Option("--option", metavar="KEY=VALUE", help="Any other option of graph or weights.")
    ] = None,
    out: Annotated[
        Path | None, typer.Option("--out", "-o", help="File for the picture (default: FAMILY-AGENTS.png).")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print the numbers as JSON.")] = False,
) -> None:
    """Look at a network: degrees, how fast it mixes with and without the server, and a picture.

    Examples:

      pisco network ring --agents 10 --weights fdla

      pisco network erdos-renyi --agents 10 --prob 0.3 --seed 12 --option lazy=true
    """
    from pisco.networks.facts import facts
    from pisco.networks.graphs import GRAPHS
    from pisco.report.setup_plots import DRAW_UP_TO, plot_network
    from pisco.settings.tables import NetworkTable, checked

    named = {"prob": prob, "rows": rows, "seed": seed}
    given = {name: value for name, value in named.items() if value is not None} | key_values(options)
    settings = {"graph": family, "weights": weights} | given
    if agents is not None or not GRAPHS.is_data(family):
        settings["agents"] = 10 if agents is None else agents
    built = checked(NetworkTable, settings, "network").build()
    found = facts(built)
    parts = found["components"]
    if as_json:
        say_json(found)
    else:
        rates = found["expected_mixing_rate"].items()
        shown = {
            "agents": f"{found['agents']}",
            "links, one way" if found["one_way"] else "edges": f"{found['edges']}",
            **{
                f"{words}, least / mean / most": f"{found[f'{name}_min']} / {found[f'{name}_mean']:.3g} / "
                f"{found[f'{name}_max']}"
                for name, words in DEGREES.items()
                if f"{name}_min" in found
            },
            "connected": "yes" if parts == 1 else f"no, {parts} components",
            "mixing rate λ_w": f"{found['mixing_rate']:.6g}",
            **{f"λ_p with the server at p = {p}": f"{rate:.6g}" for p, rate in rates},
            "smallest eigenvalue of W": f"{round(found['smallest_eigenvalue'], 12) + 0.0:.6g}",
        }
        print_table(f"{found['network']}, {found['weights']} weights", ("", ""), shown.items(), right=(1,))
    if parts > 1:
        note(
            f"warning: {found['network']} has {parts} components, so agents can only agree "
            "through the server; use another seed, more edges, or a server schedule"
        )
    if out is not None or built.num_agents <= DRAW_UP_TO:
        usual = f"{Path(family).stem}-{built.num_agents}.png"
        picture(out, usual, partial(plot_network, built.graph, built.weights), note if as_json else say)
