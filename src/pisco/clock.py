"""Seconds, as machines and links would take them: a recursion of maxima over the links that a run's coins chose.

Every agent has a clock. A gradient adds its seconds. The message of j is at i at t_j + bytes/bandwidth + latency, and i
goes on at the latest of its own time and of what it waits for: its neighbours, or the average of all who report. Time
changes no trajectory, so it is computed beside the run, from the same draws, on the host and in double precision.
"""

from __future__ import annotations

import contextlib
import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax, random

from pisco.costs import MessageSizes
from pisco.errors import InputError, check_number, choose, suggest
from pisco.networks.mixing import Circulant, Dense, Edges, Operator, by_link
from pisco.networks.network import Network
from pisco.networks.rounds import Gossip, draw, tell
from pisco.networks.schedules import Schedule
from pisco.settings import toml

__all__ = ["Clock"]

CHUNK, NUMBERS = 256, 2**20
"""Rounds of one compiled stretch, or fewer where all its links would be more numbers than this."""

PRESETS: dict[str, dict[str, Any]] = {
    "datacenter": {
        "compute": {"median": 0.01, "sigma": 0.05},
        **{"latency_gossip": 1e-4, "bandwidth_gossip": 1.25e9, "latency_server": 1e-4, "bandwidth_server": 1.25e9},
    },
    "campus": {
        "compute": {"median": 0.02, "sigma": 0.3},
        **{"latency_gossip": 1e-3, "bandwidth_gossip": 1.25e8, "latency_server": 5e-3, "bandwidth_server": 1.25e8},
    },
    "continents": {
        "compute": {"median": 0.02, "sigma": 0.3},
        "latency_gossip": {"median": 0.06, "sigma": 0.5, "jitter": 0.1},
        "bandwidth_gossip": {"median": 1.25e7, "sigma": 0.5},
        "latency_server": {"median": 0.06, "sigma": 0.5, "jitter": 0.1},
        "bandwidth_server": {"median": 1.25e7, "sigma": 0.5},
    },
    "phones": {
        "compute": {"median": 0.1, "sigma": 0.6, "jitter": 0.2},
        "latency_gossip": {"median": 0.02, "sigma": 0.5, "jitter": 0.3},
        "bandwidth_gossip": {"median": 2.5e6, "sigma": 0.7, "jitter": 0.3},
        "latency_server": {"median": 0.05, "sigma": 0.5, "jitter": 0.3},
        "bandwidth_server": {"median": 1.25e6, "sigma": 0.7, "jitter": 0.3},
    },
}
"""Round numbers of ours for the order of magnitude; measure where it matters."""


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class Quantity:
    """median·exp(sigma·z + jitter·z'): z is drawn once for an agent or a link, z' for every gradient or message."""

    median: Any
    sigma: float = field(default=0.0, metadata={"static": True})
    jitter: float = field(default=0.0, metadata={"static": True})

    @classmethod
    def of(cls, name: str, given: Any) -> Quantity:
        """From a number, several, or a table of a median and its spread."""
        if isinstance(given, Quantity):
            return given
        table = dict(given) if isinstance(given, Mapping) else {"median": given}
        for key in table.keys() - {f.name for f in fields(cls)} or {"median"} - table.keys():
            raise InputError(f"{name} is {given!r}, expected a number, a list, or a table of median, sigma and jitter")
        for key in table.keys() - {"median"}:
            check_number(f"the {key} of {name}", table[key], low=0, high=10)
        try:
            values = np.asarray(table.pop("median"), np.float64)
        except (TypeError, ValueError):
            raise InputError(f"{name} is {given!r}, expected a number, a list or a matrix of numbers") from None
        speed = name.startswith("bandwidth")  # it may be infinite, and may not be zero
        if not (values > 0 if speed else (values >= 0) & np.isfinite(values)).all():
            wrong = values[~(values > 0 if speed else (values >= 0) & np.isfinite(values))].flat[0]
            raise InputError(f"{name} has a {wrong:g}, expected numbers {'above 0' if speed else 'of at least 0'}")
        return cls(values, **{key: float(value) for key, value in table.items()})


@dataclass(frozen=True, kw_only=True, eq=False)
class Clock:
    """How long things take: what `pisco.run(clock=…)` counts `history["seconds"]` with.

    Each is a number, a list with one for every agent (of a link between agents: of those who send), for links between
    agents a matrix [sender, receiver], or a table `{"median": …, "sigma": …, "jitter": …}` of a lognormal
    distribution: `sigma` is the spread between agents or links, `jitter` that from one time to the next.

    Args:
      compute: seconds of one gradient.
      latency_gossip: seconds of a message between agents, whatever its size.
      bandwidth_gossip: bytes a second of a link between agents.
      latency_server: seconds of a message to or from the server.
      bandwidth_server: bytes a second of an agent's link to the server, either way.

    >>> import pisco
    >>> problem = pisco.problems.quadratic([[[1.0]], [[1.0]]], [[0.0], [2.0]])
    >>> clock = pisco.Clock(compute=[1, 10], latency_gossip=0.5)
    >>> net, rule = pisco.Network.path(2), pisco.algorithms.dsgd(local_lr=0.1)
    >>> pisco.run(rule, problem, net, rounds=3, clock=clock).history["seconds"]
    array([ 0. , 10.5, 21. , 31.5])
    """

    compute: Any = 0.0
    latency_gossip: Any = 0.0
    bandwidth_gossip: Any = math.inf
    latency_server: Any = 0.0
    bandwidth_server: Any = math.inf

    def __post_init__(self) -> None:
        for f in fields(self):
            object.__setattr__(self, f.name, Quantity.of(f.name, getattr(self, f.name)))

    @classmethod
    def of(cls, given: Clock | str | Path | Mapping[str, Any]) -> Clock:
        """From a preset's name, a JSON or TOML file, or a table of the fields, of which a preset or file gives the rest.

        >>> Clock.of({"preset": "campus", "compute": 0.5}).latency_gossip.median
        array(0.001)
        """
        if isinstance(given, Clock):
            return given
        if isinstance(given, str | Path):
            given = {"file" if Path(given).suffix else "preset": given}
        if not isinstance(given, Mapping):
            raise InputError(f"clock is {given!r}, expected a pisco.Clock, a preset's name, a file or a table")
        table, known = dict(given), [f.name for f in fields(cls)]
        base = dict(choose("clock", table.pop("preset"), PRESETS)) if "preset" in table else {}
        if "file" in table:
            base |= _read(Path(table.pop("file")))
        for name in table.keys() | base.keys():
            if name not in known:
                raise InputError(f"clock.{name} is not a setting; {suggest(name, [*known, 'preset', 'file'])}")
        return cls(**(base | table))

    def facts(self) -> dict[str, Any]:
        """As numbers, lists and tables: what a file may hold."""
        out = {}
        for f in fields(self):
            each = getattr(self, f.name)
            spread = {name: getattr(each, name) for name in ("sigma", "jitter") if getattr(each, name)}
            median = np.asarray(each.median).tolist()
            out[f.name] = {"median": median} | spread if spread else median
        return out

    def check(self, agents: int) -> None:
        """Refuse lists that are not one number for each agent."""
        for f in fields(self):
            shape = np.shape(getattr(self, f.name).median)
            if shape not in [(), (agents,), (agents, agents)][: 3 if f.name.endswith("gossip") else 2]:
                size = " by ".join(map(str, shape))
                raise InputError(f"{f.name} has {size} numbers, expected one, or one for each of the {agents} agents")


def _read(path: Path) -> dict[str, Any]:
    if path.suffix != ".json":
        return toml.read(path)
    try:
        return dict(json.loads(path.read_text()))
    except (OSError, ValueError, TypeError) as error:
        raise InputError(f"cannot read the clock {path} ({error}); give a JSON or TOML file of its fields") from error


class _Heard(NamedTuple):
    """Who hears whom: sources by agent, or one list with targets; and which of these links are there."""

    sources: Any
    targets: Any
    there: Any


def _heard(operator: Operator, agents: int) -> _Heard:
    everyone = jnp.arange(agents)
    if isinstance(operator, Edges):
        alike = operator.sources == operator.targets
        return _Heard(operator.sources, operator.targets, (operator.weights != 0) & ~alike)
    if isinstance(operator, Dense):
        sources, weights = jnp.broadcast_to(everyone, (agents, agents)), operator.matrix
    elif isinstance(operator, Circulant):
        sources, weights = (everyone[:, None] - jnp.asarray(operator.shifts)) % agents, operator.coefficients
    else:
        sources, weights = operator.neighbours, operator.weights
    return _Heard(sources, None, (weights != 0) & (sources != everyone[:, None]))


def _no_loss() -> Any:
    raise InputError("the server's schedule depends on the loss, so a clock cannot follow it; leave out one of them")


@partial(jax.jit, static_argnames=("agents", "start", "varying"))
def _draws(server: Any, coins: Any, links: Any, gossip: Gossip, rounds: Any, *, agents: int, start: bool, varying: bool):
    """Who reaches the server, who reports, and who hears whom, in every round; at the `start` too."""

    def one(k):
        drawn = draw(gossip, server.decide((), coins, k, _no_loss)[0], links, k)
        told, operator = tell(drawn, agents), gossip.rule.draw(links, k)[0] if start else drawn.operator
        return told.server, told.participates & told.server, _heard(operator, agents) if varying else None

    return jax.vmap(one)(rounds)


class _Exchange(NamedTuple):
    """An exchange of a round, and the gradients before it."""

    work: int
    kind: str  # "mix" as the round's coin has it; "server" and "gossip" at the start; "" is none
    up: int = 0
    down: int = 0


@partial(jax.jit, static_argnames=("exchanges", "steps", "before_server", "split"))
def _advance(times, clock: dict[str, Quantity], keys, rounds, draws, fixed: _Heard | None, *, exchanges, steps, before_server, split):
    """The agents' clocks after these rounds, and the latest after each, for every run."""

    def one(times, key, draws):
        agents = times.shape[0]

        def settled(name: str, links: _Heard | None = None) -> Any:
            """The quantity of every agent, or of these links: all but what changes from one time to the next."""
            each = clock[name]
            own, median = random.fold_in(key, 2 * FIELDS.index(name)), jnp.asarray(each.median)
            if links is None:
                z = random.normal(own, (agents,)) if each.sigma else 0.0
                return jnp.broadcast_to(median * jnp.exp(each.sigma * z), (agents,))
            ends = links.sources, jnp.arange(agents)[:, None] if links.targets is None else links.targets
            first, second = (jnp.broadcast_to(of(*ends), ends[0].shape) for of in (jnp.minimum, jnp.maximum))
            along = jax.vmap(lambda a, b: random.normal(random.fold_in(random.fold_in(own, a), b)))  # either way alike
            z = along(first.ravel(), second.ravel()).reshape(first.shape) if each.sigma else 0.0
            return (median[ends[: median.ndim]] if median.ndim else median) * jnp.exp(each.sigma * z)

        def jitter(name: str, *shape: int) -> Any:
            """A factor for every round and time, drawn for all rounds at once; None where there is none."""
            each, own = clock[name], random.fold_in(key, 2 * FIELDS.index(name) + 1)
            of_round = jax.vmap(lambda k: random.normal(random.fold_in(own, k + 1), shape, jnp.float32))
            return jnp.exp(each.jitter * of_round(rounds)) if each.jitter else None

        served, reports, varying = draws
        links = (fixed or varying).sources.shape[0 if fixed else 1 :]
        sent = sum(bool(each.kind) for each in exchanges)
        noise = {name: jitter(name, sent, max(steps, 1), *links) for name in FIELDS[1:3]}
        noise |= {name: jitter(name, sent, 2, agents) for name in FIELDS[3:]}
        noise["compute"] = jitter("compute", sum(each.work for each in exchanges), agents)
        own = {name: settled(name) for name in ("compute", *FIELDS[3:])}
        known = None if fixed is None else {name: settled(name, fixed) for name in FIELDS[1:3]}

        def one_round(t, now):
            (served, reports, varying), noise = now
            heard, took = fixed or varying, 0
            value = own | (known or {name: settled(name, heard) for name in FIELDS[1:3]})

            def of(name, *at):
                return value[name] if noise[name] is None else value[name] * noise[name][at]

            def gossip(t, at, step, size):
                delay = of("latency_gossip", at, step) + size / of("bandwidth_gossip", at, step)
                arrival = jnp.where(heard.there, t[heard.sources] + delay, -jnp.inf)
                if heard.targets is None:
                    return jnp.maximum(t, arrival.max(axis=1, initial=-jnp.inf))
                return jnp.maximum(t, jax.ops.segment_max(arrival, heard.targets, num_segments=agents))

            for at, each in enumerate(exchanges):
                spent = each.work * value["compute"]
                if noise["compute"] is not None:
                    spent = (value["compute"] * noise["compute"][took : took + each.work]).sum(axis=0)
                t, took = t + spent, took + each.work
                to_server = {"server": jnp.ones_like(served), "gossip": jnp.zeros_like(served)}.get(each.kind, served)
                if each.kind in ("mix", "gossip"):
                    gossiped = t
                    for step in range(steps if each.kind == "mix" else 1):
                        gossiped = gossip(gossiped, at, step, each.up)
                    # In a split round those at the server have no links.
                    t = gossiped if split or before_server else jnp.where(to_server, t, gossiped)
                if each.kind in ("mix", "server"):
                    up, down = (
                        of("latency_server", at, way) + size / of("bandwidth_server", at, way)
                        for way, size in enumerate((each.up, each.down))
                    )
                    heard_from = reports if each.kind == "mix" else to_server
                    average = jnp.where(heard_from, t + up, -jnp.inf).max()
                    t = jnp.where(to_server, jnp.maximum(t, average + down), t)
            return t, t.max()

        return lax.scan(one_round, times, (draws, noise))

    return jax.vmap(one, (0, 0, 0))(times, keys, draws)


FIELDS = tuple(f.name for f in fields(Clock))


class Stopwatch:
    """The seconds of every run of a job after any of its rounds; nothing of it is in a checkpoint, it starts anew.

    `keys` has the streams of every run: `coins`, `links` and `clock`, the time's own.
    """

    def __init__(
        self, clock: Clock, network: Network, servers: Sequence[Schedule], keys: Sequence[Any], sizes: MessageSizes
    ):
        clock.check(network.num_agents)
        for server in servers[:1]:
            if jax.tree.leaves(server.start()):
                raise InputError(
                    f"server={server!r} depends on the run, so a clock cannot follow it; leave out one of them"
                )
        self.clock, self.network = {name: getattr(clock, name) for name in FIELDS}, network
        self.runs, self.keys = list(zip(servers, keys, strict=True)), jnp.stack([key.clock for key in keys])
        steady, incoming = network.varying is None and not network.splits_rounds, network.weights.T.tocsr()
        incoming.setdiag(0)
        incoming.eliminate_zeros()
        self.fixed = _heard(by_link(incoming), network.num_agents) if steady else None
        exchanges = zip(sizes.work, sizes.sent, sizes.whole, strict=False)
        self.exchanges = (*(_Exchange(w, "mix", up, down) for w, up, down in exchanges), _Exchange(sizes.work[-1], ""))
        sent = {"server": iter(sizes.start_server), "gossip": iter(sizes.start_gossip)}
        begin = [(work, kind, next(sent[kind])) for work, kind in zip(sizes.start_work, sizes.start_kinds, strict=False)]
        begin = (*(_Exchange(w, kind, size, size) for w, kind, size in begin), _Exchange(sizes.start_work[-1], ""))
        self.times: Any = np.zeros((len(keys), network.num_agents))
        links = network.weights.nnz + network.graph.num_edges + network.num_agents
        self.chunk = int(np.clip(NUMBERS // (links * len(keys)), 1, CHUNK))
        self.done, self.latest = 0, self._next(begin, np.zeros(1, np.int32), start=True)
        self.known = {0: self.latest[:, 0]}

    def at(self, rounds: Sequence[int]) -> np.ndarray:
        """The seconds after each of these rounds, runs first."""
        for k in sorted(set(rounds) - self.known.keys()):
            while k > self.done:
                self.latest = self._next(self.exchanges, self.done + np.arange(self.chunk, dtype=np.int32))
                self.done += self.chunk
            self.known[k] = self.latest[:, k - self.done - 1]
        return np.stack([self.known[k] for k in rounds], axis=1)

    def _next(self, exchanges: tuple[_Exchange, ...], rounds: np.ndarray, *, start: bool = False) -> np.ndarray:
        network, gossip = self.network, self.network.gossip
        how: Any = {"agents": network.num_agents, "start": start, "varying": self.fixed is None}
        with _host():
            # In the user's precision and run by run, as the engines draw: coins are the same to the last bit.
            drawn = [_draws(server, key.coins, key.links, gossip, rounds, **how) for server, key in self.runs]
            draws = jax.tree.map(lambda *leaves: jnp.stack(leaves), *drawn)
            how = {"steps": gossip.steps, "before_server": gossip.before_server, "split": network.splits_rounds}
            with jax.enable_x64(True):
                given = self.times, self.clock, self.keys, rounds - start, draws, self.fixed
                self.times, latest = _advance(*given, exchanges=exchanges, **how)
        return np.asarray(latest)


def _host() -> Any:
    """The processor, where time is computed beside an accelerator; the default device where it cannot be had."""
    with contextlib.suppress(RuntimeError):
        return jax.default_device(jax.local_devices(backend="cpu")[0])
    return contextlib.nullcontext()
