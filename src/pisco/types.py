"""The abstraction everything shares: an algorithm is a pair of pure functions.

An algorithm sees two capabilities and nothing else. `grad(params, key)` is the mini-batch **mean** gradient of
the agent (or of every agent, stacked on a leading axis); `mix(tree)` is this round's communication. All other
operations are leafwise, so the same functions serve agents stacked on one device, agents sharded over devices
and a single agent in a process of its own: engines differ only in the `grad` and `mix` they pass in.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple, ParamSpec, Protocol, overload, runtime_checkable

import jax

from pisco.errors import InputError, a_kind_of
from pisco.parts import sent_only
from pisco.registry import Options, fit, options

__all__ = ["Algorithm", "Around", "Grad", "Key", "Mix", "Needs", "Pair", "Params", "Pushed", "StartMix", "algorithm"]

Params = Any
"""Any pytree of arrays. In an engine that stacks agents, every leaf leads with the agent axis."""

Key = jax.Array
"""A typed key of `jax.random`."""

State = Any
"""What the next round needs, a pytree with at least a `params` field, the agents' current parameters."""


class Grad(Protocol):
    """The mini-batch mean gradient at `params`, on the batch that `key` draws."""

    def __call__(self, params: Params, key: Key, /) -> Params: ...


class Mix(Protocol):
    """One exchange of this round: every call is one message per link, holding the whole tree.

    The round's matrix is drawn once; each call applies the same one. Call it outside `lax.scan` and
    `lax.cond`, so that what a round sends can be counted from its structure. A method whose message is a compressed
    difference, though it mixes whole copies, names the `Compressor`.
    """

    participates: Any
    """Whether this agent's message takes part in the round: a boolean, or one for each stacked agent."""

    share: Any
    """The share of agents that take part, a number in (0, 1]."""

    server: Any
    """Whether this agent reaches the server in this round: a boolean, or one for each stacked agent."""

    def __call__(self, tree: Any, compressor: Compressor | None = None, /) -> Any: ...

    def each(self, function: Callable[[Any, Key], Any], key: Key, tree: Any, /) -> Any:
        """`function(own_tree, own_key)` for every agent on its own: for what is not leafwise."""
        ...


class Pushed(NamedTuple):
    """A part of what `mix` is given that must lose nothing, such as a tracker.

    Where links are one-way its sender shares it out (a sender's weights sum to one), while the receiver averages the
    rest. Elsewhere it changes nothing.
    """

    tree: Any


@runtime_checkable
class Compressor(Protocol):
    """What an agent sends instead of a vector, and how large that message is."""

    def __call__(self, tree: Any, key: Key, /) -> Any: ...

    def message_bytes(self, tree: Any, /) -> int:
        """Bytes of the message for one agent's tree, from its shapes."""
        ...


@runtime_checkable
class Codec(Protocol):
    """A compressor whose messages can travel: between machines they are these bytes."""

    def message_bytes(self, tree: Any, /) -> int: ...

    def encode(self, tree: Any, key: Key, /) -> bytes:
        """The message for one agent's tree, in exactly `message_bytes`."""
        ...

    def decode(self, data: bytes, like: Any, key: Key, /) -> Any:
        """What the compressor returned for a tree with these shapes; `ValueError` says why it cannot be that."""
        ...


class Needs(NamedTuple):
    """What a method asks of the network; a run on another one is refused with a sentence."""

    doubly_stochastic: bool = False
    """Every round's map must preserve the mean: no sampling of reporters."""
    server_every_round: bool = False
    """The server must be reached by everybody in every round."""
    steady_links: bool = False
    """Gossip must use the same links in every gossip round, and a round must not be split."""
    one_way: bool = False
    """It marks what is `Pushed`, so links may be one-way though rounds must keep the mean."""
    constant_map: bool = False
    """Every round must apply the same map: only gossip, or only the server."""


@dataclass(frozen=True)
class StartMix:
    """Communication before the first round, for methods whose start needs some: each call is one exchange."""

    server: Callable[[Any], Any]  # everybody receives the mean of all
    gossip: Callable[[Any], Any]  # one gossip exchange with the network's weights

    def __post_init__(self) -> None:
        for name in ("server", "gossip"):
            object.__setattr__(self, name, sent_only(getattr(self, name)))


class Around:
    """Base of the state of a method around another one, a dataclass: what is measured is that of its `inner`."""

    inner: Any

    @property
    def params(self) -> Params:
        return self.inner.params


@runtime_checkable
class HasTracker(Protocol):
    """The state of a gradient-tracking method: `tracker` follows the mean of the agents' gradients."""

    params: Params
    tracker: Params


class Pair(NamedTuple):
    """What an algorithm's factory returns: `init(params, key, grad, mix)` and `round(state, key, grad, mix)`.

    `rebase(state)`, where given, is what an agent's state becomes when agents join or leave, so that what must hold for
    their mean (mean(Y) = mean(G), say) holds for those who now take part. Without it the roster cannot change.
    `caution()` is a warning to whoever runs it, or empty.
    """

    init: Callable[[Params, Key, Grad, StartMix], State]
    round: Callable[[State, Key, Grad, Mix], State]
    needs: Needs = Needs()
    rebase: Callable[[State], State] | None = None
    caution: Callable[[], str] = str


@jax.tree_util.register_pytree_with_keys_class
class Algorithm:
    """An update rule with its hyperparameters.

    A pytree whose leaves are the traced hyperparameters (see `algorithm`; those of an `Algorithm` that it wraps among
    them), so step sizes can change and be batched without compiling again. The others are structure, and so is a step
    of 1 that the rule leaves out (`whole`), unless the algorithm is `opened`.

    >>> from pisco import algorithms
    >>> algorithms.dsgd(local_lr=0.1)
    dsgd(local_lr=0.1, comm_lr=1.0, local_steps=1, combine_first=False)
    >>> jax.tree.leaves(algorithms.dsgd(local_lr=0.1)), jax.tree.leaves(algorithms.dsgd(local_lr=0.1).opened())
    ([0.1], [0.1, 1.0])
    """

    def __init__(self, factory: Callable[..., Pair], hyperparameters: dict[str, Any], leaves: tuple[str, ...]):
        self.factory = factory
        self.hyperparameters = hyperparameters
        self.leaves = leaves

    def opened(self) -> Algorithm:
        """The same, batched with those of other steps: no step of 1 is left out."""
        inner = {k: v.opened() if isinstance(v, Algorithm) else v for k, v in self.hyperparameters.items()}
        return Algorithm(self.factory, inner, self.traced)

    @functools.cached_property
    def _pair(self) -> Pair:
        return self.factory(**self.hyperparameters)

    @property
    def init(self) -> Callable[[Params, Key, Grad, StartMix], State]:
        """`init(params, key, grad, mix)`: the state before the first round."""
        return self._pair.init

    @property
    def round(self) -> Callable[[State, Key, Grad, Mix], State]:
        """`round(state, key, grad, mix)`: the state after one communication round."""
        return self._pair.round

    @property
    def needs(self) -> Needs:
        """What it asks of the network."""
        return self._pair.needs

    @property
    def rebase(self) -> Callable[[State], State] | None:
        """`rebase(state)`: the state at a change of the roster; None where there can be none."""
        return self._pair.rebase

    @property
    def caution(self) -> str:
        """What whoever runs it should know first."""
        return self._pair.caution()

    @property
    def name(self) -> str:
        """The factory's name."""
        return self.factory.__name__

    def __repr__(self) -> str:
        known = _signature(self.factory)[0]
        plain = (int, float, str, type(None))  # of other things only what was chosen is told
        told = [(k, v) for k, v in self.hyperparameters.items() if isinstance(v, plain) or v is not known[k].default]
        listed = ", ".join(f"{name}={value!r}" for name, value in told)
        return f"{self.name}({listed})"

    @property
    def traced(self) -> tuple[str, ...]:
        """The hyperparameters that may change without compiling again."""
        return _signature(self.factory)[1]

    def __reduce__(self):
        # By the factory's public name: what stands there is `build`, and not the function that it wraps.
        build = self.factory.build  # pyright: ignore[reportFunctionMemberAccess]
        return _rebuilt, (build, self.hyperparameters, self.leaves)

    def tree_flatten_with_keys(self):
        children = [(jax.tree_util.GetAttrKey(name), self.hyperparameters[name]) for name in self.leaves]
        fixed = tuple((k, v) for k, v in self.hyperparameters.items() if k not in self.leaves)
        return children, (self.factory, fixed, self.leaves)

    @classmethod
    def tree_unflatten(cls, aux, children):
        factory, fixed, leaves = aux
        values = dict(fixed) | dict(zip(leaves, children, strict=True))
        return cls(factory, {name: values[name] for name in _signature(factory)[0]}, leaves)


def _rebuilt(build: Any, hyperparameters: dict[str, Any], leaves: tuple[str, ...]) -> Algorithm:
    return Algorithm(build.__wrapped__, hyperparameters, leaves)


@functools.cache
def _signature(factory: Callable[..., Pair]) -> tuple[Options, tuple[str, ...]]:
    """A factory's hyperparameters, and which of them are traced."""
    known, static = options(factory), getattr(factory, "static", ())
    for name in known:
        if name not in factory.__annotations__:
            raise InputError(
                f"{factory.__name__} gives {name} no type; write {name}: float for a number that may change without "
                "compiling again, int, bool or str for what shapes the program"
            )
    kinds = (float, jax.Array, Algorithm)
    return known, tuple(name for name in known if known[name].annotation in kinds and name not in static)


P = ParamSpec("P")


@overload
def algorithm(factory: Callable[P, Pair]) -> Callable[P, Algorithm]: ...
@overload
def algorithm(
    *, static: tuple[str, ...] = (), whole: tuple[str, ...] = ()
) -> Callable[[Callable[P, Pair]], Callable[P, Algorithm]]: ...


def algorithm(factory: Any = None, *, static: tuple[str, ...] = (), whole: tuple[str, ...] = ()) -> Any:
    """Turn a factory of keyword-only hyperparameters into one that returns an `Algorithm`.

    The factory runs once here, so that its checks speak at once. Hyperparameters of type `float`, `jax.Array` or
    `Algorithm` are traced: other values do not compile again. Those of other types shape the program, and so do numbers
    named in `static`, as in `@algorithm(static=("power",))`. A step size named in `whole` shapes the program where it
    is 1: what the rule does not compute then, it need not hold in memory.

    >>> @algorithm
    ... def descent(*, local_lr: float):
    ...     def init(params, key, grad, mix):
    ...         return params
    ...     def one_round(state, key, grad, mix):
    ...         return state
    ...     return Pair(init, one_round)
    >>> descent(local_lr=0.5)
    descent(local_lr=0.5)
    """
    if factory is None:
        return functools.partial(algorithm, static=static, whole=whole)
    factory.static = static

    @functools.wraps(factory)
    def build(*args: Any, **given: Any) -> Algorithm:
        (known, traced), name = _signature(factory), factory.__name__
        if args:
            example = f"{name}({next(iter(known), 'local_lr')}={args[0]!r})"
            raise InputError(f"{name} takes its hyperparameters by name, as in {example}")
        defaults = {key: option.default for key, option in known.items()}
        values = defaults | fit(name, known, given)
        left_out = [name for name in whole if isinstance(values[name], int | float) and values[name] == 1]
        made = Algorithm(factory, values, tuple(name for name in traced if name not in left_out))
        if not isinstance(made._pair, Pair):
            raise InputError(f"{name} returns {a_kind_of(made._pair)}, expected pisco.Pair(init, one_round)")
        return made

    factory.build = build
    return build
