"""The seconds of a run: a recursion of maxima over the links that its coins chose.

Every agent has a clock. A gradient adds its seconds. The message of j is at i at t_j + bytes/bandwidth + latency. Then
i goes on at the latest of its own time and of what it waits for: its neighbours, or the average of all who report.
(Where messages are asked for, none leaves before the question is there, and the server asks when it is first asked.)
Time changes no trajectory. So it is computed beside the run, from the same draws, on the host and in double precision.
What a schedule decides that watches the loss cannot be drawn again: that is taken from the run.
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax, random

from pisco.clock.clock import Clock, Quantity
from pisco.costs import MessageSizes
from pisco.errors import InputError
from pisco.networks.mixing import PRODUCT_UP_TO, Circulant, Dense, Edges, Operator, by_link
from pisco.networks.network import Network
from pisco.networks.rounds import Gossip, draw, tell
from pisco.networks.schedules import watches_loss
from pisco.seeds import seed_key, streams

if TYPE_CHECKING:
    from pisco.engines.job import Run

CHUNK, NUMBERS = 256, 2**20
"""Rounds of one compiled stretch, or fewer where all its links would be more numbers than this."""

OWN = ("compute", "latency_server", "bandwidth_server")
LINKS = ("latency_gossip", "bandwidth_gossip")


class _Heard(NamedTuple):
    """Who hears whom: sources by agent, or one list with targets; and which of these links are there."""

    sources: Any
    targets: Any
    there: Any


def _heard(operator: Operator, agents: int) -> _Heard:
    own, targets = jnp.arange(agents)[:, None], None
    if isinstance(operator, Edges):
        own = targets = operator.targets
        sources, weights = operator.sources, operator.weights
    elif isinstance(operator, Dense):
        sources, weights = jnp.broadcast_to(own.T, (agents, agents)), operator.matrix
    elif isinstance(operator, Circulant):
        sources, weights = (own - jnp.asarray(operator.shifts)) % agents, operator.coefficients
    else:
        sources, weights = operator.neighbours, operator.weights
    return _Heard(sources, targets, (weights != 0) & (sources != own))


@partial(jax.jit, static_argnames=("agents", "start", "varying"))
def _draws(
    run: Any, memory: Any, seen: Any, gossip: Gossip, rounds: Any, *, agents: int, start: bool, varying: bool
) -> Any:
    """Who reaches the server, who reports, who is present and who hears whom, in every round; at the `start` too.

    `seen` are the rounds that were seen to reach the server; None: the schedule says.
    """
    (server, keys), present, (attendance, kept) = run, None, memory
    if gossip.presence is not None and not start:
        decide = gossip.presence.decide
        attendance, present = lax.scan(lambda memory, k: decide(memory, keys.presence, k)[::-1], attendance, rounds)

    def coin(memory, k):
        return server.decide(memory, keys.coins, k, lambda: jnp.zeros(()))[::-1]

    if seen is not None:
        reached = seen
    elif jax.tree.leaves(kept) and not start:
        kept, reached = lax.scan(coin, kept, rounds)
    else:
        reached = jax.vmap(lambda k: coin(kept, k)[1])(rounds)

    def one(k, present, reached):
        drawn = draw(gossip, reached, keys.links, k, present)
        told, operator = tell(drawn, agents), gossip.rule.draw(keys.links, k)[0] if start else drawn.operator
        heard = _heard(operator, agents) if varying else None
        return told.server, told.participates & told.server, present, heard

    return (attendance, kept), jax.vmap(one)(rounds, present, reached)


class _Exchange(NamedTuple):
    """The gradients before an exchange, and its bytes; the last of a round is none, and has only gradients."""

    work: int
    kind: str = ""  # "mix" as the round's coin has it; at the start "server" or "gossip"
    sent: int = 0
    down: int = 0
    up: int = 0  # to the server


class _Round(NamedTuple):
    """What a round does."""

    exchanges: tuple[_Exchange, ...]
    steps: int
    gossips_always: bool  # also before the server's average, or among those whom it leaves out
    asked: bool


@partial(jax.jit, static_argnames="do")
def _advance(times: Any, clock: dict[str, Quantity], keys: Any, rounds: Any, draws: Any, fixed: Any, *, do: _Round):
    """The agents' clocks after these rounds, and the latest after each, for every run."""

    def one(times, key, draws):
        agents, (between, at_times) = times.shape[0], random.split(key)

        def settled(names: tuple[str, ...], z: Callable[[], Any], median: Callable[[Any], Any]) -> dict[str, Any]:
            """All but what changes from one time to the next; `z()` gives normal numbers for each name."""
            rows = z() if any(clock[name].sigma for name in names) else [0.0] * len(names)
            factors = {name: jnp.exp(clock[name].sigma * row) for name, row in zip(names, rows, strict=True)}
            return {name: median(jnp.asarray(clock[name].median)) * factor for name, factor in factors.items()}

        def of_links(heard: _Heard) -> dict[str, Any]:
            ends = heard.sources, jnp.arange(agents)[:, None] if heard.targets is None else heard.targets
            both = [jnp.broadcast_to(of(*ends), ends[0].shape).ravel() for of in (jnp.minimum, jnp.maximum)]

            def z():  # of a link, whichever way: so of its ends in order
                along = jax.vmap(lambda a, b: random.normal(random.fold_in(random.fold_in(between, a), b), (2,)))
                return along(*both).T.reshape(2, *ends[0].shape)

            return settled(LINKS, z, lambda median: median[ends[: median.ndim]] if median.ndim else median)

        own = settled(OWN, lambda: random.normal(between, (3, agents)), lambda m: jnp.broadcast_to(m, (agents,)))
        known = None if fixed is None else of_links(fixed)
        # What changes: factors for all rounds and times, drawn at once; none where there is no jitter.
        links = draws[-1].sources.shape[1:] if fixed is None else fixed.sources.shape
        sent, work = (sum(count) for count in zip(*((bool(e.kind), e.work) for e in do.exchanges), strict=True))
        shapes = dict.fromkeys(OWN, (sent, 2, agents)) | {name: (sent, max(do.steps, 1), *links) for name in LINKS}
        shapes = {name: shape for name, shape in (shapes | {"compute": (work, agents)}).items() if clock[name].jitter}
        ends = [0, *np.cumsum([math.prod(shape) for shape in shapes.values()], dtype=int)]
        z = jax.vmap(lambda k: random.normal(random.fold_in(at_times, k + 1), (ends[-1],), jnp.float32))(rounds)
        noise = {
            name: jnp.exp(clock[name].jitter * z[:, ends[i] : ends[i + 1]].reshape(len(rounds), *shape))
            for i, (name, shape) in enumerate(shapes.items())
        }

        def one_round(t, now):
            served, reports, present, varying, noise = now
            heard, took = varying if fixed is None else fixed, 0
            value = own | (known or of_links(heard))
            if present is not None:  # the absent neither compute nor send nor wait
                to = present[:, None] if heard.targets is None else present[heard.targets]
                heard = heard._replace(there=heard.there & present[heard.sources] & to)

            def delays(kind, size, *at):
                """Of a message, and of a question without a size."""
                latency, bandwidth = (
                    value[name] * noise[name][at] if name in noise else value[name]
                    for name in (f"latency_{kind}", f"bandwidth_{kind}")
                )
                return latency + size / bandwidth, latency

            for at, each in enumerate(do.exchanges):
                spent = each.work * value["compute"]
                if "compute" in noise:
                    spent = (value["compute"] * noise["compute"][took : took + each.work]).sum(axis=0)
                t, took = t + (spent if present is None else present * spent), took + each.work
                to_server = served if each.kind in ("mix", "") else jnp.full(agents, each.kind == "server")
                before = t
                for step in range({"mix": do.steps, "gossip": 1}.get(each.kind, 0)):
                    leaves, (delay, latency) = t[heard.sources], delays("gossip", each.sent, at, step)
                    if do.asked:
                        asker = t[:, None] if heard.targets is None else t[heard.targets]
                        leaves = jnp.maximum(leaves, asker + latency)
                    arrival = leaves + delay
                    arrival = jnp.where(heard.there, arrival, -jnp.inf)
                    if heard.targets is None:
                        t = jnp.maximum(t, arrival.max(axis=1, initial=-jnp.inf))
                    else:
                        t = jnp.maximum(t, jax.ops.segment_max(arrival, heard.targets, num_segments=agents))
                t = t if do.gossips_always else jnp.where(to_server.any(), before, t)
                if each.kind in ("mix", "server"):
                    heard_from = reports if each.kind == "mix" else to_server
                    leaves, (delay, latency) = t, delays("server", each.up, at, 0)
                    if do.asked:
                        leaves = jnp.maximum(t, jnp.where(to_server, t + latency, jnp.inf).min() + latency)
                    average = jnp.where(heard_from, leaves + delay, -jnp.inf).max()
                    delay, latency = delays("server", each.down, at, 1)
                    if do.asked:
                        average = jnp.maximum(average, t + latency)
                    t = jnp.where(to_server, jnp.maximum(t, average + delay), t)
            return t, t.max()

        return lax.scan(one_round, times, (*draws, noise))

    return jax.vmap(one)(times, keys, draws)


class Stopwatch:
    """The seconds of every run of a job after any of its rounds. Nothing of it is in a checkpoint: it starts at 0."""

    def __init__(self, clock: Clock, network: Network, runs: Sequence[Run], sizes: MessageSizes):
        clock.check(network.num_agents)
        self.watches = watches_loss(runs[0].server)
        if self.watches and network.splits_rounds:
            raise InputError(
                "the server's schedule decides for each agent from the loss, and such a run does not keep who reached "
                "the server; leave out the clock, or let the schedule decide for all agents at once"
            )
        self.clock, self.asked, self.network = clock.quantities, clock.asked, network
        self.runs = [(run.server, streams(seed_key(run.seed))) for run in runs]
        self.keys = jnp.stack([keys.clock for _, keys in self.runs])
        presence = network.gossip.presence
        attendance = () if presence is None else presence.start(network.num_agents)
        self.memory = [(attendance, run.server.start()) for run in runs]
        incoming = network.weights.T.tocsr()
        incoming.setdiag(0)
        incoming.eliminate_zeros()
        steady = network.varying is None and not network.splits_rounds
        # Few agents as a square, whose programs do for every graph; but what jitters is drawn link by link.
        square = network.num_agents <= PRODUCT_UP_TO and not any(self.clock[name].jitter for name in LINKS)
        linked = Dense(jnp.asarray(incoming.toarray())) if square else by_link(incoming)
        self.fixed = _heard(linked, network.num_agents) if steady else None
        # Work has one more.
        mixes = zip(sizes.work, sizes.sent, sizes.whole, sizes.words or sizes.sent, strict=False)
        self.exchanges = (*(_Exchange(work, "mix", *size) for work, *size in mixes), _Exchange(sizes.work[-1]))
        server = zip(sizes.start_server, sizes.start_words or sizes.start_server, strict=True)
        sent, begins = {"server": server, "gossip": zip(sizes.start_gossip, sizes.start_gossip, strict=True)}, []
        for work, kind in zip(sizes.start_work, sizes.start_kinds, strict=False):
            size, up = next(sent[kind])
            begins.append(_Exchange(work, kind, size, size, up))
        self.times: Any = np.zeros((len(runs), network.num_agents))
        numbers = len(runs) * (incoming.nnz + network.num_agents)
        self.done, self.chunk = 0, max(1, min(CHUNK, NUMBERS // numbers))
        self.latest = self._next((*begins, _Exchange(sizes.start_work[-1])), np.zeros(1, np.int32), start=True)
        self.known = {0: self.latest[:, 0]}

    def at(self, rounds: Sequence[int], reached: np.ndarray | None = None) -> np.ndarray:
        """The seconds after each of these rounds, runs first; later calls ask for the same ones, or later ones.

        `reached` says of every run's rounds so far which ones reached the server, where the schedule watches the loss.
        """
        if self.watches and reached is None:
            raise InputError(
                "the server's schedule watches the loss; give `reached`, the rounds that reached the server"
            )
        seen = reached if self.watches else None
        for k in sorted(set(rounds) - self.known.keys()):
            while k > self.done:  # whole chunks, so that one program does for all
                before, chunk = (self.times, self.memory), self.done + np.arange(self.chunk, dtype=np.int32)
                ahead = None if seen is None else seen[:, self.done : self.done + self.chunk]
                self.latest = self._next(self.exchanges, chunk, ahead)
                if ahead is not None and ahead.shape[1] < self.chunk:  # what is beyond is a guess: take it back
                    self.times, self.memory = before
                    late = {k: self.latest[:, k - self.done - 1] for k in rounds if k > self.done}
                    return np.stack([(self.known | late)[k] for k in rounds], axis=1)
                self.done += self.chunk
            self.known[k] = self.latest[:, k - self.done - 1]
        return np.stack([self.known[k] for k in rounds], axis=1)

    def _next(
        self, exchanges: tuple[_Exchange, ...], rounds: np.ndarray, seen: Any = None, *, start: bool = False
    ) -> np.ndarray:
        network, gossip = self.network, self.network.gossip
        told: list[Any] = [None] * len(self.runs)
        if self.watches:
            told = list(np.zeros((len(self.runs), len(rounds)), bool))
            for row, own in zip(told, () if seen is None else seen, strict=False):
                row[: len(own)] = own
        always = not start and (gossip.before_server or network.splits_rounds)
        do = _Round(exchanges, gossip.steps, always, self.asked)
        how: Any = {"agents": network.num_agents, "start": start, "varying": self.fixed is None}
        with _host():
            # In the user's precision and run by run, as the engines draw: coins are the same to the last bit.
            each = zip(self.runs, self.memory, told, strict=True)
            drawn = [_draws(*one, gossip, rounds, **how) for one in each]
            self.memory, drawn = (list(part) for part in zip(*drawn, strict=True))
            draws = jax.tree.map(lambda *leaves: jnp.stack(leaves), *drawn)
            with jax.enable_x64(True):
                given = self.times, self.clock, self.keys, rounds - start, draws, self.fixed
                self.times, latest = _advance(*given, do=do)
        return np.asarray(latest)


def _host() -> Any:
    """The processor, where time is computed beside an accelerator; the default device where it cannot be had."""
    with contextlib.suppress(RuntimeError):
        return jax.default_device(jax.local_devices(backend="cpu")[0])
    return contextlib.nullcontext()
