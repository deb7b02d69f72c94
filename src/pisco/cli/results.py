"""`pisco plot`, `pisco show` and `pisco export`: what to do with results."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from pisco.cli.console import print_table, say, say_json, size
from pisco.cli.options import Goals

if TYPE_CHECKING:
    from pisco.results import Result

Folders = Annotated[list[Path], typer.Argument(metavar="RESULT…", help="Folders that `pisco run` wrote.")]


def plot(
    folders: Folders,
    picture: Annotated[Path, typer.Option("--out", "-o", help="File to write: .png, .svg, .pdf or .html.")] = Path(
        "pisco-plot.png"
    ),
    columns: Annotated[
        list[str] | None, typer.Option("--column", "-c", help="What to draw; see `pisco list metrics`.")
    ] = None,
) -> None:
    """Draw results side by side, against rounds and against bytes.

    Example:

      pisco plot results/a9a results/dsgd -o compared.png
    """
    from pisco.report import plot_results

    plot_results(read_results(folders), picture, columns)
    say(f"picture: {picture}")


def show(
    folders: Folders,
    targets: Goals = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print the table as JSON.")] = False,
) -> None:
    """Compare results: rounds and bytes to every target.

    Example:

      pisco show results/a9a results/dsgd --targets loss=0.4
    """
    from pisco.results import compare
    from pisco.targets import parse_targets, reached

    results, goals = read_results(folders), parse_targets(targets)
    held = {name: bound for name, bound in goals.items() if targets or any(name in r.history for r in results)}
    records = compare(results, held)
    if as_json:
        say_json([{"folder": str(f)} | record for f, record in zip(folders, records, strict=True)])
        return
    signs = {True: "≥", False: "≤"}
    bounds = {
        f" to {goal.column}": f" {signs[bool(goal.metric.rising)]} {goal.bound:g}"
        for found in reached(results, held)
        for goal, _ in found
    }

    def title(name: str) -> str:
        bound = next((words for ending, words in bounds.items() if name.endswith(ending)), "")
        return name.replace("_", " ") + bound

    timed = any("seconds" in result.history for result in results)
    fields = [
        name
        for name in records[0]
        if name not in ("label", "diverged")
        and ", " not in name
        and (timed or not name.startswith("seconds to "))
        and not (name.startswith("final ") and all(record[name] is None for record in records))
    ]
    rows = [
        ("folder", *(str(folder) for folder in folders)),
        ("rounds run", *(str(result.rounds) for result in results)),
        ("measured every", *(_stride(result) for result in results)),
        *((title(name), *(_words(name, record) for record in records)) for name in fields),
        ("diverged", *("yes" if record["diverged"] else "no" for record in records)),
    ]
    print_table("Results, medians over seeds", ("", *(record["label"] for record in records)), rows)


def export(
    folder: Annotated[Path, typer.Argument(metavar="RESULT", help="A folder that `pisco run` wrote.")],
    file: Annotated[Path, typer.Option("--out", "-o", help="The CSV file to write.")],
) -> None:
    """Write a result's history as CSV: one row per seed and measured round.

    Example:

      pisco export results/a9a -o a9a.csv
    """
    read_results([folder])[0].to_csv(file)
    say(f"written: {file}")


def _stride(result: Result) -> str:
    """How far apart measurements are: a target is seen to be met at the next one."""
    steps = result.column("round")[0]
    most = int((steps[1:] - steps[:-1]).max(initial=0))
    return "round" if most == 1 else f"{most:,} rounds" if most else "–"


def _words(name: str, record: Mapping[str, Any]) -> str:
    value, column = record[name], name.partition(" to ")[2]
    if value is None:
        return "not measured" if not column or record[f"seeds to {column}"] is None else "not reached"
    return size(value) if name.startswith("bytes") else f"{value:,.5g}"


def read_results(folders: list[Path]) -> list[Result]:
    """Every folder's result; those with the same label are called by their folders."""
    from pisco.results import Result

    results = [Result.load(folder) for folder in folders]
    labels = [result.label for result in results]
    for folder, result in zip(folders, results, strict=True):
        if not result.label or labels.count(result.label) > 1:
            result.label = folder.name or str(folder)
    return results
