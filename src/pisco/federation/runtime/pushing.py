"""Lines: between two members each pushes its small messages to the other as soon as they are ready.

One of the two dials, and both directions share that connection: a message then costs no question, and its receipt is
told with the next one the other way. What a line does not bring (it broke, a message is large or compressed, a member
is new) is asked for as ever. A line holds no messages: it reads those that the outbox keeps, one after the other, as
fast as the other end takes them. Certificates are checked at every message, in both directions.
"""

from __future__ import annotations

import logging
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING, Any

from pisco.federation.kits import Refused
from pisco.federation.roster import SERVER
from pisco.federation.runtime import transport
from pisco.federation.runtime.calls import Peer
from pisco.federation.runtime.codec import SMALL, BadMessage, MessageLayout, Where
from pisco.federation.runtime.packing import pack, unpack
from pisco.federation.runtime.peers import Dropped
from pisco.federation.runtime.postbox import PushedMessage
from pisco.federation.runtime.transport import grpc
from pisco.federation.runtime.wire_pb2 import Pushed

if TYPE_CHECKING:
    from pisco.federation.runtime.member import MemberProcess

log = logging.getLogger("pisco.federation")

BEAT, SELDOM = 5.0, 60.0
"""Seconds between two pings, which time the link: between the first ones, and the most. The quickest counts."""

AGAIN = 1.0
"""The most seconds after which a line that could not be had, or broke, is tried again; at first a tenth of that."""

WANTED = 60.0
"""Seconds for which it is tried without an exchange that needs it."""

ANSWER, LAST = 2.0, 1.0
"""Seconds for the answer to a goodbye, and for what is on its way when we end."""


NONSENSE = "what it pushes is not a message"


class Pushing:
    """The lines of one process."""

    def __init__(self, member: MemberProcess):
        self.member = member
        self.parting = False  # who needs nothing more dials nobody again
        self._wanted: dict[str, float] = {}
        self._under_way: set[str] = set()

    def dial(self, peer: Peer) -> None:
        """See to it that there is a line to a peer, soon, and for as long as exchanges need it."""
        self._wanted[peer.name] = time.monotonic()
        if peer.name in self._under_way or self.member.mailroom.postbox.expects(peer.name):
            return
        self._under_way.add(peer.name)
        threading.Thread(target=self._keep, args=(peer,), daemon=True, name=f"line to {peer.name}").start()

    def _needs(self, peer: Peer) -> bool:
        mailroom = self.member.mailroom
        if self.parting or self.member.outbox.closed or not mailroom.knows(peer):
            return False
        return mailroom.asking == peer.name or time.monotonic() - self._wanted[peer.name] < WANTED

    def _keep(self, peer: Peer) -> None:
        pause, stopping = AGAIN / 10, self.member.mailroom.stopping
        try:
            while self._needs(peer) and not stopping.is_set():
                if not self.member.mailroom.postbox.expects(peer.name):  # else it dialled us
                    pause = AGAIN / 10 if self._talk(peer) else min(AGAIN, 2 * pause)
                stopping.wait(pause)
        finally:
            self._under_way.discard(peer.name)

    def _talk(self, peer: Peer) -> bool:
        """Dial, and stay on the line until it ends; whether there was one."""
        end = _End(self.member, peer.name, peer.check, dialled=True)
        try:
            call = peer.line(end.outgoing())
            end.listen(call)
            call.cancel()
        except (grpc.RpcError, OSError, Refused, ValueError) as error:
            log.debug("no line to %s: %s", peer.name, error)
            peer.forget()
        finally:
            end.close()
        return end.heard

    def farewell(self, name: str, where: Where) -> bool:
        """Say over a line that we need nothing before a round; whether the other end has taken note.

        Who dialled it has a connection on which to ask, and does that.
        """
        line = self.member.mailroom.postbox.line(name)
        return line is not None and not line.dialled and line.leave(where)

    def close(self) -> None:
        """Let the lines end that we dialled: what they say last is on its way."""
        self.parting, end = True, time.monotonic() + LAST
        while self._under_way and time.monotonic() < end:
            time.sleep(0.01)

    def answer(self, name: str, requests: Iterator[Any], context: grpc.ServicerContext) -> Iterator[Pushed]:
        """The other end of a line that a member dialled."""
        member = self.member
        if name != SERVER and name not in member.plan.names:
            member.door.refuse(context, name, "it is not in the roster")
        member.refuse_gone(name, context)
        presented: Any = context.auth_context().get("x509_pem_cert", [b""])[0]
        end = _End(member, name, lambda: member.kit.identify(presented), dialled=False)
        if not context.add_callback(end.close):
            return

        def listen() -> None:
            try:
                end.listen(requests)
            except Exception as error:  # of whatever kind grpc has for a line that broke
                log.debug("the line of %s ended: %s", name, error)
            finally:
                end.close()

        threading.Thread(target=listen, daemon=True, name=f"line of {name}").start()
        yield from end.outgoing()


class _End:
    """Our end of one line."""

    def __init__(self, member: MemberProcess, name: str, check: Callable[[], Any], *, dialled: bool):
        self.member, self.name, self.check, self.dialled = member, name, check, dialled
        self._shown = member.kit.certificate
        self._open, self._announced = True, False
        self._pongs: deque[int] = deque(maxlen=4)
        self._leaving: Where | None = None
        self._left, self._goodbye, self._noted = threading.Event(), 0, threading.Event()
        self._noted.set()
        self._ping, self._pinged, self._beat = 0, -SELDOM, BEAT / 2

    def close(self) -> None:
        """Both directions end."""
        self._open = False
        self.member.mailroom.postbox.close(self.name, self)
        self.member.outbox.wake()

    @property
    def heard(self) -> bool:
        """Whether anything came over it."""
        return self._announced

    def leave(self, where: Where) -> bool:
        """Say goodbye; whether it was answered in time."""
        self._leaving = where
        self.member.outbox.wake()
        return self._left.wait(ANSWER)

    @property
    def _newest(self) -> bool:
        """Whether the other end has not dialled again."""
        return not self._announced or self.member.mailroom.postbox.brings(self.name, self)

    def _trusted(self) -> bool:
        """Whether the other end is still who it was, and not revoked, and so are we."""
        if self.member.kit.certificate != self._shown:
            return False  # renewed: the next line shows it
        try:
            self.check()
        except Refused as error:
            self.member.door.complain(self.name, str(error))
            return False
        except OSError as error:  # it could not be looked at
            log.debug("the line to %s ends: %s", self.name, error)
            return False
        return True

    def _waits(self) -> bool:
        return self._open and not self._pongs and self._leaving is None

    def outgoing(self) -> Iterator[Pushed]:
        """Our messages for the other end, from the oldest that the outbox keeps on."""
        member, after, said, layout, follows = self.member, (-1, -1), b"", "", (0, 0)
        while self._open:
            now = time.monotonic()
            if now - self._pinged > self._beat:
                self._ping, self._pinged, self._beat = self._ping % 1000 + 1, now, min(2 * self._beat, SELDOM)
                yield Pushed(ping=self._ping)
            while self._pongs:
                yield Pushed(pong=self._pongs.popleft())
            if self._leaving is not None and self._trusted():
                where, self._leaving, self._goodbye = self._leaving, None, 1001
                yield Pushed(federation=where.federation, round=where.round, ping=self._goodbye)
            found = member.outbox.pushed_to(self.name, after, seconds=BEAT, alive=self._waits)
            if member.outbox.closed or not self._newest:
                self._noted.wait(LAST)
                yield from (Pushed(pong=each) for each in self._pongs)
                return
            if found is None:
                continue
            after, message = found
            if not self._trusted():
                return
            try:
                where, objection = member.where(*after), member.why_not(self.name, *after)
            except Dropped:
                continue
            if objection is not None:
                continue  # it hears so when it asks
            member.bytes_sent += len(message.data)
            told, at, packed = str(message.layout), (where.round, where.phase), pack(message.data, message.layout)
            yield Pushed(
                federation=where.federation if where.federation != said else b"",
                round=where.round if at != follows else 0,
                phase=where.phase if at != follows else 0,
                layout=told if told != layout else "",
                data=bytes(message.data) if packed is None else b"",
                packed=packed or b"",
            )
            said, layout, follows = where.federation, told, (at[0], at[1] + 1)

    def listen(self, messages: Iterable[Any]) -> None:
        """Keep what comes until the line ends."""
        member, box, federation, layout, follows = self.member, self.member.mailroom.postbox, b"", "", (0, 0)
        for pushed in messages:
            if not self._open:
                return
            if not self._trusted():
                return
            # Of the layout too: boxes are small.
            large = pushed is transport.MALFORMED or len(pushed.data) > SMALL or pushed.ByteSize() > 2 * SMALL
            if large or (pushed.data and pushed.packed):
                member.door.complain(self.name, NONSENSE)
                return
            if not self._announced:
                box.open(self.name, self)
                self._announced = True  # now, not before: until then it is no older line than another
            elif not self._newest:
                return
            if pushed.round and not (pushed.data or pushed.packed):
                self._noted.clear()  # it may be all that we wait for to end: the answer goes out all the same
                objection = member.leaves(self.name, Where(pushed.federation, pushed.round, 0))
                if objection is not None:
                    self._noted.set()
                    member.door.complain(self.name, objection)
                    return
            if pushed.ping:
                self._pongs.append(pushed.ping)
                self._noted.set()
                member.outbox.wake()
            if pushed.pong and pushed.pong == self._goodbye:
                self._left.set()
            if pushed.pong and pushed.pong == self._ping and member.mailroom.timing is not None:
                member.mailroom.timing.answered(self.name, time.monotonic() - self._pinged, 0, 0.0)
            if pushed.data or pushed.packed:
                federation, layout = pushed.federation or federation, pushed.layout or layout
                if not federation or not layout:
                    member.door.complain(self.name, "what it pushes is of no exchange")
                    return
                data = pushed.data or _unpacked(pushed.packed, layout)
                if data is None:
                    member.door.complain(self.name, NONSENSE)
                    return
                at = (pushed.round, pushed.phase) if pushed.round or pushed.phase else follows
                follows = (at[0], at[1] + 1)
                box.put(self.name, at, PushedMessage(federation, layout, data))
                member.arrived(self.name, Where(federation, *at))


def _unpacked(packed: bytes, told: str) -> bytes | None:
    """A message that came packed; None where it is none."""
    try:
        layout = MessageLayout.parse(told)
    except BadMessage:
        return None
    return unpack(packed, layout) if layout.size <= SMALL else None
