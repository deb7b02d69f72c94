"""`pisco reproduce`."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from pisco.cli.console import note, print_table, progress_bar, say, use_compilation_cache

if TYPE_CHECKING:
    from pisco.errors import InputError
    from pisco.experiments.paper.figure import Figure


def reproduce(
    name: Annotated[str | None, typer.Argument(help="A figure or table (`--list`), or `all`.")] = None,
    quick: Annotated[
        bool, typer.Option("--quick", help="The same code on fewer seeds, rounds and step sizes.")
    ] = False,
    folder: Annotated[Path, typer.Option("--out", "-o", help="Folder to write to.")] = Path("reproduction"),
    show_list: Annotated[bool, typer.Option("--list", help="Name the figures and tables, then stop.")] = False,
) -> None:
    """Compute a figure or table of the paper again, and say which of its claims hold.

    What is finished is kept in the folder: after an interruption type the command again.

    Example:

      pisco reproduce network-dependency
    """
    from pisco.errors import InputError, choose
    from pisco.experiments.folders import writable
    from pisco.experiments.paper.figures import FIGURES

    if show_list:
        rows = [(figure.name, figure.words) for figure in FIGURES.values()]
        print_table("Figures and tables", ("name", "what it shows"), rows)
        return
    if name is None:
        raise InputError("name a figure or table, or `all`; `pisco reproduce --list` has them")
    wanted = list(FIGURES.values()) if name == "all" else [choose("figure", name, FIGURES)]
    writable(folder)
    missing = _missing_data(wanted)  # before anything is computed, which may take hours
    if missing and name != "all":
        raise missing[name]
    for each, error in missing.items():
        note(f"skipped {each}: {error}")
    use_compilation_cache()
    for figure in wanted:
        if figure.name in missing:
            continue
        try:
            _one(figure, quick, folder)
        except KeyboardInterrupt:
            note(f"interrupted; type the command again: finished studies are kept in {folder}")
            raise typer.Exit(130) from None
    if missing:
        note(f"skipped because data is missing: {', '.join(missing)}; everything else was computed")


def _missing_data(figures: Sequence[Figure]) -> dict[str, InputError]:
    """The figures whose data cannot be had, and why."""
    from pisco.data import load
    from pisco.errors import InputError

    missing = {}
    for figure in figures:
        try:
            if figure.needs:
                load(figure.needs)
        except InputError as error:
            missing[figure.name] = error
    return missing


def _one(figure: Figure, quick: bool, folder: Path) -> None:
    from pisco.experiments.paper.figure import kept, write
    from pisco.experiments.paper.work import Work

    verdicts = kept(figure, folder, quick=quick)
    words = "kept from before"
    if verdicts is None:
        work = Work(lambda words, rounds: progress_bar(rounds, words), folder)
        verdicts, words = write(figure, figure.compute(quick, work), folder, quick=quick).verdicts, "written"
    print_table(
        f"{figure.name}{' (quick)' * quick}",
        ("outcome", "claim", "measured", "by", "why"),
        [(v.outcome, v.claim, v.measured, v.statistic, v.why) for v in verdicts],
    )
    say(f"{words}: {folder / figure.name}.*")
