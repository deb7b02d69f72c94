"""SD-GT: gradient tracking in two layers, within subnets that gossip and between them through the server."""

from __future__ import annotations

from typing import NamedTuple

import jax
import jax.numpy as jnp

from pisco.errors import check_number
from pisco.tree import add, descend, scale, subtract, where_agents, zeros_like
from pisco.types import Grad, Key, Mix, Needs, Pair, Params, StartMix, algorithm


class SdGtState(NamedTuple):
    """X, the corrections within and between subnets, and where and how many rounds ago the server was last reached."""

    params: Params
    within: Params
    between: Params
    anchor: Params
    rounds: jax.Array


@algorithm
def sd_gt(*, local_lr: float) -> Pair:
    """One corrected step a round, D = G + Y + Z and X½ = X − γ·D, then one exchange of two vectors:

        gossip round:  Xᵏ⁺¹ = X½·Wᵏ    Y ← Y + D·Wᵏ − D
        server round:  Xᵏ⁺¹ = X½·Wᵏ    Z ← Z + M·Wᵏ − M,   M = (A − X½)/(m·γ)

    M is the mean direction of the m rounds since the server was last reached, at A. Y learns from neighbours what their
    subnet does otherwise, Z from the server what the others do. The corrections sum to zero, so it is exact. Each layer
    has the correction of K-GT: with `never()` it is K-GT with T = 1, and so it is with `always()`.

    Args:
      local_lr: γ, the step size.

    Example:
      >>> import pisco
      >>> problem = pisco.problems.quadratic([[[1.0]], [[3.0]]], [[0.0], [4.0]])
      >>> net = pisco.Network.path(2, server=pisco.every(4))
      >>> pisco.run(pisco.algorithms.sd_gt(local_lr=0.1), problem, net, rounds=100).params.ravel().round(3)
      array([3., 3.], dtype=float32)

    Reference: E. Chen, S. Wang and C. G. Brinton, "A Hierarchical Gradient Tracking Algorithm for Mitigating
    Subnet-Drift in Fog Learning Networks", 2024, arXiv 2409.17430. The layers are the paper's; beside its authors' code
    (SD-GT-INFOCOM) ours differs: there Y moves once a period, by the mean of (G + Y)W − (G + Y) over its rounds,
    without Z; a sample of every subnet reports and alone hears the average; those of a subnet who report share one Z.
    """
    check_number("local_lr", local_lr, low=0, open_low=True)

    def init(params: Params, key: Key, grad: Grad, mix: StartMix) -> SdGtState:
        none = zeros_like(params)
        agents = jax.tree.leaves(params)[0].shape[:1]
        return SdGtState(params, none, none, params, jnp.zeros(agents, jnp.int32))

    def one_round(state: SdGtState, key: Key, grad: Grad, mix: Mix) -> SdGtState:
        corrected = add(add(grad(state.params, key), state.within), state.between)
        moved, rounds, reached = descend(state.params, local_lr, corrected), state.rounds + 1, mix.server
        path = scale(subtract(state.anchor, moved), 1 / local_lr)
        mean = jax.tree.map(lambda x: x / rounds.reshape((-1,) + (1,) * (x.ndim - 1)).astype(x.dtype), path)
        sent = where_agents(reached, mean, corrected)
        params, heard = mix((moved, sent))
        news = subtract(heard, sent)
        return SdGtState(
            params,
            where_agents(reached, state.within, add(state.within, news)),
            where_agents(reached, add(state.between, news), state.between),
            where_agents(reached, params, state.anchor),
            jnp.where(reached, 0, rounds),
        )

    def rebase(state: SdGtState) -> SdGtState:
        none = zeros_like(state.params)  # they sum to zero, whoever takes part
        return SdGtState(state.params, none, none, state.params, jnp.zeros_like(state.rounds))

    return Pair(init, one_round, Needs(doubly_stochastic=True), rebase)
