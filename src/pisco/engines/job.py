"""What an engine is asked to do: one or more runs of one program, and how rounds are cut into chunks."""

from __future__ import annotations

import dataclasses
import hashlib
import math
import re
from dataclasses import dataclass
from functools import cached_property
from typing import Any, NamedTuple, Protocol

import jax
import numpy as np

from pisco.display import plural
from pisco.engines.process_group import ProcessGroup
from pisco.errors import InputError, check_batch_size, check_number
from pisco.guarding.watch import Names
from pisco.networks.network import Network
from pisco.networks.rounds import Gossip, Links
from pisco.networks.schedules import Schedule
from pisco.problems.problem import Problem
from pisco.seeds import seed_key, streams
from pisco.tree import stack_agents
from pisco.types import Algorithm, StartMix


class Run(NamedTuple):
    """One trajectory: what may differ between the runs of a job. All of it is traced."""

    algorithm: Algorithm
    server: Schedule
    seed: Any  # a whole number; inside a program, the streams made of it


class Carry(NamedTuple):
    """What goes from round to round: the algorithm's state, and what schedule, presence and guards remember."""

    state: Any
    memory: Any
    attendance: Any = ()
    names: Any = ()  # whom guards have named


MOST_SEED = 2**32 - 1

_KINDS = {
    "algorithm": (Algorithm, "pisco.algorithms.dsgd(local_lr=0.1)"),
    "problem": (Problem, 'pisco.problems.logistic(pisco.data.load("a9a"), agents=10)'),
    "network": (Network, "pisco.Network.ring(10)"),
}


def check_kinds(**given: Any) -> None:
    """Refuse what is no algorithm, problem or network (given in another order, say), or has other agents."""
    for name, value in given.items():
        kind, example = _KINDS[name]
        if not isinstance(value, kind):
            raise InputError(f"{name} is {value!r}, expected one such as {example}")
    counted = [given[name].num_agents for name in ("problem", "network") if name in given]
    if len(set(counted)) > 1:
        has = plural(counted[0], "agent")
        raise InputError(f"the problem has {has} and the network {counted[1]}; give both the same number")


def attendance(network: Network, *, rounds: int, seed: int = 0) -> np.ndarray:
    """Who is present in every round of a run with this seed, a row a round: what `pisco.from_log` reads back."""
    check_kinds(network=network)
    check_number("rounds", rounds, low=0, integer=True)
    check_number("seed", seed, low=0, high=MOST_SEED, integer=True)
    presence, key = network.presence, streams(seed_key(seed)).presence
    if presence is None:
        return np.ones((int(rounds), network.num_agents), bool)

    def one(memory: Any, k: Any) -> tuple[Any, Any]:
        return presence.decide(memory, key, k)[::-1]

    return np.asarray(jax.lax.scan(one, presence.start(network.num_agents), np.arange(rounds, dtype=np.int32))[1])


@dataclass(frozen=True)
class Job:
    """Runs that share a problem, a graph and everything static."""

    problem: Problem
    network: Network
    runs: tuple[Run, ...]
    batch_size: int | None = None

    def __post_init__(self) -> None:
        check_kinds(problem=self.problem, network=self.network)
        check_batch_size(self.batch_size)
        if self.batch_size is not None:
            object.__setattr__(self, "batch_size", int(self.batch_size))
            if self.batch_size > self.problem.min_size:
                raise InputError(
                    f"batch_size is {self.batch_size}, but an agent has only {plural(self.problem.min_size, 'sample')}"
                    '; use a smaller batch, or batch_size=None (in files "full") for all of them'
                )
        elif self.problem.renews and self.problem.min_size != self.problem.max_size:
            raise InputError("a loss with buffers needs whole batches, and agents' sizes differ; give a batch_size")
        if not self.runs:
            raise InputError("there is nothing to run; give at least one seed")
        structures = {jax.tree.structure((run.algorithm, run.server)) for run in self.runs}
        if len(structures) > 1:
            raise InputError("runs of one job must differ in numbers only (step sizes, probabilities, seeds)")
        # A structure has one method; its needs may hold for some of the schedules only.
        for run in {repr(run.server): run for run in self.runs}.values():
            check_needs(run.algorithm, self.network.with_server(run.server))
        for run in self.runs:
            check_number("seed", run.seed, low=0, high=MOST_SEED, integer=True)
        held = [] if self.problem.draws_start else jax.tree.leaves(self.problem.start)
        if any(leaf.dtype != jax.dtypes.canonicalize_dtype(leaf.dtype) for leaf in held):
            raise InputError(
                "the problem was made in 64 bits, which are switched off now; run it where it was made, as in "
                "`with jax.enable_x64(True):`"
            )

    @cached_property
    def description(self) -> dict[str, Any]:
        """What identifies this job, readable; a checkpoint of another job is refused by it."""
        start, draws, weights = self.problem.start, self.problem.draws_start, self.network.weights
        who, push = (self.network.sampling, self.network.presence, self.network.guard), self.network.push
        who = who if push is None else (*who, push.data, push.indices, push.indptr)
        varying = None if self.network.varying is None else self.network.gossip.rule
        rules = ([run.server for run in self.runs], varying, self.network.presence, self.network.guard)
        data = self.problem.data.fingerprint() if self.problem.streams else self.problem.data
        privacy = self.problem.privacy
        private = {} if privacy is None else {"privacy": f"{privacy} {_digest(self.problem.protection)}"}
        return {
            "algorithm": [_without_address(run.algorithm) for run in self.runs],
            "server": [_without_address(run.server) for run in self.runs],
            "seeds": [int(run.seed) for run in self.runs],
            "batch_size": self.batch_size,
            "problem": self.problem.name,
            "loss": identity_of(self.problem.loss),
            "start": identity_of(start) if draws else _digest(start),
            "parts": self.problem.kinds and f"{self.problem.kinds} {_digest(self.problem.frozen)}",
            "transform": self.problem.transform and identity_of(self.problem.transform),
            "metrics": [metric.column for metric in self.problem.metrics],
            "eval_samples": self.problem.eval_samples,
            "data": _digest(data, self.problem.sizes, self.problem.scales),
            "network": _without_address(self.network.with_server(self.runs[0].server)),
            "network in detail": _digest(_without_address(jax.tree.structure(rules)), rules),
            "weights": _digest(weights.data, weights.indices, weights.indptr, who),
        } | private


def check_needs(algorithm: Algorithm, network: Network) -> None:
    """Refuse a method on a network that it cannot run on, with one sentence."""
    needs, server = algorithm.needs, network.server
    absent = network.presence is not None
    if absent and (needs.server_every_round or needs.constant_map):
        raise InputError(
            f"{algorithm.name} needs everybody in every round, as absent agents would come back with an old state; "
            "drop presence, or take another method"
        )
    if network.guard is not None and (needs.steady_links or needs.constant_map):
        raise InputError(
            f"{algorithm.name} sends sums over rounds, which a guard cannot judge; drop guard={network.guard!r}"
        )
    if network.guard is not None and network.guard.reports and algorithm.rebase is None:
        raise InputError(
            f"{algorithm.name} cannot go on without a member that is left off; use a guard with reports=0, which never "
            "leaves one off"
        )
    if needs.server_every_round and server.probability != 1.0:
        raise InputError(f"{algorithm.name} needs the server in every round; use server=always(), not {server!r}")
    if needs.doubly_stochastic and not network.keeps_mean:
        raise InputError(
            f"{algorithm.name} needs rounds that keep the agents' mean, which sampled reports do not; drop `sampling` "
            '(in files `reporters`), or let a sample of equal shares keep its average to itself (receivers="sampled")'
        )
    if network.push is not None and needs.doubly_stochastic and not needs.one_way:
        raise InputError(
            f"{algorithm.name} needs weights that keep the agents' mean, which one-way links do not have; use pisco or "
            "push-pull, or a graph whose links go both ways"
        )
    if network.to_sampled and (needs.server_every_round or needs.constant_map or needs.steady_links):
        raise InputError(
            f"{algorithm.name} needs everybody to hear the server's average, or what agents hold of it goes stale; "
            'use receivers="all"'
        )
    if needs.steady_links and (network.varying is not None or network.splits_rounds):
        raise InputError(
            f"{algorithm.name} depends on messages of earlier rounds, which go stale when links come and go; "
            "use fixed weights and a schedule that is the same for all agents"
        )
    if needs.constant_map and server.probability not in (0.0, 1.0):
        raise InputError(f"{algorithm.name} needs the same map in every round; use never() or always(), not {server!r}")


def carry_shapes(job: Job, num_agents: int | None = None) -> Carry:
    """Shapes and dtypes of one run's carry, without computing anything; as if there were `num_agents`."""
    problem, run = job.problem, job.runs[0]
    count = problem.num_agents if num_agents is None else num_agents

    def start(key):
        params = stack_agents(problem.init(key), count)
        silent = StartMix(lambda tree: tree, lambda tree: tree)
        state = run.algorithm.init(params, key, lambda params, key: params, silent)
        return Carry(state, run.server.start(), *first_memories(job.network, problem.num_agents))

    made = jax.eval_shape(start, seed_key(0))
    if not hasattr(made.state, "params"):
        kind = type(made.state).__name__
        raise InputError(
            f"init of {run.algorithm.name} returns a {kind} without `params`; make it a field of the state"
        )
    return made


def first_memories(links: Network | Gossip, num_agents: int) -> tuple[Any, Any]:
    """What presence and guards remember before the first round."""
    attendance = () if links.presence is None else links.presence.start(num_agents)
    return attendance, () if links.guard is None else Names.nobody(num_agents)


def identity_of(function: Any) -> str:
    """What tells one loss or start from another, the same in every process: its fields, else its name."""
    if dataclasses.is_dataclass(function):
        return _without_address(function)
    return getattr(function, "__qualname__", type(function).__qualname__)


def _without_address(value: Any) -> str:
    return re.sub(r" at 0x[0-9a-f]+", "", repr(value))


def _digest(*trees: Any) -> str:
    sha = hashlib.sha256()
    for leaf in jax.tree.leaves(trees):
        array = np.ascontiguousarray(leaf)
        sha.update(f"{array.dtype}{array.shape}".encode())
        sha.update(array.view(np.uint8).reshape(-1).data)
    return sha.hexdigest()[:16]


class Segment(NamedTuple):
    """Rounds that run without coming back to Python: `evals` stretches of `stride` rounds."""

    evals: int
    stride: int
    measured: bool  # measure after every stretch

    @property
    def rounds(self) -> int:
        return self.evals * self.stride


def next_segment(done: int, rounds: int, eval_every: int, chunk: int) -> Segment:
    """The segment after `done` rounds: measurements fall on multiples of `eval_every` and on the last round.

    >>> next_segment(0, 1000, 10, 100), next_segment(990, 995, 10, 100), next_segment(0, 5000, 5000, 100)
    (Segment(evals=10, stride=10, measured=True), Segment(evals=1, stride=5, measured=True),
     Segment(evals=1, stride=100, measured=False))
    """
    left = rounds - done
    to_measure = min(eval_every - done % eval_every, left)
    if to_measure > chunk:
        return Segment(1, chunk, measured=False)
    if to_measure < eval_every:
        return Segment(1, to_measure, measured=True)
    return Segment(min(left // eval_every, max(1, chunk // eval_every)), eval_every, measured=True)


def even_chunk(rounds: int, eval_every: int, chunk: int) -> int:
    """A chunk near the one asked for that divides the run evenly, so that fewer programs are compiled.

    >>> even_chunk(1000, 1, 300)
    250
    """
    if eval_every > chunk:
        return chunk
    total, most = max(1, rounds // eval_every), max(1, chunk // eval_every)
    best = max(d for d in range(1, most + 1) if total % d == 0)
    return (best if best >= math.ceil(most / 2) else most) * eval_every


class Engine(Protocol):
    """How rounds are run. `states` is the engine's own form; `pack` and `unpack` stack runs on a leading axis."""

    name: str
    group: ProcessGroup

    def start(self, job: Job) -> Any: ...

    def measure(self, job: Job, states: Any) -> dict[str, np.ndarray]: ...

    def advance(
        self, job: Job, states: Any, done: int, segment: Segment
    ) -> tuple[Any, dict[str, np.ndarray], Links]: ...

    def pack(self, states: Any) -> Any: ...

    def unpack(self, job: Job, packed: Any) -> Any: ...
