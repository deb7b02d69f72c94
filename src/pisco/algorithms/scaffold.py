"""SCAFFOLD: federated averaging with control variates."""

from __future__ import annotations

from typing import NamedTuple

import jax
from jax import lax

from pisco.errors import check_counts, check_positive
from pisco.tree import add, descend, scale, subtract, track, where_agents, zeros_like
from pisco.types import Grad, Key, Mix, Needs, Pair, Params, StartMix, algorithm


class ScaffoldState(NamedTuple):
    """x (the same for all), every agent's own control cᵢ, and the server's c."""

    params: Params
    own: Params
    shared: Params


@algorithm
def scaffold(*, local_lr: float, comm_lr: float = 1.0, local_steps: int, fresh_gradient: bool = False) -> Pair:
    """From the server's x, the sampled agents S take T steps yᵢ ← yᵢ − η_l(gᵢ(yᵢ) − cᵢ + c), then

        option I (`fresh_gradient`):  cᵢ⁺ = gᵢ(x)
        option II (the default):      cᵢ⁺ = cᵢ − c + (x − yᵢ)/(T·η_l)
        x ← x + η_g·mean_S(yᵢ − x),   c ← c + (|S|/n)·mean_S(cᵢ⁺ − cᵢ),   cᵢ ← cᵢ⁺ for i in S

    The server is needed in every round; sample agents with `Network(sampling=…)`.

    Args:
      local_lr: η_l, the step size of a local step.
      comm_lr: η_g, the server's step size.
      local_steps: T, at least 1.
      fresh_gradient: option I, one more gradient at x.

    Example:
      >>> import pisco
      >>> problem = pisco.problems.quadratic([[[1.0]], [[3.0]]], [[0.0], [4.0]])
      >>> net = pisco.Network.complete(2, server=pisco.always())
      >>> rule = pisco.algorithms.scaffold(local_lr=0.1, local_steps=3)
      >>> pisco.run(rule, problem, net, rounds=100).params.ravel().round(3)
      array([3., 3.], dtype=float32)

    Reference: S. P. Karimireddy et al., "SCAFFOLD: Stochastic Controlled Averaging for Federated Learning", ICML 2020.
    """
    check_positive(local_lr=local_lr, comm_lr=comm_lr)
    check_counts(local_steps=local_steps)

    def init(params: Params, key: Key, grad: Grad, mix: StartMix) -> ScaffoldState:
        return ScaffoldState(params, zeros_like(params), zeros_like(params))

    def one_round(state: ScaffoldState, key: Key, grad: Grad, mix: Mix) -> ScaffoldState:
        x, own, shared = state
        *_, fresh_key = keys = jax.random.split(key, local_steps + 1)

        def local_step(y: Params, key: Key) -> tuple[Params, None]:
            return descend(y, local_lr, track(grad(y, key), shared, own)), None

        y, _ = lax.scan(local_step, x, keys[:-1])
        moved = subtract(y, x)
        if fresh_gradient:
            new = grad(x, fresh_key)
        else:
            new = subtract(subtract(own, shared), scale(moved, 1 / (local_steps * local_lr)))
        mean_moved, mean_change = mix((moved, subtract(new, own)))
        return ScaffoldState(
            add(x, mean_moved, comm_lr), where_agents(mix.participates, new, own), add(shared, mean_change, mix.share)
        )

    return Pair(init, one_round, Needs(server_every_round=True))
