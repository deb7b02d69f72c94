"""The server's desk: it takes what members report, and tells them where everybody stands and what is new."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from pisco.federation.roster import SERVER
from pisco.federation.runtime import news, transport
from pisco.federation.runtime.holdup import Holdup
from pisco.federation.runtime.lines import printable
from pisco.federation.runtime.transport import grpc
from pisco.federation.runtime.wire_pb2 import Overview, Question, Receipt, Report

if TYPE_CHECKING:
    from pisco.federation.runtime.server import Server


class Desk:
    """What members may ask a server for, apart from messages."""

    def __init__(self, server: Server):
        self.server = server
        self._stand = news.Newsstand(server.kit)

    def methods(self) -> dict[str, Any]:
        """The questions, as `transport.serve` has them."""
        return {
            transport.REPORT: (self._report, Report),
            transport.OVERVIEW: (self._overview, Question),
            transport.NEWS: (self._news, news.Notice),
        }

    def _report(self, name: str, request: Report, context: grpc.ServicerContext) -> Receipt:
        server, ledger = self.server, self.server.ledger
        if name not in server.plan.names:
            server.door.refuse(context, name, "it is not in the roster")
        if request.federation != server.federation_hash(request.round + 1):
            server.door.refuse(context, name, "it reports for another federation")
        objection = ledger.why_not(request)
        if objection is not None:
            server.door.refuse(context, name, objection)
        if request.trouble:
            ledger.trouble(name, printable(request.trouble))
            return Receipt()
        if request.samples:
            objection = ledger.told_before(name, request.samples)
            if objection is not None:
                server.door.refuse(context, name, objection, grpc.StatusCode.FAILED_PRECONDITION)
            mean, missing = ledger.count(name, request.samples)
            return Receipt(mean_samples=mean, missing=", ".join(missing), troubles=ledger.troubles())
        rows = ledger.note(name, request)
        held = ledger.holdup() if request.waiting_for else Holdup()  # who does not wait says so to nobody
        server.look_for_plan()
        return Receipt(
            rows=rows,
            troubles=ledger.troubles(),
            held_by=held.name,
            held_why=held.why,
            lacks=ledger.lacks(name),
            news=self._stand.new_for(name, server.plan.hash),
        )

    def _overview(self, name: str, request: Question, context: grpc.ServicerContext) -> Overview:
        if name != SERVER and name not in self.server.plan.names:
            self.server.door.refuse(context, name, "it is not in the roster")
        return self.server.ledger.overview()

    def _news(self, name: str, request: news.Notice, context: grpc.ServicerContext) -> news.Notice:
        server = self.server
        if name not in (*server.plan.helpers, *server.plan.names):
            server.door.refuse(context, name, "it is not in the plan")
        server.look_for_plan()
        return self._stand.tell(name, request, server.plan.hash, self.lacking)

    def lacking(self) -> list[str]:
        """The members of the round under way who have not taken the newest plan."""
        server, plan = self.server, self.server.plan
        k = min(server.reached, plan.rounds - 1)
        needed, floors = set(plan.epoch_at(k).names) - plan.gone_at(k), server.outbox.floors()
        going = (name for name in sorted(needed) if floors.get(name, 0) < server.farewell_round(name))
        return [name for name in going if not self._stand.holds(name, plan.hash)]
