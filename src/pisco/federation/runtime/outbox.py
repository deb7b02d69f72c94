"""Messages waiting to be pulled, kept until every reader has gone past their round.

A reader that is given round r has kept its own state of round r − 1, so nothing before r is ever asked for again. That
is why old messages can go, and why a request for an older round is a mistake (a lost store, a replay).
"""

from __future__ import annotations

import threading
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field

from pisco.federation.runtime.codec import SMALL, Data, MessageLayout, Update


class Stale(Exception):
    """The reader asks for a round that it has left behind."""


class Forbidden(Exception):
    """The message is not for this reader."""


@dataclass(frozen=True)
class Message:
    """One outgoing message and those who may pull it."""

    layout: MessageLayout
    data: Data
    readers: frozenset[str]
    updates: Mapping[bytes, Update] = field(default_factory=dict)
    """The same for those who hold an earlier one, by its mark."""
    pushed: frozenset[str] = frozenset()
    """The readers to whom it goes over a line without a question; they send us one in the same exchange."""


class Outbox:
    """Outgoing messages by (round, phase), and the round that every reader has reached.

    >>> box = Outbox({})
    >>> box.publish(1, 0, MessageLayout((("float32", (1,)),)), b"abcd", ["b"])
    >>> box.take("b", 1, 0, seconds=1).data
    b'abcd'
    >>> box.take("b", 2, 0, seconds=0) is None, len(box.kept())    # asking alone forgets nothing
    (True, 1)
    >>> box.passed("b", 2), len(box.kept())
    (None, 0)
    """

    def __init__(self, floors: dict[str, int]):
        self._changed = threading.Condition()
        self._messages: dict[tuple[int, int], Message] = {}
        self._floors = dict(floors)
        self._hidden: set[tuple[int, int]] = set()
        self._asked: dict[str, Counter[tuple[int, int]]] = defaultdict(Counter)  # by questions under way
        self._given: dict[str, tuple[int, int]] = {}  # of what is pushed, what a question was answered with last
        self._closed = False

    def publish(
        self,
        round_: int,
        phase: int,
        layout: MessageLayout,
        data: Data,
        readers: Iterable[str],
        updates: Mapping[bytes, Update] | None = None,
        *,
        hidden: bool = False,
        pushed: Iterable[str] = (),
    ) -> None:
        """Offer a message; one that nobody needs any more is dropped at once. A hidden one waits for `show`."""
        with self._changed:
            lines = frozenset(pushed) if len(data) <= SMALL else frozenset[str]()
            message = Message(layout, data, frozenset(readers), updates or {}, lines)
            if self._needed(round_, message):
                self._messages[round_, phase] = message
                if hidden:
                    self._hidden.add((round_, phase))
            self._changed.notify_all()

    def show(self, round_: int, phase: int) -> None:
        """Let a hidden message be pulled."""
        with self._changed:
            self._hidden.discard((round_, phase))
            self._changed.notify_all()

    def withdraw(self, round_: int, phase: int) -> None:
        """Take back a hidden message."""
        with self._changed:
            self._messages.pop((round_, phase), None)
            self._hidden.discard((round_, phase))

    def take(
        self, reader: str, round_: int, phase: int, *, seconds: float, alive: Callable[[], bool] = lambda: True
    ) -> Message | None:
        """Wait for a message; None when it is not there in time, or the reader is gone."""
        end = time.monotonic() + seconds
        with self._changed:
            if round_ < self._floors.get(reader, 0):
                raise Stale
            self._asked[reader][round_, phase] += 1
            try:
                while not self._closed and alive():
                    found = self._messages.get((round_, phase))
                    if found is not None and (round_, phase) not in self._hidden:
                        if reader not in found.readers:
                            raise Forbidden
                        # Only now: who asks for a round far ahead must not make us forget those before it, nor keep
                        # us from pushing them. Nor does what goes over no line, whose phase tells of no order.
                        if reader in found.pushed:
                            self._given[reader] = (round_, phase)
                        if round_ > self._floors.get(reader, 0):
                            self._floors[reader] = round_
                            self._prune()
                            self._changed.notify_all()
                        return found
                    left = end - time.monotonic()
                    if left <= 0:
                        return None
                    self._changed.wait(left)
                return None
            finally:
                self._asked[reader] -= Counter({(round_, phase): 1})
                self._changed.notify_all()

    def pushed_to(
        self, reader: str, after: tuple[int, int], *, seconds: float, alive: Callable[[], bool]
    ) -> tuple[tuple[int, int], Message] | None:
        """Wait for the next message that is pushed to a reader, and its round and phase; None when there is none."""
        end = time.monotonic() + seconds
        with self._changed:
            while not self._closed and alive():
                # What is asked for is answered, and who asks asks in order.
                start = max(after, self._given.get(reader, (-1, -1)), (self._floors.get(reader, 0), -1))
                closed = self._hidden | self._asked[reader].keys()
                places = [
                    at
                    for at, message in self._messages.items()
                    if at > start and reader in message.pushed and at not in closed
                ]
                if places:
                    return min(places), self._messages[min(places)]
                left = end - time.monotonic()
                if left <= 0:
                    return None
                self._changed.wait(left)
        return None

    @property
    def closed(self) -> bool:
        """Whether nobody is answered any more."""
        return self._closed

    def passed(self, reader: str, round_: int) -> None:
        """Note that a reader needs nothing before this round."""
        with self._changed:
            self._floors[reader] = max(round_, self._floors.get(reader, 0))
            self._prune()
            self._changed.notify_all()

    def reopen(self, reader: str, round_: int) -> None:
        """Let a reader who had said goodbye ask for this round after all."""
        with self._changed:
            self._floors[reader] = min(round_, self._floors.get(reader, 0))

    def forget(self, round_: int) -> None:
        """Drop the messages of all rounds before this one but the start's: nobody can ask for them any more."""
        with self._changed:
            for at in [at for at in self._messages if 0 < at[0] < round_]:
                del self._messages[at]
                self._hidden.discard(at)

    def wake(self) -> None:
        """Let those who wait look again: a connection may be gone."""
        with self._changed:
            self._changed.notify_all()

    def close(self) -> None:
        """End the waiting of every reader."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()

    def wait_until_read(self, readers: Iterable[str], round_: int, seconds: float) -> list[str]:
        """Wait until the readers have reached a round; returns those who have not."""
        end, readers = time.monotonic() + seconds, list(readers)
        with self._changed:
            while True:
                missing = [reader for reader in readers if self._floors.get(reader, 0) < round_]
                left = end - time.monotonic()
                if not missing or left <= 0 or self._closed:
                    return missing
                self._changed.wait(left)

    def kept(self) -> dict[tuple[int, int], Message]:
        """What some reader may still ask for."""
        with self._changed:
            return dict(self._messages)

    def floors(self) -> dict[str, int]:
        """The round that every reader has reached."""
        with self._changed:
            return dict(self._floors)

    def _needed(self, round_: int, message: Message) -> bool:
        return any(self._floors.get(reader, 0) <= round_ for reader in message.readers)

    def _prune(self) -> None:
        gone = [at for at, message in self._messages.items() if not self._needed(at[0], message)]
        for at in gone:
            del self._messages[at]
            self._hidden.discard(at)
