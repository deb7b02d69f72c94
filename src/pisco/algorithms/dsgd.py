"""Stochastic gradient descent with mixing: DSGD, Gossip-PGA, FedAvg, HL-SGD and TT-HF by the network they run on."""

from __future__ import annotations

from typing import NamedTuple

import jax
from jax import lax

from pisco.errors import check_number
from pisco.tree import add, descend, lerp, subtract
from pisco.types import Grad, Key, Mix, Pair, Params, StartMix, algorithm


class DsgdState(NamedTuple):
    """X: the agents' parameters."""

    params: Params


@algorithm
def dsgd(*, local_lr: float, comm_lr: float = 1.0, local_steps: int = 1, combine_first: bool = False) -> Pair:
    """T gradient steps, then one exchange a round.

    From Xᵏ every agent takes T steps x ← x − η·G(x) and arrives at X'. Then

        adapt, then combine (ATC, the default):  Xᵏ⁺¹ = ((1 − η_c)Xᵏ + η_c·X')·Wᵏ
        combine, then adapt (CTA):               Xᵏ⁺¹ = Xᵏ·Wᵏ + η_c(X' − Xᵏ)

    The network makes the method: gossip alone is DSGD (gossip SGD), `every(H)` is Gossip-PGA, `adaptive(H)` is
    Gossip-AGA, `always()` is FedAvg with server step η_c (and sampled agents with `sampling`), clusters with sampled
    reports every τ rounds are HL-SGD and TT-HF. With a constant step and agents whose data differ it stalls at a
    distance from the optimum that grows with η and T.

    Args:
      local_lr: η, the step size.
      comm_lr: η_c, how far to go towards X' (FedAvg's server step size).
      local_steps: T, gradient steps a round.
      combine_first: combine, then adapt.

    Example:
      >>> import pisco
      >>> problem = pisco.problems.quadratic([[[1.0]], [[1.0]]], [[0.0], [2.0]])
      >>> net = pisco.Network.complete(2, server=pisco.always())
      >>> pisco.run(pisco.algorithms.dsgd(local_lr=0.5), problem, net, rounds=60).params.ravel()
      array([1., 1.], dtype=float32)

    References: X. Lian et al., "Can Decentralized Algorithms Outperform Centralized Algorithms?", NeurIPS 2017;
    B. McMahan et al., "Communication-Efficient Learning of Deep Networks from Decentralized Data", AISTATS 2017;
    Y. Chen et al., "Accelerating Gossip SGD with Periodic Global Averaging", ICML 2021.
    """
    check_number("local_lr", local_lr, low=0, open_low=True)
    check_number("comm_lr", comm_lr, low=0, open_low=True)
    check_number("local_steps", local_steps, low=1, integer=True)

    def init(params: Params, key: Key, grad: Grad, mix: StartMix) -> DsgdState:
        return DsgdState(params)

    def one_round(state: DsgdState, key: Key, grad: Grad, mix: Mix) -> DsgdState:
        def local_step(params: Params, key: Key) -> tuple[Params, None]:
            return descend(params, local_lr, grad(params, key)), None

        end, _ = lax.scan(local_step, state.params, jax.random.split(key, local_steps))
        if combine_first:
            return DsgdState(add(mix(state.params), subtract(end, state.params), comm_lr))
        return DsgdState(mix(lerp(state.params, end, comm_lr)))

    return Pair(init, one_round, rebase=lambda state: state)  # nothing in it is about the others
