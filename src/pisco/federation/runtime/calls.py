"""One other member: the connection to it, a question to it, and what may go wrong with it."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

from cryptography import x509

from pisco.federation import keyfiles
from pisco.federation.kits import Kit, Refused
from pisco.federation.runtime import transport
from pisco.federation.runtime.chunks import DataChunk
from pisco.federation.runtime.codec import SMALL, Arrived, MessageLayout, Where
from pisco.federation.runtime.keys_pb2 import MaskKey, MaskKeys
from pisco.federation.runtime.lines import printable
from pisco.federation.runtime.news import Notice
from pisco.federation.runtime.transport import grpc
from pisco.federation.runtime.tunnels import Way, look
from pisco.federation.runtime.wire_pb2 import Chunk, Overview, Pushed, Question, Ready, Receipt, Report, Request, Rolls


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
        self.presented, self._showing, trusted = certificate, self.kit.certificate, certificate or self.kit.certificate
        self._ends = x509.load_pem_x509_certificate(trusted).not_valid_after_utc
        self.channel = transport.channel(self.kit, self.name, self.way.target, trusted)
        self._pull = transport.method(self.channel, transport.PULL, Request, DataChunk)
        self._take = transport.method(self.channel, transport.TAKE, Request, Chunk)
        self._report = transport.method(self.channel, transport.REPORT, Report, Receipt)
        self._overview = transport.method(self.channel, transport.OVERVIEW, Question, Overview)
        self._roll = transport.method(self.channel, transport.ROLL, Ready, Rolls)
        self._news = transport.method(self.channel, transport.NEWS, Notice, Notice)
        self._keys = transport.method(self.channel, transport.KEYS, MaskKey, MaskKeys)
        self._line = transport.method(self.channel, transport.LINE, Pushed, Pushed)

    def check(self) -> None:
        """Refuse a peer whose certificate was revoked, or has ended: the channel may be older.

        grpc does not show the peer's certificate to clients. So it is looked at on a connection of our own, and the
        channel then trusts that one certificate alone: nobody with another one, a revoked one say, can answer there.
        """
        if self._checked():
            return
        with self._checking:
            now = self.kit.revoked, self.kit.certificate
            if not self._checked():
                seen = self._look()
                if (seen, now[1]) != (self.presented, self._showing):
                    self.channel.close()
                    self._connect(seen)
                self._checked_against = now

    def _checked(self) -> bool:
        now = self.kit.revoked, self.kit.certificate
        return now == self._checked_against and keyfiles.now() < self._ends

    def _look(self) -> bytes:
        """The certificate with which the peer's address answers, if it is the peer's and not revoked."""
        return look(self.kit, self.way.dial(), self.name, "h2")

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

    def news(self, have: Notice) -> Notice:
        """What the server has that is newer."""
        self.check()
        return self._news(have, timeout=10.0)

    def keys(self, own: MaskKey, timeout: float) -> MaskKeys:
        """Tell our key for masks, and hear those of others."""
        self.check()
        return self._keys(own, timeout=timeout)

    def line(self, outgoing: Iterator[Pushed]) -> Any:
        """A line on which both push, see `pisco.federation.runtime.pushing`."""
        self.check()
        return self._line(outgoing)

    def overview(self, question: Question, timeout: float) -> Overview:
        self.check()
        # One attempt to connect may fail where the next one succeeds.
        return self._overview(question, timeout=timeout, wait_for_ready=True)

    def close(self) -> None:
        self.channel.close()
        self.way.close()


class Call:
    """One question to a peer, under way."""

    timed = True
    """Whether it tells how far the peer is."""

    def __init__(self, peer: Peer, call: Any, trouble: str = "", *, small: bool = False):
        self.peer, self.call, self.trouble, self.small = peer, call, trouble, small
        self.heard = self.asked = self.began = time.monotonic()
        self.first = self.size = 0

    def chunks(self, go_on: Callable[[], None]) -> Iterator[Arrived]:
        """What the call brings, as long as `go_on` does not raise."""
        if self.call is None:
            raise Failed(self.trouble)
        try:
            for chunk in self._taken() if self.small else self.call:
                self.heard, found = time.monotonic(), Arrived(chunk.header, chunk.data)
                if not self.first:
                    self.began, self.first = self.heard, len(found.data)
                self.size += len(found.data)
                go_on()
                yield found
        except grpc.RpcError as error:
            raise Failed.of(error, self.peer) from None

    def _taken(self) -> Iterator[Any]:
        try:
            chunk = self.call.result()
        except grpc.FutureCancelledError:
            raise Failed("it went silent") from None
        if chunk.ByteSize():
            yield chunk

    def stop(self) -> None:
        """Give it up."""
        if self.call is not None:
            self.call.cancel()


class Failed(Exception):
    """A call failed in a way that may pass."""

    fatal = False

    @classmethod
    def of(cls, error: Any, peer: Peer) -> Failed:
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
