"""An agent's talk with the server about rolls, in a thread of its own: it says how far it is, hears who is called."""

from __future__ import annotations

import logging
import threading
import time
from typing import TYPE_CHECKING, Any

from pisco.federation.kits import Refused
from pisco.federation.rolls import BadRoll, Chain, OtherPlan, Roll, check_signature, plan_mark
from pisco.federation.roster import SERVER
from pisco.federation.runtime import transport
from pisco.federation.runtime.lines import printable
from pisco.federation.runtime.peers import FIRST_WORD, Dropped, Stopped, Waited, stop_if_refused
from pisco.federation.runtime.rolled import note_roll
from pisco.federation.runtime.transport import grpc
from pisco.federation.runtime.wire_pb2 import Ready, Rolls

if TYPE_CHECKING:
    from pisco.federation.runtime.rolled_agent import RolledAgent

log = logging.getLogger("pisco.federation")

QUIET = 0.5
"""Seconds into an attempt after which we begin to listen whether it is called off; most are done before."""
ANSWER = 5.0
"""Seconds that an answer may take longer than the server lets it wait."""


def poll_seconds(deadline: float) -> float:
    """How long the server lets a question wait: it must hear from everybody several times in a deadline."""
    return min(transport.POLL, deadline / 4)


class Attendance:
    """What this agent knows of the rolls, and what it says of itself."""

    def __init__(self, agent: RolledAgent, chain: Chain, done: int):
        self.agent, self.chain = agent, chain
        self.done, self.seconds, self.ready, self.leaving = done, 0.0, False, False
        self.left = threading.Event()
        self.counted: bool | None = None  # whether the attempt that is done counts, once it is known
        self._failure: Stopped | None = None
        self._met = False
        self._heard = time.monotonic()
        self._changed = threading.Condition()
        self._call: Any = None
        self._thread = threading.Thread(target=self._loop, daemon=True, name="attendance")
        self._thread.start()

    # For the agent's rounds

    def look(self) -> tuple[int, Roll, bool | None]:
        """How many rolls are known, the newest, and whether the attempt that is done counts."""
        with self._changed:
            self._check()
            return self.chain.count, self.chain.head, self.counted

    def wait(self, known: int) -> None:
        """Wait until more rolls than these are known."""
        with self._changed:
            while self.chain.count <= known:
                self._check()
                self._changed.wait(1.0)
            self._check()

    def wait_for_server(self) -> None:
        """Wait for the first answer."""
        with self._changed:
            while not self._met:
                self._check()
                self._changed.wait(1.0)

    def report_ready(self) -> None:
        """We can take part from now on."""
        with self._changed:
            self.ready = True
            self._changed.notify_all()

    def newest(self, place: int) -> bool:
        """Whether the roll at this place of the log is the newest one."""
        self._check()
        return self.chain.count == place + 1

    def finish(self, place: int, seconds: float, keep: Any) -> None:
        """Our part of an attempt is done: keep it on disk, and say so. Called off meanwhile: `Dropped`."""
        with self._changed:
            if not self.newest(place):
                raise Dropped
            facts = self.chain.facts()
        keep(facts)
        with self._changed:
            # Called off while we wrote: it cannot count, since we had not said that we are done.
            self.done, self.seconds, self.counted = place + 1, seconds, None if self.newest(place) else False
            self._interrupt()

    def hash_at(self, place: int, seconds: float) -> bytes | None:
        """The hash of the rolls until a place; waits until it is known, and is empty once it is long past."""
        end = time.monotonic() + seconds
        with self._changed:
            while self.chain.count <= place:
                left = end - time.monotonic()
                if left <= 0 or self.agent.mailroom.stopping.is_set():
                    return None
                self._changed.wait(left)
            return self.chain.hashes.get(place, b"")

    def leave(self) -> None:
        """Say goodbye; the server may be gone."""
        with self._changed:
            self.leaving = True
            self._interrupt()
        self.left.wait(self.agent.plan.patience if self._failure is None else 0.0)

    def _check(self) -> None:
        if self.agent.mailroom.stopping.is_set():
            raise Stopped("asked to stop")
        if self._failure is not None:
            raise self._failure

    def _interrupt(self) -> None:
        if self._call is not None:
            self._call.cancel()
        self._changed.notify_all()

    # The thread

    def _loop(self) -> None:
        stopping, pause = self.agent.mailroom.stopping, 0.05
        while not stopping.is_set() and not self.left.is_set() and self._failure is None:
            with self._changed:
                known = self.chain.count
                quiet = min(QUIET, (self.agent.plan.deadline or QUIET) / 8)
                if not self.ready and self._met:
                    self._changed.wait_for(lambda: self.ready or self.leaving, quiet)
                elif self.done < known and self.agent.index in self.chain.head.present and self._met:
                    self._changed.wait_for(lambda known=known: self.done >= known or self.leaving, quiet)
                request = self._word()
            try:
                heard = self._ask(request)
                pause = 0.05
                if heard is not None:
                    self._take(heard, request)
            except (BadRoll, Stopped) as trouble:
                if isinstance(trouble, OtherPlan):
                    self._say(str(trouble), time.monotonic())
                    self.agent.look_for_plan()
                    stopping.wait(0.5)
                    continue
                made = trouble if isinstance(trouble, Stopped) else Stopped(f"the server's roll is refused: {trouble}")
                with self._changed:
                    self._failure = made
                    self._changed.notify_all()
                self.agent.mailroom.interrupt()
            except (grpc.RpcError, OSError, Refused, ValueError) as error:
                self._unheard(error)
                stopping.wait(pause)
                pause = min(1.0, 2 * pause)

    def _word(self) -> Ready:
        agent, chain = self.agent, self.chain
        return Ready(
            known=chain.count,
            past=chain.hash,
            done=self.done,
            ready=self.ready,
            plan=plan_mark(agent.plan, chain.head.round + 1),
            seconds=self.seconds,
            waits_for=agent.mailroom.asking,
            leaving=self.leaving,
        )

    def _ask(self, request: Ready) -> Rolls | None:
        agent = self.agent
        wait = poll_seconds(agent.plan.deadline or transport.POLL) + ANSWER
        call = agent.peer(SERVER, 0).roll(request, wait)
        with self._changed:
            self._call = call
            if (self.done, self.leaving) != (request.done, request.leaving):
                call.cancel()
        try:
            return call.result()
        except grpc.FutureCancelledError:
            return None
        except grpc.RpcError as error:
            if error.code() is grpc.StatusCode.CANCELLED:  # type: ignore[attr-defined]
                return None
            stop_if_refused(error)
            raise
        finally:
            self._call = None

    def _take(self, heard: Rolls, request: Ready) -> None:
        """Check what came and add it; a forged or impossible roll ends the run."""
        agent = self.agent
        rolls = [
            Roll(each.round, each.attempt, each.plan, tuple(each.present), tuple(each.expelled)) for each in heard.rolls
        ]
        digest = self.chain.hash
        for roll in rolls:
            digest = roll.hash(digest)
        if rolls:
            self._check_signature(digest, heard.signature)
        with self._changed:
            self._heard, self._met = time.monotonic(), True
            if request.leaving:
                self.left.set()
            try:
                for roll in rolls:
                    self._add(roll)
            finally:
                if rolls:  # before anybody can ask by the new roll: what is asked for now has been called off
                    agent.mailroom.interrupt()
                self._changed.notify_all()

    def _check_signature(self, digest: bytes, signature: bytes) -> None:
        peer = self.agent.peer(SERVER, 0)
        try:
            check_signature(peer.presented, digest, signature)
        except BadRoll:
            peer.forget()  # its certificate may have been renewed
            peer.check()
            check_signature(peer.presented, digest, signature)

    def _add(self, roll: Roll) -> None:
        before, place = self.chain.head, self.chain.count - 1
        counts = self.chain.add(roll, self.agent.plan)
        note_roll(self.agent.audit, self.chain, before)
        if self.agent.index in set(roll.expelled) - set(before.expelled):
            log.warning(
                "we are left off from round %d on: others named our vectors as too far off; no further round has our "
                "part, so ask the coordinator, and look at the data and the program here",
                roll.round,
            )
        if place + 1 == self.done:
            self.counted = counts
        elif counts and self.agent.index in before.present and self.done <= place:
            raise BadRoll(f"it says that round {before.round} counts, but we have not said that we are done")

    def _unheard(self, error: Any) -> None:
        """Nobody else can close a roll: without the server everybody waits, as with presence = "all"."""
        peer, waited = self.agent.peer(SERVER, 0), time.monotonic() - self._heard
        peer.forget()
        plan = self.agent.plan
        reason = str(error) if isinstance(error, Refused) else f"no answer from {plan.server_address}"
        if isinstance(error, grpc.RpcError) and error.code() is grpc.StatusCode.PERMISSION_DENIED:  # type: ignore[attr-defined]
            reason = f"it refuses us: {printable(error.details() or '')}"  # type: ignore[attr-defined]
        if waited > plan.patience:
            with self._changed:
                self._failure = Waited(
                    f"waited {plan.patience:g} s for the server to call the roll: {reason}; "
                    "the state is kept, type the command again once it is back"
                )
                self._changed.notify_all()
            self.agent.mailroom.interrupt()
        elif waited > FIRST_WORD:
            self._say(f"waiting for the server to call the roll: {reason}", self._heard)

    _said = 0.0

    def _say(self, line: str, since: float) -> None:
        now = time.monotonic()
        if now - self._said > max(FIRST_WORD, now - since):
            self._said = now
            log.info("%s", line)
