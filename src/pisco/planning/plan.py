"""`plan`: which weights, p, local steps, step size and form of exchange reach a target at the lowest price."""

from __future__ import annotations

import math
import time
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import jax
import numpy as np

from pisco.costs import LinkTimes, Prices
from pisco.errors import InputError, check_number, suggest
from pisco.networks.network import Network
from pisco.planning.pilot import DIVERGED, MISSED, REACHED, SLOWER, OutOfTime, Pilot, Target, Track
from pisco.planning.settings import PROBABILITIES, Modes, Setting, candidates
from pisco.problems.problem import Problem
from pisco.problems.thinning import thin
from pisco.theory.estimates import Estimates, estimate
from pisco.tree import num_bytes

WEIGHTS = ("fdla", "pisco-step", "metropolis")
LADDER = (4, 10)
"""T_o beyond 1 that are tried, as long as each pays."""

RACE_SEEDS = (700, 701, 702)
FINAL_SEEDS = tuple(range(800, 809))
"""Apart from the seeds of tuning (100 on) and from small ones, with which plans are judged."""

MEASURED = ("grad_norm_sq_mean", "grad_norm_sq", "loss", "consensus_error", "tracking_error", "test_accuracy")
NEAR = 1.1
"""Among finalists this close to the cheapest, one that the theory calls stable is preferred."""


@dataclass(frozen=True)
class Choice:
    """The best setting found for one p: its price, and whether that was measured in pilots or predicted from them."""

    setting: Setting
    price: float
    measured: bool


@dataclass(frozen=True)
class Plan:
    """What to run, what it will cost, and how that is known."""

    setting: Setting
    price: float
    rounds: float
    """Rounds to the target that the price stands for."""
    measured: bool
    """Whether pilots of this setting reached the target."""
    checked_rounds: int
    """How far the setting was run without diverging."""
    by_probability: tuple[Choice, ...]
    estimates: Estimates | None
    stable_limit: float
    """The largest η_l that is stable in mean square at the curvature of x⁰."""
    growth: tuple[float, float]
    """Growth of the worst squared deviation a round, at the curvature of x⁰ and where a descent ended."""
    target: Target
    unit: str
    pilots: int
    diverged: int
    """Pilots that were run, and how many of them diverged."""
    seconds: float
    interrupted: bool
    """Whether Ctrl-C or the budget ended the search before it was through."""


def plan(
    problem: Problem,
    network: Network,
    *,
    rounds: int,
    batch_size: int | None = None,
    target: tuple[str, float] = ("grad_norm_sq_mean", 0.05),
    prices: Prices | LinkTimes = Prices(),
    eval_every: int = 1,
    local_steps: int = 1,
    probabilities: Sequence[float] = PROBABILITIES,
    seconds: float = 60.0,
    samples: int = 10_000,
    tell: Callable[[str], None] = lambda words: None,
) -> Plan:
    """Find the cheapest way to run PISCO on a problem and a graph.

    The theory leaves out weights and step sizes that cannot do well; pilot runs race the others at equal price
    (`pisco.planning.pilot`); the best few are run on fresh seeds, and the winner to the last round.

    Args:
      problem: loss and data.
      network: its graph counts, and its weights where they were given as a matrix; the server schedule does not.
      rounds: the most rounds that a run may take.
      batch_size: samples per gradient, None for all.
      target: a column of the history and its bound.
      prices: of messages (`Prices`) or how fast links are (`LinkTimes`).
      eval_every: rounds between two measurements.
      local_steps: a T_o to try besides 1, 4 and 10.
      probabilities: the p to try.
      seconds: a budget of wall-clock time; what is best by then is returned.
      samples: on how many samples pilots are measured.
      tell: called with a line about what is going on.

    Ctrl-C ends the search and returns the best so far.

    >>> import numpy as np, pisco
    >>> problem = pisco.problems.quadratic(np.stack([np.eye(2)] * 4), np.arange(8.0).reshape(4, 2))
    >>> found = plan(problem, pisco.Network.ring(4), rounds=100, target=("grad_norm_sq", 1e-3))
    >>> found.measured, found.checked_rounds
    (True, 100)
    """
    began = time.monotonic()
    check_number("rounds", rounds, low=1, integer=True)
    check_number("seconds", seconds, low=0, open_low=True)
    check_number("the target's bound", target[1])
    for p in probabilities:
        check_number("a probability", p, low=0, high=1)
    if network.num_agents != problem.num_agents:
        raise InputError(
            f"the problem has {problem.num_agents} agents and the network {network.num_agents}; "
            "give both the same number"
        )
    goal = Target(*target)
    if goal.column not in MEASURED and not goal.column.startswith("test_"):
        raise InputError(f"the target {goal.column!r} is no measure of training; {suggest(goal.column, MEASURED)}")
    networks = _networks(network)
    connected = network.graph.is_connected
    probabilities = [p for p in probabilities if p > 0 or connected]
    if not probabilities:
        raise InputError("the graph is disconnected, so p = 0 alone cannot agree; allow p > 0")
    size = num_bytes(jax.eval_shape(problem.init, jax.random.key(0)))
    round_prices = {
        True: prices.of_round([2 * size], network.graph),
        False: prices.of_round([size, size], network.graph),
    }
    few = thin(problem, samples, test=goal.column.startswith("test_"))
    track = Track(
        few,
        networks,
        batch_size=batch_size,
        target=goal,
        prices=round_prices,
        rounds=rounds,
        eval_every=eval_every,
        deadline=began + 0.8 * seconds,
        tell=tell,
    )
    search = _Search(track, Modes.of(networks), connected, probabilities, local_steps, problem, batch_size)
    interrupted = False
    try:
        search.run(began + seconds)
    except (OutOfTime, KeyboardInterrupt):
        interrupted = True
    return search.report(prices.unit, interrupted, began)


def _networks(network: Network) -> dict[str, Network]:
    """One network for each choice of weights, none twice."""
    found: dict[str, Network] = {}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # FDLA says when it falls back to constant weights
        for name in WEIGHTS:
            found[name] = Network(network.graph, weights=name)
    if network.weights_name not in found:
        found[network.weights_name] = network
    for name in reversed(list(found)):
        matrix = found[name].weights
        for other in found:
            if other != name and abs(found[other].weights - matrix).max() < 1e-9:
                del found[name]
                break
    return found


class _Search:
    """The stages of a plan; what is known at any moment can be reported."""

    def __init__(
        self,
        track: Track,
        modes: Modes,
        connected: bool,
        probabilities: Sequence[float],
        local_steps: int,
        problem: Problem,
        batch_size: int | None,
    ):
        self.track, self.modes, self.connected, self.probabilities = track, modes, connected, probabilities
        self.local_steps, self.problem, self.batch_size = local_steps, problem, batch_size
        self.estimates: Estimates | None = None
        self.finals: list[Pilot] = []
        self.winner: Pilot | None = None
        self.checked = 0

    def run(self, deadline: float) -> None:
        """Estimate, race, climb T_o, refine, decide on fresh seeds, check to the last round."""
        track = self.track
        start = track.begin(Setting("", True, 1, 0.0, 1.0), RACE_SEEDS)
        if all(track.target.met(track.target.series(row)).all() for row in start.rows):
            raise InputError(
                f"the target {track.target.column} = {track.target.bound:g} is met before the first round; give a harder one"
            )
        track.tell("estimating L, σ² and f(x⁰) − f*")
        self.estimates = estimate(self.problem, batch_size=self.batch_size)
        tried = candidates(
            self.modes,
            self.estimates,
            local_steps=1,
            connected=self.connected,
            probabilities=self.probabilities,
        )
        track.race(tried, RACE_SEEDS, words="race at T_o = 1")
        self._climb()
        self._refine()
        last = self._finalists()
        track.race(last, FINAL_SEEDS, keep=len(last), words="finals on fresh seeds")
        self.finals = [p for p in track.finished if p.seeds == FINAL_SEEDS]
        track.deadline = deadline
        for pilot in self._final_order():
            end = track.endure(pilot.setting, FINAL_SEEDS[:3])
            if end.status != DIVERGED and all(row["loss"][-1] <= row["loss"][0] for row in end.rows):
                self.winner, self.checked = pilot, end.rounds
                return

    def _ranked(self) -> list[Pilot]:
        """Pilots so far, best first: by price at the target, then by predicted price, then by where they stood."""
        alive = [p for p in self.track.finished if p.status != DIVERGED and p.rounds]
        target = self.track.target

        def key(pilot: Pilot) -> tuple[float, float, float]:
            return pilot.cost, pilot.predicted(target), pilot.standing(target, pilot.rounds)

        return sorted(alive, key=key)

    def _finalists(self) -> list[Setting]:
        """The best two of each of the best three p: pilots share their coins, so all of one p may have been lucky."""
        chosen: dict[float, list[Setting]] = {}
        for pilot in self._ranked():
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
            for pilot in self._ranked():
                s = pilot.setting
                combinations.setdefault((s.weights, s.one_exchange, s.server_prob), s)
                if len(combinations) == 4:
                    break
            tried = []
            for s in combinations.values():
                same = s.local_lr * (s.local_steps + 1) / (steps + 1)
                tried += [s._replace(local_steps=steps, local_lr=same * by) for by in (0.5, 1.0, 2.0, 4.0)]
            self.track.race(tried, RACE_SEEDS, words=f"race at T_o = {steps}")
            if math.isfinite(before) and self.track.cheapest(RACE_SEEDS) > 0.97 * before and steps >= self.local_steps:
                break

    def _refine(self) -> None:
        """Values between those of the grids, around the best two."""
        tried = []
        for pilot in self._ranked()[:2]:
            s = pilot.setting
            steps = [s._replace(local_lr=s.local_lr * by) for by in (0.7, 1.4, 2.0)]
            chances = []
            if 0 < s.server_prob < 1:
                chances = [s._replace(server_prob=min(1.0, s.server_prob * by)) for by in (0.55, 1.8)]
            tried += [*steps, *chances]
        known = {pilot.setting for pilot in self.track.finished}
        self.track.race([s for s in tried if s not in known], RACE_SEEDS, words="refining")

    def _final_order(self) -> list[Pilot]:
        """Finalists, cheapest first; among near ties those that are stable by the theory come first."""
        finals = [p for p in self.finals if p.status != DIVERGED] or self._ranked()
        finals = sorted(finals, key=lambda p: (p.cost, p.predicted(self.track.target)))
        if not finals or not math.isfinite(finals[0].cost):
            return finals
        near = [p for p in finals if p.cost <= NEAR * finals[0].cost]
        near.sort(key=lambda p: self._growth(p.setting)[0] >= 1)  # stable sorting keeps the order by price
        return near + [p for p in finals if p not in near]

    def _growth(self, setting: Setting) -> tuple[float, float]:
        if self.estimates is None:
            return math.nan, math.nan
        return (
            self.modes.growth(setting, self.estimates.smoothness),
            self.modes.growth(setting, self.estimates.end_smoothness),
        )

    def report(self, unit: str, interrupted: bool, began: float) -> Plan:
        """What is best so far."""
        target = self.track.target
        chosen = self.winner
        if chosen is None:
            order = self._final_order()
            if not order:
                raise InputError(
                    "every setting diverged or there was no time to try one; give more --seconds, "
                    "or check that the loss falls with a small algorithm.local_lr"
                )
            chosen = order[0]
        price = chosen.predicted(target)
        curvature = self.estimates.smoothness if self.estimates else math.nan
        return Plan(
            setting=chosen.setting,
            price=price,
            rounds=price / chosen.unit if chosen.unit else math.nan,
            measured=math.isfinite(chosen.cost),
            checked_rounds=max(self.checked, chosen.rounds),
            by_probability=tuple(self._by_probability(chosen)),
            estimates=self.estimates,
            stable_limit=self.modes.limit(chosen.setting, curvature) if self.estimates else math.nan,
            growth=self._growth(chosen.setting),
            target=target,
            unit=unit,
            pilots=len(self.track.finished),
            diverged=sum(p.status == DIVERGED for p in self.track.finished),
            seconds=time.monotonic() - began,
            interrupted=interrupted,
        )

    def _by_probability(self, chosen: Pilot) -> list[Choice]:
        """For every p the cheapest setting, as measured, or as predicted where its pilots were stopped before."""
        rows = []
        for p in sorted({pilot.setting.server_prob for pilot in self.track.finished}):
            here = [q for q in self.track.finished if q.setting.server_prob == p and q.status != DIVERGED]
            here = [q for q in here if q.rounds and q.status in (REACHED, MISSED) or q.status != SLOWER]
            if not here:
                continue
            if chosen in here:
                best = chosen
            else:
                best = min(here, key=lambda q: (q.cost, q.predicted(self.track.target)))
            price = best.predicted(self.track.target)
            rows.append(Choice(best.setting, max(price, best.spent if math.isinf(best.cost) else price), math.isfinite(best.cost)))
        return rows
