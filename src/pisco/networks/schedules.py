"""When the server is reached: small objects that say, for round k, who takes part in a server average.

`key` is the coin's own stream, a function of the seed alone: the uniform of round k is the same for every p and every
precision, so server rounds nest as p grows, and any process can work the coin out without a message. Probabilities are
traced, so a sweep over p compiles once.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from pisco.errors import InputError, brief, check_counts, check_number
from pisco.registry import Registry

__all__ = ["SCHEDULES", "Schedule", "adaptive", "always", "bernoulli", "custom", "every", "never", "per_agent"]

Observe = Callable[[], jax.Array]


class Schedule(Protocol):
    """What a server schedule says. A class of your own subclasses this, and gives `participants`, or `decide` where it
    has a memory; or it has the same members.

    Everything is traced. An object that is a pytree (`jax.tree_util.register_dataclass`) may change its numbers
    without compiling again; any other is taken as it is when first used, so do not change it afterwards.
    """

    @property
    def probability(self) -> float | None:
        """The chance that a round reaches the server, where that is one number (for λ_p)."""
        return None

    @property
    def never_reached(self) -> bool:
        """Whether no round can reach the server."""
        return self.probability == 0.0

    def participants(self, key: jax.Array, round_index: Any) -> Any:
        """Who reaches the server in this round: a boolean for everybody, or a mask over agents."""
        raise InputError(f"{self!r} depends on the run; it cannot be asked for a round alone")

    def start(self) -> Any:
        """The memory before the first round, a pytree of arrays; most schedules have none."""
        return ()

    def decide(self, memory: Any, key: jax.Array, round_index: Any, observe: Observe) -> tuple[Any, Any]:
        """Who reaches the server, and the memory for the next round; `observe()` gives the agents' mean loss."""
        return self.participants(key, round_index), memory


@jax.tree_util.register_dataclass
@dataclass(frozen=True, repr=False)
class Bernoulli(Schedule):
    """One coin for everybody in every round."""

    server_prob: Any

    def participants(self, key: jax.Array, round_index: Any) -> Any:
        return jax.random.uniform(jax.random.fold_in(key, round_index), dtype=jnp.float32) < self.server_prob

    @property
    def probability(self) -> float:
        return float(self.server_prob)

    def __repr__(self) -> str:
        return f"bernoulli({self.server_prob:g})"


def bernoulli(server_prob: float) -> Schedule:
    """Every round reaches the server with probability p: one coin for everybody (the paper's model).

    >>> bernoulli(0.1)
    bernoulli(0.1)
    """
    check_number("server_prob", server_prob, low=0, high=1)
    return Bernoulli(server_prob)


@jax.tree_util.register_dataclass
@dataclass(frozen=True, repr=False)
class Every(Schedule):
    """The last round of every period."""

    period: Any

    def participants(self, key: jax.Array, round_index: Any) -> Any:
        return (round_index + 1) % self.period == 0

    @property
    def probability(self) -> float:
        return 1.0 / self.period

    def __repr__(self) -> str:
        return f"every({self.period:g})"


def every(period: int) -> Schedule:
    """Rounds H−1, 2H−1, … reach the server (Gossip-PGA, HL-SGD).

    >>> [bool(every(3).participants(jax.random.key(0), k)) for k in range(6)]
    [False, False, True, False, False, True]
    """
    check_counts(period=period)
    return Every(int(period))


@jax.tree_util.register_static
@dataclass(frozen=True, repr=False)
class Constant(Schedule):
    """Every round, or none."""

    reached: bool

    def participants(self, key: jax.Array, round_index: Any) -> bool:
        return self.reached

    @property
    def probability(self) -> float:
        return float(self.reached)

    def __repr__(self) -> str:
        return "always()" if self.reached else "never()"


def always() -> Schedule:
    """Every round goes through the server: the federated setting."""
    return Constant(True)


def never() -> Schedule:
    """No round goes through the server: the decentralized setting."""
    return Constant(False)


@jax.tree_util.register_dataclass
@dataclass(frozen=True, repr=False, eq=False)
class PerAgent(Schedule):
    """A coin for every agent."""

    server_probs: Any

    def participants(self, key: jax.Array, round_index: Any) -> Any:
        round_key = jax.random.fold_in(key, round_index)
        return jax.random.uniform(round_key, jnp.shape(self.server_probs), jnp.float32) < self.server_probs

    @property
    def never_reached(self) -> bool:
        return not np.any(np.asarray(self.server_probs))

    def __repr__(self) -> str:
        low, high = np.min(self.server_probs), np.max(self.server_probs)
        return f"per_agent({len(self.server_probs)} values from {low:g} to {high:g})"


def per_agent(server_probs: Sequence[float]) -> Schedule:
    """Agent i reaches the server with probability p_i, independently of the others.

    The participants average among themselves; the others gossip with Metropolis weights on the subgraph they
    induce, so every round's matrix is doubly stochastic.
    """
    try:
        values = np.atleast_1d(np.asarray(server_probs, dtype=float))
    except (TypeError, ValueError):
        raise InputError(f"server_probs is {server_probs!r}, expected one probability per agent") from None
    if values.ndim != 1 or not values.size:
        raise InputError(f"server_probs has shape {values.shape}, expected one probability per agent")
    for agent, value in enumerate(values.tolist()):
        check_number(f"server_probs[{agent}]", value, low=0, high=1)
    return PerAgent(values)


class AdaptiveMemory(NamedTuple):
    """Gossip-AGA's counters: rounds since the last average, the current period, and the loss at the start."""

    count: jax.Array
    period: jax.Array
    first_loss: jax.Array


@jax.tree_util.register_dataclass
@dataclass(frozen=True, repr=False)
class Adaptive(Schedule):
    """The period of the server's averages grows as the loss falls."""

    period: Any
    power: Any
    warmup: Any
    longest: Any

    def start(self) -> AdaptiveMemory:
        period = jnp.asarray(self.period, jnp.int32)
        return AdaptiveMemory(jnp.zeros((), jnp.int32), period, jnp.full((), jnp.nan, jnp.float32))

    def decide(self, memory: Any, key: jax.Array, round_index: Any, observe: Observe) -> tuple[Any, Any]:
        count = memory.count + 1
        reached = count >= memory.period

        def averaged(memory: AdaptiveMemory) -> AdaptiveMemory:
            loss = observe().astype(jnp.float32)
            warm = round_index < self.warmup
            blended = jnp.where(jnp.isnan(memory.first_loss), loss, 0.5 * (memory.first_loss + loss))
            first = jnp.where(warm | jnp.isnan(memory.first_loss), blended, memory.first_loss)
            ratio = jnp.maximum(first / jnp.maximum(loss, 1e-30), 0.0) ** self.power
            period = jnp.ceil(jnp.minimum(ratio, 1e6) * self.period).astype(jnp.int32)
            period = jnp.where(warm, memory.period, jnp.clip(period, 1, jnp.asarray(self.longest, jnp.int32)))
            return AdaptiveMemory(jnp.zeros((), jnp.int32), period, first)

        return reached, lax.cond(reached, averaged, lambda m: m._replace(count=count), memory)

    def __repr__(self) -> str:
        return f"adaptive({self.period:g}, power={self.power:g})"


def adaptive(period: int, *, power: float = 0.25, warmup: int = 0, longest: int = 1000) -> Schedule:
    """Gossip-AGA: the server averages every H rounds, and H grows as the loss falls.

    After an average at which the agents' mini-batch loss is F, the next one is H = ⌈(F_init/F)^q·H_init⌉ rounds away.
    F_init is the loss at the first average, blended half and half with those of later ones during the warm-up.

    Args:
      period: H_init.
      power: q.
      warmup: rounds during which H stays and F_init is still learned.
      longest: an upper limit for H.

    Reconstructed: we had only the abstract of Y. Chen et al., "Accelerating Gossip SGD with Periodic Global
    Averaging", ICML 2021; q = 1/4 and the blending follow descriptions of it.

    >>> adaptive(4)
    adaptive(4, power=0.25)
    """
    check_counts(period=period)
    check_number("power", power, low=0)
    check_number("warmup", warmup, low=0, integer=True)
    check_number("longest", longest, low=period, integer=True)
    return Adaptive(float(period), float(power), float(warmup), float(longest))


@jax.tree_util.register_static
@dataclass(frozen=True, repr=False)
class Custom(Schedule):
    """A user's function of (key, round_index)."""

    function: Callable[[jax.Array, Any], Any]

    def participants(self, key: jax.Array, round_index: Any) -> Any:
        return self.function(key, round_index)

    def __repr__(self) -> str:
        return f"custom({getattr(self.function, '__name__', 'function')})"


def custom(function: Callable[[jax.Array, Any], Any]) -> Schedule:
    """Your own rule: `function(key, round_index)` returns a boolean or a mask over agents, traceably.

    >>> custom(lambda key, k: k == 5).participants(jax.random.key(0), 5)
    True
    """
    made = Custom(function)
    decided_shape(made)
    return made


def as_schedule(server: Any) -> Schedule:
    """A schedule as it is, or a user's function of (key, round) made into one."""
    if not hasattr(server, "decide"):
        if callable(server):
            return custom(server)
        raise InputError(f"server is {server!r}, expected a schedule such as pisco.bernoulli(0.1)")
    for name in ("start", "probability", "never_reached"):
        if not hasattr(server, name):
            raise InputError(f"server={server!r} has no `{name}`; subclass pisco.Schedule, which gives one")
    return as_structure("server", server)


def as_structure(what: str, given: Any) -> Any:
    """An object of a user's class, fit to be passed to programs: what is no pytree is all structure."""
    if jax.tree_util.all_leaves([given]):
        if type(given).__hash__ is None:
            raise InputError(f"{what}={given!r} has no hash; make its class a frozen dataclass, or a pytree")
        jax.tree_util.register_static(type(given))
    return given


def traced(what: str, rule: Callable[[jax.Array, Any], Any]) -> jax.ShapeDtypeStruct:
    """Shape and type of what a user's rule gives for a key and a round; one that cannot be traced is refused."""
    try:
        return jax.eval_shape(lambda k: jnp.asarray(rule(jax.random.key(0), k)), np.int32(0))
    except InputError:
        raise
    except Exception as error:
        raise InputError(
            f"{what} fails ({brief(error)}); it is called with a key and the round and traced, so use jnp.where and & "
            "instead of if and and"
        ) from error


def decided_shape(server: Schedule, observe: Observe = lambda: jnp.zeros(())) -> tuple[int, ...]:
    """() for a schedule that decides for everybody at once, (n,) for one that decides for every agent."""
    who = traced(f"server={server!r}", lambda key, k: server.decide(server.start(), key, k, observe)[0])
    if who.dtype != bool or who.ndim > 1:
        raise InputError(
            f"server={server!r} decides {who.dtype}{list(who.shape)}, expected a boolean, or one for each agent"
        )
    return who.shape


def watches_loss(server: Schedule) -> bool:
    """Whether a schedule looks at the agents' loss, so that what it decides is known from the run alone."""
    looks: list[bool] = []

    def observe() -> jax.Array:
        looks.append(True)
        return jnp.zeros(())

    jax.eval_shape(lambda k: server.decide(server.start(), jax.random.key(0), k, observe)[1], np.int32(0))
    return bool(looks)


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
