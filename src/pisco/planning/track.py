"""Pilot runs: many settings raced against each other at equal price, the hopeless ones dropped on the way.

Every setting may spend the same; what a level costs doubles. Once one setting has reached the target, any other that
has already paid more cannot win and is dropped: that is exact, no curve is extrapolated for it. Among settings
that pay the same for a round (same p, same method) the slower half is dropped at every level as well.
"""

from __future__ import annotations

import math
import time
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import cache
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from pisco.costs import message_sizes
from pisco.engines.evaluate import AGENT_ERRORS
from pisco.engines.job import Job, Run, Segment, carry_shapes, even_chunk
from pisco.engines.scan import ScanEngine
from pisco.networks.network import Network
from pisco.planning.meters import Metering
from pisco.planning.pilot import COSTLIER, DIVERGED, MISSED, REACHED, RUNNING, SLOWER, Pilot, values_of
from pisco.planning.settings import Setting, first_setting
from pisco.problems.problem import Problem
from pisco.targets import Target
from pisco.trouble import heeding

CHUNK = 10
"""Rounds of one compiled stretch (or `eval_every`, where that is more)."""

STEPS_KEPT = 3
"""How many step sizes halving keeps, at least, among settings that pay the same."""

HOPELESS = 100.0
"""A pilot whose loss is this many times its start has diverged."""

AT_ONCE = 1.0
"""Seconds that pilots may run between two looks at the time that is left."""


def _of_runs(rows: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
    """What is measured of a run, without what is measured of each agent."""
    return {name: values for name, values in rows.items() if name != AGENT_ERRORS}


class OutOfTime(Exception):
    """The budget of pilot runs is spent."""


class Track:
    """Where pilots are run: one smaller problem, one network for each choice of weights, one target, one deadline."""

    def __init__(
        self,
        problem: Problem,
        networks: Mapping[str, Network],
        *,
        batch_size: int | None,
        target: Target,
        meters: Metering,
        rounds: int,
        eval_every: int = 1,
        tell: Callable[[str], None] = lambda words: None,
    ):
        self.problem, self.networks, self.batch_size = problem, networks, batch_size
        self.target, self.meters, self.tell = target, meters, tell
        self.stride = min(eval_every, rounds)
        chunk = even_chunk(rounds, self.stride, max(CHUNK, self.stride))
        self.segment = Segment(max(1, chunk // self.stride), self.stride, measured=True)
        self.rounds = max(1, rounds // self.segment.rounds) * self.segment.rounds
        self.engine = ScanEngine(batched=False)
        self.deadline = math.inf
        self.finished: list[Pilot] = []
        # Kept: a network made again would put its links on the device again.
        self._network = cache(lambda weights, method: first_setting(method).on(networks[weights]))
        self._alike: dict[Setting, tuple[Any, ...]] = {}
        """What a setting's start depends on."""
        self._starts: dict[Any, tuple[Any, dict[str, float]]] = {}
        self._pace: dict[Any, float] = {}
        """Seconds that a pilot's stretch takes, for every program and number of seeds."""
        self._compiling = 0.0
        """What the newest first call of a program has taken, which compiles it."""

    def begin(self, setting: Setting, seeds: Sequence[int]) -> Pilot:
        """A pilot before its first round."""
        starts = self._prepare(setting, seeds)
        return Pilot(
            setting,
            tuple(seeds),
            self.meters(setting, tuple(seeds)),
            [state for state, _ in starts],
            [{name: [value] for name, value in row.items()} for _, row in starts],
            met_at=[None] * len(seeds),
            served=[[0] for _ in seeds],
            reached=[[] for _ in seeds],
            stride=self.stride,
        )

    def _prepare(self, setting: Setting, seeds: Sequence[int]) -> list[tuple[Any, dict[str, float]]]:
        """States and measurements of round 0, for every seed; settings that start alike share them."""
        network, algorithm = self._network(setting.weights, setting.method), setting.algorithm
        server = setting.schedule(network)
        # A schedule that watches the loss remembers its period, so other p start otherwise.
        remembered = setting.server_prob if jax.tree.leaves(server.start()) else 0.0
        program = setting._replace(server_prob=remembered, local_lr=1.0)
        if program not in self._alike:
            job = Job(self.problem, network, (Run(algorithm, server, 0),), self.batch_size)
            shapes = carry_shapes(job)
            sizes = message_sizes(algorithm, shapes.state.params, self.problem.num_agents)
            where = setting.weights if sizes.start_gossip else ""
            self._alike[program] = algorithm.factory, jax.tree.structure(shapes), where, remembered
        alike = self._alike[program]
        fresh = [seed for seed in seeds if (*alike, seed) not in self._starts]
        if fresh:
            job = Job(self.problem, network, tuple(Run(algorithm, server, s) for s in fresh), self.batch_size)
            with heeding(self.problem.trouble):
                states = self.engine.start(job)
                rows = _of_runs(self.engine.measure(job, states))
            for index, seed in enumerate(fresh):
                start = jax.tree.map(np.asarray, states[index])
                self._starts[(*alike, seed)] = start, {name: float(values[index]) for name, values in rows.items()}
        return [self._starts[(*alike, seed)] for seed in seeds]

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
            groups[(s.method, s.local_steps, s.weights, len(pilot.seeds)), pilot.rounds].append(pilot)
        for (program, done), members in groups.items():
            while members:
                pace = self._pace.get(program)
                now = time.monotonic()
                if now + (self._compiling if pace is None else pace) > self.deadline:
                    raise OutOfTime
                at_once = 1 if pace is None else max(1, int(AT_ONCE / max(pace, 1e-6)))
                self._stretch(members[:at_once], done)
                took = time.monotonic() - now
                if pace is None:
                    self._compiling = took
                # The first call compiles, so it is no guide; a guess until the second is made.
                self._pace[program] = took / min(at_once, len(members)) if pace is not None else took / 4
                members = members[at_once:]

    def _stretch(self, members: list[Pilot], done: int) -> None:
        """One stretch of pilots that share a program."""
        network = self._network(members[0].setting.weights, members[0].setting.method)
        runs = [Run(p.setting.algorithm, p.setting.schedule(network), seed) for p in members for seed in p.seeds]
        job = Job(self.problem, network, tuple(runs), self.batch_size)
        # Copied: the engine consumes what it is given, and pilots share their start.
        states = [jax.tree.map(jnp.array, state) for p in members for state in p.states]
        with heeding(self.problem.trouble):
            states, rows, links = self.engine.advance(job, states, done, self.segment)
        served = np.asarray(links.server)
        reached = served.reshape(len(runs), -1).astype(bool) if served.ndim == 3 else np.zeros((len(runs), 0), bool)
        served = served.reshape(len(runs), self.segment.evals, -1).sum(axis=-1)
        at = 0
        for pilot in members:
            for index in range(len(pilot.seeds)):
                pilot.states[index] = states[at]
                for name, values in _of_runs(rows).items():
                    pilot.rows[index][name] += [float(value) for value in values[at]]
                before = pilot.served[index][-1]
                pilot.served[index] += [before + int(count) for count in np.cumsum(served[at])]
                pilot.reached[index] += reached[at].tolist()
                at += 1
            pilot.rounds = done + self.segment.rounds

    def _judge(self, pilots: list[Pilot]) -> None:
        """Note who reached the target and who blew up."""
        for pilot in pilots:
            for index, row in enumerate(pilot.rows):
                start, newest = row["loss"][0], row["loss"][-1]
                apart = row["consensus_error"][-1]
                if not (math.isfinite(newest) and math.isfinite(apart)) or newest > HOPELESS * (1 + abs(start)):
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
            strata[s.server_prob, s.method, s.local_steps].append(pilot)
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
