"""How members' vectors come together at the server: what an agent reports, and what the server makes of the reports.

`SUMS` has one way for each value of a plan's `server_sum`; agents, server and replay know nothing else of it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

import numpy as np

from pisco.federation.masking import FEWEST
from pisco.federation.runtime import fixed, masks, routes
from pisco.federation.runtime.buffers import Buffers
from pisco.federation.runtime.codec import Data, MessageLayout, Where
from pisco.federation.runtime.keyring import KeyBoard, Keyring
from pisco.federation.runtime.peers import Stopped
from pisco.federation.runtime.routes import ServerHop
from pisco.federation.runtime.used import UsedMasks

if TYPE_CHECKING:
    from pisco.federation.runtime.agent import Agent
    from pisco.federation.runtime.server import Server

ByPlace = Mapping[int, Sequence[np.ndarray]]


class Reporting(NamedTuple):
    """An agent's part in a server exchange: which it is, in round k (-1: the start), and the names by place."""

    where: Where
    k: int
    hop: ServerHop
    names: Sequence[str]


class AgentSum(Protocol):
    """The agent's side."""

    @property
    def newest(self) -> int:
        """The last round with a sum of ours whose vectors may be in no other."""
        ...

    def begin(self) -> None:
        """Before the first exchange."""
        ...

    def message(self, part: Reporting, arrays: Sequence[np.ndarray]) -> tuple[MessageLayout, Data]:
        """What the server pulls from us."""
        ...


class ServerSum(Protocol):
    """The server's side."""

    def methods(self) -> dict[str, Any]:
        """What members may ask for besides."""
        ...

    def combine(self, arrays: ByPlace, layout: MessageLayout, hop: ServerHop) -> tuple[MessageLayout, list[np.ndarray]]:
        """What everybody is handed, from what the reporters sent, which had one layout."""
        ...


class SumWay(NamedTuple):
    """One way to add up: for an agent, for the server, and for who has all vectors: the same numbers to the bit."""

    agent: Callable[[Agent], AgentSum]
    server: Callable[[Server], ServerSum]
    mean: Callable[[ByPlace, ServerHop], list[np.ndarray]]


class PlainSum:
    """Vectors as they are."""

    newest = -1

    def __init__(self, member: Any):
        pass

    def begin(self) -> None:
        pass

    def methods(self) -> dict[str, Any]:
        return {}

    def message(self, part: Reporting, arrays: Sequence[np.ndarray]) -> tuple[MessageLayout, bytes]:
        layout = MessageLayout.of(arrays)
        return layout, layout.join(arrays)

    def combine(self, arrays: ByPlace, layout: MessageLayout, hop: ServerHop) -> tuple[MessageLayout, list[np.ndarray]]:
        if layout != layout.plain:
            raise Stopped("members mask their vectors, but this plan has no masks; give everybody the same plan")
        return layout, routes.average(arrays, hop)


class MaskedReports:
    """An agent's vectors, each a fixed-point number under the masks that it shares with every other reporter."""

    def __init__(self, agent: Agent):
        self.agent, self.ring = agent, Keyring(agent)
        self.used = UsedMasks(agent.store.folder, durable=agent.store.durable)
        self.buffers = Buffers()

    @property
    def newest(self) -> int:
        return self.used.round

    def begin(self) -> None:
        self.ring.introduce()

    def message(self, part: Reporting, arrays: Sequence[np.ndarray]) -> tuple[MessageLayout, Data]:
        agent, hop = self.agent, part.hop
        reporters = [part.names[place] for place in hop.reporters]
        if len(reporters) < FEWEST:
            raise Stopped(f"only {len(reporters)} members report in round {part.k}, and masks hide among {FEWEST}")
        layout, arrays = MessageLayout.of(arrays), fixed.weighed(arrays, hop, part.names.index(agent.name))
        try:
            fixed.check(arrays, len(reporters))
        except fixed.OutOfRange as error:
            raise Stopped(
                f"in round {part.k} {error}; scale the model's parameters, or leave out server_sum in a new plan"
            ) from None
        pairs = self.ring.pairs([each for each in reporters if each != agent.name], lambda: agent.wanted(part.where))
        context = masks.exchange_context(part.where, reporters, layout)
        noted = self.used.take(part.k, part.where.phase, context, arrays)
        message = self.buffers.lend(layout.masked.size).data
        fixed.write(arrays, masks.PairMasks(agent.name, pairs, context).add_to, layout.masked.split(message))
        noted()
        return layout.masked, message


class MaskedSum:
    """The server of such agents: it adds up words in which all masks cancel."""

    def __init__(self, server: Server):
        self.methods = KeyBoard(server, server.store.folder).methods

    def combine(self, arrays: ByPlace, layout: MessageLayout, hop: ServerHop) -> tuple[MessageLayout, list[np.ndarray]]:
        if layout != layout.masked:
            raise Stopped("members send vectors without masks, which this plan has; give everybody the same plan")
        sent = [arrays[place] for place in hop.reporters]
        try:
            return layout.plain, fixed.total(sent, layout.plain, fixed.divisor(hop))
        except fixed.OutOfRange as error:
            raise Stopped(
                f"{error}: a member sent something other than its part, or has another key than the others were told"
            ) from None


SUMS = {None: SumWay(PlainSum, PlainSum, routes.average), "masked": SumWay(MaskedReports, MaskedSum, fixed.mean)}
"""By the `server_sum` of a plan."""
