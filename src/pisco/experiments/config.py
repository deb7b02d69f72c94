"""An experiment as a TOML file: four tables, checked to the last key before anything is computed.

    [algorithm]                 [problem]                [network]            [run]
    name = "pisco"              name = "logistic"        graph = "ring"       rounds = 1000
    local_lr = 0.05             dataset = "a9a"          agents = 10          batch_size = 256
    local_steps = 1             partition = "sorted"     server_prob = 0.1    seeds = 3

The other keys (hyperparameters, a graph's options) are the keywords of the thing that is named. A fifth table, [clock],
may say how long things take (`pisco.Clock`), and a sixth, [privacy], how gradients are hidden (`pisco.Privacy`).
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any, Literal

from annotated_types import Le
from pydantic import BeforeValidator, Field, model_validator

from pisco import registry
from pisco.clock import Clock
from pisco.data.partition import PARTITIONS
from pisco.data.registry import load as load_dataset
from pisco.engines.driver import Progress
from pisco.engines.job import Engine
from pisco.engines.run import ENGINES, SEEDS_UP_TO, run
from pisco.engines.sizes import COUNTS_UP_TO, usual_eval_every
from pisco.errors import InputError, choose
from pisco.metrics import NAMED, TEST, each_agent
from pisco.networks.network import Network
from pisco.privacy import Privacy
from pisco.problems.problem import Problem
from pisco.problems.registry import PROBLEMS
from pisco.results import Result
from pisco.settings import toml
from pisco.settings.tables import AlgorithmTable, BatchSize, Choices, Count, NetworkTable, Seed, Table, checked
from pisco.types import Algorithm


def _seeds(value: Any) -> Any:
    numbers = value if isinstance(value, list) else [value]
    whole = all(isinstance(number, int) and not isinstance(number, bool) for number in numbers)
    if isinstance(value, int) and value > SEEDS_UP_TO:
        raise ValueError(f"expected at most {SEEDS_UP_TO:,} seeds")
    if not numbers or not whole or min(numbers) < 0 or value == 0 or len(set(numbers)) < len(numbers):
        raise ValueError("expected how many seeds, at least 1, or a list of different seeds, as in [0, 1, 2]")
    return value


class ProblemTable(Choices):
    """`[problem]`: the loss, the data (a name or a file of your own) and who holds what."""

    table = "problem"
    name: str = "logistic"
    dataset: str | None = None
    dataset_options: dict[str, Any] = Field(default_factory=dict)
    partition: str = "sorted"
    partition_options: dict[str, Any] = Field(default_factory=dict)
    weights: list[float] | str | None = None
    parts: dict[str, str | list[str]] | None = None
    metrics: list[str] | None = None
    """More to measure: "my_things.py:lag", or entry points of other packages."""
    each_agent: bool | None = None
    """Whether the test metrics of every agent are measured as well: the worst one's, and their spread."""

    @model_validator(mode="after")
    def _known(self) -> ProblemTable:
        known = registry.options(PARTITIONS[self.partition])
        registry.fit(f"partition {self.partition!r}", known, {"labels": (), "agents": 1} | self.partition_options)
        if self.dataset is None and "dataset" in registry.options(PROBLEMS[self.name]):
            raise InputError('problem.dataset is missing; name a dataset or a file, as in problem.dataset = "a9a"')
        for name in self.metrics or ():
            _ = NAMED[name]
        return self

    def build(self, agents: int, dtype: str) -> Problem:
        """Load the data and hand it out; a problem is given what it takes."""
        factory = PROBLEMS[self.name]
        takes, data = registry.options(factory), {"agents": agents, "dtype": dtype}
        data |= {"partition": self.partition, "partition_options": self.partition_options}
        if self.dataset is not None and "dataset" in takes:
            data["dataset"] = load_dataset(self.dataset, **self.dataset_options)
        data = {name: value for name, value in data.items() if name in takes}
        made = factory(**data, **self.taken_by("name"))
        made = made if self.parts is None else made.parted(self.parts)
        made = made.with_metrics(*(NAMED[name] for name in self.metrics or ()))
        if self.each_agent:
            tested = [metric for metric in made.metrics if metric.of == TEST]
            if not tested:
                raise InputError("problem.each_agent needs test data, and there is none; leave it out")
            made = made.with_metrics(*(own for metric in tested for own in each_agent(metric)))
        return made if self.weights is None else made.weighted(self.weights)


class RunTable(Table):
    """`[run]`: how long, on which batches, how often measured."""

    rounds: Annotated[Count, Le(COUNTS_UP_TO)]
    batch_size: BatchSize = None
    seed: Seed = 0
    seeds: Annotated[int | list[int] | None, BeforeValidator(_seeds)] = None
    eval_every: Count | None = None
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


class ClockTable(Table):
    """`[clock]`: a preset or a file of how long things take, and what is given beside it (`pisco.Clock`)."""

    preset: str | None = None
    file: str | None = None
    compute: Any = None
    latency_gossip: Any = None
    bandwidth_gossip: Any = None
    latency_server: Any = None
    bandwidth_server: Any = None
    asked: bool | None = None

    def build(self) -> Clock:
        """The clock."""
        return Clock.of(self.model_dump(exclude_none=True))

    @model_validator(mode="after")
    def _known(self) -> ClockTable:
        self.build()
        return self


class PrivacyTable(Table):
    """`[privacy]`: how gradients are clipped and noised (`pisco.Privacy`)."""

    clip: Any
    noise: Any = None
    epsilon: Any = None
    delta: Any = None
    smooth: bool | None = None

    def build(self) -> Privacy:
        """The settings, checked."""
        return Privacy(**self.model_dump(exclude_none=True))

    @model_validator(mode="after")
    def _known(self) -> PrivacyTable:
        self.build()
        return self


class Config(Table):
    """A whole experiment."""

    name: str = ""
    description: str = ""
    algorithm: AlgorithmTable
    problem: ProblemTable
    network: NetworkTable
    run: RunTable
    clock: ClockTable | None = None
    privacy: PrivacyTable | None = None

    def build_problem(self) -> Problem:
        """What is trained."""
        if self.run.dtype == "float64":
            import jax

            jax.config.update("jax_enable_x64", True)  # before the first array is made
        problem = self.problem.build(self.network.agents, self.run.dtype)
        return problem if self.privacy is None else problem.private(self.privacy.build())

    def problem_and_network(self) -> tuple[Problem, Network]:
        """What is trained, and over which network; the problem knows at once of more agents than samples."""
        return self.build_problem(), self.network.build()

    def build(self) -> tuple[Algorithm, Problem, Network]:
        """The three nouns, ready for `pisco.run`."""
        algorithm = self.algorithm.build()
        return algorithm, *self.problem_and_network()

    def resolved(self) -> Config:
        """The same experiment with a number in place of `local_lr = "auto"`."""
        if not self.algorithm.is_auto:
            return self
        if self.privacy is not None:
            raise InputError(
                'trial runs for local_lr = "auto" spend privacy that is not counted; give local_lr a number'
            )
        from pisco.planning.automatic import auto_step

        problem, network = self.problem_and_network()
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
        progress: bool | Callable[[Progress], None] | None = None,
        engine: str | Engine | None = None,
        warn: Callable[[str], None] | None = None,
    ) -> Result:
        """Run it; by `engine` rather than the configuration's, if one is given.

        `warn` is called first with a sentence when the step size may be unstable.
        """
        if self.algorithm.is_auto:
            return self.resolved().execute(checkpoint=checkpoint, resume=resume, progress=progress, engine=engine)
        algorithm, problem, network = self.build()
        table, seeds = self.run, self.run.seed_or_seeds()
        options: dict[str, Any] = {"rounds": table.rounds, "batch_size": table.batch_size}
        usual = table.eval_every or usual_eval_every(algorithm, problem, network, table.batch_size)
        options |= {"eval_every": usual, "chunk_rounds": table.chunk_rounds}
        if warn is not None and table.engine == "scan" and problem.privacy is None:
            from pisco.planning.steps import check_step

            first = seeds if isinstance(seeds, int) else seeds[0]
            doubt = check_step(algorithm, problem, network, seed=first, **options)
            if doubt is not None:
                warn(str(doubt))
        result = run(
            algorithm,
            problem,
            network,
            seed=seeds,
            engine=engine or table.engine,
            checkpoint=checkpoint,
            resume=resume,
            progress=progress,
            clock=None if self.clock is None else self.clock.build(),
            **options,
        )
        result.label = self.name
        return result

    def to_dict(self) -> dict[str, Any]:
        """Plain tables that `from_dict` and TOML read back."""
        tables = self.model_dump(exclude_none=True)
        tables["run"].setdefault("batch_size", "full")
        return tables

    def flat(self) -> dict[str, Any]:
        """Every setting by its dotted name."""
        tables = self.to_dict()
        inner = {f"{t}.{key}": v for t, keys in tables.items() if isinstance(keys, dict) for key, v in keys.items()}
        return {name: value for name, value in tables.items() if not isinstance(value, dict)} | inner

    def to_toml(self) -> str:
        """The text of the file that says the same."""
        return toml.write(self.to_dict())

    @classmethod
    def from_dict(cls, tables: dict[str, Any], source: str = "the configuration") -> Config:
        """Check the tables; the first mistake is one `InputError`."""
        return checked(cls, tables, source)
