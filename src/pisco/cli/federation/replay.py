"""`pisco federation replay`: a federation again from its log, for whoever has everybody's data."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from pisco.cli.console import note, say


def replay(
    log: Annotated[Path, typer.Argument(help="The server's rolls.jsonl (in KIT/state).")],
    kit: Annotated[Path, typer.Option("--kit", "-k", help="Any member's kit, with the newest plan.")],
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

    The parameters are those of the federation, to the bit where the machines are of one kind. Exit code 1 when a
    result that is compared differs.

    Example:

      pisco federation replay kits/server/state/rolls.jsonl --kit kits/server --data north=north.npz --data south=s.npz
    """

    from pisco.cli.agent import open_kit, read_problem
    from pisco.errors import InputError
    from pisco.federation.rolls import counted, read
    from pisco.federation.runtime import replay as again
    from pisco.results import Result

    opened = open_kit(kit)
    plan, files = opened.federation, _pairs(data, "--data")
    if plan.presence == "all":
        raise InputError(
            f'{plan.name!r} has presence = "all": everybody took part in every round, and nothing is logged'
        )
    rolls = read(log, plan, opened.authority)
    unknown = [name for name in files if name not in plan.names]
    if unknown:
        raise InputError(f"there is no agent {unknown[0]!r}; the agents are {', '.join(plan.names)}")
    problems = {name: read_problem(opened, Path(file), module) for name, file in files.items()}
    states = again.replay(plan, problems, rolls)
    params = {name: state.params for name, state in states.items()}
    rounds = len(counted(rolls))
    say(f"{plan.name}: {rounds} rounds again, {len(rolls) - rounds - (rounds == plan.rounds)} attempts did not count")
    objection = again.why_not_scan(plan, rolls)
    if objection is None:
        simulated = again.scan(plan, problems, rolls, eval_every=rounds)
        own = [params[name] for name in plan.names]
        say(f"engine scan differs by {_furthest(simulated.params, own):.1e} at most")
        simulated.save(out)
        say(f"saved in {out}")
    differ = False
    for name, folder in _pairs(compare, "--compare").items():
        found = Result.load(Path(folder)).params
        same = _furthest(found, [params[name]])
        differ |= same != 0
        say(f"{name}: {'the same to the bit' if same == 0 else f'differs by {same:.1e}'}")
    if differ:
        note("a result was not made by these rolls, plan and data, or on another kind of machine")
        raise typer.Exit(1)


def _furthest(stacked: Any, own: list[Any]) -> float:
    import jax
    import numpy as np

    joined = jax.tree.map(lambda *leaves: np.concatenate([np.asarray(leaf) for leaf in leaves]), *own)
    gaps = jax.tree.map(lambda a, b: float(np.abs(np.asarray(a) - b).max(initial=0.0)), stacked, joined)
    return max(jax.tree.leaves(gaps))


def _pairs(given: list[str] | None, option: str) -> dict[str, str]:
    from pisco.errors import InputError

    found: dict[str, str] = {}
    for pair in given or ():
        name, equals, value = pair.partition("=")
        if not equals:
            raise InputError(f"{option} is {pair!r}, expected NAME=FILE, as in north=north.npz")
        found[name] = value
    return found
