"""How much agents listen to each other: symmetric, doubly stochastic matrices on a graph.

Every rule returns W = I − B·diag(w)·Bᵀ as SciPy CSR, with B the incidence matrix and w one weight per edge;
`lazy` asks for (I + W)/2, which has no negative eigenvalue if W has none below −1.

>>> from pisco.networks.graphs import ring
>>> metropolis(ring(4)).toarray().round(3)[0].tolist()
[0.333, 0.333, 0.0, 0.333]
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import numpy as np

from pisco.errors import InputError
from pisco.networks.fastest import FACTOR_UP_TO, fastest_weights
from pisco.networks.files import MATRIX_FILES, read_matrix
from pisco.networks.graph import Graph, as_graph
from pisco.networks.spectral import as_csr, check_sums, laplacian, laplacian_extremes
from pisco.registry import Registry

if TYPE_CHECKING:
    csr_array = Any  # SciPy ships no types, and what checkers infer is wrong

__all__ = ["WEIGHTS", "best_constant", "check", "fdla", "max_degree", "metropolis"]

SOLVE_UP_TO = 200
"""The largest component whose fastest weights are solved for: a few seconds."""


def metropolis(graph: Graph, *, lazy: bool = False) -> csr_array:
    """w_ij = 1/(1 + max(d_i, d_j)): non-negative, and an agent needs only its neighbours' degrees."""
    graph = as_graph(graph)
    i, j = graph.edges.T
    return _matrix(graph, 1 / (1 + np.maximum(graph.degrees[i], graph.degrees[j])), lazy)


def max_degree(graph: Graph, *, lazy: bool = False) -> csr_array:
    """W = I − L/(1 + d_max): the same weight on every edge, non-negative."""
    graph = as_graph(graph)
    return _matrix(graph, np.full(graph.num_edges, 1 / (1 + graph.degrees.max())), lazy)


def best_constant(graph: Graph, *, lazy: bool = False) -> csr_array:
    """W = I − αL with α = 2/(λ₂ + λ_max): the fastest with one weight for all edges of a component."""
    graph = as_graph(graph)
    return _matrix(graph, _per_component(graph, _constant), lazy)


def fdla(graph: Graph, *, nonnegative: bool = False, lazy: bool = False) -> csr_array:
    """The fastest symmetric weights on the graph (FDLA): minimise ‖W − J‖₂ over one weight per edge.

    min s  subject to  −sI ⪯ I − B·diag(w)·Bᵀ − J ⪯ sI. In closed form on the families where equal weights are
    optimal, by a semidefinite program elsewhere (`fastest.py`); components above 200 agents without a closed form get
    `best_constant` and a warning. Weights may be negative, and the smallest eigenvalue is often near −1.

    nonnegative: ask also for non-negative entries of W.

    Xiao and Boyd, "Fast linear iterations for distributed averaging", 2004.

    >>> from pisco.networks.graphs import path
    >>> fdla(path(3)).toarray().round(6).tolist()
    [[0.5, 0.5, 0.0], [0.5, 0.0, 0.5], [0.0, 0.5, 0.5]]
    """

    def weigh(part: Graph) -> np.ndarray:
        small = part.num_agents <= SOLVE_UP_TO and not (nonnegative and part.num_edges > FACTOR_UP_TO)
        if part.laplacian_extremes is None and part.num_edges > 1 and small:
            found = fastest_weights(part, nonnegative=nonnegative)
            return np.where(np.abs(found) < 1e-8, 0.0, found)  # zero up to the solver's tolerance: it carries nothing
        if part.laplacian_extremes is None and part.num_edges > 1:
            warnings.warn(
                f"the fastest weights of {part.name} ({part.num_agents} agents) take long to solve for, so "
                "the best constant weight is used; ask for best_constant or metropolis to avoid this warning",
                UserWarning,
                stacklevel=4,
            )
        constant = _constant(part)
        return np.minimum(constant, 1 / part.degrees.max()) if nonnegative and len(constant) else constant

    graph = as_graph(graph)
    return _matrix(graph, _per_component(graph, weigh), lazy)


def check(weights: Any, graph: Graph | None = None, *, tolerance: float = 1e-8) -> csr_array:
    """Your own matrix, if it can be used: square, finite, rows and columns sum to 1, nothing off the graph.

    It need not be symmetric or non-negative.

    >>> check([[0.5, 0.5], [0.5, 0.48]])
    Traceback (most recent call last):
    ...
    pisco.errors.InputError: row 1 of `weights` sums to 0.98, expected 1; `weights.metropolis(graph)` builds a
    valid one
    """
    matrix = as_csr(weights)
    n = matrix.shape[0]
    entries = matrix.tocoo()
    bad = ~np.isfinite(entries.data)
    if bad.any():
        at = bad.argmax()
        raise InputError(
            f"`weights`[{entries.row[at]}, {entries.col[at]}] is {entries.data[at]}, expected a finite number"
        )
    for axis, what in ((1, "row {} of `weights`"), (0, "column {} of `weights`")):
        check_sums(matrix, axis, what, "`weights.metropolis(graph)` builds a valid one", tolerance)
    if graph is not None:
        if n != graph.num_agents:
            raise InputError(f"`weights` is {n} × {n} but {graph.name} has {graph.num_agents} agents")
        check_links(matrix, graph)
    return matrix


def check_links(matrix: csr_array, graph: Graph) -> None:
    """Refuse weights between agents whom the graph does not link, or not that way."""
    n, entries = graph.num_agents, matrix.tocoo()
    row, col = entries.row.astype(np.int64), entries.col.astype(np.int64)
    links, so, ends = graph.edges, "", (np.minimum(row, col), np.maximum(row, col))
    if graph.arcs is not None:
        links, so, ends = graph.arcs, " so", (row, col)
    linked, keys = links[:, 0] * n + links[:, 1], ends[0] * n + ends[1]  # the first sorted, as links are
    place = np.minimum(np.searchsorted(linked, keys), max(len(linked) - 1, 0))
    on_graph = (row == col) | ((linked[place] == keys) if len(linked) else False)
    if not on_graph.all():
        at = (~on_graph).argmax()
        raise InputError(
            f"`weights`[{row[at]}, {col[at]}] is {entries.data[at]:.10g} but agents {row[at]} and {col[at]} "
            f"are not linked{so} in {graph.name}; set it to 0 or add the edge"
        )


# ---------------------------------------------------------------------------------------- edge weights


def _matrix(graph: Graph, edge_weights: np.ndarray, lazy: bool) -> csr_array:
    """I − B·diag(w)·Bᵀ: exactly symmetric, the diagonal takes what the row still lacks."""
    from scipy.sparse import csr_array

    n, (i, j) = graph.num_agents, graph.edges.T
    w = edge_weights / 2 if lazy else edge_weights
    given = np.bincount(i, w, n) + np.bincount(j, w, n)
    diagonal = np.where(np.abs(1 - given) < 1e-15, 0.0, 1 - given)
    own = np.arange(n)
    rows, cols = np.concatenate([i, j, own]), np.concatenate([j, i, own])
    matrix = csr_array((np.concatenate([w, w, diagonal]), (rows, cols)), shape=(n, n))
    matrix.eliminate_zeros()
    return matrix


def _per_component(graph: Graph, weigh: Any) -> np.ndarray:
    """One weight per edge, by a rule that needs a connected graph."""
    if graph.laplacian_extremes is not None or graph.is_connected:
        return weigh(graph)
    labels = graph.components()
    edge_labels = labels[graph.edges[:, 0]]
    agents_by_label, edges_by_label = (np.argsort(labels, kind="stable"), np.argsort(edge_labels, kind="stable"))
    sizes, counts = np.bincount(labels), np.bincount(edge_labels, minlength=labels.max() + 1)
    local = np.empty(graph.num_agents, dtype=np.int64)
    local[agents_by_label] = np.arange(graph.num_agents) - np.repeat(np.cumsum(sizes) - sizes, sizes)
    edge_weights = np.zeros(graph.num_edges)
    ends = np.cumsum(counts)
    for label in np.flatnonzero(counts):
        mine = edges_by_label[ends[label] - counts[label] : ends[label]]
        # Renumbered in order, so the part's edges stay sorted and line up with `mine`.
        part = Graph(int(sizes[label]), local[graph.edges[mine]], f"component {label} of {graph.name}")
        edge_weights[mine] = weigh(part)
    return edge_weights


def _constant(graph: Graph) -> np.ndarray:
    if graph.num_edges == 0:
        return np.zeros(0)
    low, high = graph.laplacian_extremes or laplacian_extremes(laplacian(graph.adjacency()))
    return np.full(graph.num_edges, 2 / (low + high))


WEIGHTS = Registry[Callable[..., Any]](
    "weights",
    "pisco.weights",
    {
        "fdla": fdla,
        "metropolis": metropolis,
        "max-degree": max_degree,
        "best-constant": best_constant,
        "pisco-step": "pisco.theory.step_weights:pisco_step",
    },
    suffixes=MATRIX_FILES,
    read=lambda path, graph: read_matrix(path),
)
