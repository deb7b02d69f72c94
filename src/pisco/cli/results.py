"""`pisco plot`, `pisco show` and `pisco export`: what to do with results."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from pisco.cli.console import out, say, say_json, size, table

if TYPE_CHECKING:
    from pisco.results import Result

Folders = Annotated[list[Path], typer.Argument(metavar="RESULT…", help="Folders that `pisco run` wrote.")]


def plot(
    folders: Folders,
    picture: Annotated[
        Path, typer.Option("--out", "-o", help="File to write: .png, .svg, .pdf or .html.")
    ] = Path("pisco-plot.png"),
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
    target: Annotated[float, typer.Option(help="Bound for the running mean of ‖∇f(x̄)‖².")] = 0.05,
    accuracy: Annotated[float, typer.Option(help="Test accuracy to reach.")] = 0.8,
    as_json: Annotated[bool, typer.Option("--json", help="Print the table as JSON.")] = False,
) -> None:
    """Compare results: rounds and bytes to a training target and to a test accuracy.

    Example:

      pisco show results/a9a results/dsgd --target 0.02
    """
    from pisco.results import compare

    results = read_results(folders)
    targets = {"grad_norm_sq_mean": target, "test_accuracy": accuracy}
    common = {name: bound for name, bound in targets.items() if all(name in r.history for r in results)}
    records = compare(results, common)
    if as_json:
        say_json([{"folder": str(f)} | record for f, record in zip(folders, records, strict=True)])
        return
    fields = [name for name in records[0] if name not in ("label", "diverged")]
    shown = table("Results, means over seeds", "", *(record["label"] for record in records))
    shown.add_row("folder", *(str(folder) for folder in folders))
    shown.add_row("rounds run", *(str(result.rounds) for result in results))
    for name in fields:
        shown.add_row(name.replace("_", " "), *(_cell(name, record[name]) for record in records))
    shown.add_row("diverged", *("yes" if record["diverged"] else "no" for record in records))
    out().print(shown)


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


def _cell(name: str, value: float | None) -> str:
    if value is None:
        return "not reached"
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
