"""NoLoCo: inner optimizer, outer momentum, and a random partner instead of everybody."""

from __future__ import annotations

from typing import Any, NamedTuple

from pisco.algorithms.optimizers import PLAIN, Optimizer
from pisco.errors import check_counts, check_number, check_positive
from pisco.tree import add, descend, repeat, scale, subtract, zeros_like
from pisco.types import Grad, Key, Mix, Pair, Params, StartMix, algorithm


class NolocoState(NamedTuple):
    """X, the outer momentum, which never travels, and what the agents' optimizers remember."""

    params: Params
    velocity: Params
    local_memory: Any = ()


@algorithm
def noloco(
    *,
    local_lr: float,
    local_steps: int,
    comm_lr: float = 0.7,
    momentum: float = 0.5,
    consensus_lr: float = 0.7,
    direction: Optimizer = PLAIN,
) -> Pair:
    """T steps of the inner optimizer from X to X', then one exchange of two vectors:

        Δ = X' − X
        M ← α·M + β·Δ·Wᵏ − γ(X − X·Wᵏ)
        Xᵏ⁺¹ = X + M

    Published with new pairs in every round, `random_matching()`; on `always()` all models stay the same and it
    is DiLoCo with heavy-ball momentum.

    Args:
      local_lr: η, the step size of a local step.
      local_steps: T, at least 1.
      comm_lr: β, the outer step size.
      momentum: α in [0, 1).
      consensus_lr: γ, how strongly partners are pulled together.
      direction: an `Optimizer` for local steps; the paper takes AdamW.

    Example:
      >>> import pisco
      >>> problem = pisco.problems.quadratic([[[1.0]], [[1.0]]], [[0.0], [2.0]])
      >>> rule = pisco.algorithms.noloco(local_lr=0.1, local_steps=2)
      >>> pisco.run(rule, problem, pisco.Network.complete(2), rounds=200).params.ravel().round(2)
      array([1., 1.], dtype=float32)

    Reference: J. Kolehmainen et al., "NoLoCo: No-all-reduce Low Communication Training Method for Large Models", 2025,
    arXiv 2506.10911. The outer step is that of its authors' code, with β = γ = 0.7, α = 0.5 and pairs; inside, that
    code takes Adam. The random routing of activations between parts of a pipeline is not here.
    """
    check_positive(local_lr=local_lr, comm_lr=comm_lr, consensus_lr=consensus_lr)
    check_counts(local_steps=local_steps)
    check_number("momentum", momentum, low=0, high=0.9999)

    def init(params: Params, key: Key, grad: Grad, mix: StartMix) -> NolocoState:
        return NolocoState(params, zeros_like(params), direction.start(params))

    def one_round(state: NolocoState, key: Key, grad: Grad, mix: Mix) -> NolocoState:
        def local_step(local: tuple[Params, Any], key: Key) -> tuple[Params, Any]:
            params, memory = local
            move, memory = direction.update(grad(params, key), memory, params)
            return descend(params, local_lr, move), memory

        end, memory = repeat(local_step, (state.params, state.local_memory), key, local_steps)
        partners, change, seen = mix((state.params, subtract(end, state.params), direction.sent(memory)))
        velocity = add(scale(state.velocity, momentum), change, comm_lr)
        velocity = add(velocity, subtract(partners, state.params), consensus_lr)
        return NolocoState(add(state.params, velocity), velocity, direction.heard(memory, seen))

    return Pair(init, one_round, rebase=lambda state: state)  # nothing in it must hold for the mean
