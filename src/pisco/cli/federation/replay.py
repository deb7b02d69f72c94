"""`pisco federation replay`: a federation again from its log, for whoever has everybody's data."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from pisco.cli.console import note, private_files, say
from pisco.cli.federation.home import pairs
from pisco.display import plural


def replay(
    kit: Annotated[Path, typer.Option("--kit", "-k", help="Any member's kit, with the newest plan.")],
    log: Annotated[
        Path | None, typer.Argument(help="The server's rolls.jsonl (in KIT/state); leave it out with presence = 'all'.")
    ] = None,
    data: Annotated[
        list[str] | None,
        typer.Option(metavar="NAME=FILE", help="An agent's samples, or what its module is given; repeat for all."),
    ] = None,
    module: Annotated[
        Path | None, typer.Option(help="The Python file whose `agent(data)` returns a pisco.Problem.")
    ] = None,
    compare: Annotated[
        list[str] | None,
        typer.Option(metavar="NAME=FOLDER", help="An agent's result to compare with; repeat for more."),
    ] = None,
    out: Annotated[Path, typer.Option("--out", "-o", help="Folder for the result.")] = Path("replay"),
) -> None:
    """Run a federation again from the log of its rolls: the same rounds among the same members.

    With presence = "all" there is no log: everybody took part in every round. Where agents count by their samples,
    their mean is read from reports.json beside the log, if it is there.

    The parameters are those of the federation, to the bit where the machines are of one kind. Exit code 1 when a
    result that is compared differs.

    Example:

      pisco federation replay kits/server/state/rolls.jsonl --kit kits/server --data north=north.npz --data south=s.npz
    """
    from pisco.cli.agent import open_kit
    from pisco.errors import InputError
    from pisco.federation.rolls import counted, read
    from pisco.federation.runtime import replay as again
    from pisco.federation.shared_problem import read_problem
    from pisco.results import Result

    opened = open_kit(kit)
    plan, files = opened.federation, pairs(data, "member with its data", "NAME=FILE", "north=north.npz")
    if (log is None) != (plan.presence == "all"):
        fix = "leave out the log" if log else "give the server's rolls.jsonl"
        raise InputError(f"{plan.name!r} has presence = {plan.presence!r}; {fix}")
    rolls = again.everybody(plan) if log is None else read(log, plan, opened.authority)
    mean = again.mean_told(log, plan)
    results = pairs(compare, "member with its result", "NAME=FOLDER", "north=north/result")
    unknown = [name for name in (*files, *results) if name not in plan.names]
    if unknown:
        raise InputError(f"there is no agent {unknown[0]!r}; the agents are {', '.join(plan.names)}")
    others = {name: Result.load(Path(folder)).params for name, folder in results.items()}
    if not counted(rolls):
        raise InputError("no round is over in this log, so there is nothing to repeat; wait for some")
    problems = {name: read_problem(plan, Path(file), module) for name, file in files.items()}
    states = again.replay(plan, problems, rolls, mean_samples=mean)
    params = {name: state.params for name, state in states.items()}
    rounds = len(counted(rolls))
    void = plural(len(rolls) - rounds - (rounds == plan.rounds), "attempt")
    say(f"{plan.name}: {plural(rounds, 'round')} again, {void} did not count")
    objection = again.why_not_scan(plan, rolls, problems)
    if objection is None:
        simulated = again.scan(plan, problems, rolls, mean, eval_every=rounds)
        own = [params[name] for name in plan.names]
        say(f"engine scan differs by {again.furthest(simulated.params, own):.1e} at most")
        with private_files():  # everybody's parameters tell of their data
            simulated.save(out)
        say(f"saved in {out}")
    differ = False
    for name, found in others.items():
        same = again.furthest(found, [params[name]])
        differ |= same != 0
        say(f"{name}: {'the same to the bit' if same == 0 else f'differs by {same:.1e}'}")
    if differ:
        note("a result was made with other rolls, another plan or other data, or on another kind of machine")
        raise typer.Exit(1)
