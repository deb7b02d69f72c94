"""A suite as a TOML file: which tasks, networks, methods and probabilities, and how every cell is tuned and judged.

methods = "all"                       [tasks.a9a]                          [networks.ring-10]
server_probs = [0.0, 0.1, 1.0]        problem = "logistic"                 graph = "ring"
seeds = 20                            dataset = "a9a"                      agents = 10
tuning_seeds = 10                     target = { grad_norm_sq_mean = 0.05 }
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any, NamedTuple

from pisco.algorithms.registry import ALGORITHMS
from pisco.data.registry import DATASETS
from pisco.errors import InputError, check_number, suggest
from pisco.experiments.tune import GRID, TUNING_SEEDS
from pisco.registry import check_apart, is_reference, label, move
from pisco.settings import toml
from pisco.settings.options import moved

SUITES = Path(__file__).parent / "suites"
ALL = "all"


@dataclass(frozen=True)
class Judging:
    """How a cell is tuned and judged; a task may differ from its suite in some of it."""

    seeds: int = 20
    """Those that are reported are 0, 1, …; those tuned on are 100, 101, …"""
    tuning_seeds: int = len(TUNING_SEEDS)
    grid: Sequence[float] = GRID
    server_probs: Sequence[float] = (0.0, 0.03, 0.1, 0.3, 1.0)
    """For methods that are defined for any p."""
    gradient_steps: int = 4
    """Gradients of an agent in a round, for methods with local steps."""
    clock: str = "campus"

    def check(self) -> None:
        """Refuse what is no number of seeds, no step size, or no probability."""
        for name in ("seeds", "tuning_seeds", "gradient_steps"):
            check_number(name, getattr(self, name), low=1, high=1000, integer=True)
        for name, low, high in (("grid", 0.0, 1e6), ("server_probs", 0.0, 1.0)):
            values = getattr(self, name)
            if not isinstance(values, list | tuple) or not values or len(set(values)) < len(values):
                raise InputError(f"{name} is {values!r}, expected a list of different numbers")
            for value in values:
                check_number(f"a number of {name}", value, low=low, high=high, open_low=name == "grid")


@dataclass(frozen=True)
class Task:
    """What is trained: a problem, its data, how long, and the target that counts."""

    name: str
    problem: str
    target: tuple[str, float]
    rounds: int
    dataset: str | None = None
    dataset_options: Mapping[str, Any] = field(default_factory=dict)
    partition: str | None = None
    partition_options: Mapping[str, Any] = field(default_factory=dict)
    options: Mapping[str, Any] = field(default_factory=dict)
    """Of the problem."""
    samples: int | None = None
    """At most this many training samples are used, and half as many for testing."""
    pixels: int = 1
    """Of images, only every so many-th row and column."""
    batch_size: int | None = None
    eval_every: int = 1
    networks: Sequence[str] = ()
    """Those of the suite that it runs on; all unless named."""
    methods: Sequence[str] = ()
    judging: Judging = Judging()

    def facts(self) -> dict[str, Any]:
        """What its results depend on, as far as it is the task's."""
        return {f.name: getattr(self, f.name) for f in fields(self) if f.name not in ("judging", "networks", "methods")}


class Place(NamedTuple):
    """One cell: a task, a network and a method."""

    task: Task
    network: str
    table: Mapping[str, Any]
    method: str
    options: Mapping[str, Any]

    @property
    def name(self) -> str:
        """As it is named on the command line: task/network/method."""
        return f"{self.task.name}/{self.network}/{label(self.method)}"

    @property
    def file(self) -> str:
        """Where it is kept."""
        return self.name.replace("/", "--").replace(":", "-") + ".json"

    def moved(self, where: Callable[[Path], Path]) -> tuple[dict[str, Any], dict[str, Any]]:
        """What is known of its task and its network, with the files that they name put elsewhere."""
        both = moved({"problem": self.task.facts(), "network": dict(self.table)}, where)
        named = both["problem"]["dataset"]
        if named is not None and Path(named).is_absolute() and not is_reference(named):
            both["problem"]["dataset"] = str(where(Path(named)))
        return both["problem"], both["network"]


@dataclass(frozen=True)
class Suite:
    """Tasks × networks × methods."""

    name: str
    tasks: Mapping[str, Task]
    networks: Mapping[str, Mapping[str, Any]]
    methods: Sequence[str]
    options: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    """Hyperparameters by method, beside the step size; the method's own where nothing is said."""

    def with_methods(self, methods: Sequence[str]) -> Suite:
        """The same for other methods, such as a file of your own: "my.py:method"."""
        tasks = {name: replace(task, methods=()) for name, task in self.tasks.items()}
        return replace(self, tasks=tasks, methods=_known(methods))

    def places(self, only: str | None = None, part: tuple[int, int] = (1, 1)) -> list[Place]:
        """Every cell, or those that match some patterns, in the order of these; of them the k-th of m parts.

        Networks of one task and method stay together, because those of one size share a compiled program.
        """
        found = [
            Place(task, network, self.networks[network], method, self.options.get(label(method), {}))
            for task in self.tasks.values()
            for method in task.methods or self.methods
            for network in task.networks or self.networks
        ]
        if only is not None:
            patterns = [pattern.strip() for pattern in only.split(",")]
            named = {each.name: each for each in found}
            wanted = dict.fromkeys(name for pattern in patterns for name in named if fnmatchcase(name, pattern))
            found = [named[name] for name in wanted]
            if not found:
                raise InputError(f"no cell of {self.name} is named {only!r}; name them as in 'a9a/ring-10/pisco*'")
        groups = dict.fromkeys((each.task.name, each.method) for each in found)
        mine = {key for at, key in enumerate(groups) if at % part[1] == part[0] - 1}
        return [each for each in found if (each.task.name, each.method) in mine]


def parse_part(text: str) -> tuple[int, int]:
    """A part as it is written on a command line.

    >>> parse_part("2/4")
    (2, 4)
    """
    part, slash, parts = text.partition("/")
    if not (slash and part.isdigit() and parts.isdigit() and 1 <= int(part) <= int(parts)):
        raise InputError(f"the part is {text!r}, expected which of how many, as in 1/4")
    return int(part), int(parts)


def suites() -> dict[str, Path]:
    """The packaged suites by name."""
    return {path.stem: path for path in sorted(SUITES.glob("*.toml"))}


def load(path_or_name: str | Path) -> Suite:
    """Read a suite: a packaged one by name, or a TOML file.

    >>> load("quick").methods[:2]
    ('pisco', 'pisco-one-exchange')
    """
    path = suites().get(str(path_or_name), Path(path_or_name))
    if not path.exists():
        raise InputError(f"there is no suite {str(path_or_name)!r}; give a TOML file, or one of {', '.join(suites())}")
    tables = toml.read(path)
    allowed = [f.name for f in fields(Judging)]
    own = [f.name for f in fields(Task) if f.name not in ("name", "judging")]
    _only_known("the suite", tables, [*allowed, "name", "methods", "tasks", "networks", "options"])
    for name in ("tasks", "networks"):
        if not isinstance(tables.get(name), dict) or not all(isinstance(each, dict) for each in tables[name].values()):
            raise InputError(f"{path} lacks the tables [{name}.…]; add one for each")
    methods = tables.get("methods", ALL)
    methods = tuple(ALGORITHMS) if methods == ALL else _known(methods, path.parent)
    judging = Judging(**{name: tables[name] for name in allowed if name in tables})
    judging.check()
    tasks, networks = {}, {}
    for name, table in tables["networks"].items():
        networks |= {
            name: moved({"network": table}, lambda file: (path.parent / file.expanduser()).resolve())["network"]
        }
    for name, table in tables["tasks"].items():
        _only_known(f"tasks.{name}", table, [*own, *allowed])
        tasks[name] = _task(name, table, judging, networks, path.parent)
    options = tables.get("options", {})
    for name in options:
        _ = ALGORITHMS[name]
    return Suite(str(tables.get("name", path.stem)), tasks, networks, methods, options)


def _task(name: str, table: Mapping[str, Any], judging: Judging, networks: Mapping[str, Any], home: Path) -> Task:
    for needed in ("problem", "target", "rounds"):
        if needed not in table:
            raise InputError(f"tasks.{name} lacks {needed}; add it, as in target = {{ test_accuracy = 0.8 }}")
    target = table["target"]
    if not isinstance(target, Mapping) or len(target) != 1:
        raise InputError(
            f"tasks.{name}.target is {target!r}, expected one column and its bound, as in {{ loss = 0.1 }}"
        )
    own = {key: value for key, value in table.items() if key in {f.name for f in fields(Judging)}}
    how = replace(judging, **own)
    how.check()
    given: dict[str, Any] = {key: value for key, value in table.items() if key not in own}
    given["target"] = next(iter(target.items()))
    for network in given.get("networks", ()):
        if network not in networks:
            raise InputError(f"tasks.{name}.networks names {network!r}; {suggest(network, networks)}")
    given["methods"] = _known(given.get("methods", ()), home)
    given = moved({"problem": given}, lambda file: (home / file.expanduser()).resolve())["problem"]
    named = given.get("dataset")
    if isinstance(named, str) and named not in DATASETS and (home / named).exists():
        given["dataset"] = str((home / named).resolve())
    made = Task(name=name, judging=how, **given)
    for key in ("rounds", "eval_every", "pixels"):
        check_number(f"tasks.{name}.{key}", getattr(made, key), low=1, integer=True)
    return made


def _known(methods: Any, home: Path = Path()) -> tuple[str, ...]:
    """Methods that there are; files beside the suite are found from anywhere."""
    if not isinstance(methods, list | tuple) or len(set(methods)) < len(methods):
        raise InputError(f'methods is {methods!r}, expected "all" or a list of different names')
    check_apart("method", methods)
    for method in methods:
        row = ALGORITHMS[move(method, lambda path: home / path.expanduser()) if is_reference(method) else method]
        if "local_lr" not in row.hyperparameters:
            raise InputError(f"algorithm {label(method)!r} has no `local_lr` to tune; call its step size that")
    return tuple(
        move(method, lambda path: (home / path.expanduser()).resolve()) if is_reference(method) else method
        for method in methods
    )


def _only_known(what: str, table: Mapping[str, Any], known: Sequence[str]) -> None:
    for key in table:
        if key not in known:
            raise InputError(f"{what} has no setting {key!r}; {suggest(key, known)}")
