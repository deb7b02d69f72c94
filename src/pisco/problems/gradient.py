"""What an agent computes: draw the batch → loss → (clip, add noise) → weigh → gradient, made here for every engine.

It is written for one agent; how agents are put together (`Batching`) is the engine's choice.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cache, partial
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax
from jax.extend import core

from pisco.errors import InputError
from pisco.jaxprs import holds
from pisco.networks.placement import EVERYBODY, Placement
from pisco.privacy.gradients import NOISE_STREAM, clipped, with_noise
from pisco.problems.blocks import kept_bytes
from pisco.problems.problem import Problem, WeightedLoss
from pisco.problems.sampling import batch_indices
from pisco.tree import like_one, num_bytes, zeros_like
from pisco.types import Grad, Key, Params

__all__ = ["Batching", "gradient", "in_groups", "in_turn", "lean", "stacked"]

BUFFERS_STREAM = 2**32 - 1
"""Apart from the keys of a round's gradients."""

LARGE_BYTES = 64 << 20
"""Parameters from which a model counts as large."""

SAMPLES_BYTES = 64 << 20
"""About how much the gradients of single samples may take at once, of every agent."""

OfAgent = Callable[[Params, Key, Any], Any]
"""A function of (params, key, agent): of one agent and its number, or of several that lead."""

Keep = Callable[..., Any]
"""A policy of `jax.checkpoint`: what a pass keeps for the way back."""


@dataclass(frozen=True)
class Batching:
    """How the function of one agent becomes that of several, and what gradients keep of a pass (None: everything)."""

    together: Callable[[OfAgent], OfAgent]
    keep: Keep | None = None

    def __call__(self, own: OfAgent) -> OfAgent:
        return self.together(own)


def _one_by_one(own: OfAgent) -> OfAgent:
    return lambda params, key, agents: lax.map(lambda one: own(one[0], key, one[1]), (params, agents))


stacked = Batching(partial(jax.vmap, in_axes=(0, None, 0)))
"""All agents at once, on a leading axis."""

in_turn = Batching(_one_by_one)
"""One agent after the other: no more memory for activations than one agent needs."""


@cache
def in_groups(size: int) -> Batching:
    """So many agents at a time: between `in_turn`, of one each, and `stacked`, of all."""

    def together(own: OfAgent) -> OfAgent:
        def every(params: Params, key: Key, agents: jax.Array) -> Any:
            if size >= agents.shape[0]:
                return stacked(own)(params, key, agents)
            return lax.map(lambda one: own(one[0], key, one[1]), (params, agents), batch_size=size)

        return every

    return Batching(together)


KEPT = ("reduce_max", "reduce_sum", "ragged_dot_general", "pallas_call", "ffi_call", "pure_callback", "buffer_callback")
"""Beside products of matrices: what is small, or costly to compute again."""


def products(primitive: Any, *given: Any, **params: Any) -> Any:
    """Keep sums, what other programs computed, products with weights, and other products smaller than what they join.

    The rest is cheap to compute again: what is elementwise, and scores of attention, which are large beside their dot.
    """
    if primitive.name != "dot_general":
        return primitive.name in KEPT
    (left, _), (among, _) = params["dimension_numbers"]
    one, other = given
    joined, apart = (math.prod(one.shape[axis] for axis in axes) for axes in (left, among))
    made = one.size * other.size // max(1, joined**2 * apart)
    return not among or made < max(one.size, other.size)


def _copies_of(params: Params) -> Keep:
    """Keep parameters in the precision of the pass: they are small beside it, and made again they are read again."""
    shapes = {leaf.shape for leaf in jax.tree.leaves(params)}
    return lambda primitive, *given, **how: primitive.name == "convert_element_type" and given[0].shape in shapes


def lean(batching: Batching) -> Batching:
    """The same with a pass that keeps little: what is elementwise is computed again on the way back."""
    return replace(batching, keep=products)


def usual(problem: Problem, batch_size: int | None = None) -> Batching:
    """Stacked; but in turn on a CPU where the loss has convolutions, which gain nothing by stacking.

    On an accelerator the passes of a large model keep little (`lean`): two thirds of the memory for a few hundredths of
    the speed, which is less than fewer agents at a time cost. Where that is too much still, they are taken in groups.
    """
    if jax.default_backend() == "cpu":
        return in_turn if problem.convolves else stacked
    keep = _little(problem, batch_size)

    def fitting(own: OfAgent) -> OfAgent:
        def every(params: Params, key: Key, agents: jax.Array) -> Any:
            return in_groups(group_size(problem, batch_size, params, _room(), keep))(own)(params, key, agents)

        return every

    return Batching(fitting, keep)


def _room() -> float:
    """Bytes of an accelerator's memory."""
    return (jax.local_devices()[0].memory_stats() or {}).get("bytes_limit", math.inf)


def _little(problem: Problem, batch_size: int | None) -> Keep | None:
    """`products` for a large model; but None, everything, where keeping less would not save memory.

    A loop over layers is computed again as a whole before the way back begins: there the body is what to checkpoint,
    which only the model can.
    """
    own = problem.params_like
    if problem.convolves or num_bytes(own) < LARGE_BYTES:
        return None
    program = jax.make_jaxpr(agent_loss(problem, batch_size))(own, jax.random.key(0), 0).jaxpr
    loops = (core.primitives.scan_p, core.primitives.while_p)
    return None if any(holds(program, loop) for loop in loops) else products


def group_size(problem: Problem, batch_size: int | None, params: Params, room: float, keep: Keep | None = None) -> int:
    """How many of the agents whose parameters lead here are taken at a time, with `room` bytes of memory.

    All of them, unless the model is large and what their passes keep for the way back may not fit beside X, Y, G and
    the next G. (By shapes alone: fused programs keep less.)
    """
    count = jax.tree.leaves(params)[0].shape[0]
    own = num_bytes(params) // count
    if own < LARGE_BYTES or count == 1:
        return count
    one = like_one(params)
    loss = agent_loss(problem, batch_size, keep=keep)
    activations = max(1, kept_bytes(lambda params: loss(params, jax.random.key(0), 0), one) - own)
    most = max(1, int(min(count, (room - 4 * count * own) / activations)))
    return -(-count // -(-count // most))  # groups of about one size


def agent_loss(problem: Problem, batch_size: int | None, place: int | None = None, keep: Keep | None = None) -> OfAgent:
    """The loss of one agent at its own parameters, on the batch that (key, agent) draws or on all its samples.

    `place` is whose samples they are in `problem`, where that is not the agent's number: data of one agent alone, say.
    """

    def kept(loss: Callable[..., jax.Array]) -> Callable[..., jax.Array]:
        if keep is None:
            return loss
        both = jax.checkpoint_policies.save_from_both_policies
        return lambda params, *given: jax.checkpoint(loss, policy=both(keep, _copies_of(params)))(params, *given)

    def loss(params: Params, key: Key, agent: Any) -> jax.Array:
        at = agent if place is None else place
        own = unweighted(params, key, agent, at)
        return own if problem.scales is None else problem.scales[at].astype(own.dtype) * own

    def unweighted(params: Params, key: Key, agent: Any, at: Any) -> jax.Array:
        size, own_key = problem.sizes[at], jax.random.fold_in(key, agent)
        batch, held = _drawn(problem, batch_size, key, agent, at)
        if held is None:
            return kept(problem.batch_loss)(params, batch, own_key)
        if isinstance(problem.loss, WeightedLoss):
            share = jnp.where(held, 1 / jnp.asarray(size, float), 0)
            return kept(problem.weighted_loss)(params, batch, share, own_key)
        losses = kept(problem.sample_losses)(params, batch, own_key)
        return jnp.where(held, losses, 0).sum() / size.astype(losses.dtype)

    return loss


def _drawn(problem: Problem, batch_size: int | None, key: Key, agent: Any, at: Any) -> tuple[Any, jax.Array | None]:
    """The samples of one gradient, and which of them are the agent's own; None: all.

    All samples of one agent are filled up to the length of the largest one's.
    """
    if batch_size is not None or problem.min_size == problem.max_size:
        return _batch(problem, batch_size, key, agent, at), None
    slots, size = jnp.arange(problem.max_size), problem.sizes[at]
    rows = problem.offsets[at] + jnp.minimum(slots, size - 1)
    batch = problem.data.batch(key, agent, rows) if problem.streams else problem.take(rows)
    return batch, slots < size


def agent_gradient(
    problem: Problem, batch_size: int | None, place: int | None = None, keep: Keep | None = None
) -> OfAgent:
    """The gradient of `agent_loss`; of a private problem, with every sample's clipped, and noise added."""
    if problem.privacy is None:
        return jax.grad(agent_loss(problem, batch_size, place, keep))
    protection, smooth = problem.protection, problem.privacy.smooth
    if protection is None:
        raise InputError("the noise for this epsilon is not known before a run; give privacy a noise, or use pisco.run")

    def private(params: Params, key: Key, agent: Any) -> Params:
        at = agent if place is None else place
        key, clip = protection.key(key), protection.clip[at]
        own_key, size = jax.random.fold_in(key, agent), problem.sizes[at]
        batch, held = _drawn(problem, batch_size, key, agent, at)
        held = jnp.ones(jax.tree.leaves(batch)[0].shape[0], bool) if held is None else held

        def one(sample: Any, slot: jax.Array, counts: jax.Array) -> Params:
            alone = jax.tree.map(lambda leaf: leaf[None], sample)
            found = jax.grad(problem.batch_loss)(params, alone, jax.random.fold_in(own_key, slot))
            return jax.tree.map(lambda leaf: jnp.where(counts, leaf, 0), clipped(found, clip, smooth))

        total = with_noise(
            _total(jax.vmap(one), (batch, jnp.arange(len(held)), held), SAMPLES_BYTES // max(1, num_bytes(params))),
            protection.noise[at] * clip,
            jax.random.fold_in(own_key, NOISE_STREAM),
        )
        scale = 1.0 / (size if batch_size is None else batch_size)
        scale = scale if problem.scales is None else scale * problem.scales[at]
        return jax.tree.map(lambda x, own: (jnp.asarray(scale, x.dtype) * x).astype(own.dtype), total, params)

    return private


def _total(each: Callable[..., Any], samples: Any, block: int) -> Any:
    """The sum of `each` over samples, at most so many at a time; the last ones of all count in the last block."""
    length, block = len(samples[-1]), max(1, block)

    def summed(some: Any) -> Any:
        return jax.tree.map(lambda leaf: leaf.sum(axis=0), each(*some))

    if block >= length:
        return summed(samples)
    whole = length // block * block
    blocks = jax.tree.map(lambda leaf: leaf[:whole].reshape(-1, block, *leaf.shape[1:]), samples)
    start = zeros_like(jax.eval_shape(summed, samples))
    total, _ = lax.scan(lambda so_far, some: (jax.tree.map(jnp.add, so_far, summed(some)), None), start, blocks)
    if whole == length:
        return total
    return jax.tree.map(jnp.add, total, summed(jax.tree.map(lambda leaf: leaf[whole:], samples)))


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


def agent_buffers(problem: Problem, batch_size: int | None, place: int | None = None) -> OfAgent:
    """One agent's parameters with the buffers that its loss makes of one more batch: once a round, at its end.

    Gradients do not ask for buffers, as normalisation trains by the batch itself; so one pass a round keeps them.
    """

    def renewed(params: Params, key: Key, agent: Any) -> Params:
        key = jax.random.fold_in(key, BUFFERS_STREAM)
        batch = _batch(problem, batch_size, key, agent, agent if place is None else place)
        return problem.renewed(params, batch, jax.random.fold_in(key, agent))

    return renewed


def gradient(
    problem: Problem, batch_size: int | None, here: Placement = EVERYBODY, batching: Batching | None = None
) -> Grad:
    """`grad(params, key)` of the agents here."""
    batching = batching or usual(problem, batch_size)
    return _of_agents(agent_gradient(problem, batch_size, keep=batching.keep), here, batching)


def mean_loss(
    problem: Problem, batch_size: int | None, here: Placement = EVERYBODY, batching: Batching | None = None
) -> Callable[[Params, Key], jax.Array]:
    """`loss(params, key)`: the mean over all agents of their losses, each at its own parameters."""
    if problem.privacy is not None:
        return _not_private
    losses = _of_agents(agent_loss(problem, batch_size), here, batching or usual(problem, batch_size))
    return lambda params, key: here.mean(losses(params, key))


def _not_private(params: Params, key: Key) -> jax.Array:
    raise InputError("this server schedule looks at the agents' losses, which are not private; take another schedule")


def buffers(
    problem: Problem, batch_size: int | None, here: Placement = EVERYBODY, batching: Batching | None = None
) -> Callable[[Params, Key], Params]:
    """`renew(params, key)`: the parameters of the agents here with the buffers of the round's end."""
    return _of_agents(agent_buffers(problem, batch_size), here, batching or usual(problem, batch_size))


def _of_agents(own: OfAgent, here: Placement, batching: Batching) -> Callable[[Params, Key], Any]:
    """What one agent computes, of those here: by their own numbers, so that they draw the same batches anywhere."""
    every = batching(own)
    return lambda params, key: every(params, key, here.numbers(jax.tree.leaves(params)[0].shape[0]))
