"""When the server is reached: a rule that says, for round k, who takes part in a server average.

A rule is a pure function `rule(values, key, round_index)` that returns one boolean for everybody or a mask
with one entry per agent. Its `values` (probabilities) are traced, so a sweep over p compiles once. `key` is the
coin's own stream, a function of the seed alone: the uniform of round k is the same for every p, so server rounds
nest as p grows, and any process can work the coin out without a message.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from pisco.errors import InputError, check_number

Rule = Callable[[Any, jax.Array, Any], Any]


@jax.tree_util.register_pytree_node_class
class Schedule:
    """A rule and its values; built by the functions of this module."""

    def __init__(self, rule: Rule, values: Any = (), *, name: str = "custom"):
        self.rule = rule
        self.values = values
        self.name = name

    def participants(self, key: jax.Array, round_index: Any) -> Any:
        """Who reaches the server in this round: a boolean, or a mask over agents."""
        return self.rule(self.values, key, round_index)

    @property
    def probability(self) -> float | None:
        """The chance that a round reaches the server, where that is one number (for λ_p)."""
        if self.rule is _never:
            return 0.0
        if self.rule is _always:
            return 1.0
        if self.rule is _bernoulli:
            return float(self.values)
        return 1.0 / self.values if self.rule is _every else None

    @property
    def never_reached(self) -> bool:
        """Whether no round can reach the server."""
        if self.rule is _per_agent:
            return not np.any(np.asarray(self.values))
        return self.probability == 0.0

    def __repr__(self) -> str:
        if self.rule in (_never, _always):
            return f"{self.name}()"
        if self.rule is _per_agent:
            low, high = np.min(self.values), np.max(self.values)
            return f"per_agent({len(self.values)} values from {low:g} to {high:g})"
        return (
            f"{self.name}({self.values:g})" if self.rule in (_bernoulli, _every) else f"custom({self.name})"
        )

    def tree_flatten(self):
        if self.rule is _every:
            return (), (self.rule, self.name, self.values)
        return (self.values,), (self.rule, self.name, None)

    @classmethod
    def tree_unflatten(cls, aux, children):
        rule, name, fixed = aux
        return cls(rule, children[0] if children else fixed, name=name)


def _bernoulli(server_prob, key, round_index):
    return jax.random.uniform(jax.random.fold_in(key, round_index)) < server_prob


def _every(period, key, round_index):
    return (round_index + 1) % period == 0


def _always(values, key, round_index):
    return True


def _never(values, key, round_index):
    return False


def _per_agent(server_probs, key, round_index):
    round_key = jax.random.fold_in(key, round_index)
    return jax.random.uniform(round_key, jnp.shape(server_probs)) < server_probs


def bernoulli(server_prob: float) -> Schedule:
    """Every round reaches the server with probability p: one coin for everybody (the paper's model).

    >>> bernoulli(0.1)
    bernoulli(0.1)
    """
    check_number("server_prob", server_prob, low=0, high=1)
    return Schedule(_bernoulli, server_prob, name="bernoulli")


def every(period: int) -> Schedule:
    """Rounds H−1, 2H−1, … reach the server (Gossip-PGA, HL-SGD).

    >>> [bool(every(3).participants(jax.random.key(0), k)) for k in range(6)]
    [False, False, True, False, False, True]
    """
    check_number("period", period, low=1, integer=True)
    return Schedule(_every, int(period), name="every")


def always() -> Schedule:
    """Every round goes through the server: the federated setting."""
    return Schedule(_always, name="always")


def never() -> Schedule:
    """No round goes through the server: the decentralized setting."""
    return Schedule(_never, name="never")


def per_agent(server_probs: Sequence[float]) -> Schedule:
    """Agent i reaches the server with probability p_i, independently of the others.

    The participants average among themselves; the others gossip with Metropolis weights on the subgraph they
    induce, so every round's matrix is doubly stochastic.
    """
    values = np.atleast_1d(np.asarray(server_probs, dtype=float))
    if values.ndim != 1 or not values.size:
        raise InputError(f"server_probs has shape {values.shape}, expected one probability per agent")
    for agent, value in enumerate(values):
        if not 0 <= value <= 1:
            raise InputError(
                f"server_probs[{agent}] is {value!r}, expected a number at least 0 and at most 1"
            )
    return Schedule(_per_agent, values, name="per_agent")


def custom(function: Callable[[jax.Array, Any], Any]) -> Schedule:
    """Your own rule: `function(key, round_index)` returns a boolean or a mask over agents, traceably.

    >>> custom(lambda key, k: k == 5).participants(jax.random.key(0), 5)
    True
    """
    return Schedule(_FunctionOfKeyAndRound(function), name=getattr(function, "__name__", "function"))


class _FunctionOfKeyAndRound:
    """A user's function with the signature of a rule; equal when the function is the same."""

    def __init__(self, function: Callable[[jax.Array, Any], Any]):
        self.function = function

    def __call__(self, values, key, round_index):
        return self.function(key, round_index)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _FunctionOfKeyAndRound) and self.function is other.function

    def __hash__(self) -> int:
        return hash((_FunctionOfKeyAndRound, self.function))


def as_schedule(server: Schedule | Callable[[jax.Array, Any], Any]) -> Schedule:
    """A schedule as it is, or a user's function of (key, round) made into one."""
    if isinstance(server, Schedule):
        return server
    if callable(server):
        return custom(server)
    raise InputError(f"server is {server!r}, expected a schedule such as pisco.bernoulli(0.1)")


SCHEDULES: dict[str, Callable[..., Schedule]] = {
    "bernoulli": bernoulli,
    "every": every,
    "always": always,
    "never": never,
    "per_agent": per_agent,
}
