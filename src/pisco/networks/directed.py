"""One-way links: directed graphs, and the pair of weights that gossip on them needs.

Weights that keep the mean both ways are rare there. Instead parameters are pulled, x_i ← Σ_j w_ji·x_j with columns that
sum to one, so that agents who agree stay agreed; and trackers are pushed, with rows that sum to one: nothing is lost.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from pisco.errors import InputError, check_number
from pisco.networks.graph import Graph, circle, count
from pisco.networks.spectral import as_csr, check_sums
from pisco.networks.weights import check_links

if TYPE_CHECKING:
    csr_array = Any  # SciPy ships no types, and what checkers infer is wrong


def directed_ring(agents: int) -> Graph:
    """Agent i sends to agent i + 1.

    >>> directed_ring(3).arcs.tolist()
    [[0, 1], [1, 2], [2, 0]]
    """
    n = count("agents", agents)
    return _one_way(n, [1] if n > 1 else [], f"directed ring of {n}")


def directed_exponential(agents: int) -> Graph:
    """Agent i sends to agents i + 1, i + 2, i + 4, …"""
    n = count("agents", agents)
    return _one_way(n, [2**k for k in range(max(n - 1, 0).bit_length())], f"directed exponential graph of {n}")


def random_digraph(agents: int, prob: float, seed: int = 0) -> Graph:
    """A directed ring, and every other ordered pair with probability `prob`: strongly connected, rarely balanced."""
    n = count("agents", agents)
    check_number("prob", prob, low=0, high=1)
    check_number("seed", seed, low=0, integer=True)
    there = np.random.default_rng(int(seed)).uniform(size=(n, n)) < prob
    there[np.arange(n), (np.arange(n) + 1) % n] = True
    np.fill_diagonal(there, False)
    return Graph(n, np.argwhere(there), f"random digraph of {n}, prob {prob:g}, seed {seed}", circle(n), one_way=True)


def in_out(graph: Graph) -> tuple[csr_array, csr_array]:
    """Pull with 1/(1 + d_in) of the receiver, push with 1/(1 + d_out) of the sender: all that an agent needs to know.

    >>> pull, push = in_out(random_digraph(5, 0.3))
    >>> bool(np.allclose(pull.sum(axis=0), 1) and np.allclose(push.sum(axis=1), 1))
    True
    """
    from scipy.sparse import csr_array

    n, arcs = graph.num_agents, graph.arcs
    assert arcs is not None
    own = np.arange(n)
    sources, targets = np.concatenate([arcs[:, 0], own]), np.concatenate([arcs[:, 1], own])
    heard, told = np.bincount(targets, minlength=n), np.bincount(sources, minlength=n)
    places = (sources, targets)
    return tuple(csr_array((1 / share, places), shape=(n, n)) for share in (heard[targets], told[sources]))  # type: ignore[return-value]


def is_pair(weights: Any) -> bool:
    """Whether these are two matrices, to pull and to push with."""
    return isinstance(weights, tuple) and len(weights) == 2 and all(np.ndim(each) == 2 for each in weights)


def check_pair(weights: tuple[Any, Any], graph: Graph | None) -> tuple[Any, Any]:
    """Two matrices, if they can be used: finite, non-negative, columns of the first and rows of the second sum to one.

    Entry (i, j) weighs what agent i sends to agent j; in papers' terms the first is Rᵀ and the second Cᵀ.
    """
    pull, push = (as_csr(each) for each in weights)
    n = pull.shape[0]
    if push.shape != pull.shape or (graph is not None and graph.num_agents != n):
        agents = "" if graph is None else f" and {graph.name} has {graph.num_agents} agents"
        raise InputError(f"`weights` to pull are {pull.shape} and to push {push.shape}{agents}; make all the same size")
    usual = "leave `weights` out for a usual pair"
    for matrix, axis, what in (
        (pull, 0, "column {} of the weights to pull"),
        (push, 1, "row {} of the weights to push"),
    ):
        if not np.isfinite(matrix.data).all() or (matrix.data < 0).any():
            raise InputError(
                "`weights` to pull and to push must be finite and not negative; leave them out for a usual pair"
            )
        check_sums(matrix, axis, what, usual)
        if graph is not None:
            check_links(matrix, graph)
    return pull, push


def one_way_graph(pull: csr_array, push: csr_array) -> Graph:
    """The graph of a pair of matrices: an arc wherever one of them sends something."""
    entries = (pull + push).tocoo()
    arcs = np.stack([entries.row, entries.col], axis=1)
    return Graph(pull.shape[0], arcs[entries.row != entries.col].astype(np.int64), one_way=True)


def _one_way(n: int, steps: list[int], name: str) -> Graph:
    agents = np.arange(n)
    arcs = [np.stack([agents, (agents + step) % n], axis=1) for step in steps]
    return Graph(n, np.concatenate(arcs) if arcs else [], name, circle(n), one_way=True)
