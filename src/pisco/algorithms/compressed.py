"""Error feedback around any method: compressed PISCO, CHOCO-SGD and whatever else sends whole vectors."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import jax

from pisco.algorithms.compressors import Identity
from pisco.errors import check_positive
from pisco.tree import add, subtract, where_agents, zeros_like
from pisco.types import Algorithm, Around, Compressor, Grad, Key, Mix, Pair, Params, StartMix, State, algorithm


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class CompressedState(Around):
    """The inner method's state, and for every exchange what neighbours and server already know of each agent."""

    inner: State
    gossiped: list[Any]
    reported: list[Any]


@algorithm
def compressed(*, inner: Algorithm, consensus_lr: float = 1.0, compressor: Compressor = Identity()) -> Pair:
    """Every exchange of `inner` sends only a compressed difference, and the error stays for the next one.

    Where `inner` would exchange V (V ← V·Wᵏ), each agent keeps a public copy V̂ that its receivers hold too:

        V̂ ← V̂ + Q(V − V̂),   V ← V + γ·V̂(Wᵏ − I)

    Neighbours and the server receive different rounds, so each holds its own copy. The mean over agents is kept
    whatever Q does: mean(Y) = mean(G) survives in gradient-tracking methods. With the identity and γ = 1 it is `inner`.
    Around `dsgd` it is CHOCO-SGD; around `pisco` it is compressed PISCO.

    Args:
      inner: the method whose exchanges are compressed.
      consensus_lr: γ; the coarser Q, the smaller it must be.
      compressor: Q.

    Example:
      >>> import pisco
      >>> from pisco.algorithms import compressed, compressors, dsgd
      >>> problem = pisco.problems.quadratic([[[1.0]], [[1.0]]], [[0.0], [2.0]])
      >>> rule = compressed(inner=dsgd(local_lr=0.1), consensus_lr=0.5, compressor=compressors.TopK(0.5))
      >>> bool(pisco.run(rule, problem, pisco.Network.path(2), rounds=100).params.mean().round(2) == 1)
      True

    Reference: A. Koloskova, S. Stich and M. Jaggi, "Decentralized Stochastic Optimization and Gossip Algorithms with
    Compressed Communication", ICML 2019 (CHOCO-SGD); on semi-decentralized networks it is ours.
    """
    check_positive(consensus_lr=consensus_lr)

    def init(params: Params, key: Key, grad: Grad, mix: StartMix) -> CompressedState:
        state = inner.init(params, key, grad, mix)
        spy = _Spy()
        jax.eval_shape(lambda s, k: inner.round(s, k, lambda p, k: p, spy), state, key)
        copies = [jax.tree.map(lambda x: jax.numpy.zeros(x.shape, x.dtype), tree) for tree in spy.seen]
        return CompressedState(state, copies, [zeros_like(copy) for copy in copies])

    def one_round(state: CompressedState, key: Key, grad: Grad, mix: Mix) -> CompressedState:
        inner_key, noise = jax.random.split(key)
        feedback = _ErrorFeedback(mix, state, noise, compressor, consensus_lr)
        new = inner.round(state.inner, inner_key, grad, feedback)
        return CompressedState(new, feedback.gossiped, feedback.reported)

    def rebase(state: CompressedState) -> CompressedState:
        assert inner.rebase is not None
        return replace(state, inner=inner.rebase(state.inner))  # copies may be any: they move no mean

    needs = inner.needs._replace(steady_links=True, doubly_stochastic=True, one_way=False)
    return Pair(init, one_round, needs, rebase if inner.rebase is not None else None)


class _Spy:
    """A mix that notes what is exchanged."""

    participates, share, server = True, 1.0, False

    def __init__(self) -> None:
        self.seen: list[Any] = []

    def __call__(self, tree: Any, compressor: Compressor | None = None) -> Any:
        self.seen.append(tree)
        return tree

    def each(self, function: Any, key: Key, tree: Any) -> Any:
        return tree


class _ErrorFeedback:
    """The mix that the inner method sees: each call compresses, and updates its own pair of public copies."""

    def __init__(self, mix: Mix, state: CompressedState, noise: Key, compressor: Compressor, consensus_lr: Any):
        self.mix, self.noise, self.compressor, self.consensus_lr = mix, noise, compressor, consensus_lr
        self.participates, self.share, self.server = mix.participates, mix.share, mix.server
        self.before = list(zip(state.gossiped, state.reported, strict=True))
        self.gossiped: list[Any] = []
        self.reported: list[Any] = []

    def __call__(self, tree: Any, compressor: Compressor | None = None) -> Any:
        call = len(self.gossiped)
        gossiped, reported = self.before[call]
        known = where_agents(self.server, reported, gossiped)
        sent = self.mix.each(self.compressor, jax.random.fold_in(self.noise, call), subtract(tree, known))
        public = add(known, sent)
        self.gossiped.append(where_agents(self.server, gossiped, public))
        self.reported.append(where_agents(self.server, public, reported))
        return add(tree, subtract(self.mix(public, self.compressor), public), self.consensus_lr)

    def each(self, function: Any, key: Key, tree: Any) -> Any:
        return self.mix.each(function, key, tree)
