"""Which round a change of the roster can begin with, from where the members stand."""

from __future__ import annotations

import math
import time
from pathlib import Path
from typing import NamedTuple

from pisco.errors import InputError
from pisco.federation.kits import Kit
from pisco.federation.plan import Federation
from pisco.federation.runtime.asking import overview
from pisco.federation.runtime.ledger import LEFT_OFF
from pisco.federation.runtime.wire_pb2 import Overview

SILENT, GONE = 30.0, 10.0
"""Seconds without a word after which a member is named, and after which it may be taken for gone."""
LOOK, TAKEN = 2.0, 10.0
"""Seconds for which the pace of the rounds is looked at, and in which members take a new plan from the server."""


class Pace(NamedTuple):
    """The furthest round that somebody has begun, and how many more there are in the next `TAKEN` seconds."""

    front: int
    more: int


def standing(kit: Path) -> Overview | None:
    """Where everybody stands, as far as the server can be asked with the kit in this folder."""
    try:
        return overview(Kit.load(kit), timeout=3.0)
    except InputError:
        return None


def pace(kit: Path) -> Pace | None:
    """How fast rounds go, from two looks; None where the server does not answer."""
    before = standing(kit)
    if before is None:
        return None
    time.sleep(LOOK)
    found = standing(kit) or before
    first, then = (max(agent.round for agent in each.agents) for each in (before, found))
    return Pace(then, math.ceil((then - first) * TAKEN / LOOK))


def check_gone(kit: Path, name: str) -> None:
    """Refuse to do without somebody who is there: its neighbours would go on without each other's last messages."""
    found = standing(kit)
    for agent in found.agents if found else ():
        if agent.name == name and 0 <= agent.last_contact < GONE:
            raise InputError(
                f"{name!r} was heard {agent.last_contact:.0f} s ago, so it is not gone; leave out --now, or end its "
                f"process and wait {GONE:g} s"
            )


def soon(known: Pace | None, plan: Federation, *, now: bool) -> int:
    """A round a few seconds ahead, so that everybody has the plan by then.

    Where everybody waits for who is gone, nobody can be further ahead of the others than there are members.
    """
    if known is None:
        raise InputError(
            "the server does not answer, so it is not known which round is next; start it, or give --round"
        )
    ahead = known.front + max(10, len(plan.epochs[-1].members) + 1, known.more)
    return max(min(ahead, plan.rounds) if now else ahead, plan.epochs[-1].start)


def check_round(kit: Path, plan: Federation, at: int, known: Pace | None = None, *, now: bool = False) -> str | None:
    """Refuse a round that somebody has begun, or begins before everybody has the plan: those two would not agree.

    Returns what whoever plans it should know, if anything.
    """
    found = standing(kit)
    if found is None:
        return "the server does not answer, so it is not known which rounds are over; members ignore changes to those"
    front = max(agent.round for agent in found.agents)
    if at <= front:
        raise InputError(f"round {at} is past, somebody is in round {front}; take a later one, with time to copy files")
    if plan.presence == "deadline":  # who has not got it by then is absent
        return _below_quorum(found, plan, front)
    if now:  # nobody goes on before all have it
        return None
    known = known or pace(kit) or Pace(front, 0)
    if at < known.front + known.more:
        raise InputError(
            f"round {at} comes before everybody has the new plan, which takes {TAKEN:g} s; take round "
            f"{known.front + 2 * known.more} or a later one"
        )
    silent = [agent.name for agent in found.agents if agent.last_contact > SILENT]
    if not silent:
        return None
    return (
        f'{", ".join(silent)}: not heard for a while; with presence = "all" no later round is reached before they '
        "are back, or removed or moved with --now"
    )


def _below_quorum(found: Overview, plan: Federation, front: int) -> str | None:
    """What to know where so many are away that no later round is reached."""
    k = min(front, plan.rounds - 1)
    heard = {agent.name for agent in found.agents if 0 <= agent.last_contact < GONE}
    off = {agent.name for agent in found.agents if agent.trouble == LEFT_OFF}
    names = [name for name in plan.epoch_at(k).names if name not in off]
    away = [name for name in names if name not in heard]
    quorum = plan.quorum_at(k, [plan.indices[name] for name in off])
    there = len(names) - len(away)
    if there >= quorum:
        return None
    return (
        f"{', '.join(away)}: not heard for a while, and round {k} waits for a quorum of {quorum} and has {there}"
        "; no later round, and so no change, is reached before enough are back"
    )
