"""Gossip that changes from round to round: any sequence of doubly stochastic matrices.

A rule draws round k's operator from (key, k) with static shapes, and says how many directed edges it uses. The key is
the network's own stream, so every process draws the same one without a message.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

import jax
import jax.numpy as jnp
import numpy as np

from pisco.errors import InputError, brief, check_number
from pisco.networks import weights as weighting
from pisco.networks.mixing import Dense, Edges, Operator, choose_operator
from pisco.networks.schedules import as_structure, traced
from pisco.networks.spectral import is_symmetric
from pisco.registry import Registry

if TYPE_CHECKING:
    from scipy.sparse import csr_array

    from pisco.networks.graph import Graph

__all__ = ["VARYING", "cycle", "edge_dropout", "function_of_round", "one_peer_exponential", "random_matching"]


class Gossiping(Protocol):
    """Round k's operator and its number of directed edges.

    One that draws `Edges` with the same ends in every round may say so with `same_ends = True`: where agents are spread
    over devices only what is needed travels then.
    """

    def draw(self, key: jax.Array, round_index: Any) -> tuple[Operator, jax.Array]: ...


class Fixed(NamedTuple):
    """The same weights every round."""

    operator: Operator
    num_edges: jax.Array

    def draw(self, key: jax.Array, round_index: Any) -> tuple[Operator, jax.Array]:
        return self.operator, self.num_edges


class EdgeDropout(NamedTuple):
    """Every edge fails on its own with a probability; a failed edge's weight returns to its two ends."""

    first: jax.Array
    second: jax.Array
    weights: jax.Array  # of the edges
    failing: jax.Array  # the probability
    agents: jax.Array  # 0 … n−1
    same_ends = True

    def draw(self, key: jax.Array, round_index: Any) -> tuple[Operator, jax.Array]:
        uniform = jax.random.uniform(jax.random.fold_in(key, round_index), self.first.shape, jnp.float32)
        kept = uniform >= self.failing
        weights = jnp.where(kept, self.weights, 0)
        return _symmetric(self.first, self.second, weights, self.agents), 2 * kept.sum()


class RandomMatching(NamedTuple):
    """Disjoint pairs average: an edge is chosen when its random priority beats those of all edges it touches."""

    first: jax.Array
    second: jax.Array
    agents: jax.Array
    same_ends = True

    def draw(self, key: jax.Array, round_index: Any) -> tuple[Operator, jax.Array]:
        n = self.agents.shape[0]
        priority = jax.random.permutation(jax.random.fold_in(key, round_index), self.first.shape[0])
        best = jnp.full(n, -1).at[self.first].max(priority).at[self.second].max(priority)
        chosen = (best[self.first] == priority) & (best[self.second] == priority)
        return _symmetric(self.first, self.second, jnp.where(chosen, 0.5, 0.0), self.agents), 2 * chosen.sum()


class OnePeerExponential(NamedTuple):
    """In round k agent i averages with agent i − 2^(k mod ⌈log₂ n⌉): one message per agent, directed."""

    agents: jax.Array

    def draw(self, key: jax.Array, round_index: Any) -> tuple[Operator, jax.Array]:
        n = self.agents.shape[0]
        hops = max(1, int(np.ceil(np.log2(n))))
        distance = jnp.left_shift(1, jnp.asarray(round_index) % hops)
        sources = (self.agents - distance) % n
        halves = jnp.full(2 * n, 0.5)
        targets = jnp.concatenate([self.agents, self.agents])
        return Edges(jnp.concatenate([self.agents, sources]), targets, halves), jnp.int32(n)


class Cycle(NamedTuple):
    """A user's matrices, one after the other, again and again."""

    transposed: jax.Array  # (length, n, n)
    num_edges: jax.Array  # (length,)

    def draw(self, key: jax.Array, round_index: Any) -> tuple[Operator, jax.Array]:
        k = jnp.asarray(round_index) % self.transposed.shape[0]
        return Dense(self.transposed[k]), self.num_edges[k]


@jax.tree_util.register_static
@dataclass(frozen=True)
class FunctionOfRound:
    """A user's traceable function of (key, round_index) that returns W."""

    function: Callable[[jax.Array, Any], jax.Array]

    def draw(self, key: jax.Array, round_index: Any) -> tuple[Operator, jax.Array]:
        W = jnp.asarray(self.function(jax.random.fold_in(key, round_index), round_index))
        off = jnp.where(jnp.eye(W.shape[0], dtype=bool), 0, W)
        return Dense(W.T), jnp.count_nonzero(off).astype(jnp.int32)


Varying = Callable[["Graph", "csr_array"], Gossiping]
"""What `Network(varying=…)` takes: the graph and its weights become a rule.

One with `symmetric = True` makes a rule that draws `Edges` with the same weight both ways, which goes with presence.
"""


def edge_dropout(drop_prob: float) -> Varying:
    """Every edge fails with probability `drop_prob`, round by round; needs symmetric weights.

    >>> import pisco
    >>> pisco.Network.ring(6, varying=pisco.edge_dropout(0.2))
    Network(ring of 6, 6 edges, weights=metropolis, varying=edge_dropout(0.2), server=never())
    """
    check_number("drop_prob", drop_prob, low=0, high=1)

    def build(graph: Graph, weights: csr_array) -> Gossiping:
        if not is_symmetric(weights):
            raise InputError("edge_dropout needs symmetric weights; `weights.metropolis(graph)` builds some")
        first, second = _ends(graph)
        on_edges = np.asarray(weights[graph.edges[:, 0], graph.edges[:, 1]]).ravel() if graph.num_edges else np.zeros(0)
        return EdgeDropout(first, second, jnp.asarray(on_edges), jnp.asarray(drop_prob), _everyone(graph))

    return _named(build, f"edge_dropout({drop_prob:g})", symmetric=True)


def random_matching() -> Varying:
    """Random disjoint pairs of neighbours average, each with weight one half."""
    return _named(lambda graph, weights: RandomMatching(*_ends(graph), _everyone(graph)), "random_matching()", True)


def one_peer_exponential() -> Varying:
    """One directed peer a round at distance 1, 2, 4, …: exact averaging in log₂ n rounds when n is a power of two."""
    return _named(lambda graph, weights: OnePeerExponential(_everyone(graph)), "one_peer_exponential()")


def cycle(matrices: Sequence[Any]) -> Varying:
    """Your own doubly stochastic matrices, repeated in order."""
    if not np.iterable(matrices) or not (matrices := list(matrices)):
        raise InputError(f"cycle is given {matrices!r}, expected a list of at least one matrix")
    checked = [weighting.check(W) for W in matrices]

    def build(graph: Graph, weights: csr_array) -> Gossiping:
        for index, W in enumerate(checked):
            if W.shape[0] != graph.num_agents:
                raise InputError(f"matrix {index} is for {W.shape[0]} agents, the network has {graph.num_agents}")
        dense = np.stack([W.toarray().T for W in checked])
        edges = [W.nnz - np.count_nonzero(W.diagonal()) for W in checked]
        return Cycle(jnp.asarray(dense), jnp.asarray(edges, jnp.int32))

    return _named(build, f"cycle of {len(checked)} matrices")


def function_of_round(function: Callable[[jax.Array, Any], jax.Array]) -> Varying:
    """Your own traceable `function(key, round_index)` that returns W, n×n and doubly stochastic (three are checked)."""

    def build(graph: Graph, weights: csr_array) -> Gossiping:
        traced(name, function)  # what fails is said with its name
        for k in range(3):
            key = jax.random.fold_in(jax.random.key(0), k)
            W = weighting.check(np.asarray(function(key, jnp.int32(k)), float), tolerance=1e-5)
            if W.shape[0] != graph.num_agents:
                raise InputError(f"the function returns W for {W.shape[0]} agents, the network has {graph.num_agents}")
        return FunctionOfRound(function)

    name = f"function_of_round({getattr(function, '__name__', 'function')})"
    return _named(build, name)


def none() -> None:
    """The same weights in every round."""


VARYING = Registry[Callable[..., Varying | None]](
    "varying",
    "pisco.varying",
    {
        "none": none,
        "edge_dropout": edge_dropout,
        "random_matching": random_matching,
        "one_peer_exponential": one_peer_exponential,
    },
)


def gossiping(varying: Varying, graph: Graph, weights: csr_array) -> Gossiping:
    """The rule that `varying` makes of a graph and its weights; anything else is refused."""
    name = f"varying={getattr(varying, '__name__', repr(varying))}"
    try:
        made = varying(graph, weights)
    except InputError:
        raise
    except Exception as error:
        raise InputError(
            f"{name} fails on the graph and its weights ({brief(error)}); give links that vary, as in "
            "pisco.edge_dropout(0.2)"
        ) from error
    if not hasattr(made, "draw"):
        raise InputError(f"{name} makes no links; wrap a function of (key, round) in varying.function_of_round")
    return as_structure("varying", made)


def fixed(weights: csr_array) -> Fixed:
    """The gossip of one matrix."""
    off_diagonal = weights.nnz - np.count_nonzero(weights.diagonal())
    return Fixed(choose_operator(weights), jnp.asarray(off_diagonal, jnp.int32))


def _symmetric(first: jax.Array, second: jax.Array, weights: jax.Array, agents: jax.Array) -> Edges:
    """W with these weights on undirected edges, the rest of every row on the diagonal."""
    n = agents.shape[0]
    own = 1.0 - jnp.zeros(n, weights.dtype).at[first].add(weights).at[second].add(weights)
    sources = jnp.concatenate([agents, first, second])
    targets = jnp.concatenate([agents, second, first])
    return Edges(sources, targets, jnp.concatenate([own, weights, weights]))


def _ends(graph: Graph) -> tuple[jax.Array, jax.Array]:
    return jnp.asarray(graph.edges[:, 0], jnp.int32), jnp.asarray(graph.edges[:, 1], jnp.int32)


def _everyone(graph: Graph) -> jax.Array:
    return jnp.arange(graph.num_agents, dtype=jnp.int32)


def _named(build: Any, name: str, symmetric: bool = False) -> Varying:
    build.__name__, build.symmetric = name, symmetric
    return build
