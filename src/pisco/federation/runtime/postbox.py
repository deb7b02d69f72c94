"""What others pushed to us and we have not needed yet.

A line brings a member's messages as they are ready, often before we need them, never much before: who is a round ahead
of us waits for ours. So a few small messages of each are kept, and whatever is too much is let go: it is asked for.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

from pisco.federation.runtime.calls import Peer
from pisco.federation.runtime.codec import MessageLayout, Where
from pisco.federation.runtime.wire_pb2 import Chunk, Header

MOST = 8
"""Messages of one member that are kept."""

EXPECTED, AT_FIRST = 2.0, 10.0
"""Seconds after which a message that should be pushed is asked for; its line may be dialled just now. And where there
is a line but members may still be starting, each with all that it has to compile."""


class PushedMessage(NamedTuple):
    """A message as it came over a line."""

    federation: bytes
    layout: str
    data: bytes


class Postbox:
    """The messages of every member that has a line to us.

    >>> box, line = Postbox(), object()
    >>> box.open("b", line)
    >>> box.put("b", (3, 0), PushedMessage(b"", "", b"abcd"))
    >>> box.expects("b"), box.take("b", (3, 0), seconds=1).data, box.take("b", (3, 1), seconds=0)
    (True, b'abcd', None)
    """

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._lines: dict[str, object] = {}
        self._met: set[str] = set()  # who has had a line, or none in time
        self._messages: dict[str, dict[tuple[int, int], PushedMessage]] = {}
        self._past: dict[str, tuple[int, int]] = {}

    def open(self, name: str, line: object) -> None:
        """A line brings messages of a member; one before it is over, and what it brought comes again."""
        with self._changed:
            self._lines[name] = line
            self._met.add(name)
            self._messages.pop(name, None)
            self._changed.notify_all()

    def close(self, name: str, line: object) -> None:
        """A line has ended: what it did not bring has to be asked for."""
        with self._changed:
            if self._lines.get(name) is line:
                del self._lines[name]
            self._changed.notify_all()

    def brings(self, name: str, line: object) -> bool:
        """Whether this line is the newest of a member."""
        return self._lines.get(name) is line

    def expects(self, name: str) -> bool:
        """Whether a member has a line to us."""
        return name in self._lines

    def may_bring(self, name: str) -> bool:
        """Whether a member has a line to us, or may still get its first one."""
        return name in self._lines or name not in self._met

    @property
    def in_use(self) -> bool:
        """Whether anybody has a line to us: messages are small then."""
        return bool(self._lines)

    def line(self, name: str) -> Any:
        """The newest line of a member; None where there is none."""
        return self._lines.get(name)

    def put(self, name: str, at: tuple[int, int], message: PushedMessage) -> None:
        """Keep a message of a round and phase, unless it is of the past; the oldest goes where there are too many."""
        with self._changed:
            if at > self._past.get(name, (-1, -1)):
                kept = self._messages.setdefault(name, {})
                kept[at] = message
                if len(kept) > MOST:
                    del kept[min(kept)]
                self._changed.notify_all()

    def take(
        self, name: str, at: tuple[int, int], *, seconds: float, stopped: Callable[[], bool] = lambda: False
    ) -> PushedMessage | None:
        """Wait for a message; those before it go with it. None where it is not there in time, or the line ends."""
        end = time.monotonic() + seconds
        with self._changed:
            while True:
                kept = self._messages.get(name, {})
                if at in kept:
                    self._past[name] = at
                    found = kept[at]
                    self._messages[name] = {later: each for later, each in kept.items() if later > at}
                    return found
                left = end - time.monotonic()
                if left <= 0:
                    self._met.add(name)  # who has no line by now is asked from now on, until it has
                if left <= 0 or stopped() or not self.may_bring(name):
                    return None
                self._changed.wait(left)

    def wake(self) -> None:
        """Let those who wait look whether they go on."""
        with self._changed:
            self._changed.notify_all()


class Awaited:
    """A message that is pushed to us, where a `Call` would ask for it."""

    timed = False

    def __init__(self, box: Postbox, peer: Peer, where: Where, layout: MessageLayout | None):
        self.box, self.peer, self.where, self.layout = box, peer, where, layout
        self.heard = self.asked = self.began = time.monotonic()
        self.first = self.size = 0
        self._stopped = False

    def chunks(self, go_on: Callable[[], None]) -> Iterator[Any]:
        """The message as one chunk; nothing where it does not come."""
        at = (self.where.round, self.where.phase)
        end = self.began + (AT_FIRST if self.where.round <= 1 else EXPECTED)
        while True:
            found = self.box.take(self.peer.name, at, seconds=EXPECTED, stopped=lambda: self._stopped)
            left = end - time.monotonic()
            if found is None and (left <= 0 or self._stopped or not self.box.expects(self.peer.name)):
                return
            if found is not None:
                break
            go_on()
        self.heard, self.size = time.monotonic(), len(found.data)
        go_on()
        told = {"sender": self.peer.name, "layout": found.layout, "size": self.size}
        fits = self.layout is not None and found[:2] == (self.where.federation, str(self.layout))
        header = None if fits else Header(federation=found.federation, round=at[0], phase=at[1], **told)
        yield Chunk(header=header, data=found.data)

    def stop(self) -> None:
        """Give it up."""
        self._stopped = True
        self.box.wake()
