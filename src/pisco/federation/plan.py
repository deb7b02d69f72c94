"""The federation file: what every machine of a federation must agree on, to the last bit.

    name = "hospitals"                  [algorithm]              [network]
    seed = 0                            name = "pisco"           graph = "ring"
    rounds = 500                        local_lr = 0.05          agents = 3
    batch_size = 256                    local_steps = 1          server_prob = 0.1
    server_address = "c.org:7400"
    patience = 600.0                    [problem]                roster = [{name, index, address}, …]
    dtype = "float32"                   name = "logistic"        weights = [[row, column, value], …]
    eval_every = 10                     classes = [-1, 1]        changes = [{round, action, name, …}, …]

The file holds the weights themselves, not only the rule that made them, so that no two machines work them out
differently; `[network]` is kept for new weights when the roster changes. Agents bring their data and nothing else.
Files that the plan names, such as `name = "my_algos.py:extra"`, lie beside it, and `[files]` has the SHA-256 of each.
An agent's `index` never changes: batches depend on (seed, index, round) alone.
"""

from __future__ import annotations

import functools
import hashlib
import json
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
from pydantic import Field, model_validator

from pisco.algorithms.compressed import compressed
from pisco.algorithms.compressors import Cast
from pisco.errors import InputError
from pisco.federation import consistency, masking
from pisco.federation.changes import changed, epochs_of, stored, without_last
from pisco.federation.contract import Contract
from pisco.federation.roster import (
    SERVER,
    Address,
    Change,
    DnsName,
    Epoch,
    Member,
    Name,
    RelayPoint,
    Seconds,
    Triple,
    founders,
)
from pisco.federation.shared_problem import SharedProblemTable, check_options, one_agent
from pisco.files import atomic_write
from pisco.settings import options, toml
from pisco.settings.tables import AlgorithmTable, BatchSize, Count, NetworkTable, Seed, Table, checked

if TYPE_CHECKING:
    from pisco.data import Dataset
    from pisco.networks.guards import Guard
    from pisco.networks.network import Network
    from pisco.problems.problem import Problem
    from pisco.types import Algorithm

__all__ = ["Federation"]


class Federation(Table):
    """A federation, as `pisco federation init` writes it and every kit carries it.

    Fields: `name`; `seed` of batches and coins; `rounds`; `batch_size` (None: all of an agent's samples);
    `dtype` of the parameters; `eval_every` rounds between measurements; `patience`, the seconds that anybody
    waits for a silent peer; `presence`, "all" (a round waits for everybody) or "deadline" (after `deadline` seconds it
    goes on with those who are there, at least `quorum` of them: more than half unless given); `weigh_by`, "samples"
    where agents count by how many they have, which they tell the server (None: as the roster says); `wire`,
    "float16" or "bfloat16" where what is sent has 16 bits an entry, and the rest follows in later rounds; `closing`,
    True where everybody's parameters go to the server once more at the end, whose result holds their mean;
    `server_sum`, "masked" where the server learns the sum of the agents' vectors and no vector (None: it sees them);
    `server_address`; `server_certificate`, the DNS name in the server's certificate where certificates are of another
    authority than the federation's own (then every agent and relay has a `certificate` too); `relays` (name and address
    of each), through which agents with `reach = "outbound"` are reached, in the order in which they are tried; the
    tables `algorithm`, `problem` (None: every agent brings a module) and `network`; `data`, what every agent's file
    must look like (None: the shape alone counts); `roster`; `weights`, the founding roster's matrix W as (row, column,
    value), and `push`, that of what is pushed where links are one-way; `changes` of the roster; `files` that the tables
    name, with the SHA-256 of each.

    >>> plan = Federation.create("demo", agents=3, algorithm={"local_lr": 0.1, "local_steps": 1}, rounds=5)
    >>> plan.epoch_at(4).names, plan.neighbours("agent-0", 0)
    (('agent-0', 'agent-1', 'agent-2'), ('agent-1', 'agent-2'))
    >>> later = plan.change(2, "remove", "agent-1")
    >>> [epoch.names for epoch in later.epochs], later.neighbours("agent-0", 2)
    ([('agent-0', 'agent-1', 'agent-2'), ('agent-0', 'agent-2')], ('agent-2',))
    >>> plan.hash == later.hash, plan.hash_at(1) == later.hash_at(1), plan.hash_at(2) == later.hash_at(2)
    (False, True, False)
    """

    name: Name
    seed: Seed = 0
    rounds: Count
    batch_size: BatchSize = None
    dtype: Literal["float32", "float64"] = "float32"
    eval_every: Count = 1
    patience: Seconds = 600.0
    presence: Literal["all", "deadline"] = "all"
    deadline: Seconds | None = None
    quorum: Count | None = None
    weigh_by: Literal["samples"] | None = None
    wire: Literal["float16", "bfloat16"] | None = None
    closing: Literal[True] | None = None
    server_sum: Literal["masked"] | None = None
    server_address: Address
    server_certificate: DnsName | None = None
    relays: list[RelayPoint] | None = None
    algorithm: AlgorithmTable
    problem: SharedProblemTable | None = None
    data: Contract | None = None
    network: NetworkTable
    roster: list[Member]
    weights: list[Triple]
    push: list[Triple] | None = None
    changes: list[Change] = Field(default_factory=list)
    files: dict[str, str] = Field(default_factory=dict)

    @classmethod
    def create(
        cls,
        name: str,
        *,
        rounds: int,
        agents: int | Mapping[str, str] = 10,
        host: str = "127.0.0.1",
        port: int = 7400,
        server_address: str | None = None,
        algorithm: Mapping[str, Any],
        problem: Mapping[str, Any] | None = None,
        network: Mapping[str, Any] | None = None,
        agent_weights: Mapping[str, float] | None = None,
        relays: Mapping[str, str] | None = None,
        certificates: Mapping[str, str] | None = None,
        **settings: Any,
    ) -> Federation:
        """A new federation, its weights worked out here and now.

        Args:
          name: what certificates and logs call it.
          rounds: communication rounds.
          agents: names to addresses, or to "outbound" for those that nobody can dial; or how many, named agent-0,
            agent-1, … on one host.
          host: of agents given as a number and of a server without an address.
          port: the server's; agents given as a number take those that follow.
          server_address: the server's address where it is another.
          algorithm: name and hyperparameters, as in an experiment file.
          problem: name, options, `classes` and `features`; None when agents bring modules.
          network: graph, weights and server schedule, as in an experiment file, without `agents`.
          agent_weights: how much every agent counts, in any unit: its number of samples, say. None: all the same.
          relays: names to addresses, in the order in which they are tried; None: where agents are outbound, the server
            at the port before its own.
          certificates: names to DNS names, for everybody, the server and relays too, where members have certificates
            of another authority.
          settings: the other fields.
        """
        for what, given in (("algorithm", algorithm), ("problem", problem), ("network", network)):
            if not isinstance(given, Mapping | None):
                raise InputError(f"{what} is {given!r}, expected a table, as in {{'name': …}}")
        who = founders(agents, host, port, server_address, relays, agent_weights or {}, certificates or {})
        tables = {
            "name": name,
            "rounds": rounds,
            # Measuring takes all samples, and every later state holds its row.
            "eval_every": max(1, rounds // 100) if isinstance(rounds, int) else 1,
            "algorithm": dict(algorithm),
            "problem": None if problem is None else dict(problem),
            "network": {**(network or {}), "agents": len(who["roster"])},
            **settings,
            **who,
        }
        tables = options.moved(tables, lambda path: path.expanduser().resolve())
        links = checked(NetworkTable, tables["network"], "the network")
        tables |= stored(links.build(), range(links.agents))
        files = options.files(tables)
        tables["files"] = {path.name: sha for path, sha in files.items()}
        if len(tables["files"]) < len(files):
            raise InputError(f"two of the files {', '.join(map(str, files))} have one name; rename one")
        made = checked(cls, tables, "the federation")
        if made.problem is not None:
            check_options(made.problem, made.problem.features or (made.data and made.data.shape))
        return made

    @classmethod
    def load(cls, path: str | Path) -> Federation:
        """Read a federation file; the first mistake is one `InputError`."""
        folder = Path(path).resolve().parent
        tables = options.moved(toml.read(Path(path)), lambda file: folder / file.name)
        for file, sha in options.files(tables).items():
            if (tables.get("files") or {}).get(file.name) != sha:
                raise InputError(
                    f"{file} is not the file that the plan was made with; copy the coordinator's {file.name} there"
                )
        return checked(cls, tables, str(path), "`pisco federation init` writes whole files")

    def save(self, path: str | Path, ending: str = "") -> None:
        """Write the file, and beside it those that it names; whoever reads one meanwhile sees it old or new."""
        for file in options.files(self.model_dump()):
            atomic_write(Path(path).parent / file.name, file.read_bytes())
        atomic_write(Path(path), (self.to_toml() + ending).encode())

    def to_toml(self) -> str:
        """The text of the file."""
        return toml.write(self._tables())

    def _tables(self) -> dict[str, Any]:
        tables = options.moved(self.model_dump(exclude_none=True), lambda file: Path(file.name))
        tables.setdefault("batch_size", "full")
        if self.network.guard == "none":
            del tables["network"]["guard"]
        if self.presence == "all":
            del tables["presence"]  # plans from before there was a choice keep their hash
        return tables if self.files else {name: value for name, value in tables.items() if name != "files"}

    @functools.cached_property
    def hash(self) -> str:
        """SHA-256 of the content in canonical JSON: the order of keys, comments and spaces do not matter."""
        return _digest(self._tables())

    def hash_at(self, round_index: int) -> str:
        """The hash of what holds in a round: without changes that come later, and without `closing`.

        So agents with a new file and agents with the old one understand each other until the change takes effect.
        """
        return self._hashes[self.epochs.index(self.epoch_at(round_index))]

    @functools.cached_property
    def _hashes(self) -> list[str]:
        tables = {name: value for name, value in self._tables().items() if name != "closing"}
        starts, changes = [epoch.start for epoch in self.epochs], tables["changes"]
        return [_digest(tables | {"changes": [c for c in changes if c["round"] <= start]}) for start in starts]

    @functools.cached_property
    def epochs(self) -> tuple[Epoch, ...]:
        """The founding roster, then one epoch for every round at which the roster changes."""
        return epochs_of(self)

    def epoch_at(self, round_index: int) -> Epoch:
        """The epoch that round `round_index` (0, 1, …) belongs to."""
        return next(epoch for epoch in reversed(self.epochs) if epoch.start <= max(round_index, 0))

    def neighbours(self, name: str, round_index: int) -> tuple[str, ...]:
        """Who exchanges with an agent in a gossip round."""
        return self.epoch_at(round_index).neighbours(name)

    @functools.cached_property
    def indices(self) -> dict[str, int]:
        """The index of every agent that is ever a member, founders first."""
        return {member.name: member.index for epoch in self.epochs for member in epoch.members}

    @functools.cached_property
    def starts(self) -> dict[str, int]:
        """The first round of every agent that is ever a member."""
        return {name: epoch.start for epoch in reversed(self.epochs) for name in epoch.names}

    @property
    def names(self) -> tuple[str, ...]:
        """Every agent that is ever a member, founders first."""
        return tuple(self.indices)

    @property
    def helpers(self) -> tuple[str, ...]:
        """Everybody else with a kit: the server, and relays on machines of their own."""
        return tuple(dict.fromkeys([SERVER, *(relay.name for relay in self.relays or ())]))

    @functools.cached_property
    def certificates(self) -> dict[str, str]:
        """The DNS name in everybody's certificate; empty where the federation's own authority signs them."""
        named = {relay.name: relay.certificate for relay in self.relays or ()} | {SERVER: self.server_certificate}
        named |= {member.name: member.certificate for epoch in self.epochs for member in epoch.members}
        return {name: dns for name, dns in named.items() if dns is not None}

    @property
    def hidden(self) -> frozenset[str]:
        """The agents that are outbound in some round."""
        return frozenset(member.name for epoch in self.epochs for member in epoch.members if member.reach)

    def network_of(self, epoch: Epoch, presence: Any = None) -> Network:
        """The network of an epoch, on the stored weights; where members may be absent, with everybody unless given."""
        table = self.network.model_copy(update={"agents": len(epoch.members), "server_sum": self.server_sum})
        if presence is None and self.presence == "deadline":
            presence = np.ones(len(epoch.members), bool)
        return table.build(epoch.matrix(), presence)

    @functools.cached_property
    def guard(self) -> Guard | None:
        """What members do with messages that lie too far away."""
        return self.network.build_guard()

    def quorum_at(self, round_index: int, expelled: Collection[int] = ()) -> int:
        """How many must be present in a round; fewer members than the quorum who are not expelled are all needed."""
        there = {member.index for member in self.epoch_at(round_index).members}.difference(expelled)
        return min(len(there), self.quorum or max(self.fewest_reporters, len(self.roster) // 2 + 1))

    @property
    def fewest_reporters(self) -> int:
        """How many must take part in a sum at the server."""
        return masking.FEWEST if self.server_sum else 1

    def tries_server(self, attempt: int) -> bool:
        """Whether an attempt at a server round reaches the server.

        With masks the first alone does: two sums of one round, with and without a member, would tell its vector.
        """
        return not (attempt and self.server_sum)

    def build_algorithm(self) -> Algorithm:
        """The update rule; with `wire`, compressed to 16 bits an entry."""
        rule = self.algorithm.build()
        return rule if self.wire is None else compressed(inner=rule, compressor=Cast(self.wire))

    def build_problem(self, dataset: Dataset) -> Problem:
        """The problem of one agent that holds `dataset`: `num_agents` is 1, whatever its index."""
        if self.problem is None:
            raise InputError(f"the federation {self.name!r} names no problem; give the agent a module with --module")
        if self.data is not None:
            self.data.check(dataset.name, dataset.features, dataset.columns, dataset.label_values)
        return one_agent(self.problem, dataset, self.dtype)

    def use_precision(self) -> None:
        """Switch jax to double precision where the plan asks for it; before the first array is made."""
        if self.dtype == "float64":
            import jax

            jax.config.update("jax_enable_x64", True)

    def mean_samples(self, samples: Mapping[str, int]) -> float:
        """The mean number of samples of those founders who have told theirs."""
        told = [samples[member.name] for member in self.roster if member.name in samples]
        return sum(told) / len(told)

    @property
    def excused(self) -> frozenset[str]:
        """Who need not tell its samples before the first round: it is removed, and nobody waits for it until then."""
        unwaited = [change for change in self.changes if change.now or self.presence == "deadline"]
        return frozenset(change.name for change in unwaited if change.action == "remove")

    def scale_of(self, name: str, samples: int | None = None, mean: float | None = None) -> float | None:
        """By what an agent's loss is multiplied, so that agents count by their weights; None where all count the same.

        Relative to the founders' mean, so that it stays when others join or leave. Where agents are weighed by their
        samples, give the agent's and the mean; without them it is 1.
        """
        if self.weigh_by == "samples":
            return samples / mean if samples and mean else 1.0
        founders = [member.weight for member in self.roster if member.weight is not None]
        own = next(member.weight for epoch in self.epochs for member in epoch.members if member.name == name)
        return None if own is None else own * len(founders) / sum(founders)

    def change(
        self,
        round_index: int,
        action: str,
        name: str,
        address: str | None = None,
        weight: float | None = None,
        certificate: str | None = None,
        *,
        now: bool = False,
    ) -> Federation:
        """The plan with one more change of the roster from round `round_index` on, with new weights.

        Args:
          round_index: the first round with the new roster; not before the last change planned so far.
          action: "add" (with an address), "remove", or "move" (to another address).
          name: of the agent. One that was removed stays away: its state is stale.
          address: where the agent listens from then on; "outbound" where nobody can dial it.
          weight: how much a new agent counts, where the others have weights.
          certificate: the DNS name in a new agent's certificate, where the others have those of another authority.
          now: it is gone already: the rounds until then do without it (remove), or have it at its new address (move).
        """
        made = changed(self, round_index, action, name, address, weight, certificate, now=now)
        return checked(Federation, made, "the federation")

    def cancel(self, name: str) -> Federation:
        """The plan without its last change of the roster, which must be one of `name`."""
        return checked(Federation, without_last(self, name), "the federation")

    def closed(self) -> Federation:
        """The plan with a closing average, which may be asked for at any time."""
        return checked(Federation, self.model_dump(exclude_none=True) | {"closing": True}, "the federation")

    @functools.cached_property
    def urgent(self) -> tuple[Change, ...]:
        """The changes of members who were gone already: heeded at once, in rounds before theirs too."""
        return tuple(change for change in self.changes if change.now)

    def gone_at(self, round_index: int) -> frozenset[str]:
        """Who is still on the roster of a round and not waited for: gone, and removed from a later one on."""
        return frozenset(c.name for c in self.urgent if c.action == "remove" and c.round > round_index)

    @model_validator(mode="after")
    def _fits_together(self) -> Federation:
        consistency.check(self)
        return self


def _digest(tables: dict[str, Any]) -> str:
    return hashlib.sha256(json.dumps(tables, sort_keys=True, separators=(",", ":")).encode()).hexdigest()
