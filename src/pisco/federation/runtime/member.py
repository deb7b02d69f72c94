"""What agents and the server have in common: a place to listen, messages to offer, and a memory on disk."""

from __future__ import annotations

import logging
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from pisco.errors import InputError
from pisco.federation import keyfiles
from pisco.federation.audit import AuditLog
from pisco.federation.kits import PLAN, Kit
from pisco.federation.plan import Federation
from pisco.federation.roster import OUTBOUND, SERVER, check_address
from pisco.federation.runtime import transport, tunnels
from pisco.federation.runtime.codec import CHUNK, Data, MessageLayout, Update, Where, encode
from pisco.federation.runtime.news import Newsreader
from pisco.federation.runtime.outbound import ways_in
from pisco.federation.runtime.outbox import Forbidden, Outbox, Stale
from pisco.federation.runtime.peers import Mailroom, Peer
from pisco.federation.runtime.pushing import Pushing
from pisco.federation.runtime.store import Store, outbox_of
from pisco.federation.runtime.transport import grpc
from pisco.federation.runtime.wire_pb2 import Chunk, Pushed, Request

log = logging.getLogger("pisco.federation")

LIMIT = 2 << 30
"""The most bytes of a message that somebody takes without knowing its layout before."""


BOUNDARY = 1 << 20
"""The phase in which agents who join get the others' mean parameters, before the first round of a new roster."""


CLOSING = 1 << 21
"""The phase in which the server averages everybody's parameters, in the round after the last."""


LATER = 5.0
"""Seconds after which a plan is tried again that the disk did not let us take."""


GONE = 1 << 60
"""The round that a member has reached who needs nothing more."""

LAST_ANSWERS = 10.0
"""Seconds for which a process that ends still answers goodbyes."""
CANCELLED = "it was to join, and that was cancelled; it can join once it is added again"
GONE_WITHOUT = "it was gone and removed, and the others went on without it; it can join again under another name"


def wire(k: int) -> int:
    """The number that round k has in messages; 0 there is the start."""
    return k + 1


class MemberProcess(ABC):
    """One process of a federation. The round in messages is `wire(k)`."""

    def __init__(self, kit: Kit, folder: Path, *, listen: str | None = None, durable: bool = True):
        self.listen = None if listen is None else check_address(listen)
        self.kit, self.name = kit, kit.name
        self.plan: Federation = kit.federation
        self.store = Store(folder, member=kit.name, federation=self.plan.name, durable=durable)
        kit.remember(folder)
        self.found = self.store.load()
        self.outbox: Outbox = outbox_of(self.found)
        self.mailroom = Mailroom(kit, self.plan.patience)
        self.mailroom.passed = self.outbox.passed
        self.pushing = Pushing(self)
        self.audit = AuditLog(folder, kit, durable=durable)
        self.door = transport.Door(kit, lambda line: self.audit.add("refusal", line=line))
        self._revoked = kit.revoked
        self.bytes_sent = 0
        self._listening: Any = None
        self._goodbyes: list[threading.Event] = []
        self._close_ways: Callable[[], None] = lambda: None
        self.news: Newsreader | None = None
        self._plan_path = str(kit.folder / PLAN)
        self._plan_lock = threading.Lock()
        self._plan_stamp: tuple[int, int] | None = None
        self._plan_after = 0.0

    def open(self, address: str, methods: dict[str, Any]) -> None:
        """Begin to answer."""
        pull: dict[str, Any] = {transport.PULL: (self._pull, Request), transport.TAKE: (self._take, Request)}
        pull[transport.LINE] = (self.pushing.answer, Pushed)
        listen = self.listen or (tunnels.private_address() if address == OUTBOUND else address)
        self._listening = transport.serve(self.door, listen, pull | methods, peers=len(self.plan.names) + 1)
        self._close_ways = ways_in(self.kit, lambda: self.plan, address, listen, self.listen)
        if self.name != SERVER:
            ask = lambda have: self.peer(SERVER, 0).news(have)  # noqa: E731
            self.news = Newsreader(self.kit, ask, lambda: self.plan.hash, self.look_for_plan)

    def close(self) -> None:
        """Stop answering and release everything."""
        self.outbox.close()
        if self.news is not None:
            self.news.close()
        self.pushing.close()
        self.mailroom.close()
        end = time.monotonic() + LAST_ANSWERS
        for answered in self._goodbyes:  # who does not hear ours goes on asking for as long as it has patience
            answered.wait(max(0.0, end - time.monotonic()))
        if self._listening is not None:
            self._listening.stop(grace=1.0).wait()
        self._close_ways()
        self.audit.close()
        self.store.close()

    def federation_hash(self, round_: int) -> bytes:
        """The hash of the plan that holds in a round of messages."""
        return bytes.fromhex(self.plan.hash_at(min(max(round_ - 1, 0), self.plan.rounds - 1)))

    def where(self, round_: int, phase: int) -> Where:
        return Where(self.federation_hash(round_), round_, phase)

    def last_round(self, name: str) -> int:
        """The last round of messages in which a member takes part."""
        if name == SERVER:
            return self.plan.rounds
        after = [e.start for e in self.plan.epochs if name not in e.names and e.start > self._first(name)]
        return min(after, default=self.plan.rounds)

    def closing_after(self, name: str) -> bool:
        """Whether a member gives its parameters once more after its last round; it says goodbye after that."""
        return bool(self.plan.closing) and self.last_round(name) == self.plan.rounds

    def own_end(self) -> int:
        """The last round of messages that this process answers for."""
        return self.last_round(self.name)

    def _first(self, name: str) -> int:
        return self.plan.starts.get(name, self.plan.rounds)

    def peer(self, name: str, k: int) -> Peer:
        """A member at the address it has in round k."""
        address = self.plan.server_address
        if name != SERVER:
            address = self.plan.epoch_at(k).member(name).at
        return self.mailroom.peer(name, address)

    @abstractmethod
    def why_not(self, name: str, round_: int, phase: int) -> str | None:
        """Why a member may not pull our message; None when it may."""

    @property
    @abstractmethod
    def reached(self) -> int:
        """The round under way, as far as this process knows."""

    def adopt(self, plan: Federation) -> None:
        """Take a newer plan that differs in later rounds only."""
        # The kit too: where certificates are of another authority, the plan says whom those of new members name.
        self.plan = self.kit.federation = plan

    def look_for_plan(self) -> None:
        """Read the kit's plan again when it has changed: a change of the roster may have been planned.

        And its certificate, which may have been renewed.
        """
        self.kit.look_for_certificate()
        revoked = self.kit.revoked
        if revoked is not self._revoked:
            new, self._revoked = revoked - self._revoked, revoked
            self.audit.add("revoked", serials=[f"{serial:x}" for serial in sorted(new)])
        try:
            stamp = keyfiles.stamp(self._plan_path)
        except OSError:
            return
        if stamp == self._plan_stamp or time.monotonic() < self._plan_after:
            return
        with self._plan_lock:
            if stamp == self._plan_stamp:
                return
            self._plan_stamp = stamp
            try:
                new = self.kit.newer_plan()
            except InputError as error:
                log.warning("the new plan is ignored: %s", error)
                return
            except OSError as error:  # the disk is full, say, and the plan's version could not be kept
                log.warning("the new plan cannot be taken yet: %s", error)
                self._plan_stamp, self._plan_after = None, time.monotonic() + LATER
                return
            if new.hash == self.plan.hash:
                return
            under_way = min(self.reached, self.plan.rounds - 1)
            if new.rounds != self.plan.rounds or new.hash_at(under_way) != self.plan.hash_at(under_way):
                log.warning("the new plan is ignored: it changes rounds that are over or under way")
                return
            try:
                self.adopt(new)
                log.info("took the new plan %s", new.hash[:12])
                self.audit.add("plan", plan=new.hash, version=self.kit.version)
            except InputError as error:
                log.warning("the new plan is ignored: %s", error)

    def _pull(self, name: str, request: Request, context: grpc.ServicerContext) -> Iterator[Any]:
        self.look_for_plan()
        # The last round in which both of us take part; asking for the next one means goodbye.
        end = min(self.last_round(name), self.own_end())
        self.refuse_gone(name, context)
        objection = self._objection(name, request, end)
        if objection is not None:
            self.door.refuse(context, name, objection)
        if request.round > end and request.phase != CLOSING:
            self.let_answer(context)
            self.farewell(name, request.round)
        else:
            yield from self._answer(name, request, context)

    def let_answer(self, context: grpc.ServicerContext) -> None:
        """We do not end before this goodbye is answered."""
        answered = threading.Event()
        if context.add_callback(answered.set):
            self._goodbyes.append(answered)

    def refuse_gone(self, name: str, context: grpc.ServicerContext) -> None:
        """Refuse a member that was removed while it was gone."""
        if name in {change.name for change in self.plan.urgent if change.action == "remove"}:
            self.door.refuse(context, name, GONE_WITHOUT, grpc.StatusCode.FAILED_PRECONDITION)

    def _take(self, name: str, request: Request, context: grpc.ServicerContext) -> Chunk:
        """The same for who expects a small message: the end of the call travels with it, not after it."""
        return next(iter(self._pull(name, request, context)), Chunk())

    def _objection(self, name: str, request: Request, end: int) -> str | None:
        if name != SERVER and name not in self.plan.names:
            return "it is not in the roster"
        if request.federation != self.federation_hash(min(request.round, end)):
            return f"it asks for round {request.round} of another federation, or of another plan of this one"
        if request.round > end and request.phase != CLOSING:
            return None if request.round <= end + 2 else "there is no such round"
        return self.why_not(name, request.round, request.phase)

    def _answer(self, name: str, request: Request, context: grpc.ServicerContext) -> Iterator[Any]:
        self.asked(name, request.round, request.phase)
        # Without this a request whose caller died would keep its place until the poll ends.
        context.add_callback(self.outbox.wake)
        try:
            found = self.outbox.take(
                name, request.round, request.phase, seconds=transport.POLL, alive=context.is_active
            )
        except Stale:
            self.door.refuse(
                context,
                name,
                f"it asks for round {request.round}, which it had already left behind; a member that lost its "
                "state cannot start over, bring back its folder",
                grpc.StatusCode.FAILED_PRECONDITION,
            )
        except Forbidden:
            self.door.refuse(context, name, f"the message of round {request.round} is not for it")
        if found is not None:
            update = found.updates.get(request.base)
            where = self.where(request.round, request.phase)
            known = request.expected == found.layout.mark
            left = len(update.data if update else found.data)
            for chunk in encode(where, self.name, found.layout, update or found.data, known=known):
                self.bytes_sent += min(left, CHUNK)
                left -= CHUNK
                yield chunk

    def asked(self, name: str, round_: int, phase: int) -> None:  # noqa: B027 (agents need not act)
        """Somebody asks for a message: the server begins to average."""

    def arrived(self, name: str, where: Where) -> None:  # noqa: B027 (agents need not act)
        """Somebody pushed a message to us: the server begins to average."""

    def farewell(self, name: str, round_: int) -> None:
        """A member has finished and needs nothing more."""
        self.outbox.passed(name, round_)

    def leaves(self, name: str, where: Where) -> str | None:
        """A member says over a line that it has finished: why that cannot be, and None where it is noted."""
        self.look_for_plan()
        end = min(self.last_round(name), self.own_end())
        if where.round <= end:
            return f"it says goodbye in round {where.round}, before its last"
        objection = self._objection(name, Request(**where._asdict()), end)
        if objection is None:
            self.farewell(name, where.round)
        return objection

    def offer(
        self,
        round_: int,
        phase: int,
        layout: MessageLayout,
        data: Data,
        readers: list[str],
        updates: Mapping[bytes, Update] | None = None,
        pushed: Iterable[str] = (),
    ) -> None:
        self.outbox.publish(round_, phase, layout, data, readers, updates, pushed=pushed)
