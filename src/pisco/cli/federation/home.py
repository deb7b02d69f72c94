"""The coordinator's folder: the plan, the authority and the kits made here."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from pisco.federation.plan import Federation

PLAN, AUTHORITY, KITS = "federation.toml", "authority", "kits"

Home = Annotated[Path, typer.Option("--dir", "-d", help="The coordinator's folder, made by `init`.")]


def open_plan(home: Path) -> Federation:
    """The plan in a coordinator's folder."""
    from pisco.errors import InputError
    from pisco.federation.plan import Federation

    if not (home / PLAN).is_file():
        raise InputError(
            f"there is no {PLAN} in {home.resolve()}; give --dir, or make one with `pisco federation init`"
        )
    return Federation.load(home / PLAN)


def refresh_kits(home: Path, plan: Federation) -> int:
    """Renew plan and list in the kits that lie in the coordinator's own folder; how many there were."""
    from pisco.federation.kits import refresh

    found = sorted(path.parent for path in (home / KITS).glob(f"*/{PLAN}"))
    for kit in found:
        refresh(home, plan, kit)
    return len(found)


def pairs(given: list[str] | None, what: str, form: str, example: str) -> dict[str, str]:
    """Options of the form NAME=VALUE, each name once."""
    from pisco.errors import InputError

    found: dict[str, str] = {}
    for pair in given or ():
        name, equals, value = pair.partition("=")
        if not equals:
            raise InputError(f"{pair!r} is no {what}; write {form}, as in {example}")
        if name in found:
            raise InputError(f"{name!r} is given twice; give each its own name")
        found[name] = value
    return found
