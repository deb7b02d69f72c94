"""The graph itself: agents, edges, and the checks that every graph passes."""

from __future__ import annotations

import copy
import math
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np

from pisco.display import plural
from pisco.errors import InputError, check_number
from pisco.memory import check_fits

if TYPE_CHECKING:
    import networkx as nx
    from scipy.sparse import csr_array

UNNAMED = "graph"


@dataclass(frozen=True, eq=False)
class Graph:
    """A graph without self loops, undirected unless `one_way`.

    num_agents: n, at least 1.
    edges: pairs of agents; stored as a read-only (m, 2) array with i < j, sorted, each edge once.
    name: shown in messages and figures.
    positions: (n, 2) coordinates for drawing, if the family has natural ones.
    laplacian_extremes: (λ₂, λ_max) of the Laplacian in closed form. Set it only where equal weights on all
        edges are the fastest symmetric ones, because `weights.fdla` then uses it instead of solving.
    groups: the cluster 0, 1, … of every agent, where there are clusters: reporters are sampled from each.
    one_way: pairs are (sender, receiver); they are kept in `arcs`, and `edges` are the same without a direction.

    >>> Graph(3, [(1, 0), (0, 1), (2, 1)]).edges.tolist()
    [[0, 1], [1, 2]]
    """

    num_agents: int
    edges: Any
    name: str = UNNAMED
    positions: np.ndarray | None = None
    laplacian_extremes: tuple[float, float] | None = None
    one_way: bool = False
    groups: tuple[int, ...] | None = None
    arcs: np.ndarray | None = field(default=None, init=False)

    def __post_init__(self) -> None:
        num_agents = make_room(count("num_agents", self.num_agents), 0)
        edges = _normalised(num_agents, self.edges)
        object.__setattr__(self, "num_agents", num_agents)
        if self.one_way:
            arcs = np.unique(np.asarray(self.edges, dtype=np.int64).reshape(-1, 2), axis=0)
            arcs.flags.writeable = False
            object.__setattr__(self, "arcs", arcs)
        object.__setattr__(self, "edges", edges)
        if self.positions is not None:
            positions = np.array(self.positions, dtype=float)
            if positions.shape != (num_agents, 2):
                raise InputError(f"positions has shape {positions.shape}, expected {(num_agents, 2)}")
            positions.flags.writeable = False
            object.__setattr__(self, "positions", positions)

    def __repr__(self) -> str:
        return f"Graph({self.name}, {plural(self.num_agents, 'agent')}, {self.links})"

    @property
    def links(self) -> str:
        """How many there are, in words."""
        if self.arcs is not None:
            return plural(len(self.arcs), "one-way link")
        return plural(self.num_edges, "edge")

    def called(self, name: str) -> Graph:
        """The same by this name, unless it has one of its own."""
        other = copy.copy(self)
        object.__setattr__(other, "name", name if self.name == UNNAMED else self.name)
        return other

    @property
    def num_edges(self) -> int:
        return len(self.edges)

    @cached_property
    def degrees(self) -> np.ndarray:
        """The number of neighbours of each agent."""
        return np.bincount(self.edges.ravel(), minlength=self.num_agents)

    @property
    def out_degrees(self) -> np.ndarray:
        """To how many others each agent sends."""
        return self.degrees if self.arcs is None else np.bincount(self.arcs[:, 0], minlength=self.num_agents)

    @property
    def in_degrees(self) -> np.ndarray:
        """How many others each agent hears.

        >>> star = Graph(3, [(0, 1), (0, 2)], one_way=True)
        >>> star.out_degrees.tolist(), star.in_degrees.tolist()
        ([2, 0, 0], [0, 1, 1])
        """
        return self.degrees if self.arcs is None else np.bincount(self.arcs[:, 1], minlength=self.num_agents)

    def adjacency(self) -> csr_array:
        """The symmetric 0/1 matrix of the edges, as SciPy CSR in float64."""
        from scipy.sparse import csr_array

        i, j = self.edges.T
        rows, cols = np.concatenate([i, j]), np.concatenate([j, i])
        return csr_array((np.ones(len(rows)), (rows, cols)), shape=(self.num_agents, self.num_agents))

    def components(self) -> np.ndarray:
        """The label 0, 1, … of the connected component that each agent is in; strongly connected with one-way links.

        >>> Graph(6, [(0, 1), (1, 2), (3, 4), (4, 5)]).components().tolist()
        [0, 0, 0, 1, 1, 1]
        """
        from scipy.sparse import csr_array
        from scipy.sparse.csgraph import connected_components

        if self.arcs is None:
            return connected_components(self.adjacency(), directed=False)[1]
        links = csr_array((np.ones(len(self.arcs)), tuple(self.arcs.T)), shape=(self.num_agents, self.num_agents))
        return connected_components(links, directed=True, connection="strong")[1]

    @cached_property
    def is_connected(self) -> bool:
        return int(self.components().max()) == 0


def from_edges(edges: Any, num_agents: int | None = None, name: str = UNNAMED) -> Graph:
    """A graph from pairs of agents; without `num_agents`, as many as the largest number asks for."""
    if num_agents is None:
        pairs = np.asarray(edges)
        if pairs.size == 0 or not np.issubdtype(pairs.dtype, np.integer):
            raise InputError("edges has no agent numbers to count agents by; pass num_agents and integer pairs")
        num_agents = max(int(pairs.max()) + 1, 1)
    return Graph(num_agents, edges, name)


def from_adjacency(matrix: Any, name: str = UNNAMED) -> Graph:
    """An edge wherever a symmetric matrix, dense or sparse, is not zero; the diagonal is ignored."""
    from scipy.sparse import coo_array, issparse

    if not issparse(matrix):
        matrix = np.asarray(matrix)
    if matrix.ndim != 2 or matrix.shape[0] != matrix.shape[1]:
        raise InputError(f"the adjacency matrix has shape {matrix.shape}, expected n × n")
    if not np.issubdtype(matrix.dtype, np.number) and matrix.dtype != bool:
        raise InputError(f"the adjacency matrix holds {matrix.dtype}, expected numbers")
    entries = coo_array(matrix)
    if np.isnan(entries.data).any():
        raise InputError("the adjacency matrix holds NaN; write 0 where agents are not linked")
    there = entries.data != 0
    i, j = (index[there].astype(np.int64) for index in entries.coords)
    n = matrix.shape[0]
    upper, lower = np.unique((i * n + j)[i < j]), np.unique((j * n + i)[i > j])
    one_way = np.setxor1d(upper, lower)
    if len(one_way):
        a, b = divmod(int(one_way[0]), n)
        raise InputError(f"the adjacency matrix links agents {a} and {b} one way only; make it symmetric")
    return Graph(n, np.stack(np.divmod(upper, n), axis=1), name)


def from_networkx(graph: nx.Graph, name: str | None = None) -> Graph:
    """A graph of networkx: agents are its nodes in their order, self loops are dropped; one-way links of a DiGraph."""
    import networkx as nx

    if not isinstance(graph, nx.Graph):
        what = f"an array of shape {graph.shape}" if isinstance(graph, np.ndarray) else repr(graph)
        raise InputError(
            f"the graph is {what}, expected a Graph, as from_edges and from_adjacency make, or a networkx one"
        )
    agent = {node: i for i, node in enumerate(graph)}
    pairs = [(agent[a], agent[b]) for a, b in graph.edges() if a != b]
    return Graph(len(agent), pairs, name or graph.name or UNNAMED, one_way=graph.is_directed())


def as_graph(given: Any) -> Graph:
    """A graph as it is, or one of networkx; anything else is refused."""
    return given if isinstance(given, Graph) else from_networkx(given)


def count(name: str, value: Any, low: int = 1) -> int:
    """`value` as an int, refused unless it is a whole number ≥ low."""
    if isinstance(value, np.ndarray) or (isinstance(value, float) and not math.isfinite(value)):
        raise InputError(f"{name} is {value!r}, expected a whole number")
    check_number(name, value, low=low, integer=True)
    return int(value)


def circle(n: int) -> np.ndarray:
    """So many places on a circle, the first on top."""
    angle = np.pi / 2 - 2 * np.pi * np.arange(n) / n
    return np.stack([np.cos(angle), np.sin(angle)], axis=1)


def make_room(agents: int, degree: float, edge_bytes: int = 200) -> int:
    """As many agents, refused where this machine cannot hold their graph with its weights; nothing is built yet."""
    edges = agents * degree / 2
    what = f"a network of {agents:,} agents and {edges:,.0f} edges"
    check_fits(what, 150 * agents + edge_bytes * edges, "use fewer agents or a sparser graph")
    return agents


def _normalised(num_agents: int, edges: Any) -> np.ndarray:
    try:
        pairs = np.asarray(edges)
    except ValueError as error:
        raise InputError(f"edges cannot be read as pairs of agents: {error}") from None
    if pairs.size == 0:
        pairs = np.zeros((0, 2), dtype=np.int64)
    if pairs.ndim != 2 or pairs.shape[1] != 2:
        raise InputError(f"edges has shape {pairs.shape}, expected one pair of agents per row, (m, 2)")
    if not np.issubdtype(pairs.dtype, np.integer):
        raise InputError(f"edges has dtype {pairs.dtype}, expected integers 0 to {num_agents - 1}")
    outside = (pairs < 0) | (pairs >= num_agents)
    if outside.any():
        i, j = pairs[outside.any(axis=1).argmax()].tolist()
        raise InputError(f"edge ({i}, {j}) is outside agents 0 to {num_agents - 1}; raise num_agents or drop it")
    i, j = pairs.astype(np.int64).T
    if (i == j).any():
        agent = int(i[(i == j).argmax()])
        raise InputError(f"edge ({agent}, {agent}) is a self loop; drop it, an agent always keeps its own value")
    keys = np.sort(np.minimum(i, j) * num_agents + np.maximum(i, j))
    keys = keys[np.diff(keys, prepend=-1) > 0]  # np.unique takes ten times as long
    out = np.stack(np.divmod(keys, num_agents), axis=1)
    out.flags.writeable = False
    return out
