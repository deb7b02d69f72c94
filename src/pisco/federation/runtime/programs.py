"""One agent's compiled programs: its start and its round, cut at the exchanges."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from pisco.costs import MessageSizes
from pisco.engines.evaluate import measure_test
from pisco.engines.job import Streams
from pisco.federation.runtime.codec import MessageLayout
from pisco.federation.runtime.cut import Exchange, Stages, exchange
from pisco.federation.runtime.routes import Flags
from pisco.problems.problem import Problem
from pisco.problems.sampling import batch_indices
from pisco.types import Algorithm, Compressor, Grad, Key, Params, StartMix

MIX, START_SERVER, START_GOSSIP = "mix", "start-server", "start-gossip"


class Own(NamedTuple):
    """What one agent brings: a start, its gradient, and what it measures on its own data."""

    init: Callable[[Key], Params]
    """x⁰ from a key that all agents share; all must come to the same."""
    gradient: Callable[[Params, Key, Any], Params]
    """Its mini-batch mean gradient from the round's key (the same for all) and its own index; traceable."""
    measure: Callable[[Params], dict[str, Any]]
    """Loss and other numbers on its own data; traceable."""
    name: str = "own problem"


def own_problem(problem: Problem, batch_size: int | None) -> Own:
    """A `Problem` with one agent. Batches depend on (seed, index, round) alone, as in every engine."""
    size = problem.num_samples

    def loss(params: Params, key: Key, index: Any) -> jax.Array:
        own_key = jax.random.fold_in(key, index)
        if batch_size is None:
            return problem.batch_loss(params, problem.data, own_key)
        rows = batch_indices(key, index, size, batch_size)
        batch = jax.tree.map(lambda leaf: leaf.at[rows].get(mode="promise_in_bounds"), problem.data)
        return problem.batch_loss(params, batch, own_key)

    def measure(params: Params) -> dict[str, Any]:
        return {"loss": problem.objective(params)} | measure_test(problem, params)

    return Own(problem.init, jax.grad(loss), measure, problem.name)


class _Mix:
    """The `Mix` of a single agent, a leading axis of length one."""

    def __init__(self, flags: Flags, index: Any):
        self.participates, self.share, self.server = flags
        self._index = index

    def __call__(self, tree: Any, compressor: Compressor | None = None) -> Any:
        return exchange(tree, MIX)

    def each(self, function: Callable[[Any, Key], Any], key: Key, tree: Any) -> Any:
        own_key = jax.random.fold_in(key, self._index)
        return _stacked(function(_single(tree), own_key))


class Programs:
    """Start, round and measurement of the agent with this index.

    The index is an argument like the data, so that agents with data of one size share their compiled programs.
    """

    def __init__(self, algorithm: Algorithm, own: Own, keys: Streams, index: int):
        self._index = np.int32(index)

        def gradient(index: Any) -> Grad:
            return lambda params, key: _stacked(own.gradient(_single(params), key, index))

        def start(index: Any) -> Any:
            params = _stacked(own.init(keys.start))
            mix = StartMix(
                lambda tree: exchange(tree, START_SERVER), lambda tree: exchange(tree, START_GOSSIP)
            )
            return algorithm.init(params, jax.random.fold_in(keys.batches, 0), gradient(index), mix)

        def join(params: Params, k: Any, index: Any) -> Any:
            mix = StartMix(lambda tree: tree, lambda tree: tree)
            return algorithm.init(params, jax.random.fold_in(keys.batches, k), gradient(index), mix)

        def one_round(state: Any, k: Any, flags: Flags, index: Any) -> Any:
            key = jax.random.fold_in(keys.batches, k + 1)
            return algorithm.round(state, key, gradient(index), _Mix(flags, index))

        number = jax.ShapeDtypeStruct((), jnp.int32)
        self.params_like = jax.eval_shape(lambda: _stacked(own.init(keys.start)))
        self.state_like = jax.eval_shape(join, self.params_like, number, number)
        flags = Flags(
            jax.ShapeDtypeStruct((1,), bool),  # type: ignore[arg-type]
            jax.ShapeDtypeStruct((), jnp.zeros(()).dtype),
            jax.ShapeDtypeStruct((1,), bool),  # type: ignore[arg-type]
        )
        self._start = Stages(start, number)
        self._round = Stages(one_round, self.state_like, number, flags, number)
        # Not `jax.jit`: it would build the agent's data into the program.
        self._join = Stages(join, self.params_like, number, number)
        self._measure = Stages(lambda params: own.measure(_single(params)), self.params_like)

    def compile(self) -> None:
        """Compile what every round needs, before others wait for it."""
        for stages in (self._start, self._round, self._measure):
            stages.compile()

    def message_sizes(self, num_agents: int) -> MessageSizes:
        """Bytes of one agent's messages. Vectors travel whole, also those that a compressor made sparse."""
        sizes = MessageSizes(num_agents, [], [], [], [])
        into = {START_SERVER: sizes.start_server, START_GOSSIP: sizes.start_gossip, MIX: sizes.sent}
        for stages in (self._start, self._round):
            for kind, leaves in stages.messages:
                into[kind].append(MessageLayout.of(leaves).size)
        return sizes._replace(whole=sizes.sent)

    def start(self, exchange: Exchange) -> Any:
        """The state before the first round."""
        return self._start(exchange, self._index)

    def round(self, exchange: Exchange, state: Any, k: int, flags: Flags) -> Any:
        """The state after round k."""
        return self._round(exchange, state, np.int32(k), flags, self._index)

    def join(self, params: Params, k: int) -> Any:
        """The state of an agent that joins at round k with these parameters."""
        return self._join(_nobody, params, np.int32(k), self._index)

    def measure(self, params: Params) -> dict[str, float]:
        """What the agent sees at its own parameters."""
        return {name: float(value) for name, value in self._measure(_nobody, params).items()}


def _nobody(kind: str, call: int, leaves: Any) -> Any:
    raise AssertionError("there is no exchange here")


def _single(tree: Any) -> Any:
    return jax.tree.map(lambda leaf: leaf[0], tree)


def _stacked(tree: Any) -> Any:
    return jax.tree.map(lambda leaf: jnp.asarray(leaf)[None], tree)
