"""What a plan chooses from: settings of PISCO, and how the theory narrows them down before anything is run."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import jax
import numpy as np

from pisco.algorithms.pisco import pisco
from pisco.costs import MessageSizes, message_sizes
from pisco.networks.network import Network
from pisco.networks.schedules import Schedule, bernoulli
from pisco.problems.problem import Problem
from pisco.theory.estimates import Estimates
from pisco.theory.stability import Rule, best_step, largest_stable_step, weight_modes
from pisco.tree import stack_agents
from pisco.types import Algorithm

PROBABILITIES = (0.0, 0.01, 0.03, 0.1, 0.3, 1.0)
CONDITION = 10.0
"""The condition number at which rounds are predicted, where only their ratio between weights counts."""

HOPELESS = 3.0
"""Weights that are predicted to need this many times the rounds of the best ones are not tried."""


class Setting(NamedTuple):
    """One way to run PISCO on a graph."""

    weights: str
    one_exchange: bool
    local_steps: int
    server_prob: float
    local_lr: float
    comm_lr: float = 1.0

    @property
    def algorithm(self) -> Algorithm:
        """The update rule."""
        steps: dict[str, Any] = {"local_lr": self.local_lr, "comm_lr": self.comm_lr}
        return pisco(local_steps=self.local_steps, one_exchange=self.one_exchange, **steps)

    @property
    def rule(self) -> Rule:
        """What matters for stability besides weights and η_l."""
        steps: Rule = {"local_steps": self.local_steps, "comm_lr": self.comm_lr}
        return {**steps, "server_prob": self.server_prob, "one_exchange": self.one_exchange}

    @property
    def server(self) -> Schedule:
        """When the server is reached."""
        return bernoulli(self.server_prob)

    def sizes(self, problem: Problem) -> MessageSizes:
        """What an agent sends and computes in a round."""
        params = jax.eval_shape(lambda key: stack_agents(problem.init(key), 1), jax.random.key(0))
        return message_sizes(self.algorithm, params, 1)

    def describe(self) -> str:
        """In words, for progress and tables."""
        form = "one exchange" if self.one_exchange else "two exchanges"
        return (
            f"{self.weights}, {form}, p = {self.server_prob:.3g}, T_o = {self.local_steps}, η_l = {self.local_lr:.3g}"
        )


class Modes(NamedTuple):
    """The eigenvalues of every choice of weights that limit the step (`weight_modes`)."""

    by_weights: Mapping[str, tuple[complex, ...]]

    @classmethod
    def of(cls, networks: Mapping[str, Network]) -> Modes:
        return cls({name: weight_modes(network.weights) for name, network in networks.items()})

    def limit(self, setting: Setting, curvature: float) -> float:
        """The largest stable η_l if all agents were alike with this curvature: where to search, not what is safe."""
        return largest_stable_step(self.by_weights[setting.weights], curvature, **setting.rule)

    def rounds(self, setting: Setting) -> float:
        """Predicted rounds for a factor e in the error, at the best step, on quadratics of condition `CONDITION`."""
        # Without the modes μ = 1 of a disconnected graph, which are the same for all weights.
        modes = [mode for mode in self.by_weights[setting.weights] if abs(mode - 1) > 1e-9]
        _, shrink = best_step(modes, 1.0, condition=CONDITION, **setting.rule)
        return 2 / -np.log(shrink) if 0 < shrink < 1 else float("inf" if shrink >= 1 else 0)


def step_sizes(limit: float, greatest: float, cautious: float) -> list[float]:
    """The η_l to try, 1-2-5: around the stable limit, and not far above what gradient descent itself allows.

    Tuned steps on a9a lie up to five times above the limit at x⁰, because the curvature falls along the path; and where
    the limit is gradient descent's own, the best step lies below it, the more so the more agents' curvatures differ:
    `cautious` is gradient descent's limit on the steepest agent alone.
    """
    low, high = min(limit / 2, cautious / 10), min(10 * limit, 2 * greatest)
    exponents = range(int(np.floor(np.log10(low))) - 1, int(np.ceil(np.log10(high))) + 1)
    every = [float(f"{m}e{e}") for e in exponents for m in (1, 2, 5)]
    return [step for step in every if low <= step <= high]


def candidates(modes: Modes, estimates: Estimates, probabilities: Sequence[float] = PROBABILITIES) -> list[Setting]:
    """Settings worth a pilot run, at T_o = 1: weights that the theory does not rule out, steps near its limits."""
    curvature = max(estimates.smoothness, 1e-12)
    easing = float(np.clip(curvature / max(estimates.end_smoothness, 1e-12), 1.0, 4.0))
    out: list[Setting] = []
    for one_exchange in (True, False):
        for p in probabilities:
            tried = [Setting(name, one_exchange, 1, p, 1.0) for name in modes.by_weights]
            predicted = [modes.rounds(setting) for setting in tried]
            if p == 1:
                tried, predicted = tried[:1], predicted[:1]  # gossip is never used
            for setting, rounds in zip(tried, predicted, strict=True):
                if rounds > HOPELESS * min(predicted):
                    continue
                limit = modes.limit(setting, curvature)
                descent = modes.limit(setting._replace(server_prob=1.0), curvature)
                cautious = descent * curvature / max(estimates.agent_smoothness, curvature)
                steps = step_sizes(limit, easing * descent, cautious)
                out += [setting._replace(local_lr=step) for step in steps]
    return out
