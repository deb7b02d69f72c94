"""`pisco reproduce`."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from pisco.cli.console import note, print_table, progress_bar, say, use_compilation_cache

if TYPE_CHECKING:
    from pisco.experiments.paper.figure import Figure


def reproduce(
    name: Annotated[str | None, typer.Argument(help="A figure or table (`--list`), or `all`.")] = None,
    quick: Annotated[
        bool, typer.Option("--quick", help="The same code on fewer seeds, rounds and step sizes.")
    ] = False,
    folder: Annotated[Path, typer.Option("--out", "-o", help="Folder to write to.")] = Path("reproduction"),
    show_list: Annotated[
        bool, typer.Option("--list", help="Name the figures and tables, then stop.")
    ] = False,
) -> None:
    """Compute a figure or table of the paper again, and say which of its claims hold.

    Example:

      pisco reproduce network-dependency
    """
    from pisco.errors import InputError, choose
    from pisco.experiments.paper.figures import FIGURES

    if show_list:
        rows = [(figure.name, figure.words) for figure in FIGURES.values()]
        print_table("Figures and tables", ("name", "what it shows"), rows)
        return
    if name is None:
        raise InputError("name a figure or table, or `all`; `pisco reproduce --list` has them")
    if name != "all":
        _one(choose("figure", name, FIGURES), quick, folder)
        return
    skipped = []
    for figure in FIGURES.values():
        try:
            _one(figure, quick, folder)
        except InputError as error:
            if not figure.needs:
                raise
            skipped.append(figure.name)
            note(f"skipped {figure.name}: {error}")
    if skipped:
        note(f"skipped because data is missing: {', '.join(skipped)}; everything else was computed")


def _one(figure: Figure, quick: bool, folder: Path) -> None:
    from pisco.cli.folders import writable
    from pisco.data import load
    from pisco.experiments.paper.figure import write

    writable(folder)
    if figure.needs:
        load(figure.needs)  # missing data is an error before anything is computed
    use_compilation_cache()
    found = figure.compute(quick, lambda words, rounds: progress_bar(rounds, words))
    shown = write(figure, found, folder, quick=quick)
    print_table(
        f"{figure.name}{' (quick)' * quick}",
        ("outcome", "claim", "measured", "by", "why"),
        [(v.outcome, v.claim, v.measured, v.statistic, v.why) for v in shown.verdicts],
    )
    if quick and any(verdict.depends_on_size for verdict in shown.verdicts):
        say("quick: verdicts may differ from those of the full size")
    say(f"written: {folder / figure.name}.*")
