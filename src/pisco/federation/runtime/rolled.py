"""What agents and the server share where members may be absent.

A round in messages is then the place of its roll in the log, plus one: every attempt has a number of its own, and later
ones have larger numbers.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator
from typing import Any

import numpy as np

from pisco.federation.audit import AuditLog
from pisco.federation.plan import Federation
from pisco.federation.rolls import Chain, Roll
from pisco.federation.roster import Epoch
from pisco.federation.runtime.codec import Where
from pisco.federation.runtime.member import MemberProcess
from pisco.federation.runtime.peers import Dropped
from pisco.federation.runtime.routes import GossipHop, Hop, Routes, ServerHop
from pisco.federation.runtime.transport import grpc
from pisco.federation.runtime.wire_pb2 import Request
from pisco.networks.rounds import Told


def rolled_hops(plan: Federation, routes: Routes, roll: Roll, place: int, present: np.ndarray | None) -> list[Hop]:
    """What every exchange of an attempt consists of for the agent at a place."""
    hops = routes.hops(roll.round, place, present)
    return [hop for hop in hops if isinstance(hop, GossipHop) or plan.tries_server(roll.attempt)]


def rolled_told(plan: Federation, routes: Routes, roll: Roll, place: int, present: np.ndarray | None) -> Told:
    """What the round function of the agent at a place is told of an attempt."""
    told = routes.told(roll.round, place, present)
    return told._replace(server=told.server & plan.tries_server(roll.attempt))


def rolled_boundary(epoch: Epoch, roll: Roll, joined: Collection[int]) -> ServerHop | None:
    """Before an attempt with somebody who joins: the others on the roll report, and who joins receives."""
    there = {
        place: member.index in joined for place, member in enumerate(epoch.members) if member.index in roll.present
    }
    stay, join = (tuple(place for place, known in there.items() if known is kind) for kind in (True, False))
    return ServerHop(None, stay, join) if stay and join else None


def note_roll(audit: AuditLog, chain: Chain, before: Roll) -> None:
    """Note the newest roll, and who is expelled by it; the server's own log of rolls is on disk before, and signed."""
    roll, left = chain.head, sorted(set(before.present) - set(chain.head.present))
    facts = {"place": chain.count - 1, "round": roll.round, "attempt": roll.attempt, "present": list(roll.present)}
    audit.add("roll", sure=False, **facts, left_out=left if roll.round == before.round else [], rolls=chain.hash.hex())
    new = sorted(set(roll.expelled) - set(before.expelled))
    if new:
        audit.add("expulsion", round=roll.round, members=new)


def crossings(plan: Federation, before: int, k: int) -> bool:
    """Whether the roster changed after round `before`, until round k."""
    epochs = [epoch for epoch in plan.epochs if plan.epoch_at(before).start <= epoch.start <= k]
    return len({epoch.names for epoch in epochs}) > 1


def rolled_where(member: MemberProcess, chain: Chain, round_: int, phase: int) -> Where:
    """An exchange named by the hash of all rolls: who was told other rolls asks for something else."""
    if round_ == 0:
        return Where(member.federation_hash(0), 0, phase)
    digest = chain.hashes.get(round_ - 1)
    if digest is None:
        raise Dropped
    return Where(digest, round_, phase)


def answer_rolled(
    member: Any, at_start: Callable[..., Iterator[Any]], name: str, request: Request, context: grpc.ServicerContext
) -> Iterator[Any]:
    """Answer a member who asks for a message of an attempt."""
    if request.round == 0:
        yield from at_start(name, request, context)
        return
    digest = member.roll_hash(request.round - 1)
    if digest is None:
        return  # not yet: the roll has not come here
    if not digest:
        context.abort(grpc.StatusCode.ABORTED, "that attempt is over")
    if request.federation != digest:
        member.door.refuse(context, name, "its roll, or one before it, differs from ours")
    try:
        objection = member.why_not(name, request.round, request.phase)
        if objection is not None:
            member.door.refuse(context, name, objection)
        yield from member._answer(name, request, context)
    except Dropped:
        context.abort(grpc.StatusCode.ABORTED, "that attempt is over")
