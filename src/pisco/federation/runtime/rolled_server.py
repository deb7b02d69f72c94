"""The server where members may be absent: it calls the roll, keeps every decision, signs it and hands it out."""

from __future__ import annotations

import contextlib
import logging
import math
import time
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np

from pisco.errors import InputError
from pisco.federation.kits import Kit
from pisco.federation.plan import Federation
from pisco.federation.rolls import FILE, Roll, RollFile, counted, sign
from pisco.federation.roster import SERVER, Epoch
from pisco.federation.runtime import transport
from pisco.federation.runtime.attendance import poll_seconds
from pisco.federation.runtime.codec import Where
from pisco.federation.runtime.member import BOUNDARY, CLOSING, GONE
from pisco.federation.runtime.peers import Dropped, Peer, Received, Waited
from pisco.federation.runtime.roll_call import RollCall, Word
from pisco.federation.runtime.rolled import answer_rolled, note_roll, rolled_boundary, rolled_where
from pisco.federation.runtime.routes import ServerHop
from pisco.federation.runtime.server import Server
from pisco.federation.runtime.transport import grpc
from pisco.federation.runtime.wire_pb2 import Ready, Request, RollCalled, Rolls

log = logging.getLogger("pisco.federation")

AT_ONCE = 1000
"""Rolls in one answer: far below the largest that is accepted."""

SELDOM = 10.0
"""Seconds between two lines that say why no roll is called."""


class RolledServer(Server):
    """The coordinator's process of a federation with `presence = "deadline"`."""

    def __init__(self, kit: Kit, folder: Path, **options: Any):
        super().__init__(kit, folder, **options)
        if self.found is not None and not (folder / FILE).exists():
            # With an empty log it would refuse everybody who knows a roll, and they would stop for good.
            self.store.close()
            raise InputError(f"{folder} has averages and no {FILE}, the log of all rolls; bring it back from a copy")
        self.file = RollFile(folder, kit, durable=self.store.durable)
        self.call = RollCall(self.plan, self.file.rolls, time.monotonic())
        self.signature = b""
        self._calls: dict[int, object] = {}  # the newest question of every member
        self._said, self._began = -SELDOM, time.monotonic()
        self.ledger.attend(
            self.attended,
            lambda: self.chain.head.present if self.chain.count else None,
            lambda: self.chain.head.expelled,
        )

    @property
    def chain(self) -> Any:
        return self.call.chain

    @property
    def reached(self) -> int:
        return max(self.chain.head.round, 0)

    def adopt(self, plan: Federation) -> None:
        with self._work:
            super().adopt(plan)
            self.call.plan = plan

    def attended(self) -> list[Roll]:
        """The rolls that count, one for every round that is over."""
        with self._work:
            rolls = self.file.rolls
            return counted(rolls)

    def called(self, count: int) -> list[Roll]:
        with self._work:
            return self.file.rolls[-count:]

    # The roll

    def _roll(self, name: str, request: Ready, context: grpc.ServicerContext) -> Rolls:
        self.look_for_plan()
        self.refuse_gone(name, context)
        if name not in self.plan.names:
            self.door.refuse(context, name, "it is not in the roster")
        if request.leaving:
            self.let_answer(context)
            self.farewell(name, self.farewell_round(name))
            return Rolls()
        index = self.plan.indices[name]
        with self._work:
            objection = self._why_not_heard(index, request)
            if objection is None:
                mine = self._calls[index] = object()
                self.call.hear(index, self._word(request), time.monotonic())
                self._decide()
        if objection is not None:
            self.door.refuse(context, name, objection, grpc.StatusCode.FAILED_PRECONDITION)
        if not context.add_callback(lambda: self._broken(index, mine)):
            self._broken(index, mine)
        end = time.monotonic() + poll_seconds(self.plan.deadline or transport.POLL)
        with self._work:
            while self.chain.count <= request.known and context.is_active():
                left = end - time.monotonic()
                if left <= 0 or self.mailroom.stopping.is_set() or not request.ready:
                    break  # who is not ready asks again when it is
                self._work.wait(left)
            if context.is_active() and self._calls.get(index) is mine:
                del self._calls[index]  # it ends with our answer
            return self._answer_with(request.known)

    def _why_not_heard(self, index: int, request: Ready) -> str | None:
        known = self.call.hashes
        if request.known >= len(known) or request.past != known[request.known]:
            return "its rolls differ from those in the server's log; one of the two has lost its state"
        if request.done > request.known:
            return "it says that it has done a round to which nobody was called"
        if request.done < self.call.counted.get(index, 0):
            return (
                "it has left these rounds behind; a member that lost its state cannot start over, bring back its folder"
            )
        return None

    def _word(self, request: Ready) -> Word:
        places = self.plan.indices | {SERVER: -1}
        seconds = request.seconds if math.isfinite(request.seconds) else 0.0
        waits_for = places.get(request.waits_for)
        return Word(request.known, request.done, request.ready, request.plan, max(0.0, seconds), waits_for)

    def _broken(self, index: int, call: object) -> None:
        """A question ended without our answer: the member gave it up, and asks again at once, or it is gone."""
        with self._work:
            if self._calls.get(index) is call:
                del self._calls[index]
                self.call.lose(index, time.monotonic())
                self._work.notify_all()

    def _answer_with(self, known: int) -> Rolls:
        rolls = self.file.rolls[known : known + AT_ONCE]
        if not rolls:
            return Rolls()
        end = known + len(rolls)
        if end < self.chain.count or not self.signature:
            signature = sign(self.kit, self.call.hashes[end])
        else:
            signature = self.signature
        return Rolls(rolls=[RollCalled(**roll._asdict()) for roll in rolls], signature=signature)

    def _decide(self) -> None:
        """Call the next roll if it is time: on disk first, then in memory, then to everybody."""
        now = time.monotonic()
        self._expel()
        waits_for = self.mailroom.asking
        members = {member.name: member.index for member in self.plan.epoch_at(self.reached).members}
        roll = self.call.decide(now, members.get(waits_for))
        if roll is None:
            self._explain(now)
            return
        signature = sign(self.kit, roll.hash(self.chain.hash))
        try:
            self.file.add(roll, signature)
        except OSError as error:  # a full disk: nobody has heard of it, and it is decided again in a moment
            self._say(now, f"cannot keep the roll of round {roll.round}: {error}; it is tried again")
            return
        self.signature = signature
        before = self.chain.head
        self.call.add(roll, now)
        self.outbox.forget(self.chain.count)
        note_roll(self.audit, self.chain, before)
        if roll.round == before.round:
            names = {member.index: member.name for member in self.plan.epoch_at(roll.round).members}
            gone = ", ".join(names[index] for index in set(before.present) - set(roll.present))
            log.info("round %d is attempted again%s", roll.round, f", without {gone}" if gone else "")
        self.mailroom.interrupt()
        self._work.notify_all()

    def _expel(self) -> None:
        """Leave off whom enough members have named, or the server itself."""
        guard = self.plan.guard
        if guard is None or not guard.reports:
            return
        epoch, gone = self.plan.epoch_at(self.reached), self.chain.head.expelled
        there = [member for member in epoch.members if member.index not in gone]  # the expelled have no say
        for member in there:
            by = self.ledger.namers(member.name) & {other.name for other in there}
            if by and self.routes(epoch).network.varying is None:
                by &= {*epoch.neighbours(member.name)}  # nobody else hears its vectors
            by |= {SERVER} if member.name in self.watcher.named else set()
            if (len(by) >= guard.reports or SERVER in by) and self.call.expel(member.index):
                self.watcher.forget()
                log.warning("%s is left off from the next roll on: named by %s", member.name, ", ".join(sorted(by)))

    def _explain(self, now: float) -> None:
        """Say now and then why nothing happens."""
        opened, deadline = self.call.opened, self.plan.deadline or 0.0
        if self.chain.head.round >= self.plan.rounds or opened is None:
            return
        if now - opened - deadline > SELDOM:
            self._say(now, self.call.lacks)

    def _say(self, now: float, line: str) -> None:
        if now - self._said > SELDOM:
            self._said = now
            log.warning("%s", line)

    # Averages

    def where(self, round_: int, phase: int) -> Where:
        return rolled_where(self, self.chain, round_, phase)

    def roll_hash(self, place: int) -> bytes | None:
        with self._work:
            return None if self.chain.count <= place else self.chain.hashes.get(place, b"")

    def round_of(self, round_: int) -> int:
        return self.file.rolls[round_ - 1].round if round_ else -1

    def hop(self, round_: int, phase: int) -> tuple[Epoch, ServerHop] | None:
        if round_ == 0:
            return super().hop(round_, phase)
        with self._work:
            if round_ != self.chain.count:
                return None
            roll, joined = self.chain.head, self.chain.joined
        epoch = self.plan.epoch_at(roll.round)
        if roll.round >= self.plan.rounds:
            return self._closing(epoch) if phase == CLOSING and self.plan.closing else None
        if phase == BOUNDARY:
            hop = rolled_boundary(epoch, roll, joined)
            return (epoch, hop) if hop else None
        if not self.plan.tries_server(roll.attempt):
            return None
        return self.hop_of(epoch, roll.round, phase, epoch.places(roll.present))

    def _closing(self, epoch: Epoch) -> tuple[Epoch, ServerHop]:
        """Those who took part in the last round give their parameters."""
        there = tuple(np.flatnonzero(epoch.places(self.file.rolls[-2].present)).tolist())
        return epoch, ServerHop(None, there, there)

    def taking_part(self, epoch: Epoch) -> int:
        return len(self.chain.head.present)

    def last_round_sent(self) -> int:
        return len(self.file.rolls) - 1  # the last one says that all rounds are over

    def gather(self, peers: Mapping[int, Peer], where: Where, **how: Any) -> dict[int, Received]:
        """Of the closing average's reporters, those who answer in time; at least a quorum of them."""
        if where.phase != CLOSING:
            return super().gather(peers, where, **how)
        found: dict[int, Received] = {}
        with ThreadPoolExecutor(len(peers)) as pool:
            each: dict[str, Any] = how | {"patience": self.plan.deadline}
            asked = {p: pool.submit(self.mailroom.pull, {p: peer}, where, **each) for p, peer in peers.items()}
            for place, answer in asked.items():
                with contextlib.suppress(Waited):
                    found |= answer.result()
                if place not in found:
                    log.warning("%s did not give its parameters in time", peers[place].name)
        if len(found) < min(self.plan.quorum_at(self.plan.rounds - 1, self.chain.head.expelled), len(peers)):
            raise Dropped  # the next question tries again
        return found

    def why_not(self, name: str, round_: int, phase: int) -> str | None:
        if not self.wanted(round_):
            raise Dropped
        return super().why_not(name, round_, phase)

    def asked(self, name: str, round_: int, phase: int) -> None:
        if phase == CLOSING:  # of who was done before it was planned
            self.outbox.reopen(name, round_)
        super().asked(name, round_, phase)

    def patience(self, round_: int, phase: int) -> float | None:
        return math.inf if round_ else None

    def known(self, round_: int) -> bool:
        return round_ <= self.chain.count

    def wanted(self, round_: int) -> bool:
        return round_ == 0 or self.chain.count == round_

    def leaves(self, name: str, where: Where) -> str | None:
        return "a member that leaves must tell the server, when it asks for the next roll"

    def _pull(self, name: str, request: Request, context: grpc.ServicerContext) -> Iterator[Any]:
        yield from answer_rolled(self, super()._pull, name, request, context)

    # The run

    def methods(self) -> dict[str, Any]:
        return super().methods() | {transport.ROLL: (self._roll, Ready)}

    def pause(self) -> None:
        with self._work:
            self._work.wait(min(0.1, (self.plan.deadline or 1.0) / 8))
            self._decide()

    def farewell_round(self, name: str) -> int:
        return GONE + bool(self.plan.closing)

    def over(self, missing: list[str]) -> bool:
        """All rounds are done, and who has not said goodbye has been silent for too long; a quorum must be there."""
        began = time.monotonic() - self._began > self.plan.patience  # by then everybody has said a word
        silent = self.ledger.silent(missing, unknown=began)
        if self.chain.head.round >= self.plan.rounds:
            return len(silent) == len(missing)
        off = self.chain.head.expelled
        members = {each.name for each in self.plan.epoch_at(self.reached).members if each.index not in off}
        if len(members - set(silent)) < self.plan.quorum_at(self.reached, off):
            raise Waited(
                f"heard nothing from {', '.join(silent)} for {self.plan.patience:g} s, and the others are fewer than "
                "the quorum; the state is kept, type the command again once they are back"
            )
        return False

    def close(self) -> None:
        super().close()
        self.file.close()


SERVERS = {"all": Server, "deadline": RolledServer}
"""The server of a plan, by its `presence`."""
