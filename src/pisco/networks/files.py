"""Graphs and matrices from files: GraphML, edge lists, and square matrices as npz, npy, csv or txt."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from pisco.errors import InputError
from pisco.networks.graph import Graph, from_adjacency, from_edges, from_networkx
from pisco.registry import guarded

MATRIX_FILES = (".npz", ".npy", ".csv", ".txt")
GRAPH_FILES = (".graphml", ".edgelist", ".edges", *MATRIX_FILES)


def read_matrix(path: Path) -> Any:
    """What `scipy.sparse.save_npz`, `np.savez` (one array), `np.save` or `np.savetxt` wrote.

    The numbers of a text are apart by commas or spaces, and what follows a # is left out.
    """

    def read() -> Any:
        if path.suffix in (".csv", ".txt"):
            lines = [line.split("#")[0].replace(",", " ").split() for line in path.read_text().splitlines()]
            return np.array([line for line in lines if line], float)
        held = np.load(path)
        if path.suffix == ".npy":
            return held
        if "indptr" not in held:
            if len(held.files) != 1:
                raise InputError(
                    f"{path.name} holds {len(held.files)} arrays ({', '.join(held.files)}); save one alone"
                )
            return held[held.files[0]]
        from scipy.sparse import load_npz

        return load_npz(path)

    matrix = guarded(path, "reading it as a matrix", read)
    if np.iscomplexobj(matrix):
        raise InputError(f"{path.name} holds complex numbers; save real ones")
    return matrix


def read_graph(path: Path, *, agents: int | None = None) -> Graph:
    """GraphML, agent numbers two in a row, or an adjacency matrix; with as many agents as are asked for, if any are."""

    def read() -> Graph:
        if path.suffix in MATRIX_FILES:
            matrix = read_matrix(path)
            if matrix.ndim == 2 and matrix.shape[1] == 2 and (matrix % 1 == 0).all():
                return numbered(matrix.astype(np.int64))
            return from_adjacency(matrix, path.name)
        import networkx as nx

        if path.suffix == ".graphml":
            held = nx.DiGraph(nx.read_graphml(path))  # with both directions where the file has none
            both = all(held.has_edge(b, a) for a, b in held.edges)
            return from_networkx(held.to_undirected() if both else held, path.name)
        return numbered(np.array(nx.read_edgelist(path, nodetype=int, data=False).edges, np.int64).reshape(-1, 2))

    def numbered(pairs: np.ndarray) -> Graph:
        if pairs.size and pairs.min() > 0 and agents != pairs.max() + 1:  # most likely counted from 1
            raise InputError(
                f"{path.name} has no link of agent 0; number agents from 0 on, or give agents = {pairs.max() + 1} if "
                "some have no links"
            )
        return from_edges(pairs, name=path.name)

    graph = guarded(path, "reading it as a graph", read)
    if agents not in (None, graph.num_agents):
        raise InputError(f"{path.name} has {graph.num_agents} agents, not {agents}; make both the same")
    return graph
