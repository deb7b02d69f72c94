"""Conformance checks on anybody's update rule: what every engine relies on, tried on a small problem in seconds.

>>> import pisco
>>> print(check_algorithm(pisco.algorithms.dsgd(local_lr=0.1)))
dsgd: all 8 checks pass
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from pisco.algorithms.registry import build
from pisco.attacks.poison import poisoned
from pisco.costs import message_sizes
from pisco.engines.evaluate import innermost
from pisco.errors import InputError, brief
from pisco.federation.runtime.cut import Cut, exchange
from pisco.networks.placement import Everybody
from pisco.networks.rounds import RoundMix, Told
from pisco.tree import mean_over_agents, num_bytes, stack_agents
from pisco.types import Algorithm, StartMix

__all__ = ["Report", "check_algorithm", "poisoned"]

AGENTS, ROUNDS = 4, 2
W = np.array([[4, 3, 0, 1], [1, 4, 3, 0], [0, 1, 4, 3], [3, 0, 1, 4]]) / 8  # doubly stochastic, not symmetric
START = {"layers": [np.linspace(-1, 1, 6, dtype=np.float32).reshape(2, 3)], "scale": np.float32(0.5)}
MINIMA = jax.tree.map(lambda x: np.random.default_rng(x.size).normal(size=(AGENTS, *x.shape)), START)
SCALES = (1e-3, 1.0, 1e3)
"""Of the gradients: a clip that leaves one size alone shows at another."""


class Check(NamedTuple):
    """One check: what breaks and how to fix it, empty when it passed."""

    name: str
    broken: str


@dataclass(frozen=True)
class Report:
    """What `check_algorithm` found."""

    rule: str
    checks: tuple[Check, ...]

    @property
    def passed(self) -> bool:
        """Whether nothing is broken."""
        return not any(check.broken for check in self.checks)

    def __str__(self) -> str:
        broken = [f"{self.rule}, {check.name}: {check.broken}" for check in self.checks if check.broken]
        return "\n".join(broken) or f"{self.rule}: all {len(self.checks)} checks pass"


def check_algorithm(rule: Algorithm | str, **hyperparameters: Any) -> Report:
    """Try whether a rule keeps what every engine relies on; each failure is one sentence with its remedy.

    Args:
      rule: an algorithm, or a name such as "my_algos.py:extra".
      hyperparameters: those of a name.
    """
    if isinstance(rule, str):
        rule = build(rule, **hyperparameters)
    if not isinstance(rule, Algorithm):
        raise InputError(f"the rule is {rule!r}, expected an algorithm, as in extra(local_lr=0.1)")
    trial, checks = _Trial(rule), []
    for name, check in _CHECKS.items():
        try:
            broken = check(trial)
        except jax.errors.ConcretizationTypeError:
            broken = "a traced value decides in an `if`; use jnp.where, or name the number in @algorithm(static=…)"
        except Exception as error:
            broken = brief(error) if isinstance(error, InputError) else f"it fails with {brief(error)}"
        checks.append(Check(name, broken))
        if broken and check is _state:  # the others would only say it again
            break
    return Report(rule.name, tuple(checks))


class _Agents(NamedTuple):
    """Agents with quadratics of their own and gradients that depend on the key, and the weights between them."""

    numbers: Any
    minima: Any
    weights: Any
    key: Any

    def grad(self, params: Any, key: jax.Array) -> Any:
        drawn = jnp.sum(jax.random.key_data(key) % 1000)  # far quicker to compile than a draw

        def leaf(x: jax.Array, minima: jax.Array) -> jax.Array:
            noise = jnp.sin(drawn * (1.0 + self.numbers)).reshape(-1, *[1] * (x.ndim - 1))
            return (0.5 * (x - minima) + 0.1 * noise).astype(x.dtype)

        return jax.tree.map(leaf, params, self.minima)

    def apply(self, tree: Any) -> Any:
        return jax.tree.map(lambda x: jnp.tensordot(self.weights.T.astype(x.dtype), x, 1), tree)

    def mix(self, apply: Callable[[Any], Any] | None = None) -> RoundMix:
        everyone = jnp.ones(self.numbers.shape, bool)
        here = Everybody()
        here.numbers = lambda count: self.numbers  # pyright: ignore[reportAttributeAccessIssue]
        return RoundMix(apply or self.apply, Told(everyone, 1.0, ~everyone), here)


class _Trial:
    """A rule and its compiled trajectory, shared by the checks."""

    def __init__(self, rule: Algorithm):
        self.rule, self.traces, self.compiled = rule, 0, jax.jit(self.trajectory)

    def agents(self, numbers: Any = range(AGENTS), weights: Any = W, scale: float = 1.0) -> _Agents:
        minima = jax.tree.map(lambda x: np.float32(scale * x[list(numbers)]), MINIMA)
        return _Agents(np.array(numbers), minima, weights, jax.random.key(7))

    def trajectory(self, rule: Algorithm, agents: _Agents) -> Any:
        self.traces += 1
        params, mix = stack_agents(jax.tree.map(jnp.asarray, START), len(agents.numbers)), agents.mix()
        start = rule.init(params, agents.key, agents.grad, StartMix(agents.apply, agents.apply))

        def one_round(state: Any, k: Any) -> Any:
            return rule.round(state, jax.random.fold_in(agents.key, k), agents.grad, mix), None

        return jax.lax.scan(one_round, start, jnp.arange(ROUNDS))[0]

    def after(self, *given: Any) -> Any:
        """The state after a few rounds."""
        return self.compiled(self.rule, self.agents(*given))


def _state(trial: _Trial) -> str:
    """Fields, shapes and dtypes, traced with parameters of two dtypes."""
    key, mix = jax.random.key(0), trial.agents().mix()

    def same(tree: Any, key: Any = None) -> Any:
        return tree

    def like(x: Any) -> jax.ShapeDtypeStruct:
        return jax.ShapeDtypeStruct((AGENTS, *x.shape), jnp.bfloat16 if x.ndim else jnp.float32)

    def start(rule: Algorithm, params: Any) -> Any:
        return rule.init(params, key, same, StartMix(same, same))

    params = jax.tree.map(like, START)
    first = jax.eval_shape(start, trial.rule, params)
    if not hasattr(first, "params"):
        return f"init returns a {type(first).__name__} without `params`; make the state a NamedTuple with that field"
    last = jax.eval_shape(lambda rule, state: rule.round(state, key, same, mix), trial.rule, first)
    if jax.tree.structure(first) != jax.tree.structure(last):
        return "round returns a state of another structure than init; return the same fields"
    for (path, now), then in zip(jax.tree.leaves_with_path(last), jax.tree.leaves(first), strict=True):
        where = jax.tree_util.keystr(path)
        before, after = (f"{x.dtype}{list(x.shape)}" for x in (then, now))
        if now.shape[:1] != (AGENTS,):
            return f"{where} of the state is {after}, not one entry for each agent; lead with the agents"
        if before != after:
            return f"{where} goes into a round as {before} and comes out as {after}; cast steps as pisco.tree does"
    if not jax.tree.all(jax.tree.map(lambda a, b: a.dtype == b.dtype, last.params, params)):
        return "`params` of the state do not have the dtypes of the start; keep them"
    finite = jax.tree.all(jax.tree.map(lambda x: bool(np.isfinite(x).all()), trial.after().params))
    # The other checks take NaN for like NaN, and would pass.
    return (
        "" if finite else f"`params` are not finite after {ROUNDS} rounds, so nothing can be seen; take smaller steps"
    )


def _permuted(trial: _Trial) -> str:
    order = np.array([2, 0, 3, 1])
    plain = jax.tree.map(lambda x: x[order], trial.after())
    return _differs(plain, trial.after(order, W[np.ix_(order, order)])) and (
        "agents in another order come to another state: the rule depends on an agent's place; leave the leading axis "
        "alone (pisco.tree, jax.tree.map, jax.vmap, mix.each)"
    )


def _alone(trial: _Trial) -> str:
    for scale in SCALES:
        together = trial.after(range(AGENTS), np.eye(AGENTS), scale)
        single = [trial.after([agent], np.eye(1), scale) for agent in range(AGENTS)]
        apart = jax.tree.map(lambda *leaves: np.concatenate(leaves), *single)
        where = _differs(together, apart)
        where = where or (_differs(_moved(together), _moved(apart), 1e-2, least=3e-4) and "`params`")
        if where:
            return (
                f"without exchanges {where} of an agent differs when others are there: the rule works on the "
                "whole stack (a norm, a mean, an optimizer over all agents at once); write it for one agent and use "
                "jax.vmap or mix.each"
            )
    return ""


def _tracked(trial: _Trial) -> str:
    state = innermost(trial.after())
    if not (hasattr(state, "tracker") and hasattr(state, "grads")):
        return ""
    if not trial.rule.needs.doubly_stochastic:
        return "a tracker needs rounds that keep the mean; return Pair(…, Needs(doubly_stochastic=True))"
    return _differs(mean_over_agents(state.tracker), mean_over_agents(state.grads)) and (
        "mean(tracker) is not mean(grads) after a few rounds; add new minus old gradients, and mix what must be mixed"
    )


def _costs(trial: _Trial) -> str:
    agents, state = trial.agents(), trial.after()
    mix = agents.mix(lambda tree: exchange(tree, "mix"))
    cut = Cut(lambda state: trial.rule.round(state, agents.key, agents.grad, mix), state)  # as in a federation
    sent = [num_bytes(leaves) // AGENTS for _, leaves in cut.messages]
    counted = message_sizes(trial.rule, state.params, AGENTS).whole
    return (
        ""
        if sent == counted
        else f"a round sends {sent} bytes a link, {counted} are counted; mix the same in every round"
    )


def _compiled(trial: _Trial) -> str:
    numbers = {name for name, value in trial.rule.hyperparameters.items() if isinstance(value, float)}
    fixed = numbers - {*trial.rule.traced, *getattr(trial.rule.factory, "static", ())}
    if fixed:
        return f"{min(fixed)} is a number whose type is not float, so every value compiles again; annotate it float"
    trial.after()
    before = trial.traces
    trial.compiled(jax.tree.map(lambda x: 0.9 * x, trial.rule), trial.agents())
    return "" if trial.traces == before else "other numbers compile again; give what the rule holds an __eq__"


def _same_bits(trial: _Trial) -> str:
    one, two = (jax.make_jaxpr(lambda *args: trial.trajectory(*args))(trial.rule, trial.agents()) for _ in "12")
    same = str(one) == str(two) and not _differs(one.consts, two.consts, 0.0)
    return "" if same else "a repeated round is not the same; draw only with jax.random and the round's key"


def _engines(trial: _Trial) -> str:
    with jax.disable_jit():
        where = _differs(trial.after(), trial.trajectory(trial.rule, trial.agents()))
    return where and f"compiled and in plain Python {where} differs; keep no Python state between rounds"


_CHECKS: dict[str, Callable[[_Trial], str]] = {
    "state": _state,
    "agents permuted": _permuted,
    "one agent alone": _alone,
    "mean tracked": _tracked,
    "costs counted": _costs,
    "compiled once": _compiled,
    "same seed, same bits": _same_bits,
    "engines agree": _engines,
}


def _moved(state: Any) -> Any:
    """How far `params` came, which may be little beside where they were."""
    return jax.tree.map(lambda x, start: np.asarray(x, float) - start, state.params, START)


def _differs(one: Any, other: Any, tolerance: float = 1e-4, least: float = 1e-6) -> str:
    """The first part of two states that differs, relative to its size; empty when none does."""
    for (path, a), b in zip(jax.tree.leaves_with_path(one), jax.tree.leaves(other), strict=True):
        a, b = np.asarray(a, float), np.asarray(b, float)
        if not np.allclose(a, b, rtol=0, atol=tolerance * np.nanmax(np.abs(a), initial=least), equal_nan=True):
            return f"`{jax.tree_util.keystr(path).lstrip('.')}`"
    return ""
