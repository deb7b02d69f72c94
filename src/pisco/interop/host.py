"""A loss that another framework computes, as a problem: values and gradients come back through a callback.

The batches stay ours: a framework is asked for the mean loss of given samples, so batches depend on the seed, the
agent and the round alone, in every engine.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from pisco.errors import InputError, brief
from pisco.parts import BUFFERS, FROZEN, RENEWED, matchers, names_of
from pisco.problems.problem import Problem
from pisco.trouble import Trouble
from pisco.types import Key, Params

try:
    from jax.experimental.buffer_callback import buffer_callback
except ImportError:  # experimental: another jax may not have it
    buffer_callback: Any = None

__all__ = ["Local", "problem"]


@dataclass(frozen=True, eq=False)
class Local:
    """One agent's samples and loss, computed outside JAX on NumPy arrays.

    start: `start(seed)` draws x⁰, a pytree of NumPy arrays; the same seed gives the same start on every machine.
    gradient: `gradient(params, rows, seed)` is the mean loss over the samples `rows` and its gradient; with `seed=None`
      that of `loss`, to be measured.
    loss: `loss(params, rows)` is the same mean without anything random (no dropout).
    size: how many samples there are.
    renew: `renew(params, rows, seed)` are the new values of the leaves `buffers`, if there are any (dictionaries then).
    buffers: their names.
    constants: names of leaves that are read alone, such as masks; they are frozen unless `parts` says otherwise.
    resident: the same gradient where JAX's arrays and the model share a GPU, so that nothing leaves it.
    """

    start: Callable[[int], Params]
    gradient: Callable[[Params, np.ndarray, Any], tuple[float, Params]]
    loss: Callable[[Params, np.ndarray], float]
    size: int
    renew: Callable[[Params, np.ndarray, int], dict[str, np.ndarray]] | None = None
    buffers: tuple[str, ...] = ()
    constants: tuple[str, ...] = ()
    resident: Resident | None = None


class Resident(NamedTuple):
    """Gradients in place, on arrays of a device that speak DLPack; `context` is what JAX's `buffer_callback` gives.

    fetch: `fetch(context, arrays)` brings small arrays to the host.
    gradient: `gradient(context, out, params, rows, seed)` writes the mean loss and its gradient into `out`.
    """

    fetch: Callable[[Any, Sequence[Any]], list[np.ndarray]]
    gradient: Callable[[Any, tuple[Any, Params], Params, np.ndarray, int], None]


def problem(*agents: Local, name: str = "problem", parts: Mapping[str, Any] | None = None) -> Problem:
    """The problem of one agent in a process of its own, or of several to simulate.

    `parts` are as in `pisco.Problem`; buffers that it does not name are averaged.

    >>> def line(slope):                       # ½(x − slope)², three equal samples
    ...     def value(params, rows):
    ...         return 0.5 * float(params - slope) ** 2
    ...     def gradient(params, rows, seed):
    ...         return value(params, rows), params - slope
    ...     return Local(lambda seed: np.zeros((), np.float32), gradient, value, 3)
    >>> import pisco
    >>> result = pisco.run(pisco.algorithms.dsgd(local_lr=0.5), problem(line(1.0), line(3.0)),
    ...                    pisco.Network.path(2), rounds=30, batch_size=2)
    >>> np.round(result.params, 3).tolist()
    [2.0, 2.0]
    """
    if not agents or not all(isinstance(each, Local) for each in agents):
        given = ", ".join(type(each).__name__ for each in agents) or "nothing"
        raise InputError(f"problem(…) got {given}, expected agents, as in problem(Local(…), Local(…))")
    first = agents[0].start(0)
    for path, leaf in jax.tree_util.tree_leaves_with_path(first):
        kept = jax.dtypes.canonicalize_dtype(leaf.dtype)
        if kept != leaf.dtype:
            where = jax.tree_util.keystr(path) or "the start"
            raise InputError(
                f"{where} has dtype {leaf.dtype}, but jax computes in {kept}; "
                'give the parameters that dtype, or set dtype = "float64" for the whole federation'
            )
    for index, each in enumerate(agents[1:], start=1):
        _check_alike(first, each.start(0), index)
    shapes = jax.tree.map(lambda leaf: jax.ShapeDtypeStruct(leaf.shape, leaf.dtype), first)
    data = [
        {"agent": np.full(each.size, index, np.int32), "row": np.arange(each.size, dtype=np.int32)}
        for index, each in enumerate(agents)
    ]
    named = [test for kind, given in (parts or {}).items() for test in matchers(kind, given).values()]
    kinds = dict(parts or {})
    for kind, leaves in ((BUFFERS, agents[0].buffers), (FROZEN, agents[0].constants)):
        if rest := [each for each in leaves if not any(test(each) for test in named)]:
            kinds[kind] = _either(rest, kinds.get(kind, []))
    renewed = [test for kind in RENEWED if kind in kinds for test in matchers(kind, kinds[kind]).values()]
    held = (*agents[0].buffers, *agents[0].constants)
    loss = _HostLoss(agents, shapes, tuple(each for each in held if any(test(each) for test in renewed)))
    return Problem(loss, _HostStart(agents[0], shapes), data, name=name, parts=kinds or None)


def _check_alike(first: Params, other: Params, index: int) -> None:
    """Refuse an agent whose model is not that of agent 0: nobody would train what the others lack."""

    def told(params: Params) -> dict[str, str]:
        return dict(zip(names_of(params), (f"{x.dtype}{list(x.shape)}" for x in jax.tree.leaves(params)), strict=True))

    ours, its = told(first), told(other)
    for name in (*ours, *its):
        if ours.get(name) != its.get(name):
            one, two = (each.get(name, "no such leaf") for each in (its, ours))
            raise InputError(
                f"agent {index}'s model has {one} as {name}, and agent 0's has {two}; give all agents the same model"
            )


def _either(names: list[str], given: Any) -> Any:
    """These leaves, and those that a user's own words match."""
    if callable(given):
        return lambda name: name in names or given(name)
    return [*names, *([given] if isinstance(given, str) else given)]


@dataclass(frozen=True, eq=False)
class _HostStart:
    agent: Local
    shapes: Any

    def __call__(self, key: Key) -> Params:
        def draw(words):
            return self.agent.start(_seed(words))

        return jax.pure_callback(draw, self.shapes, jax.random.key_data(key), vmap_method="sequential")


@dataclass(frozen=True, eq=False)
class _HostLoss:
    agents: Sequence[Local]
    shapes: Any
    buffers: tuple[str, ...]
    """What it returns beside the loss: not those that somebody froze, and constants that somebody calls buffers."""
    trouble: Trouble = field(default_factory=Trouble)

    def __call__(self, params: Params, batch: Any, key: Key | None) -> Any:
        words = None if key is None else jax.random.key_data(key)
        mean = _total_loss(self, params, batch["agent"], batch["row"], words, None)
        if words is None or not self.buffers:
            return mean
        like = {each: self.shapes[each] for each in self.buffers}
        return mean, self.ask(self.renewed, like, jax.lax.stop_gradient(params), batch["agent"], batch["row"], words)

    def weighted(self, params: Params, batch: Any, weights: jax.Array, key: Key | None) -> jax.Array:
        """Σ weights·losses: single samples would be a call each, and a gradient as large as the model for each."""
        words = None if key is None else jax.random.key_data(key)
        return _total_loss(self, params, batch["agent"], batch["row"], words, weights)

    def ask(self, function: Callable[..., Any], like: Any, params: Params, *given: Any) -> Any:
        """Inside a program: `function` of all this, computed on the host."""

        def asked(params: Params, agent: Any, row: Any, words: Any, *weights: Any) -> Any:
            owner = np.asarray(agent)
            try:
                return function(jax.tree.map(np.asarray, params), owner, np.asarray(row), words, *weights)
            except Exception as error:
                self._fails(error, np.unique(owner).tolist(), training=words is not None)
            return jax.tree.map(lambda leaf: np.zeros(leaf.shape, leaf.dtype), like)

        return jax.pure_callback(asked, like, params, *given, vmap_method="sequential")

    def write(self, context: Any, out: Any, params: Params, agent: Any, row: Any, words: Any) -> None:
        """Called by a program on a GPU, with the device's own memory: loss and gradient of one agent's batch."""
        whose: Any = "?"
        try:
            fetch = self.agents[0].resident.fetch  # type: ignore[union-attr]
            owner, row, words = fetch(context, (agent, row, words))
            whose = int(owner.ravel()[0])
            self.agents[whose].resident.gradient(context, out, params, row, _seed(words))  # type: ignore[union-attr]
        except Exception as error:
            self._fails(error, [whose], training=True)

    def _fails(self, error: Exception, agents: Sequence[Any], *, training: bool) -> None:
        whose = " and ".join(f"agent {one}'s" for one in agents[:3]) if len(self.agents) > 1 else "the"
        told = f"{whose} model or samples fail ({brief(error)}); fix them"
        self.trouble.meet(InputError(told), training=training)

    def renewed(self, params: Params, owner: np.ndarray, row: np.ndarray, words: Any) -> Params:
        """The buffers that one agent makes of a batch."""
        own = self.agents[int(owner.ravel()[0])]
        made = own.renew(params, row, _seed(words)) if own.renew is not None else {}
        read = {each: params[each] for each in self.buffers if each in own.constants}
        return {each: self._checked((made | read)[each], self.shapes[each]) for each in self.buffers}

    def value(self, params: Params, owner: np.ndarray, row: np.ndarray, words: Any, weights: Any) -> np.ndarray:
        """The mean over samples that may belong to several agents, or their sum with weights."""
        total, whole = 0.0, len(row) if weights is None else 1
        for index, mine, mass in _groups(owner, row, weights):
            total += float(self.agents[index].loss(params, mine)) * mass
        return np.asarray(total / whole, _dtype(self.shapes))

    def value_and_gradient(
        self, params: Params, owner: np.ndarray, row: np.ndarray, words: Any, weights: Any
    ) -> tuple[Any, Params]:
        seed = None if words is None else _seed(words)
        total, slope = 0.0, jax.tree.map(lambda leaf: np.zeros(leaf.shape, leaf.dtype), self.shapes)
        whole = len(row) if weights is None else 1
        for index, mine, mass in _groups(owner, row, weights):
            value, gradient = self.agents[index].gradient(params, mine, seed)
            share = mass / whole
            total += share * float(value)
            if share == 1.0:  # one agent's batch: its gradient as it is, to the last bit
                slope = jax.tree.map(self._checked, gradient, self.shapes)
            else:
                slope = jax.tree.map(
                    lambda sum, own, like, share=share: sum + like.dtype.type(share) * self._checked(own, like),
                    slope,
                    gradient,
                    self.shapes,
                )
        return np.asarray(total, _dtype(self.shapes)), slope

    def _checked(self, leaf: Any, like: Any) -> np.ndarray:
        array = np.asarray(leaf)
        if array.shape != like.shape or array.dtype != like.dtype:
            raise InputError(
                f"a gradient has shape {array.shape} and dtype {array.dtype}, "
                f"its parameter {like.shape} and {like.dtype}"
            )
        return array


def _groups(owner: np.ndarray, row: np.ndarray, weights: Any) -> Iterator[tuple[int, np.ndarray, float]]:
    """An agent, samples of it that weigh the same, and what they weigh together (1 each unless given)."""
    given = np.ones(len(row)) if weights is None else np.asarray(weights, float)
    for index in np.unique(owner):
        for weight in np.unique(given[owner == index]):
            mine = row[(owner == index) & (given == weight)]
            if weight:  # others fill up a block
                yield int(index), mine, float(weight) * len(mine)


@partial(jax.custom_vjp, nondiff_argnums=(0,))
def _total_loss(host: _HostLoss, params: Params, agent: Any, row: Any, words: Any, weights: Any) -> jax.Array:
    """The mean, or the sum with weights."""
    out = jax.ShapeDtypeStruct((), _dtype(host.shapes))
    return host.ask(host.value, out, params, agent, row, words, weights)


def _forward(
    host: _HostLoss, params: Params, agent: Any, row: Any, words: Any, weights: Any
) -> tuple[jax.Array, Params]:
    out = (jax.ShapeDtypeStruct((), _dtype(host.shapes)), host.shapes)
    if words is not None and weights is None and _shares_a_gpu(host.agents):
        signed = jax.lax.bitcast_convert_type(words, jnp.int32)  # not every framework has others
        return buffer_callback(host.write, out, vmap_method="sequential")(params, agent, row, signed)
    return host.ask(host.value_and_gradient, out, params, agent, row, words, weights)


def _shares_a_gpu(agents: Sequence[Local]) -> bool:
    on_gpu = jax.default_backend() == "gpu" and buffer_callback is not None
    return on_gpu and all(each.resident is not None for each in agents)


def _backward(host: _HostLoss, gradient: Params, slope: jax.Array) -> tuple[Params, None, None, None, None]:
    return jax.tree.map(lambda leaf: slope.astype(leaf.dtype) * leaf, gradient), None, None, None, None


_total_loss.defvjp(_forward, _backward)


def _dtype(shapes: Any) -> Any:
    return jnp.result_type(*(leaf.dtype for leaf in jax.tree.leaves(shapes)))


def _seed(words: Any) -> int:
    """A whole number below 2⁶³ from the two words of a key."""
    first, second = (int(word) for word in np.asarray(words).astype(np.uint32).ravel()[:2])
    return (first << 31) ^ second
