"""PISCO: probabilistic semi-decentralized local gradient tracking."""

from __future__ import annotations

from typing import Any, NamedTuple

import jax
from jax import lax

from pisco.algorithms.optimizers import PLAIN, Optimizer
from pisco.errors import check_number, check_positive
from pisco.tree import add, descend, subtract, track
from pisco.types import Grad, Key, Mix, Needs, Pair, Params, Pushed, StartMix, algorithm

NOISY = (
    "an optimizer that normalises, such as Adam, does not average out the noise of the batches that a tracker carries; "
    "with small batches use the method pisco-adam, whose correction is averaged over a round"
)


class PiscoState(NamedTuple):
    """X, Y and G of Algorithm 1, and what the agents' optimizers remember."""

    params: Params
    tracker: Params
    grads: Params
    local_memory: Any = ()
    outer_memory: Any = ()


@algorithm(whole=("comm_lr",))
def pisco(
    *,
    local_lr: float,
    comm_lr: float = 1.0,
    local_steps: int,
    one_exchange: bool = False,
    direction: Optimizer = PLAIN,
    outer: Optimizer = PLAIN,
) -> Pair:
    r"""Local gradient tracking, mixed by whatever the network offers this round (Algorithm 1 of the paper).

    From X⁰ = x⁰1ᵀ and Y⁰ = G⁰, round k takes T_o local steps from (X, Y, G) = (Xᵏ, Yᵏ, Gᵏ),

        X ← X − η_l·Y,   G' ← ∇ℓ(X; Z),   Y ← Y + G' − G,   G ← G',

    and then communicates with Wᵏ (the server's average J with probability p, else the gossip matrix W):

        Xᵏ⁺¹ = ((1 − η_c)Xᵏ + η_c(X − η_l·Y))·Wᵏ
        Gᵏ⁺¹ = ∇ℓ(Xᵏ⁺¹; Zᵏ⁺¹)
        Yᵏ⁺¹ = (Y + Gᵏ⁺¹ − G)·Wᵏ

    Y needs the gradient at the mixed X, so a round has two exchanges in sequence. With `one_exchange` the
    tracker travels beside X and the new gradient is not mixed, Yᵏ⁺¹ = Y·Wᵏ + Gᵏ⁺¹ − G: one message per
    link instead of two, the same bytes, and far larger stable step sizes where W has eigenvalues near −1.
    Both keep mean(Y) = mean(G), whatever the optimizers do. Where links are one-way, X is pulled and Y is pushed.

    Args:
      local_lr: η_l, the step size of a local step.
      comm_lr: η_c, the step size of the communication step.
      local_steps: T_o, local steps between two communications (0 is allowed).
      one_exchange: send X and Y in one message (ours, not the paper's).
      direction: an `Optimizer` for local steps, X ← X − η_l·direction(Y). Through one that normalises, such as Adam,
        the noise that Y carries is not averaged out: take `pisco-adam` where batches are small.
      outer: an `Optimizer` for the communication step, Xᵏ⁺¹ = (Xᵏ − η_c·outer(Xᵏ − X'))·Wᵏ, X' the end of the round.

    Example:
      >>> import pisco
      >>> problem = pisco.problems.quadratic([[[1.0]], [[3.0]]], [[0.0], [4.0]])
      >>> net = pisco.Network.complete(2, server=pisco.bernoulli(0.5))
      >>> result = pisco.run(pisco.algorithms.pisco(local_lr=0.1, local_steps=1), problem, net, rounds=100)
      >>> [round(float(x), 3) for x in result.params.ravel()]      # the minimiser of x²/2 + 3(x−4)²/2
      [3.0, 3.0]

    Reference: H. Wang and Y. Chi, "Communication-Efficient Federated Optimization over Semi-Decentralized
    Networks", 2023.
    """
    check_positive(local_lr=local_lr, comm_lr=comm_lr)
    check_number("local_steps", local_steps, low=0, integer=True)

    def init(params: Params, key: Key, grad: Grad, mix: StartMix) -> PiscoState:
        grads = grad(params, key)  # line 2: Y⁰ = G⁰
        return PiscoState(params, grads, grads, direction.start(params), outer.start(params))

    def step(local: PiscoState) -> PiscoState:
        move, memory = direction.update(local.tracker, local.local_memory, local.params)
        return local._replace(params=descend(local.params, local_lr, move), local_memory=memory)

    def one_round(state: PiscoState, key: Key, grad: Grad, mix: Mix) -> PiscoState:
        keys = jax.random.split(key, local_steps + 1)
        gap = subtract(state.tracker, state.grads)  # no local step changes Y − G, so Y + G' − G is gap + G'

        def local_step(local: PiscoState, key: Key) -> tuple[PiscoState, None]:
            grads = grad(local.params, key)  # line 6, G
            local = local._replace(tracker=add(gap, grads), grads=grads)  # line 6, Y
            return step(local), None  # line 6, X of the next step; of the last one, line 9's X − η_l·Y

        end = step(state)  # line 6, X of the first step
        end = lax.scan(local_step, end, keys[:-1])[0] if local_steps else end  # lines 4-7
        memory = end.local_memory
        moved, outer_memory = outer.move(state.params, end.params, comm_lr, end.outer_memory)

        if one_exchange:
            params, (tracker,), seen = mix((moved, Pushed(end.tracker), direction.sent(memory)))
            memory, grads = direction.heard(memory, seen), grad(params, keys[-1])
            return PiscoState(params, track(tracker, grads, end.grads), grads, memory, outer_memory)

        params = mix(moved)  # line 9, X
        memory = direction.shared_by(mix, memory)
        grads = grad(params, keys[-1])  # line 9, G
        (tracker,) = mix(Pushed(add(gap, grads)))  # line 9, Y
        return PiscoState(params, tracker, grads, memory, outer_memory)

    def rebase(state: PiscoState) -> PiscoState:
        return state._replace(tracker=state.grads)  # mean(Y) = mean(G), whoever takes part

    needs = Needs(doubly_stochastic=True, one_way=True)
    return Pair(init, one_round, needs, rebase, lambda: NOISY if direction.normalises else "")
