"""Changes of the roster: what agents do when a new epoch begins.

Gradient tracking needs mean(Y) = mean(G) over whoever takes part. At the first round of a new roster everybody who
stays sets Y := G (the algorithm's `rebase`). Who joins starts from the mean parameters of those who stay, with Y := G
of its own. So the two means are equal, whoever came or went. Links and weights are those of the new epoch.
"""

from __future__ import annotations

import logging
import math
import threading
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import jax
import numpy as np

from pisco.engines.job import check_needs
from pisco.errors import InputError
from pisco.federation.plan import Federation
from pisco.federation.roster import SERVER, Change, Epoch
from pisco.federation.runtime import parting
from pisco.federation.runtime.codec import MessageLayout
from pisco.federation.runtime.lines import printable
from pisco.federation.runtime.member import BOUNDARY, CANCELLED, GONE, GONE_WITHOUT, wire
from pisco.federation.runtime.news import EVERY
from pisco.federation.runtime.peers import Dropped, Patience, Peer, Received, Stopped
from pisco.federation.runtime.programs import sent_of
from pisco.federation.runtime.routes import Routes, ServerHop
from pisco.federation.runtime.sums import Reporting
from pisco.seeds import streams

if TYPE_CHECKING:
    from pisco.federation.runtime.agent import Agent

log = logging.getLogger("pisco.federation")

SOON = 0.2
"""Seconds between two questions whether everybody has a plan."""
HEEDED = {"remove": "rounds do without it", "move": "it is looked for where it is then"}


def check(plan: Federation) -> None:
    """Refuse what cannot run between machines, and changes that a method's state cannot follow."""
    algorithm = plan.build_algorithm()
    for epoch in plan.epochs:
        gone = plan.gone_at(epoch.start)
        network = plan.network_of(epoch, np.ones(len(epoch.members), bool) if gone else None)
        check_needs(algorithm, network)
        Routes(network, streams(jax.random.key(0)))
    if algorithm.rebase is None and len({epoch.names for epoch in plan.epochs}) > 1:
        raise InputError(
            f"{algorithm.name} cannot change its roster: its state holds more than an agent's own parameters, trackers "
            "and gradients; run it with the founding roster"
        )


def boundary(plan: Federation, k: int) -> ServerHop | None:
    """Before round k: those who stay report their parameters, those who join receive the mean."""
    new, old = plan.epoch_at(k), plan.epoch_at(k - 1)
    if k <= 0 or new.start != k:
        return None
    gone = plan.gone_at(k)
    stay = tuple(place for place, name in enumerate(new.names) if name in old.names and name not in gone)
    join = tuple(place for place, name in enumerate(new.names) if name not in old.names)
    return ServerHop(None, stay, join) if stay and join else None


def mean_of_others(agent: Agent) -> Any:
    """The parameters with which an agent joins; it waits as long as it takes the others to get there."""
    log.info("waiting to join at round %d", agent.done)
    received = None
    while received is None:
        received = _ask_to_join(agent, agent.plan)
    agent.joining = False
    if agent.spending is not None:
        agent.spending.heard(BOUNDARY, received.arrays)
    return agent.programs.params_of(received.arrays)


def _ask_to_join(agent: Agent, plan: Federation) -> Received | None:
    """The mean by a plan; None once there is a newer one, which may change our first round too."""
    if agent.name not in plan.starts:
        raise Stopped(f"the new plan is without {agent.name}: {CANCELLED}")
    epoch = plan.epoch_at(plan.starts[agent.name])
    own = epoch.member(agent.name)
    if epoch.start != agent.done or own != agent.epoch.member(agent.name):
        raise Stopped(f"the new plan adds {agent.name} at round {epoch.start}, at {own.at}; type the command again")
    agent.enter(epoch)
    layout, where = MessageLayout.of(agent.programs.sent_like), agent.where(wire(agent.done), BOUNDARY)
    how: dict[str, Any] = {"layout": layout, "limit": layout.size, "patience": math.inf}
    try:
        server = agent.peer(SERVER, agent.done)
        return agent.mailroom.pull({0: server}, where, wanted=lambda: agent.plan is plan, **how)[0]
    except Dropped:
        return None


def cross(agent: Agent, epoch: Epoch) -> Any:
    """The state of an agent that stays, at the first round of a new epoch."""
    old = agent.epoch
    if epoch.member(agent.name).at != agent.address:
        missing = agent.outbox.wait_until_read(parting.readers(agent), epoch.start + 1, agent.plan.patience)
        raise Stopped(
            f"{agent.name} moves to {epoch.member(agent.name).at} at round {epoch.start}; start it there with its "
            f"state folder{', once ' + ', '.join(missing) + ' got our last messages' if missing else ''}"
        )
    if epoch.names == old.names:
        state = agent.state
    else:
        log.info("round %d begins with %d agents", epoch.start, len(epoch.names))
        assert agent.algorithm.rebase is not None  # `check` has seen to it
        state = agent.algorithm.rebase(agent.state)
        hop = boundary(agent.plan, epoch.start)
        if hop is not None:
            where = agent.where(wire(epoch.start), BOUNDARY)
            agent.report(Reporting(where, epoch.start, hop, epoch.names), sent_of(state))
    partners = set(agent.partners(old)) - agent.plan.gone_at(epoch.start - 1)
    for name in [each.name for each in old.members if each.name in partners and each not in epoch.members]:
        # It stays until everybody has its last messages; nobody need wait for it to hear so.
        peer = Peer(agent.kit, name, old.member(name).at)
        threading.Thread(target=_farewell, args=(agent, peer, epoch.start), daemon=True).start()
    return state


def heed(agent: Agent, changes: Sequence[Change]) -> None:
    """Act on changes of members who are gone, in the middle of a round if needed.

    Nobody goes on before everybody has the plan: who had not would come to the round of the change without it.
    """
    for change in changes:
        if change.name == agent.name and change.action == "remove":
            raise Stopped(f"the server refuses us: {GONE_WITHOUT}")
        if change.name == agent.name and agent.plan.epoch_at(agent.done).member(agent.name).at != agent.address:
            raise Stopped(f"{agent.name} has moved to {change.address or change.reach}; start it there with its state")
        log.warning("%s is gone; until round %d %s", change.name, change.round, HEEDED[change.action])
        if change.action == "remove":
            agent.outbox.passed(change.name, GONE)
    news, patience = agent.news, Patience(agent.plan.patience, agent.mailroom.stopping)
    assert news is not None
    news.every = SOON
    while news.answer.holds != agent.plan.hash:
        whom = printable(news.answer.lacking) or "the server"
        patience.wait(f"{whom} to take the new plan", "the state is kept")
    news.every = EVERY


def _farewell(agent: Agent, peer: Peer, start: int) -> None:
    parting.say_farewell(agent, peer, start + 1, patience=parting.SHORTLY)
    peer.close()
