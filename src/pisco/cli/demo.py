"""`pisco demo`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from pisco.cli.console import note, out, progress_bar, say, say_json, size, table, use_compilation_cache

FOLDER = Path("pisco-demo")


def demo(
    folder: Annotated[Path, typer.Option("--out", "-o", help="Folder for picture and results.")] = FOLDER,
    rounds: Annotated[int | None, typer.Option(min=1, help="Rounds of every run (default: 500).")] = None,
    seeds: Annotated[int | None, typer.Option(min=1, help="Seeds of every run (default: 5).")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print the table as JSON.")] = False,
) -> None:
    """See the point in half a minute: a few server rounds save most of the gossip.

    PISCO on the bundled a9a over a ring of 10, for five probabilities p of reaching the server.

    Example:

      pisco demo --out my-demo
    """
    from pisco.experiments import demo as experiment
    from pisco.experiments.folders import writable
    from pisco.report import plot_demo

    writable(folder)
    use_compilation_cache()
    rounds = rounds or experiment.ROUNDS
    chosen = experiment.SEEDS if seeds is None else range(seeds)
    note(f"PISCO on a9a, a ring of 10: {len(experiment.POINTS)} values of p, {len(chosen)} seeds each")
    with progress_bar(rounds, "demo") as progress:
        results = experiment.run_demo(rounds=rounds, seeds=chosen, progress=progress)
    records = experiment.table(results)
    for point, result in zip(experiment.POINTS, results, strict=True):
        result.save(folder / f"p-{point.label.replace('^', '')}")
    picture = folder / "demo.png"
    plot_demo(
        results,
        records,
        training_target=experiment.TRAINING_TARGET,
        accuracy_target=experiment.ACCURACY_TARGET,
        path=picture,
    )
    if results[0].interrupted:
        note(f"interrupted after {results[0].rounds} of {rounds} rounds; type `pisco demo` to start again")
    if as_json:
        say_json({"targets": _targets(experiment), "seeds": list(chosen), "points": records, "plot": picture})
    else:
        _print(records, experiment)
        say(experiment.point_of(records))
        say(f"picture: {picture}   next: pisco plot {folder}/p-*")
    if results[0].interrupted:
        raise typer.Exit(130)


def _targets(experiment: Any) -> dict[str, float]:
    return {
        "grad_norm_sq_mean": experiment.TRAINING_TARGET,
        "test_accuracy": experiment.ACCURACY_TARGET,
    }


def _print(records: list[dict[str, Any]], experiment: Any) -> None:
    def number(value: float | None) -> str:
        return "–" if value is None else f"{value:.0f}"

    def amount(value: float | None) -> str:
        return "–" if value is None else size(value)

    target = f"‖∇f‖² ≤ {experiment.TRAINING_TARGET:g}"
    shown = table(
        f"The median seed's way to a running mean of {target}",
        *("p", "η_l", "rounds", "server rounds", "gossip rounds", "gossip saved"),
        *("server bytes", "gossip bytes", f"rounds to {experiment.ACCURACY_TARGET:.0%}"),
        right=tuple(range(1, 9)),
    )
    for record in records:
        saved = record["gossip_saved"]
        shown.add_row(
            record["p"],
            f"{record['local_lr']:g}",
            number(record["rounds"]) + ("*" if record["seeds_arrived"] < record["seeds"] else ""),
            number(record["server_rounds"]),
            number(record["gossip_rounds"]),
            "–" if saved is None else f"{saved:.0%}",
            amount(record["bytes_server"]),
            amount(record["bytes_gossip"]),
            number(record["rounds_to_accuracy"]),
        )
    out().print(shown)
    for record in records:
        if record["seeds_arrived"] < record["seeds"]:
            say(f"* p = {record['p']}: {record['seeds_arrived']} of {record['seeds']} seeds got there")
