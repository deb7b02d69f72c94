"""The stages of a plan: race, climb T_o, refine, decide on fresh seeds, check to the last round."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from pisco.planning.pilot import COSTLIER, DIVERGED, LUCKY, SLOWER, Pilot, values_of
from pisco.planning.settings import Modes, Setting, allowed, candidates, first_setting
from pisco.planning.track import OutOfTime, Track
from pisco.theory.estimates import Estimates
from pisco.theory.safe_steps import agents_growth, largest_safe_step

LADDER = (4, 10)
"""T_o above 1 that are tried, as long as each pays."""

RACE_SEEDS = (700, 701, 702)
FINAL_SEEDS = tuple(range(800, 809))
RUN_OFF_SEEDS = tuple(range(900, 924))
"""All differ from the seeds of tuning (100 on) and from small ones, with which plans are judged."""

CONTENDERS, CLOSE = 4, 1.5
"""At most this many finalists, up to this many times the cheapest, meet in the run-off: nine seeds can be lucky."""

DECISIONS = 5
"""How often finals are held at most, where the run-off shows that the finalists were lucky."""

NEAR = 1.1
"""Among finalists this close to the cheapest, one that the theory calls stable is preferred."""


EXPLORED, DECIDED, CHECKED = 0.6, 0.85, 0.95
"""Shares of the time by which a stage is over: fresh seeds judge even where there was no time to explore all."""

ROWS_TOLD = 30
"""Fewer measured rounds do not tell that a target is out of reach."""


class Search:
    """The stages of a plan; what is known at any moment can be reported."""

    def __init__(
        self,
        track: Track,
        modes: Modes,
        estimates: Estimates,
        *,
        methods: Sequence[str],
        probabilities: Sequence[float],
        local_steps: int,
    ):
        self.track, self.modes, self.estimates, self.local_steps = track, modes, estimates, local_steps
        network = next(iter(track.networks.values()))
        self.firsts = {first: allowed(first, network, probabilities) for first in map(first_setting, methods)}
        self.finals: list[Pilot] = []
        self.run_off: list[Pilot] = []
        self.winner: Pilot | None = None
        self.failed: set[Setting] = set()
        """Settings that reached the target and diverged or got worse later on."""
        self.cut_short = False
        self.checked = 0

    def run(self, began: float, seconds: float) -> None:
        """Explore, decide on fresh seeds, check to the last round; each has its share of the time, and what is left."""
        for share, stage in ((EXPLORED, self._explore), (DECIDED, self._decide), (CHECKED, self._check)):
            self.track.deadline = began + share * seconds
            try:
                stage()
            except OutOfTime:
                self.cut_short = True

    def _explore(self) -> None:
        tried = []
        for first, probabilities in self.firsts.items():
            known = first._replace(server_prob=probabilities[-1])
            gradients = max(1, known.sizes(self.track.problem).gradients)
            tried += candidates(first, self.track.networks, self.modes, self.estimates, probabilities, gradients)
        self.track.race(tried, RACE_SEEDS, words="race at T_o = 1")
        self._climb()
        self._refine()

    def _decide(self) -> None:
        """Finals and a run-off; again where others promise much less than what is left of the finalists' luck."""
        track = self.track
        for _ in range(DECISIONS):
            fresh = self._finalists()
            track.finished = [p for p in track.finished if p.seeds != FINAL_SEEDS or p.setting not in fresh]
            try:
                track.race(fresh, FINAL_SEEDS, halve=False, words="finals on fresh seeds")
            finally:
                self.finals = [p for p in track.finished if p.seeds == FINAL_SEEDS]
            near = CLOSE * track.cheapest(FINAL_SEEDS)
            finals = sorted((p for p in self.finals if self._undecided(p)), key=self._key)
            met = [pilot.setting for pilot in finals if math.isfinite(pilot.cost) and pilot.cost <= near]
            self.run_off += track.race(met[:CONTENDERS], RUN_OFF_SEEDS, halve=False, words="run-off on more seeds")
            self._unmask()
            best = track.cheapest(RUN_OFF_SEEDS)
            if not any(CLOSE * self._promise(pilot) < best for pilot in self._open()):
                break

    def _undecided(self, pilot: Pilot) -> bool:
        return self._may_win(pilot) and pilot.setting not in {decided.setting for decided in self.run_off}

    def _open(self) -> list[Pilot]:
        """Who is undecided, best first; by the race alone where there was no final, or none that counts."""
        judged = {pilot.setting for pilot in self.finals if not self._misjudged(pilot)}
        return [p for p in self.ranked() if self._undecided(p) and (p.seeds == FINAL_SEEDS or p.setting not in judged)]

    def _misjudged(self, pilot: Pilot) -> bool:
        """Whether it was dropped in favour of one that turned out to be lucky."""
        return pilot.status == COSTLIER and pilot.floor < self.track.cheapest(pilot.seeds)

    def _promise(self, pilot: Pilot) -> float:
        return pilot.predicted(self.track.target) if self._misjudged(pilot) else pilot.cost

    def _unmask(self) -> None:
        """What the run-off did not confirm was luck."""
        # One that was dropped for a cheaper one may have kept its word.
        costs = {p.setting: p.floor if p.status == COSTLIER else p.cost for p in self.run_off}
        for pilot in self.track.finished:
            if pilot.seeds != RUN_OFF_SEEDS and costs.get(pilot.setting, 0.0) > CLOSE * pilot.cost:
                pilot.status = LUCKY

    def _check(self) -> None:
        while order := self.final_order():
            end = self.track.endure(order[0].setting, FINAL_SEEDS[:3])
            if end.status != DIVERGED and all(row["loss"][-1] <= row["loss"][0] for row in end.rows):
                self.winner, self.checked = order[0], end.rounds
                self.cut_short |= end.rounds < self.track.rounds
                return
            self.failed.add(order[0].setting)

    def ranked(self) -> list[Pilot]:
        """Pilots so far, best first: by price at the target, then by predicted price, then by where they stood."""
        alive = [p for p in self.track.finished if self._may_win(p) and p.rounds]
        return sorted(alive, key=self._key)

    def _key(self, pilot: Pilot) -> tuple[float, float, float]:
        target = self.track.target
        return pilot.cost, pilot.predicted(target), pilot.standing(target, pilot.rounds)

    def _finalists(self) -> list[Setting]:
        """The best two of each of the best three p: pilots share their coins, so all of one p may have been lucky."""
        chosen: dict[float, list[Setting]] = {}
        for pilot in self._open():
            if pilot.seeds == FINAL_SEEDS and not self._misjudged(pilot):
                continue
            p = pilot.setting.server_prob
            if p in chosen or len(chosen) < 3:
                chosen.setdefault(p, [])
                if len(chosen[p]) < 2 and pilot.setting not in chosen[p]:
                    chosen[p].append(pilot.setting)
        return [setting for settings in chosen.values() for setting in settings]

    def _climb(self) -> None:
        """More local steps with the best combinations, the step scaled so that a round moves about as far."""
        ladder = sorted({*LADDER, self.local_steps} - {0, 1})
        for steps in ladder:
            before = self.track.cheapest(RACE_SEEDS)
            combinations: dict[Any, Setting] = {}
            for pilot in self.ranked():
                s = pilot.setting
                if s.local_steps is not None:
                    combinations.setdefault((s.weights, s.method, s.server_prob), s)
                if len(combinations) == 4:
                    break
            tried = []
            for s in combinations.values():
                same = s.local_lr * ((s.local_steps or 0) + 1) / (steps + 1)
                tried += [s._replace(local_steps=steps, local_lr=same * by) for by in (0.5, 1.0, 2.0, 4.0)]
            self.track.race(tried, RACE_SEEDS, words=f"race at T_o = {steps}")
            pays = self.track.cheapest(RACE_SEEDS) <= 0.97 * before
            if math.isfinite(before) and not pays and steps >= self.local_steps:
                break

    def _refine(self) -> None:
        """Values between those of the grids, around the best two."""
        tried = []
        for pilot in self.ranked()[:2]:
            s = pilot.setting
            steps = [s._replace(local_lr=s.local_lr * by) for by in (0.7, 1.4, 2.0)]
            chances = []
            if 0 < s.server_prob < 1:
                chances = [s.at(min(1.0, s.server_prob * by)) for by in (0.55, 1.8)]
            tried += [*steps, *chances]
        known = {pilot.setting for pilot in self.track.finished}
        self.track.race([s for s in tried if s not in known], RACE_SEEDS, words="refining")

    def final_order(self) -> list[Pilot]:
        """Finalists, cheapest first; among near ties those that are stable by the theory come first."""
        decided = [p for p in self.run_off if math.isfinite(p.cost) and self._may_win(p)]
        hopeful = [p for p in self.finals if math.isfinite(p.predicted(self.track.target)) and self._may_win(p)]
        missed = [p for p in self.finals if self.out_of_reach and self._may_win(p)]
        finals = decided or hopeful or missed or self.ranked()
        finals = sorted(finals, key=self._key)
        if not finals or not math.isfinite(finals[0].cost):
            return finals
        near = [p for p in finals if p.cost <= NEAR * finals[0].cost]
        near.sort(key=lambda p: self.growth(p.setting)[0] >= 1)  # stable sorting keeps the order by price
        return near + [p for p in finals if p not in near]

    def _may_win(self, pilot: Pilot) -> bool:
        return pilot.status not in (DIVERGED, LUCKY) and pilot.setting not in self.failed

    @property
    def out_of_reach(self) -> bool:
        """Whether nothing reached the target, and all that ran for long (the finals, if any) end flat above it."""
        target, tried = self.track.target, [p for p in self.track.finished if p.status not in (DIVERGED, SLOWER)]
        reached = any(math.isfinite(p.cost) for p in tried)
        tried = [p for p in tried if p in self.finals] or tried
        longest = max((p.rounds for p in tried), default=0)
        told = longest >= ROWS_TOLD * self.track.stride and (not target.metric.rising or target.metric.unit == "%")
        return told and not reached and all(math.isinf(p.predicted(target)) for p in tried if 2 * p.rounds >= longest)

    @property
    def lowest(self) -> float:
        """The best that any pilot came to, the median over its seeds."""
        target = self.track.target
        curves = [np.median([values_of(target, row) for row in p.rows], axis=0) for p in self.track.finished]
        best = np.nanmax if target.metric.rising else np.nanmin
        return float(best([best(curve) for curve in curves])) if curves else math.nan

    def growth(self, setting: Setting) -> tuple[float, float]:
        """Of the squared error a round, at the agents' curvatures at x⁰ and, scaled, where a descent ended.

        NaN for methods that the theory of stability does not know.
        """
        network, first = self.track.networks[setting.weights], np.asarray(self.estimates.agent_curvatures)
        rule = setting.rule(network)
        if rule is None:
            return math.nan, math.nan
        eased = self.estimates.end_smoothness / max(self.estimates.smoothness, 1e-12)
        weights, lr = network.weights, setting.local_lr
        return (
            agents_growth(first, weights, local_lr=lr, **rule),
            agents_growth(eased * first, weights, local_lr=lr, **rule),
        )

    def stable_limit(self, setting: Setting) -> float:
        """The largest safe η_l at the agents' curvatures at x⁰; NaN where that is not known."""
        network = self.track.networks[setting.weights]
        rule = setting.rule(network)
        return math.nan if rule is None else largest_safe_step(self.estimates.agent_curvatures, network.weights, **rule)
