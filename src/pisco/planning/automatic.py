"""`local_lr = "auto"`: a step size by trying, judged by where runs end that are as long as the one to come.

Which step ends lowest depends on how long it runs: with noisy gradients a larger one is ahead at first, and a smaller
one at the end. So short trials only say where to begin; from there the length grows, and the steps around the best are
tried again, until the run's own length is reached or the time is over.
"""

from __future__ import annotations

import math
import time
import warnings
from collections.abc import Callable, Sequence

import numpy as np

from pisco.engines.job import check_kinds
from pisco.engines.run import sweep
from pisco.errors import InputError, check_counts, check_number, check_positive
from pisco.networks.network import Network
from pisco.planning.steps import check_step
from pisco.problems.problem import Problem
from pisco.problems.subsample import subsample
from pisco.results import Result
from pisco.theory.estimates import smoothness
from pisco.types import Algorithm

FIRST, LONGER = 100, 4
"""Rounds of the first trials, and how many times longer the next ones are."""

ROWS, LAST = 40, 6
"""Measured rows of a trial, and the last ones, whose mean is where it ends."""

FINER = (2**0.5, 2**0.25)
"""Once the length is the run's own: steps between the halves."""


def auto_step(
    rule: Callable[[float], Algorithm],
    problem: Problem,
    network: Network,
    *,
    rounds: int,
    batch_size: int | None = None,
    local_steps: int = 1,
    seeds: Sequence[int] = tuple(range(600, 610)),
    seconds: float = 30.0,
) -> float:
    """A step size that is safe and ends low, by trying: the one whose trials end with the smallest ‖∇f(x̄)‖².

    Steps from twice gradient descent's limit 2/(L·(T_o + 1)) downwards by halves are tried for up to 100 rounds. Around
    the best, trials grow to the length of the run, by halves and doubles, and then finer. Where time was over before
    that, the step is halved until `check_step` has no doubt: what grows slowly is not seen in few rounds.

    Args:
      rule: from η_l to an update rule.
      problem: loss and data.
      network: graph, weights and server schedule.
      rounds: of the run to come.
      batch_size: samples per gradient, None for all.
      local_steps: T_o of the rule, for the first step to try.
      seeds: of the trials.
      seconds: after this time nothing longer is tried.

    >>> import numpy as np, pisco
    >>> problem = pisco.problems.quadratic(np.stack([np.eye(2)] * 10), np.arange(20.0).reshape(10, 2))
    >>> network = pisco.Network.ring(10, weights="fdla")
    >>> auto_step(lambda lr: pisco.algorithms.pisco(local_lr=lr, local_steps=1), problem, network, rounds=200) < 0.02
    True
    """
    check_kinds(problem=problem, network=network)
    if not callable(rule):
        raise InputError(f"rule is {rule!r}, expected a function of a step size, as in lambda lr: dsgd(local_lr=lr)")
    check_counts(rounds=rounds)
    check_number("local_steps", local_steps, low=0, integer=True)
    check_positive(seconds=seconds)
    deadline = time.monotonic() + seconds
    curvature = max(smoothness(subsample(problem, 5000, test=False), iterations=15), 1e-12)
    grid = [4 / (curvature * (local_steps + 1)) / 2**k for k in range(12)]
    length = min(rounds, FIRST)
    untested = subsample(problem, problem.num_agents * problem.max_size, test=False)
    trials = _Trials(rule, untested, network, batch_size, seeds)
    ends = trials.ends(grid, length)
    best = min(ends, key=ends.__getitem__)
    if math.isinf(ends[best]):
        raise InputError(
            f"no step size from {grid[-1]:.2g} to {grid[0]:.2g} lowers the loss in {length} rounds; "
            "give algorithm.local_lr a number, or check the problem"
        )
    while length < rounds and trials.time_of(LONGER * length, 3) < deadline:
        length = min(rounds, LONGER * length)
        best = _descend(lambda steps, length=length: trials.ends(steps, length), best, 2.0)
    for factor in FINER:
        if length == rounds and trials.time_of(length, 2) < deadline:
            best = _descend(lambda steps: trials.ends(steps, rounds), best, factor)
    best = float(f"{best:.3g}")
    if length == rounds:
        return best
    while doubt := check_step(rule(best), problem, network, rounds=rounds, batch_size=batch_size):
        if not doubt.limit > 0:  # a step so small that nothing grows in time gains nothing either
            raise _none_found(best)
        best = float(f"{best / 2:.3g}")
    return best


class _Trials:
    """Runs of one rule with different steps, none run twice."""

    def __init__(
        self,
        rule: Callable[[float], Algorithm],
        problem: Problem,
        network: Network,
        batch_size: int | None,
        seeds: Sequence[int],
    ):
        self.rule, self.problem, self.network = rule, problem, network
        self.batch_size, self.seeds = batch_size, seeds
        self.known: dict[tuple[float, int], float] = {}
        self.pace = 0.0  # seconds of a step's round, the newest

    def time_of(self, length: int, steps: int) -> float:
        """When so many trials of this length would be over."""
        return time.monotonic() + self.pace * length * steps

    def ends(self, steps: Sequence[float], length: int) -> dict[float, float]:
        """Where each step ends: the mean of log ‖∇f(x̄)‖² over seeds and last rows; infinite where the loss grew."""
        fresh = [step for step in steps if (step, length) not in self.known]
        if fresh:
            began = time.monotonic()
            for step, result in zip(fresh, self._run(fresh, length), strict=True):
                self.known[step, length] = _ending(result)
            self.pace = (time.monotonic() - began) / (length * len(fresh))
        return {step: self.known[step, length] for step in steps}

    def _run(self, steps: Sequence[float], length: int) -> list[Result]:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", UserWarning)  # the run itself warns of a disconnected graph
            found = sweep(
                [(self.rule(step), self.network.server) for step in steps],
                self.problem,
                self.network,
                rounds=length,
                batch_size=self.batch_size,
                seeds=self.seeds,
                eval_every=max(1, length // ROWS),
                chunk_rounds=max(50, length // ROWS),
            )
        if any(result.asked_to_stop for result in found):
            raise KeyboardInterrupt
        return found


def _ending(result: Result) -> float:
    loss = result.column("loss")
    if result.diverged or not bool((loss[:, -1] < loss[:, 0]).all()):
        return math.inf
    # The server's coins make single rows and seeds swing by factors.
    return float(np.log(np.maximum(result.column("grad_norm_sq")[:, -LAST:], 1e-300)).mean())


def _descend(ends: Callable[[Sequence[float]], dict[float, float]], step: float, factor: float) -> float:
    """From a step to the best of those around it, and on as long as there is a better one."""
    at, found = 0, dict[int, float]()
    for _ in range(40):
        look = [k for k in (at + 1, at, at - 1) if k not in found]
        found |= zip(look, ends([step * factor**k for k in look]).values(), strict=True)
        best = min(found, key=lambda k: (found[k], k))  # where all are too large, the smallest
        if best == at:
            return step * factor**at
        at = best
    raise _none_found(step * factor**at)


def _none_found(least: float) -> InputError:
    return InputError(
        f"no step size down to {least:.2g} lowers the loss over so many rounds on this network; use "
        "network.weights=metropolis, one exchange, or a server now and then"
    )
