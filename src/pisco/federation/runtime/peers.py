"""Pulling messages from others: retry, back off, log who is late, and stop when patience ends."""

from __future__ import annotations

import logging
import math
import threading
import time
from collections.abc import Callable, Hashable, Iterator, Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from pisco.federation.kits import Kit, Refused
from pisco.federation.roster import SERVER
from pisco.federation.runtime import transport
from pisco.federation.runtime.codec import BadMessage, Held, MessageLayout, Where, decode
from pisco.federation.runtime.keys_pb2 import MaskKey, MaskKeys
from pisco.federation.runtime.news import Notice
from pisco.federation.runtime.timing import Timing
from pisco.federation.runtime.transport import grpc
from pisco.federation.runtime.tunnels import Way, introduce, presented
from pisco.federation.runtime.wire_pb2 import Chunk, Overview, Question, Ready, Receipt, Report, Request, Rolls

if TYPE_CHECKING:
    from pisco.federation.runtime.updates import Incoming

log = logging.getLogger("pisco.federation")

A_WHILE = 2.0
"""Seconds of waiting before the server hears for whom."""

FIRST_WORD = 5.0
"""Seconds of waiting before the log says for whom."""

SMALL = 64 * 1024
"""Bytes up to which a message is taken in one piece."""

SILENCE = 30.0
"""A call that brings nothing for this long is given up and made again; three times the longest poll."""


class Stopped(Exception):
    """The run ends here with its state kept; the message says why and what to do."""


class Waited(Stopped):
    """Patience ended: somebody did not answer for too long."""


class Dropped(Exception):
    """What is pulled is not wanted any more."""


def _always() -> bool:
    return True


class Peer:
    """One other member of the federation, at its address."""

    def __init__(self, kit: Kit, name: str, address: str):
        self.kit, self.name, self.address = kit, name, address
        self.way = Way(kit, name, address)
        self.presented = b""
        self._checked_against: tuple[frozenset[int], bytes] | None = None
        self._checking = threading.Lock()
        self._connect(b"")

    def _connect(self, certificate: bytes) -> None:
        """A channel to whoever holds the key of this certificate; until one was seen, to nobody."""
        self.presented, self._showing = certificate, self.kit.certificate
        self.channel = transport.channel(self.kit, self.name, self.way.target, certificate or self.kit.certificate)
        self._pull = transport.method(self.channel, transport.PULL, Request, Chunk)
        self._take = transport.method(self.channel, transport.TAKE, Request, Chunk)
        self._report = transport.method(self.channel, transport.REPORT, Report, Receipt)
        self._overview = transport.method(self.channel, transport.OVERVIEW, Question, Overview)
        self._roll = transport.method(self.channel, transport.ROLL, Ready, Rolls)
        self._news = transport.method(self.channel, transport.NEWS, Notice, Notice)
        self._keys = transport.method(self.channel, transport.KEYS, MaskKey, MaskKeys)

    def check(self) -> None:
        """Refuse a peer whose certificate was revoked.

        grpc does not show the peer's certificate to clients. So it is looked at on a connection of our own, and the
        channel then trusts that one certificate alone: nobody with another one, a revoked one say, can answer there.
        """
        if (self.kit.revoked, self.kit.certificate) == self._checked_against:
            return
        with self._checking:
            now = self.kit.revoked, self.kit.certificate
            if now != self._checked_against:
                seen = self._look()
                if (seen, now[1]) != (self.presented, self._showing):
                    self.channel.close()
                    self._connect(seen)
                self._checked_against = now

    def _look(self) -> bytes:
        """The certificate with which the peer's address answers, if it is the peer's and not revoked."""
        with introduce(self.kit, self.way.dial(), self.name, "h2") as secured:
            return presented(secured)

    def forget(self) -> None:
        """Look at its certificate again before the next question: somebody else may answer there, or it was renewed."""
        self._checked_against = None

    def ask(self, where: Where, layout: MessageLayout | None = None, base: bytes = b"") -> Call:
        """Ask, without waiting for the answer, for what should look like this; `base` marks the copy that we hold."""
        try:
            self.check()
        except OSError as error:
            return Call(self, None, f"cannot connect to {self.way} ({error.strerror or type(error).__name__})")
        except Refused as error:
            return Call(self, None, f"refused: {error}")
        try:
            expected = layout.mark if layout else b""
            request = Request(**where._asdict(), base=base, expected=expected)
            small = layout is not None and layout.size <= SMALL
            return Call(self, (self._take.future if small else self._pull)(request, wait_for_ready=False), small=small)
        except ValueError:  # grpc's word for a channel that was closed: we are stopping
            return Call(self, None, "our connection to it is closed")

    def report(self, report: Report, timeout: float) -> Receipt:
        self.check()
        return self._report(report, timeout=timeout)

    def roll(self, ready: Ready, timeout: float) -> Any:
        """A question that can be waited for and given up."""
        self.check()
        return self._roll.future(ready, timeout=timeout)

    def news(self, have: Notice, timeout: float = 10.0) -> Notice:
        """What the server has that is newer."""
        self.check()
        return self._news(have, timeout=timeout)

    def keys(self, own: MaskKey, timeout: float) -> MaskKeys:
        """Tell our key for masks, and hear those of others."""
        self.check()
        return self._keys(own, timeout=timeout)

    def overview(self, question: Question, timeout: float) -> Overview:
        self.check()
        # The first attempts to connect are short: over a long link only later ones succeed.
        return self._overview(question, timeout=timeout, wait_for_ready=True)

    def close(self) -> None:
        self.channel.close()
        self.way.close()


class Call:
    """One question to a peer, under way."""

    def __init__(self, peer: Peer, call: Any, trouble: str = "", *, small: bool = False):
        self.peer, self.call, self.trouble, self.small = peer, call, trouble, small
        self.heard = self.asked = self.began = time.monotonic()
        self.first = self.size = 0

    def chunks(self, go_on: Callable[[], None]) -> Iterator[Any]:
        """What the call brings, as long as `go_on` does not raise."""
        if self.call is None:
            raise _Trouble(self.trouble)
        try:
            for chunk in self._taken() if self.small else self.call:
                self.heard = time.monotonic()
                if not self.first:
                    self.began, self.first = self.heard, len(chunk.data)
                self.size += len(chunk.data)
                go_on()
                yield chunk
        except grpc.RpcError as error:
            raise _Trouble.of(error, self.peer) from None

    def _taken(self) -> Iterator[Any]:
        try:
            chunk = self.call.result()
        except grpc.FutureCancelledError:
            raise _Trouble("it went silent") from None
        if chunk.ByteSize():
            yield chunk

    def stop(self) -> None:
        """Give it up."""
        if self.call is not None:
            self.call.cancel()


class _Trouble(Exception):
    """A call failed in a way that may pass."""

    fatal = False

    @classmethod
    def of(cls, error: Any, peer: Peer) -> _Trouble:
        code, details = error.code(), error.details() or ""
        if code in (grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.UNKNOWN):
            peer.forget()
            made = cls(f"cannot reach {peer.way}")
        elif code is grpc.StatusCode.CANCELLED:
            made = cls("it went silent")
        else:
            made = cls(printable(details) or code.name.lower().replace("_", " "))
        made.fatal = code is grpc.StatusCode.FAILED_PRECONDITION
        return made


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
        self._troubles: dict[str, str] = {}
        self._held = ("", "")
        self._peers: dict[str, Peer] = {}
        self._calls: set[Call] = set()
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
    ) -> dict[int, Received]:
        """The message of every peer for one exchange. All are asked at once; each is waited for in turn.

        Where we hold `copies` of what they sent in this exchange before, they may tell what changed.
        Once they are not `wanted` any more, `Dropped` is raised; `interrupt` makes everybody look.
        """
        patience = self.patience if patience is None else patience
        held = {p: copies[0].held(peer.name, copies[1], layout) if copies else None for p, peer in peers.items()}
        calls = {place: self._ask(peer, where, layout, held[place]) for place, peer in peers.items()}
        began = time.monotonic()
        try:
            first = next(iter(calls), None)
            found = {
                place: self._one(call, where, layout, limit, began, patience, wanted, held[place], timed=place == first)
                for place, call in calls.items()
            }
            if copies is not None:
                for place, message in found.items():
                    copies[0].keep(peers[place].name, copies[1], message.arrays)
            return found
        except (Stopped, Dropped):
            for call in calls.values():
                call.stop()
            raise
        finally:
            self.asking = ""

    def _ask(self, peer: Peer, where: Where, layout: MessageLayout | None, held: Held | None) -> Call:
        call = peer.ask(where, layout, held.mark if held else b"")
        with self._lock:
            self._calls.add(call)
        return call

    def _one(
        self,
        call: Call,
        where: Where,
        layout: MessageLayout | None,
        limit: int,
        began: float,
        patience: float,
        wanted: Callable[[], bool],
        held: Held | None,
        *,
        timed: bool,
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
            try:
                found = decode(call.chunks(go_on), where, peer.name, layout=layout, limit=limit, held=held)
                if found is not None:
                    self.bytes_received += call.size
                    if timed and self.timing is not None:
                        # The server has to hear all others first: its reports tell how far it is.
                        waited = math.inf if peer.name == SERVER else call.began - call.asked
                        self.timing.answered(peer.name, waited, call.size - call.first, call.heard - call.began)
                    return Received(*found)
                trouble, pause = "it has not got there yet", 0.0
            except BadMessage as error:
                trouble, held = f"its message was refused: {error}", None
                log.warning("refused a message of %s for round %d: %s", peer.name, where.round, error)
            except _Trouble as error:
                trouble = str(error)
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
            call = self._ask(peer, where, layout, held)

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


def printable(details: str) -> str:
    """What a peer says, fit for one line of a log and for a terminal."""
    return "".join(each if each.isprintable() else " " for each in details[:300]).strip()
