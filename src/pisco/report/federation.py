"""A page about a federation that is running: members, links, rounds, who is waited for.

The coordinator's process serves it on loopback. What members say of themselves is marked so; the page puts all of it
into text, never into markup. Nothing is put together unless a page asks, and then at most twice a second.
"""

from __future__ import annotations

import math
import threading
import time
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager
from html import escape
from typing import TYPE_CHECKING, Any

from pisco.display import plural
from pisco.errors import InputError
from pisco.federation.roster import check_address, host_of, is_loopback
from pisco.federation.runtime.holdup import QUIET
from pisco.federation.runtime.timing import COMPUTE
from pisco.report.html import encode, filled
from pisco.report.serving import LAST_LOOK_SECONDS, PageServer

if TYPE_CHECKING:
    from pisco.federation.runtime.server import Server

RECENT = 60
"""Rounds of which the page shows what they were."""
SPAN = 30.0
"""Seconds over which rounds a second are counted."""
FRESH = 0.5
"""Seconds for which what was put together serves everybody who asks."""


class FederationPage:
    """What the page of one server shows."""

    def __init__(self, server: Server):
        self.server = server
        self.ended = False
        self.fetched = 0.0
        self._lock = threading.Lock()
        self._fronts: deque[tuple[float, int]] = deque()
        self._made: tuple[float, dict[str, Any]] = (-math.inf, {})

    def html(self) -> str:
        """The page."""
        plan = self.server.plan
        return filled(
            "federation.html",
            self.data(),
            styles=["report.css", "federation.css"],
            scripts=["helpers.js", "federation.js"],
            title=escape(plan.name),
            subtitle=escape(f"{plural(len(plan.names), 'agent')}, {plural(plan.rounds, 'round')}"),
        )

    def news(self, seen: str) -> str | None:
        """Its data; something in them always changes."""
        told = encode(self.data())
        self.fetched = time.monotonic() if self.ended else 0.0
        return told

    def data(self) -> dict[str, Any]:
        """Where everybody stands."""
        with self._lock:
            now = time.monotonic()
            if now - self._made[0] > FRESH or self.ended:
                self._made = (now, self._put_together(now))
            return self._made[1]

    def _put_together(self, now: float) -> dict[str, Any]:
        server = self.server
        plan, found = server.plan, server.ledger.overview()
        front = min(server.reached, plan.rounds)
        epoch = plan.epoch_at(min(front, plan.rounds - 1))
        rolls = server.called(RECENT)
        ends = {name: server.last_round(name) for name in plan.names}
        members = [
            self._member(agent, front, rolls, epoch, ends) for agent in found.agents if agent.name in epoch.names
        ]
        linked = [(name, other) for name in epoch.names for other in epoch.neighbours(name) if name < other]
        return {
            "name": plan.name,
            "rounds": plan.rounds,
            "front": front,
            "speed": self._speed(now, front),
            "ended": self.ended,
            "deadline": plan.deadline if rolls or plan.presence == "deadline" else None,
            "held": {"name": found.held_by, "why": found.held_why} if found.held_by and not self.ended else None,
            "members": members,
            "links": linked,
            "recent": self._recent(front, epoch, rolls),
            "server": {
                "sent": server.bytes_sent,
                "received": server.mailroom.bytes_received,
                "refusals": server.door.refusals,
            },
        }

    def _member(self, agent: Any, front: int, rolls: list[Any], epoch: Any, ends: dict[str, int]) -> dict[str, Any]:
        silence, times = agent.last_contact, dict(agent.times)
        if agent.round >= ends[agent.name]:
            state = "done"
        elif agent.trouble:
            state = "trouble"
        elif silence < 0:
            state = "unheard"
        elif silence > QUIET:
            state = "silent"
        else:
            state = "waits" if agent.waiting_for else "works"
        head = rolls[-1] if rolls else None
        return {
            "name": agent.name,
            "state": state,
            "silence": None if silence < 0 else round(silence, 1),
            "called": None if head is None else epoch.member(agent.name).index in head.present,
            "outbound": epoch.member(agent.name).reach is not None,
            "told": {
                "round": agent.round,
                "lag": max(0, front - agent.round),
                "loss": _finite(agent.loss),
                "epsilon": _finite(times.get("epsilon")),
                "compute": _finite(times.get(COMPUTE)),
                "sent": agent.bytes_sent,
                "received": agent.bytes_received,
                "waits_for": agent.waiting_for,
                "trouble": agent.trouble,
            },
        }

    def _recent(self, front: int, epoch: Any, rolls: list[Any]) -> list[dict[str, Any]]:
        """The last rounds that are over: by the coin alone, and by the rolls where they are called."""
        first = max(epoch.start, front - RECENT)
        if first >= front:
            return []
        names = {member.index: member.name for member in epoch.members}
        rounds = {k: {"round": k, "server": c} for k, c in enumerate(self.server.coins(first, front), first)}
        for roll in rolls:  # of several attempts at a round the last one counts
            if roll.round in rounds:
                absent = [name for index, name in names.items() if index not in roll.present]
                rounds[roll.round] |= {"absent": absent, "attempt": roll.attempt}
        return list(rounds.values())

    def _speed(self, now: float, front: int) -> float | None:
        fronts = self._fronts
        fronts.append((now, front))
        while now - fronts[0][0] > SPAN:
            fronts.popleft()
        (began, first), (_, last) = fronts[0], fronts[-1]
        return (last - first) / (now - began) if now - began > 1.0 else None


@contextmanager
def serve_page(server: Server, address: str | None) -> Iterator[None]:
    """Answer browsers at `address`, host:port of this machine's loopback, while this lasts; None: nobody."""
    if address is None:
        yield
        return
    host, port = host_of(check_address(address)), int(address.rpartition(":")[2])
    if not is_loopback(host):
        raise InputError(
            f"--page {address} is not of this machine's loopback, and the page asks nobody who they are; give "
            f"127.0.0.1:{port}, and look from elsewhere through a tunnel (ssh -L {port}:127.0.0.1:{port} HOST)"
        )
    page = FederationPage(server)
    try:
        answering = PageServer(page, host, port)
    except OSError as error:
        raise InputError(f"cannot listen at {address} ({error.strerror or error}); give --page a free port") from None
    try:
        yield
    finally:
        page.ended = True
        end = time.monotonic() + LAST_LOOK_SECONDS
        while answering.looked_at and not page.fetched and time.monotonic() < end:
            time.sleep(0.05)
        time.sleep(0.1 if page.fetched else 0.0)  # what it asked for is under way
        answering.close()


def _finite(value: float | None) -> float | None:
    return value if value is not None and math.isfinite(value) else None
