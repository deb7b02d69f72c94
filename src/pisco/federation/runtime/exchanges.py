"""One exchange of an agent: what it offers to others, and what it makes of theirs."""

from __future__ import annotations

from collections.abc import Callable, Collection, Hashable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np

from pisco.federation.roster import SERVER
from pisco.federation.runtime.codec import SMALL, MessageLayout, Where
from pisco.federation.runtime.guarding import Watcher
from pisco.federation.runtime.peers import Dropped, Peer, Received, Stopped
from pisco.federation.runtime.routes import GossipHop, Hop
from pisco.federation.runtime.sums import Reporting

if TYPE_CHECKING:
    from pisco.federation.runtime.agent import Agent


def one_exchange(
    agent: Agent,
    where: Where,
    hop_now: Callable[[], Hop],
    arrays: list[np.ndarray],
    copies: Hashable | None = None,
    *,
    guarded: bool,
) -> list[np.ndarray]:
    """What an agent has after one hop. Where receivers keep copies of what it sends in it, `copies` names them.

    The hop is asked for again after waiting: somebody may have been removed meanwhile.
    """
    hop = hop_now()
    if not all(np.isfinite(array).all() for array in arrays):
        blame = agent.watcher.blame()
        remedy = "everybody must start again with a smaller algorithm.local_lr"
        if blame:
            remedy = f"{blame}: remove it from the roster, and start again"
        raise Stopped(f"the numbers left the finite range in round {agent.k}; {remedy}")
    start = agent.before() if guarded and agent.watcher else []
    layout, names = MessageLayout.of(arrays), agent.epoch.names
    updates = agent.outgoing.updates((copies, type(hop)), arrays) if copies else None
    if isinstance(hop, GossipHop):
        readers = [names[place] for place in hop.readers]
        pushed = lines_to(agent, (names[place] for place in hop.incoming if place != agent.place), readers, layout)
        agent.offer(where.round, where.phase, layout, layout.join(arrays), readers, updates, pushed)

        def others() -> dict[int, Peer]:
            asked = hop_now()
            assert isinstance(asked, GossipHop)
            # Waited for in turn, every round from another one on: the first is timed.
            turn = sorted(asked.incoming, key=lambda place: (place + agent.k) % len(names))
            return {place: agent.peer(names[place], agent.k) for place in turn if place != agent.place}

        received = _pull_heeding(agent, others, where, layout, copies, pushed=pushed)
        _note(agent, where, [array for place in sorted(received) for array in received[place].arrays])
        hop = hop_now()
        assert isinstance(hop, GossipHop)
        parts = {place: message.arrays for place, message in received.items()} | {agent.place: arrays}
        watcher = agent.watcher if guarded else Watcher(None)
        return watcher.gossip(where.round, names, parts, hop, agent.place, start)
    if agent.place not in hop.receivers:  # nor does it report: the sample keeps its average to itself
        return arrays
    pushed: list[str] = []
    if agent.place in hop.reporters:
        up = agent.watcher.up(arrays, start) if guarded else arrays
        part = Reporting(where, agent.k if where.round else -1, hop, names)
        pushed = lines_to(agent, [SERVER], [SERVER], layout)
        agent.report(part, up, updates if up is arrays else None, pushed)
    average = from_server(agent, where, layout, agent.k, pushed)
    _note(agent, where, average)
    return average


def _note(agent: Agent, where: Where, heard: Sequence[np.ndarray]) -> None:
    """What others sent, where noise hides the gradient that is made of it next: it may be no other after a restart."""
    if agent.spending is not None:
        agent.spending.heard(where.phase, heard)


def from_server(
    agent: Agent, where: Where, layout: MessageLayout, k: int, pushed: Collection[str] = ()
) -> list[np.ndarray]:
    """The server's average of an exchange of round k."""
    return _pull_heeding(agent, lambda: {0: agent.peer(SERVER, k)}, where, layout, pushed=pushed)[0].arrays


def _pull_heeding(
    agent: Agent,
    peers: Callable[[], Mapping[int, Peer]],
    where: Where,
    layout: MessageLayout,
    copies: Hashable | None = None,
    *,
    pushed: Collection[str] = (),
) -> dict[int, Received]:
    """Others' messages; where a change of one who is gone is planned meanwhile, of those who are left."""
    while True:
        try:
            return agent.pull(peers(), where, layout, copies, pushed=pushed)
        except Dropped:
            if not agent.heed_again():
                raise


def dial_ahead(agent: Agent, size: int) -> None:
    """Dial the lines of the rounds to come, of messages of this size: whoever starts later need not ask us first."""
    if agent.programs.codecs or size > SMALL:
        return
    first, gone = min(agent.done, agent.plan.rounds - 1), agent.plan.gone_at(agent.done)
    names = [] if agent.varies else [n for n in agent.partners(agent.epoch) if n not in gone and _dials(agent, n)]
    for name in names if agent.plan.network_of(agent.epoch).server.never_reached else [SERVER, *names]:
        agent.pushing.dial(agent.peer(name, first))


def lines_to(agent: Agent, senders: Iterable[str], readers: Collection[str], layout: MessageLayout) -> list[str]:
    """Those who send us a message and get one in the same exchange: each is pushed, over a line that one dials.

    Nobody, where messages tell what changed: they depend on what the asker holds.
    """
    if agent.programs.codecs:
        return []
    both = [name for name in senders if name in readers]
    for name in both if layout.size <= SMALL else ():
        if name == SERVER or _dials(agent, name):
            agent.pushing.dial(agent.peer(name, agent.k))
    return both


def _dials(agent: Agent, name: str) -> bool:
    """Whether the line to another agent is ours to dial: who listens nowhere does, else the first of the two."""
    own, other = agent.epoch.member(agent.name), agent.epoch.member(name)
    return (own.reach is None, own.index) < (other.reach is None, other.index)
