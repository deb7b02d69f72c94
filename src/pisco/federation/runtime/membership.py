"""Changes of the roster: what agents do when a new epoch begins.

Gradient tracking needs mean(Y) = mean(G) over whoever takes part. At the first round of a new roster everybody who
stays sets Y := G (the algorithm's `rebase`), and who joins starts from the mean parameters of those who stay with
Y := G of its own, so the two means are equal, whoever came or went. Links and weights are those of the new epoch.
"""

from __future__ import annotations

import logging
import math
import threading
from typing import TYPE_CHECKING, Any

import jax
import numpy as np

from pisco.engines.job import check_needs, streams
from pisco.errors import InputError
from pisco.federation.plan import Federation
from pisco.federation.roster import SERVER, Epoch
from pisco.federation.runtime import reports
from pisco.federation.runtime.codec import MessageLayout
from pisco.federation.runtime.member import BOUNDARY, wire
from pisco.federation.runtime.peers import Peer, Stopped
from pisco.federation.runtime.routes import Routes, ServerHop
from pisco.federation.runtime.sums import Reporting
from pisco.parts import only, over

if TYPE_CHECKING:
    from pisco.federation.runtime.agent import Agent

log = logging.getLogger("pisco.federation")


def check(plan: Federation) -> None:
    """Refuse what cannot run between machines, and changes that a method's state cannot follow."""
    algorithm = plan.build_algorithm()
    for epoch in plan.epochs:
        network = plan.network_of(epoch)
        check_needs(algorithm, network)
        Routes(network, streams(jax.random.key(0)))
    if algorithm.rebase is None and len({epoch.names for epoch in plan.epochs}) > 1:
        raise InputError(
            f"{algorithm.name} cannot change its roster: its state holds more than parameters, trackers and gradients "
            "of one's own; run it with the founding roster"
        )


def boundary(plan: Federation, k: int) -> ServerHop | None:
    """Before round k: those who stay report their parameters, those who join receive the mean."""
    new, old = plan.epoch_at(k), plan.epoch_at(k - 1)
    if k <= 0 or new.start != k:
        return None
    stay = tuple(place for place, name in enumerate(new.names) if name in old.names)
    join = tuple(place for place, name in enumerate(new.names) if name not in old.names)
    return ServerHop(None, stay, join) if stay and join else None


def mean_of_others(agent: Agent) -> Any:
    """The parameters with which an agent joins; it waits as long as it takes the others to get there."""
    leaves, structure = jax.tree.flatten(only(agent.programs.params_like))
    layout, round_ = MessageLayout.of(leaves), wire(agent.done)
    log.info("waiting to join at round %d", agent.done)
    received = agent.mailroom.pull(
        {0: agent.peer(SERVER, agent.done)},
        agent.where(round_, BOUNDARY),
        layout=layout,
        limit=layout.size,
        patience=math.inf,
    )
    return over(jax.tree.unflatten(structure, received[0].arrays), agent.programs.first_params())


def cross(agent: Agent, epoch: Epoch) -> Any:
    """The state of an agent that stays, at the first round of a new epoch."""
    old = agent.epoch
    if epoch.member(agent.name).at != agent.address:
        missing = agent.outbox.wait_until_read(readers(agent), epoch.start + 1, agent.plan.patience)
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
            arrays = [np.asarray(leaf) for leaf in jax.tree.leaves(only(state.params))]
            where = agent.where(wire(epoch.start), BOUNDARY)
            agent.report(Reporting(where, epoch.start, hop, epoch.names), arrays)
    partners = agent.partners(old)
    for name in [each.name for each in old.members if each.name in partners and each not in epoch.members]:
        # It stays until everybody has its last messages; nobody need wait for it to hear so.
        peer = Peer(agent.kit, name, old.member(name).at)
        threading.Thread(target=_farewell, args=(agent, peer, epoch.start), daemon=True).start()
    return state


def readers(agent: Agent) -> set[str]:
    """The agents who may still ask for a message of ours; the server has what it needed when its average came."""
    return {reader for message in agent.outbox.kept().values() for reader in message.readers} - {SERVER}


def _farewell(agent: Agent, peer: Peer, start: int) -> None:
    reports.say_farewell(agent, peer, start + 1, patience=10.0)
    peer.close()
