"""How long things take: seconds of a gradient, latency and bandwidth of every link (`clock.stopwatch` adds up)."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from functools import cache
from pathlib import Path
from typing import Any

import jax
import numpy as np

from pisco.errors import InputError, check_number, choose, suggest
from pisco.settings import toml

__all__ = ["Clock"]


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class Quantity:
    """median·exp(sigma·z + jitter·z'): z is drawn once for an agent or a link, z' for every gradient or message."""

    median: Any
    sigma: float = field(default=0.0, metadata={"static": True})
    jitter: float = field(default=0.0, metadata={"static": True})

    @classmethod
    def of(cls, name: str, given: Any) -> Quantity:
        """From a number, several, or a table of a median and its spread."""
        table = dict(given) if isinstance(given, Mapping) else {"median": given}
        spread = {key: table.pop(key) for key in ("sigma", "jitter") if key in table}
        for key, value in spread.items():
            check_number(f"the {key} of {name}", value, low=0, high=10)
        try:
            values = np.asarray(table.pop("median"), np.float64)
        except (KeyError, TypeError, ValueError):
            table = {"median": given}
        if table:
            raise InputError(f"{name} is {given!r}, expected a number, several, or a table of median, sigma and jitter")
        speed = name.startswith("bandwidth")  # it may be infinite, and may not be zero
        wrong = values[~(values > 0 if speed else (values >= 0) & np.isfinite(values))]
        if wrong.size:
            raise InputError(f"{name} has a {wrong[0]:g}, expected numbers {'above 0' if speed else 'of at least 0'}")
        return cls(values, **{key: float(value) for key, value in spread.items()})


EXAMPLES = {"preset": "campus", "file": "measured.toml"}


@dataclass(frozen=True, kw_only=True, eq=False)
class Clock:
    """How long things take: what `pisco.run(clock=…)` counts `history["seconds"]` with.

    Each is a number, a list with one for every agent (of a link between agents: of those who send), for links between
    agents a matrix [sender, receiver], or a table `{"median": …, "sigma": …, "jitter": …}` of a lognormal
    distribution: `sigma` is the spread between agents or links, `jitter` that from one time to the next.

    Args:
      compute: seconds of one gradient.
      latency_gossip: seconds of a message between agents, whatever its size.
      bandwidth_gossip: bytes a second of a link between agents.
      latency_server: seconds of a message to or from the server.
      bandwidth_server: bytes a second of an agent's link to the server, either way.
      asked: whether a message has to be asked for, as in our federations: it leaves when it is ready and the question
        has arrived, one latency after it was asked.

    >>> import pisco
    >>> problem = pisco.problems.quadratic([[[1.0]], [[1.0]]], [[0.0], [2.0]])
    >>> clock = pisco.Clock(compute=[1, 10], latency_gossip=0.5)
    >>> net, rule = pisco.Network.path(2), pisco.algorithms.dsgd(local_lr=0.1)
    >>> pisco.run(rule, problem, net, rounds=3, clock=clock).history["seconds"]
    array([ 0. , 10.5, 20.5, 30.5])
    """

    compute: Any = 0.0
    latency_gossip: Any = 0.0
    bandwidth_gossip: Any = math.inf
    latency_server: Any = 0.0
    bandwidth_server: Any = math.inf
    asked: bool = False

    def __post_init__(self) -> None:
        if not isinstance(self.asked, bool):
            raise InputError(f"asked is {self.asked!r}, expected true or false")
        for name, given in self.quantities.items():
            object.__setattr__(self, name, Quantity.of(name, given))

    @property
    def quantities(self) -> dict[str, Any]:
        """The numbers by name."""
        return {name: value for name, value in vars(self).items() if name != "asked"}

    @classmethod
    def of(cls, given: Clock | str | Path | Mapping[str, Any]) -> Clock:
        """From a preset's name, a JSON or TOML file, or a table of fields; a `preset` or `file` in it gives the rest.

        >>> Clock.of({"preset": "campus", "compute": 0.5}).latency_gossip.median
        array(0.001)
        """
        if isinstance(given, Clock):
            return given
        if isinstance(given, str | Path):
            given = {"file" if Path(given).suffix else "preset": given}
        if not isinstance(given, Mapping):
            raise InputError(f"clock is {given!r}, expected a pisco.Clock, a preset's name, a file or a table")
        table, known = dict(given), [f.name for f in fields(cls)]
        for name in ("preset", "file"):
            if not isinstance(table.get(name, ""), str | Path):
                raise InputError(f"clock.{name} is {table[name]!r}, expected a text, as in {name} = {EXAMPLES[name]!r}")
        base = choose("clock", table.pop("preset"), presets()) if "preset" in table else {}
        table = base | (_read(Path(table.pop("file"))) if "file" in table else {}) | table
        for name in table.keys() - set(known):
            raise InputError(f"clock.{name} is not a setting; {suggest(name, [*known, 'preset', 'file'])}")
        return cls(**table)

    def facts(self) -> dict[str, Any]:
        """As numbers, lists and tables: what a file may hold."""
        tables = {name: vars(each) | {"median": each.median.tolist()} for name, each in self.quantities.items()}
        told = {name: table if table["sigma"] or table["jitter"] else table["median"] for name, table in tables.items()}
        return told | ({"asked": True} if self.asked else {})

    def check(self, agents: int) -> None:
        """Refuse lists that are not one number for each agent."""
        for name, each in self.quantities.items():
            if each.median.shape not in [(), (agents,), (agents, agents)][: 3 if name.endswith("gossip") else 2]:
                size = " by ".join(map(str, each.median.shape))
                raise InputError(f"{name} has {size} numbers, expected one, or one for each of the {agents} agents")


@cache
def presets() -> dict[str, dict[str, Any]]:
    """The clocks that have a name."""
    return toml.read(Path(__file__).with_name("presets.toml"))


def _read(path: Path) -> dict[str, Any]:
    if path.suffix != ".json":
        return toml.read(path)
    try:
        return dict(json.loads(path.read_text()))
    except (OSError, ValueError, TypeError) as error:
        raise InputError(f"cannot read the clock {path} ({error}); give a JSON or TOML file of its fields") from error
