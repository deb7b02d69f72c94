"""`pisco launch`."""

from __future__ import annotations

import sys
from datetime import datetime
from pathlib import Path
from shlex import quote
from typing import Annotated, Any

import typer

from pisco.cli.console import Command, answers, note


class Launch(Command):
    """What follows `run` is completed as `pisco run` completes it."""

    def shell_complete(self, ctx: Any, incomplete: str) -> Any:
        commands = ctx.parent.command
        if ctx.args[:1] != ["run"]:
            own = super().shell_complete(ctx, incomplete)
            return own + (commands.shell_complete(ctx.parent, "run") if "run".startswith(incomplete) else [])
        words, run = ctx.args[1:], commands.commands["run"]
        inner = run.make_context("run", list(words), parent=ctx.parent, resilient_parsing=True)
        options = {name: each for each in run.params for name in each.opts if name.startswith("-")}
        asked = options.get(words[-1]) if words else None
        if asked is not None and not asked.is_flag:
            return asked.shell_complete(inner, incomplete)
        return (run if incomplete.startswith("-") else run.params[0]).shell_complete(inner, incomplete)


def launch(
    context: typer.Context,
    processes: Annotated[int, typer.Option(help="How many processes to start on this host.")] = 2,
    max_failures: Annotated[int, typer.Option(help="How many failures to restart after, before giving up.")] = 3,
) -> None:
    """Run an experiment on several processes of this host, and start it again from the last checkpoint if one dies.

    What follows the options is a `pisco run` command.

    Examples:

      pisco launch --processes 4 run a9a --out results/a9a

      pisco launch --processes 2 run --resume results/a9a --devices 2
    """
    from pisco.engines.cluster.supervisor import Supervisor
    from pisco.errors import InputError, check_number
    from pisco.experiments.folders import CONFIG_FILE

    check_number("--processes", processes, low=1, integer=True)
    check_number("--max-failures", max_failures, low=0, integer=True)
    name, *arguments = context.args or [""]
    if name != "run":
        what = f"{name!r}" if name else "nothing"
        raise InputError(f"there is {what} to launch; write a run, as in `pisco launch --processes 4 run a9a`")
    given = _parse(context, arguments)
    folder, first = _prepare(given, arguments)
    again = ["--resume", str(folder), *_how(given)]

    def command(start: int, process: int, coordinator: str) -> list[str]:
        wanted = again if start > 0 and (folder / CONFIG_FILE).is_file() else first
        place = ["--coordinator", coordinator, "--processes", str(processes), "--process-id", str(process)]
        return [sys.executable, "-m", "pisco.cli.main", "run", *wanted, *(place if processes > 1 else [])]

    code = Supervisor(
        command,
        processes,
        max_failures=max_failures,
        say=note,
        devices=given["devices"] or 1,
        stdout=answers().fileno(),
    ).run()
    if code == 1:
        note(f"continue with `pisco launch --processes {processes} run --resume {quote(str(folder))}`")
    if code:
        raise typer.Exit(code)


def _parse(context: typer.Context, arguments: list[str]) -> dict[str, Any]:
    """The options of the run, checked as `pisco run` checks them."""
    from pisco.errors import InputError

    assert context.parent is not None
    run = context.parent.command.commands["run"]  # type: ignore[attr-defined]
    given = run.make_context("run", list(arguments), parent=context.parent).params
    for option in ("coordinator", "processes", "process_id"):
        if given[option] is not None:
            raise InputError(f"--{option.replace('_', '-')} is for runs without a launcher; leave it out")
    return given


def _how(given: dict[str, Any]) -> list[str]:
    devices = [] if given["devices"] is None else ["--devices", str(given["devices"])]
    return ["--engine", "sharded", *devices, *(["--json"] if given["as_json"] else [])]


def _prepare(given: dict[str, Any], arguments: list[str]) -> tuple[Path, list[str]]:
    """The folder of the run, and the first command's arguments; mistakes in the experiment end here."""
    from pisco.errors import InputError
    from pisco.experiments import load
    from pisco.experiments.folders import unused

    if given["engine"] not in (None, "sharded"):
        raise InputError(f"--engine is {given['engine']}, but only the engine sharded runs on several processes")
    arguments = arguments if given["engine"] else [*arguments, "--engine", "sharded"]
    if given["resume"] is not None:
        return Path(given["resume"]), arguments  # a text in older typer
    if given["experiment"] is None:
        raise InputError("there is nothing to run; name a TOML file or a preset, as in `… run quick`")
    config = load(given["experiment"], given["settings"] or ())
    if given["folder"] is not None:
        return Path(given["folder"]), arguments
    folder = unused(Path("results") / f"{config.name}-{datetime.now():%Y%m%d-%H%M%S}")
    return folder, [*arguments, "--out", str(folder)]
