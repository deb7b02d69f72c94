"""Running a suite: every cell that is not there yet, one file each."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from pisco.clock import Clock
from pisco.errors import InputError
from pisco.experiments.bench.cells import Follow, keep, kept, measure
from pisco.experiments.bench.suite import Place, Suite
from pisco.experiments.bench.tasks import check_names, check_target, graph_of, problem_of
from pisco.networks.network import Network
from pisco.problems.problem import Problem

CELLS = "cells"
"""The folder in which they are kept."""


class Done(NamedTuple):
    """What a run of a suite did: cells by how they came about; those refused and the tasks left out with the reason."""

    measured: list[str]
    kept: list[str]
    refused: dict[str, str]
    skipped: dict[str, str]
    seconds: float


def run_suite(
    suite: Suite,
    folder: Path,
    *,
    only: str | None = None,
    part: tuple[int, int] = (1, 1),
    started: Callable[[Place, int, int], Follow] = lambda place, at, of: None,
) -> Done:
    """Measure the cells that are missing; type the same again after an interruption, or copy cells together.

    `started(place, at, of)` is called before each one and may give what follows its rounds. A task whose data is not on
    this machine is skipped.
    """
    began, places = time.monotonic(), suite.places(only, part)
    graphs = {name: _graph(name, suite.networks[name]) for name in dict.fromkeys(each.network for each in places)}
    for place in places:
        Clock.of(place.task.judging.clock).check(graphs[place.network].num_agents)
    problems: dict[tuple[str, int], Problem] = {}
    done = Done([], [], {}, {}, 0.0)
    for at, place in enumerate(places):
        if place.task.name in done.skipped:
            continue
        if kept(folder / CELLS, place) is not None:
            done.kept.append(place.name)
            continue
        graph = graphs[place.network]
        key = (place.task.name, graph.num_agents)
        if key not in problems:
            check_names(place.task)
            try:
                problems[key] = problem_of(place.task, graph.num_agents)
            except InputError as error:
                done.skipped[place.task.name] = str(error)
                continue
            check_target(place.task, problems[key])
        cell = measure(place, graph, problems[key], started(place, at + 1, len(places)))
        keep(folder / CELLS, place, cell)
        if cell["entries"]:
            done.measured.append(place.name)
        else:
            done.refused[place.name] = "; ".join(cell["refused"])
    return done._replace(seconds=time.monotonic() - began)


def _graph(name: str, table: Mapping[str, Any]) -> Any:
    """The graph of one network, as networks take it; a mistake names the table."""
    try:
        return Network(graph_of(table)).graph
    except InputError as error:
        raise InputError(f"networks.{name}: {error}") from error
