"""DSGD: decentralized stochastic gradient descent, also called gossip SGD."""

from __future__ import annotations

from typing import NamedTuple

from pisco.errors import check_number
from pisco.tree import descend
from pisco.types import Grad, Key, Mix, Pair, Params, algorithm


class DsgdState(NamedTuple):
    """X: the agents' parameters."""

    params: Params


@algorithm
def dsgd(*, local_lr: float, combine_first: bool = False) -> Pair:
    """One gradient step and one exchange a round.

        adapt, then combine (ATC, the default):  Xᵏ⁺¹ = (Xᵏ − η·G(Xᵏ))·Wᵏ
        combine, then adapt (CTA):               Xᵏ⁺¹ = Xᵏ·Wᵏ − η·G(Xᵏ)

    With a constant step and agents whose data differ it stalls at a distance O(η) from the optimum.
    On `every(H)` this is Gossip-PGA, on `always()` parallel gradient descent.

    Args:
      local_lr: η, the step size.
      combine_first: combine, then adapt.

    Example:
      >>> import pisco
      >>> problem = pisco.problems.quadratic([[[1.0]], [[1.0]]], [[0.0], [2.0]])
      >>> net = pisco.Network.complete(2, server=pisco.always())
      >>> pisco.run(pisco.algorithms.dsgd(local_lr=0.5), problem, net, rounds=60).params.ravel()
      array([1., 1.], dtype=float32)

    Reference: X. Lian et al., "Can Decentralized Algorithms Outperform Centralized Algorithms?", NeurIPS 2017.
    """
    check_number("local_lr", local_lr, low=0, open_low=True)

    def init(params: Params, key: Key, grad: Grad) -> DsgdState:
        return DsgdState(params)

    def one_round(state: DsgdState, key: Key, grad: Grad, mix: Mix) -> DsgdState:
        grads = grad(state.params, key)
        if combine_first:
            return DsgdState(descend(mix(state.params), local_lr, grads))
        return DsgdState(mix(descend(state.params, local_lr, grads)))

    return Pair(init, one_round)
