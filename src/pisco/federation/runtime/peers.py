"""Pulling messages from others: retry, back off, log who is late, and stop when patience ends."""

from __future__ import annotations

import logging
import math
import threading
import time
from collections.abc import Callable, Collection, Hashable, Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from pisco.federation.kits import Kit
from pisco.federation.roster import SERVER
from pisco.federation.runtime.calls import Call, Failed, Peer
from pisco.federation.runtime.codec import SMALL, BadMessage, HeldCopy, MessageLayout, Where, decode
from pisco.federation.runtime.lines import printable
from pisco.federation.runtime.postbox import Awaited, Postbox
from pisco.federation.runtime.timing import Timing
from pisco.federation.runtime.transport import grpc

if TYPE_CHECKING:
    from pisco.federation.runtime.updates import Incoming

log = logging.getLogger("pisco.federation")

A_WHILE = 2.0
"""Seconds of waiting before the server hears for whom."""

FIRST_WORD = 5.0
"""Seconds of waiting before the log says for whom."""

SILENCE = 30.0
"""A call that brings nothing for this long is given up and made again; three times the longest poll."""


class Stopped(Exception):
    """The run ends here with its state kept; the message says why and what to do."""


class Waited(Stopped):
    """Patience ended: somebody did not answer for too long."""


class Dropped(Exception):
    """What is pulled is not wanted any more."""


class Patience:
    """Waiting for others: now and then it is said for whom, and it ends once it has lasted too long."""

    def __init__(self, seconds: float, stopping: threading.Event):
        self.seconds, self.stopping = seconds, stopping
        self._began, self._pause, self._say_after = time.monotonic(), 0.05, FIRST_WORD

    def wait(self, what: str, remedy: str) -> None:
        """A moment more; `Stopped` where we are to stop, and `Waited` in the end, with what to do then."""
        waited = time.monotonic() - self._began
        if waited > self.seconds:
            raise Waited(f"waited {self.seconds:g} s for {what}; {remedy}")
        if waited > self._say_after:
            log.info("waiting for %s", what)
            self._say_after = 2 * waited
        if self.stopping.wait(self._pause):
            raise Stopped("asked to stop")
        self._pause = min(1.0, 2 * self._pause)


def stop_if_refused(error: Any) -> None:
    """Stop where the server will not have us; other failures of a question to it may pass."""
    if error.code() is grpc.StatusCode.FAILED_PRECONDITION:
        raise Stopped(f"the server refuses us: {printable(error.details() or '')}") from None


def _always() -> bool:
    return True


class Received(NamedTuple):
    """A peer's message."""

    layout: MessageLayout
    arrays: list[np.ndarray]


class Mailroom:
    """All the peers of one process, and the patience to wait for them."""

    def __init__(self, kit: Kit, patience: float):
        self.kit, self.patience = kit, patience
        self.stopping = threading.Event()
        self.asking = ""  # whose message we wait for now
        self._asking_since = 0.0
        self.bytes_received = 0
        self.timing: Timing | None = None
        self.postbox = Postbox()
        self.passed: Callable[[str, int], None] = lambda name, round_: None  # told who needs nothing before a round
        self._troubles: dict[str, str] = {}
        self._held = ("", "")
        self._peers: dict[str, Peer] = {}
        self._calls: set[Call | Awaited] = set()
        self._lock = threading.Lock()
        self._woken = threading.Condition()
        threading.Thread(target=self._watch, daemon=True, name="watch").start()

    def peer(self, name: str, address: str) -> Peer:
        """The peer of that name, with a new connection when it has moved."""
        with self._lock:
            known = self._peers.get(name)
            if known is None or known.address != address:
                if known is not None:
                    known.close()
                self._peers[name] = known = Peer(self.kit, name, address)
            return known

    def knows(self, peer: Peer) -> bool:
        """Whether a peer is still where it was."""
        return self._peers.get(peer.name) is peer

    @property
    def waiting_for(self) -> str:
        """Whom we have waited for a while."""
        asking = self.asking
        return asking if time.monotonic() - self._asking_since > A_WHILE else ""

    def hear(self, troubles: Mapping[str, str], held_by: str = "", held_why: str = "") -> None:
        """Who cannot take part, as the server has it from them: said once, and again when we wait.

        And who holds the run up, as the server sees it.
        """
        self._held = (printable(held_by), printable(held_why))
        for name, why in troubles.items():
            if self._troubles.get(name) != why:
                log.warning("%s says that it cannot take part: %s", printable(name), printable(why))
        self._troubles = dict(troubles)

    def _because(self, asked: str) -> str:
        """What others have said of themselves, for a line about waiting, and who is behind the one that is asked."""
        said = "".join(f"; {printable(name)}: {printable(why)}" for name, why in self._troubles.items())
        name, why = self._held
        behind = name and name not in (asked, self.kit.name) and name not in self._troubles
        return f"{said}; behind it is {name} ({why})" if behind else said

    def pull(
        self,
        peers: Mapping[int, Peer],
        where: Where,
        *,
        layout: MessageLayout | None,
        limit: int,
        patience: float | None = None,
        wanted: Callable[[], bool] = _always,
        copies: tuple[Incoming, Hashable] | None = None,
        pushed: Collection[str] = (),
    ) -> dict[int, Received]:
        """The message of every peer for one exchange. All are asked at once; each is waited for in turn.

        Where we hold `copies` of what they sent in this exchange before, they may tell what changed. Those that have
        a line to us, or may get one, and are among `pushed` are not asked unless it takes long.
        Once they are not `wanted` any more, `Dropped` is raised; `interrupt` makes everybody look.
        """
        patience = self.patience if patience is None else patience
        held = {p: copies[0].held(peer.name, copies[1], layout) if copies else None for p, peer in peers.items()}
        small = self.postbox.in_use if layout is None else layout.size <= SMALL
        lined = set(pushed) if small else set[str]()
        calls: dict[int, Call | Awaited] = {
            place: self._await(peer, where, layout)
            if peer.name in lined and self.postbox.may_bring(peer.name)
            else self._ask(peer, where, layout, held[place])
            for place, peer in peers.items()
        }
        began = time.monotonic()
        try:
            first = next(iter(calls), None)
            found: dict[int, Received] = {}
            for place, call in calls.items():
                name, how = peers[place].name, {"timed": place == first, "lined": peers[place].name in lined}
                found[place] = self._one(call, where, layout, limit, began, patience, wanted, held[place], **how)
                if name in pushed:  # what it sent in this round it made of a state that it has kept
                    self.passed(name, where.round)
            if copies:
                for place, message in found.items():
                    copies[0].keep(peers[place].name, copies[1], message.arrays)
            return found
        except (Stopped, Dropped):
            for call in calls.values():
                call.stop()
            raise
        finally:
            self.asking = ""

    def _ask(self, peer: Peer, where: Where, layout: MessageLayout | None, held: HeldCopy | None) -> Call:
        call = peer.ask(where, layout, held.mark if held else b"")
        with self._lock:
            self._calls.add(call)
        return call

    def _await(self, peer: Peer, where: Where, layout: MessageLayout | None) -> Awaited:
        awaited = Awaited(self.postbox, peer, where, layout)
        with self._lock:
            self._calls.add(awaited)
        return awaited

    def _one(
        self,
        call: Call | Awaited,
        where: Where,
        layout: MessageLayout | None,
        limit: int,
        began: float,
        patience: float,
        wanted: Callable[[], bool],
        held: HeldCopy | None,
        *,
        timed: bool,
        lined: bool,
    ) -> Received:
        peer, pause, say_after, trouble = call.peer, 0.05, FIRST_WORD, "it has not got there yet"
        self.asking, self._asking_since = peer.name, began

        def go_on() -> None:
            if self.stopping.is_set():
                raise Stopped("asked to stop")
            if not wanted():
                raise Dropped
            if time.monotonic() - began > patience:
                raise Waited(
                    f"waited {self.patience:g} s for {peer.name} (round {where.round}): {trouble}"
                    f"{self._because(peer.name)}; the state is kept, type the command again once it is back"
                )

        while True:
            failed = False
            try:
                found = decode(call.chunks(go_on), where, peer.name, layout=layout, limit=limit, held=held)
                if found is not None:
                    self.bytes_received += call.size
                    if self.timing is not None and not call.timed:
                        self.timing.pushed = True
                    elif self.timing is not None and timed:
                        # The server has to hear all others first: its reports tell how far it is.
                        waited = math.inf if peer.name == SERVER else call.began - call.asked
                        self.timing.answered(peer.name, waited, call.size - call.first, call.heard - call.began)
                    return Received(*found)
                trouble, pause = "it has not got there yet", 0.0
            except BadMessage as error:
                trouble, held = f"its message was refused: {error}", None
                log.warning("refused a message of %s for round %d: %s", peer.name, where.round, error)
            except Failed as error:
                trouble, failed = str(error), True
                if error.fatal:
                    raise Stopped(f"{peer.name} refuses us: {trouble}") from None
            finally:
                call.stop()
                with self._lock:
                    self._calls.discard(call)
            waited = time.monotonic() - began
            if waited > say_after:
                log.info("waiting for %s (round %d): %s%s", peer.name, where.round, trouble, self._because(peer.name))
                say_after = 2 * waited
            go_on()
            with self._woken:
                self._woken.wait(min(pause, max(0.0, patience - waited)))
            pause = min(1.0, max(0.05, 2 * pause))
            go_on()
            # Who could not be asked may have dialled us meanwhile.
            over = lined and failed and self.postbox.expects(peer.name)
            call = self._await(peer, where, layout) if over else self._ask(peer, where, layout, held)

    def _watch(self) -> None:
        """Give up calls that bring nothing; a dead connection without a goodbye looks like that."""
        while not self.stopping.wait(5.0):
            with self._lock:
                calls = list(self._calls)
            for call in calls:
                if time.monotonic() - call.heard > SILENCE:
                    call.stop()

    def stop(self) -> None:
        """Let everybody who waits stop soon."""
        self.stopping.set()
        self.interrupt()

    def interrupt(self) -> None:
        """Give up all calls: whoever waits for one looks whether it goes on."""
        with self._lock:
            calls = list(self._calls)
        for call in calls:
            call.stop()
        with self._woken:
            self._woken.notify_all()

    def close(self) -> None:
        self.stop()
        with self._lock:
            for peer in self._peers.values():
                peer.close()
