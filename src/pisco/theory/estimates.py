"""What the formulas need to know about a problem, estimated from the problem itself.

A few hundred gradients and Hessian products: L by power iteration, σ² from mini-batches, ζ² from the agents' gradients,
f(x⁰) − f* by a short descent. The descent is also how the curvature is followed: on logistic losses it falls along the
path, and a limit worked out at x⁰ is then too strict.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.flatten_util import ravel_pytree

from pisco.errors import InputError, brief, check_batch_size, check_counts, check_number
from pisco.parts import LOCAL, LOCAL_BUFFERS, Parted, only, over
from pisco.problems.blocks import weighted_total
from pisco.problems.gradient import OfAgent, agent_loss
from pisco.problems.problem import Problem
from pisco.problems.sampling import batch_indices
from pisco.problems.subsample import subsample
from pisco.tree import stack_agents, zeros_like
from pisco.trouble import heeded

KEPT = (LOCAL, LOCAL_BUFFERS)
"""What agents have of their own."""

DESCENT = 150
"""Steps of the descent that estimates f*."""

Objective = Callable[[jax.Array], jax.Array]


class NotSmooth(InputError):
    """The loss has no Hessian products."""


class Estimates(NamedTuple):
    """What a problem looks like from x⁰."""

    smoothness: float
    """L: the largest curvature of f at x⁰."""
    agent_smoothness: float
    """The largest curvature of any agent's own f_i at x⁰."""
    end_smoothness: float
    """The largest curvature of f where the descent ended."""
    noise: float
    """σ²: the variance of one sample's gradient, the mean over agents."""
    heterogeneity: float
    """ζ²: the mean of ‖∇f_i(x⁰) − ∇f(x⁰)‖² over agents."""
    gap: float
    """f(x⁰) − f(x) at the best x that the descent found, so f(x⁰) − f* or less."""
    grad_norm_sq: float
    """‖∇f(x⁰)‖²."""
    agent_curvatures: tuple[float, ...]
    """The largest curvature of every agent's own f_i at x⁰."""


@heeded
def smoothness(problem: Problem, *, params: Any = None, iterations: int = 30, seed: int = 0) -> float:
    """L at x⁰ (or at `params`): the largest curvature of f there, by power iteration on Hessian products.

    >>> import pisco
    >>> round(smoothness(pisco.problems.quadratic([[[1.0]], [[3.0]]], [[0.0], [0.0]])), 4)
    2.0
    """
    key = jax.random.key(seed)
    flat, unflatten = ravel_pytree(problem.init(key) if params is None else params)

    @jax.jit  # the data as an argument: as a constant it would be folded, slowly
    def found(problem, flat, key):
        return power(lambda x: problem.objective(unflatten(x)), flat, key, iterations)

    return float(found(problem, flat, key))


@heeded
def agent_curvatures(
    problem: Problem,
    *,
    params: Any = None,
    samples: int = 5_000,
    iterations: int = 15,
    seed: int = 0,
    scale: jax.Array | None = None,
) -> np.ndarray:
    """The largest curvature of every agent's own f_i at x⁰ (or at `params`), what `largest_safe_step` asks for.

    Power iteration on Hessian products, on about `samples` samples of all agents together; it comes from below, and is
    short by a few per cent at most where curvatures crowd. `params` and `scale` are those of `coordinates`.

    >>> import pisco
    >>> agent_curvatures(pisco.problems.quadratic([[[1.0]], [[3.0]]], [[0.0], [0.0]])).round(4).tolist()
    [1.0, 3.0]
    """
    key = jax.random.key(seed)
    few = subsample(problem, samples, test=False, seed=seed)
    if params is None:
        params = everybodys(few, few.init(key))
    flat, where = coordinates(few, params, scale)
    return np.asarray(_agents(few, flat, key, where, share_of(few, samples), iterations), float)


@heeded
def unlike_curvature(
    problem: Problem, *, params: Any = None, samples: int = 5_000, iterations: int = 8, seed: int = 0
) -> float:
    """δ at x⁰ (or at `params`): the root of the largest eigenvalue of the mean of (H_i − H)², by power iteration.

    The two factors of the square are on two draws of an agent's samples: what differs by the draw alone falls away.
    `params` are those of `coordinates`.

    >>> import pisco
    >>> round(unlike_curvature(pisco.problems.quadratic([[[1.0]], [[3.0]]], [[0.0], [0.0]])), 4)
    1.0
    """
    few = subsample(problem, samples, test=False, seed=seed)
    flat, where = coordinates(few, everybodys(few, few.init(jax.random.key(seed))) if params is None else params)
    found = _unlike(few, flat, jax.random.key(seed), where, share_of(few, samples), iterations)
    return max(float(found), 0.0) ** 0.5


@partial(jax.jit, static_argnames=("share", "iterations"))
def _unlike(
    problem: Problem, flat: jax.Array, key: jax.Array, where: Coordinates, share: int | None, iterations: int
) -> jax.Array:
    loss, agents, draws = loss_in_blocks(problem, share), jnp.arange(problem.num_agents), jax.random.split(key)
    sent = where.sent(flat) if problem.personal else jnp.ones((), flat.dtype)

    def product(draw, agent, direction):
        return sent * along(jax.grad(lambda z: loss(where.model(z, agent), draw, agent)), flat, direction)

    def step(_, carry):
        direction = carry[0] / jnp.maximum(jnp.linalg.norm(carry[0]), 1e-30)
        own = lax.map(lambda agent: product(draws[0], agent, direction), agents)
        apart = own - own.mean(0)  # of which H makes 0 in the mean, so H_i alone does below
        after = lax.map(lambda given: product(draws[1], *given), (agents, apart)).mean(0)
        return after, jnp.vdot(direction, after)

    start = sent * jax.random.normal(key, flat.shape, flat.dtype)
    return lax.fori_loop(0, iterations, step, (start, jnp.zeros((), flat.dtype)))[1]


def everybodys(problem: Problem, params: Any) -> Any:
    """One agent's model as that of all: where agents have leaves of their own, these lead."""
    if not problem.personal:
        return params
    return over(only(params), stack_agents(params.keep(KEPT), problem.num_agents))


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class Coordinates:
    """The model of an agent as one vector z, and the way back.

    With a `scale` s of every entry, params = s·z: a plain step in z is one by s² times the gradient in the parameters,
    what an optimizer such as Adam does. Where agents have leaves of their own, z holds how far all of them move these.
    """

    scale: jax.Array | None
    own: Parted | None  # agents lead
    unflatten: Callable[[jax.Array], Any] = field(metadata={"static": True})

    def model(self, z: jax.Array, agent: Any) -> Any:
        """What an agent holds."""
        return self._with(z, jax.tree.map(lambda leaf: leaf[agent], self.own))

    def objective(self, problem: Problem, z: jax.Array) -> jax.Array:
        """f, of all agents, each at a model of its own."""
        if self.own is None:
            return problem.objective(self._with(z, None))
        return problem.own_objective(self._with(z, self.own), jnp.arange(problem.num_agents))

    def sent(self, z: jax.Array) -> jax.Array:
        """1 for the entries of z that are sent, 0 for those of leaves of one's own."""
        ones = self.unflatten(jnp.ones_like(z))
        return ravel_pytree(over(only(ones), zeros_like(ones)))[0]

    def _with(self, z: jax.Array, own: Parted | None) -> Any:
        params = self.unflatten(z if self.scale is None else z * self.scale)
        if own is None:
            return params
        moved = params.keep(KEPT)
        return over(only(params), jax.tree.map(jnp.add, moved, own))


def coordinates(problem: Problem, params: Any, scale: jax.Array | None = None) -> tuple[jax.Array, Coordinates]:
    """Of one model; where agents have leaves of their own, `params` has these of every agent, leading."""
    own = params.keep(KEPT) if problem.personal else None
    if own is not None:
        params = over(only(params), jax.tree.map(lambda leaf: jnp.zeros_like(leaf[0]), own))
    flat, unflatten = ravel_pytree(params)
    return flat if scale is None else flat / scale, Coordinates(scale, own, unflatten)


def share_of(problem: Problem, samples: int) -> int | None:
    """How many samples of every agent to take; None for all."""
    share = samples // problem.num_agents
    return None if share >= problem.max_size else max(share, 1)


def loss_in_blocks(problem: Problem, size: int | None) -> OfAgent:
    """`agent_loss`, a block at a time where samples are many: second derivatives keep several times a pass."""
    count = problem.max_size if size is None else size
    if count <= problem.eval_batch:
        return agent_loss(problem, size)

    def loss(params: Any, key: jax.Array, agent: Any) -> jax.Array:
        held, start = problem.sizes[agent], problem.offsets[agent]
        if size is None:
            slots = jnp.arange(count)
            rows, weights = (
                start + jnp.minimum(slots, held - 1),
                jnp.where(slots < held, 1 / jnp.asarray(held, float), 0),
            )
        else:
            rows, weights = start + batch_indices(key, agent, held, size), jnp.full(size, 1 / size)
        weights = weights if problem.scales is None else weights * problem.scales[agent]
        return weighted_total(problem.weighted_loss, params, problem.take(rows), weights, problem.eval_batch)

    return loss


@partial(jax.jit, static_argnames=("share", "iterations"))
def _agents(
    problem: Problem, flat: jax.Array, key: jax.Array, where: Coordinates, share: int | None, iterations: int
) -> jax.Array:
    loss = loss_in_blocks(problem, share)

    def curvature(agent):
        return power(lambda z: loss(where.model(z, agent), key, agent), flat, key, iterations)

    return lax.map(curvature, jnp.arange(problem.num_agents))


def along(gradient: Objective, flat: jax.Array, direction: jax.Array) -> jax.Array:
    """A Hessian product; what a host computes, such as a PyTorch module, has none."""
    try:
        return jax.jvp(gradient, (flat,), (direction,))[1]
    except (TypeError, ValueError, NotImplementedError) as failure:
        raise NotSmooth(
            f"the loss cannot be differentiated twice ({brief(failure)}), so its curvature is not known; compare runs "
            "instead, with step sizes of your own"
        ) from failure


def power(objective: Objective, flat: jax.Array, key: jax.Array, iterations: int) -> jax.Array:
    """The largest |curvature| at `flat`."""

    def step(_, carry):
        direction, _ = carry
        direction = direction / jnp.maximum(jnp.linalg.norm(direction), 1e-30)
        direction = along(jax.grad(objective), flat, direction)
        return direction, jnp.linalg.norm(direction)

    start = jax.random.normal(key, flat.shape, flat.dtype)
    return lax.fori_loop(0, iterations, step, (start, jnp.zeros((), flat.dtype)))[1]


def descend(objective: Objective, flat: jax.Array, step: jax.Array) -> tuple[jax.Array, jax.Array]:
    """The best value and where it was, over `DESCENT` accelerated steps that start over when the value rises."""

    def one(_, carry):
        x, ahead, age, value, best, where = carry
        after = ahead - step * jax.grad(objective)(ahead)
        now = objective(after)
        rose = ~(now <= value)
        age = jnp.where(rose, 0.0, age + 1)
        after = jnp.where(rose, x, after)
        moved = after + (age / (age + 3)) * (after - x)
        better = now < best
        return (
            after,
            moved,
            age,
            jnp.where(rose, value, now),
            jnp.where(better, now, best),
            jnp.where(better, after, where),
        )

    first = objective(flat)
    carry = (flat, flat, jnp.zeros((), flat.dtype), first, first, flat)
    carry = lax.fori_loop(0, DESCENT, one, carry)
    return carry[4], carry[5]


@heeded
def estimate(
    problem: Problem, *, batch_size: int | None = None, samples: int = 5_000, batches: int = 8, seed: int = 0
) -> Estimates:
    """Estimate L, σ², ζ² and f(x⁰) − f*.

    Args:
      problem: yours.
      batch_size: of the gradients whose variance gives σ² (32 or an agent's data where not given).
      samples: on how many samples of all agents together to measure.
      batches: mini-batches of every agent for σ².
      seed: of x⁰ and the batches.

    >>> import pisco
    >>> found = estimate(pisco.problems.quadratic([[[1.0]], [[3.0]]], [[1.0], [1.0]]))
    >>> round(found.smoothness, 3), round(found.agent_smoothness, 3), round(found.gap, 3), found.noise
    (2.0, 3.0, 1.0, 0.0)
    """
    check_number("batches", batches, low=2, integer=True)
    check_counts(samples=samples)
    check_batch_size(batch_size)
    few = subsample(problem, samples, test=False, seed=seed)
    size = min(int(batch_size or 32), problem.min_size)
    key = jax.random.key(seed)
    flat, unflatten = ravel_pytree(few.init(key))
    found = _facts(few, flat, key, unflatten, size, share_of(few, samples), batches)
    agents = tuple(np.asarray(found.pop("agent_curvatures"), float).tolist())
    return Estimates(**{name: float(value) for name, value in found.items()}, agent_curvatures=agents)


@partial(jax.jit, static_argnames=("unflatten", "size", "share", "batches"))
def _facts(
    problem: Problem,
    flat: jax.Array,
    key: jax.Array,
    unflatten: Callable[[jax.Array], Any],
    size: int,
    share: int | None,
    batches: int,
) -> dict[str, jax.Array]:
    """The fields of `Estimates`; an agent's own curvature and gradient are taken on `share` of its samples."""
    agents = jnp.arange(problem.num_agents)

    def objective(x):
        return problem.objective(unflatten(x))

    def own(x, key, agent, size):
        return loss_in_blocks(problem, size)(unflatten(x), key, agent)

    def gradients(key, size):
        return lax.map(lambda agent: jax.grad(own)(flat, key, agent, size), agents)

    first = power(objective, flat, key, 25)
    curvatures = _agents(problem, flat, key, Coordinates(None, None, unflatten), share, 15)
    drawn = lax.map(lambda k: gradients(k, size), jax.random.split(key, batches))  # (batches, agents, d)
    spread = jnp.sum((drawn - drawn.mean(0)) ** 2, axis=(0, 2)) / (batches - 1)
    whole = lax.map(lambda agent: jax.grad(own)(flat, key, agent, None), agents)
    mean = whole.mean(0)
    best, where = descend(objective, flat, 1 / jnp.maximum(first, 1e-12))
    return {
        "smoothness": first,
        "agent_smoothness": curvatures.max(),
        "end_smoothness": power(objective, where, key, 25),
        "noise": size * spread.mean(),
        "heterogeneity": jnp.sum((whole - mean) ** 2) / problem.num_agents,
        "gap": objective(flat) - best,
        "grad_norm_sq": jnp.sum(mean**2),
        "agent_curvatures": curvatures,
    }
