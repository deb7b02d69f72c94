"""`pisco federation collect` and `export`: the model that a federation ends with."""

from __future__ import annotations

from pathlib import Path
from shlex import quote
from typing import Annotated

import typer

from pisco.cli.console import note, private_files, say
from pisco.cli.federation.home import PLAN, Home, open_plan, refresh_kits
from pisco.display import plural


def collect(
    results: Annotated[
        list[Path] | None, typer.Argument(help="KIT/result of every agent; without any, agents are asked.")
    ] = None,
    kit: Annotated[Path | None, typer.Option("--kit", "-k", help="Any member's kit, with the newest plan.")] = None,
    home: Home = Path(),
    out: Annotated[Path, typer.Option("--out", "-o", help="Folder for the mean model.")] = Path("collected"),
) -> None:
    """Get the mean of the models that the agents end with, where the plan has no closing average.

    Without results the plan is changed to ask for one: every agent gives the server its parameters once more after the
    last round, and the server's result holds the mean. Members that are done already must be started once more.

    With the `result` folder of every agent, the models are averaged here.

    Examples:

      pisco federation collect --dir clinic

      pisco federation collect north/result south/result --kit kits/server --out collected
    """
    from pisco.errors import InputError
    from pisco.federation import models
    from pisco.federation.kits import Kit
    from pisco.results import Result

    if not results:
        _ask(home)
        return
    if kit is None:
        raise InputError("give --kit with any member's kit, which says who must be in the mean")
    made = models.collect(Kit.load(kit).federation, [Result.load(each) for each in results])
    with private_files():
        made.save(out)
    say(f"the mean model of {plural(len(results), 'agent')}: {out}")
    say(f"next: pisco federation export {quote(str(out))} --out model.npz")


def _ask(home: Path) -> None:
    from pisco.errors import InputError
    from pisco.federation import signed

    plan = open_plan(home)
    if plan.closing:
        raise InputError(
            "the plan closes with an average already; it is in the server's result once all rounds are over"
        )
    closed = plan.closed()
    signed.save(home, closed, home / PLAN)
    renewed = refresh_kits(home, closed)
    say(f"after the last round everybody gives the server its parameters ({plural(renewed, 'kit')} here renewed)")
    say("next: start the server and the agents that are done once more, with their usual commands")
    note("copy federation.toml into the server's kit, if that is elsewhere, and into those of agents that are done")


def export(
    result: Annotated[Path, typer.Argument(help="A result: the server's, an agent's, or a collected one.")],
    out: Annotated[Path, typer.Option("--out", "-o", help="model.npz, model.safetensors or model.pt.")],
) -> None:
    """Write a model without the axis of the agents: npz, safetensors, or a torch `state_dict`. Only you can read it.

    Example:

      pisco federation export kits/server/result --out model.npz
    """
    from pisco.federation import models
    from pisco.results import Result

    with private_files():
        model = models.export(Result.load(result), out)
    size = sum(array.size for array in model.values())
    say(f"{out}: {size:,} numbers ({', '.join(list(model)[:4])}{', …' if len(model) > 4 else ''})")
