"""`pisco federation issue`, `request` and `revoke`: the certificates of members."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from pisco.cli.console import note, say
from pisco.cli.federation.home import AUTHORITY, KITS, PLAN, Home, open_plan, refresh_kits
from pisco.display import plural

Certificate = Annotated[
    Path | None, typer.Option(help="The member's certificate, if those of the plan come from another authority.")
]


def issue(
    name: Annotated[str | None, typer.Argument(help="An agent of the plan, or `server`.")] = None,
    home: Home = Path(),
    everybody: Annotated[bool, typer.Option("--all", help="Kits for all members who have none yet.")] = False,
    folder: Annotated[Path | None, typer.Option("--out", "-o", help="The kit (default: DIR/kits/NAME).")] = None,
    days: Annotated[float, typer.Option(help="How many days the certificate is valid.")] = 365,
    request: Annotated[
        Path | None, typer.Option(help="Sign the key of this request, which stays where it was made.")
    ] = None,
    renew: Annotated[
        bool,
        typer.Option("--renew", help="Make a new certificate for the key in the kit, or for the key of its request."),
    ] = False,
    certificate: Certificate = None,
) -> None:
    """Make one member's kit: key, certificate, plan; or renew its certificate.

    Examples:

      pisco federation issue agent-0 --dir clinic

      pisco federation issue north --request request.pem --out for-north
    """
    from pisco.errors import InputError
    from pisco.federation import kits, signed
    from pisco.federation.authority import Authority

    plan = open_plan(home)
    if (name is None) != everybody or (everybody and (folder or request or renew or certificate)):
        raise InputError("name one member, or give --all by itself for everybody's kits")
    if request is not None and renew:
        raise InputError("--request already brings the key to sign; leave --renew out")
    names = [name] if name is not None else [*plan.helpers, *plan.names]
    authority = Authority.open(home / AUTHORITY, plan.name)
    for each in names:
        place = folder or home / KITS / each
        if everybody and ((place / "cert.pem").exists() or (plan.certificates and (place / PLAN).exists())):
            continue
        if everybody and (authority.trusted(each) or (place / "request.pem").exists()):
            say(f"{each}: has a key of its own elsewhere; left out")
            continue
        made = kits.issue(home, plan, each, place, days=days, request=request, renew=renew, certificate=certificate)
        brought = f"for the certificate of {plan.certificates.get(each)}, which is not here"
        about = f"serial {made.serial_number:x}, until {made.not_valid_after_utc:%Y-%m-%d}" if made else brought
        say(f"{each}: {place} ({about})")
    signed.renew(home, plan, home / PLAN)  # it may have been edited by hand before
    if plan.certificates:
        say("send each to its member, who puts the key.pem and cert.pem of its own authority there")
    elif name is not None and not ((folder or home / KITS / name) / "key.pem").exists():
        say("send it back to the agent, who puts it beside the key.pem made with the request")


def request(
    name: Annotated[str, typer.Argument(help="The agent's name in the plan.")],
    federation: Annotated[str, typer.Option("--federation", "-f", help="The federation's name.")],
    folder: Annotated[Path, typer.Option("--out", "-o", help="Folder for the new kit.")] = Path("kit"),
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


def revoke(
    name: Annotated[str, typer.Argument(help="The member whose certificates are revoked.")],
    home: Home = Path(),
    serial: Annotated[str | None, typer.Option(help="Only the one whose serial starts like this.")] = None,
    older: Annotated[bool, typer.Option("--older", help="All but the newest: after a new key was issued.")] = False,
    certificate: Certificate = None,
) -> None:
    """Revoke a member's certificates, and renew the lists in the kits.

    Example:

      pisco federation revoke agent-3 --dir clinic
    """
    from pisco.errors import InputError
    from pisco.federation.authority import Authority, read_certificate
    from pisco.federation.naming import number

    plan = open_plan(home)
    authority = Authority.open(home / AUTHORITY, plan.name)
    before = authority.revoked()
    if certificate is not None:
        authority.keep(name, read_certificate(certificate))
    valid = [each for each in authority.issued(name) if number(each, plan) not in before]
    chosen = [each for each in valid if f"{each.serial_number:x}".startswith((serial or "").lower())]
    if certificate is not None:
        chosen = [each for each in chosen if each == read_certificate(certificate)]
    chosen = [each for each in chosen if number(each, plan) != number(chosen[-1], plan)] if older else chosen
    if serial is not None and len(chosen) > 1:
        raise InputError(
            f"{len(chosen)} certificates of {name!r} have a serial number that starts with {serial}; give more of it"
        )
    if not chosen:
        what = f"certificate {serial}" if serial else "older certificate" if older else "certificate"
        more = ", or give --certificate" if plan.certificates else ""
        raise InputError(f"{name!r} has no {what} to revoke; `pisco federation show --dir {home}` lists them{more}")
    authority.revoke([number(each, plan) for each in chosen])
    for each in chosen:
        say(f"revoked: {name}, serial {each.serial_number:x}")
    renewed = refresh_kits(home, plan)
    say(f"list:    {home / AUTHORITY / 'revoked.pem'} ({plural(renewed, 'kit')} here renewed)")
    note("copy revoked.pem into the server's kit, if that is elsewhere: members take it there, with no restart")
