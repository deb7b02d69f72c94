"""`pisco federation show`: the plan, the roster and every certificate."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from pisco.cli.console import out, say_json, table
from pisco.cli.federation.home import AUTHORITY, Home, open_plan

if TYPE_CHECKING:
    from cryptography import x509

    from pisco.federation.plan import Federation


def show(
    home: Home = Path(), as_json: Annotated[bool, typer.Option("--json", help="Print as JSON.")] = False
) -> None:
    """Show the plan, who is in from which round on, and every certificate.

    Example:

      pisco federation show --dir clinic
    """
    from pisco.federation.authority import Authority, common_name, now

    plan = open_plan(home)
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
