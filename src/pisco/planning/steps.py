"""A step size before a run: is it safe?

Theory alone warns too often. At the curvature of x⁰, tuned steps on a9a lie two to five times above the mean-square
limit and do well. The curvature falls along the path, server rounds come before deviations have grown, and a logistic
gradient is bounded. So theory only raises the question; the first rounds of the run itself, which cost little because
its program has to be compiled anyway, answer it.
"""

from __future__ import annotations

import math
import time
import warnings
from typing import Any, NamedTuple

import jax
import numpy as np

from pisco.engines.history import ABSURD
from pisco.engines.job import Job, Run, check_kinds, even_chunk, next_segment
from pisco.engines.scan import ScanEngine
from pisco.errors import check_batch_size
from pisco.networks.network import Network
from pisco.networks.spectral import DENSE_UP_TO, is_symmetric
from pisco.planning.settings import is_plain, rule_of
from pisco.problems.problem import Problem
from pisco.problems.subsample import subsample
from pisco.theory.estimates import NotSmooth, agent_curvatures
from pisco.theory.safe_steps import MOST_WITH_COINS, agents_growth, largest_safe_step
from pisco.trouble import heeding
from pisco.types import Algorithm

AFFORDABLE = 2e10
"""Floating-point operations that a look at the curvature, or a chunk of trial rounds, may take: a second or two."""

HESSIANS = 15
TRIAL_SECONDS = 1.0
OFTEN = 0.05
"""A trial is harmful when the loss stands above its start in this share of the rounds, or at the end."""

CERTAIN = 2.0
"""Without a server and without a trial, growth above this a round is reported anyway."""


class Doubt(NamedTuple):
    """Why a step size may be unstable."""

    local_lr: float
    growth: float
    limit: float
    rounds: int
    seen: str
    remedies: tuple[str, ...]

    def __str__(self) -> str:
        stable = f"stable up to {self.limit:.2g}" if self.limit > 0 else "no step is stable"
        tried = f"in {self.rounds} trial rounds " if self.rounds else ""
        return (
            f"algorithm.local_lr = {self.local_lr:g} is beyond what is stable on this network ({stable}): differences "
            f"between agents grow {math.sqrt(self.growth):.3g} times a round, and {tried}{self.seen}; "
            f"try {', '.join(self.remedies[:-1])} or {self.remedies[-1]}"
        )


def check_step(
    algorithm: Algorithm,
    problem: Problem,
    network: Network,
    *,
    rounds: int,
    batch_size: int | None = None,
    eval_every: int = 1,
    chunk_rounds: int = 100,
    seed: int = 0,
) -> Doubt | None:
    """None when a step size is fine, or nothing is known about it; else what is wrong and what to change.

    It knows PISCO's two forms on fixed weights, on problems whose agents' curvatures are cheap to look at. The limits
    are safe ones (`theory.largest_safe_step`): real ones may be larger, so beyond them a trial decides.

    >>> import numpy as np, pisco
    >>> problem = pisco.problems.quadratic(np.stack([np.eye(2)] * 10), np.arange(20.0).reshape(10, 2))
    >>> rule = pisco.algorithms.pisco(local_lr=0.3, local_steps=1)
    >>> print(check_step(rule, problem, pisco.Network.ring(10, weights="fdla"), rounds=200))
    algorithm.local_lr = 0.3 is beyond what is stable on this network (stable up to 0.011): ...
    >>> check_step(rule, problem, pisco.Network.ring(10), rounds=200) is None
    True
    """
    check_kinds(algorithm=algorithm, problem=problem, network=network)
    check_batch_size(batch_size)
    p = network.server.probability
    rule = rule_of(algorithm, p) if p is not None and is_plain(network) else None
    if rule is None:
        return None
    if network.num_agents > DENSE_UP_TO and not is_symmetric(network.weights):
        return None
    one_way = network.push is not None
    if one_way and network.num_agents > MOST_WITH_COINS:
        return None
    weights = (network.weights, network.push) if one_way else network.weights
    look = _affordable(problem)
    if look is None:
        return None
    lr = float(algorithm.hyperparameters["local_lr"])
    few, flops = look
    try:
        curvatures = agent_curvatures(few, samples=_measured_samples(few), iterations=HESSIANS)
    except NotSmooth:  # such as a PyTorch module
        return None
    if not curvatures.max() > 0:
        return None
    worst = agents_growth(curvatures, weights, local_lr=lr, **rule)
    if worst <= 1:
        return None
    # What the cases in which agents are flat allow for is left to the trial: here agents are as steep as they seem.
    seeming = agents_growth(curvatures[:, None, None], weights, local_lr=lr, **rule)
    with heeding(problem.trouble):
        seen = _trial(
            algorithm,
            Job(problem, network, (Run(algorithm, network.server, seed),), batch_size),
            flops=flops,
            worst=seeming,
            rounds=rounds,
            eval_every=eval_every,
            chunk_rounds=chunk_rounds,
        )
    if seen is None:
        return None
    limit = largest_safe_step(curvatures, weights, **rule)
    remedies = [f"algorithm.local_lr={_below(limit):g}"] if limit > 0 else []
    remedies += ['algorithm.local_lr="auto"']
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)
        names = () if one_way else ("pisco-step", "metropolis")
        others = {name: Network(network.graph, weights=name).weights for name in names}
    changes: dict[str, Any] = {f"network.weights={name}": (other, rule) for name, other in others.items()}
    changes["algorithm.name=pisco-one-exchange"] = weights, {**rule, "one_exchange": True}
    for change, (other, changed) in changes.items():
        if agents_growth(curvatures, other, local_lr=lr, **changed) < 1:
            allowed = largest_safe_step(curvatures, other, **changed)
            remedies.append(f"{change} (stable up to {allowed:.2g})")
    if p is not None and p < 1:
        coin = hasattr(network.server, "server_prob")  # other schedules take no chance
        remedies.append("a larger network.server_prob" if coin else "a network.server that is reached more often")
    return Doubt(lr, seeming if seeming > 1 else worst, limit, seen[0], seen[1], tuple(remedies))


def _below(limit: float) -> float:
    """A round number a little below the limit."""
    exponent = math.floor(math.log10(limit))
    return next(m * 10.0**exponent for m in (8, 5, 4, 3, 2, 1, 0.8) if m * 10.0**exponent <= 0.9 * limit)


def _affordable(problem: Problem) -> tuple[Problem, float] | None:
    """The problem with as few samples as a second allows, and what the loss of one sample costs.

    None when even few samples cost too much.
    """
    for count in (2000, 200):
        few = subsample(problem, count, test=False)
        params = few.params_like
        cost = jax.jit(lambda problem, x: problem.objective(x)).lower(few, params).cost_analysis() or {}
        flops = float(cost.get("flops", math.inf))
        if HESSIANS * 6 * flops <= AFFORDABLE:  # a Hessian product is about six times the loss
            return few, flops / _measured_samples(few)
    return None


def _chunk_flops(algorithm: Algorithm, job: Job, each: float, chunk: int, evals: int) -> float:
    """What one chunk of the run costs: a gradient is about three times a loss."""
    steps = chunk * (algorithm.hyperparameters["local_steps"] + 1) * job.problem.num_agents
    gradients = steps * (job.batch_size or job.problem.max_size)
    return 3 * each * (gradients + evals * _measured_samples(job.problem))


def _measured_samples(problem: Problem) -> int:
    few = problem.eval_samples
    return problem.num_samples if few is None else few * problem.num_agents


def _trial(
    algorithm: Algorithm, job: Job, *, flops: float, worst: float, rounds: int, eval_every: int, chunk_rounds: int
) -> tuple[int, str] | None:
    """The first chunks of the run itself: how many rounds, and what went wrong; None when nothing did."""
    chunk = even_chunk(rounds, eval_every, chunk_rounds)
    if _chunk_flops(algorithm, job, flops, chunk, max(1, chunk // eval_every)) > AFFORDABLE:
        # Too long to try. Where the server resets deviations now and then, theory alone proves nothing: the MNIST
        # preset has a growth of 2.4 at x⁰ and does well.
        certain = job.network.server.never_reached and worst > CERTAIN
        return (0, "nothing will reset them") if certain else None
    engine = ScanEngine()
    # As long as growth from rounding would take to show, unless that is long.
    wanted = min(rounds, max(2 * chunk, int(30 / math.log(worst)) if worst > 1.001 else rounds))
    states = engine.start(job)
    start = float(engine.measure(job, states)["loss"][0])
    losses: list[float] = []
    done, began = 0, 0.0
    while done < wanted:
        segment = next_segment(done, rounds, eval_every, chunk)
        states, rows, _ = engine.advance(job, states, done, segment)
        done += segment.rounds
        newest = rows or {name: values[:, None] for name, values in engine.measure(job, states).items()}
        losses += [float(value) for value in newest["loss"][0]]
        if not math.isfinite(losses[-1] + float(newest["consensus_error"][0, -1])):
            return done, "the loss is no longer finite"
        began = began or time.monotonic()  # the first chunk compiles what the run needs anyway
        if time.monotonic() - began > TRIAL_SECONDS:
            break
    above = float(np.mean(np.asarray(losses) > start))
    apart = float(newest["consensus_error"][0, -1])
    if losses[-1] > start or above > OFTEN:
        return done, f"the loss has been as high as {max(losses):.3g} after a start at {start:.3g}"
    if apart > ABSURD:
        return done, f"agents are {math.sqrt(apart):.3g} apart"
    return None
