"""K-GT and Periodical-GT: local steps corrected by a control variate that is mixed once a round."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

from pisco.algorithms.lasting import Lasting
from pisco.algorithms.optimizers import PLAIN, Optimizer
from pisco.errors import check_counts, check_positive, choose
from pisco.tree import add, descend, repeat, scale, subtract, zeros_like
from pisco.types import Grad, Key, Mix, Needs, Pair, Params, StartMix, algorithm


class KgtState(NamedTuple):
    """X, the corrections C, which sum to zero over agents, and what the agents' optimizers remember."""

    params: Params
    correction: Params
    local_memory: Any = ()
    outer_memory: Any = ()
    steady: Any = ()
    """What is known of how much of C lasts."""


STARTS: dict[str, Callable[[Params, StartMix], Params]] = {
    "zero": lambda grads, mix: zeros_like(grads),
    "gossip": lambda grads, mix: subtract(mix.gossip(grads), grads),
    "central": lambda grads, mix: subtract(mix.server(grads), grads),
}
"""C⁰ from the first gradients: 0, G⁰W − G⁰ (one gossip exchange), or G⁰J − G⁰ (one server exchange)."""


@algorithm
def kgt(
    *,
    local_lr: float,
    comm_lr: float = 1.0,
    local_steps: int,
    last_gradient: bool = False,
    start: str = "zero",
    lasting: bool = False,
    direction: Optimizer = PLAIN,
    outer: Optimizer = PLAIN,
) -> Pair:
    """T corrected steps x ← x − η_c(g + C) from X, then one exchange of two vectors:

        Z = (X − x)/(T·η_c)                the mean corrected gradient of the round
        Xᵏ⁺¹ = (X − T·η_s·η_c·Z)·Wᵏ
        C ← C − Z + Z·Wᵏ

    With `last_gradient` Z is the last step's corrected gradient g + C instead (Periodical-GT). On `bernoulli(p)`
    this is variance-reduced PISCO: the correction averages a round's gradients instead of relying on the newest
    one, and needs no centralised start.

    Args:
      local_lr: η_c, the step size of a local step.
      comm_lr: η_s, the step size of the communication step.
      local_steps: T, at least 1.
      last_gradient: correct with the last gradient of the round rather than their mean.
      start: "zero", "gossip" or "central", see `STARTS`.
      lasting: step along g + r·C, where r in [0, 1] is how much of C, leaf by leaf, is the same from round to round:
        near 1 where agents differ, near 0 where C is the noise of their batches. Z and C are as above.
      direction: an `Optimizer` for local steps, x ← x − η_c·direction(g + C); Z stays the mean of the g + C.
      outer: an `Optimizer` for the way from X to x.

    Example:
      >>> import pisco
      >>> problem = pisco.problems.quadratic([[[1.0]], [[3.0]]], [[0.0], [4.0]])
      >>> rule = pisco.algorithms.kgt(local_lr=0.1, local_steps=3)
      >>> pisco.run(rule, problem, pisco.Network.path(2), rounds=100).params.ravel().round(3)
      array([3., 3.], dtype=float32)

    Reference: Y. Liu, T. Lin, A. Koloskova and S. Stich, "Decentralized gradient tracking with local steps",
    Optimization Methods and Software, 2024. Periodical-GT is reconstructed from
    descriptions, because we could not get the original.
    """
    check_positive(local_lr=local_lr, comm_lr=comm_lr)
    check_counts(local_steps=local_steps)
    first_correction, plain = choose("start", start, STARTS), direction == PLAIN

    def init(params: Params, key: Key, grad: Grad, mix: StartMix) -> KgtState:
        correction = first_correction(grad(params, key), mix)
        steady = Lasting.start(correction) if lasting else ()
        return KgtState(params, correction, direction.start(params), outer.start(params), steady)

    def one_round(state: KgtState, key: Key, grad: Grad, mix: Mix) -> KgtState:
        correction = state.steady.part(state.correction) if lasting else state.correction

        def local_step(carry: Any, key: Key) -> Any:
            params, _, total, memory = carry
            corrected = add(grad(params, key), correction)
            move, memory = direction.update(corrected, memory, params)
            total = None if plain else add(total, corrected)  # plain steps say it themselves
            return descend(params, local_lr, move), corrected, total, memory

        total = None if plain else zeros_like(state.correction)
        begin = (state.params, correction, total, state.local_memory)
        end, last, total, memory = repeat(local_step, begin, key, local_steps)
        mean = (
            scale(subtract(state.params, end), 1 / (local_steps * local_lr)) if plain else scale(total, 1 / local_steps)
        )
        z = last if last_gradient else mean
        z = add(z, subtract(state.correction, correction)) if lasting else z
        moved, outer_memory = outer.move(state.params, end, comm_lr, state.outer_memory)
        params, mixed, seen = mix((moved, z, direction.sent(memory)))
        correction = add(subtract(state.correction, z), mixed)
        steady = state.steady.seen(correction) if lasting else ()
        return KgtState(params, correction, direction.heard(memory, seen), outer_memory, steady)

    def rebase(state: KgtState) -> KgtState:
        correction = zeros_like(state.correction)  # they sum to zero, whoever takes part
        return state._replace(correction=correction, steady=Lasting.start(correction) if lasting else ())

    return Pair(init, one_round, Needs(doubly_stochastic=True), rebase)
