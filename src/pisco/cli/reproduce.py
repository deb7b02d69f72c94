"""`pisco reproduce`."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from pisco.cli.console import csv_text, note, out, progress_bar, say, table, use_compilation_cache

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
    """Compute a figure or table of the paper anew, and say which of its claims hold.

    Example:

      pisco reproduce network-dependency
    """
    from pisco.errors import InputError, choose
    from pisco.experiments.paper.figures import FIGURES

    if show_list:
        shown = table("Figures and tables", "name", "what it shows")
        for figure in FIGURES.values():
            shown.add_row(figure.name, figure.words)
        out().print(shown)
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
        note(f"skipped for want of data: {', '.join(skipped)}; everything else was computed")


def _one(figure: Figure, quick: bool, folder: Path) -> None:
    from pisco.data import load
    from pisco.experiments.folders import writable

    writable(folder)
    if figure.needs:
        load(figure.needs)  # said before anything is computed
    use_compilation_cache()

    def stage(words: str, rounds: int) -> Any:
        return progress_bar(rounds, words)

    write(figure, figure.compute(quick, stage), folder, quick=quick)


def write(figure: Figure, found: Any, folder: Path, *, quick: bool = False) -> None:
    """Write the picture, the page, the numbers, settings and verdicts of what was computed, and print the verdicts."""
    import jax

    from pisco._version import __version__
    from pisco.report.panels import draw, interactive

    shown = figure.present(found)
    stem = folder / figure.name
    if shown.panels:
        draw(shown.panels, f"{stem}.png")
        interactive(shown.panels, f"{stem}.html", f"{figure.name}: {figure.words}")
    if shown.markdown:
        Path(f"{stem}.md").write_text(shown.markdown + "\n", encoding="utf-8")
    Path(f"{stem}.csv").write_text(csv_text(shown.records), encoding="utf-8")
    made = {"figure": figure.name, "quick": quick, "pisco": __version__, "jax": jax.__version__}
    made["device"] = jax.devices()[0].device_kind
    _json(f"{stem}-settings.json", made | {"settings": shown.settings})
    _json(f"{stem}-verdicts.json", [verdict._asdict() for verdict in shown.verdicts])
    verdicts = table(f"{figure.name}{' (quick)' * quick}", "outcome", "claim", "measured", "by", "why")
    for verdict in shown.verdicts:
        verdicts.add_row(verdict.outcome, verdict.claim, verdict.measured, verdict.statistic, verdict.why)
    out().print(verdicts)
    if quick and any(verdict.depends_on_size for verdict in shown.verdicts):
        say("quick: verdicts may differ from those of the full size")
    say(f"written: {stem}.*")


def _json(path: str, value: Any) -> None:
    Path(path).write_text(
        json.dumps(value, indent=2, ensure_ascii=False, default=str) + "\n", encoding="utf-8"
    )
