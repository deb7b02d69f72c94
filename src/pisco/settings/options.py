"""Settings that belong to a named choice (a method, a graph, a problem): read off the factory's signature.

So a new row of a registry brings its own settings, and configurations need no edit.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Mapping
from typing import Any, NamedTuple

from pydantic import TypeAdapter, ValidationError

from pisco.algorithms.registry import ALGORITHMS
from pisco.errors import InputError, choose, suggest
from pisco.networks.graphs import GRAPHS
from pisco.networks.schedules import SCHEDULES
from pisco.networks.varying import VARYING
from pisco.networks.weights import WEIGHTS
from pisco.problems.registry import PROBLEMS

Parameters = Mapping[str, inspect.Parameter]

AUTO = "auto"
"""A step size that is picked before the run (`pisco.planning.auto_step`)."""


class Choice(NamedTuple):
    """A setting that picks a row of a registry, and which settings the rows bring along."""

    kind: str
    table: str
    key: str
    rows: Mapping[str, Parameters]


def _rows(factories: Mapping[str, Callable[..., Any]], *taken: str) -> dict[str, Parameters]:
    """The parameters of every factory but those that other settings fill in."""
    rows = {}
    for name, factory in factories.items():
        parameters = inspect.signature(factory).parameters
        rows[name] = {n: p for n, p in parameters.items() if n not in taken}
    return rows


CHOICES = (
    Choice("algorithm", "algorithm", "name", {n: m.hyperparameters for n, m in ALGORITHMS.items()}),
    Choice(
        "problem",
        "problem",
        "name",
        _rows(PROBLEMS, "dataset", "agents", "partition", "partition_options", "dtype"),
    ),
    Choice("graph", "network", "graph", _rows(GRAPHS, "agents")),
    Choice("weights", "network", "weights", _rows(WEIGHTS, "graph")),
    Choice("server", "network", "server", _rows(SCHEDULES)),
    Choice("varying", "network", "varying", {"none": {}} | _rows(VARYING)),
)

# By the text of the annotation: evaluating it may need modules that only type checkers import.
_TYPES: dict[str, tuple[Any, str]] = {
    "float": (float, "a number"),
    "int": (int, "a whole number"),
    "int | None": (int, "a whole number"),
    "bool": (bool, "true or false"),
    "str": (str, "a text"),
    "Sequence[float]": (list[float], "a list of numbers"),
}


def choices(table: str) -> list[Choice]:
    """The choices made in one table."""
    return [choice for choice in CHOICES if choice.table == table]


def fit(table: str, fixed: Mapping[str, Any], given: Mapping[str, Any]) -> dict[str, Any]:
    """Check the settings that the choices in `fixed` bring along, and give them their declared types."""
    known: dict[str, inspect.Parameter] = {}
    for choice in choices(table):
        known |= choose(choice.kind, fixed[choice.key], choice.rows)
    for name in given:
        if name not in known:
            raise InputError(unknown(table, name, [*fixed, *known], fixed))
    for name, parameter in known.items():
        if parameter.default is parameter.empty and name not in given:
            raise InputError(
                f"{table}.{name} is missing; set it, as in {table}.{name} = {_example(parameter)}"
            )
    return {name: _typed(f"{table}.{name}", value, known[name]) for name, value in given.items()}


def unknown(table: str, name: str, known: Iterable[str], fixed: Mapping[str, Any]) -> str:
    """What to say about a setting that the chosen rows do not have."""
    for choice in choices(table):
        owners = [row for row, parameters in choice.rows.items() if name in parameters]
        if owners:
            return (
                f"{table}.{name} does not go with {choice.key} = {fixed[choice.key]!r} "
                f"(it is a setting of {', '.join(owners)}); remove it"
            )
    return f"{table}.{name} is not a setting; {suggest(name, known)}"


def drop_stale(table: str, settings: dict[str, Any], kept: set[str]) -> None:
    """After other choices were made, forget what only the earlier ones took; `kept` are the keys just set."""
    taken = {name for c in choices(table) for name in c.rows.get(str(settings.get(c.key)), ())}
    for choice in choices(table):
        if choice.key in kept:
            ever = {name for parameters in choice.rows.values() for name in parameters}
            for name in (ever - taken - kept) & settings.keys():
                del settings[name]


def _typed(where: str, value: Any, parameter: inspect.Parameter) -> Any:
    kind, words = _TYPES.get(str(parameter.annotation), (Any, "another value"))
    if where == "algorithm.local_lr":
        if value == AUTO:
            return value
        words = 'a number or "auto"'
    try:
        return TypeAdapter(kind).validate_python(value)
    except ValidationError:
        raise InputError(f"{where} is {value!r}, expected {words}") from None


def _example(parameter: inspect.Parameter) -> str:
    return {"float": "0.1", "int": "1", "str": '"…"', "Sequence[float]": "[0.1, 0.2]"}.get(
        str(parameter.annotation), "…"
    )
