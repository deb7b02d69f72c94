"""`pisco federation audit`: check a member's audit log, and show what is in it."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from pisco.cli.console import print_table, say, say_json
from pisco.display import plural


def audit(
    log: Annotated[Path, typer.Argument(help="A member's audit.jsonl, in its state folder.")],
    kit: Annotated[Path | None, typer.Option(help="A kit of the federation: signatures are checked too.")] = None,
    head: Annotated[str | None, typer.Option(help="A hash noted earlier, which must be in the log.")] = None,
    kind: Annotated[str | None, typer.Option(help="Show the lines of one kind, such as refusal or roll.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print the lines as JSON.")] = False,
) -> None:
    """Check that nobody changed a member's audit log, and count what is in it.

    Every line is hashed with all before it and signed by the member. Note the last hash now and then on another
    machine: with that hash, --head shows whether lines were cut off.

    Example:

      pisco federation audit kits/server/state/audit.jsonl --kit kits/agent-0 --kind refusal
    """
    from collections import Counter

    from pisco.cli.agent import open_kit
    from pisco.errors import InputError, suggest
    from pisco.federation.audit import read, unsigned

    if not log.is_file():
        raise InputError(f"there is no file {log}; give the audit.jsonl of a member's state folder")
    opened = open_kit(kit) if kit else None
    lines = read(log, opened.authority, opened.federation) if opened else read(log)
    if not lines:
        raise InputError(f"{log} is empty; a member writes its first line when it starts")
    if head is not None and (len(head) < 8 or not any(line.hash.startswith(head.lower()) for line in lines)):
        raise InputError(
            f"no line of {log} has the hash {head}: lines were cut off since it was noted, or it is of another log"
        )
    counts = Counter(line.kind for line in lines)
    if kind is not None and kind not in counts:
        raise InputError(f"there is no line of the kind {kind!r}; {suggest(kind, counts)}")
    shown = [line for line in lines if kind in (None, line.kind)]
    if as_json:
        say_json([line._asdict() for line in shown])
        return
    member = _plain(str(lines[0].facts.get("member", "?")))
    signed = "chain and signatures are whole" if kit else "the chain is whole; give --kit to check signatures"
    before, after = unsigned(lines)
    signed += f"; {plural(before, 'line')} not signed when a later start came may be anybody's" if before else ""
    signed += f"; {plural(after, 'line')} at the end, not signed yet, may be anybody's" if after else ""
    say(f"{member}: {len(lines)} lines from {lines[0].at[:19]} to {lines[-1].at[:19]}; {signed}")
    if kind is None:
        print_table("", ("kind", "lines"), [(_plain(each), str(count)) for each, count in counts.items()], right=(1,))
    else:
        rows = [(_plain(line.at[:19]), _plain(_told(line.facts))) for line in shown]
        print_table(kind, ("at", "what"), rows)
    say(f"last hash {lines[-1].hash}")


def _told(facts: dict[str, object]) -> str:
    return ", ".join(f"{name} {value}" for name, value in facts.items() if name != "certificate")


def _plain(text: str) -> str:
    """What a log holds, fit for a terminal whoever wrote it."""
    from pisco.federation.runtime.lines import printable

    return printable(text)
