"""`plan`: which method, weights, p, local steps and step size reach a target at the lowest price, or soonest."""

from __future__ import annotations

import math
import time
import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jax
import numpy as np

from pisco.clock import Clock
from pisco.costs import Prices
from pisco.engines.job import check_kinds
from pisco.errors import InputError, check_counts, check_number, check_positive
from pisco.metrics import AGENTS, GRADIENT, TEST, with_running_mean
from pisco.networks.network import Network
from pisco.planning.meters import priced, timed
from pisco.planning.pilot import DIVERGED, LUCKY, SLOWER, Pilot, values_of
from pisco.planning.search import RACE_SEEDS, Search
from pisco.planning.settings import PISCO, PROBABILITIES, Modes, Setting, first_setting
from pisco.planning.track import Track
from pisco.problems.problem import Problem
from pisco.problems.subsample import subsample
from pisco.registry import check_apart
from pisco.results import check_prices
from pisco.targets import Target
from pisco.theory.estimates import Estimates, estimate

WEIGHTS = ("fdla", "pisco-step", "metropolis")
USUAL_PRICES = Prices()


@dataclass(frozen=True)
class Choice:
    """The best setting found for one p: its price, and whether that was measured in pilots or predicted from them."""

    setting: Setting
    price: float
    measured: bool
    parts: dict[str, float]
    """What of the price is for messages between agents, to and from the server, for gradients; or all of it seconds."""


@dataclass(frozen=True)
class Plan:
    """What to run, what it will cost, and how that is known."""

    setting: Setting
    price: float
    rounds: float
    """Rounds to the target that the price stands for."""
    measured: bool
    """Whether pilots of this setting reached the target."""
    reachable: bool
    """False where no pilot reached the target, and all that ran for long end flat above it."""
    lowest: float
    """The best value of the target's column that any pilot came to; the highest, where larger is better."""
    checked_rounds: int
    """How far the setting was run without diverging."""
    by_probability: tuple[Choice, ...]
    estimates: Estimates
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
    asked_to_stop: bool = False
    """Whether it was Ctrl-C."""


def plan(
    problem: Problem,
    network: Network,
    *,
    rounds: int,
    batch_size: int | None = None,
    target: tuple[str, float] = ("grad_norm_sq_mean", 0.05),
    prices: Prices = USUAL_PRICES,
    clock: Clock | str | Path | Mapping[str, Any] | None = None,
    methods: Sequence[str] = PISCO,
    eval_every: int = 1,
    local_steps: int = 1,
    probabilities: Sequence[float] = PROBABILITIES,
    seconds: float = 60.0,
    samples: int = 10_000,
    tell: Callable[[str], None] = lambda words: None,
) -> Plan:
    """Find the cheapest way to run PISCO, or other methods, on a problem and a graph.

    The theory leaves out weights and step sizes that cannot do well. Pilot runs race the others at equal price
    (`pisco.planning.pilot`). The best few are run on fresh seeds, the closest of these on more, and the winner to the
    last round.

    Args:
      problem: loss and data.
      network: its graph counts, and its weights where they were given as a matrix; when the server is reached does
        not. Each method uses it as it is published (HL-SGD: a few agents of every cluster report), where the network
        says nothing else of its own.
      rounds: the most rounds that a run may take.
      batch_size: samples per gradient, None for all.
      target: a column of the history and its bound.
      prices: of messages and gradients.
      clock: how long gradients and messages take, as for `pisco.run`; then the plan is for seconds, not for prices.
      methods: those to choose from, by name (`pisco list algorithms`): with a `local_lr`, at every p that they allow;
        those that are published with a period H of the server take p = 1/H.
      eval_every: rounds between two measurements.
      local_steps: a T_o to try besides 1, 4 and 10.
      probabilities: the p to try.
      seconds: a budget of wall-clock time; the best found in that time is returned.
      samples: on how many samples pilots are measured.
      tell: called with a line about what is going on.

    Ctrl-C ends the search and returns the best so far.

    >>> import numpy as np, pisco
    >>> problem = pisco.problems.quadratic(np.stack([np.eye(2)] * 4), np.arange(8.0).reshape(4, 2))
    >>> found = plan(problem, pisco.Network.ring(4), rounds=100, target=("grad_norm_sq", 1e-3), seconds=300)
    >>> found.measured, found.checked_rounds
    (True, 100)
    """
    began = time.monotonic()
    check_kinds(problem=problem, network=network)
    check_counts(rounds=rounds, eval_every=eval_every, samples=samples)
    check_positive(seconds=seconds)
    clock = None if clock is None else Clock.of(clock)
    check_prices(prices)
    if not isinstance(target, tuple | list) or len(target) != 2:
        raise InputError(f"target is {target!r}, expected a column and its bound, as in ('loss', 0.5)")
    if clock is None and not any(prices):
        raise InputError("all prices are 0, so all plans cost the same; give at least one")
    if isinstance(methods, str) or not methods:
        raise InputError(f"methods is {methods!r}; give the names of those to choose from, as in ['pisco', 'dsgt']")
    check_apart("algorithm", methods)
    for method in methods:
        first_setting(method)
    if not isinstance(probabilities, Iterable) or not (probabilities := list(probabilities)):
        raise InputError(f"probabilities is {probabilities!r}; give at least one p to try, as in [0, 0.1, 1]")
    for p in probabilities:
        check_number("a probability", p, low=0, high=1)
    goal = Target.of(*target, problem.columns)
    networks = networks_to_try(network)
    probabilities = [p for p in probabilities if p > 0 or network.graph.is_connected]
    if not probabilities:
        raise InputError("the graph is disconnected, so agents cannot agree at p = 0; allow p > 0")
    tell("estimating L, σ² and f(x⁰) − f*")
    estimates = estimate(problem, batch_size=batch_size)
    # Few samples add their own noise to a gradient's norm; it has to stay far below what is asked for.
    fine = 20 * estimates.noise / goal.bound if goal.column in GRADIENT else 0.0
    most = problem.num_agents * problem.max_size
    few = subsample(problem, int(min(max(samples, fine), most)), test=goal.metric.of in (TEST, AGENTS))
    meters = priced(problem, networks, prices) if clock is None else timed(problem, networks, clock, rounds)
    track = Track(
        few,
        networks,
        batch_size=batch_size,
        target=goal,
        meters=meters,
        rounds=rounds,
        eval_every=eval_every,
        tell=tell,
    )
    chosen: Any = {"methods": methods, "probabilities": probabilities, "local_steps": local_steps}
    search = Search(track, Modes.of(networks), estimates, **chosen)
    for first, allowed in search.firsts.items():
        start = track.begin(first._replace(weights=next(iter(networks)), server_prob=allowed[-1]), RACE_SEEDS)
        if goal.column not in with_running_mean(start.rows[0]):
            raise InputError(
                f"{first.method} does not measure {goal.column}; leave the method out, or give another target"
            )
        if all(goal.met(values_of(goal, row)).all() for row in start.rows):
            raise InputError(
                f"the target {goal.column} = {goal.bound:g} is met before the first round; give a harder one"
            )
    interrupted = False
    try:
        search.run(began, seconds)
    except KeyboardInterrupt:
        if not any(pilot.rounds for pilot in track.finished):
            raise  # there is no best so far
        interrupted = True
    return _report(search, "price" if clock is None else "seconds", interrupted, began)


def _report(search: Search, unit: str, interrupted: bool, began: float) -> Plan:
    """What is best so far."""
    target = search.track.target
    chosen = search.winner
    if chosen is None:
        order = search.final_order()
        if not order:
            tried = sum(pilot.rounds > 0 for pilot in search.track.finished)
            raise InputError(
                f"each of the {tried} settings tried diverged, or got worse before the last round; give fewer "
                "rounds, or check that the loss falls with a small algorithm.local_lr"
                if tried
                else "there was no time to try one setting; give more --seconds or fewer rounds"
            )
        chosen = order[0]
    reachable = not search.out_of_reach
    return Plan(
        setting=chosen.setting,
        price=chosen.predicted(target) if reachable else math.inf,
        rounds=chosen.rounds_ahead(target) if reachable else math.inf,
        measured=math.isfinite(chosen.cost),
        reachable=reachable,
        lowest=search.lowest,
        checked_rounds=max(search.checked, chosen.rounds),
        by_probability=tuple(_by_probability(search, chosen)),
        estimates=search.estimates,
        stable_limit=search.stable_limit(chosen.setting),
        growth=search.growth(chosen.setting),
        target=target,
        unit=unit,
        pilots=len(search.track.finished),
        diverged=sum(p.status == DIVERGED for p in search.track.finished),
        seconds=time.monotonic() - began,
        interrupted=interrupted or search.cut_short,
        asked_to_stop=interrupted,
    )


def _by_probability(search: Search, chosen: Pilot) -> list[Choice]:
    """For every p the cheapest setting, as measured, or as predicted where its pilots were stopped before."""
    rows = []
    for p in sorted({pilot.setting.server_prob for pilot in search.track.finished if pilot.rounds}):
        best = chosen if chosen.setting.server_prob == p else _best_at(search, p)
        if best is None:
            continue
        # A pilot that was stopped will cost more than it had paid by then; few seeds do not reach what finals cannot.
        price = math.inf if search.out_of_reach else max(best.predicted(search.track.target), best.floor)
        rows.append(Choice(best.setting, price, math.isfinite(best.cost), best.parts(price)))
    return rows


def _best_at(search: Search, p: float) -> Pilot | None:
    """The cheapest pilot at one p. What ran longest tells most: the run-off, the finals, what was not dropped."""
    here = [q for q in search.track.finished if q.setting.server_prob == p and q.setting not in search.failed]
    here = [q for q in here if q.status not in (DIVERGED, LUCKY) and q.rounds]
    decided, finals = (
        [q for q in here if q in stage and math.isfinite(q.cost)] for stage in (search.run_off, search.finals)
    )
    # These missed the target; pilots with fewer seeds would only flatter them.
    late = [q for q in here if q in search.finals]
    here = decided or finals or late or [q for q in here if q.status != SLOWER] or here
    return min(here, key=lambda q: (q.cost, q.predicted(search.track.target)), default=None)


def networks_to_try(network: Network) -> dict[str, Network]:
    """One network for each choice of weights, none twice."""
    if network.push is not None:  # rules of weights are for links that go both ways
        return {network.weights_name: network}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # FDLA says when it falls back to constant weights
        tried = {name: network.with_weights(name) for name in WEIGHTS}
    tried.setdefault(network.weights_name, network)
    found: dict[str, Network] = {}
    for name, each in tried.items():
        if all(abs(other.weights - each.weights).max() >= 1e-9 for other in found.values()) and not (
            found and network.varying and _same_links(each, next(iter(found.values())))
        ):
            found[name] = each
    return found


def _same_links(one: Network, other: Network) -> bool:
    """Whether links vary alike: most rules that vary them have weights of their own."""
    rules = (jax.tree.flatten(each.gossip.rule) for each in (one, other))
    (leaves, form), (others, same) = rules
    return form == same and all(np.array_equal(a, b) for a, b in zip(leaves, others, strict=True))
