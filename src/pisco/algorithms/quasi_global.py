"""QG-DSGDm: momentum from the way the mixed model went, not from one's own gradients."""

from __future__ import annotations

from typing import NamedTuple

from pisco.errors import check_number, check_positive
from pisco.tree import add, descend, lerp, scale, subtract, zeros_like
from pisco.types import Grad, Key, Mix, Pair, Params, StartMix, algorithm


class QuasiGlobalState(NamedTuple):
    """X and the momentum M, which never travels."""

    params: Params
    velocity: Params


@algorithm
def quasi_global(*, local_lr: float, momentum: float = 0.9, memory: float = 0.9) -> Pair:
    """One momentum step and one exchange of one vector a round:

        X½ = X − η(β·M + G(X))
        Xᵏ⁺¹ = X½·Wᵏ
        M ← μ·M + (1 − μ)(Xᵏ − Xᵏ⁺¹)/η

    (Xᵏ − Xᵏ⁺¹)/η holds what the neighbours did as well, so the momentum of agents with unlike data points roughly the
    same way.

    Args:
      local_lr: η, the step size.
      momentum: β in [0, 1).
      memory: μ in [0, 1); the paper takes μ = β.

    Example:
      >>> import pisco
      >>> problem = pisco.problems.quadratic([[[1.0]], [[1.0]]], [[0.0], [2.0]])
      >>> rule = pisco.algorithms.quasi_global(local_lr=0.1, momentum=0.5, memory=0.5)
      >>> pisco.run(rule, problem, pisco.Network.complete(2), rounds=200).params.ravel().round(2)
      array([1., 1.], dtype=float32)

    Reference: T. Lin, S. P. Karimireddy, S. Stich and M. Jaggi, "Quasi-Global Momentum: Accelerating Decentralized Deep
    Learning on Heterogeneous Data", ICML 2021.
    """
    check_positive(local_lr=local_lr)
    check_number("momentum", momentum, low=0, high=0.9999)
    check_number("memory", memory, low=0, high=0.9999)

    def init(params: Params, key: Key, grad: Grad, mix: StartMix) -> QuasiGlobalState:
        return QuasiGlobalState(params, zeros_like(params))

    def one_round(state: QuasiGlobalState, key: Key, grad: Grad, mix: Mix) -> QuasiGlobalState:
        step = add(grad(state.params, key), state.velocity, momentum)
        params = mix(descend(state.params, local_lr, step))
        way = scale(subtract(state.params, params), 1 / local_lr)
        return QuasiGlobalState(params, lerp(way, state.velocity, memory))

    return Pair(init, one_round, rebase=lambda state: state)  # nothing in it must hold for the mean
