"""SD-GT: gradient tracking in two layers, within subnets that gossip and between them through the server."""

from __future__ import annotations

from typing import NamedTuple

import jax
import jax.numpy as jnp

from pisco.errors import check_positive
from pisco.tree import add, descend, scale, subtract, where_agents, zeros_like
from pisco.types import Grad, Key, Mix, Needs, Pair, Params, StartMix, algorithm


class SdGtState(NamedTuple):
    """X, the corrections C, the neighbours' news S, and where and how many rounds ago the server was last reached."""

    params: Params
    correction: Params
    news: Params
    anchor: Params
    rounds: jax.Array


@algorithm
def sd_gt(*, local_lr: float) -> Pair:
    """One corrected step a round, D = G + C and X½ = X − γ·D, then one exchange of two vectors:

        gossip round:  Xᵏ⁺¹ = X½·Wᵏ    S ← S + D·Wᵏ − D
        server round:  Xᵏ⁺¹ = X½·Wᵏ    C ← C + M·Wᵏ − M,   M = (A − X½)/(m·γ) − S/m,   S ← 0

    A server round ends a period of m rounds, which began at A. C moves there alone, by what two layers learnt on the
    way: from neighbours what their subnet does otherwise, S/m, and from the server what the other subnets do. C sums
    to zero, whoever is reached, so it is exact. With `always()` it is K-GT with T = 1; with `never()` nothing is
    corrected, and it is DSGD.

    Args:
      local_lr: γ, the step size.

    Example:
      >>> import pisco
      >>> problem = pisco.problems.quadratic([[[1.0]], [[3.0]]], [[0.0], [4.0]])
      >>> net = pisco.Network.path(2, server=pisco.every(4))
      >>> pisco.run(pisco.algorithms.sd_gt(local_lr=0.1), problem, net, rounds=200).params.ravel().round(3)
      array([3., 3.], dtype=float32)

    Reference: E. Chen, S. Wang and C. G. Brinton, "A Hierarchical Gradient Tracking Algorithm for Mitigating
    Subnet-Drift in Fog Learning Networks", 2024, arXiv 2409.17430. C is the paper's two corrections in one. Two things
    differ from its authors' code (SD-GT-INFOCOM): the server's average takes the place of a period's last gossip, and
    the correction between subnets goes by an agent's own path instead of its subnet's mean, which it does not hear.
    """
    check_positive(local_lr=local_lr)

    def init(params: Params, key: Key, grad: Grad, mix: StartMix) -> SdGtState:
        none = zeros_like(params)
        agents = jax.tree.leaves(params)[0].shape[:1]
        return SdGtState(params, none, none, params, jnp.zeros(agents, jnp.int32))

    def one_round(state: SdGtState, key: Key, grad: Grad, mix: Mix) -> SdGtState:
        corrected = add(grad(state.params, key), state.correction)
        moved, rounds, reached = descend(state.params, local_lr, corrected), state.rounds + 1, mix.server
        path = subtract(scale(subtract(state.anchor, moved), 1 / local_lr), state.news)
        mean = jax.tree.map(lambda x: x / rounds.reshape((-1,) + (1,) * (x.ndim - 1)).astype(x.dtype), path)
        sent = where_agents(reached, mean, corrected)
        params, heard = mix((moved, sent))
        news = subtract(heard, sent)
        at_once = jnp.logical_or(reached, jnp.logical_not(mix.participates))  # may have mixed with reports
        return SdGtState(
            params,
            where_agents(at_once, add(state.correction, news), state.correction),
            where_agents(reached, zeros_like(news), where_agents(at_once, state.news, add(state.news, news))),
            where_agents(reached, params, state.anchor),
            jnp.where(reached, 0, rounds),
        )

    def rebase(state: SdGtState) -> SdGtState:
        none = zeros_like(state.params)  # they sum to zero, whoever takes part
        return SdGtState(state.params, none, none, state.params, jnp.zeros_like(state.rounds))

    return Pair(init, one_round, Needs(doubly_stochastic=True), rebase)
