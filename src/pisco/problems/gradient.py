"""What an agent computes: draw the batch → loss → weigh → gradient, made here for every engine.

It is written for one agent; how agents are put together (`Batching`) is the engine's choice.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

from pisco.networks.placement import EVERYBODY, Placement
from pisco.problems.problem import Problem
from pisco.problems.sampling import batch_indices
from pisco.types import Grad, Key, Params

BUFFERS_STREAM = 2**32 - 1
"""Apart from the keys of a round's gradients."""

PerAgent = Callable[[Params, Key, Any], Any]
"""A function of (params, key, agent): of one agent and its number, or of several that lead."""

Batching = Callable[[PerAgent], PerAgent]
"""How the function of one agent becomes that of several."""

stacked: Batching = partial(jax.vmap, in_axes=(0, None, 0))
"""All agents at once, on a leading axis."""


def in_turn(own: PerAgent) -> PerAgent:
    """One agent after the other: no more memory for activations than one agent needs."""
    return lambda params, key, agents: lax.map(lambda one: own(one[0], key, one[1]), (params, agents))


def usual(problem: Problem) -> Batching:
    """Stacked; but in turn on a CPU where the loss has convolutions, which gain nothing by stacking."""
    return in_turn if problem.convolves and jax.default_backend() == "cpu" else stacked


def agent_loss(problem: Problem, batch_size: int | None, place: int | None = None) -> PerAgent:
    """The loss of one agent at its own parameters, on the batch that (key, agent) draws or on all its samples.

    `place` is whose samples they are in `problem`, where that is not the agent's number: data of one agent alone, say.
    """

    def loss(params: Params, key: Key, agent: Any) -> jax.Array:
        at = agent if place is None else place
        own = unweighted(params, key, agent, at)
        return own if problem.scales is None else problem.scales[at].astype(own.dtype) * own

    def unweighted(params: Params, key: Key, agent: Any, at: Any) -> jax.Array:
        size, most, own_key = problem.sizes[at], problem.max_size, jax.random.fold_in(key, agent)
        if batch_size is not None or problem.min_size == most:
            return problem.batch_loss(params, _batch(problem, batch_size, key, agent, at), own_key)
        slots = jnp.arange(most)
        rows = problem.offsets[at] + jnp.minimum(slots, size - 1)
        batch = problem.data.batch(key, agent, rows) if problem.streams else problem.take(rows)
        losses = problem.sample_losses(params, batch, own_key)
        return jnp.where(slots < size, losses, 0).sum() / size.astype(losses.dtype)

    return loss


def _batch(problem: Problem, batch_size: int | None, key: Key, agent: Any, at: Any) -> Any:
    """The batch that (key, agent) draws, or all samples where every agent has as many."""
    size, offset = problem.sizes[at], problem.offsets[at]
    if batch_size is None:
        if problem.streams:
            return problem.data.batch(key, agent, offset + jnp.arange(problem.max_size))
        return jax.tree.map(lambda leaf: lax.dynamic_slice_in_dim(leaf, offset, problem.max_size), problem.data)
    rows = offset + batch_indices(key, agent, size, batch_size)
    if problem.streams:
        return problem.data.batch(key, agent, rows)
    return jax.tree.map(lambda leaf: leaf.at[rows].get(mode="promise_in_bounds"), problem.data)


def agent_buffers(problem: Problem, batch_size: int | None, place: int | None = None) -> PerAgent:
    """One agent's parameters with the buffers that its loss makes of one more batch: once a round, at its end.

    Gradients do not ask for buffers, as normalisation trains by the batch at hand; so one pass a round keeps them.
    """

    def renewed(params: Params, key: Key, agent: Any) -> Params:
        key = jax.random.fold_in(key, BUFFERS_STREAM)
        batch = _batch(problem, batch_size, key, agent, agent if place is None else place)
        return problem.renewed(params, batch, jax.random.fold_in(key, agent))

    return renewed


def gradient(
    problem: Problem, batch_size: int | None, here: Placement = EVERYBODY, batching: Batching | None = None
) -> Grad:
    """`grad(params, key)` of the agents here: by their own numbers, so that they draw the same batches anywhere."""
    own = (batching or usual(problem))(jax.grad(agent_loss(problem, batch_size)))
    return lambda params, key: own(params, key, _numbers(here, params))


def mean_loss(
    problem: Problem, batch_size: int | None, here: Placement = EVERYBODY, batching: Batching | None = None
) -> Callable[[Params, Key], jax.Array]:
    """`loss(params, key)`: the mean over all agents of their losses, each at its own parameters."""
    own = (batching or usual(problem))(agent_loss(problem, batch_size))
    return lambda params, key: here.mean(own(params, key, _numbers(here, params)))


def buffers(
    problem: Problem, batch_size: int | None, here: Placement = EVERYBODY, batching: Batching | None = None
) -> Callable[[Params, Key], Params]:
    """`renew(params, key)`: the parameters of the agents here with the buffers of the round's end."""
    own = (batching or usual(problem))(agent_buffers(problem, batch_size))
    return lambda params, key: own(params, key, _numbers(here, params))


def _numbers(here: Placement, params: Params) -> jax.Array:
    return here.numbers(jax.tree.leaves(params)[0].shape[0])
