"""Who can talk to whom: graphs over agents 0, …, n−1, undirected except those that are named otherwise.

A `Graph` holds edges and nothing else: weights, server schedule and mixing are separate. The families below
are built from index arithmetic, so a million agents take about a second.

>>> ring(5).edges.tolist()
[[0, 1], [0, 4], [1, 2], [2, 3], [3, 4]]
>>> GRAPHS["grid"](agents=12).name
'3×4 grid'
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Sequence

import numpy as np

from pisco.errors import InputError, check_number, choose
from pisco.networks.directed import directed_exponential, directed_ring, random_digraph
from pisco.networks.files import GRAPH_FILES, read_graph
from pisco.networks.graph import Graph, as_graph, circle, count, from_adjacency, from_edges, from_networkx, make_room
from pisco.registry import Registry, label

__all__ = [
    "GRAPHS",
    "Graph",
    "clusters",
    "complete",
    "directed_exponential",
    "directed_ring",
    "erdos_renyi",
    "exponential",
    "from_adjacency",
    "from_edges",
    "from_networkx",
    "grid",
    "hypercube",
    "path",
    "random_digraph",
    "random_regular",
    "ring",
    "small_world",
    "star",
    "torus",
]


PAIRS_UP_TO = 300_000
"""Agents of a random graph that draws for every pair: some minutes."""


def _link(i: np.ndarray, j: np.ndarray) -> np.ndarray:
    """Pairs (i, j), those with i = j left out: what a wrap-around makes of one or two agents."""
    return np.stack([i, j], axis=1)[i != j]


# ------------------------------------------------------------------------------------- fixed families


def ring(agents: int) -> Graph:
    """A cycle: agent i is linked to i ± 1 mod n. λ₂ = 4 sin²(π/n), λ_max = 4 sin²(π⌊n/2⌋/n)."""
    n = count("agents", agents)
    if n <= 2:
        return path(n)
    i = np.arange(make_room(n, 2))
    extremes = (4 * math.sin(math.pi / n) ** 2, 4 * math.sin(math.pi * (n // 2) / n) ** 2)
    return Graph(n, _link(i, (i + 1) % n), f"ring of {n}", circle(n), extremes)


def path(agents: int) -> Graph:
    """A line of agents. λ₂ = 4 sin²(π/2n), λ_max = 4 cos²(π/2n)."""
    n = count("agents", agents)
    i = np.arange(make_room(n, 2) - 1)
    angle = math.pi / (2 * n)
    extremes = (4 * math.sin(angle) ** 2, 4 * math.cos(angle) ** 2) if n > 1 else None
    return Graph(n, _link(i, i + 1), f"path of {n}", np.stack([np.arange(n), np.zeros(n)], axis=1), extremes)


def complete(agents: int) -> Graph:
    """Every pair linked: λ₂ = λ_max = n, so one gossip round is an exact average."""
    n = count("agents", agents)
    edges = np.stack(np.triu_indices(make_room(n, n), 1), axis=1)
    return Graph(n, edges, f"complete graph of {n}", circle(n), (float(n), float(n)) if n > 1 else None)


def star(agents: int) -> Graph:
    """Agent 0 linked to all others. λ₂ = 1, λ_max = n."""
    n = count("agents", agents)
    if n <= 2:
        return path(n)
    leaves = np.arange(1, make_room(n, 2))
    positions = np.vstack([np.zeros((1, 2)), circle(n - 1)])
    return Graph(n, _link(np.zeros_like(leaves), leaves), f"star of {n}", positions, (1.0, float(n)))


def _lattice(rows: int, cols: int, wrap: bool) -> tuple[np.ndarray, np.ndarray]:
    agent = np.arange(make_room(rows * cols, 4)).reshape(rows, cols)
    end = None if wrap else -1
    right = _link(agent[:, :end].ravel(), np.roll(agent, -1, axis=1)[:, :end].ravel())
    down = _link(agent[:end].ravel(), np.roll(agent, -1, axis=0)[:end].ravel())
    positions = np.stack([agent % cols, -(agent // cols)], axis=-1).reshape(-1, 2)
    return np.concatenate([right, down]), positions


def grid(rows: int, cols: int) -> Graph:
    """A rows × cols lattice; agent r·cols + c sits in row r, column c."""
    rows, cols = count("rows", rows), count("cols", cols)
    edges, positions = _lattice(rows, cols, wrap=False)
    return Graph(rows * cols, edges, f"{rows}×{cols} grid", positions)


def torus(rows: int, cols: int) -> Graph:
    """A lattice that wraps around in both directions: every agent has the same place in it.

    The square m × m one has λ₂ = 4 sin²(π/m), λ_max = 8 sin²(π⌊m/2⌋/m).
    """
    rows, cols = count("rows", rows), count("cols", cols)
    extremes = None
    if rows == cols >= 3:
        low, high = math.sin(math.pi / rows) ** 2, math.sin(math.pi * (rows // 2) / rows) ** 2
        extremes = (4 * low, 8 * high)
    edges, positions = _lattice(rows, cols, wrap=True)
    return Graph(rows * cols, edges, f"{rows}×{cols} torus", positions, extremes)


def hypercube(dim: int) -> Graph:
    """2^dim agents, linked where their binary numbers differ in one digit. λ₂ = 2, λ_max = 2·dim."""
    dim = count("dim", dim, low=0)
    if dim > 24:
        raise InputError(f"dim is {dim}, expected at most 24: a hypercube has 2^dim agents")
    agent = np.arange(make_room(2**dim, dim))
    edges = [_link(agent, agent ^ (1 << bit)) for bit in range(dim)]
    return Graph(len(agent), _stack(edges), f"hypercube of {2**dim}", None, (2.0, 2.0 * dim) if dim else None)


def exponential(agents: int) -> Graph:
    """The static exponential graph: agent i is linked to i ± 2^k mod n for every 2^k < n."""
    n = count("agents", agents)
    i = np.arange(make_room(n, 2 * math.log2(n)))
    hops = [_link(i, (i + (1 << k)) % n) for k in range((n - 1).bit_length())]
    return Graph(n, _stack(hops), f"exponential graph of {n}", circle(n))


def _stack(parts: Sequence[np.ndarray]) -> np.ndarray:
    return np.concatenate([np.zeros((0, 2), dtype=np.int64), *parts])


def clusters(
    sizes: int | Sequence[int], size: int | None = None, *, inner: str = "complete", bridges: int = 0
) -> Graph:
    """Groups of agents, disconnected from each other unless there are bridges.

    sizes: the size of each cluster, or their number, and then `size` agents in each.
    inner: "complete", "ring", "path" or "star", the graph within a cluster.
    bridges: edges between a cluster and the next (the last and the first too, where there are three or more):
        the k-th last agent of the one is linked to the k-th of the other.

    >>> clusters([2, 3], bridges=1).edges.tolist()
    [[0, 1], [1, 2], [2, 3], [2, 4], [3, 4]]
    """
    if isinstance(sizes, int | np.integer):
        if size is None:
            raise InputError(f"clusters({sizes}) lacks the size of a cluster; call clusters({sizes}, size)")
        each, many = count("size", size), count("the number of clusters", sizes)
        counts = [each] * (make_room(many * each, each if inner == "complete" else 2) // each)
    else:
        if size is not None:
            raise InputError(f"size is {size!r} although `sizes` lists the sizes; drop one of them")
        counts = [count("a cluster size", each) for each in sizes]
    if not counts:
        raise InputError("sizes is empty, expected the size of at least one cluster")
    bridges = count("bridges", bridges, low=0)
    if bridges > min(counts):
        raise InputError(f"bridges is {bridges}, expected at most {min(counts)}, the size of the smallest cluster")
    build = choose("inner graph", inner, {"complete": complete, "ring": ring, "path": path, "star": star})
    total, starts = sum(counts), np.cumsum([0, *counts])[:-1]
    edges = [build(members).edges + start for members, start in zip(counts, starts, strict=True)]
    many = len(counts)
    for left in range(many if many > 2 else many - 1):
        right = (left + 1) % many
        k = np.arange(bridges)
        edges.append(np.stack([starts[left] + counts[left] - 1 - k, starts[right] + k], axis=1))
    # Each cluster on its own small circle, all of them on a large one, ends facing inwards.
    radius = 0.8 * math.sin(math.pi / many) if many > 1 else 1.0
    centres = circle(many) * (many > 1)
    positions = []
    for c, members in enumerate(counts):
        angle = 1.5 * np.pi - 2 * np.pi * (c / many + (np.arange(members) + 0.5) / members)
        positions.append(centres[c] + radius * np.stack([np.cos(angle), np.sin(angle)], axis=1))
    groups = tuple(np.repeat(np.arange(many), counts).tolist())
    return Graph(total, _stack(edges), f"{total} agents in {many} clusters", np.concatenate(positions), groups=groups)


# ------------------------------------------------------------------------------------ random families


def erdos_renyi(agents: int, prob: float, seed: int = 0, *, connected: bool = False) -> Graph:
    """Each pair linked with probability `prob`: exactly `networkx.erdos_renyi_graph(agents, prob, seed)`.

    connected: take the first connected graph among seed, seed + 1, …

    >>> erdos_renyi(10, 0.3, seed=12)
    Graph(Erdős–Rényi(10, 0.3) of seed 12, 10 agents, 15 edges)
    """
    n, seed = count("agents", agents), count("seed", seed, low=0)
    check_number("prob", prob, low=0, high=1)
    check_number("n", make_room(n, prob * n), high=PAIRS_UP_TO)
    tries = 1000 if connected else 1
    for attempt in range(seed, seed + tries):
        graph = Graph(n, _linked_pairs(n, prob, attempt), f"Erdős–Rényi({n}, {prob:g}) of seed {attempt}")
        if not connected or graph.is_connected:
            return graph
    raise InputError(
        f"no erdos_renyi({n}, {prob:g}) is connected for {tries} seeds from {seed}; "
        f"raise prob (log(n)/n = {math.log(n) / n:.3g} is about where connection starts)"
    )


def _linked_pairs(n: int, prob: float, seed: int) -> np.ndarray:
    # NumPy's Mersenne twister in the state of Python's gives the same doubles, many at a time.
    *key, place = random.Random(seed).getstate()[1]
    twister = np.random.MT19937()
    twister.state = {"bit_generator": "MT19937", "state": {"key": np.array(key, np.uint32), "pos": place}}
    draw = np.random.Generator(twister).random
    total, chunk = n * (n - 1) // 2, 1 << 22
    hits = [start + np.flatnonzero(draw(min(chunk, total - start)) < prob) for start in range(0, total, chunk)]
    flat = np.concatenate([np.zeros(0, np.int64), *hits])
    row_starts = np.concatenate([[0], np.cumsum(np.arange(n - 1, 0, -1))])
    i = np.searchsorted(row_starts, flat, side="right") - 1
    return np.stack([i, flat - row_starts[i] + i + 1], axis=1)


def small_world(agents: int, neighbours: int = 4, rewire: float = 0.1, seed: int = 0) -> Graph:
    """Watts–Strogatz: a ring of links to the `neighbours` nearest, each rewired with probability `rewire`."""
    import networkx as nx

    n, neighbours, seed = (count("agents", agents), count("neighbours", neighbours, low=2), count("seed", seed, low=0))
    check_number("rewire", rewire, low=0, high=1)
    if neighbours % 2 or neighbours >= n:
        raise InputError(f"neighbours is {neighbours}, expected an even number below n = {n}")
    drawn = nx.watts_strogatz_graph(make_room(n, neighbours, edge_bytes=700), neighbours, rewire, seed=seed)
    name = f"small world({n}, {neighbours}, {rewire:g}) of seed {seed}"
    return Graph(n, list(drawn.edges), name, circle(n))


def random_regular(agents: int, degree: int = 4, seed: int = 0) -> Graph:
    """A random graph in which every agent has `degree` neighbours: an expander, almost surely."""
    import networkx as nx

    n, degree, seed = count("agents", agents), count("degree", degree, low=0), count("seed", seed, low=0)
    if degree >= n:
        raise InputError(f"degree is {degree}, expected at most n − 1 = {n - 1}")
    if n * degree % 2:
        raise InputError(f"degree {degree} on {n} agents has no graph: n × degree must be even")
    edges = list(nx.random_regular_graph(degree, make_room(n, degree, edge_bytes=700), seed=seed).edges)
    return Graph(n, edges, f"random {degree}-regular({n}) of seed {seed}")


# ------------------------------------------------------------------------- by name, for configurations


def _shape(family: str, agents: int, rows: int | None) -> tuple[int, int]:
    """rows × cols = agents: the given rows, or the most square shape there is."""
    agents = count("agents", agents)
    if rows is not None:
        rows = count("rows", rows)
        if agents % rows:
            raise InputError(f"rows is {rows}, expected a divisor of agents = {agents}")
        return rows, agents // rows
    rows = next(r for r in range(math.isqrt(agents), 0, -1) if agents % r == 0)
    if rows == 1 and agents > 3:
        raise InputError(
            f"agents is {agents}, a prime, so the {family} would be a single line; "
            f"take {agents + 1} agents or set rows = 1"
        )
    return rows, agents // rows


def _grid(*, agents: int, rows: int | None = None) -> Graph:
    """A rectangular lattice."""
    return grid(*_shape("grid", agents, rows))


def _torus(*, agents: int, rows: int | None = None) -> Graph:
    """A lattice that wraps around in both directions."""
    return torus(*_shape("torus", agents, rows))


def _hypercube(*, agents: int) -> Graph:
    """A power of two of agents, linked where their binary numbers differ in one digit."""
    agents = count("agents", agents)
    if agents & (agents - 1):
        below = 1 << (agents.bit_length() - 1)
        raise InputError(f"agents is {agents}, a hypercube needs a power of two such as {below} or {2 * below}")
    return hypercube(agents.bit_length() - 1)


def _clusters(*, agents: int, clusters: int, inner: str = "complete", bridges: int = 0) -> Graph:
    """Groups of agents, disconnected from each other unless there are bridges."""
    agents, parts = count("agents", agents), count("clusters", clusters)
    if agents % parts:
        raise InputError(f"clusters is {parts}, expected a divisor of agents = {agents}")
    return _cluster_graph(parts, agents // parts, inner=inner, bridges=bridges)


_cluster_graph = clusters  # `clusters` is also the name of the option


GRAPHS = Registry[Callable[..., Graph]](
    "graph",
    "pisco.graphs",
    {
        "ring": ring,
        "path": path,
        "complete": complete,
        "star": star,
        "grid": _grid,
        "torus": _torus,
        "hypercube": _hypercube,
        "exponential": exponential,
        "clusters": _clusters,
        "erdos-renyi": erdos_renyi,
        "small-world": small_world,
        "random-regular": random_regular,
        "directed-ring": directed_ring,
        "directed-exponential": directed_exponential,
        "random-digraph": random_digraph,
    },
    suffixes=GRAPH_FILES,
    read=read_graph,
)


def by_name(name: str, **given: object) -> Graph:
    """The graph of a row, a file or a function by its name; one that has no name of its own is called so."""
    return as_graph(GRAPHS[name](**given)).called(label(name))
