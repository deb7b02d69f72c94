"""The abstraction everything shares: an algorithm is a pair of pure functions.

An algorithm sees two capabilities and nothing else. `grad(params, key)` is the mini-batch **mean** gradient of
the agent (or of every agent, stacked on a leading axis); `mix(tree)` is this round's communication. All other
operations are leafwise, so the same functions serve agents stacked on one device, agents sharded over devices
and a single agent in a process of its own: engines differ only in the `grad` and `mix` they pass in.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from typing import Any, NamedTuple, ParamSpec, Protocol, runtime_checkable

import jax

Params = Any
"""Any pytree of arrays. In an engine that stacks agents, every leaf leads with the agent axis."""

Key = jax.Array
"""A typed key of `jax.random`."""

State = Any
"""What the next round needs, a pytree with at least a `params` field (see `HasParams`)."""


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


class Compressor(Protocol):
    """What an agent sends instead of a vector, and how large that message is."""

    def __call__(self, tree: Any, key: Key, /) -> Any: ...

    def message_bytes(self, tree: Any, /) -> int:
        """Bytes of the message for one agent's tree, from its shapes."""
        ...


class Needs(NamedTuple):
    """What a method asks of the network; a run on another one is refused with a sentence."""

    doubly_stochastic: bool = False
    """Every round's map must preserve the mean: no sampling of reporters."""
    server_every_round: bool = False
    """The server must be reached by everybody in every round."""
    steady_links: bool = False
    """Gossip must use the same links in every gossip round, and a round must not be split."""
    constant_map: bool = False
    """Every round must apply the same map: only gossip, or only the server."""


class StartMix(NamedTuple):
    """Communication before the first round, for methods whose start needs some: each call is one exchange."""

    server: Callable[[Any], Any]  # everybody receives the mean of all
    gossip: Callable[[Any], Any]  # one gossip exchange with the network's weights


@runtime_checkable
class HasParams(Protocol):
    """Every state: the agents' current parameters."""

    params: Params


@runtime_checkable
class HasInner(Protocol):
    """The state of a method around another one; what is measured is the inner one's."""

    params: Params
    inner: Any


@runtime_checkable
class HasTracker(Protocol):
    """The state of a gradient-tracking method: `tracker` follows the mean of the agents' gradients."""

    params: Params
    tracker: Params


class Pair(NamedTuple):
    """What an algorithm's factory returns: `init(params, key, grad, mix)` and `round(state, key, grad, mix)`.

    `rebase(state)`, where given, is what an agent's state becomes when agents join or leave, so that what must hold for
    their mean (mean(Y) = mean(G), say) holds for those who now take part. Without it the roster cannot change.
    """

    init: Callable[[Params, Key, Grad, StartMix], State]
    round: Callable[[State, Key, Grad, Mix], State]
    needs: Needs = Needs()
    rebase: Callable[[State], State] | None = None


@jax.tree_util.register_pytree_with_keys_class
class Algorithm:
    """An update rule with its hyperparameters.

    A pytree whose leaves are the hyperparameters that its factory annotates as `float` (and those of an `Algorithm`
    that it wraps), so step sizes can be traced and batched without compiling again; the others (`local_steps: int`,
    …) are structure.

    >>> from pisco import algorithms
    >>> algorithms.dsgd(local_lr=0.1)
    dsgd(local_lr=0.1, comm_lr=1.0, local_steps=1, combine_first=False)
    >>> jax.tree.leaves(algorithms.dsgd(local_lr=0.1))
    [0.1, 1.0]
    """

    def __init__(self, factory: Callable[..., Pair], hyperparameters: dict[str, Any]):
        self.factory = factory
        self.hyperparameters = hyperparameters

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
    def name(self) -> str:
        """The factory's name."""
        return self.factory.__name__

    def __repr__(self) -> str:
        listed = ", ".join(f"{name}={value!r}" for name, value in self.hyperparameters.items())
        return f"{self.name}({listed})"

    def tree_flatten_with_keys(self):
        traced = _traced_names(self.factory)
        children = [(jax.tree_util.GetAttrKey(name), self.hyperparameters[name]) for name in traced]
        fixed = tuple((k, v) for k, v in self.hyperparameters.items() if k not in traced)
        return children, (self.factory, fixed)

    @classmethod
    def tree_unflatten(cls, aux, children):
        factory, fixed = aux
        values = dict(fixed) | dict(zip(_traced_names(factory), children, strict=True))
        return cls(factory, {name: values[name] for name in inspect.signature(factory).parameters})


@functools.cache
def _traced_names(factory: Callable[..., Pair]) -> tuple[str, ...]:
    parameters = inspect.signature(factory).parameters.values()
    return tuple(p.name for p in parameters if p.annotation in (float, "float", Algorithm, "Algorithm"))


P = ParamSpec("P")


def algorithm(factory: Callable[P, Pair]) -> Callable[P, Algorithm]:
    """Turn a factory of keyword-only hyperparameters into one that returns an `Algorithm`.

    The factory runs once here, so that its checks speak at once.

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
    signature = inspect.signature(factory)

    @functools.wraps(factory)
    def build(*args: P.args, **kwargs: P.kwargs) -> Algorithm:
        bound = signature.bind(*args, **kwargs)
        bound.apply_defaults()
        made = Algorithm(factory, dict(bound.arguments))
        _ = made._pair
        return made

    return build
