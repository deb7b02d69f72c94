"""When the server is reached: a rule that says, for round k, who takes part in a server average.

A rule is a pure function `rule(values, key, round_index)` that returns one boolean for everybody or a mask
with one entry per agent. Its `values` (probabilities) are traced, so a sweep over p compiles once. A schedule that
learns from the run (`adaptive`) also carries a memory from round to round. `key` is the coin's own stream, a function
of the seed alone: the uniform of round k is the same for every p and every precision, so server rounds nest as p grows,
and any process can work the coin out without a message.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from pisco.errors import InputError, check_number
from pisco.registry import Registry

Rule = Callable[[Any, jax.Array, Any], Any]
Observe = Callable[[], jax.Array]


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

    def start(self) -> Any:
        """The memory before the first round; most schedules have none."""
        return ()

    def decide(self, memory: Any, key: jax.Array, round_index: Any, observe: Observe) -> tuple[Any, Any]:
        """Who reaches the server, and the memory for the next round; `observe()` gives the agents' mean loss."""
        return self.participants(key, round_index), memory

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
    return jax.random.uniform(jax.random.fold_in(key, round_index), dtype=jnp.float32) < server_prob


def _every(period, key, round_index):
    return (round_index + 1) % period == 0


def _always(values, key, round_index):
    return True


def _never(values, key, round_index):
    return False


def _per_agent(server_probs, key, round_index):
    round_key = jax.random.fold_in(key, round_index)
    return jax.random.uniform(round_key, jnp.shape(server_probs), jnp.float32) < server_probs


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


class AdaptiveMemory(NamedTuple):
    """Gossip-AGA's counters: rounds since the last average, the current period, and the loss at the start."""

    count: jax.Array
    period: jax.Array
    first_loss: jax.Array


@jax.tree_util.register_pytree_node_class
class AdaptiveSchedule(Schedule):
    """The period of the server's averages grows as the loss falls; built by `adaptive`."""

    def start(self) -> AdaptiveMemory:
        period = jnp.asarray(self.values["period"], jnp.int32)
        return AdaptiveMemory(jnp.zeros((), jnp.int32), period, jnp.full((), jnp.nan, jnp.float32))

    def participants(self, key: jax.Array, round_index: Any) -> Any:
        raise InputError("an adaptive schedule depends on the run; it cannot be asked for a round alone")

    def decide(self, memory: Any, key: jax.Array, round_index: Any, observe: Observe) -> tuple[Any, Any]:
        count = memory.count + 1
        reached = count >= memory.period

        def averaged(memory: AdaptiveMemory) -> AdaptiveMemory:
            loss = observe().astype(jnp.float32)
            warm = round_index < self.values["warmup"]
            blended = jnp.where(jnp.isnan(memory.first_loss), loss, 0.5 * (memory.first_loss + loss))
            first = jnp.where(warm | jnp.isnan(memory.first_loss), blended, memory.first_loss)
            ratio = jnp.maximum(first / jnp.maximum(loss, 1e-30), 0.0) ** self.values["power"]
            period = jnp.ceil(jnp.minimum(ratio, 1e6) * self.values["period"]).astype(jnp.int32)
            longest = jnp.asarray(self.values["longest"], jnp.int32)
            period = jnp.where(warm, memory.period, jnp.clip(period, 1, longest))
            return AdaptiveMemory(jnp.zeros((), jnp.int32), period, first)

        return reached, lax.cond(reached, averaged, lambda m: m._replace(count=count), memory)

    @property
    def probability(self) -> float | None:
        return None

    @property
    def never_reached(self) -> bool:
        return False

    def __repr__(self) -> str:
        return f"adaptive({self.values['period']:g}, power={self.values['power']:g})"

    def tree_flatten(self):
        return (self.values,), (self.rule, self.name, None)


def _adaptive(values, key, round_index):
    raise AssertionError("AdaptiveSchedule.decide does the work")


def adaptive(period: int, *, power: float = 0.25, warmup: int = 0, longest: int = 1000) -> Schedule:
    """Gossip-AGA: the server averages every H rounds, and H grows as the loss falls.

    After an average at which the agents' mini-batch loss is F, the next one is H = ⌈(F_init/F)^q·H_init⌉ rounds away.
    F_init is the loss at the first average, blended half and half with those of later ones during the warm-up.

    Args:
      period: H_init.
      power: q.
      warmup: rounds during which H stays and F_init is still learned.
      longest: an upper limit for H.

    Reconstructed: only the abstract of Y. Chen et al., "Accelerating Gossip SGD with Periodic Global Averaging", ICML
    2021, was at hand; q = 1/4 and the blending follow descriptions of it.

    >>> adaptive(4)
    adaptive(4, power=0.25)
    """
    check_number("period", period, low=1, integer=True)
    check_number("power", power, low=0)
    check_number("warmup", warmup, low=0, integer=True)
    check_number("longest", longest, low=period, integer=True)
    values = {
        "period": float(period),
        "power": float(power),
        "warmup": float(warmup),
        "longest": float(longest),
    }
    return AdaptiveSchedule(_adaptive, values, name="adaptive")


def custom(function: Callable[[jax.Array, Any], Any]) -> Schedule:
    """Your own rule: `function(key, round_index)` returns a boolean or a mask over agents, traceably.

    >>> custom(lambda key, k: k == 5).participants(jax.random.key(0), 5)
    True
    """
    name = getattr(function, "__name__", "function")
    try:
        out = jax.eval_shape(lambda k: jnp.asarray(function(jax.random.key(0), k)), jnp.int32(0))
    except Exception as error:
        raise InputError(
            f"server={name} fails ({type(error).__name__}: {str(error).splitlines()[0]}); it is called with "
            "(key, round) and traced, so use jnp.where and & instead of if and and"
        ) from error
    if out.dtype != bool or out.ndim > 1:
        raise InputError(
            f"server={name} returns {out.dtype}{list(out.shape)}, expected a boolean, or one for each agent"
        )
    return Schedule(_FunctionOfKeyAndRound(function), name=name)


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


SCHEDULES = Registry[Callable[..., Schedule]](
    "server",
    "pisco.schedules",
    {
        "bernoulli": bernoulli,
        "every": every,
        "always": always,
        "never": never,
        "per_agent": per_agent,
        "adaptive": adaptive,
    },
)
