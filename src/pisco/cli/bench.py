"""`pisco bench`."""

from __future__ import annotations

import math
from pathlib import Path
from shlex import quote
from typing import TYPE_CHECKING, Annotated

import typer

from pisco.cli.completion import benchmarks, listed
from pisco.cli.console import cell, note, print_table, progress_bar, say, say_json, use_compilation_cache
from pisco.cli.options import Json

if TYPE_CHECKING:
    from pisco.experiments.bench.map import Scores

VIEWS = {
    "show": "the leaderboard and every ranking",
    "map": "who is cheapest where, in words and as a picture",
    "page": "a page to explore",
    "check": "how good proposals from measured cells are on cells that were left out",
    "pack": "all cells of a folder in one file",
}


def bench(
    what: Annotated[
        str,
        typer.Argument(
            help=f"A suite (quick, full, or a TOML file); or {', '.join(VIEWS)}.", autocompletion=benchmarks(*VIEWS)
        ),
    ],
    cells: Annotated[
        Path | None,
        typer.Argument(metavar="[FOLDER]", help="Cells to look at, or one file of them; else the package's."),
    ] = None,
    folder: Annotated[
        Path | None, typer.Option("--out", "-o", help="Folder of cells to write, or file of a view.")
    ] = None,
    part: Annotated[
        str, typer.Option(help="Which of how many parts, as in 1/4; they may run on different machines.")
    ] = "1/1",
    only: Annotated[
        str | None, typer.Option(help="Cells by pattern, in this order, as in 'a9a/ring-10/*,*/*/pisco*'.")
    ] = None,
    methods: Annotated[
        str | None,
        typer.Option(
            help="Other methods than the suite's, as in my.py:method,dsgt; of a view, those to compare.",
            autocompletion=listed("algorithms"),
        ),
    ] = None,
    by: Annotated[
        str, typer.Option(help="What is paid for: bytes or messages.", autocompletion=lambda: ["bytes", "messages"])
    ] = "bytes",
    ratio: Annotated[
        float, typer.Option(min=0, help="Price of a server message over a neighbour's, for `show`.")
    ] = 10.0,
    as_json: Json = False,
) -> None:
    """Measure methods on tasks and networks, each tuned by one rule; or look at what was measured.

    Every cell (a task, a network, a method) is a file: after an interruption type the command again, and copy the cells
    of several machines into one folder. Views show the cells of a folder beside ours of the same tasks and networks.

    Examples:

      pisco bench quick --out bench

      pisco bench full --out bench --part 1/8

      pisco bench full --methods my.py:method --only 'a9a/ring-10/*' --out mine

      pisco bench show mine

      pisco bench page mine -o bench.html
    """
    from pisco.errors import InputError, check_number, choose
    from pisco.experiments.bench.scores import CURRENCIES

    check_number("--ratio", ratio, low=0)
    choose("currency", by, dict.fromkeys(CURRENCIES))
    if cells is not None and what not in VIEWS:
        raise InputError(f"{cells} is one argument too many for a suite; write --out {cells} for its folder")
    if what in VIEWS:
        _view(what, cells, folder, by, ratio, as_json, methods)
        return
    _measure(what, folder or Path(f"bench-{Path(what).stem}"), part, only, methods, as_json)


def _measure(name: str, folder: Path, part: str, only: str | None, methods: str | None, as_json: bool) -> None:
    from pisco.experiments.bench.runner import run_suite
    from pisco.experiments.bench.suite import Place, load, parse_part
    from pisco.experiments.folders import writable

    suite, chosen = load(name), parse_part(part)
    if methods is not None:
        suite = suite.with_methods([each.strip() for each in methods.split(",")])
    suite.places(only, chosen)
    writable(folder)
    use_compilation_cache()
    with progress_bar(1, "") as bar:

        def started(place: Place, at: int, of: int) -> None:
            bar.describe(f"{at}/{of} {place.name}")

        try:
            done = run_suite(suite, folder, only=only, part=chosen, started=started)
        except KeyboardInterrupt:
            note(f"interrupted; type the command again: finished cells are kept in {folder}")
            raise typer.Exit(130) from None
    for task, why in done.skipped.items():
        note(f"skipped {task}: {why}")
    for why in dict.fromkeys(done.refused.values()):
        names = [name for name, other in done.refused.items() if other == why]
        note(f"refused {names[0]}{f' and {len(names) - 1} more' * (len(names) > 1)}: {why}")
    if as_json:
        say_json(done)
        return
    kinds = {"measured": done.measured, "kept from before": done.kept, "refused by the network": done.refused}
    say(", ".join(f"{len(names)} {kind}" for kind, names in kinds.items()) + f", in {done.seconds:.0f} s")
    say(f"next: pisco bench show {quote(str(folder))}")


def _view(
    what: str, cells: Path | None, out: Path | None, by: str, ratio: float, as_json: bool, methods: str | None
) -> None:
    from pisco.errors import InputError
    from pisco.experiments.bench.page import write_page
    from pisco.experiments.bench.scores import by_setting, few, whole
    from pisco.experiments.bench.store import read, write_packed

    found = read(cells)
    if what in ("page", "pack"):
        path = out or Path({"page": "bench.html", "pack": "bench.json"}[what])
        write_page(found, path) if what == "page" else write_packed(found, path)
        say(f"written: {path}")
        return
    every = by_setting(found)
    scores = whole(every) if methods is None else few(every, [name.strip() for name in methods.split(",")])
    if not scores and methods is None:
        whys = dict.fromkeys(why for each in found for why in each.get("refused", ()))
        raise InputError(f"every cell there was refused: {'; '.join(whys)}")
    if not scores:
        raise InputError(f"no two of {methods} were measured on one task and network; name others, as in pisco,led")
    if methods is None and len(scores) < len(every):
        note(
            f"{len(every) - len(scores)} tasks and networks are left out: fewer than two fifths of the methods ran "
            "there; compare those with --methods, as in --methods pisco,proxskip,led,exact-diffusion"
        )
    {"show": _show, "map": _map, "check": _check}[what](scores, out, by, ratio, as_json)


def _show(scores: Scores, out: Path | None, by: str, ratio: float, as_json: bool) -> None:
    from pisco.experiments.bench.map import leaderboard
    from pisco.experiments.bench.scores import COLUMNS, ranking
    from pisco.files import write_csv

    board = leaderboard(scores, ratio, by)
    more = [name for name in COLUMNS if name != "seconds"] if as_json or out is not None else []
    records = [
        {
            "task": at[0],
            "network": at[1],
            "method": each.score.method,
            "p": each.score.server_prob,
            "local_lr": each.score.local_lr,
            "price": each.price,
            "rounds": each.score.sample("round").median,
            "missed": int(each.score.missed.sum()),
            "talks to": each.score.kind,
            "seconds": None if (clock := each.score.seconds()) is None else clock.value,
            **{name: each.score.sample(name).median for name in more},
        }
        for at, some in scores.items()
        for each in ranking(some, ratio, by)
    ]
    if out is not None:
        write_csv(out, [{name: getattr(value, "value", value) for name, value in record.items()} for record in records])
    if as_json:
        say_json({"leaderboard": board, "cells": records})
        return
    for at in scores:
        rows = [
            (
                record["method"],
                cell(record["p"]),
                cell(record["price"]),
                record["rounds"].words("{:.0f}".format),
                str(record["missed"]),
                cell(record["seconds"]),
                record["talks to"],
            )
            for record in records
            if (record["task"], record["network"]) == at
        ]
        headers = ("method", "p", f"price by {by}", "rounds", "missed", "seconds", "talks to")
        print_table(f"{at[0]} on {at[1]}, the server {ratio:g} times a neighbour", headers, rows, right=range(1, 6))
    print_table(
        f"Over {len(scores)} tasks and networks, by {by}, the server {ratio:g} times a neighbour",
        ("method", "cheapest", "reached", "ran", "median × the cheapest"),
        [
            (
                row["method"],
                str(row["cheapest"]),
                str(row["reached"]),
                str(row["ran"]),
                cell(row["median × the cheapest"]),
            )
            for row in board
        ],
        right=range(1, 5),
    )


def _map(scores: Scores, out: Path | None, by: str, ratio: float, as_json: bool) -> None:
    from pisco.experiments.bench.map import sentences, stretches, theory_sentences, write_map
    from pisco.experiments.bench.scores import chart

    squares = chart(scores, currency=by)
    told, theory = sentences(scores, currency=by), theory_sentences(scores, currency=by)
    rows = {at: stretches(some) for at, some in squares.items()}
    picture = None if out is None else write_map(scores, out, currency=by)
    if as_json:
        winners = [
            {"task": at[0], "network": at[1], "ratio": s.ratio, "first": s.first.score.label, "margin": s.margin}
            for at, some in squares.items()
            for s in some
        ]
        say_json({"squares": winners, "words": told, "theory": theory, "picture": picture})
        return
    facts = {at: f"{scores[at][0].cell['mixing_rate']:.2g}" for at in rows}
    print_table(
        f"The cheapest by {by}, as the server's price over a neighbour's goes from 0.1 to 1000",
        ("task", "network", "λ", "cheapest"),
        [(*at, facts[at], words) for at, words in rows.items()],
    )
    for sentence in [*told, *theory]:
        say(sentence)
    if picture is not None:
        say(f"picture: {picture}")


def _check(scores: Scores, out: Path | None, by: str, ratio: float, as_json: bool) -> None:
    from pisco.errors import InputError
    from pisco.experiments.bench.learned import leave_one_out, summary

    rows = summary(leave_one_out(scores, currency=by))
    if not rows:
        raise InputError("cells of one network alone propose nothing for another; measure a task on two or more")
    if as_json:
        say_json({"proposals": rows})
        return
    print_table(
        f"Price by {by} over the best that was measured, on cells that were left out",
        ("proposal", "squares", "median", "90%", "within 1.15"),
        [
            (
                row["proposal"],
                str(row["cells"]),
                *(cell(row[q], ".3f") if math.isfinite(row[q]) else "missed" for q in ("median", "90%")),
                f"{row['within 1.15']:.0%}",
            )
            for row in rows
        ],
        right=range(1, 5),
    )
