"""The server: it averages in the rounds that the coin chooses, and records what agents report."""

from __future__ import annotations

import logging
import math
import threading
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import jax
import numpy as np

from pisco.costs import message_sizes
from pisco.errors import InputError
from pisco.federation.kits import Kit
from pisco.federation.plan import Federation
from pisco.federation.rolls import Roll
from pisco.federation.roster import SERVER, Epoch
from pisco.federation.runtime import membership
from pisco.federation.runtime.codec import MessageLayout, Where
from pisco.federation.runtime.desk import Desk
from pisco.federation.runtime.ending import EndModel
from pisco.federation.runtime.guarding import Watcher
from pisco.federation.runtime.ledger import Ledger
from pisco.federation.runtime.member import BOUNDARY, CANCELLED, CLOSING, LIMIT, MemberProcess
from pisco.federation.runtime.peers import Dropped, Peer, Received, Stopped, Waited
from pisco.federation.runtime.routes import Routes, ServerHop, without_gone
from pisco.federation.runtime.store import kept_layout
from pisco.federation.runtime.sums import SUMS
from pisco.federation.runtime.transport import grpc
from pisco.federation.runtime.updates import Incoming
from pisco.results import Result
from pisco.seeds import seed_key, streams

log = logging.getLogger("pisco.federation")


class Server(MemberProcess):
    """The coordinator's process. It holds no data and learns what agents send it in server rounds.

    Args:
      kit: the server's kit.
      folder: where its averages and the reported measurements are kept.
      listen: the address to listen at, where it is another than the plan's.
      durable: wait for the disk after every average, to survive a loss of power.
    """

    def __init__(self, kit: Kit, folder: Path, *, listen: str | None = None, durable: bool = True):
        if kit.name != SERVER:
            raise InputError(f"{kit.folder} is the kit of {kit.name!r}; start it with `pisco agent --kit {kit.folder}`")
        membership.check(kit.federation)
        super().__init__(kit, folder, listen=listen, durable=durable)
        self._check_past()
        self.keys = streams(seed_key(self.plan.seed))
        # Whatever the model, the method makes so many exchanges: for others nobody is asked, and nothing is held.
        self._sizes = message_sizes(self.plan.build_algorithm(), jax.ShapeDtypeStruct((1, 1 << 20), "float32"), 1)
        self.incoming = Incoming(self._sizes.codecs)
        self.sums = SUMS[self.plan.server_sum].server(self)
        self.saved = self.found.round if self.found else 0
        self.ledger, self.model = Ledger(self.plan, folder), EndModel(folder)
        self.watcher = Watcher(self.plan.guard, self.found.job.get("struck") if self.found else None)
        self.failure: Exception | None = None
        self._work = threading.Condition(threading.RLock())
        self._parted: set[tuple[str, int]] = set()
        self.desk = Desk(self)
        self._averaging: dict[tuple[int, int], str] = {}
        kept = self.found.job.get("layouts", []) if self.found else []
        self._layouts = {(bool(start), phase): kept_layout(text) for start, phase, text in kept}
        self._routes: dict[str, Routes] = {}
        for epoch in self.plan.epochs:
            # Asked from many threads: the coin's program is made here, once.
            self.routes(epoch).links(epoch.start, epoch.start + 1)

    def routes(self, epoch: Epoch) -> Routes:
        key = self.plan.hash_at(epoch.start)
        if key not in self._routes:
            self._routes[key] = Routes(self.plan.network_of(epoch), self.keys)
        return self._routes[key]

    def hop(self, round_: int, phase: int) -> tuple[Epoch, ServerHop] | None:
        """The server's part in an exchange; None when that exchange does not reach it."""
        epoch, gone = self.plan.epoch_at(round_ - 1), self.plan.gone_at(round_ - 1)
        there = np.array([name not in gone for name in epoch.names]) if gone else None
        if phase == BOUNDARY:
            joining = membership.boundary(self.plan, round_ - 1)
            return None if joining is None else (epoch, joining)
        if phase == CLOSING:
            everybody = tuple(range(len(epoch.members)))
            due = self.plan.closing and round_ == self.plan.rounds + 1
            return (epoch, ServerHop(None, everybody, everybody)) if due else None
        if round_ == 0:
            reaches = [kind == "server" for kind in self._sizes.start_kinds]
            start = without_gone(self.routes(epoch).server_hop(None), there)
            return (epoch, start) if phase in np.flatnonzero(reaches) else None
        return self.hop_of(epoch, round_ - 1, phase, there)

    def hop_of(self, epoch: Epoch, k: int, phase: int, present: Any = None) -> tuple[Epoch, ServerHop] | None:
        """The same for an exchange of round k."""
        routes = self.routes(epoch)
        with self._work:
            hops = routes.hops(k, None, present)
        length = self._hops_each(epoch)
        if not hops or phase % length != length - 1 or phase >= length * len(self._sizes.whole):
            return None
        (hop,) = hops
        assert isinstance(hop, ServerHop)
        return epoch, hop

    def _hops_each(self, epoch: Epoch) -> int:
        """How many hops one exchange of a server round has."""
        network = self.routes(epoch).network
        return 1 + (network.gossip_steps if network.gossip_before_server else 0)

    def _hands_out_model(self, epoch: Epoch, round_: int, phase: int, hop: ServerHop) -> bool:
        """Whether everybody gets this average in the last round."""
        last = phase < BOUNDARY and round_ > 0 and self.round_of(round_) == self.plan.rounds - 1
        return last and len(hop.receivers) == self.taking_part(epoch)

    def taking_part(self, epoch: Epoch) -> int:
        """How many take part in the last round."""
        return len(set(epoch.names) - self.plan.gone_at(self.plan.rounds - 1))

    def last_round_sent(self) -> int:
        """The number of the last round in messages, once all are over."""
        return self.plan.rounds

    def round_of(self, round_: int) -> int:
        """Round k of the plan, from the number that it has in messages."""
        return round_ - 1

    def why_not(self, name: str, round_: int, phase: int) -> str | None:
        k = self.round_of(round_)
        epoch = self.plan.epoch_at(k)
        if name not in epoch.names:
            return f"it is not in the roster in round {k}"
        found = self.hop(round_, phase)
        if found is None or epoch.names.index(name) not in found[1].receivers:
            return f"this exchange of round {k} does not reach the server"
        return None

    @property
    def reached(self) -> int:
        return self.ledger.front()

    def coins(self, first: int, end: int) -> list[bool]:
        """Which rounds from `first` to before `end` reach the server; all in the epoch of the first."""
        with self._work:
            links = self.routes(self.plan.epoch_at(first)).links(first, end)
        return [bool(reaches) for reaches in links.server]

    def called(self, count: int) -> list[Roll]:
        """The last rolls, where one is called in every round: the newest is under way."""
        return []

    def adopt(self, plan: Federation) -> None:
        with self._work:
            self.ledger.adopt(plan)
            super().adopt(plan)
        self.mailroom.interrupt()  # whoever is waited for may be gone

    # Averages

    def patience(self, round_: int, phase: int) -> float | None:
        """How long to wait for reporters, where it is not the plan's patience."""
        return math.inf if phase == BOUNDARY else None  # who joins may ask long before the others get there

    def wanted(self, round_: int) -> bool:
        """Whether anybody needs an average any more."""
        return True

    def asked(self, name: str, round_: int, phase: int) -> None:
        with self._work:
            known = (round_, phase) in self._averaging or (round_, phase) in self.outbox.kept()
            past = round_ < self.outbox.floors().get(name, 0)  # others would refuse us what is over
            # Two for each: one who asks for rounds far ahead takes its own places, not those of others.
            if known or past or list(self._averaging.values()).count(name) >= 2:
                return
            self._averaging[round_, phase] = name
        threading.Thread(target=self._average, args=(round_, phase), daemon=True, name="average").start()

    def refuse_gone(self, name: str, context: grpc.ServicerContext) -> None:
        super().refuse_gone(name, context)
        if self.ledger.cancelled(name):
            self.door.refuse(context, name, CANCELLED, grpc.StatusCode.FAILED_PRECONDITION)

    def arrived(self, name: str, where: Where) -> None:
        round_, phase = where.round, where.phase
        try:
            fits = phase < BOUNDARY and self.known(round_) and where == self.where(round_, phase)
            if fits and self.why_not(name, round_, phase) is None:
                self.asked(name, round_, phase)
        except Dropped:
            log.debug("%s pushed a message of an attempt that is over", name)

    def known(self, round_: int) -> bool:
        """Whether there is such a round in messages."""
        return round_ <= self.plan.rounds

    def _average(self, round_: int, phase: int) -> None:
        found = self.hop(round_, phase)
        if found is None:
            with self._work:
                self._averaging.pop((round_, phase), None)
            return
        (epoch, hop), urgent = found, self.plan.urgent
        try:
            while self.plan.gone_at(self.round_of(round_)) and self.desk.lacking():
                # In rounds that all reach us, who has not the plan yet would come to the change without it.
                if self.mailroom.stopping.wait(membership.SOON):
                    raise Dropped
            peers = {place: self.peer(epoch.names[place], self.round_of(round_)) for place in hop.reporters}
            pushes = phase < BOUNDARY and not self.incoming.codecs
            both = [peers[p].name for p in peers if p in hop.receivers and pushes]
            received = self._received(peers, round_, phase, urgent, both)
            if len(received) < len(hop.reporters):
                hop = hop._replace(reporters=tuple(sorted(received)))
            layout = received[hop.reporters[0]].layout
            arrays = {place: message.arrays for place, message in received.items()}
            if self.watcher.guards_server and round_ > 0:
                told = phase not in (BOUNDARY, CLOSING)
                averaged = self.watcher.mean(round_, epoch.names, arrays, hop, told)
                layout = MessageLayout.of(averaged)
            else:
                layout, averaged = self.sums.combine(arrays, layout, hop)
            readers = [epoch.names[place] for place in hop.receivers]
            if phase == CLOSING:
                self.model.close_with(averaged)
            elif self._hands_out_model(epoch, round_, phase, hop):
                self.model.keep(round_, phase // self._hops_each(epoch), averaged)
            self._keep(round_, phase, layout, layout.join(averaged), readers, both)
        except Dropped:
            log.debug("the average of %d is not wanted any more", round_)
        except Waited as waited:
            # Who asks early makes us wait for others who are well and on their way; the next question starts again.
            if self.ledger.silent((epoch.names[place] for place in hop.reporters), unknown=True):
                self.failure = self.failure or waited
        except Exception as error:  # one that nobody expects ends the server: else all would wait for this average
            self.failure = self.failure or error
        finally:
            with self._work:
                self._averaging.pop((round_, phase), None)
                self._work.notify_all()

    def gather(self, peers: Mapping[int, Peer], where: Where, **how: Any) -> dict[int, Received]:
        """The reporters' messages."""
        return self.mailroom.pull(peers, where, **how)

    def _received(
        self, peers: Mapping[int, Peer], round_: int, phase: int, urgent: Any, pushed: Sequence[str]
    ) -> dict[int, Received]:
        """The messages of an exchange, all of one layout; once known, nobody can send anything else.

        The first time it is seen what all would send, and most of them decide before more than a chunk is held.
        """
        at, where = (round_ == 0, phase), self.where(round_, phase)
        how: dict[str, Any] = {"patience": self.patience(round_, phase)}
        how["wanted"] = lambda: (
            self.wanted(round_) and self.plan.urgent == urgent and self.where(round_, phase) == where
        )
        how["copies"] = (self.incoming, phase) if self.incoming.codecs and round_ and phase < BOUNDARY else None
        if at not in self._layouts:
            found = self.gather(peers, where, layout=None, limit=0, pushed=pushed, **how)
            self._layouts[at] = self._agreed({peers[place].name: each.layout for place, each in found.items()})
            if all(each.arrays and each.layout == self._layouts[at] for each in found.values()):
                return found
            peers, pushed = {place: peers[place] for place in found}, ()  # what a line brought is taken
        return self.gather(peers, where, layout=self._layouts[at], limit=LIMIT, pushed=pushed, **how)

    def _agreed(self, told: Mapping[str, MessageLayout]) -> MessageLayout:
        """What most would send. Who differs ends the run, or is left behind where nobody waits."""
        layout, count = Counter(told.values()).most_common(1)[0]
        for name, other in told.items():
            if other != layout:
                differs = f"sends {str(other)[:200]} and most send {str(layout)[:200]}; their models differ"
                if 2 * count <= len(told) or self.plan.presence == "all":
                    raise Stopped(f"{name} {differs}")
                self.door.complain(name, f"it {differs}")
        return layout

    def _keep(
        self, round_: int, phase: int, layout: MessageLayout, data: bytes, readers: list[str], pushed: Sequence[str]
    ) -> None:
        """On disk before anybody sees it: the messages it was made of may be gone by the next start."""
        with self._work:
            self.outbox.publish(round_, phase, layout, data, readers, hidden=True, pushed=pushed)
            try:
                self._save()
            except OSError as error:
                self.outbox.withdraw(round_, phase)
                log.warning("cannot keep the average of round %d: %s; the next question tries again", round_, error)
                return
        self.outbox.show(round_, phase)

    def _save(self) -> None:
        self.saved += 1
        reached = min(self.reached, self.plan.rounds - 1)
        notes: dict[str, Any] = {"plan": self.plan.hash_at(reached), "reached": reached}
        notes["layouts"] = [[start, phase, str(layout)] for (start, phase), layout in self._layouts.items()]
        if self.watcher:
            notes["struck"] = {str(round_): sorted(who) for round_, who in self.watcher.struck.items()}
        self.store.save(self.saved, (), outbox=self.outbox, history={}, notes=notes)

    def _check_past(self) -> None:
        """Refuse a plan that differs in rounds that are over: the result would be written again with it."""
        past = self.found.job if self.found else {}
        if "plan" in past and past["plan"] != self.plan.hash_at(past["reached"]):
            self.store.close()
            raise InputError(
                f"the state in {self.store.folder} comes from a plan that differs from the one in {self.kit.folder}; "
                "copy the coordinator's newest federation.toml there"
            )

    def farewell(self, name: str, round_: int) -> None:
        super().farewell(name, round_)
        if (name, round_) in self._parted:
            return  # it says so again: nothing new to keep
        self.ledger.save()
        with self._work:
            self._save()
            self._parted.add((name, round_))
            self._work.notify_all()

    # The run

    def run(self, progress: Callable[[Ledger], None] | None = None) -> Result:
        """Serve until every agent has said goodbye; raises `Stopped` when patience with one ends."""
        began = time.perf_counter()
        self.open(self.plan.server_address, self.methods())
        try:
            while True:
                self.pause()
                if self.failure:
                    raise self.failure
                if self.mailroom.stopping.is_set():
                    raise Stopped("asked to stop")
                self.look_for_plan()
                if progress:
                    progress(self.ledger)
                floors = self.outbox.floors()
                gone = {change.name for change in self.plan.urgent if change.action == "remove"}
                missing = [n for n in self.plan.names if floors.get(n, 0) < self.farewell_round(n) and n not in gone]
                if not missing or self.over(missing):
                    break
        finally:
            try:
                self.ledger.save()
            finally:
                self.close()  # on a full disk too: what still answers keeps the process from ending
        return self.result(time.perf_counter() - began)

    def methods(self) -> dict[str, Any]:
        """What members may ask for, apart from messages."""
        return self.desk.methods() | self.sums.methods()

    def pause(self) -> None:
        """Until somebody may be done."""
        with self._work:
            self._work.wait(0.5)

    def farewell_round(self, name: str) -> int:
        """The round that a member asks for, in messages, when it says goodbye."""
        return self.last_round(name) + 1 + self.closing_after(name)

    def over(self, missing: list[str]) -> bool:
        """Whether to end without those who have not said goodbye; raises where they have been silent for too long."""
        # Who joins later need not be there yet.
        reached = self.reached
        silent = self.ledger.silent(name for name in missing if self._first(name) <= reached)
        if silent:
            raise Waited(
                f"heard nothing from {', '.join(silent)} for {self.plan.patience:g} s; the state is kept, "
                "type the command again once they are back"
            )
        return False

    def result(self, seconds: float) -> Result:
        """The federation's history; parameters stay with the agents, except a mean that they end or close with."""
        model = self.model.load(self.last_round_sent(), self.ledger.model_part, self.ledger.leaves)
        return self.ledger.result(seconds, model)
