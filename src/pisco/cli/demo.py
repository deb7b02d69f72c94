"""`pisco demo`."""

from __future__ import annotations

from pathlib import Path
from shlex import quote
from typing import Annotated, Any

import typer

from pisco.cli.console import cell, note, print_table, progress_bar, say, say_json, size, use_compilation_cache
from pisco.display import plural

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

    writable(folder)
    use_compilation_cache()
    rounds = rounds or experiment.ROUNDS
    chosen = experiment.SEEDS if seeds is None else range(seeds)
    seeds_each = f"{len(chosen)} seed{'s' * (len(chosen) != 1)} each"
    note(f"PISCO on a9a, a ring of 10: {len(experiment.POINTS)} values of p, {seeds_each}")
    with progress_bar(rounds, "demo") as progress:
        results = experiment.run_demo(rounds=rounds, seeds=chosen, progress=progress)
    records = experiment.table(results)
    if not as_json:  # before anything can fail that is written
        _print(records, experiment)
        say(experiment.point_of(records))
    picture = experiment.write(results, records, folder)
    if results[0].interrupted:
        note(f"interrupted after {results[0].rounds} of {plural(rounds, 'round')}; type `pisco demo` to start again")
    if as_json:
        targets = {"grad_norm_sq_mean": experiment.TRAINING_TARGET, "test_accuracy": experiment.ACCURACY_TARGET}
        say_json({"targets": targets, "seeds": list(chosen), "points": records, "plot": picture})
    else:
        say(f"picture: {picture}   next: pisco report {quote(str(folder))}/p-*")
    if results[0].interrupted:
        raise typer.Exit(130)


def _print(records: list[dict[str, Any]], experiment: Any) -> None:
    target = f"‖∇f‖² ≤ {experiment.TRAINING_TARGET:g}"
    print_table(
        f"The median seed's way to a running mean of {target}",
        (
            *("p", "η_l", "rounds", "server rounds", "gossip rounds", "gossip saved"),
            *("server bytes", "gossip bytes", f"rounds to {experiment.ACCURACY_TARGET:.0%}"),
        ),
        [
            (
                record["p"],
                f"{record['local_lr']:g}",
                cell(record["rounds"], ".0f") + ("*" if record["seeds_arrived"] < record["seeds"] else ""),
                cell(record["server_rounds"], ".0f"),
                cell(record["gossip_rounds"], ".0f"),
                cell(record["gossip_saved"], ".0%"),
                size(record["bytes_server"]),
                size(record["bytes_gossip"]),
                cell(record["rounds_to_accuracy"], ".0f"),
            )
            for record in records
        ],
        right=range(1, 9),
    )
    for record in records:
        if record["seeds_arrived"] < record["seeds"]:
            say(f"* p = {record['p']}: {record['seeds_arrived']} of {record['seeds']} seeds got there")
