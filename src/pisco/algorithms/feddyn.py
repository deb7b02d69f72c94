"""FedDyn: federated learning with a regulariser that every agent adapts."""

from __future__ import annotations

from typing import NamedTuple

from pisco.errors import check_counts, check_positive
from pisco.tree import add, descend, repeat, scale, subtract, where_agents, zeros_like
from pisco.types import Grad, Key, Mix, Needs, Pair, Params, StartMix, algorithm


class FeddynState(NamedTuple):
    """x (the same for all), every agent's own Λᵢ, and the server's h."""

    params: Params
    own: Params
    shared: Params


@algorithm
def feddyn(*, local_lr: float, local_steps: int, prox: float = 0.1) -> Pair:
    """From the server's x, the sampled agents S take T steps on fᵢ(y) − ⟨Λᵢ, y⟩ + (α/2)‖y − x‖², then

        yᵢ ← yᵢ − η(gᵢ(yᵢ) − Λᵢ + α(yᵢ − x))
        Λᵢ ← Λᵢ − α(yᵢ − x)  for i in S
        h ← h − α·(|S|/n)·mean_S(yᵢ − x)
        x ← mean_S(yᵢ) − h/α

    The paper solves the local problem exactly; these are gradient steps. At the end Λᵢ is agent i's gradient at the
    optimum, so a constant step is exact.

    Args:
      local_lr: η, the step size of a local step.
      local_steps: T, at least 1.
      prox: α.

    Example:
      >>> import pisco
      >>> problem = pisco.problems.quadratic([[[1.0]], [[3.0]]], [[0.0], [4.0]])
      >>> net = pisco.Network.complete(2, server=pisco.always())
      >>> rule = pisco.algorithms.feddyn(local_lr=0.1, local_steps=5, prox=1.0)
      >>> pisco.run(rule, problem, net, rounds=100).params.ravel().round(3)
      array([3., 3.], dtype=float32)

    Reference: D. A. E. Acar et al., "Federated Learning Based on Dynamic Regularization", ICLR 2021.
    """
    check_positive(local_lr=local_lr, prox=prox)
    check_counts(local_steps=local_steps)

    def init(params: Params, key: Key, grad: Grad, mix: StartMix) -> FeddynState:
        return FeddynState(params, zeros_like(params), zeros_like(params))

    def one_round(state: FeddynState, key: Key, grad: Grad, mix: Mix) -> FeddynState:
        x, own, shared = state

        def local_step(y: Params, key: Key) -> Params:
            return descend(y, local_lr, add(subtract(grad(y, key), own), subtract(y, x), prox))

        y = repeat(local_step, x, key, local_steps)
        moved = subtract(y, x)
        mean_moved = mix(moved)
        shared = add(shared, mean_moved, -prox * mix.share)
        params = subtract(add(x, mean_moved), scale(shared, 1 / prox))
        return FeddynState(params, where_agents(mix.participates, add(own, moved, -prox), own), shared)

    return Pair(init, one_round, Needs(server_every_round=True))
