"""An experiment as a TOML file: four tables, checked to the last key before anything is computed.

    [algorithm]                 [problem]                [network]            [run]
    name = "pisco"              name = "logistic"        graph = "ring"       rounds = 1000
    local_lr = 0.05             dataset = "a9a"          agents = 10          batch_size = 256
    local_steps = 1             partition = "sorted"     server_prob = 0.1    seeds = 3

What goes beside a name (hyperparameters, a graph's options) are the keywords of the thing named.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal, TypeVar

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    ValidationError,
    model_validator,
)

from pisco.algorithms.registry import build as build_algorithm
from pisco.data.partition import PARTITIONS
from pisco.data.registry import load as load_dataset
from pisco.engines.driver import Progress
from pisco.engines.run import ENGINES, run
from pisco.errors import InputError, choose, suggest
from pisco.experiments import options, toml
from pisco.networks.graphs import GRAPHS
from pisco.networks.network import Network
from pisco.networks.sampling import sample_groups
from pisco.networks.schedules import SCHEDULES, Schedule
from pisco.networks.varying import VARYING
from pisco.networks.weights import WEIGHTS
from pisco.problems.problem import Problem
from pisco.problems.registry import PROBLEMS
from pisco.results import Result
from pisco.types import Algorithm


def _full_batch(value: Any) -> Any:
    return None if value == "full" or (value == 0 and not isinstance(value, bool)) else value


def _at_least_one(number: int) -> int:
    if number < 1:
        raise ValueError("expected a whole number at least 1")
    return number


def _seed(number: int) -> int:
    if not 0 <= number < 2**32:
        raise ValueError(f"expected a whole number from 0 to {2**32 - 1}")
    return number


def _seeds(value: Any) -> Any:
    numbers = value if isinstance(value, list) else [value]
    whole = all(isinstance(number, int) and not isinstance(number, bool) for number in numbers)
    if not numbers or not whole or min(numbers) < 0 or value == 0:
        raise ValueError("expected how many seeds, at least 1, or a list of seeds, as in [0, 1, 2]")
    return value


def _not_negative(number: int) -> int:
    if number < 0:
        raise ValueError("expected a whole number at least 0")
    return number


Natural = Annotated[int, AfterValidator(_not_negative)]
Count = Annotated[int, AfterValidator(_at_least_one)]
Seed = Annotated[int, AfterValidator(_seed)]


class _Table(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class _Choices(_Table):
    """A table whose further keys are the keywords of the things it names."""

    model_config = ConfigDict(extra="allow", frozen=True)
    table: ClassVar[str]

    @model_validator(mode="after")
    def _fit(self) -> _Choices:
        fixed = {name: getattr(self, name) for name in type(self).model_fields}
        fitted = options.fit(self.table, fixed, self.__pydantic_extra__ or {})
        (self.__pydantic_extra__ or {}).update(fitted)
        return self

    def taken_by(self, key: str) -> dict[str, Any]:
        """The settings that the choice made by `key` takes."""
        choice = next(choice for choice in options.choices(self.table) if choice.key == key)
        names = choice.rows[getattr(self, key)]
        return {n: v for n, v in (self.__pydantic_extra__ or {}).items() if n in names}


class AlgorithmTable(_Choices):
    """`[algorithm]`: a published method and its hyperparameters."""

    table = "algorithm"
    name: str = "pisco"

    @property
    def is_auto(self) -> bool:
        """Whether the step size is still to be picked."""
        return self.taken_by("name").get("local_lr") == options.AUTO

    def build(self) -> Algorithm:
        """The update rule."""
        if self.is_auto:
            raise InputError('algorithm.local_lr is "auto"; `Config.resolved()` picks a number')
        return build_algorithm(self.name, **self.taken_by("name"))

    def with_step(self, local_lr: float) -> AlgorithmTable:
        """The same with another η_l."""
        return self.model_copy(update={"local_lr": float(local_lr)})

    @model_validator(mode="after")
    def _ranges(self) -> AlgorithmTable:
        (self.with_step(1.0) if self.is_auto else self).build()
        return self


class ProblemTable(_Choices):
    """`[problem]`: the loss, the data (a name or a file of your own) and who holds what."""

    table = "problem"
    name: str = "logistic"
    dataset: str
    partition: str = "sorted"
    partition_options: dict[str, Any] = Field(default_factory=dict)

    @model_validator(mode="after")
    def _known(self) -> ProblemTable:
        choose("partition", self.partition, PARTITIONS)
        return self

    def build(self, agents: int, dtype: str) -> Problem:
        """Load the data and hand it out."""
        return choose("problem", self.name, PROBLEMS)(
            load_dataset(self.dataset),
            agents=agents,
            partition=self.partition,
            partition_options=self.partition_options,
            dtype=dtype,
            **self.taken_by("name"),
        )


class NetworkTable(_Choices):
    """`[network]`: the graph, its weights, and when the server is reached."""

    table = "network"
    graph: str = "ring"
    agents: Count
    weights: str = "metropolis"
    server: str = "never"
    varying: str = "none"
    reporters: Count | None = None
    gossip_steps: Natural = 1
    gossip_before_server: bool = False

    @model_validator(mode="before")
    @classmethod
    def _infer_server(cls, given: Any) -> Any:
        """A value that one schedule alone takes names that schedule."""
        if not isinstance(given, dict) or "server" in given:
            return given
        (choice,) = (choice for choice in options.choices("network") if choice.key == "server")
        for name, parameters in choice.rows.items():
            if parameters and set(parameters) <= set(given):
                return given | {"server": name}
        return given

    @model_validator(mode="after")
    def _ranges(self) -> NetworkTable:
        self.schedule()
        return self

    def schedule(self) -> Schedule:
        """When the server is reached."""
        return choose("server", self.server, SCHEDULES)(**self.taken_by("server"))

    def build(self) -> Network:
        """Graph, weights and schedule together."""
        graph = choose("graph", self.graph, GRAPHS)(agents=self.agents, **self.taken_by("graph"))
        rule, chosen = choose("weights", self.weights, WEIGHTS), self.taken_by("weights")

        def weigh(graph: Any) -> Any:
            return rule(graph, **chosen)

        weigh.__name__ = f"{self.weights}({', '.join(chosen)})"
        return Network(
            graph,
            weights=weigh if chosen else self.weights,
            server=self.schedule(),
            varying=None if self.varying == "none" else VARYING[self.varying](**self.taken_by("varying")),
            sampling=None if self.reporters is None else sample_groups(self.reporters, groups=self.groups()),
            gossip_steps=self.gossip_steps,
            gossip_before_server=self.gossip_before_server,
        )

    def groups(self) -> list[int]:
        """From whom reporters are sampled: every cluster where there are clusters, else everybody."""
        clusters = int(self.taken_by("graph").get("clusters", 1))
        return [agent * clusters // self.agents for agent in range(self.agents)]


class RunTable(_Table):
    """`[run]`: how long, on which batches, how often measured."""

    rounds: Count
    batch_size: Annotated[Count | None, BeforeValidator(_full_batch)] = None
    seed: Seed = 0
    seeds: Annotated[int | list[int] | None, BeforeValidator(_seeds)] = None
    eval_every: Count = 1
    chunk_rounds: Count = 100
    engine: str = "scan"
    dtype: Literal["float32", "float64"] = "float32"

    @model_validator(mode="after")
    def _known(self) -> RunTable:
        choose("engine", self.engine, ENGINES)
        return self

    def seed_or_seeds(self) -> int | list[int]:
        """One seed, or the list of several."""
        if isinstance(self.seeds, list):
            return self.seeds
        count = self.seeds or 1
        return self.seed if count == 1 else list(range(self.seed, self.seed + count))


T = TypeVar("T", bound=BaseModel)


class Config(_Table):
    """A whole experiment."""

    name: str = ""
    description: str = ""
    algorithm: AlgorithmTable
    problem: ProblemTable
    network: NetworkTable
    run: RunTable

    def world(self) -> tuple[Problem, Network]:
        """What is trained, and over which network."""
        if self.run.dtype == "float64":
            import jax

            jax.config.update("jax_enable_x64", True)  # before the first array is made
        network = self.network.build()
        return self.problem.build(self.network.agents, self.run.dtype), network

    def build(self) -> tuple[Algorithm, Problem, Network]:
        """The three nouns, ready for `pisco.run`."""
        algorithm = self.algorithm.build()
        return algorithm, *self.world()

    def resolved(self) -> Config:
        """The same experiment with a number in place of `local_lr = "auto"`."""
        if not self.algorithm.is_auto:
            return self
        from pisco.planning.steps import auto_step

        problem, network = self.world()
        step = auto_step(
            lambda lr: self.algorithm.with_step(lr).build(),
            problem,
            network,
            rounds=self.run.rounds,
            batch_size=self.run.batch_size,
            local_steps=int(self.algorithm.taken_by("name").get("local_steps", 1)),
        )
        return self.model_copy(update={"algorithm": self.algorithm.with_step(step)})

    def execute(
        self,
        *,
        checkpoint: str | Path | None = None,
        resume: bool = False,
        progress: Callable[[Progress], None] | None = None,
        warn: Callable[[str], None] | None = None,
    ) -> Result:
        """Run it; `warn` is called first with a sentence when the step size is not to be trusted."""
        if self.algorithm.is_auto:
            return self.resolved().execute(checkpoint=checkpoint, resume=resume, progress=progress)
        algorithm, problem, network = self.build()
        seeds = self.run.seed_or_seeds()
        if warn is not None and self.run.engine == "scan":
            from pisco.planning.steps import check_step

            doubt = check_step(
                algorithm,
                problem,
                network,
                rounds=self.run.rounds,
                batch_size=self.run.batch_size,
                eval_every=self.run.eval_every,
                chunk_rounds=self.run.chunk_rounds,
                seed=seeds if isinstance(seeds, int) else seeds[0],
            )
            if doubt is not None:
                warn(str(doubt))
        result = run(
            algorithm,
            problem,
            network,
            rounds=self.run.rounds,
            batch_size=self.run.batch_size,
            seed=seeds,
            eval_every=self.run.eval_every,
            engine=self.run.engine,
            chunk_rounds=self.run.chunk_rounds,
            checkpoint=checkpoint,
            resume=resume,
            progress=progress,
        )
        result.label = self.name
        return result

    def to_dict(self) -> dict[str, Any]:
        """Plain tables that `from_dict` and TOML read back."""
        tables = self.model_dump(exclude_none=True)
        tables["run"].setdefault("batch_size", "full")
        return tables

    def to_toml(self) -> str:
        """The text of the file that says the same."""
        return toml.write(self.to_dict())

    @classmethod
    def from_dict(cls, tables: dict[str, Any], source: str = "the configuration") -> Config:
        """Check the tables; the first mistake is one `InputError`."""
        return checked(cls, tables, source)


def checked(model: type[T], tables: dict[str, Any], source: str) -> T:
    """The tables as a model; the first mistake is one `InputError`."""
    try:
        return model.model_validate(tables)
    except ValidationError as error:
        raise InputError(_sentence(error, source)) from error


def _sentence(error: ValidationError, source: str) -> str:
    """The first mistake in one sentence: where, what, and what is expected."""
    first = error.errors(include_url=False)[0]
    where, given, kind = [str(part) for part in first["loc"]], first["input"], first["type"]
    place = ".".join(where)
    context = first.get("ctx", {})
    cause = context.get("error")
    if isinstance(cause, InputError):
        return str(cause)
    if kind == "extra_forbidden":
        model = Config if len(where) == 1 else Config.model_fields[where[0]].annotation
        assert isinstance(model, type) and issubclass(model, BaseModel)
        what = "a table" if isinstance(given, dict) else "a setting"
        return f"{place} is not {what}; {suggest(where[-1], model.model_fields)}"
    if kind == "missing":
        what = f"the table [{place}]" if len(where) == 1 else place
        return f"{source} lacks {what}; add it, `pisco list presets` names examples"
    if kind in ("model_type", "dict_type"):
        return f"{place} is {given!r}, expected a table [{place}] with keys of its own"
    if kind == "literal_error":
        return f"{place} is {given!r}, expected {context['expected']}"
    expected = {
        "int_parsing": "expected a whole number",
        "int_type": "expected a whole number",
        "int_from_float": "expected a whole number",
        "string_type": "expected a text in quotes",
    }
    return f"{place} is {given!r}, {cause or expected.get(kind, first['msg'])}"
