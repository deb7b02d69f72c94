"""Who really holds a run up: not the neighbour in between, who waits as well.

Members say for whom they have waited a while. Whoever does not wait itself is at the end of such a chain. Where nobody
waits that long, it is the slowest, by the times that members take of their own work and links. All of it but the
silence is what members say of themselves.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from pisco.federation.plan import Federation
from pisco.federation.roster import SERVER
from pisco.federation.runtime.timing import COMPUTE, LATENCY

QUIET = 4.0
"""Seconds without a report, one a second, from which a member counts as silent."""
SLOWER = 1.5
"""How many times the others' usual time a member needs to be named as slow."""


class Holdup(NamedTuple):
    """Who it is, and why; empty names: nobody."""

    name: str = ""
    why: str = ""


def furthest(plan: Federation, standing: Mapping[str, int]) -> int:
    """The furthest round that anybody can be in, by what all say of themselves."""
    # One who claims a round far ahead must not make a change of the roster, its own removal say, come too late.
    # Who waits to join stands at its first round, and nobody else has got that far.
    begun = {name: round_ for name, round_ in standing.items() if round_ > plan.starts.get(name, math.inf)}
    first, second = sorted((0, 0, *begun.values()))[:-3:-1]
    gone = plan.gone_at(second + 1)
    here = [name for name in plan.epoch_at(second + 1).names if name not in gone]
    return begun.get(here[0], 0) if len(here) == 1 else min(first, second + 1)


def holdup(names: Sequence[str], standing: Mapping[str, Mapping[str, Any]], silence: Mapping[str, float]) -> Holdup:
    """Who holds up these members.

    Args:
      names: the members of the round under way.
      standing: what each reported last: `round`, `waiting_for`, `trouble`, `times`.
      silence: seconds since each was heard; who is not in it never was.

    >>> standing = {"a": {"round": 3, "waiting_for": "b"}, "b": {"round": 3, "waiting_for": "c"}, "c": {"round": 2}}
    >>> holdup("abc", standing, {"a": 0.1, "b": 0.5, "c": 9.0})
    Holdup(name='c', why='not heard for 9 s')
    """
    for name in names:
        if standing.get(name, {}).get("trouble"):
            return Holdup(name, f"cannot take part: {standing[name]['trouble']}")
    quiet = {name: _silence(silence.get(name)) for name in names if silence.get(name, math.inf) > QUIET}
    waits = {name: standing.get(name, {}).get("waiting_for", "") for name in names if name not in quiet}
    if not any(waits.values()):
        unheard = next(iter(quiet), None)
        return _slowest(names, standing) if unheard is None else Holdup(unheard, quiet[unheard])
    at, seen = next(filter(None, waits.values())), set()
    while at not in seen and waits.get(at):
        seen.add(at)
        at = waits[at]
    if at == SERVER or waits.get(at):  # the server waits for all; in a ring nobody is the end
        others = [name for name in names if not waits.get(name)]
        if not others:
            return Holdup(SERVER, "all wait for it") if at == SERVER else Holdup()
        at = min(others, key=lambda name: (name not in quiet, standing.get(name, {}).get("round", 0)))
    if at not in names:
        return Holdup()  # it is done
    return Holdup(at, quiet.get(at) or f"at work in round {standing.get(at, {}).get('round', 0)}")


def _silence(seconds: float | None) -> str:
    return "has not been heard yet" if seconds is None else f"not heard for {seconds:.0f} s"


def _slowest(names: Sequence[str], standing: Mapping[str, Mapping[str, Any]]) -> Holdup:
    """The one that needs much longer than the others, its links included."""
    needs: dict[str, tuple[float, float]] = {}
    for name in names:
        times = standing.get(name, {}).get("times") or {}
        links = [seconds for key, seconds in times.items() if key.startswith(LATENCY)]
        if COMPUTE in times:
            needs[name] = times[COMPUTE], 2 * statistics.median(links) if links else 0.0
    if len(needs) < 2:
        return Holdup()
    slow = max(needs, key=lambda name: sum(needs[name]))
    usual = statistics.median(sum(each) for name, each in needs.items() if name != slow)
    work, link = needs[slow]
    if work + link < SLOWER * usual:
        return Holdup()
    return Holdup(
        slow,
        f"slowest: {1e3 * work:.3g} ms a gradient and {1e3 * link:.3g} ms a message, others {1e3 * usual:.3g} in all",
    )
