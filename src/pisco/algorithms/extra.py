"""EXTRA: an exact first-order method with one vector a round."""

from __future__ import annotations

from typing import NamedTuple

from pisco.errors import check_positive
from pisco.tree import add, descend, scale, subtract, zeros_like
from pisco.types import Grad, Key, Mix, Needs, Pair, Params, StartMix, algorithm


class ExtraState(NamedTuple):
    """X, what the last round half mixed, (Xᵏ⁻¹ + Xᵏ⁻¹W)/2, and its gradients."""

    params: Params
    past: Params
    grads: Params


@algorithm
def extra(*, local_lr: float) -> Pair:
    """One gradient and one exchange of one vector a round:

        X¹   = X⁰·W − η·G⁰
        Xᵏ⁺¹ = Xᵏ(I + W) − Xᵏ⁻¹(I + W)/2 − η(Gᵏ − Gᵏ⁻¹)

    The sum of its rounds corrects the bias of gossip, so a constant step reaches the optimum. It counts on the same
    W in every round.

    Args:
      local_lr: η, the step size.

    Example:
      >>> import pisco
      >>> problem = pisco.problems.quadratic([[[1.0]], [[3.0]]], [[0.0], [4.0]])
      >>> rule = pisco.algorithms.extra(local_lr=0.2)
      >>> pisco.run(rule, problem, pisco.Network.path(2), rounds=100).params.ravel().round(3)
      array([3., 3.], dtype=float32)

    Reference: W. Shi, Q. Ling, G. Wu and W. Yin, "EXTRA: An Exact First-Order Algorithm for Decentralized Consensus
    Optimization", SIAM Journal on Optimization, 2015.
    """
    check_positive(local_lr=local_lr)

    def init(params: Params, key: Key, grad: Grad, mix: StartMix) -> ExtraState:
        return ExtraState(params, params, zeros_like(params))  # with G⁻¹ = 0 the first round is like the others

    def one_round(state: ExtraState, key: Key, grad: Grad, mix: Mix) -> ExtraState:
        mixed, grads = mix(state.params), grad(state.params, key)
        both = add(state.params, mixed)
        params = descend(subtract(both, state.past), local_lr, subtract(grads, state.grads))
        return ExtraState(params, scale(both, 0.5), grads)

    def rebase(state: ExtraState) -> ExtraState:
        return ExtraState(state.params, state.params, zeros_like(state.grads))  # begins again from where it is

    return Pair(init, one_round, Needs(doubly_stochastic=True, steady_links=True, constant_map=True), rebase)
