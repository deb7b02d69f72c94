"""FedAdam: federated averaging with Adam at the server."""

from __future__ import annotations

from typing import NamedTuple

import jax
import jax.numpy as jnp

from pisco.errors import check_counts, check_number, check_positive
from pisco.tree import add, descend, lerp, repeat, subtract, zeros_like
from pisco.types import Grad, Key, Mix, Needs, Pair, Params, StartMix, algorithm


class FedadamState(NamedTuple):
    """x (the same for all), and the server's first and second moments."""

    params: Params
    first: Params
    second: Params


@algorithm
def fedadam(
    *,
    local_lr: float,
    local_steps: int,
    comm_lr: float = 0.1,
    first_decay: float = 0.9,
    second_decay: float = 0.99,
    floor: float = 1e-3,
) -> Pair:
    """From the server's x the agents take T steps yᵢ ← yᵢ − η_l·gᵢ(yᵢ); with Δ = mean(yᵢ − x) the server then steps:

        m ← β₁·m + (1 − β₁)·Δ
        v ← β₂·v + (1 − β₂)·Δ²
        x ← x + η·m/(√v + τ)

    m begins at 0 and v at τ², and neither is corrected for that, as in the paper.

    Args:
      local_lr: η_l, the step size of a local step.
      local_steps: T, at least 1.
      comm_lr: η, the server's step size.
      first_decay: β₁ in [0, 1).
      second_decay: β₂ in [0, 1).
      floor: τ, how far it adapts.

    Example:
      >>> import pisco
      >>> problem = pisco.problems.quadratic([[[1.0]], [[1.0]]], [[0.0], [2.0]])
      >>> net = pisco.Network.complete(2, server=pisco.always())
      >>> rule = pisco.algorithms.fedadam(local_lr=0.1, local_steps=2, comm_lr=0.05)
      >>> pisco.run(rule, problem, net, rounds=300).params.ravel().round(2)
      array([1., 1.], dtype=float32)

    Reference: S. Reddi et al., "Adaptive Federated Optimization", ICLR 2021.
    """
    check_positive(local_lr=local_lr, comm_lr=comm_lr, floor=floor)
    check_counts(local_steps=local_steps)
    check_number("first_decay", first_decay, low=0, high=0.99999)
    check_number("second_decay", second_decay, low=0, high=0.99999)

    def init(params: Params, key: Key, grad: Grad, mix: StartMix) -> FedadamState:
        second = jax.tree.map(lambda x: jnp.full_like(x, jnp.asarray(floor, x.dtype) ** 2), params)
        return FedadamState(params, zeros_like(params), second)

    def one_round(state: FedadamState, key: Key, grad: Grad, mix: Mix) -> FedadamState:
        def local_step(y: Params, key: Key) -> Params:
            return descend(y, local_lr, grad(y, key))

        y = repeat(local_step, state.params, key, local_steps)
        change = mix(subtract(y, state.params))
        first = lerp(change, state.first, first_decay)
        second = lerp(jax.tree.map(jnp.square, change), state.second, second_decay)
        move = jax.tree.map(lambda m, v: m / (jnp.sqrt(v) + jnp.asarray(floor, v.dtype)), first, second)
        return FedadamState(add(state.params, move, comm_lr), first, second)

    return Pair(init, one_round, Needs(server_every_round=True))
