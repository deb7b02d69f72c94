"""`pisco federation show`: the plan, the roster and every certificate."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from pisco.cli.console import print_table, say_json
from pisco.cli.federation.home import AUTHORITY, KITS, Home, open_plan

if TYPE_CHECKING:
    from cryptography import x509

    from pisco.federation.plan import Federation


def show(
    home: Home = Path(),
    kit: Annotated[Path | None, typer.Option("--kit", "-k", help="A member's kit: its plan and certificate.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print as JSON.")] = False,
) -> None:
    """Show the plan, its whole hash, who is in from which round on, and every certificate; or those of a kit.

    Examples:

      pisco federation show --dir clinic

      pisco federation show --kit kits/agent-0
    """
    from pisco.federation.authority import Authority, common_name, now, read_certificate
    from pisco.federation.kits import Kit
    from pisco.federation.naming import Refused, member_of, number
    from pisco.federation.runtime.asking import samples_told

    plan, at, revoked = Kit.load(kit).federation if kit else open_plan(home), now(), {}
    if kit:
        certificates = [read_certificate(kit / "cert.pem")]
    else:
        authority = Authority.open(home / AUTHORITY, plan.name)
        revoked, certificates = authority.revoked(), authority.issued()

    def whose(each: x509.Certificate) -> str:
        try:
            return member_of(each, plan)
        except Refused:
            return common_name(each)

    def state(each: x509.Certificate) -> str:
        if number(each, plan) in revoked:
            return f"revoked {revoked[number(each, plan)]:%Y-%m-%d}"
        left = (each.not_valid_after_utc - at).days
        if each.not_valid_after_utc < at:
            return "expired"
        return "valid" if left > 14 else f"ends in {left} days"

    signed = [
        {
            "name": whose(each),
            "serial": f"{each.serial_number:x}",
            "until": f"{each.not_valid_after_utc:%Y-%m-%d}",
            "state": state(each),
        }
        for each in certificates
    ]
    told = samples_told(kit or home / KITS / "server") if plan.weigh_by == "samples" else None
    epochs = [
        {
            "round": epoch.start,
            "agents": {member.name: member.at for member in epoch.members},
            "mixing_rate": plan.network_of(epoch).mixing_rate,
            "counts": epoch.shares(told),
        }
        for epoch in plan.epochs
    ]
    if as_json:
        trust = {name.replace(" ", "_"): each for name, each in _trust(plan).items()}
        say_json({"name": plan.name, "hash": plan.hash, **trust, "epochs": epochs, "certificates": signed})
        return
    _print(plan, epochs, signed)


def _percent(counts: dict[str, float], name: str) -> str:
    return f"{100 * counts[name]:.3g}%" if counts else "by samples"


def _trust(plan: Federation) -> dict[str, str]:
    """What a member agrees to: what the server sees of it, who judges its messages, and whether rounds wait for it."""
    sees = "only the sum of masked vectors" if plan.server_sum else "every reporter's vectors"
    guard = "none" if plan.guard is None else f"{plan.guard!r}{'' if plan.guard.guard_server else ', in gossip alone'}"
    waits = "all" if plan.deadline is None else f"deadline of {plan.deadline:g} s, quorum of {plan.quorum_at(0)}"
    return {"server sees": sees, "guard": guard, "presence": waits}


def _print(plan: Federation, epochs: list[dict[str, Any]], signed: list[dict[str, str]]) -> None:
    facts = {
        "hash": plan.hash,
        "algorithm": repr(plan.build_algorithm()),
        "problem": "modules" if plan.problem is None else plan.problem.name,
        "network": f"{plan.network.graph}, {plan.network.weights}, {plan.network.schedule()!r}",
        "rounds": f"{plan.rounds}, batches of {plan.batch_size or 'all'}, seed {plan.seed}, {plan.dtype}",
        "server": plan.server_address,
        **_trust(plan),
    }
    if plan.relays:
        facts["relays"] = ", ".join(f"{relay.name} at {relay.address}" for relay in plan.relays)
    print_table(f"federation {plan.name}", ("", ""), facts.items())
    for epoch in epochs:
        start, agents = epoch["round"], epoch["agents"].items()
        members = [
            (name, address, _percent(epoch["counts"], name), ", ".join(plan.neighbours(name, start)))
            for name, address in agents
        ]
        title = f"from round {start} (λ_w = {epoch['mixing_rate']:.4g})"
        print_table(title, ("agent", "address", "counts", "neighbours"), members, right=(2,))
    certificates = [(each["name"], each["serial"][:12], each["until"], each["state"]) for each in signed]
    print_table("certificates", ("name", "serial", "until", "state"), certificates)
