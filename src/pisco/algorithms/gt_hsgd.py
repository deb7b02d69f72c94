"""GT-HSGD: gradient tracking of a variance-reduced estimate."""

from __future__ import annotations

from typing import NamedTuple

from pisco.errors import check_number, check_positive
from pisco.tree import add, descend, subtract, track
from pisco.types import Grad, Key, Mix, Needs, Pair, Params, StartMix, algorithm


class GtHsgdState(NamedTuple):
    """X, the tracker Y, and the estimates V of the agents' gradients, whose mean Y has."""

    params: Params
    tracker: Params
    estimate: Params


@algorithm
def gt_hsgd(*, local_lr: float, momentum: float = 0.1) -> Pair:
    """Two gradients on one batch ξ and two exchanges of one vector a round; from V⁰ = Y⁰ = G(X⁰; ξ⁰):

        Xᵏ⁺¹ = (Xᵏ − η·Yᵏ)·Wᵏ
        Vᵏ⁺¹ = G(Xᵏ⁺¹; ξ) + (1 − β)(Vᵏ − G(Xᵏ; ξ))
        Yᵏ⁺¹ = (Yᵏ + Vᵏ⁺¹ − Vᵏ)·Wᵏ

    The difference of two gradients on one batch carries the estimate from point to point, so its noise fades as the
    steps get small. mean(Y) = mean(V) always. With β = 1 it is full-ATC gradient tracking. (In the paper
    V⁰ is of a larger batch, and Y⁰ = V⁰·W.)

    Args:
      local_lr: η, the step size.
      momentum: β in (0, 1], the weight of the fresh gradient.

    Example:
      >>> import pisco
      >>> problem = pisco.problems.quadratic([[[1.0]], [[3.0]]], [[0.0], [4.0]])
      >>> rule = pisco.algorithms.gt_hsgd(local_lr=0.2)
      >>> pisco.run(rule, problem, pisco.Network.path(2), rounds=100).params.ravel().round(3)
      array([3., 3.], dtype=float32)

    Reference: R. Xin, U. A. Khan and S. Kar, "A Hybrid Variance-Reduced Method for Decentralized Stochastic Non-Convex
    Optimization", ICML 2021.
    """
    check_positive(local_lr=local_lr)
    check_number("momentum", momentum, low=0, high=1, open_low=True)

    def init(params: Params, key: Key, grad: Grad, mix: StartMix) -> GtHsgdState:
        estimate = grad(params, key)
        return GtHsgdState(params, estimate, estimate)

    def one_round(state: GtHsgdState, key: Key, grad: Grad, mix: Mix) -> GtHsgdState:
        params = mix(descend(state.params, local_lr, state.tracker))
        fresh, again = grad(params, key), grad(state.params, key)  # one key: one batch at two points
        estimate = add(fresh, subtract(state.estimate, again), 1 - momentum)
        return GtHsgdState(params, mix(track(state.tracker, estimate, state.estimate)), estimate)

    def rebase(state: GtHsgdState) -> GtHsgdState:
        return state._replace(tracker=state.estimate)  # mean(Y) = mean(V), whoever takes part

    return Pair(init, one_round, Needs(doubly_stochastic=True), rebase)
