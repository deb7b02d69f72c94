"""`pisco run`."""

from __future__ import annotations

from contextlib import nullcontext
from datetime import datetime
from pathlib import Path
from shlex import quote
from typing import TYPE_CHECKING, Annotated, Any

import typer

from pisco.cli.completion import experiments, listed
from pisco.cli.console import note, print_table, progress_bar, say, say_json, use_compilation_cache
from pisco.display import plural

if TYPE_CHECKING:
    from pisco.experiments import Config
    from pisco.results import Result


def run(
    experiment: Annotated[
        str | None, typer.Argument(help="A TOML file, or the name of a preset.", autocompletion=experiments)
    ] = None,
    settings: Annotated[
        list[str] | None, typer.Option("--set", "-s", metavar="KEY=VALUE", help="Replace a setting; may be repeated.")
    ] = None,
    seeds: Annotated[int | None, typer.Option(help="Run this many seeds.")] = None,
    folder: Annotated[
        Path | None, typer.Option("--out", "-o", help="Folder for the result (default: results/NAME-TIME).")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
    resume: Annotated[Path | None, typer.Option(help="Continue the run in this folder.")] = None,
    engine: Annotated[
        str | None, typer.Option(help="How rounds are run; see `pisco list engines`.", autocompletion=listed("engines"))
    ] = None,
    devices: Annotated[int | None, typer.Option(help="Engine sharded: devices of this process (default: all).")] = None,
    coordinator: Annotated[
        str | None,
        typer.Option(metavar="HOST:PORT", help="Engine sharded: where the processes meet, on process 0's host."),
    ] = None,
    processes: Annotated[int | None, typer.Option(help="Engine sharded: how many processes.")] = None,
    process_id: Annotated[int | None, typer.Option(help="Engine sharded: which this is, from 0.")] = None,
    live: Annotated[bool, typer.Option("--live", help="Serve the report on this machine during the run.")] = False,
    port: Annotated[int, typer.Option(min=0, max=65535, help="Port of the live page; 0 takes a free one.")] = 0,
    log: Annotated[str | None, typer.Option(help="Log to tensorboard, mlflow or wandb as well.")] = None,
    check: Annotated[bool, typer.Option(help="Check first whether the step size is stable, and warn if not.")] = True,
) -> None:
    """Run an experiment and keep its result.

    Examples:

      pisco run a9a --set network.server_prob=0.2 --seeds 5 --out results/a9a

      pisco run --resume results/a9a --set run.rounds=2000

      pisco run a9a --engine sharded --devices 4
    """
    from pisco.cli.processes import together
    from pisco.cli.watch import watching
    from pisco.errors import InputError
    from pisco.experiments import load
    from pisco.experiments.folders import CHECKPOINTS, claim, finished, keep, release, reopen, unused

    overrides = list(settings or ())
    overrides += [] if seeds is None else [f"run.seeds={seeds}"]
    overrides += [] if engine is None else [f"run.engine={engine}"]
    if resume is not None:
        if experiment is not None or folder is not None:
            raise InputError("--resume continues what its folder holds; leave out the experiment and --out")
        folder, config = resume, reopen(resume, overrides)
    else:
        if experiment is None:
            raise InputError("there is nothing to run; name a TOML file or a preset, as in `pisco run quick`")
        config = load(experiment, overrides)
    group = together(config.run.engine, coordinator, processes, process_id)
    whole = finished(resume, config) if resume is not None else None
    if resume is not None and whole is not None:
        if group.leads:
            _report(whole, resume, config, as_json, note_first=f"{resume} is complete; nothing to do")
        return

    def place() -> Path:
        where = folder or unused(Path("results") / f"{config.name}-{datetime.now():%Y%m%d-%H%M%S}")
        if resume is None:
            claim(where, config)
        return where

    with group.exits():
        runner = group.engine(config, devices)
        folder = group.leader_does(place)
        use_compilation_cache()
        warn = (lambda words: note(f"warning: {words}")) if check and resume is None and group.leads else None
        try:
            if config.algorithm.is_auto:
                config = _pick_step(config, folder, alone=group.rank is None)
            watched = watching(config, folder, live=live, port=port, log=log) if group.leads else nullcontext()
            with watched as watchers:
                bar = progress_bar(config.run.rounds, config.name) if group.leads else nullcontext()
                with group.working(runner), bar as progress:
                    if watchers is not None and progress is not None:
                        watchers.add(progress)
                    result = config.execute(
                        checkpoint=folder / CHECKPOINTS,
                        resume=resume is not None,
                        progress=watchers,
                        engine=runner,
                        warn=warn,
                    )
                if watchers is not None:
                    keep(result, folder, config)
                    _report(result, folder, config, as_json)
                    watchers.finish(result, folder, quiet=as_json)
        except Exception:  # a user's own code may raise anything
            if resume is None and group.leads:
                release(folder)
            raise
        except KeyboardInterrupt:
            note(f"interrupted; continue with `pisco run --resume {quote(str(folder))}`")
            raise typer.Exit(130) from None
    if result.interrupted:
        if group.leads:
            note(
                f"interrupted after {result.rounds} of {plural(config.run.rounds, 'round')}; "
                f"continue with `pisco run --resume {quote(str(folder))}`"
            )
        raise typer.Exit(130)


def _pick_step(config: Config, folder: Path, alone: bool) -> Config:
    """The experiment with a number for `local_lr = "auto"`."""
    from pisco.errors import InputError
    from pisco.experiments.folders import with_step

    if not alone:
        raise InputError(
            'algorithm.local_lr is "auto", which one process must pick; run it once with `pisco run`, and give '
            "every process the number that its config.toml holds"
        )
    note("picking algorithm.local_lr by trial runs…")
    config = with_step(folder, config)
    note(f"picked algorithm.local_lr = {config.algorithm.taken_by('name')['local_lr']:g}")
    return config


def _report(result: Result, folder: Path, config: Config, as_json: bool, note_first: str | None = None) -> None:
    from pisco.report.numbers import endings

    if note_first:
        note(note_first)
    for warning in (_trouble(result, config), _poison(result)):
        if warning:
            note(f"warning: {warning}")
    if as_json:
        say_json(_record(result, folder, config))
        return
    seeds = f"{len(result.seeds)} seeds" if len(result.seeds) > 1 else f"seed {next(iter(result.seeds))}"
    title = f"{config.name}: {plural(result.rounds, 'round')}, {seeds}, {result.seconds:.1f} s"
    print_table(title, ("", ""), endings(result))
    say(f"saved in {folder}")
    say(f"next: pisco report {quote(str(folder))}")


def _trouble(result: Result, config: Config) -> str | None:
    """What went wrong with the training and what to try, if anything did."""
    when = ", ".join(f"seed {seed} from round {at}" for seed, at in result.diverged_seeds.items())
    loss = result.column("loss")
    if when:
        what = f"the run diverged ({when})"
    elif (loss[:, -1] > loss[:, 0]).any():
        what = f"the loss ended above its start ({loss[:, -1].max():.4g} after {loss[:, 0].max():.4g})"
    else:
        return None
    coin = config.network.server == "bernoulli"  # other schedules take no chance
    used, gossips = result.settings["algorithm"], config.network.schedule().probability != 1
    others = {
        "a smaller algorithm.consensus_lr": "consensus_lr" in used,
        "a smaller algorithm.local_lr": True,
        "network.weights=metropolis": gossips and config.network.weights != "metropolis",
        "algorithm.name=pisco-one-exchange": used.get("one_exchange") is False,
        f"a {'larger network.server_prob' if coin else 'network.server that is reached more often'}": (
            gossips and not config.algorithm.build().needs.constant_map
        ),
    }
    advice = [name for name, helps in others.items() if helps]
    return f"{what}; try {' or '.join(filter(None, [', '.join(advice[:-1]), advice[-1]]))}"


def _poison(result: Result) -> str | None:
    """Whom the guard named, if anybody."""
    named = [each for one in result.named for each in (one if isinstance(one, list) else [one])]
    worst = {each["agent"]: each["factor"] for each in sorted(named, key=lambda each: each["factor"])}
    told = ", ".join(f"agent {agent} (up to {far:.3g} times as far off as usual)" for agent, far in worst.items())
    return f"the guard named {told}" if told else None


def _record(result: Result, folder: Path, config: Config) -> dict[str, Any]:
    return {
        "name": config.name,
        "folder": str(folder),
        "rounds": result.rounds,
        "seeds": list(result.seeds),
        "interrupted": result.interrupted,
        "diverged_at": result.diverged_at,
        "named": result.named,
        "seconds": round(result.seconds, 3),
        "final": {name: result.final(name).tolist() for name in result.history},
        "config": config.to_dict(),
    }
