"""Settings that belong to a named choice (a method, a graph, a problem): read off the factory's signature.

So a new row of a registry, or a user's own factory, brings its own settings, and configurations need no edit.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, Literal, NamedTuple

from pisco import registry
from pisco.algorithms.registry import ALGORITHMS
from pisco.errors import InputError, suggest
from pisco.networks.graphs import GRAPHS
from pisco.networks.guards import GUARDS
from pisco.networks.presence import PRESENCE
from pisco.networks.schedules import SCHEDULES
from pisco.networks.varying import VARYING
from pisco.networks.weights import WEIGHTS
from pisco.problems.registry import PROBLEMS
from pisco.registry import Options, Registry

AUTO = "auto"
"""A step size that is picked before the run (`pisco.planning.auto_step`)."""


class RowChoice(NamedTuple):
    """A setting that picks a row of a registry; `taken` are the row's keywords that other settings fill in."""

    table: str
    key: str
    registry: Registry[Any]
    taken: tuple[str, ...] = ()

    def options(self, name: str) -> Options:
        """The settings that a row brings along."""
        known = registry.options(self.registry[name])
        return {key: option for key, option in known.items() if key not in self.taken}


class _AlgorithmChoice(RowChoice):
    """Of a method some hyperparameters are fixed by its name, and the step size may be left open."""

    def options(self, name: str) -> Options:
        known = dict(self.registry[name].hyperparameters)
        if "local_lr" in known:
            known["local_lr"] = known["local_lr"].replace(annotation=float | Literal["auto"])
        return known


DATA = ("dataset", "agents", "partition", "partition_options", "dtype")
"""What a problem may take beside its own settings."""

CHOICES = (
    _AlgorithmChoice("algorithm", "name", ALGORITHMS),
    RowChoice("problem", "name", PROBLEMS, DATA),
    RowChoice("network", "graph", GRAPHS, ("agents",)),
    RowChoice("network", "weights", WEIGHTS, ("graph",)),
    RowChoice("network", "server", SCHEDULES),
    RowChoice("network", "varying", VARYING),
    RowChoice("network", "presence", PRESENCE),
    RowChoice("network", "guard", GUARDS),
)


def choices(table: str) -> list[RowChoice]:
    """The choices made in one table."""
    return [choice for choice in CHOICES if choice.table == table]


def fit(table: str, fixed: Mapping[str, Any], given: Mapping[str, Any]) -> dict[str, Any]:
    """Check the settings that the choices in `fixed` bring along, and give them their declared types."""
    brought = [(choice, choice.options(fixed[choice.key])) for choice in choices(table)]
    known = {name for _, own in brought for name in own}
    for name in given:
        if name not in known:
            raise InputError(unknown(table, name, [*fixed, *known], fixed))
    fitted = {}
    for choice, own in brought:
        what = f"{choice.registry.kind} {registry.label(fixed[choice.key])!r}"
        mine = {name: value for name, value in given.items() if name in own}
        fitted |= registry.fit(what, own, mine, table=f"{table}.")
    return fitted


def unknown(table: str, name: str, known: Iterable[str], fixed: Mapping[str, Any]) -> str:
    """What to say about a setting that the chosen rows do not have."""
    for choice in choices(table):
        owners = [row for row in choice.registry.rows if name in choice.options(row)]
        if owners:
            return (
                f"{table}.{name} does not go with {choice.key} = {fixed[choice.key]!r} "
                f"(it is a setting of {', '.join(owners)}); remove it"
            )
    if name == "agents":  # own problems take them too
        return f"{table}.{name} is not a setting; give network.agents, which problems are told"
    return f"{table}.{name} is not a setting; {suggest(name, known)}"


def drop_stale(table: str, settings: dict[str, Any], before: Mapping[str, Any], kept: set[str]) -> None:
    """After other choices were made, forget what only earlier ones took; `kept` are the keys just set."""

    def taken(choice: RowChoice, settings: Mapping[str, Any]) -> set[str]:
        with suppress(InputError):  # a name that is not known, or no more: others will say so
            return set(choice.options(str(settings[choice.key]))) if choice.key in settings else set()
        return set()

    now = {name for choice in choices(table) for name in taken(choice, settings)}
    for choice in choices(table):
        if choice.key in kept:
            ever = {name for row in choice.registry.rows for name in choice.options(row)}
            for name in ((ever | taken(choice, before)) - now - kept) & settings.keys():
                del settings[name]


# -------------------------------------------------------------------------------- files that settings name


def moved(tables: Mapping[str, Any], where: Callable[[Path], Path]) -> dict[str, Any]:
    """The same tables with every file that they name put elsewhere: Python, graphs, weights and clocks."""

    def each(value: Any) -> Any:
        if isinstance(value, Mapping):
            return {key: each(one) for key, one in value.items()}
        if isinstance(value, list):
            return [each(one) for one in value]
        return registry.move(value, where) if registry.is_reference(value) else value

    out = {key: value if isinstance(value, str) else each(value) for key, value in tables.items()}
    for choice in CHOICES:
        table = out.get(choice.table)
        if isinstance(table, dict) and choice.registry.is_data(table.get(choice.key)):
            table[choice.key] = registry.move(table[choice.key], where)
    clock = out.get("clock")
    if isinstance(clock, dict) and isinstance(clock.get("file"), str):
        clock["file"] = str(where(Path(clock["file"])))
    return out


def files(tables: Mapping[str, Any]) -> dict[Path, str]:
    """Every file that settings name, with its SHA-256."""
    found: list[Path] = []
    moved(tables, lambda path: (found.append(path), path)[1])
    try:
        return {path: hashlib.sha256(path.read_bytes()).hexdigest() for path in found}
    except OSError as error:
        raise InputError(f"there is no file {error.filename} to read ({error.strerror}); check the path") from None
