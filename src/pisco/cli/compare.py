"""`pisco compare` and `pisco tune`."""

from __future__ import annotations

import math
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from pisco.cli.completion import experiments, listed
from pisco.cli.console import csv_text, note, out, progress_bar, say, say_json, table, use_compilation_cache
from pisco.report.numbers import size

if TYPE_CHECKING:
    from pisco.results import Result


Experiment = Annotated[
    str, typer.Argument(help="A TOML file, or a preset (`pisco list presets`).", autocompletion=experiments)
]
Set = Annotated[
    list[str] | None, typer.Option("--set", help="Replace a setting, as in network.server_prob=0.2.")
]
Grid = Annotated[str | None, typer.Option(help="Step sizes to try, as in 0.01,0.05,0.2.")]
Goals = Annotated[
    str | None,
    typer.Option(
        "--targets",
        metavar="COLUMN=BOUND,…",
        help="What to reach; the first one tunes.",
        show_default="grad_norm_sq_mean=0.05,test_accuracy=0.8",
    ),
]
Rounds = Annotated[int | None, typer.Option(min=1, help="Rounds of every run, instead of the experiment's.")]
Json = Annotated[bool, typer.Option("--json", help="Print the table as JSON.")]


def tune(
    experiment: Experiment,
    settings: Set = None,
    grid: Grid = None,
    targets: Goals = None,
    rounds: Rounds = None,
    seeds: Annotated[int, typer.Option(min=1, help="Tuning seeds, from 100 on.")] = 3,
    as_json: Json = False,
) -> None:
    """Find a step size by trying: one grid, one stated rule.

    Example:

      pisco tune a9a --set network.server_prob=0 --rounds 500
    """
    from pisco.experiments import tune as tuning
    from pisco.targets import parse_targets

    config = load_experiment(experiment, settings, rounds)
    use_compilation_cache()
    chosen = _numbers(grid) or tuning.GRID
    with progress_bar(config.run.rounds, f"tuning {config.algorithm.name}") as progress:
        tuned = tuning.tune(
            config,
            grid=chosen,
            targets=parse_targets(targets),
            seeds=range(100, 100 + seeds),
            progress=progress,
        )
    if as_json:
        trials = [trial._asdict() for trial in tuned.trials]
        say_json({"local_lr": tuned.local_lr, "rule": tuning.RULE, "trials": trials})
        return
    shown = table(
        "Every step size", "η_l", "mean rounds to the target", "‖∇f‖² at the end (running mean)", right=(1, 2)
    )
    for trial in tuned.trials:
        mark = " ←" if trial.local_lr == tuned.local_lr else ""
        shown.add_row(f"{trial.local_lr:g}{mark}", _number(trial.rounds), _small(trial.ending))
    out().print(shown)
    say(f"rule: {tuning.RULE}")
    say(f"next: pisco run {experiment} --set algorithm.local_lr={tuned.local_lr:g}")


def compare(
    experiment: Experiment,
    algorithms: Annotated[
        str | None,
        typer.Option(
            help="Methods to compare (`pisco list algorithms`), as in pisco,dsgd.",
            autocompletion=listed("algorithms"),
        ),
    ] = None,
    settings: Set = None,
    grid: Grid = None,
    targets: Goals = None,
    rounds: Rounds = None,
    seeds: Annotated[int, typer.Option(min=1, help="Seeds to report, from 0 on.")] = 3,
    same_network: Annotated[
        bool, typer.Option(help="Run every method on the experiment's own network, not on its published one.")
    ] = False,
    price_server: Annotated[
        float, typer.Option(min=0, help="Price of a message to or from the server.")
    ] = 10.0,
    price_gossip: Annotated[float, typer.Option(min=0, help="Price of a message between agents.")] = 1.0,
    folder: Annotated[
        Path | None, typer.Option("--out", "-o", help="Folder; finished methods are kept there.")
    ] = None,
    as_json: Json = False,
) -> None:
    """Compare methods: each tuned on one grid, then rounds, bytes and price to the targets.

    Every method runs on the network it is published on; PISCO and its forms on the experiment's.

    Example:

      pisco compare a9a --algorithms pisco,pisco-one-exchange,dsgd --rounds 300
    """
    from pisco.algorithms import ALGORITHMS
    from pisco.experiments import compare as comparing
    from pisco.experiments.folders import writable
    from pisco.experiments.tune import GRID, RULE
    from pisco.report.compare_plot import Line, plot_comparison
    from pisco.targets import parse_targets

    base, goals = load_experiment(experiment, settings, rounds), parse_targets(targets)
    folder = folder or Path(f"compare-{base.name}")
    methods = [name.strip() for name in algorithms.split(",")] if algorithms else comparing.USUAL
    prices, chosen = comparing.Prices(price_server, price_gossip), _numbers(grid) or GRID
    for method in methods:
        _ = ALGORITHMS[method]
    writable(folder)
    use_compilation_cache()
    with progress_bar(base.run.rounds, "") as progress:
        place = {method: index + 1 for index, method in enumerate(methods)}

        def started(method: str, stage: str) -> None:
            progress.describe(f"{place[method]}/{len(methods)} {stage} {method}")

        entries = comparing.compare(
            base,
            methods,
            folder=folder,
            targets=goals,
            grid=chosen,
            seeds=range(seeds),
            own_network=not same_network,
            started=started,
            progress=progress,
        )
    interrupted = len(entries) < len(methods)
    if not entries:
        note("interrupted before the first method was finished")
        raise typer.Exit(130)
    records = [entry.record(goals, prices) for entry in entries]
    lines = []
    for entry in entries:
        column = entry.result.column
        lines.append(
            Line(
                entry.method,
                column("grad_norm_sq_mean"),
                column("test_accuracy") if "test_accuracy" in entry.result.history else None,
                column("round"),
                (column("bytes_server") + column("bytes_gossip")) / 1e6,
                entry.spent(prices),
            )
        )
    picture = folder / "compare.png"
    plot_comparison(lines, picture)
    (folder / "compare.csv").write_text(csv_text(records))
    if as_json:
        say_json(
            {"targets": goals, "prices": prices._asdict(), "rule": RULE, "methods": records, "plot": picture}
        )
    else:
        _print(records, goals, entries[0].result)
        say(f"step sizes from {', '.join(f'{lr:g}' for lr in chosen)} by the rule: {RULE}")
        say(f"picture: {picture}   table: {folder / 'compare.csv'}")
    if interrupted:
        note(f"interrupted; type the command again: finished methods are kept in {folder}")
        raise typer.Exit(130)


def load_experiment(experiment: str, settings: list[str] | None, rounds: int | None) -> Any:
    """The experiment with settings replaced."""
    from pisco.experiments.loading import load

    extra = [] if rounds is None else [f"run.rounds={rounds}"]
    return load(experiment, [*(settings or ()), *extra])


def _numbers(text: str | None) -> tuple[float, ...]:
    from pisco.errors import InputError

    try:
        return tuple(float(part) for part in text.split(",")) if text else ()
    except ValueError:
        raise InputError(f"the grid {text!r} is no list of numbers; write 0.01,0.05,0.2") from None


def _print(records: list[dict[str, Any]], goals: Mapping[str, float], first: Result) -> None:
    headers = [
        f"{what} to {first.metric(goal).title} {bound:g}"
        for goal, bound in goals.items()
        for what in ("rounds", "bytes", "price")
    ]
    shown = table(
        "Means over seeds; – where a seed did not get there",
        "method",
        "η_l",
        *headers,
        "final ‖∇f‖²",
        right=tuple(range(1, 20)),
    )
    for record in records:
        cells = []
        for goal in goals:
            amount = record[f"bytes to {goal}"]
            cells += [_number(record[f"rounds to {goal}"]), "–" if amount is None else size(amount)]
            cells.append(_number(record[f"price to {goal}"]))
        name = record["method"] + (" (diverged)" if record["diverged"] else "")
        shown.add_row(name, f"{record['local_lr']:g}", *cells, _small(record["final grad_norm_sq"]))
    out().print(shown)


def _number(value: float | None) -> str:
    return "–" if value is None or not math.isfinite(value) else f"{value:.0f}"


def _small(value: float | None) -> str:
    return "–" if value is None or not math.isfinite(value) else f"{value:.2g}"
