"""`pisco federation`: plan a federation, sign certificates, change the roster."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from pisco.cli.console import key_values, note, out, say, say_json, table
from pisco.cli.federation_run import status, try_

if TYPE_CHECKING:
    from cryptography import x509

    from pisco.federation.plan import Federation

PLAN, AUTHORITY, KITS = "federation.toml", "authority", "kits"

app = typer.Typer(
    no_args_is_help=True,
    rich_markup_mode="rich",
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
    help="Federations of machines with different owners: plan one, make kits, follow it.",
)


@app.callback()
def _installed() -> None:
    import importlib.util

    from pisco.errors import InputError

    if any(importlib.util.find_spec(package) is None for package in ("cryptography", "grpc")):
        raise InputError("federations need more packages; run pip install 'pisco-fl[federation]'")


app.command("status")(status)
app.command("try")(try_)

Home = Annotated[Path, typer.Option("--dir", "-d", help="The coordinator's folder, made by `init`.")]
Json = Annotated[bool, typer.Option("--json", help="Print as JSON.")]
Days = Annotated[float, typer.Option(help="How long the certificate counts.")]


@app.command()
def init(
    folder: Annotated[Path, typer.Argument(help="A new folder for the plan and the authority.")],
    agents: Annotated[int, typer.Option("--agents", "-n", help="So many agents, agent-0, agent-1, …")] = 10,
    roster: Annotated[
        list[str] | None,
        typer.Option("--agent", metavar="NAME=HOST:PORT", help="An agent by name; may be given often."),
    ] = None,
    graph: Annotated[str, typer.Option(help="See `pisco list graphs`.")] = "ring",
    server_prob: Annotated[
        float | None, typer.Option(help="Chance that a round reaches the server; 0 for never.")
    ] = None,
    algorithm: Annotated[str, typer.Option(help="See `pisco list algorithms`.")] = "pisco",
    problem: Annotated[
        str, typer.Option(help="See `pisco list problems`; `none` when agents bring modules.")
    ] = "logistic",
    classes: Annotated[
        str | None, typer.Option(help="Every label that occurs anywhere, as in 0,1,2 (logistic: -1,1).")
    ] = None,
    rounds: Annotated[int, typer.Option(help="Communication rounds.")] = 500,
    batch_size: Annotated[int, typer.Option(help="Samples per gradient; 0 takes all.")] = 32,
    host: Annotated[str, typer.Option(help="Of agents without an address, and of the server.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(help="The server's; agents without an address take the next.")] = 7400,
    name: Annotated[str | None, typer.Option(help="The federation's name (default: the folder's).")] = None,
    settings: Annotated[
        list[str] | None,
        typer.Option(
            "--set", "-s", metavar="KEY=VALUE", help="Any other setting, as in algorithm.local_lr=0.1."
        ),
    ] = None,
) -> None:
    """Write a federation's plan and make its certificate authority.

    Examples:

      pisco federation init clinic --agents 10 --graph ring --server-prob 0.1

      pisco federation init clinic --agent north=10.0.0.5:7401 --agent south=10.0.0.6:7401 --host 10.0.0.4
    """
    from pisco.algorithms.registry import ALGORITHMS
    from pisco.engines.job import check_needs
    from pisco.errors import InputError, choose
    from pisco.federation.authority import Authority
    from pisco.federation.plan import Federation

    if (folder / PLAN).exists() or (folder / AUTHORITY).exists():
        raise InputError(
            f"{folder} holds a federation already; choose another folder, or `pisco federation change` it"
        )
    taken = choose("algorithm", algorithm, ALGORITHMS).hyperparameters
    start = {"local_lr": 0.05, "local_steps": 1}
    tables: dict[str, Any] = {
        "algorithm": {"name": algorithm} | {key: value for key, value in start.items() if key in taken},
        "network": {"graph": graph},
        "problem": None if problem == "none" else {"name": problem},
    }
    if tables["problem"] is not None:
        listed = classes or ("-1,1" if problem == "logistic" else None)
        if listed is None:
            raise InputError(
                f"problem {problem!r} needs --classes, every label that occurs anywhere, as in 0,1,2"
            )
        tables["problem"]["classes"] = _numbers(listed)
    if server_prob is not None:
        tables["network"] |= (
            {"server": "bernoulli", "server_prob": server_prob} if server_prob else {"server": "never"}
        )
    _apply(tables, settings)
    given: dict[str, Any] = {
        "name": name or folder.resolve().name,
        "rounds": rounds,
        "batch_size": batch_size,
    }
    given |= {"host": host, "port": port, "agents": _addresses(roster) or agents}
    plan = Federation.create(**given | tables)
    check_needs(plan.build_algorithm(), plan.network_of(plan.epochs[0]))
    folder.mkdir(parents=True, exist_ok=True)
    Authority.create(folder / AUTHORITY, plan.name)
    plan.save(folder / PLAN)
    network = f"{plan.network.graph}, {plan.network.schedule()!r}"
    say(f"{plan.name}: {len(plan.roster)} agents, {network}, {plan.rounds} rounds")
    say(f"plan:      {folder / PLAN} (edit addresses there before the first kit is made)")
    say(f"authority: {folder / AUTHORITY} (key.pem signs everybody in: keep it secret, keep a copy offline)")
    say(f"next:      pisco federation issue --all --dir {folder}")


@app.command()
def issue(
    name: Annotated[str | None, typer.Argument(help="An agent of the plan, or `server`.")] = None,
    home: Home = Path(),
    everybody: Annotated[bool, typer.Option("--all", help="Kits for all who have none yet.")] = False,
    folder: Annotated[
        Path | None, typer.Option("--out", "-o", help="The kit (default: DIR/kits/NAME).")
    ] = None,
    days: Days = 365,
    request: Annotated[
        Path | None, typer.Option(help="Sign the key of this request, which stays where it was made.")
    ] = None,
    renew: Annotated[bool, typer.Option("--renew", help="A new certificate for the key in the kit.")] = False,
) -> None:
    """Make one member's kit: key, certificate, plan; or renew its certificate.

    Examples:

      pisco federation issue agent-0 --dir clinic

      pisco federation issue north --request request.pem --out for-north
    """
    from pisco.errors import InputError
    from pisco.federation import kits
    from pisco.federation.roster import SERVER

    plan = _plan(home)
    if (name is None) != everybody or (everybody and (folder or request or renew)):
        raise InputError("name one member, or give --all by itself for everybody's kits")
    if request is not None and renew:
        raise InputError("--request already brings the key to sign; leave --renew out")
    names = [name] if name is not None else [SERVER, *plan.names]
    for each in names:
        place = folder or home / KITS / each
        if everybody and (place / "cert.pem").exists():
            continue
        made = kits.issue(home, plan, each, place, days=days, request=request, renew=renew)
        say(f"{each}: {place} (serial {made.serial_number:x}, until {made.not_valid_after_utc:%Y-%m-%d})")
    if request is not None:
        say("send it back to the agent, who puts it beside the key.pem made with the request")


@app.command()
def request(
    name: Annotated[str, typer.Argument(help="The agent's name in the plan.")],
    federation: Annotated[str, typer.Option("--federation", "-f", help="The federation's name.")],
    folder: Annotated[Path, typer.Option("--out", "-o", help="The kit to begin.")] = Path("kit"),
) -> None:
    """On the agent's machine: make a key of its own and a request to sign it, so that no one else ever has the key.

    Example:

      pisco federation request north --federation clinic --out kit
    """
    from pisco.federation.authority import new_request
    from pisco.federation.roster import check_name

    made = new_request(folder, check_name(federation), check_name(name))
    say(f"key:     {folder / 'key.pem'} (stays here)")
    say(f"request: {made} (send it to the coordinator: pisco federation issue {name} --request request.pem)")


@app.command()
def revoke(
    name: Annotated[str, typer.Argument(help="Whose certificates count no more.")],
    home: Home = Path(),
    serial: Annotated[str | None, typer.Option(help="Only the one whose serial number begins so.")] = None,
    older: Annotated[
        bool, typer.Option("--older", help="All but the newest: after a new key was issued.")
    ] = False,
) -> None:
    """Make a member's certificates count no more, and renew the lists in the kits.

    Example:

      pisco federation revoke agent-3 --dir clinic
    """
    from pisco.errors import InputError
    from pisco.federation import kits
    from pisco.federation.authority import Authority

    plan = _plan(home)
    authority = Authority.open(home / AUTHORITY, plan.name)
    before = authority.revoked()
    valid = [each for each in authority.issued(name) if each.serial_number not in before]
    chosen = [each for each in valid if f"{each.serial_number:x}".startswith((serial or "").lower())]
    chosen = chosen[:-1] if older else chosen
    if serial is not None and len(chosen) > 1:
        raise InputError(
            f"the serial number {serial} begins {len(chosen)} certificates of {name!r}; give more of it"
        )
    if not chosen:
        what = f"certificate {serial}" if serial else "older certificate" if older else "certificate"
        raise InputError(f"{name!r} has no {what} to revoke; `pisco federation show --dir {home}` lists them")
    authority.revoke([each.serial_number for each in chosen])
    for each in chosen:
        say(f"revoked: {name}, serial {each.serial_number:x}")
    renewed = _refresh_kits(home, plan, kits.refresh)
    say(f"list:    {home / AUTHORITY / 'revoked.pem'} ({renewed} kits here renewed)")
    note(
        "copy revoked.pem into the kit on every machine: those that run read it at once, no restart is needed"
    )


@app.command()
def change(
    action: Annotated[str, typer.Argument(help="add, remove or move.")],
    name: Annotated[str, typer.Argument(help="The agent.")],
    at: Annotated[int, typer.Option("--round", "-r", help="The first round with the new roster.")],
    address: Annotated[str | None, typer.Option(help="Where it listens from then on (add, move).")] = None,
    home: Home = Path(),
) -> None:
    """Plan a change of the roster from a round on: weights are worked out anew and written into the plan.

    Examples:

      pisco federation change add west --address 10.0.0.9:7401 --round 200 --dir clinic

      pisco federation change remove agent-3 --round 200 --dir clinic
    """
    from pisco.engines.job import check_needs
    from pisco.federation import kits

    plan = _plan(home)
    changed = plan.change(at, action, name, address)
    _not_past(home, at)
    check_needs(changed.build_algorithm(), changed.network_of(changed.epochs[-1]))
    changed.save(home / PLAN)
    renewed = _refresh_kits(home, changed, kits.refresh)
    present = changed.epochs[-1]
    say(f"from round {at} on: {len(present.members)} agents, {', '.join(present.names)}")
    say(f"plan: {home / PLAN}, {changed.hash[:12]} ({renewed} kits here renewed)")
    if action == "add":
        say(f"next: pisco federation issue {name} --dir {home}")
    if action == "remove":
        say(f"next: once round {at} is over, pisco federation revoke {name} --dir {home}")
    note(f"copy federation.toml into the kit on every machine before round {at}; until then both plans agree")


@app.command()
def show(home: Home = Path(), as_json: Json = False) -> None:
    """Show the plan, who is in from which round on, and every certificate.

    Example:

      pisco federation show --dir clinic
    """
    from pisco.federation.authority import Authority, common_name, now

    plan = _plan(home)
    authority = Authority.open(home / AUTHORITY, plan.name)
    revoked, at = authority.revoked(), now()

    def state(each: x509.Certificate) -> str:
        if each.serial_number in revoked:
            return f"revoked {revoked[each.serial_number]:%Y-%m-%d}"
        left = (each.not_valid_after_utc - at).days
        if each.not_valid_after_utc < at:
            return "expired"
        return "valid" if left > 14 else f"ends in {left} days"

    signed = [
        {
            "name": common_name(each),
            "serial": f"{each.serial_number:x}",
            "until": f"{each.not_valid_after_utc:%Y-%m-%d}",
            "state": state(each),
        }
        for each in authority.issued()
    ]
    epochs = [
        {
            "round": epoch.start,
            "agents": {member.name: member.address for member in epoch.members},
            "mixing_rate": plan.network_of(epoch).mixing_rate,
        }
        for epoch in plan.epochs
    ]
    if as_json:
        say_json({"name": plan.name, "hash": plan.hash, "epochs": epochs, "certificates": signed})
        return
    _print(plan, epochs, signed)


def _print(plan: Federation, epochs: list[dict[str, Any]], signed: list[dict[str, str]]) -> None:
    shown = table(f"federation {plan.name}", "", "")
    shown.add_row("hash", plan.hash[:12])
    shown.add_row("algorithm", repr(plan.build_algorithm()))
    shown.add_row("problem", "modules" if plan.problem is None else plan.problem.name)
    shown.add_row("network", f"{plan.network.graph}, {plan.network.weights}, {plan.network.schedule()!r}")
    shown.add_row(
        "rounds", f"{plan.rounds}, batches of {plan.batch_size or 'all'}, seed {plan.seed}, {plan.dtype}"
    )
    shown.add_row("server", plan.server_address)
    out().print(shown)
    for epoch in epochs:
        members = table(
            f"from round {epoch['round']} (λ_w = {epoch['mixing_rate']:.4g})",
            "agent",
            "address",
            "neighbours",
        )
        for name, address in epoch["agents"].items():
            members.add_row(name, address, ", ".join(plan.neighbours(name, epoch["round"])))
        out().print(members)
    certificates = table("certificates", "name", "serial", "until", "state")
    for each in signed:
        certificates.add_row(each["name"], each["serial"][:12], each["until"], each["state"])
    out().print(certificates)


def _plan(home: Path) -> Federation:
    from pisco.errors import InputError
    from pisco.federation.plan import Federation

    if not (home / PLAN).is_file():
        raise InputError(
            f"there is no {PLAN} in {home.resolve()}; give --dir, or make one with `pisco federation init`"
        )
    return Federation.load(home / PLAN)


def _not_past(home: Path, at: int) -> None:
    """Refuse a round that somebody has begun, as far as the server can be asked."""
    from pisco.errors import InputError
    from pisco.federation.kits import Kit, require_tls13

    require_tls13()
    from pisco.engines.remote.loopback import overview

    try:
        front = max(agent.round for agent in overview(Kit.load(home / KITS / "server"), timeout=3.0).agents)
    except InputError:
        note(
            "the server does not answer, so it is not known which rounds are past; a change of the past is left aside"
        )
        return
    if at <= front:
        raise InputError(
            f"round {at} is past, somebody is in round {front}; take a later one, with time to copy files"
        )


def _refresh_kits(home: Path, plan: Federation, refresh: Any) -> int:
    """Renew plan and list in the kits that lie in the coordinator's own folder; how many there were."""
    found = sorted(path.parent for path in (home / KITS).glob("*/cert.pem"))
    for kit in found:
        refresh(home, plan, kit)
    return len(found)


def _addresses(roster: list[str] | None) -> dict[str, str]:
    from pisco.errors import InputError

    found: dict[str, str] = {}
    for pair in roster or ():
        name, equals, address = pair.partition("=")
        if not equals:
            raise InputError(f"{pair!r} is no agent; write NAME=HOST:PORT, as in north=10.0.0.5:7401")
        if name in found:
            raise InputError(f"the agent {name!r} is given twice; give each its own name")
        found[name] = address
    return found


def _numbers(text: str) -> list[int]:
    from pisco.errors import InputError

    try:
        return sorted({int(part) for part in text.split(",")})
    except ValueError:
        raise InputError(f"--classes is {text!r}, expected whole numbers with commas, as in 0,1,2") from None


def _apply(tables: dict[str, Any], settings: list[str] | None) -> None:
    """Put `table.key=value` and `key=value` into the tables."""
    from pisco.errors import InputError

    for where, value in key_values(settings).items():
        name, dot, key = where.partition(".")
        if not dot:
            tables[name] = value
        elif isinstance(tables.get(name), dict):
            tables[name][key] = value
        else:
            raise InputError(f"{where} cannot be set; the tables here are algorithm, network and problem")
