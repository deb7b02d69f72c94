"""An agent whose rounds go on without the absent: it attempts those that it is called to, and keeps what counts.

It holds two states: `base`, of the last attempt of its own that counts, and `trial`, of the one that it has done and of
which it does not know yet. Both are on disk before it says that it is done. The next roll tells: one of the next round
makes the trial the base, another of the same round drops it. While that roll is called, the next round is begun.
"""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Hashable, Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import jax
import numpy as np

from pisco.errors import InputError
from pisco.federation.rolls import Chain, Roll, plan_mark
from pisco.federation.roster import SERVER
from pisco.federation.runtime import parting, reports, transport, weighing
from pisco.federation.runtime.agent import Agent
from pisco.federation.runtime.attendance import Attendance
from pisco.federation.runtime.codec import MessageLayout, Where
from pisco.federation.runtime.cut import Later
from pisco.federation.runtime.member import BOUNDARY, CLOSING
from pisco.federation.runtime.peers import Dropped, Peer, Received, Stopped
from pisco.federation.runtime.programs import Mixing, sent_of
from pisco.federation.runtime.rolled import (
    answer_rolled,
    crossings,
    rolled_boundary,
    rolled_hops,
    rolled_told,
    rolled_where,
)
from pisco.federation.runtime.spending import ROLLS, START
from pisco.federation.runtime.sums import Reporting
from pisco.federation.runtime.transport import grpc
from pisco.federation.runtime.wire_pb2 import Request
from pisco.networks.rounds import Told
from pisco.results import Result

log = logging.getLogger("pisco.federation")


class Held(NamedTuple):
    """A state, the round that it comes from (−1: the start), the place of its roll in the log, and who was expelled."""

    state: Any
    round: int
    place: int
    expelled: Sequence[int] = ()


class RolledAgent(Agent):
    """One agent of a federation with `presence = "deadline"`."""

    attendance: Attendance
    base: Held | None
    trial: Held | None
    _entering: Any  # the state before the attempt under way

    def kept_rounds(self) -> int:
        return self.found.job["done"] if self.found else self._first(self.name)

    def kept_state(self) -> Any:
        self.chain, self.base, self.trial = Chain(self.plan), None, None
        shared = [leaf for leaf in jax.tree.leaves(self.programs.state_like) if leaf.shape[:1] != (1,)]
        if shared:
            raise InputError(
                f"{self.algorithm.name} keeps something that changes in every round, and absent members would miss it; "
                'use presence = "all"'
            )
        if self.found is None:
            return None
        kept = self.found.job
        self.chain = Chain(self.plan, kept["chain"])
        held = self.found.state({name: self.programs.state_like for name in ("base", "trial") if kept[name]})
        if kept["base"]:
            self.base = Held(held["base"], *kept["base"])
        if kept["trial"]:
            self.trial = Held(held["trial"], *kept["trial"])
        return None

    @property
    def reached(self) -> int:
        return self.chain.head.round

    # The rounds

    def run(self) -> Result:
        """All rounds to the end, those present and those absent."""
        began = time.perf_counter()
        if self.parted and not self.closes():
            self.state = self.base.state if self.base else None
            self.close()
            return self.result(0.0)
        done = (self.trial or self.base or Held(None, -1, -1)).place + 1
        self.attendance = Attendance(self, self.chain, done)
        reporter = None
        try:
            self.attendance.wait_for_server()
            self.address = self.address_at(max(self.done, self.chain.head.round))
            self.open(self.address, {})
            reporter = reports.Reporter(self)
            self.sums.begin()
            self.weigh()
            if self.base is None and self.trial is None and self._first(self.name) == 0:
                self._begin()
            self._prepare()
            self.attendance.report_ready()
            while True:
                self.look_for_plan()
                count, head, _ = self.attendance.look()
                self._settle()
                if head.round >= self.last_round(self.name):
                    break
                try:
                    self._turn(count, head)
                except Dropped:
                    continue
            self._end(reporter)
        finally:
            if reporter:
                reporter.stop()
            self.close()
        return self.result(time.perf_counter() - began)

    def _begin(self) -> None:
        """X⁰ and what the algorithm makes of it; exchanges before the first round need everybody."""
        self._phase, self._round_on_wire, self.k = 0, 0, 0
        self.spend(START, starts=True)
        self.state = self.programs.start(self._exchange)
        self.base = Held(self.state, -1, -1)
        self._measure()
        self._keep(self.chain.facts())

    def _prepare(self) -> None:
        """Compile what a round draws before we say that we are there: the others would wait for it."""
        mask = np.ones(self.routes.num_agents, bool)
        mask[1 - min(self.place, 1)] = len(mask) == 1  # somebody else is absent
        for k in range(max(self.done, 0), max(self.done, 0) + 2):
            self.routes.told(k, self.place, mask)
            self.routes.hops(k, self.place, mask)
        self.routes.gossip_hop(self.place, 0, present=mask)

    def _turn(self, count: int, head: Roll) -> None:
        """The next attempt: begun already while its roll is called, or the one that we are called to, or none."""
        if self.spending is not None and count <= self.spending.last:
            self.attendance.wait(count)  # it is told less than before we were started again: that noise is used
        elif self.trial is not None and self.trial.place == count - 1:
            self._attempt(self.trial, self.trial.round + 1, count)
        elif self.index in head.present:
            self._attempt(self.base, head.round, count - 1)
        else:
            self.attendance.wait(count)

    def _attempt(self, held: Held | None, k: int, place: int) -> None:
        if k >= self.last_round(self.name):
            self.attendance.wait(place)
            return
        began, self._waited, self._called = time.perf_counter(), 0.0, False
        self._phase, self._round_on_wire, self.k, self._place = 0, place + 1, k, place
        plan = self.plan
        epoch, self._begun_by = plan.epoch_at(k), plan_mark(plan, k)
        if epoch.start != self.epoch.start:
            self.enter(epoch)
        if epoch.member(self.name).at != self.address:
            at = epoch.member(self.name).at
            raise Stopped(f"{self.name} moves to {at} at round {epoch.start}; start it there with its state folder")
        self.spend(place, starts=held is None)
        self._expelled = self.attendance.look()[1].expelled
        self._entering = held.state if held is not None else self._join()
        fewer = held is not None and set(held.expelled) != set(self._expelled)
        if fewer:
            self.watcher.forget()
        if held is not None and (fewer or crossings(self.plan, held.round, k)):
            assert self.algorithm.rebase is not None  # `membership.check` has seen to it
            self._entering = self.algorithm.rebase(self._entering)
        told = self.routes.told(k, self.place, np.ones(self.routes.num_agents, bool))
        told = Told(told.participates, Later(lambda: self._told().share), Later(lambda: self._told().server))
        state = self.programs.round(self._exchange, self._entering, k, told, place)
        self._roll()  # a method without an exchange has not asked yet
        made = Held(jax.tree.map(np.asarray, state), k, place, self._expelled)
        seconds = time.perf_counter() - began - self._waited

        def keep(facts: dict[str, Any]) -> None:
            self.trial = made
            self._keep(facts)

        self.attendance.finish(place, seconds, keep)

    def _roll(self) -> None:
        """Wait for the roll of the attempt under way; `Dropped` when it does not call us to this round."""
        if self._called:
            return
        began = time.perf_counter()
        self.attendance.wait(self._place)
        self._waited += time.perf_counter() - began
        count, roll, _ = self.attendance.look()
        self._settle()
        if count != self._place + 1 or roll.round != self.k or self.index not in roll.present:
            raise Dropped
        if roll.plan != self._begun_by:
            raise Dropped  # begun by a plan from before a change: once more, with its links
        if roll.expelled != self._expelled:
            raise Dropped  # begun before somebody was expelled: once more, from a state that knows it
        if self.spending is not None:  # by other rolls than before a restart it would be another gradient
            told = self.where(self._round_on_wire, BOUNDARY).federation
            self.spending.heard(ROLLS, [np.frombuffer(told, np.uint8)])
        self._called, self._attempted = True, roll
        self.present = self.epoch.places(roll.present)
        self._hops = rolled_hops(self.plan, self.routes, roll, self.place, self.present)
        self.outbox.forget(self._round_on_wire)
        boundary = rolled_boundary(self.epoch, roll, self.chain.joined)
        if boundary is not None and self.place in boundary.reporters:
            where = self.where(self._round_on_wire, BOUNDARY)
            self.report(Reporting(where, self.k, boundary, self.epoch.names), self.before())

    def _told(self) -> Told:
        self._roll()
        return rolled_told(self.plan, self.routes, self._attempted, self.place, self.present)

    def _join(self) -> Any:
        """The state of who takes part for the first time: the mean parameters of the others on the roll."""
        self._entering = None
        self._roll()
        where = self.where(self._round_on_wire, BOUNDARY)
        received = self.pull({0: self.peer(SERVER, self.k)}, where, MessageLayout.of(self.programs.sent_like))
        if self.spending is not None:
            self.spending.heard(BOUNDARY, received[0].arrays)
        return self.programs.join(self.programs.params_of(received[0].arrays), self.k, self._place)

    def _settle(self) -> None:
        """What the newest rolls say of the attempt that is done."""
        _, head, counted = self.attendance.look()
        if self.trial is not None and counted is not None:
            if counted:
                self.base, self.state = self.trial, self.trial.state
                if (self.base.round + 1) % self.plan.eval_every == 0:
                    self.history.add(self.base.round + 1, self.measured())
            self.trial = None
        over = min(max(head.round, 0), self.last_round(self.name))
        if over > self.done:
            self.done = over
            if self.progress:
                self.progress(self.done)

    def _keep(self, chain: dict[str, Any], *, parted: bool = False) -> None:
        held = {name: each for name, each in (("base", self.base), ("trial", self.trial)) if each is not None}
        notes: dict[str, Any] = {"base": None, "trial": None} | {name: each[1:] for name, each in held.items()}
        notes |= {"parted": parted, "chain": chain, "done": self.done, "plan": self.plan.hash_at(self.done - 1)}
        notes |= {**weighing.notes(self), "closed": parted and bool(self.plan.closing)}
        states = {name: each.state for name, each in held.items()}
        rows = self.history.arrays()
        self.store.save(chain["count"], states, outbox=self.outbox, history=rows, notes=notes)

    # The exchanges

    def before(self) -> list[np.ndarray]:
        return sent_of(self._entering)

    def where(self, round_: int, phase: int) -> Where:
        return rolled_where(self, self.chain, round_, phase)

    def report(
        self, part: Reporting, arrays: Sequence[np.ndarray], updates: Any = None, pushed: Iterable[str] = ()
    ) -> None:
        """The same; but where what we hold is in a sum already, the rolls must say so, which tell who else is."""
        held = part.k if self.base is None else self.base.round
        if held < self.sums.newest < part.k and self.index not in self.chain.summed and self.wanted(part.where):
            raise Stopped(
                "the server's rolls differ from those before this agent was started again, and a second sum could "
                f"reveal its vector of round {self.sums.newest}; the agent stops here: ask the coordinator to remove it"
            )
        super().report(part, arrays, updates, pushed)

    def why_not(self, name: str, round_: int, phase: int) -> str | None:
        return None if name == SERVER or name in self.partners(self.epoch) else "it is not a neighbour"

    def roll_hash(self, place: int) -> bytes | None:
        """The hash of the rolls until a place; None: not known yet."""
        return self.attendance.hash_at(place, transport.POLL)

    def leaves(self, name: str, where: Where) -> str | None:
        return "a member that leaves must tell the server, when it asks for the next roll"

    def _pull(self, name: str, request: Request, context: grpc.ServicerContext) -> Iterator[Any]:
        yield from answer_rolled(self, super()._pull, name, request, context)

    def _exchange(self, kind: Any, call: int, leaves: Sequence[Any]) -> list[np.ndarray]:
        if isinstance(kind, Mixing):
            leaves = [np.asarray(leaf) for leaf in leaves]  # computed while the roll is called
            self._roll()
        return super()._exchange(kind, call, leaves)

    def wanted(self, where: Where) -> bool:
        return where.round == 0 or self.attendance.newest(where.round - 1)

    def pull(
        self,
        peers: Mapping[int, Peer],
        where: Where,
        layout: MessageLayout,
        copies: Hashable | None = None,
        **options: Any,
    ) -> dict[int, Received]:
        if where.round == 0 or where.phase == CLOSING:
            return super().pull(peers, where, layout, **options)
        began = time.perf_counter()
        try:
            wanted = {"patience": math.inf, "wanted": lambda: self.wanted(where)}
            return super().pull(peers, where, layout, copies, **options | wanted)
        finally:
            self._waited += time.perf_counter() - began

    # The end

    def closes(self) -> bool:
        """Those who took part in the last round give their parameters: whoever missed it may be far off."""
        return super().closes() and self.base is not None and self.base.place == self.chain.count - 2

    def closing_round(self) -> int:
        return self.chain.count

    def _end(self, reporter: reports.Reporter) -> None:
        """All rounds are over: those on the last roll have said so, and nobody needs anything from us."""
        self.pushing.parting = True
        if self.state is None and self.base is not None:
            self.state = self.base.state
        if self.done == self.plan.rounds and self.state is not None:
            self._measure()
        if self.index in self.chain.head.expelled:
            took_part = self.base.round + 1 if self.base is not None else 0
            log.warning("we were left off: our result is that of round %d, and no part of the federation's", took_part)
        reporter.finish()
        self.look_for_plan()
        if self.closes():
            parting.close_average(self)
        self._keep(self.chain.facts(), parted=True)
        self.attendance.leave()


AGENTS = {"all": Agent, "deadline": RolledAgent}
"""The agent of a plan, by its `presence`."""
