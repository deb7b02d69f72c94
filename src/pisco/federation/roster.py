"""Who is in a federation, and from which round on: members, changes of the roster, and the epochs they give."""

from __future__ import annotations

import functools
import ipaddress
import re
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Annotated, Any, Literal

import numpy as np
from pydantic import AfterValidator, model_validator

from pisco.errors import InputError, check_number, suggest
from pisco.settings.tables import Count, Natural, Table

SERVER = "server"
"""The server's name in certificates and messages; no agent may have it."""
RESERVED = {SERVER: "the server's own name", "authority": "the name of who signs certificates"}
OUTBOUND = "outbound"
"""Where a member is that nobody can dial: it is reached through relays."""
OURS = ".pisco"
"""How the names end by which TLS knows members (`authority.tls_name`); no machine may be called so."""
PORTS = 65535

NAME = re.compile(r"[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?")
HOST = re.compile(r"\[[0-9a-fA-F:.]+\]|[A-Za-z0-9]([A-Za-z0-9.-]*[A-Za-z0-9])?")

Triple = tuple[int, int, float]


def check_name(name: str) -> str:
    """A name that can stand in a certificate, a file name and an address."""
    if not NAME.fullmatch(name):
        raise InputError(f"the name {name!r} cannot be used; take up to 63 lower-case letters, digits and hyphens")
    return name


def check_address(address: str) -> str:
    """`host:port`, as in `agent.example.org:7401` or `[::1]:7401`."""
    host, colon, port = address.rpartition(":")
    right = colon and HOST.fullmatch(host) and port.isascii() and port.isdigit() and 1 <= int(port) <= 65535
    if not right:
        raise InputError(f"the address {address!r} cannot be used; write host:port, as in 10.0.0.5:7401 or [::1]:7401")
    if host.lower().endswith(OURS):
        # It goes into the certificate, which would then pass for another member's.
        raise InputError(f"the host of {address!r} ends in {OURS}, as members' names in certificates do; take another")
    return address


def check_dns(name: str) -> str:
    """A DNS name of a certificate, in lower case; no pattern."""
    if not HOST.fullmatch(name) or name.startswith("[") or "." not in name:
        raise InputError(
            f"{name!r} cannot be used as the DNS name in a certificate; write it as in north.example.org, without *"
        )
    return name.lower()


def host_of(address: str) -> str:
    """The host of an address, without the brackets of IPv6.

    >>> host_of("[::1]:7401"), host_of("a.example.org:7401")
    ('::1', 'a.example.org')
    """
    return address.rpartition(":")[0].strip("[]")


def is_loopback(host: str) -> bool:
    """Whether a host is this machine, seen from itself.

    >>> is_loopback("localhost"), is_loopback("127.0.0.2"), is_loopback("a.example.org")
    (True, True, False)
    """
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def _positive(number: float) -> float:
    if not 0 < number < float("inf"):
        raise ValueError("expected a number greater than 0")
    return number


Name = Annotated[str, AfterValidator(check_name)]
Address = Annotated[str, AfterValidator(check_address)]
DnsName = Annotated[str, AfterValidator(check_dns)]
Seconds = Annotated[float, AfterValidator(_positive)]
Weight = Annotated[float, AfterValidator(_positive)]


Reach = Literal["outbound"]


class Member(Table):
    """One agent: its name, the index of its random stream, where it listens, and how much it counts (None: as all).

    With `reach = "outbound"` it listens nowhere and has no address: it keeps connections open to the plan's relays.
    `certificate` is the DNS name in its certificate, where that is another authority's.
    """

    name: Name
    index: Natural
    address: Address | None = None
    reach: Reach | None = None
    weight: Weight | None = None
    certificate: DnsName | None = None

    @model_validator(mode="after")
    def _one_way(self) -> Member:
        if (self.address is None) == (self.reach is None):
            raise InputError(f'{self.name!r} needs either an address, as in host:port, or reach = "{OUTBOUND}"')
        return self

    @property
    def at(self) -> str:
        """Where it is dialled: host:port, or "outbound"."""
        return self.address or OUTBOUND


class RelayPoint(Table):
    """Where a relay listens: a machine of its own with a name of its own, or the server's second port."""

    name: Name
    address: Address
    certificate: DnsName | None = None


class Change(Table):
    """A change of the roster that holds from round `round` on, with the weights of the new roster.

    `now`: the member was gone when it was planned. Nobody waits for it until then, or it is at its new address already.
    """

    round: Count
    action: Literal["add", "remove", "move"]
    name: Name
    index: Natural
    address: Address | None = None
    reach: Reach | None = None
    weight: Weight | None = None
    certificate: DnsName | None = None
    now: Literal[True] | None = None
    weights: list[Triple]
    push: list[Triple] | None = None


@dataclass(frozen=True)
class Epoch:
    """The rounds from `start` on, until the next epoch: the same members and weights throughout.

    start: the first round of the epoch.
    members: sorted by index; an agent's row of the matrix is its place in this list.
    weights: W as (row index, column index, value), by the members' indices.
    push: the same for what is pushed, where links are one-way.
    """

    start: int
    members: tuple[Member, ...]
    weights: tuple[Triple, ...]
    push: tuple[Triple, ...] | None = None

    @functools.cached_property
    def names(self) -> tuple[str, ...]:
        """The members' names in the order of the rows."""
        return tuple(member.name for member in self.members)

    def member(self, name: str) -> Member:
        """The member of that name; an unknown one is refused."""
        if name not in self.names:
            raise InputError(f"there is no agent {name!r} at round {self.start}; {suggest(name, self.names)}")
        return self.members[self.names.index(name)]

    def places(self, indices: Collection[int]) -> np.ndarray:
        """The members with these indices, as a mask in the order of the rows."""
        return np.isin([member.index for member in self.members], list(indices))

    def incoming(self, name: str) -> dict[str, float]:
        """What agent i's next value is made of: w_ji for every sender j, itself included, in row order."""
        own, by_index = self.member(name).index, {member.index: member.name for member in self.members}
        found = {by_index[row]: value for row, column, value in self.weights if column == own}
        return {each: found[each] for each in self.names if each in found}

    def neighbours(self, name: str) -> tuple[str, ...]:
        """Who exchanges with the agent, in either direction, in row order."""
        own, by_index = self.member(name).index, {member.index: member.name for member in self.members}
        linked = {
            by_index[column if row == own else row]
            for row, column, value in (*self.weights, *(self.push or ()))
            if value and own in (row, column) and row != column
        }
        return tuple(each for each in self.names if each in linked)

    def shares(self, samples: Mapping[str, int] | None = None) -> dict[str, float]:
        """q_i of every member, by weight or by these samples; nothing while somebody's are not known."""
        if samples is not None and not all(name in samples for name in self.names):
            return {}
        counts = {m.name: (m.weight or 1.0) if samples is None else samples[m.name] for m in self.members}
        return {name: each / sum(counts.values()) for name, each in counts.items()}

    def matrix(self) -> Any:
        """W as SciPy CSR, rows in the order of the members; where links are one-way, the pair to pull and push with."""
        pull = self._matrix(self.weights)
        return pull if self.push is None else (pull, self._matrix(self.push))

    def _matrix(self, weights: tuple[Triple, ...]) -> Any:
        from scipy.sparse import csr_array

        place = {member.index: row for row, member in enumerate(self.members)}
        for row, column, _ in weights:
            if row not in place or column not in place:
                raise InputError(
                    f"a weight of round {self.start} names index {row if row not in place else column}, "
                    "which no agent has then; let `pisco federation` write the file"
                )
        rows = [place[row] for row, _, _ in weights]
        columns = [place[column] for _, column, _ in weights]
        values = [value for _, _, value in weights]
        return csr_array((values, (rows, columns)), shape=(len(place), len(place)))


def check_relays(relays: list[RelayPoint], server_address: str, epochs: tuple[Epoch, ...]) -> None:
    """Refuse relays that do not fit a plan, and members that need one where there is none."""
    members = [member for epoch in epochs for member in epoch.members]
    hidden = [member.name for member in members if member.reach]
    if hidden and not relays:
        raise InputError(
            f"{hidden[0]!r} is outbound, and the plan has no relay; add relays = [{{name = "
            f'"{SERVER}", address = "host:port"}}], a second port of the server, or give {hidden[0]!r} an address'
        )
    taken = {server_address: "the server"} | {member.address: member.name for member in members if member.address}
    for relay in relays:
        if relay.name in {member.name for member in members} | (RESERVED.keys() - {SERVER}):
            raise InputError(f"a relay is called {relay.name!r}, as another member is; give it a name of its own")
        if [each.name for each in relays].count(relay.name) > 1:
            raise InputError(f"two relays are called {relay.name!r}; give each its own name")
        if relay.address in taken:
            raise InputError(
                f"the relay {relay.name!r} and {taken[relay.address]} both have the address {relay.address}; "
                "give each its own"
            )
        taken[relay.address] = f"the relay {relay.name!r}"


def numbered(agents: int, host: str, port: int) -> dict[str, str]:
    """So many agents on one host, at the ports after the server's."""
    check_number("agents", agents, low=1, integer=True)
    if agents > PORTS:
        raise InputError(f"agents is {agents}, but a host has {PORTS} ports; give agents addresses on several hosts")
    return {f"agent-{i}": f"{host}:{port + 1 + i}" for i in range(agents)}


def founders(
    agents: int | Mapping[str, str],
    host: str,
    port: int,
    server_address: str | None,
    relays: Mapping[str, str] | None,
    weights: Mapping[str, float],
    certificates: Mapping[str, str],
) -> dict[str, Any]:
    """The tables of a new plan that say who takes part and where, from what `Federation.create` is given."""
    if not isinstance(agents, Mapping):
        agents = numbered(agents, host, port)
    server_address = server_address or f"{host}:{port}"
    if relays is None and OUTBOUND in agents.values():
        beside, _, number = server_address.rpartition(":")
        relays = {SERVER: f"{beside}:{int(number) - 1}"}
    relays = relays or {}
    for each in certificates:
        if each not in (SERVER, *agents, *relays):
            raise InputError(f"the certificate of {each!r} has no member; {suggest(each, [*agents, SERVER])}")
    for each in weights:
        if each not in agents:
            raise InputError(f"the weight of {each!r} has no agent; {suggest(each, agents)}")

    def shown(name: str) -> dict[str, str]:
        return {"certificate": certificates[name]} if name in certificates else {}

    made: dict[str, Any] = {"server_address": server_address}
    made["roster"] = [
        {"name": each, "index": i}
        | ({"reach": at} if at == OUTBOUND else {"address": at})
        | ({"weight": weights.get(each)} if weights else {})
        | shown(each)
        for i, (each, at) in enumerate(agents.items())
    ]
    points = [{"name": each, "address": at} | (shown(each) if each != SERVER else {}) for each, at in relays.items()]
    made["relays"] = points or None
    return made | ({"server_certificate": certificates[SERVER]} if SERVER in certificates else {})
