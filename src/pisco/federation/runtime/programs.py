"""One agent's compiled programs: its start and its round, cut at the exchanges."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from pisco.engines.evaluate import measure_test, with_params
from pisco.federation.runtime.cut import Cut, Exchange, Steps, answered, exchange
from pisco.federation.runtime.updates import Compressing, CutMix
from pisco.networks.placement import Everybody
from pisco.networks.rounds import Told, pushed_leaves
from pisco.parts import only, over
from pisco.problems.gradient import agent_buffers, agent_gradient
from pisco.problems.problem import Problem
from pisco.seeds import Streams
from pisco.trouble import deferring
from pisco.types import Algorithm, Grad, Params, StartMix

START_SERVER, START_GOSSIP = "start-server", "start-gossip"


class Mixing(NamedTuple):
    """The kind of a round's exchanges, and which leaves of the message are `Pushed`."""

    pushed: tuple[int, ...]


class _One(Everybody):
    """The place of a single agent with a number of its own; its arrays have a leading axis of length one."""

    def __init__(self, index: Any):
        self.index = index

    def numbers(self, count: int) -> jax.Array:
        return jnp.reshape(self.index, (count,))


class Programs:
    """Start, round and measurement of the agent with this index, whose data alone `problem` holds.

    The index is an argument like the data, so that agents with data of one size share their compiled programs.
    """

    def __init__(self, algorithm: Algorithm, problem: Problem, batch_size: int | None, keys: Streams, index: int):
        self._index, self._trouble = np.int32(index), problem.trouble
        own = agent_gradient(problem, batch_size, place=0)

        def gradient(index: Any, attempt: Any = 0) -> Grad:
            if problem.privacy is not None:  # a round tried again is another draw of noise, or their difference tells
                return lambda params, key: _stacked(own(_single(params), jax.random.fold_in(key, attempt), index))
            return lambda params, key: _stacked(own(_single(params), key, index))

        def measure(params: Params) -> dict[str, Any]:
            return {"loss": problem.objective(_single(params))} | measure_test(problem, _single(params))

        def start(index: Any) -> Any:
            params = _stacked(problem.init(keys.start))
            mix = StartMix(lambda tree: exchange(tree, START_SERVER), lambda tree: exchange(tree, START_GOSSIP))
            return algorithm.init(params, keys.batch_key(-1), gradient(index), mix)

        def join(params: Params, k: Any, index: Any, attempt: Any) -> Any:
            mix = StartMix(lambda tree: tree, lambda tree: tree)
            return algorithm.init(params, keys.batch_key(k - 1), gradient(index, attempt), mix)

        def one_round(state: Any, k: Any, told: Told, index: Any, attempt: Any) -> Any:
            mix = CutMix(lambda tree: exchange(tree, Mixing(pushed_leaves(tree))), told, _One(index))
            state = algorithm.round(state, keys.batch_key(k), gradient(index, attempt), mix)
            if not problem.renews:
                return state
            renewed = agent_buffers(problem, batch_size, place=0)(_single(state.params), keys.batch_key(k), index)
            return with_params(state, _stacked(renewed))

        number = jax.ShapeDtypeStruct((), jnp.int32)
        self.first_params = lambda: _stacked(problem.init(keys.start))
        self.params_like = jax.eval_shape(self.first_params)
        self.state_like = jax.eval_shape(join, self.params_like, number, number, number)
        told = Told(
            jax.ShapeDtypeStruct((1,), bool),  # type: ignore[arg-type]
            jax.ShapeDtypeStruct((), jnp.zeros(()).dtype),
            jax.ShapeDtypeStruct((1,), bool),  # type: ignore[arg-type]
        )
        self._start = Cut(start, number)
        self._round = Cut(one_round, self.state_like, number, told, number, number)
        kinds = [kind for kind, _ in self._round.messages]
        self.model_part = self._model_part(kinds)
        self.codecs = [kind.codec for kind in kinds if isinstance(kind, Compressing)]
        # Not `jax.jit`: it would build the agent's data into the program.
        self._join = Cut(join, self.params_like, number, number, number)
        self._measure = Cut(measure, self.params_like)

    def _model_part(self, kinds: list[Any]) -> list[int]:
        """Where a round hands on what one exchange brings as the parameters: which, and every leaf's place there."""
        leaves, structure = jax.tree.flatten(self.state_like)
        mine = jax.tree.leaves(only(jax.tree.unflatten(structure, range(len(leaves))).params))
        found = [self._round.handed_on[at] for at in mine]
        exchanges = {each and each[0] for each in found}
        if None in exchanges or len(exchanges) != 1:
            return []
        (at,) = exchanges
        mixes = [number for number, kind in enumerate(kinds) if isinstance(kind, Mixing)]
        return [mixes.index(at), *(each[1] for each in found if each)] if at in mixes else []

    @property
    def sent_like(self) -> list[Any]:
        """The parameters that are sent, one after the other."""
        return jax.tree.leaves(only(self.params_like))

    def params_of(self, sent: Sequence[Any]) -> Params:
        """The parameters of who starts with those that others sent; what is never sent is as everybody starts."""
        return over(jax.tree.unflatten(jax.tree.structure(only(self.params_like)), sent), self.first_params())

    def compile(self) -> None:
        """Compile what every round needs, before others wait for it."""
        for stages in (self._start, self._round, self._measure):
            stages.compile()

    def start(self, exchange: Exchange) -> Any:
        """The state before the first round."""
        return answered(self.start_steps(), exchange)

    def round(self, exchange: Exchange, state: Any, k: int, told: Told, attempt: int = 0) -> Any:
        """The state after round k; private gradients draw noise of their own in every attempt."""
        return answered(self.round_steps(state, k, told, attempt), exchange)

    def start_steps(self) -> Steps:
        """`start` as a generator: it yields every exchange and is sent what comes of it."""
        return self._watched(self._start, self._index)

    def round_steps(self, state: Any, k: int, told: Told, attempt: int = 0) -> Steps:
        """`round` as a generator."""
        return self._watched(self._round, state, np.int32(k), told, self._index, np.int32(attempt))

    def join(self, params: Params, k: int, attempt: int = 0) -> Any:
        """The state of an agent that joins at round k with these parameters."""
        return answered(self._watched(self._join, params, np.int32(k), self._index, np.int32(attempt)), _nobody)

    def measure(self, params: Params) -> dict[str, float]:
        """What the agent sees at its own parameters."""
        found = answered(self._watched(self._measure, params), _nobody)
        return {name: float(value) for name, value in found.items()}

    def _watched(self, stages: Cut, *args: Any) -> Steps:
        """The steps of a program; samples or a model that fail end it with a sentence, before anything is sent."""
        steps, received = stages.steps(*args), None
        while True:
            with deferring(self._trouble) as met:
                try:
                    given, ended = steps.send(received), False
                except StopIteration as end:
                    given, ended = end.value, True
                if self._trouble is not None:
                    jax.block_until_ready(given)
                    if (failure := met()) is not None:
                        raise failure
            if ended:
                return given
            received = yield given


def sent_of(state: Any) -> list[np.ndarray]:
    """The parameters in a state that are sent, as they travel."""
    return [np.asarray(leaf) for leaf in jax.tree.leaves(only(state.params))]


def _nobody(kind: str, call: int, leaves: Any) -> Any:
    raise AssertionError("there is no exchange here")


def _single(tree: Any) -> Any:
    return jax.tree.map(lambda leaf: leaf[0], tree)


def _stacked(tree: Any) -> Any:
    return jax.tree.map(lambda leaf: jnp.asarray(leaf)[None], tree)
