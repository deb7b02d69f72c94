"""How gradients differ between batches and between agents, and what the differences do when they become steps."""

from __future__ import annotations

from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import lax
from jax.flatten_util import ravel_pytree

from pisco.errors import check_number
from pisco.parts import only, over
from pisco.problems.gradient import agent_gradient, agent_loss
from pisco.problems.problem import Problem
from pisco.problems.subsample import subsample
from pisco.theory.estimates import (
    KEPT,
    Coordinates,
    along,
    coordinates,
    descend,
    everybodys,
    loss_in_blocks,
    power,
    share_of,
)
from pisco.tree import scale as scaled
from pisco.trouble import heeded


class Spread(NamedTuple):
    """How gradients differ at one point, and what differences do to the gradient of f when they become steps.

    Noise that is in a mean over batches is taken off, so values may be 0.
    """

    noise: float
    """σ²/b: the variance E‖ξ‖² of one batch's gradient, the mean over agents."""
    heterogeneity: float
    """ζ²: the mean of ‖∇f_i − ∇f‖² over agents."""
    drift: float
    """‖mean of H_i(∇f_i − ∇f)‖²: how a step of every agent in its own direction moves the mean gradient."""
    noise_drift: float
    """E‖(H_i − H)·ξ‖², the same for noise, of one agent."""
    noise_energy: float
    """E[ξ·H·ξ]: the curvature that noise meets."""
    top_tenth: float
    """The share of an agent's squared gradient that its largest tenth of entries holds: what `top-k` keeps."""


@heeded
def gradient_spread(
    problem: Problem,
    params: Any,
    *,
    batch_size: int | None = None,
    samples: int = 5_000,
    batches: int = 16,
    seed: int = 0,
    scale: jax.Array | None = None,
) -> Spread:
    """σ²/b, ζ² and what becomes of them at `params`, from `batches` mini-batches of every agent, one after the other.

    Hessian products are on about `samples` samples of all agents together. Memory: two gradients an agent, however
    large the data. Without a batch size there is no noise but that of `pisco.Privacy`, which counts. With the `scale`
    of `adam_scale` it is what Adam meets. Where agents have leaves of their own, `params` has these of every agent,
    leading, and what is told is of the other leaves: of what is averaged and tracked.

    >>> import pisco
    >>> gradient_spread(pisco.problems.quadratic([[[1.0]], [[3.0]]], [[0.0], [2.0]]), jnp.ones(1))[:3]
    (0.0, 4.0, 4.0)
    """
    check_number("batches", batches, low=2, integer=True)
    few = subsample(problem, samples, test=False, seed=seed)
    flat, where = coordinates(few, params, scale)
    found = _spread(few, flat, jax.random.key(seed), where, batch_size, share_of(few, samples), batches // 2)
    return Spread(*(max(float(value), 0.0) for value in found))


@heeded
def adam_scale(
    problem: Problem,
    params: Any,
    *,
    batch_size: int | None = None,
    samples: int = 5_000,
    batches: int = 16,
    seed: int = 0,
) -> jax.Array:
    """The scale s of every entry at which plain steps are Adam's: s² = 1/√v, v the agents' mean squared gradient.

    >>> import pisco
    >>> alike = pisco.problems.quadratic([[[4.0, 0.0], [0.0, 1.0]]], [[0.0, 0.0]])
    >>> adam_scale(alike, jnp.ones(2)).round(2).tolist()      # gradients 4 and 1
    [0.5, 1.0]
    """
    few = subsample(problem, samples, test=False, seed=seed)
    flat, where = coordinates(few, params)

    @jax.jit
    def squares(problem: Problem, flat: jax.Array, where: Coordinates, key: jax.Array) -> jax.Array:
        def one(total, given):
            agent, key = given
            return total + drawn_gradient(problem, flat, where, batch_size, key, agent) ** 2, None

        many = batches if draws(problem, batch_size) else 1
        agents, keys = jnp.tile(jnp.arange(problem.num_agents), many), jax.random.split(key, many * problem.num_agents)
        return lax.scan(one, jnp.zeros_like(flat), (agents, keys))[0] / (many * problem.num_agents)

    v = squares(few, flat, where, jax.random.key(seed))
    return (jnp.sqrt(v) + 1e-3 * jnp.sqrt(v.mean()) + 1e-30) ** -0.5  # entries without a gradient stay still


def draws(problem: Problem, batch_size: int | None) -> bool:
    """Whether an agent's gradients differ from one call to the next."""
    return batch_size is not None or problem.privacy is not None


def drawn_gradient(
    problem: Problem, flat: jax.Array, where: Coordinates, size: int | None, key: jax.Array, agent: jax.Array
) -> jax.Array:
    """One gradient as an agent makes it: of a batch, and clipped and with noise where it is private."""
    if problem.privacy is None:
        return jax.grad(lambda z: agent_loss(problem, size)(where.model(z, agent), key, agent))(flat)
    params, back = jax.vjp(lambda z: where.model(z, agent), flat)
    return back(agent_gradient(problem, size)(params, key, agent))[0]


@partial(jax.jit, static_argnames=("size", "share", "pairs"))
def _spread(
    problem: Problem,
    flat: jax.Array,
    key: jax.Array,
    where: Coordinates,
    size: int | None,
    share: int | None,
    pairs: int,
) -> tuple[jax.Array, ...]:
    count, agents = problem.num_agents, jnp.arange(problem.num_agents)
    sent = where.sent(flat) if problem.personal else jnp.ones((), flat.dtype)
    tenth = max(1, sum(leaf.size for leaf in jax.tree.leaves(only(where.unflatten(flat)))) // 10)

    def gradient(agent, key, size):
        return jax.grad(lambda z: loss_in_blocks(problem, size)(where.model(z, agent), key, agent))

    def own(agent):
        def pair(carry, keys):
            first, second = (sent * drawn_gradient(problem, flat, where, size, k, agent) for k in (keys[0], keys[1]))
            noise = (first - second) / jnp.sqrt(2.0).astype(flat.dtype)
            return (carry[0] + first + second, carry[1] + jnp.sum(noise**2), noise), None

        zero, none = jnp.zeros_like(flat), jnp.zeros((), flat.dtype)
        if not draws(problem, size):
            return sent * gradient(agent, key, size)(flat), none, zero
        (total, square, noise), _ = lax.scan(pair, (zero, none, zero), jax.random.split(key, (pairs, 2)))
        return total / (2 * pairs), square / pairs, noise

    def largest(gradient):
        squares = gradient**2
        return lax.top_k(squares, tenth)[0].sum() / jnp.maximum(squares.sum(), 1e-30)

    means, squares, noises = lax.map(own, agents)
    mean = means.mean(0)

    def stretched(drifts, given):  # added up as they come: another vector for every agent would be much
        agent, own, noise = given
        mine, unlike = gradient(agent, key, share), own - mean
        everybody = sent * along(jax.grad(lambda z: where.objective(problem, z)), flat, noise)
        strayed = jnp.sum((sent * along(mine, flat, noise) - everybody) ** 2)
        found = (jnp.sum(unlike**2), strayed, jnp.vdot(noise, everybody), largest(own))
        return drifts + sent * along(mine, flat, unlike), found

    drifts, found = lax.scan(stretched, jnp.zeros_like(flat), (agents, means, noises))
    noise, (apart, noise_drift, energy, top) = squares.mean(), (each.mean() for each in found)
    apart = apart - (1 - 1 / count) * noise / (2 * pairs)
    drift = jnp.sum((drifts / count) ** 2) - noise_drift / (2 * pairs * count)
    return noise, apart, drift, noise_drift, energy, top


@heeded
def descent(problem: Problem, *, samples: int = 5_000, seed: int = 0) -> tuple[Any, float]:
    """Where 150 accelerated steps from x⁰ end, on about `samples` samples, and by how much f fell on the way.

    Where agents have leaves of their own, these are found too: they lead in what is returned.

    >>> import pisco
    >>> end, gap = descent(pisco.problems.quadratic([[[1.0]], [[3.0]]], [[1.0], [1.0]]))
    >>> end.round(3).tolist(), round(gap, 3)
    ([1.0], 1.0)
    """
    few = subsample(problem, samples, test=False, seed=seed)
    key = jax.random.key(seed)
    own = few.num_agents if few.personal else 1

    def longer(params: Any, factor: float) -> Any:
        """Leaves of one's own drawn out, as f has a share of each: then all go as fast as they do in runs."""
        return over(only(params), scaled(params.keep(KEPT), factor)) if few.personal else params

    flat, unflatten = ravel_pytree(longer(everybodys(few, few.init(key)), own**-0.5))

    @jax.jit
    def found(problem, flat, key):
        def objective(z):
            params = longer(unflatten(z), own**0.5)
            return problem.own_objective(params, jnp.arange(own)) if problem.personal else problem.objective(params)

        best, where = descend(objective, flat, 1 / jnp.maximum(power(objective, flat, key, 25), 1e-12))
        return where, objective(flat) - best

    where, gap = found(few, flat, key)
    return longer(unflatten(where), own**0.5), float(gap)
