"""Stochastic gradient descent with mixing: DSGD, Gossip-PGA, FedAvg, HL-SGD and TT-HF by the network they run on."""

from __future__ import annotations

from typing import Any, NamedTuple

from pisco.algorithms.optimizers import PLAIN, Optimizer
from pisco.errors import check_counts, check_positive
from pisco.tree import add, descend, repeat, subtract
from pisco.types import Grad, Key, Mix, Pair, Params, StartMix, algorithm


class DsgdState(NamedTuple):
    """X, the agents' parameters, and what their optimizers remember."""

    params: Params
    local_memory: Any = ()
    outer_memory: Any = ()


@algorithm(whole=("comm_lr",))
def dsgd(
    *,
    local_lr: float,
    comm_lr: float = 1.0,
    local_steps: int = 1,
    combine_first: bool = False,
    direction: Optimizer = PLAIN,
    outer: Optimizer = PLAIN,
) -> Pair:
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
      direction: an `Optimizer` for local steps, x ← x − η·direction(G(x)).
      outer: an `Optimizer` for the way from Xᵏ to X'. With `direction="adam"` this is DiLoCo on `always()`.

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
    check_positive(local_lr=local_lr, comm_lr=comm_lr)
    check_counts(local_steps=local_steps)

    def init(params: Params, key: Key, grad: Grad, mix: StartMix) -> DsgdState:
        return DsgdState(params, direction.start(params), outer.start(params))

    def one_round(state: DsgdState, key: Key, grad: Grad, mix: Mix) -> DsgdState:
        def local_step(local: tuple[Params, Any], key: Key) -> tuple[Params, Any]:
            params, memory = local
            move, memory = direction.update(grad(params, key), memory, params)
            return descend(params, local_lr, move), memory

        end, memory = repeat(local_step, (state.params, state.local_memory), key, local_steps)
        moved, outer_memory = outer.move(state.params, end, comm_lr, state.outer_memory)
        params, seen = mix((state.params if combine_first else moved, direction.sent(memory)))
        params = add(params, subtract(moved, state.params)) if combine_first else params
        return DsgdState(params, direction.heard(memory, seen), outer_memory)

    return Pair(init, one_round, rebase=lambda state: state)  # nothing in it is about the others
