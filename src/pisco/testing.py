"""Conformance checks on anybody's update rule: what every engine relies on, tried on a small problem in seconds.

>>> import pisco
>>> print(check_algorithm(pisco.algorithms.dsgd(local_lr=0.1)))
dsgd: all 9 checks pass
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from pisco.algorithms.registry import build
from pisco.costs import message_sizes
from pisco.engines.job import Streams
from pisco.errors import InputError
from pisco.federation.runtime.programs import Own, Programs
from pisco.federation.runtime.routes import Flags
from pisco.networks.network import Network
from pisco.networks.rounds import each_agent
from pisco.tree import num_bytes, stack_agents
from pisco.types import Algorithm, HasInner, HasParams, StartMix

AGENTS, ROUNDS = 4, 2
START = {"layers": [np.linspace(-1, 1, 6, dtype=np.float32).reshape(2, 3)], "scale": np.float32(0.5)}
SCALES = (1e-3, 1.0, 1e3)
"""Of the gradients: a clip that one size of gradient leaves alone shows at another."""


class Check(NamedTuple):
    """One check: what breaks and how to mend it, empty when it passed."""

    name: str
    broken: str = ""


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
        if self.passed:
            return f"{self.rule}: all {len(self.checks)} checks pass"
        return "\n".join(
            f"{self.rule}, {check.name}: {check.broken}" for check in self.checks if check.broken
        )


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
        except Exception as error:
            said = (str(error).splitlines() or [""])[0]
            hint = "a traced value decides there: use jnp.where, or name the hyperparameter in @algorithm(static=…)"
            wrong = isinstance(error, jax.errors.ConcretizationTypeError)
            broken = hint if wrong else f"it fails with {type(error).__name__}: {said}"
        checks.append(Check(name, broken))
        if broken and name == "state":  # the others would only say it again
            break
    return Report(rule.name, tuple(checks))


class _Agents(NamedTuple):
    """Agents with quadratics of their own, and gradients that depend on the key."""

    numbers: Any
    minima: Any
    weights: Any  # W
    key: Any  # of the rounds

    def grad(self, params: Any, key: jax.Array) -> Any:
        drawn = jnp.sum(jax.random.key_data(key) % 1000)  # far quicker to compile than a draw

        def leaf(x: jax.Array, minima: jax.Array) -> jax.Array:
            noise = jnp.sin(drawn * (1.0 + self.numbers)).reshape(-1, *[1] * (x.ndim - 1))
            return (0.5 * (x - minima) + 0.1 * noise).astype(x.dtype)

        return jax.tree.map(leaf, params, self.minima)


class _Mix:
    """W applied to stacked agents."""

    def __init__(self, agents: _Agents):
        count = agents.numbers.shape[0]
        self.agents, self.share = agents, 1.0
        self.participates, self.server = jnp.ones(count, bool), jnp.zeros(count, bool)

    def __call__(self, tree: Any, compressor: Any = None) -> Any:
        return jax.tree.map(lambda x: jnp.tensordot(self.agents.weights.T.astype(x.dtype), x, 1), tree)

    def each(self, function: Callable[[Any, jax.Array], Any], key: jax.Array, tree: Any) -> Any:
        return each_agent(function, key, tree, self.agents.numbers)


class _Recorder(_Mix):
    sent: list[int]

    def __call__(self, tree: Any, compressor: Any = None) -> Any:
        self.sent.append(num_bytes(tree) // AGENTS)
        return super().__call__(tree)


class _Trial:
    """A rule and a compiled trajectory of it, shared by the checks."""

    def __init__(self, rule: Algorithm):
        self.rule, self.traces = rule, 0
        self.mixing = (Network.ring(AGENTS).weights.toarray() + np.eye(AGENTS)) / 2
        draws = np.random.default_rng(0)
        self.minima = jax.tree.map(
            lambda x: draws.normal(size=(AGENTS, *np.shape(x))).astype(np.float32), START
        )
        self.keys = Streams(*jax.random.split(jax.random.key(7), 4))
        self.compiled = jax.jit(self.trajectory)

    def agents(self, numbers: Any, weights: Any, scale: float = 1.0) -> _Agents:
        """The agents with these numbers."""
        numbers = np.asarray(numbers)
        minima = jax.tree.map(lambda x: np.float32(scale) * x[numbers], self.minima)
        return _Agents(numbers, minima, weights, self.keys.batches)

    def trajectory(self, rule: Algorithm, agents: _Agents) -> Any:
        """The state after a few rounds."""
        self.traces += 1
        params = stack_agents(jax.tree.map(jnp.asarray, START), agents.numbers.shape[0])
        mix = _Mix(agents)
        state = rule.init(params, jax.random.fold_in(agents.key, 0), agents.grad, StartMix(mix, mix))

        def one_round(state: Any, k: Any) -> Any:
            return rule.round(state, jax.random.fold_in(agents.key, k + 1), agents.grad, mix), None

        return jax.lax.scan(one_round, state, jnp.arange(ROUNDS))[0]

    def after(self, agents: _Agents) -> Any:
        return self.compiled(self.rule, agents)


def _state(trial: _Trial) -> str:
    """Fields, shapes and dtypes, for parameters of any structure and of two dtypes; nothing is computed."""
    wide, narrow, one = ((2, 3), jnp.bfloat16), ((3,), jnp.float32), ((), jnp.bfloat16)
    shapes = {"a": [wide, narrow], "b": one}
    params = jax.tree.map(
        lambda s: jax.ShapeDtypeStruct((AGENTS, *s[0]), s[1]), shapes, is_leaf=lambda x: isinstance(x, tuple)
    )
    mix = _Mix(trial.agents(range(AGENTS), trial.mixing))
    key, grad = jax.random.key(0), lambda params, key: params
    first = jax.eval_shape(lambda rule, p: rule.init(p, key, grad, StartMix(mix, mix)), trial.rule, params)
    if not isinstance(first, HasParams):
        return f"init returns a {type(first).__name__} without `params`; make the state a NamedTuple with that field"
    last = jax.eval_shape(lambda rule, s: rule.round(s, key, grad, mix), trial.rule, first)
    if jax.tree.structure(first) != jax.tree.structure(last):
        return "round returns a state of another structure than init; return the same fields"
    for (path, now), then in zip(jax.tree.leaves_with_path(last), jax.tree.leaves(first), strict=True):
        where = jax.tree_util.keystr(path)
        if now.shape[:1] != (AGENTS,):
            return f"{where} of the state has shape {now.shape}, not one entry for each agent; lead with the agents"
        if now != then:
            return (
                f"{where} of the state goes into a round as {then.dtype}{list(then.shape)} and comes out as "
                f"{now.dtype}{list(now.shape)}; step sizes cast to each leaf's dtype as pisco.tree does keep it"
            )
    same = jax.tree.map(lambda x: (x.shape, x.dtype), last.params) == jax.tree.map(
        lambda x: (x.shape, x.dtype), params
    )
    return "" if same else "`params` of the state have not the shapes and dtypes of the start; keep them"


def _permuted(trial: _Trial) -> str:
    order = np.array([2, 0, 3, 1])
    plain = trial.after(trial.agents(range(AGENTS), trial.mixing))
    other = trial.after(trial.agents(order, trial.mixing[np.ix_(order, order)]))
    where = _differs(jax.tree.map(lambda x: x[order], plain), other)
    return where and (
        f"agents numbered otherwise come to another {where}: the rule looks at an agent's place; leave the leading "
        "axis alone (pisco.tree, jax.tree.map, jax.vmap, mix.each)"
    )


def _alone(trial: _Trial) -> str:
    for scale in SCALES:
        together = trial.after(trial.agents(range(AGENTS), np.eye(AGENTS), scale))
        for agent in range(AGENTS):
            single = trial.after(trial.agents([agent], np.eye(1), scale))
            where = _differs(jax.tree.map(lambda x, i=agent: x[i : i + 1], together), single)
            if where:
                return (
                    f"an agent comes to another {where} among others than alone, though nothing is exchanged: the rule "
                    "works on the whole stack (a norm, a mean, an optimizer over all agents at once); write it for one "
                    "agent and use jax.vmap or mix.each"
                )
    return ""


def _tracked(trial: _Trial) -> str:
    state = trial.after(trial.agents(range(AGENTS), trial.mixing))
    while isinstance(state, HasInner):
        state = state.inner
    if not (hasattr(state, "tracker") and hasattr(state, "grads")):
        return ""
    if not trial.rule.needs.doubly_stochastic:
        return "a tracker needs rounds that keep the mean; return Pair(…, Needs(doubly_stochastic=True))"
    mean, wanted = (jax.tree.map(lambda x: x.mean(axis=0), each) for each in (state.tracker, state.grads))
    return _differs(mean, wanted) and (
        "mean(tracker) is not mean(grads) after a few rounds; add new minus old gradients, and mix what must be mixed"
    )


def _costs(trial: _Trial) -> str:
    agents = trial.agents(range(AGENTS), trial.mixing)
    state, mix = trial.after(agents), _Recorder(agents)
    mix.sent = []
    with jax.disable_jit():
        trial.rule.round(state, agents.key, agents.grad, mix)
    counted = message_sizes(trial.rule, state, AGENTS).whole
    return "" if counted == mix.sent else (
        f"a round sends {len(mix.sent)} messages, {len(counted)} are counted: `mix` is called in a loop, a branch or a "
        "jitted function; call it directly in `round`, so that costs are right and a federation can send it"
    )  # fmt: skip


def _compiled(trial: _Trial) -> str:
    known = {name for name, value in trial.rule.hyperparameters.items() if isinstance(value, float)}
    fixed = known - {*trial.rule.traced, *getattr(trial.rule.factory, "static", ())}
    if fixed:
        return f"{min(fixed)} is a number whose type is not float, so every value compiles again; annotate it float"
    agents, before = trial.agents(range(AGENTS), trial.mixing), trial.traces
    trial.compiled(jax.tree.map(lambda x: 0.9 * x, trial.rule), agents)
    return (
        ""
        if trial.traces == before
        else "other values of its numbers compile again; give what it holds an __eq__"
    )


def _same_bits(trial: _Trial) -> str:
    agents = trial.agents(range(AGENTS), trial.mixing)
    one, two = (jax.make_jaxpr(lambda *args: trial.trajectory(*args))(trial.rule, agents) for _ in range(2))
    same = str(one) == str(two) and not _differs(one.consts, two.consts, 0.0)
    return "" if same else "a round is another one every time; draw with jax.random and the round's key alone"


def _engines(trial: _Trial) -> str:
    agents = trial.agents(range(AGENTS), trial.mixing)
    with jax.disable_jit():
        plain = trial.trajectory(trial.rule, agents)
    where = _differs(trial.after(agents), plain)
    return (
        where
        and f"compiled and in plain Python it comes to another {where}; keep no Python state between rounds"
    )


def _cut(trial: _Trial) -> str:
    agents = trial.agents([1], np.eye(1))

    def gradient(params: Any, key: jax.Array, index: Any) -> Any:
        stacked = jax.tree.map(lambda x: x[None], params)
        found = agents._replace(numbers=index[None]).grad(stacked, key)
        return jax.tree.map(lambda x: x[0], found)

    programs = Programs(trial.rule, Own(lambda key: START, gradient, lambda params: {}), trial.keys, 1)

    def nothing(kind: str, call: int, leaves: Any) -> Any:
        return leaves

    flags = Flags(np.ones(1, bool), jnp.ones(()), np.zeros(1, bool))
    with jax.disable_jit():  # a trajectory of two rounds is not worth compiling
        state = programs.start(nothing)
        for k in range(ROUNDS):
            state = programs.round(nothing, state, k, flags)
    where = _differs(trial.after(agents), state)
    return where and f"one agent in a federation comes to another {where} than in one process"


_CHECKS: dict[str, Callable[[_Trial], str]] = {
    "state": _state,
    "agents permuted": _permuted,
    "one agent alone": _alone,
    "tracking": _tracked,
    "costs counted": _costs,
    "compiled once": _compiled,
    "same seed, same bits": _same_bits,
    "engines agree": _engines,
    "in a federation": _cut,
}


def _differs(one: Any, other: Any, tolerance: float = 1e-4) -> str:
    """The first part of two states that differs, relative to its size; empty when none does."""
    for (path, a), b in zip(jax.tree.leaves_with_path(one), jax.tree.leaves(other), strict=True):
        a, b = np.asarray(a, float), np.asarray(b, float)
        size = np.nanmax(np.abs(a), initial=1e-6)
        if not np.allclose(a, b, rtol=0, atol=tolerance * size, equal_nan=True):
            return f"`{jax.tree_util.keystr(path).lstrip('.')}`"
    return ""
