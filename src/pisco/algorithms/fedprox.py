"""FedProx: federated averaging whose local steps are held near the server's model."""

from __future__ import annotations

from typing import NamedTuple

from pisco.errors import check_counts, check_number, check_positive
from pisco.tree import add, descend, lerp, repeat, subtract
from pisco.types import Grad, Key, Mix, Pair, Params, StartMix, algorithm


class FedproxState(NamedTuple):
    """X, the agents' parameters."""

    params: Params


@algorithm
def fedprox(*, local_lr: float, comm_lr: float = 1.0, local_steps: int, prox: float = 0.1) -> Pair:
    """T steps on fᵢ(y) + (μ/2)‖y − xᵢ‖² from xᵢ, then one exchange of one vector:

        Y ← Y − η(G(Y) + μ(Y − X))
        Xᵏ⁺¹ = ((1 − η_c)X + η_c·Y)·Wᵏ

    With μ = 0 it is FedAvg. The paper solves the local problem inexactly by any means; these are gradient steps.

    Args:
      local_lr: η, the step size.
      comm_lr: η_c, the server's step size.
      local_steps: T, at least 1.
      prox: μ, how strongly the steps are held back.

    Example:
      >>> import pisco
      >>> problem = pisco.problems.quadratic([[[1.0]], [[1.0]]], [[0.0], [2.0]])
      >>> net = pisco.Network.complete(2, server=pisco.always())
      >>> rule = pisco.algorithms.fedprox(local_lr=0.2, local_steps=3)
      >>> pisco.run(rule, problem, net, rounds=60).params.ravel().round(3)
      array([1., 1.], dtype=float32)

    Reference: T. Li et al., "Federated Optimization in Heterogeneous Networks", MLSys 2020.
    """
    check_positive(local_lr=local_lr, comm_lr=comm_lr)
    check_counts(local_steps=local_steps)
    check_number("prox", prox, low=0)

    def init(params: Params, key: Key, grad: Grad, mix: StartMix) -> FedproxState:
        return FedproxState(params)

    def one_round(state: FedproxState, key: Key, grad: Grad, mix: Mix) -> FedproxState:
        def local_step(y: Params, key: Key) -> Params:
            return descend(y, local_lr, add(grad(y, key), subtract(y, state.params), prox))

        y = repeat(local_step, state.params, key, local_steps)
        return FedproxState(mix(lerp(state.params, y, comm_lr)))

    return Pair(init, one_round, rebase=lambda state: state)  # nothing in it is about the others
