"""BEER and MoTEF: gradient tracking with communication compression."""

from __future__ import annotations

from typing import NamedTuple

import jax

from pisco.algorithms.compressors import Identity
from pisco.errors import check_number, check_positive
from pisco.tree import add, descend, lerp, subtract, track, zeros_like
from pisco.types import Compressor, Grad, Key, Mix, Needs, Pair, Params, StartMix, algorithm


class BeerState(NamedTuple):
    """X, the tracker V, the gradients G or their running mean M, and what neighbours know of X and V: H and Ĝ."""

    params: Params
    tracker: Params
    grads: Params
    public_params: Params
    public_tracker: Params


@algorithm
def beer(
    *, local_lr: float, consensus_lr: float = 0.3, compressor: Compressor = Identity(), momentum: float = 1.0
) -> Pair:
    """One gradient and one exchange of two compressed vectors a round; from H⁰ = Ĝ⁰ = 0, V⁰ = G⁰:

        Xᵏ⁺¹ = Xᵏ + γ·Hᵏ(W − I) − η·Vᵏ              Hᵏ⁺¹ = Hᵏ + Q(Xᵏ⁺¹ − Hᵏ)
        Vᵏ⁺¹ = Vᵏ + γ·Ĝᵏ(W − I) + Gᵏ⁺¹ − Gᵏ         Ĝᵏ⁺¹ = Ĝᵏ + Q(Vᵏ⁺¹ − Ĝᵏ)

    A round's one exchange carries the two differences that the round before compressed. mean(V) = mean(G) always.
    With `momentum` λ below 1 it is MoTEF: Mᵏ⁺¹ = (1 − λ)Mᵏ + λ·G(Xᵏ⁺¹) from M⁰ = G⁰ stands in the place of G.

    Args:
      local_lr: η, the step size.
      consensus_lr: γ, the consensus step size.
      compressor: Q.
      momentum: λ in (0, 1], the weight of the fresh gradient; 1 tracks the gradients themselves.

    Example:
      >>> import pisco
      >>> problem = pisco.problems.quadratic([[[1.0]], [[3.0]]], [[0.0], [4.0]])
      >>> rule = pisco.algorithms.beer(local_lr=0.1)
      >>> pisco.run(rule, problem, pisco.Network.path(2), rounds=200).params.ravel().round(3)
      array([3., 3.], dtype=float32)

    Reference: H. Zhao et al., "BEER: Fast O(1/T) Rate for Decentralized Nonconvex Optimization with Communication
    Compression", NeurIPS 2022; R. Islamov, Y. Gao and S. Stich, "Towards Faster Decentralized Stochastic Optimization
    with Communication Compression", ICLR 2025.
    """
    check_positive(local_lr=local_lr, consensus_lr=consensus_lr)
    check_number("momentum", momentum, low=0, high=1, open_low=True)

    def init(params: Params, key: Key, grad: Grad, mix: StartMix) -> BeerState:
        grads, zero = grad(params, key), zeros_like(params)
        return BeerState(params, grads, grads, zero, zero)

    def one_round(state: BeerState, key: Key, grad: Grad, mix: Mix) -> BeerState:
        grad_key, first, second = jax.random.split(key, 3)
        known = (state.public_params, state.public_tracker)
        pull_params, pull_tracker = subtract(mix(known, _Both(compressor)), known)
        params = descend(add(state.params, pull_params, consensus_lr), local_lr, state.tracker)
        public_params = add(known[0], mix.each(compressor, first, subtract(params, known[0])))
        grads = lerp(state.grads, grad(params, grad_key), momentum)
        tracker = track(add(state.tracker, pull_tracker, consensus_lr), grads, state.grads)
        public_tracker = add(known[1], mix.each(compressor, second, subtract(tracker, known[1])))
        return BeerState(params, tracker, grads, public_params, public_tracker)

    return Pair(init, one_round, Needs(doubly_stochastic=True, steady_links=True, constant_map=True))


class _Both(NamedTuple):
    """Two messages in one: each part compressed on its own."""

    compressor: Compressor

    def __call__(self, tree: Params, key: Key) -> Params:
        return tree

    def message_bytes(self, tree: Params) -> int:
        return sum(self.compressor.message_bytes(part) for part in tree)
