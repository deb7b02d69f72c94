"""ProxSkip, also called Scaffnew: local steps with a control variate, and a coin that decides when to communicate."""

from __future__ import annotations

from typing import NamedTuple

from pisco.errors import check_number, check_positive
from pisco.tree import add, descend, subtract, zeros_like
from pisco.types import Grad, Key, Mix, Needs, Pair, Params, StartMix, algorithm


class ProxskipState(NamedTuple):
    """X, and the control variates H, which sum to zero over agents."""

    params: Params
    control: Params


@algorithm
def proxskip(*, local_lr: float, server_prob: float = 0.1) -> Pair:
    """One gradient a round; with probability p the server averages, otherwise nothing is sent:

        X̂ = X − η(G(X) − H)
        Xᵏ⁺¹ = X̂·Wᵏ            Wᵏ = J with probability p, else I
        H ← H + (p/η)(Xᵏ⁺¹ − X̂)

    The published network has no gossip: `Network(…, gossip_steps=0, server=bernoulli(p))`. On one that gossips, the
    rounds in between mix as well.

    Args:
      local_lr: η, the step size.
      server_prob: p of the network's coin. Another value is another step size of the correction.

    Example:
      >>> import pisco
      >>> problem = pisco.problems.quadratic([[[1.0]], [[3.0]]], [[0.0], [4.0]])
      >>> net = pisco.Network.path(2, gossip_steps=0, server=pisco.bernoulli(0.5))
      >>> rule = pisco.algorithms.proxskip(local_lr=0.2, server_prob=0.5)
      >>> pisco.run(rule, problem, net, rounds=200).params.ravel().round(3)
      array([3., 3.], dtype=float32)

    Reference: K. Mishchenko, G. Malinovsky, S. Stich and P. Richtárik, "ProxSkip: Yes! Local Gradient Steps Provably
    Lead to Communication Acceleration! Finally!", ICML 2022.
    """
    check_positive(local_lr=local_lr)
    check_number("server_prob", server_prob, low=0, high=1, open_low=True)

    def init(params: Params, key: Key, grad: Grad, mix: StartMix) -> ProxskipState:
        return ProxskipState(params, zeros_like(params))

    def one_round(state: ProxskipState, key: Key, grad: Grad, mix: Mix) -> ProxskipState:
        stepped = descend(state.params, local_lr, subtract(grad(state.params, key), state.control))
        params = mix(stepped)
        return ProxskipState(params, add(state.control, subtract(params, stepped), server_prob / local_lr))

    def rebase(state: ProxskipState) -> ProxskipState:
        return state._replace(control=zeros_like(state.control))  # they sum to zero, whoever takes part

    return Pair(init, one_round, Needs(doubly_stochastic=True), rebase)
