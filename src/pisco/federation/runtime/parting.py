"""The end of an agent's part: its parameters once more where the plan closes with an average, and goodbye."""

from __future__ import annotations

import logging
import time
from typing import TYPE_CHECKING

from pisco.federation.roster import SERVER
from pisco.federation.runtime.codec import MessageLayout, Where
from pisco.federation.runtime.exchanges import from_server
from pisco.federation.runtime.member import CLOSING, MemberProcess
from pisco.federation.runtime.peers import Peer
from pisco.federation.runtime.programs import sent_of
from pisco.federation.runtime.routes import ServerHop, without_gone
from pisco.federation.runtime.sums import Reporting
from pisco.federation.runtime.transport import grpc

if TYPE_CHECKING:
    from pisco.federation.runtime.agent import Agent

log = logging.getLogger("pisco.federation")

SHORTLY = 10.0
"""Seconds for which somebody is told goodbye who may be gone, and whom we need not wait for."""


def close_average(agent: Agent) -> None:
    """Give the server once more what we send of our parameters. Who asks for the mean knows that it is kept there."""
    arrays = sent_of(agent.state)
    where, k = agent.where(agent.closing_round(), CLOSING), agent.done - 1
    everybody = tuple(range(len(agent.epoch.names)))
    hop = without_gone(ServerHop(None, everybody, everybody), agent.there(k))
    agent.report(Reporting(where, k, hop, agent.epoch.names), arrays)
    from_server(agent, where, MessageLayout.of(arrays), k)
    agent.outbox.passed(SERVER, where.round + 1)


def part(agent: Agent, *, server_matters: bool) -> list[str]:
    """Tell everybody that we need nothing more, and stay until nobody needs anything from us; return who still does."""
    last, plan, agent.pushing.parting = agent.last_round(agent.name), agent.plan, True
    needed, gone = readers(agent), plan.gone_at(last - 1)
    partners = set(agent.partners(agent.epoch)) - gone
    # A neighbour from before a change of the roster keeps our last message of that time until it hears this.
    before = {n for e in plan.epochs for n in agent.partners(e)} & {*agent.epoch.names} - partners - gone
    patience = dict.fromkeys(sorted(before), SHORTLY) | dict.fromkeys(sorted(partners), plan.patience)
    for name, seconds in patience.items() if not agent.parted else ():
        say_farewell(agent, agent.peer(name, last - 1), last + 1, patience=min(seconds, plan.patience))
    after, seconds = 1 + agent.closing_after(agent.name), plan.patience if server_matters else 1.0
    say_farewell(agent, agent.peer(SERVER, last - 1), last + after, patience=seconds)
    missing = agent.outbox.wait_until_read(needed, last + 1, plan.patience)
    if missing:
        log.warning("%s did not say that they are done; our last messages stay in the folder", ", ".join(missing))
    return missing


def readers(agent: Agent) -> set[str]:
    """The agents who may still ask for a message of ours; the server has what it needed when its average came."""
    return {reader for message in agent.outbox.kept().values() for reader in message.readers} - {SERVER}


def say_farewell(member: MemberProcess, peer: Peer, round_: int, *, patience: float) -> None:
    """Tell a peer that nothing before `round_` is needed any more."""
    end, pause, where = time.monotonic() + patience, 0.05, Where(member.federation_hash(round_ - 1), round_, 0)
    while not member.pushing.farewell(peer.name, where):
        call = peer.ask(where)
        try:
            if call.call is not None:
                list(call.call)
                return
        except grpc.RpcError:
            pass
        if 0.5 < pause < 1.0:
            log.info("saying goodbye to %s, who does not answer", peer.name)
        gone = member.outbox.floors().get(peer.name, 0) >= round_  # it has parted from us, and needs nothing
        if gone or time.monotonic() > end or member.mailroom.stopping.wait(pause):
            return
        pause = min(1.0, 2 * pause)
