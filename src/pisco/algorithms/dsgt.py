"""DSGT: distributed stochastic gradient tracking, one step and one exchange a round."""

from __future__ import annotations

from typing import NamedTuple

from pisco.errors import check_positive
from pisco.tree import descend, track
from pisco.types import Grad, Key, Mix, Needs, Pair, Params, StartMix, algorithm


class DsgtState(NamedTuple):
    """X, the tracker Y and the gradients G it was last corrected with."""

    params: Params
    tracker: Params
    grads: Params


@algorithm
def dsgt(*, local_lr: float, combine_first: bool = False) -> Pair:
    """Gradient tracking without local steps; X and Y travel in one message.

        semi-ATC (the default):  Xᵏ⁺¹ = (Xᵏ − η·Yᵏ)·Wᵏ    Yᵏ⁺¹ = Yᵏ·Wᵏ + Gᵏ⁺¹ − Gᵏ
        CTA:                     Xᵏ⁺¹ = Xᵏ·Wᵏ − η·Yᵏ      Yᵏ⁺¹ = Yᵏ·Wᵏ + Gᵏ⁺¹ − Gᵏ

    The full-ATC form, Yᵏ⁺¹ = (Yᵏ + Gᵏ⁺¹ − Gᵏ)·Wᵏ, is PISCO without local steps: the registry's `dsgt-full-atc`.

    Args:
      local_lr: η, the step size.
      combine_first: combine, then adapt.

    Example:
      >>> import pisco
      >>> problem = pisco.problems.quadratic([[[1.0]], [[3.0]]], [[0.0], [4.0]])
      >>> rule = pisco.algorithms.dsgt(local_lr=0.2)
      >>> pisco.run(rule, problem, pisco.Network.path(2), rounds=100).params.ravel().round(3)
      array([3., 3.], dtype=float32)

    Reference: S. Pu and A. Nedić, "Distributed stochastic gradient tracking methods", Mathematical Programming, 2021.
    """
    check_positive(local_lr=local_lr)

    def init(params: Params, key: Key, grad: Grad, mix: StartMix) -> DsgtState:
        grads = grad(params, key)
        return DsgtState(params, grads, grads)

    def one_round(state: DsgtState, key: Key, grad: Grad, mix: Mix) -> DsgtState:
        if combine_first:
            params, tracker = mix((state.params, state.tracker))
            params = descend(params, local_lr, state.tracker)
        else:
            params, tracker = mix((descend(state.params, local_lr, state.tracker), state.tracker))
        grads = grad(params, key)
        return DsgtState(params, track(tracker, grads, state.grads), grads)

    def rebase(state: DsgtState) -> DsgtState:
        return state._replace(tracker=state.grads)  # mean(Y) = mean(G), whoever takes part

    return Pair(init, one_round, Needs(doubly_stochastic=True), rebase)
