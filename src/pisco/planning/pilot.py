"""Pilot runs: many settings raced against each other at equal price, the hopeless ones dropped on the way.

Every setting may spend the same; what a level costs doubles. Once one setting has reached the target, any other that
has already paid more cannot win and is dropped: that is exact, no curve is extrapolated for it. Among settings
that pay the same for a round (same p, same form) the slower half is dropped at every level as well.
"""

from __future__ import annotations

import math
import time
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from pisco.costs import RoundPrices
from pisco.engines.evaluate import AGENT_ERRORS
from pisco.engines.job import Job, Run, Segment, even_chunk
from pisco.engines.scan import ScanEngine
from pisco.metrics import with_running_mean
from pisco.networks.network import Network
from pisco.planning.settings import Setting
from pisco.problems.problem import Problem
from pisco.targets import Target

CHUNK = 10
"""Rounds of one compiled stretch (or `eval_every`, where that is more)."""

STEPS_KEPT = 3
"""How many step sizes halving keeps, at least, among settings that pay the same."""

ABSURD = 100.0
"""A pilot whose loss is this many times its start has diverged."""

REACHED, MISSED, DIVERGED = "reached", "missed", "diverged"
COSTLIER, SLOWER, RUNNING = "costlier", "slower", "running"


def values_of(target: Target, rows: Mapping[str, Sequence[float]]) -> np.ndarray:
    """The target's column, from measured ones."""
    return with_running_mean(rows)[target.column]


@dataclass
class Pilot:
    """One setting on trial: the rows of every seed, and how it ended."""

    setting: Setting
    seeds: tuple[int, ...]
    prices: RoundPrices
    states: list[Any] = field(repr=False)
    rows: list[dict[str, list[float]]] = field(repr=False)
    rounds: int = 0
    status: str = RUNNING
    met_at: list[int | None] = field(default_factory=list)
    served: list[list[int]] = field(default_factory=list, repr=False)
    """Server rounds of every seed, up to each row."""
    stride: int = 1

    @property
    def unit(self) -> float:
        """The expected price of a round."""
        return self.prices.expected(self.setting.server_prob)

    @property
    def spent(self) -> float:
        """The expected price of the rounds so far."""
        return self.rounds * self.unit

    @property
    def floor(self) -> float:
        """The least that the target can cost, the mean over seeds; where it is not reached, what is paid so far.

        A few seeds are often lucky: where the server does the work, its coins may have come early; where gossip does
        it, they may not have come at all. The mean of what was paid and the mean rounds at the expected price
        estimate the same (Wald's identity); the larger one counts.
        """
        rounds = [self.rounds if at is None else at for at in self.met_at]
        served = [row[at // self.stride] for at, row in zip(rounds, self.served, strict=True)]
        paid = [
            count * self.prices.server + (at - count) * self.prices.gossip
            for at, count in zip(rounds, served, strict=True)
        ]
        return max(float(np.mean(paid)), float(np.mean(rounds)) * self.unit)

    @property
    def cost(self) -> float:
        """The price at the target, the mean over seeds; infinite unless all got there."""
        return self.floor if all(at is not None for at in self.met_at) else math.inf

    def standing(self, target: Target, rounds: int) -> float:
        """Where the target's column stood after so many rounds, the median over seeds; smaller is better."""
        at = rounds // self.stride
        values = [values_of(target, row)[min(at, len(row["loss"]) - 1)] for row in self.rows]
        middle = float(np.median(values))
        return -middle if target.metric.rising else middle

    def predicted(self, target: Target) -> float:
        """The price at the target by a power law through the later half of the curve; infinite where that is flat."""
        if math.isfinite(self.cost) or target.metric.rising or target.bound <= 0:
            return self.cost
        series = np.median([values_of(target, row) for row in self.rows], axis=0)
        k = np.arange(len(series))
        use = (k >= max(1, len(series) // 2)) & np.isfinite(series) & (series > 0)
        if use.sum() < 3 or self.status == DIVERGED:
            return math.inf
        slope, height = np.polyfit(np.log(k[use]), np.log(series[use]), 1)
        if slope >= -0.05:
            return math.inf
        return float(np.exp((math.log(target.bound) - height) / slope)) * self.stride * self.unit


def _of_runs(rows: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
    """What is measured of a run, without what is measured of each agent."""
    return {name: values for name, values in rows.items() if name != AGENT_ERRORS}


class OutOfTime(Exception):
    """The budget of pilot runs is spent."""


class Track:
    """Where pilots are run: one thinned problem, one network for each choice of weights, one target, one clock."""

    def __init__(
        self,
        problem: Problem,
        networks: Mapping[str, Network],
        *,
        batch_size: int | None,
        target: Target,
        prices: Callable[[Setting], RoundPrices],
        rounds: int,
        eval_every: int = 1,
        deadline: float = math.inf,
        tell: Callable[[str], None] = lambda words: None,
    ):
        self.problem, self.networks, self.batch_size = problem, networks, batch_size
        self.target, self.prices, self.tell = target, prices, tell
        self.stride = min(eval_every, rounds)
        chunk = even_chunk(rounds, self.stride, max(CHUNK, self.stride))
        self.segment = Segment(max(1, chunk // self.stride), self.stride, measured=True)
        self.rounds = max(1, rounds // self.segment.rounds) * self.segment.rounds
        self.engine = ScanEngine(batched=False)
        self.deadline = deadline
        self.finished: list[Pilot] = []
        self._starts: dict[int, tuple[Any, dict[str, float]]] = {}

    def begin(self, setting: Setting, seeds: Sequence[int]) -> Pilot:
        """A pilot before its first round."""
        self._prepare(seeds)
        return Pilot(
            setting,
            tuple(seeds),
            self.prices(setting),
            [self._starts[seed][0] for seed in seeds],
            [{name: [value] for name, value in self._starts[seed][1].items()} for seed in seeds],
            met_at=[None] * len(seeds),
            served=[[0] for _ in seeds],
            stride=self.stride,
        )

    def _prepare(self, seeds: Sequence[int]) -> None:
        """States and measurements of round 0: PISCO's start depends on the seed alone."""
        fresh = [seed for seed in seeds if seed not in self._starts]
        if not fresh:
            return
        network = next(iter(self.networks.values()))
        base = Setting("", False, 1, 0.0, 1.0)
        runs = tuple(Run(base.algorithm, base.server, seed) for seed in fresh)
        job = Job(self.problem, network, runs, self.batch_size)
        states = self.engine.start(job)
        rows = _of_runs(self.engine.measure(job, states))
        for index, seed in enumerate(fresh):
            start = jax.tree.map(np.asarray, states[index])
            self._starts[seed] = start, {name: float(values[index]) for name, values in rows.items()}

    def race(
        self, settings: Iterable[Setting], seeds: Sequence[int], *, halve: bool = True, words: str = ""
    ) -> list[Pilot]:
        """Run the settings against each other until each has reached the target, fallen behind or used all rounds.

        Without `halve` a setting is dropped only when it cannot win any more: the cheapest of all is found.
        """
        pilots = [self.begin(setting, seeds) for setting in dict.fromkeys(settings)]
        self.finished += pilots
        # Rounds that cost almost nothing count as a thousandth of the most expensive, so that levels rise.
        most = max((pilot.unit for pilot in pilots), default=0.0)
        least = 1e-3 * most or 1.0
        level = min((max(pilot.unit, least) for pilot in pilots), default=1.0) * self.segment.rounds
        while live := [pilot for pilot in pilots if pilot.status == RUNNING]:
            if time.monotonic() > self.deadline:
                raise OutOfTime
            self.tell(f"{words}: {len(live)} settings at price {level:.3g}")
            moved: set[int] = set()
            while behind := [
                p
                for p in live
                if p.status == RUNNING and p.rounds * max(p.unit, least) < level and p.rounds < self.rounds
            ]:
                self._chunk(behind)
                self._judge(behind)
                moved |= {id(pilot) for pilot in behind}
            bound = self.cheapest(seeds)
            for pilot in live:
                if pilot.status != RUNNING:
                    continue
                if pilot.floor > bound:
                    pilot.status = COSTLIER
                elif pilot.rounds >= self.rounds:
                    pilot.status = MISSED
            # Only those that ran at this level: where rounds are expensive, several levels pass between two chunks.
            if halve:
                self._halve([pilot for pilot in live if pilot.status == RUNNING and id(pilot) in moved])
            for pilot in live:
                if pilot.status != RUNNING:
                    pilot.states = []  # the parameters of many networks would fill the memory
            level *= 2
        return pilots

    def endure(self, setting: Setting, seeds: Sequence[int]) -> Pilot:
        """Run one setting to the last round, target or not; it ends as diverged, reached or missed."""
        pilot = self.begin(setting, seeds)
        while pilot.status != DIVERGED and pilot.rounds < self.rounds:
            self.tell(f"checking: round {pilot.rounds} of {self.rounds}")
            try:
                self._chunk([pilot])
            except OutOfTime:
                break
            self._judge([pilot])
        pilot.states = []
        if pilot.status == RUNNING:
            pilot.status = MISSED
        return pilot

    def cheapest(self, seeds: Sequence[int]) -> float:
        """The lowest price at which a setting has reached the target with these seeds: others have other luck."""
        reached = (p.cost for p in self.finished if p.status == REACHED and p.seeds == tuple(seeds))
        return min(reached, default=math.inf)

    def _chunk(self, pilots: list[Pilot]) -> None:
        """One stretch of every pilot; those of one structure and round share a program and a call."""
        groups: dict[Any, list[Pilot]] = defaultdict(list)
        for pilot in pilots:
            s = pilot.setting
            groups[s.one_exchange, s.local_steps, s.weights, pilot.rounds].append(pilot)
        for (_, _, weights, done), members in groups.items():
            if time.monotonic() > self.deadline:
                raise OutOfTime
            runs = [Run(p.setting.algorithm, p.setting.server, seed) for p in members for seed in p.seeds]
            job = Job(self.problem, self.networks[weights], tuple(runs), self.batch_size)
            # Copied: the engine consumes what it is given, and pilots share their start.
            states = [jax.tree.map(jnp.array, state) for p in members for state in p.states]
            states, rows, links = self.engine.advance(job, states, done, self.segment)
            served = np.asarray(links.server).reshape(len(runs), -1)
            at = 0
            for pilot in members:
                for index in range(len(pilot.seeds)):
                    pilot.states[index] = states[at]
                    for name, values in _of_runs(rows).items():
                        pilot.rows[index][name] += [float(value) for value in values[at]]
                    before = pilot.served[index][-1]
                    pilot.served[index] += [before + int(count) for count in np.cumsum(served[at])]
                    at += 1
                pilot.rounds = done + self.segment.rounds

    def _judge(self, pilots: list[Pilot]) -> None:
        """Note who reached the target and who blew up."""
        for pilot in pilots:
            for index, row in enumerate(pilot.rows):
                start, newest = row["loss"][0], row["loss"][-1]
                apart = row["consensus_error"][-1]
                if not (math.isfinite(newest) and math.isfinite(apart)) or newest > ABSURD * (1 + abs(start)):
                    pilot.status = DIVERGED
                elif pilot.met_at[index] is None:
                    met = self.target.met(values_of(self.target, row))
                    pilot.met_at[index] = int(met.argmax()) * self.stride if met.any() else None
            if pilot.status == RUNNING and all(at is not None for at in pilot.met_at):
                pilot.status = REACHED

    def _halve(self, pilots: list[Pilot]) -> None:
        """Drop the slower half of those that pay the same."""
        strata: dict[Any, list[Pilot]] = defaultdict(list)
        for pilot in pilots:
            s = pilot.setting
            strata[s.server_prob, s.one_exchange, s.local_steps].append(pilot)
        for members in strata.values():
            rounds = min(pilot.rounds for pilot in members)
            members.sort(key=lambda pilot: pilot.standing(self.target, rounds))
            steps: set[float] = set()
            for place, pilot in enumerate(members):
                # Some step sizes are kept: which step size wins shows late, which weights win shows early.
                fresh = pilot.setting.local_lr not in steps and len(steps) < STEPS_KEPT
                if place >= math.ceil(len(members) / 2) and not fresh:
                    pilot.status = SLOWER
                else:
                    steps.add(pilot.setting.local_lr)
