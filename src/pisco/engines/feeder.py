"""Batches of a stream, gathered on the host one chunk of rounds ahead of the device.

Which batches a round draws depends on its key alone. So the round is traced once with a mark in place of every
gradient, and the keys that reach the marks are computed for a whole chunk; all else in that program is dead code.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.extend import core

from pisco.data.stream import STREAM_BYTES, Stream
from pisco.engines.job import Carry, Job, next_segment
from pisco.errors import InputError
from pisco.jaxprs import holds, loop_inputs, run_alone
from pisco.networks.rounds import RoundMix, Told
from pisco.problems.gradient import BUFFERS_STREAM
from pisco.problems.sampling import batch_indices
from pisco.seeds import Streams, seed_key, streams
from pisco.types import Algorithm

_mark = core.Primitive("mark")
_mark.multiple_results = True
_mark.def_abstract_eval(lambda key, *leaves: leaves)


def _marked(params: Any, key: jax.Array) -> Any:
    leaves, structure = jax.tree.flatten(params)
    return jax.tree.unflatten(structure, _mark.bind(key, *leaves))


def drawn_keys(algorithm: Algorithm, state: Any, num_agents: int) -> Callable[[jax.Array], jax.Array]:
    """The keys that a round's gradients are called with, as words (calls, 2), of the round's own key.

    >>> from pisco import algorithms
    >>> rule, params = algorithms.dsgd(local_lr=0.1, local_steps=3), jnp.zeros((4, 2))
    >>> state = jax.eval_shape(lambda: rule.init(params, jax.random.key(0), lambda p, k: p, None))
    >>> drawn_keys(rule, state, 4)(jax.random.key(0)).shape
    (3, 2)
    """
    told = Told(jnp.ones(num_agents, bool), 1.0, jnp.ones(num_agents, bool))
    mix = RoundMix(lambda tree: tree, told)
    program = jax.make_jaxpr(lambda state, key: algorithm.round(state, key, _marked, mix))(state, jax.random.key(0))

    def keys(key: jax.Array) -> jax.Array:
        zeros = [jnp.zeros(leaf.shape, leaf.dtype) for leaf in jax.tree.leaves(state)]
        found = _run(program.jaxpr, program.consts, [*zeros, key])[1]
        return jnp.concatenate(found) if found else jnp.zeros((0, 2), jnp.uint32)

    return keys


def _run(jaxpr: Any, consts: Any, arguments: Any) -> tuple[list[Any], list[jax.Array]]:
    """What a program returns, and the keys at its marks."""
    known: dict[Any, Any] = dict(zip([*jaxpr.constvars, *jaxpr.invars], [*consts, *arguments], strict=True))
    keys: list[jax.Array] = []

    def read(atom: Any) -> Any:
        return atom.val if isinstance(atom, core.Literal) else known[atom]

    for equation in jaxpr.eqns:
        given, inner = [read(atom) for atom in equation.invars], equation.params.get("jaxpr")
        if equation.primitive is _mark:
            keys.append(jax.random.key_data(given[0])[None])
            made = given[1:]
        elif not any(holds(each, _mark) for each in core.jaxprs_in_params(equation.params)):
            made = run_alone(jaxpr, equation, read)
        elif equation.primitive.name == "scan":
            made, within = _scan(equation.params, inner, given)
            keys.append(within)
        elif inner is not None and len(given) == len(getattr(inner, "jaxpr", inner).invars):  # jit, checkpoint
            made, within = _run(getattr(inner, "jaxpr", inner), getattr(inner, "consts", ()), given)
            keys += within
        else:
            where = equation.primitive.name
            raise InputError(
                f"the algorithm calls `grad` inside {where}, where its batches cannot be known in advance; "
                "call it directly in `round`"
            )
        known.update(zip(equation.outvars, made, strict=True))
    return [read(atom) for atom in jaxpr.outvars], keys


def _scan(params: Any, inner: Any, given: list[Any]) -> tuple[list[Any], jax.Array]:
    consts, carry, rows = loop_inputs(params, given)
    program, own = getattr(inner, "jaxpr", inner), getattr(inner, "consts", ())

    def body(carry: Any, rows: Any) -> Any:
        made, keys = _run(program, own, [*consts, *carry, *rows])
        return made[: len(carry)], (made[len(carry) :], jnp.concatenate(keys))

    carry, (rows, keys) = lax.scan(body, carry, rows, params["length"], params["reverse"])
    return [*carry, *rows], keys.reshape(-1, 2)


@partial(jax.jit, static_argnames=("state", "size", "renews"))
def _drawn(
    algorithm: Algorithm,
    offsets: jax.Array,
    sizes: jax.Array,
    root: Streams,
    rounds: jax.Array,
    *,
    state: tuple[Any, tuple[Any, ...]],
    size: int,
    renews: bool,
) -> tuple[jax.Array, jax.Array]:
    """The keys of these rounds' gradients, (rounds, calls, 2), and the samples that all agents draw with each."""
    keys = drawn_keys(algorithm, jax.tree.unflatten(*state), offsets.shape[0])
    agents = jnp.arange(offsets.shape[0])

    def rows(key, agent):
        return offsets[agent] + batch_indices(key, agent, sizes[agent], size)

    def one(k):
        key = root.batch_key(k)
        words = keys(key)
        if renews:
            words = jnp.concatenate([words, jax.random.key_data(jax.random.fold_in(key, BUFFERS_STREAM))[None]])
        typed = jax.random.wrap_key_data(words, impl="threefry2x32")
        return words, jax.vmap(lambda key: jax.vmap(lambda agent: rows(key, agent))(agents))(typed)

    return jax.vmap(one)(rounds)


class Feeder:
    """Hands a stream the batches of the rounds to come."""

    def __init__(self, job: Job, shapes: Carry):
        assert job.batch_size is not None
        problem, size = job.problem, job.batch_size
        self.stream: Stream = problem.data
        self.roots = [streams(seed_key(run.seed)) for run in job.runs]
        leaves, structure = jax.tree.flatten(shapes.state)
        fixed = {"state": (structure, tuple(leaves)), "size": size, "renews": problem.renews}
        self._drawn = partial(_drawn, job.runs[0].algorithm, problem.offsets, problem.sizes, **fixed)
        calls = jax.eval_shape(self._drawn, self.roots[0], jnp.zeros(1, jnp.int32))[0].shape[1]
        each = len(job.runs) * max(1, calls) * problem.num_agents * size * self.stream.sample_bytes
        self.rounds = max(1, STREAM_BYTES // each)
        """Rounds whose batches are held at once."""
        self._pool = ThreadPoolExecutor(1, thread_name_prefix="feeder")
        self._next: tuple[tuple[int, int], Future[Any]] | None = None

    def provide(self, done: int, count: int, rounds: int, eval_every: int, chunk: int) -> InputError | None:
        """Have the batches of `count` rounds ready and begin with those after them; or what went wrong."""
        try:
            self.stream.ahead = self._asked(done, count).result()
        except InputError as error:
            return error
        self._next, after = None, done + count
        if after < rounds:
            then = next_segment(after, rounds, eval_every, chunk).rounds
            self._next = ((after, then), self._asked(after, then))
        return None

    def _asked(self, done: int, rounds: int) -> Future[Any]:
        if self._next is not None and self._next[0] == (done, rounds):
            return self._next[1]
        numbers = done + jnp.arange(rounds, dtype=jnp.int32)
        drawn = [jax.tree.map(np.asarray, self._drawn(root, numbers)) for root in self.roots]
        return self._pool.submit(self._gather, drawn)

    def _gather(self, drawn: list[Any]) -> dict[tuple[int, int], Any]:
        ahead: dict[tuple[int, int], Any] = {}
        for words, rows in drawn:
            for each, own in zip(words.reshape(-1, 2), rows.reshape(-1, *rows.shape[-2:]), strict=True):
                made = self.stream.gather(own.reshape(-1))
                batch = jax.tree.map(lambda leaf, own=own: leaf.reshape(*own.shape, *leaf.shape[1:]), made)
                ahead[int(each[0]), int(each[1])] = batch
        return ahead

    def close(self) -> None:
        """Let go of everything."""
        self._pool.shutdown(cancel_futures=True)
        self.stream.ahead = {}


@contextmanager
def feeding(job: Job, shapes: Carry) -> Iterator[Feeder | None]:
    """A feeder, where batches of a stream are drawn. (With several processes each gathers when its agents ask.)"""
    if not job.problem.streams or job.batch_size is None or jax.process_count() > 1:
        yield None
        return
    feeder = Feeder(job, shapes)
    try:
        yield feeder
    finally:
        feeder.close()
