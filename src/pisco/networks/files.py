"""Graphs and matrices from files: GraphML, lists of links or of neighbours, square matrices as npz, npy or text."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from pisco.errors import InputError
from pisco.networks.graph import Graph, from_adjacency, from_edges, from_networkx
from pisco.registry import guarded

TEXTS = (".csv", ".tsv", ".txt")
MATRIX_FILES = (".npz", ".npy", *TEXTS)
GRAPH_FILES = (".graphml", ".edgelist", ".edges", ".adjlist", *MATRIX_FILES)


def read_matrix(path: Path) -> Any:
    """What `scipy.sparse.save_npz`, `np.savez` (one array), `np.save` or `np.savetxt` wrote.

    The numbers of a text are apart by commas or spaces, and what follows a # is left out.
    """

    def read() -> Any:
        if path.suffix.lower() in TEXTS:
            return np.array([words for _, words in _lines(path, ",")], float)
        held = np.load(path)
        if path.suffix.lower() == ".npy":
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
    if matrix.dtype.kind not in "biuf":
        raise InputError(f"{path.name} holds {matrix.dtype}, expected numbers")
    return matrix


def _lines(path: Path, comma: str = " ") -> list[tuple[int, list[str]]]:
    """The words of every line of a text that has some, with its number; what follows a # is left out."""
    lines = enumerate(path.read_text(encoding="utf-8-sig").splitlines(), start=1)
    found = [(number, line.split("#")[0].replace(comma, " ").split()) for number, line in lines]
    return [(number, words) for number, words in found if words]


def _pairs(path: Path) -> np.ndarray:
    """The links of a list of them, or of neighbours; a line that is none is refused, as networkx passes over many."""
    pairs, neighbours = [], path.suffix.lower() == ".adjlist"  # there each line is an agent and its neighbours
    lines = _lines(path)
    if neighbours:
        lines = [(number, [words[0], other]) for number, words in lines for other in words[1:]]
    for number, words in lines:
        try:
            first, second = map(int, words[:2])
        except ValueError:
            said = " ".join(words)[:60]
            raise InputError(
                f"{path.name}, line {number}: {said!r} is no link; write two agent numbers a line, as in 0 1"
            ) from None
        pairs.append((first, second))
    return np.array(pairs, np.int64).reshape(-1, 2)


def _even(matrix: Any, path: Path) -> Any:
    """An adjacency matrix as it is; refused where links go both ways with unlike numbers, as in a list of links."""
    if isinstance(matrix, np.ndarray) and matrix.ndim == 2 and matrix.shape[0] == matrix.shape[1]:
        unlike = np.argwhere((abs(matrix - matrix.T) > 0) & (matrix != 0) & (matrix.T != 0))
        if len(unlike):
            i, j = unlike[0]
            raise InputError(
                f"{path.name} is read as a matrix, and its links {i}, {j} and {j}, {i} have unlike numbers "
                f"({matrix[i, j]:g} and {matrix[j, i]:g}); make them the same, or call a list of links .edgelist"
            )
    return matrix


def read_graph(path: Path, *, agents: int | None = None) -> Graph:
    """GraphML, agent numbers two in a row, or an adjacency matrix; with as many agents as are asked for, if any are."""

    def read() -> Graph:
        suffix = path.suffix.lower()
        if suffix in MATRIX_FILES:
            matrix = read_matrix(path)
            pairs = isinstance(matrix, np.ndarray) and matrix.ndim == 2 and matrix.shape[1] == 2
            if pairs and ((matrix % 1 == 0) & (abs(matrix) < 2**53)).all():
                return numbered(matrix.astype(np.int64))
            return from_adjacency(_even(matrix, path), path.name)
        if suffix != ".graphml":
            return numbered(_pairs(path))
        import networkx as nx

        held = nx.DiGraph(nx.read_graphml(path))  # with both directions where the file has none
        if not len(held):
            raise InputError(f"{path.name} holds no nodes; every agent is one")
        both = all(held.has_edge(b, a) for a, b in held.edges)
        return from_networkx(held.to_undirected() if both else held, path.name)

    def numbered(pairs: np.ndarray) -> Graph:
        if not pairs.size:
            raise InputError(f"{path.name} holds no links; write two agent numbers a line, as in 0 1")
        if pairs.min() > 0 and agents != pairs.max() + 1:  # most likely counted from 1
            raise InputError(
                f"{path.name} has no link of agent 0; number agents from 0 on, or give agents = {pairs.max() + 1} if "
                "some have no links"
            )
        return from_edges(pairs, name=path.name)

    graph = guarded(path, "reading it as a graph", read)
    if agents not in (None, graph.num_agents):
        raise InputError(f"{path.name} has {graph.num_agents} agents, not {agents}; make both the same")
    return graph
