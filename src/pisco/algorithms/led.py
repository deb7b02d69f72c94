"""LED, exact diffusion (D²) and NIDS: what the exchanges took away is given back."""

from __future__ import annotations

from typing import NamedTuple

from pisco.errors import check_counts, check_positive
from pisco.tree import add, descend, lerp, repeat, subtract, zeros_like
from pisco.types import Grad, Key, Mix, Needs, Pair, Params, StartMix, algorithm


class LedState(NamedTuple):
    """X, and the corrections D, which sum to zero over agents."""

    params: Params
    correction: Params


@algorithm
def led(*, local_lr: float, local_steps: int, lazy: bool = False) -> Pair:
    """Local exact diffusion. From Φ = Xᵏ every agent takes T steps, then one exchange of one vector:

        Φ ← Φ − η·G(Φ) − D/T
        Xᵏ⁺¹ = Φ·Wᵏ
        D ← D + Φ − Xᵏ⁺¹

    With T = 1 it is exact diffusion, also called D²: Xᵏ⁺¹ = (2Xᵏ − Xᵏ⁻¹ − η(Gᵏ − Gᵏ⁻¹))·W. That needs eigenvalues of W
    above −1/3; `lazy` takes (I + W)/2 for W, which has none below 0, and is NIDS with equal steps (whose first step the
    paper does not mix).

    Args:
      local_lr: η, the step size.
      local_steps: T, at least 1.
      lazy: mix with (I + W)/2.

    Example:
      >>> import pisco
      >>> problem = pisco.problems.quadratic([[[1.0]], [[3.0]]], [[0.0], [4.0]])
      >>> rule = pisco.algorithms.led(local_lr=0.1, local_steps=3)
      >>> pisco.run(rule, problem, pisco.Network.path(2), rounds=100).params.ravel().round(3)
      array([3., 3.], dtype=float32)

    References: S. A. Alghunaim, "Local Exact-Diffusion for Decentralized Optimization and Learning", IEEE Transactions
    on Automatic Control, 2024; K. Yuan, B. Ying, X. Zhao and A. H. Sayed, "Exact Diffusion for Distributed Optimization
    and Learning", IEEE Transactions on Signal Processing, 2019; H. Tang et al., "D²: Decentralized Training over
    Decentralized Data", ICML 2018; Z. Li, W. Shi and M. Yan, "A Decentralized Proximal-Gradient Method With Network
    Independent Step-Sizes and Separated Convergence Rates", IEEE Transactions on Signal Processing, 2019.
    """
    check_positive(local_lr=local_lr)
    check_counts(local_steps=local_steps)

    def init(params: Params, key: Key, grad: Grad, mix: StartMix) -> LedState:
        return LedState(params, zeros_like(params))

    def one_round(state: LedState, key: Key, grad: Grad, mix: Mix) -> LedState:
        def local_step(params: Params, key: Key) -> Params:
            stepped = descend(params, local_lr, grad(params, key))
            return descend(stepped, 1 / local_steps, state.correction)

        moved = repeat(local_step, state.params, key, local_steps)
        params = lerp(moved, mix(moved), 0.5) if lazy else mix(moved)
        return LedState(params, add(state.correction, subtract(moved, params)))

    def rebase(state: LedState) -> LedState:
        return state._replace(correction=zeros_like(state.correction))  # they sum to zero, whoever takes part

    return Pair(init, one_round, Needs(doubly_stochastic=True), rebase)
