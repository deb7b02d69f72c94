"""What a plan chooses from: settings of a method, and how the theory narrows them down before anything is run."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import jax
import numpy as np

from pisco.algorithms.pisco import pisco
from pisco.algorithms.registry import ALGORITHMS, build
from pisco.costs import MessageSizes, message_sizes
from pisco.engines.job import check_needs
from pisco.errors import InputError
from pisco.networks.network import Network
from pisco.networks.schedules import SCHEDULES, Schedule, bernoulli
from pisco.problems.problem import Problem
from pisco.theory.estimates import Estimates
from pisco.theory.stability import Rule, best_step, largest_stable_step, weight_modes
from pisco.tree import stack_agents
from pisco.types import Algorithm

PISCO = ("pisco-one-exchange", "pisco")
"""What is planned unless other methods are named: PISCO in both forms."""

PROBABILITIES = (0.0, 0.01, 0.03, 0.1, 0.3, 1.0)
CONDITION = 10.0
"""The condition number at which rounds are predicted, where only their ratio between weights counts."""

HOPELESS = 3.0
"""Weights that are predicted to need this many times the rounds of the best ones are not tried."""

WIDE = 50.0
"""A method that the theory does not know is tried down to gradient descent's limit over this."""


class Setting(NamedTuple):
    """One way to run a method on a graph."""

    method: str
    weights: str
    local_steps: int | None
    """None where the method has no such number."""
    server_prob: float
    local_lr: float

    @property
    def algorithm(self) -> Algorithm:
        """The update rule; one that has to know p is told it."""
        given = {} if self.local_steps is None else {"local_steps": self.local_steps}
        own = {"server_prob": self.server_prob} if self.knows_prob else {}
        return build(self.method, local_lr=self.local_lr, **given, **own)

    @property
    def knows_prob(self) -> bool:
        """Whether the method has p among its hyperparameters."""
        return "server_prob" in ALGORITHMS[self.method].hyperparameters

    @property
    def published(self) -> Mapping[str, Any]:
        """The network that the method is published on."""
        return ALGORITHMS[self.method].network

    @property
    def periodic(self) -> bool:
        """Whether the server is reached every H rounds (or so, as the loss falls), not by a coin; p is then 1/H."""
        return "period" in self.published

    def weighs(self, network: Network) -> bool:
        """Whether the network's weights matter: agents gossip, and not on links of the method's own."""
        used = self.on(network)
        always = self.schedule(network).probability == 1.0 and not used.gossip_before_server
        gossips = used.gossip_steps > 0 and not always
        return gossips and used.varying is network.varying

    def at(self, server_prob: float) -> Setting:
        """The same at another p, or at the nearest 1/H."""
        return self._replace(server_prob=1 / max(1, round(1 / server_prob)) if self.periodic else server_prob)

    def on(self, network: Network) -> Network:
        """The network as the method uses it (`Network.used_as`)."""
        return network.used_as(self.published)

    def rule(self, network: Network) -> Rule | None:
        """What matters for stability besides weights and η_l; None where no theory of ours knows method or network."""
        known = is_plain(self.on(network)) and network.push is None
        return rule_of(self.algorithm, self.server_prob) if known else None

    def schedule(self, network: Network) -> Schedule:
        """When the server is reached; what the network's schedule says besides H stays, where it is of that kind."""
        if not self.periodic:
            return bernoulli(self.server_prob)
        made: Any = SCHEDULES[self.published["server"]](period=round(1 / self.server_prob))
        given: Any = network.server
        return replace(given, period=made.period) if isinstance(given, type(made)) else made

    def sizes(self, problem: Problem) -> MessageSizes:
        """What an agent sends and computes in a round."""
        params = jax.eval_shape(lambda key: stack_agents(problem.init(key), 1), jax.random.key(0))
        return message_sizes(self.algorithm, params, 1)

    def describe(self) -> str:
        """In words, for progress and tables."""
        steps = "" if self.local_steps is None else f" T_o = {self.local_steps},"
        return f"{self.method}, {self.weights}, p = {self.server_prob:.3g},{steps} η_l = {self.local_lr:.3g}"


def rule_of(algorithm: Algorithm, server_prob: float) -> Rule | None:
    """PISCO's hyperparameters as the theory of stability takes them; None for other update rules."""
    if algorithm.factory is not pisco.__wrapped__:  # type: ignore[attr-defined]
        return None
    names = ("local_steps", "comm_lr", "one_exchange")
    local_steps, comm_lr, one_exchange = (algorithm.hyperparameters[name] for name in names)
    return {"local_steps": local_steps, "comm_lr": comm_lr, "server_prob": server_prob, "one_exchange": one_exchange}


def is_plain(network: Network) -> bool:
    """Whether the theory of stability knows such a network: steady links, gossip once or the server, all report."""
    odd = network.varying or network.sampling or network.gossip_before_server or network.gossip_steps != 1
    return not odd and network.presence is None


def first_setting(method: str) -> Setting:
    """A method with one local step; refuses one whose step size is not called `local_lr`."""
    known = ALGORITHMS[method].hyperparameters
    if "local_lr" not in known:
        raise InputError(f"algorithm {method!r} has no `local_lr` to plan; call its step size that")
    return Setting(method, "", 1 if "local_steps" in known else None, 0.0, 1.0)


def allowed(setting: Setting, network: Network, probabilities: Sequence[float]) -> list[float]:
    """Those p on which the method can run; the reason, where there is none."""
    fit, refused = [], None
    used = setting.on(network)
    for p in probabilities:
        try:
            if setting.periodic and not p:
                raise InputError(f"{setting.method} reaches the server every H = 1/p rounds; allow p > 0")
            each = setting.at(p)
            check_needs(each.algorithm, used.with_server(each.schedule(network)))
            fit.append(each.server_prob)
        except InputError as error:
            refused = error
    if refused is not None and not fit:
        raise refused
    return list(dict.fromkeys(fit))


def can_plan(method: str, network: Network, probabilities: Sequence[float] = PROBABILITIES) -> bool:
    """Whether a method can run on a network at one of these p."""
    try:
        return bool(allowed(first_setting(method), network, probabilities))
    except InputError:
        return False


class Modes(NamedTuple):
    """The eigenvalues of every choice of weights that limit the step (`weight_modes`)."""

    by_weights: Mapping[str, tuple[complex, ...]]

    @classmethod
    def of(cls, networks: Mapping[str, Network]) -> Modes:
        both_ways = {name: network for name, network in networks.items() if network.push is None}
        return cls({name: weight_modes(network.weights) for name, network in both_ways.items()})

    def limit(self, weights: str, rule: Rule, curvature: float) -> float:
        """The largest stable η_l if all agents were alike with this curvature: where to search, not what is safe."""
        return largest_stable_step(self.by_weights[weights], curvature, **rule)

    def rounds(self, weights: str, rule: Rule) -> float:
        """Predicted rounds for a factor e in the error, at the best step, on quadratics of condition `CONDITION`."""
        # Without the modes μ = 1 of a disconnected graph, which are the same for all weights.
        modes = [mode for mode in self.by_weights[weights] if abs(mode - 1) > 1e-9]
        _, shrink = best_step(modes, 1.0, condition=CONDITION, **rule)
        return 2 / -np.log(shrink) if 0 < shrink < 1 else float("inf" if shrink >= 1 else 0)


def step_sizes(low: float, high: float) -> list[float]:
    """The η_l to try, 1-2-5."""
    exponents = range(int(np.floor(np.log10(low))) - 1, int(np.ceil(np.log10(high))) + 1)
    every = [float(f"{m}e{e}") for e in exponents for m in (1, 2, 5)]
    return [step for step in every if low <= step <= high]


def candidates(
    first: Setting,
    networks: Mapping[str, Network],
    modes: Modes,
    estimates: Estimates,
    probabilities: Sequence[float] = PROBABILITIES,
    gradients: int = 1,
) -> list[Setting]:
    """Settings of a method worth a pilot run, with the local steps that it begins with.

    For PISCO: weights that the theory does not rule out, steps around its stable limit, and not far above what gradient
    descent itself allows. Tuned steps on a9a lie up to five times above the limit at x⁰, because the curvature falls
    along the path. Where the limit is gradient descent's own, the best step lies below it, and further below where
    agents' curvatures differ more. Other methods, which take `gradients` a round, are tried on all weights, from
    gradient descent's limit down.
    """
    curvature = max(estimates.smoothness, 1e-12)
    easing = float(np.clip(curvature / max(estimates.end_smoothness, 1e-12), 1.0, 4.0))
    out: list[Setting] = []
    for p in probabilities:
        tried = {name: first._replace(weights=name, server_prob=p) for name in networks}
        if not first._replace(server_prob=p).weighs(next(iter(networks.values()))):
            tried = dict(list(tried.items())[:1])
        rules = {name: rule for name, setting in tried.items() if (rule := setting.rule(networks[name]))}
        rounds = {name: modes.rounds(name, rule) for name, rule in rules.items()}
        for name, setting in tried.items():
            if rounds and rounds[name] > HOPELESS * min(rounds.values()):
                continue
            descent, limit = 2 / (curvature * gradients), np.inf
            if rules:
                descent = modes.limit(name, {**rules[name], "server_prob": 1.0}, curvature)
                limit = modes.limit(name, rules[name], curvature)
            # Gradient descent's limit on the steepest agent alone.
            cautious = descent * curvature / max(estimates.agent_smoothness, curvature)
            low, high = min(limit / 2, cautious / (10 if rules else WIDE)), min(10 * limit, 2 * easing * descent)
            out += [setting._replace(local_lr=step) for step in step_sizes(low, high)]
    return out
