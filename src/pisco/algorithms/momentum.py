"""Gossip SGD with heavy-ball momentum: HA-Fed on clusters with sampled reports."""

from __future__ import annotations

from typing import NamedTuple

from pisco.errors import check_number, check_positive
from pisco.tree import add, descend, zeros_like
from pisco.types import Grad, Key, Mix, Pair, Params, StartMix, algorithm


class MomentumState(NamedTuple):
    """X and the momentum V, which never travels."""

    params: Params
    velocity: Params


@algorithm
def momentum_dsgd(*, local_lr: float, momentum: float = 0.9) -> Pair:
    """One momentum step and one exchange a round.

        V ← β·V + G(X),   X ← (X − η·V)·Wᵏ

    On a clustered network whose server averages sampled agents every τ rounds this is HA-Fed.

    Args:
      local_lr: η, the step size.
      momentum: β in [0, 1).

    Example:
      >>> import pisco
      >>> problem = pisco.problems.quadratic([[[1.0]], [[1.0]]], [[0.0], [2.0]])
      >>> net = pisco.Network.complete(2, server=pisco.every(2))
      >>> rule = pisco.algorithms.momentum_dsgd(local_lr=0.1, momentum=0.5)
      >>> pisco.run(rule, problem, net, rounds=100).params.ravel().round(2)
      array([1., 1.], dtype=float32)

    Reconstructed from descriptions of HA-Fed (hybrid aggregation with momentum); we could not get the original.
    """
    check_positive(local_lr=local_lr)
    check_number("momentum", momentum, low=0, high=0.9999)

    def init(params: Params, key: Key, grad: Grad, mix: StartMix) -> MomentumState:
        return MomentumState(params, zeros_like(params))

    def one_round(state: MomentumState, key: Key, grad: Grad, mix: Mix) -> MomentumState:
        velocity = add(grad(state.params, key), state.velocity, momentum)
        return MomentumState(mix(descend(state.params, local_lr, velocity)), velocity)

    return Pair(init, one_round, rebase=lambda state: state)  # nothing in it is about the others
