"""What a result tells of every agent: links, labels, and how far it was from the mean, for reports to draw.

All of it is bounded: nothing is kept for more than `AGENTS_UP_TO` agents, and a long run keeps a few hundred rounds.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from pisco.engines.evaluate import AGENTS_UP_TO
from pisco.networks.network import Network
from pisco.problems.problem import Problem

LINKS_UP_TO, LABELS_UP_TO = 5000, 100
FIRST, LATER = 200, 200


class Frames:
    """Every agent's error at some rounds of the watched runs: all of the first ones, then fewer and fewer.

    >>> frames = Frames()
    >>> for k in range(10_000):
    ...     frames.add(k, np.zeros(3))
    >>> rounds = [k for k, _ in frames.kept]
    >>> len(rounds), rounds[198:203], rounds[-2:]
    (354, [198, 199, 200, 264, 328], [9928, 9992])
    """

    def __init__(self) -> None:
        self.kept: list[tuple[int, np.ndarray]] = []
        self.stride, self.skipped = 1, 0
        self.newest: tuple[int, np.ndarray] | None = None

    def add(self, round_index: int, errors: np.ndarray) -> None:
        """Note a measured round, if its turn has come."""
        with np.errstate(over="ignore"):  # a run in float64 that is lost
            self.newest = (round_index, np.asarray(errors, np.float32))
        self.skipped += 1
        if self.skipped < self.stride:
            return
        self.kept.append(self.newest)
        self.skipped = 0
        if len(self.kept) > FIRST + LATER:
            self.stride *= 2
            self.kept[FIRST:] = self.kept[FIRST::2]  # LATER is even: the newest stays

    def arrays(self) -> dict[str, np.ndarray]:
        """The frames with the newest round as the last; nothing when nothing was noted."""
        if self.newest is None:
            return {}
        frames = dict([*self.kept, self.newest])  # the newest may be the last of those kept
        return {"frame_rounds": np.asarray(list(frames), np.int64), "frame_errors": np.stack(list(frames.values()))}

    def save(self) -> dict[str, np.ndarray]:
        """All that `restore` needs."""
        state = np.asarray([len(self.kept), self.stride, self.skipped], np.int64)
        return self.arrays() | ({} if self.newest is None else {"frame_state": state})

    def restore(self, saved: dict[str, np.ndarray]) -> None:
        """Go on where `save` was called; a checkpoint without frames is one of an older version."""
        if "frame_state" in saved:
            count, self.stride, self.skipped = saved["frame_state"].tolist()
            frames = list(zip(saved["frame_rounds"].tolist(), saved["frame_errors"], strict=True))
            self.kept, self.newest = frames[:count], frames[-1]


def about_agents(problem: Problem, network: Network) -> dict[str, np.ndarray]:
    """Links, places and labels by name; empty for more agents than a picture can show.

    One-way links are pairs of a sender and a receiver.

    >>> import pisco
    >>> world = pisco.problems.quadratic([[[1.0]], [[1.0]]], [[0.0], [2.0]])
    >>> sorted(about_agents(world, pisco.Network.path(2)))
    ['edges', 'num_agents', 'positions']
    """
    graph = network.graph
    if graph.num_agents > AGENTS_UP_TO:
        return {}
    known = {"num_agents": np.asarray(graph.num_agents)}
    if graph.num_edges <= LINKS_UP_TO:
        known["edges"] = graph.edges if graph.arcs is None else graph.arcs
    if graph.one_way:
        known["one_way"] = np.asarray(True)
    if graph.positions is not None:
        known["positions"] = graph.positions
    return known | _labels(problem)


def _labels(problem: Problem) -> dict[str, np.ndarray]:
    """How many samples of every label each agent holds, where the data has whole numbers called `labels`."""
    data: Any = problem.data
    labels = data.get("labels") if isinstance(data, dict) else None
    if labels is None or labels.ndim != 1 or not np.issubdtype(labels.dtype, np.integer):
        return {}
    if not labels.is_fully_addressable:  # parts of them are with other processes
        return {}
    names, index = np.unique(np.asarray(labels), return_inverse=True)
    if len(names) > LABELS_UP_TO:
        return {}
    agents, sizes = problem.num_agents, np.asarray(problem.sizes)
    place = np.repeat(np.arange(agents), sizes) * len(names) + index
    counts = np.bincount(place, minlength=agents * len(names)).reshape(agents, len(names))
    return {"labels": names, "label_counts": counts}
