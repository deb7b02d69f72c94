"""`pisco compare` and `pisco tune`."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from pisco.cli.completion import listed
from pisco.cli.console import cell, note, print_table, progress_bar, say, say_json, size, use_compilation_cache
from pisco.cli.options import (
    Experiment,
    Goals,
    Json,
    NumRounds,
    PriceGossip,
    PriceGradient,
    PriceServer,
    Set,
    load_experiment,
)

if TYPE_CHECKING:
    from pisco.costs import Prices
    from pisco.experiments.compare import Entry
    from pisco.targets import Targets

Grid = Annotated[str | None, typer.Option(help="Step sizes to try, as in 0.01,0.05,0.2.")]


def tune(
    experiment: Experiment,
    settings: Set = None,
    grid: Grid = None,
    targets: Goals = None,
    rounds: NumRounds = None,
    seeds: Annotated[int, typer.Option(min=1, help="Tuning seeds, from 100 on.")] = 10,
    as_json: Json = False,
) -> None:
    """Find a step size for the first target by trying: one grid, one stated rule.

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
            config, grid=chosen, targets=parse_targets(targets), seeds=range(100, 100 + seeds), progress=progress
        )
    if as_json:
        say_json(tuned._asdict() | {"rule": tuning.RULE})
        return
    print_table(
        "Every step size",
        ("η_l", "mean rounds to the target", "‖∇f‖² at the end (running mean)", "seeds that failed"),
        [
            (f"{lr:g}{' ←' if lr == tuned.local_lr else ''}", cell(rounds, ".0f"), cell(ending, ".2g"), str(failed))
            for lr, rounds, ending, failed in tuned.trials
        ],
        right=(1, 2, 3),
    )
    if tuned.failed:
        note(f"no step size works on every tuning seed; {tuned.failed} of {seeds} fail at {tuned.local_lr:g}")
    say(f"rule: {tuning.RULE}")
    # Beside what it was tuned for: at another p or T_o the step means nothing.
    kept = [*(settings or ()), *([f"run.rounds={rounds}"] if rounds else ()), f"algorithm.local_lr={tuned.local_lr:g}"]
    say(f"next: pisco run {shlex.quote(experiment)} {' '.join(f'--set {shlex.quote(each)}' for each in kept)}")


def compare(
    experiment: Experiment,
    algorithms: Annotated[
        str | None,
        typer.Option(
            help="Methods to compare (`pisco list algorithms`), as in pisco,dsgd.", autocompletion=listed("algorithms")
        ),
    ] = None,
    settings: Set = None,
    grid: Grid = None,
    targets: Goals = None,
    rounds: NumRounds = None,
    seeds: Annotated[int, typer.Option(min=1, help="Seeds to report, from 0 on.")] = 20,
    same_network: Annotated[
        bool, typer.Option(help="Run every method on the experiment's own network, not on its published one.")
    ] = False,
    tuning_seeds: Annotated[int, typer.Option(min=1, help="Seeds to tune on, from 100 on.")] = 10,
    price_server: PriceServer = 10.0,
    price_gossip: PriceGossip = 1.0,
    price_gradient: PriceGradient = 0.0,
    folder: Annotated[
        Path | None, typer.Option("--out", "-o", help="Folder for the results (default: compare-NAME).")
    ] = None,
    as_json: Json = False,
) -> None:
    """Compare methods: each tuned for the first target on one grid, then rounds, bytes and price to all targets.

    Every method runs on the network it is published on; PISCO and its forms on the experiment's. With a clock, as in
    `--set clock.preset=campus`, seconds to the targets as well.

    Example:

      pisco compare a9a --algorithms pisco,pisco-one-exchange,dsgd --rounds 300
    """
    from pisco.algorithms import ALGORITHMS
    from pisco.errors import InputError
    from pisco.experiments import compare as comparing
    from pisco.experiments.folders import writable
    from pisco.experiments.tune import GRID, RULE
    from pisco.targets import parse_targets

    for name in [setting.split("=")[0].strip() for setting in settings or ()]:
        if name in ("run.seed", "run.seeds"):
            raise InputError(f"{name} is not used here; say how many seeds with --seeds")
    base, goals = load_experiment(experiment, settings, rounds), parse_targets(targets)
    folder = folder or Path(f"compare-{base.name}")
    methods = [name.strip() for name in algorithms.split(",")] if algorithms is not None else comparing.USUAL
    prices, chosen = comparing.Prices(price_server, price_gossip, price_gradient), _numbers(grid) or GRID
    for method in methods:
        _ = ALGORITHMS[method]
    writable(folder)
    use_compilation_cache()
    with progress_bar(base.run.rounds, "") as progress:
        place = {method: index + 1 for index, method in enumerate(methods)}

        def started(method: str, stage: str) -> None:
            progress.describe(f"{place[method]}/{len(methods)} {stage} {method}")

        entries = comparing.compare_methods(
            base,
            methods,
            folder=folder,
            targets=goals,
            grid=chosen,
            seeds=range(seeds),
            tuning_seeds=tuple(range(100, 100 + tuning_seeds)),
            own_network=not same_network,
            started=started,
            progress=progress,
        )
    interrupted = len(entries) < len(methods)
    if not entries:
        note("interrupted before the first method was finished")
        raise typer.Exit(130)
    records, picture = comparing.write(entries, folder, goals, prices)
    if as_json:
        say_json({"targets": goals, "prices": prices, "rule": RULE, "methods": records, "plot": picture})
    else:
        # A usual target that nobody asked for and nothing measures would be columns of dashes.
        held = {
            name: bound for name, bound in goals.items() if targets or any(name in e.result.history for e in entries)
        }
        _print(entries, records, held, prices)
        say(f"step sizes from {', '.join(f'{lr:g}' for lr in chosen)} by the rule: {RULE}")
        say(f"picture: {picture}   table: {folder / 'compare.csv'}")
    if interrupted:
        note(f"interrupted; type the command again: finished methods are kept in {folder}")
        raise typer.Exit(130)


def _numbers(text: str | None) -> tuple[float, ...]:
    from pisco.errors import InputError

    try:
        return tuple(float(part) for part in text.split(",")) if text is not None else ()
    except ValueError:
        raise InputError(f"the grid {text!r} is not a list of numbers; write 0.01,0.05,0.2") from None


def _print(entries: Sequence[Entry], records: Sequence[dict[str, Any]], goals: Targets, prices: Prices) -> None:
    from pisco.metrics import AGENTS
    from pisco.results import measured
    from pisco.targets import SHOWN, reached

    first = entries[0].result
    shown = [what for what in SHOWN if what != "seconds" or "seconds" in first.history]
    signs = {goal: "≥" if first.metric(goal).rising else "≤" for goal in goals}
    bounds = [f"{first.metric(goal).title} {signs[goal]} {bound:g}" for goal, bound in goals.items()]
    headers = [f"{what} to {bound}" for bound in bounds for what in shown]
    writing = {"rounds": "{:.0f}".format, "bytes": size, "price": "{:.0f}".format, "seconds": "{:.3g}".format}
    agents = {name: f"final {metric.title}" for name, metric in measured([first]).items() if metric.of == AGENTS}
    rows = []
    for entry, record, found in zip(entries, records, reached([e.result for e in entries], goals), strict=True):
        cells = [entry.method + (" (diverged)" if entry.result.diverged else ""), f"{entry.tuned.local_lr:g}"]
        paid = {each.target.column: each.paid(prices) for each in found}
        for goal in goals:
            known = paid.get(goal, {})
            # One interval is enough to see what chance does.
            known = {what: each if what == "rounds" else each.alone() for what, each in known.items()}
            cells += [known[what].words(writing[what]) if what in known else "–" for what in shown]
        ends = [
            cell(record.get("final grad_norm_sq"), ".2g"),
            *(cell(record.get(f"final {name}"), ".3g") for name in agents),
        ]
        rows.append([*cells, *ends])
        if entry.tuned.failed:
            note(f"{entry.method}: no step size works on every tuning seed; this one fails on {entry.tuned.failed}")
    seeds = "One seed" if len(first.seeds) == 1 else f"Medians of {len(first.seeds)} seeds (95% intervals)"
    title = f"{seeds}; seeds that did not get there count as more than that"
    print_table(title, ("method", "η_l", *headers, "final ‖∇f‖²", *agents.values()), rows, right=range(1, 20))
