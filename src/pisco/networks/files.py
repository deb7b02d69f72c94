"""Graphs and matrices from files: GraphML, edge lists, and square matrices as npz, npy, csv or txt."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import numpy as np

from pisco.errors import InputError
from pisco.networks.graph import Graph, from_adjacency, from_edges, from_networkx

T = TypeVar("T")

MATRIX_FILES = (".npz", ".npy", ".csv", ".txt")
GRAPH_FILES = (".graphml", ".edgelist", ".edges", *MATRIX_FILES)


def read_matrix(path: Path) -> Any:
    """The numbers of a file: what `scipy.sparse.save_npz`, `np.savez` (one array), `np.save` or `np.savetxt` wrote.

    Text has its numbers apart by commas or spaces; what follows a # is left out.
    """

    def read() -> Any:
        if path.suffix == ".npy":
            return np.load(path)
        if path.suffix == ".npz":
            with np.load(path) as arrays:
                if "indptr" not in arrays:
                    (name,) = arrays
                    return arrays[name]
            from scipy.sparse import load_npz

            return load_npz(path)
        lines = [line.split("#")[0].replace(",", " ").split() for line in path.read_text().splitlines()]
        return np.array([line for line in lines if line], float)

    return _guarded(path, "one matrix of numbers", read)


def read_graph(path: Path, *, agents: int | None = None) -> Graph:
    """The graph of a file: GraphML, agent numbers two in a row, or an adjacency matrix.

    agents: how many the file must have, if that is known.
    """
    graph = _guarded(path, "a graph", lambda: _read(path))
    if agents is not None and graph.num_agents != agents:
        raise InputError(
            f"{path.name} has {graph.num_agents} agents, but {agents} are asked for; leave `agents` out, or make "
            "both the same"
        )
    return graph


def _read(path: Path) -> Graph:
    if path.suffix == ".graphml":
        import networkx as nx

        return from_networkx(nx.read_graphml(path).to_undirected(), path.name)
    if path.suffix in (".edgelist", ".edges"):
        import networkx as nx

        return from_edges(list(nx.read_edgelist(path, nodetype=int, data=False).edges), name=path.name)
    matrix = read_matrix(path)
    if matrix.ndim == 2 and matrix.shape[1] == 2 and (matrix % 1 == 0).all():
        return from_edges(matrix.astype(np.int64), name=path.name)
    return from_adjacency(matrix, path.name)


def _guarded(path: Path, what: str, read: Callable[[], T]) -> T:
    if not path.is_file():
        raise InputError(f"there is no file {path}; check the path")
    try:
        return read()
    except InputError as error:
        raise InputError(f"{path.name}: {error}") from None
    except Exception as error:
        said = (str(error).splitlines() or [""])[0]
        raise InputError(f"{path} does not hold {what} ({type(error).__name__}: {said})") from error
