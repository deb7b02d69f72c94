"""`pisco federation init` and `change`: who takes part, from which round on."""

from __future__ import annotations

from pathlib import Path
from shlex import quote
from typing import TYPE_CHECKING, Annotated, Any

import typer

from pisco.cli.completion import listed
from pisco.cli.console import key_values, note, say
from pisco.cli.federation.home import AUTHORITY, KITS, PLAN, Home, open_plan, pairs, refresh_kits
from pisco.display import plural

if TYPE_CHECKING:
    from pisco.federation.plan import Federation

_TABLES = {"algorithm": "algorithm.name", "network": "network.graph", "problem": "problem.name", "data": "--like"}
"""Tables of a plan, and what says most of each."""

_ELSEWHERE = {
    "weights": "network.weights, or --weight for how much agents count",
    "agents": "--agents",
    "roster": "--agent",
    "push": "network.weights",
    "changes": "`pisco federation change`",
    "files": "the settings that name files",
}
"""What a plan works out itself, and what to give in its place."""


def init(
    folder: Annotated[Path, typer.Argument(help="A new folder for the plan and the authority.")],
    agents: Annotated[
        int | None, typer.Option("--agents", "-n", help="How many agents: agent-0, agent-1, … (default: 10)")
    ] = None,
    roster: Annotated[
        list[str] | None, typer.Option("--agent", metavar="NAME=HOST:PORT", help="An agent by name; may be repeated.")
    ] = None,
    outbound: Annotated[
        list[str] | None, typer.Option(metavar="NAME", help="An agent that nobody can dial; may be repeated.")
    ] = None,
    relay: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NAME=HOST:PORT", help="A relay for outbound agents: `server` or a `pisco relay`; may be repeated."
        ),
    ] = None,
    weight: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NAME=NUMBER", help="How much an agent counts, say by its samples; for all agents or none."
        ),
    ] = None,
    by_samples: Annotated[
        bool, typer.Option("--by-samples", help="Agents count by their samples, which they tell the server.")
    ] = False,
    graph: Annotated[str, typer.Option(help="See `pisco list graphs`.", autocompletion=listed("graphs"))] = "ring",
    server_prob: Annotated[
        float | None, typer.Option(help="Chance that a round reaches the server (default: never).")
    ] = None,
    algorithm: Annotated[
        str, typer.Option(help="See `pisco list algorithms`.", autocompletion=listed("algorithms"))
    ] = "pisco",
    problem: Annotated[
        str, typer.Option(help="See `pisco list problems`; `none` when agents bring modules.")
    ] = "logistic",
    classes: Annotated[
        str | None, typer.Option(help="Every label that occurs anywhere, as in 0,1,2 (logistic: -1,1).")
    ] = None,
    like: Annotated[
        Path | None, typer.Option(help="An example file: everybody's data must have its columns, dtype and scale.")
    ] = None,
    rounds: Annotated[int, typer.Option(help="Communication rounds.")] = 500,
    batch_size: Annotated[int, typer.Option(help="Samples per gradient; 0 takes all.")] = 32,
    host: Annotated[str, typer.Option(help="Host of the server, and of agents without an address.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(help="Port of the server; agents without an address take the next.")] = 7400,
    name: Annotated[str | None, typer.Option(help="The federation's name (default: the folder's).")] = None,
    authority: Annotated[
        Path | None,
        typer.Option(help="The authority that members' certificates are from: its root, and those between."),
    ] = None,
    certificate: Annotated[
        list[str] | None,
        typer.Option(metavar="NAME=DNS", help="The DNS name in each member's certificate of that authority."),
    ] = None,
    sign_with: Annotated[
        str | None,
        typer.Option(metavar="COMMAND", help="Command that signs plans and revocations, for a key in a token."),
    ] = None,
    plan_key: Annotated[Path | None, typer.Option(help="The public part of the key that --sign-with has.")] = None,
    settings: Annotated[
        list[str] | None,
        typer.Option("--set", "-s", metavar="KEY=VALUE", help="Any other setting, as in algorithm.local_lr=0.1."),
    ] = None,
) -> None:
    """Write a federation's plan and make its certificate authority.

    Examples:

      pisco federation init clinic --agents 10 --graph ring --server-prob 0.1

      pisco federation init clinic --agent north=10.0.0.5:7401 --agent south=10.0.0.6:7401 --host 10.0.0.4

      pisco federation init clinic --agent north=10.0.0.5:7401 --outbound south --outbound west --host 10.0.0.4

      pisco federation init clinic --agents 2 --authority ca.pem --certificate server=c.example.org
      --certificate agent-0=n.example.org --certificate agent-1=s.example.org
    """
    from pisco.engines.job import check_needs
    from pisco.errors import InputError
    from pisco.federation import signed, signers
    from pisco.federation.authority import Authority, read_bundle
    from pisco.federation.plan import Federation
    from pisco.networks.graphs import GRAPHS, by_name
    from pisco.problems.registry import PROBLEMS

    if agents is None and not roster and GRAPHS.is_data(graph):
        agents = by_name(graph).num_agents
    if (authority is None) != (not certificate):
        raise InputError(
            "--authority and --certificate go together: give the certificates of the authority, and for every member "
            "its DNS name, as in --certificate north=north.example.org"
        )
    if (folder / PLAN).exists() or (folder / AUTHORITY).exists():
        raise InputError(f"{folder} holds a federation already; choose another folder, or `pisco federation change` it")
    tables: dict[str, Any] = {
        "algorithm": started(algorithm),
        "network": {"graph": graph} | reached(server_prob),
        "problem": None if problem == "none" else {"name": problem},
    }
    if tables["problem"] is not None:
        _ = PROBLEMS[problem]  # a name that is not known is said first
        listed = classes or ("-1,1" if problem == "logistic" else None)
        if listed is None:
            raise InputError(f"problem {problem!r} needs --classes, every label that occurs anywhere, as in 0,1,2")
        tables["problem"]["classes"] = _numbers(listed)
    if like is not None:
        from pisco.data import load
        from pisco.federation.contract import Contract

        agreed = Contract.of(load(str(like)), labels=tables["problem"] is None)
        tables["data"] = agreed.model_dump(exclude_none=True)
    apply(tables, settings)
    given: dict[str, Any] = {"name": name or folder.resolve().name, "rounds": rounds, "batch_size": batch_size}
    given |= {"host": host, "port": port, "agents": _members(roster, agents, outbound, host, port)}
    given |= {"relays": _addresses(relay) or None, "agent_weights": key_values(weight)}
    given |= {"weigh_by": "samples"} if by_samples else {}
    given |= {"certificates": pairs(certificate, "certificate", "NAME=DNS", "north=north.example.org")}
    plan = Federation.create(**given | tables)
    check_needs(plan.build_algorithm(), plan.network_of(plan.epochs[0]))
    if authority:
        read_bundle(authority)  # what fails leaves nothing behind
    if authority or sign_with or plan_key:
        signers.separate(folder / AUTHORITY, sign_with, plan_key)
    if authority:
        Authority.adopt(folder / AUTHORITY, plan.name, authority)
    else:
        Authority.create(folder / AUTHORITY, plan.name)
    signed.save(folder, plan, folder / PLAN)
    network = f"{plan.network.graph}, {plan.network.schedule()!r}"
    say(f"{plan.name}: {plural(len(plan.roster), 'agent')}, {network}, {plural(plan.rounds, 'round')}")
    say(f"plan:      {folder / PLAN} (edit addresses there before the first kit is made)")
    secrets = [] if authority else ["key.pem signs everybody in"]
    if authority or sign_with:
        secrets.append(f"{f'`{sign_with}`' if sign_with else signers.PRIVATE} signs plans and revocations")
    say(f"authority: {folder / AUTHORITY} ({', '.join(secrets)}: keep it secret, keep a copy offline)")
    say(f"next:      pisco federation issue --all --dir {folder}")


def change(
    action: Annotated[str, typer.Argument(help="add, remove, move, or cancel.")],
    name: Annotated[str, typer.Argument(help="The agent.")],
    at: Annotated[
        int | None, typer.Option("--round", "-r", help="The first round with the new roster (default: soon).")
    ] = None,
    address: Annotated[
        str | None, typer.Option(help="Where it listens from then on, or `outbound` (add, move).")
    ] = None,
    weight: Annotated[float | None, typer.Option(help="How much it counts, if the others have weights (add).")] = None,
    certificate: Annotated[
        str | None, typer.Option(help="The DNS name in its certificate, if those are of another authority (add).")
    ] = None,
    now: Annotated[
        bool,
        typer.Option(
            "--now", help="The agent is gone: go on without it (remove), or with its new address (move), at once."
        ),
    ] = False,
    home: Home = Path(),
) -> None:
    """Plan a change of the roster from a round on; its new weights are computed and written into the plan.

    `cancel` takes back the last change, if it is of this agent and its round is not yet reached. All of them work while
    members are gone: with presence = "deadline" at once, with "all" after those are removed or moved with --now.

    Examples:

      pisco federation change add west --address 10.0.0.9:7401 --round 200 --dir clinic

      pisco federation change remove agent-3 --round 200 --dir clinic

      pisco federation change remove agent-3 --now --dir clinic
    """
    from pisco.engines.job import check_needs
    from pisco.errors import choose
    from pisco.federation import signed
    from pisco.federation.runtime import timely

    choose("action", action, dict.fromkeys(("add", "remove", "move", "cancel")))
    plan = open_plan(home)
    if action == "cancel":
        _cancel(home, plan, name)
        return
    server, pace = home / KITS / "server", None
    if now:
        timely.check_gone(server, name)
    if at is None:
        pace = timely.pace(server)
        at = timely.soon(pace, plan, now=now)
    changed = plan.change(at, action, name, address, weight, certificate, now=now)
    if at < plan.rounds:  # after the last round nothing is begun
        _warn(timely.check_round(server, plan, at, pace, now=now))
    check_needs(changed.build_algorithm(), changed.network_of(changed.epochs[-1]))
    signed.save(home, changed, home / PLAN)
    renewed = refresh_kits(home, changed)
    present = changed.epochs[-1]
    say(f"from round {at} on: {plural(len(present.members), 'agent')}, {', '.join(present.names)}")
    say(f"plan: {home / PLAN}, {changed.hash[:12]} ({plural(renewed, 'kit')} here renewed)")
    if action == "add":
        say(f"next: pisco federation issue {name} --dir {quote(str(home))}")
    if now:
        say("members go on as soon as all of them have taken the plan, in about ten seconds")
    if action == "move":
        when = "" if now else f"once round {at} is reached, "
        say(f"next: {when}start {name} at {address} with its kit and its state folder")
    if action == "remove":
        say(f"next: once round {at} is over, pisco federation revoke {name} --dir {home}")
    note("copy federation.toml into the server's kit, if that is elsewhere; members take it from the server")


def _cancel(home: Path, plan: Federation, name: str) -> None:
    from pisco.federation import signed
    from pisco.federation.runtime import timely

    changed = plan.cancel(name)
    at = plan.changes[-1].round
    _warn(timely.check_round(home / KITS / "server", plan, at))
    signed.save(home, changed, home / PLAN)
    renewed = refresh_kits(home, changed)
    say(f"cancelled: to {plan.changes[-1].action} {name} at round {at}")
    say(f"plan: {home / PLAN}, {changed.hash[:12]} ({plural(renewed, 'kit')} here renewed)")
    note("copy federation.toml into the server's kit, if that is elsewhere; members take it from the server")


def _warn(words: str | None) -> None:
    if words:
        note(words)


def _members(
    roster: list[str] | None, agents: int | None, outbound: list[str] | None, host: str, port: int
) -> dict[str, str] | int:
    """Names to addresses: as given, or so many on one host; those that are outbound have none."""
    from pisco.errors import InputError, suggest
    from pisco.federation.roster import OUTBOUND, numbered

    hidden, given = outbound or [], _addresses(roster)
    if not hidden and not given:
        return 10 if agents is None else agents
    if not given and any(name.startswith("agent-") for name in hidden):
        given = numbered(10 if agents is None else agents, host, port)
        for name in hidden:
            if name not in given:
                raise InputError(f"there is no agent {name!r} to be outbound; {suggest(name, given)}")
    elif twice := given.keys() & set(hidden):
        raise InputError(f"{min(twice)!r} has an address and is outbound; leave out one of the two")
    members = given | dict.fromkeys(hidden, OUTBOUND)
    if agents not in (None, len(members)):
        raise InputError(f"--agents is {agents}, but {len(members)} are named ({', '.join(members)}); leave it out")
    return members


def _addresses(roster: list[str] | None) -> dict[str, str]:
    return pairs(roster, "member", "NAME=HOST:PORT", "north=10.0.0.5:7401")


def _numbers(text: str) -> list[int]:
    from pisco.errors import InputError

    try:
        return sorted({int(part) for part in text.split(",")})
    except ValueError:
        raise InputError(f"--classes is {text!r}, expected whole numbers with commas, as in 0,1,2") from None


def started(algorithm: str) -> dict[str, Any]:
    """The table of an algorithm, by name or in a file of one's own, with steps to start with where it needs them."""
    from pisco.algorithms.registry import needed

    return {"name": algorithm} | needed(algorithm, {"local_lr": 0.05, "local_steps": 1})


def reached(server_prob: float | None) -> dict[str, Any]:
    """The settings of a network whose server is reached with a chance; none where none is given."""
    if server_prob is None:
        return {}
    return {"server": "bernoulli", "server_prob": server_prob} if server_prob else {"server": "never"}


def apply(tables: dict[str, Any], settings: list[str] | None) -> None:
    """Put `table.key=value` and `key=value` into the tables."""
    from pisco.errors import InputError
    from pisco.settings import options

    given, before = key_values(settings), dict(tables["algorithm"])
    for where, value in given.items():
        name, dot, key = where.partition(".")
        if not dot and name in _TABLES:
            raise InputError(f"{name} is a table; give {_TABLES[name]}, as in {_TABLES[name]}={value}")
        if not dot and name in _ELSEWHERE:
            raise InputError(f"{name} cannot be set; give {_ELSEWHERE[name]}")
        if not dot:
            tables[name] = value
        elif isinstance(tables.get(name), dict) and name in _TABLES:
            tables[name][key] = value
        else:
            raise InputError(f"{where} cannot be set; the tables here are {', '.join(_TABLES)}")
    if "algorithm.name" in given:  # what nobody asked for goes with the method that had it
        kept = {where.partition(".")[2] for where in given if where.startswith("algorithm.")}
        options.drop_stale("algorithm", tables["algorithm"], before, kept)
