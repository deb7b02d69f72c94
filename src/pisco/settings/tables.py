"""Tables of settings: numbers in range, registries' names with their own keywords, and mistakes in one sentence."""

from __future__ import annotations

from typing import Annotated, Any, ClassVar, Literal, TypeVar, get_args

from annotated_types import Ge
from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, ValidationError, model_validator

from pisco.algorithms.registry import build as build_algorithm
from pisco.errors import InputError, suggest
from pisco.networks import graphs
from pisco.networks.guards import GUARDS, Guard
from pisco.networks.network import Network
from pisco.networks.presence import PRESENCE
from pisco.networks.sampling import sample_groups
from pisco.networks.schedules import SCHEDULES, Schedule, as_schedule
from pisco.networks.varying import VARYING
from pisco.networks.weights import WEIGHTS
from pisco.registry import example, label
from pisco.settings import options
from pisco.types import Algorithm


def _no_flag(value: Any) -> Any:
    if isinstance(value, bool):
        raise ValueError("expected a whole number")
    return value


def _seed(number: int) -> int:
    if not 0 <= number < 2**32:
        raise ValueError(f"expected a whole number from 0 to {2**32 - 1}")
    return number


def _full_batch(value: Any) -> Any:
    if isinstance(value, str) and value != "full" and not value.isdigit():
        raise ValueError('expected a whole number or "full"')
    return None if value == "full" or (value == 0 and not isinstance(value, bool)) else value


Whole = Annotated[int, BeforeValidator(_no_flag)]
# Not pydantic's `Field(ge=1)`: in older versions the default of one table's field became that of another's.
Natural = Annotated[Whole, Ge(0)]
Count = Annotated[Whole, Ge(1)]
Seed = Annotated[Whole, AfterValidator(_seed)]
BatchSize = Annotated[Count | None, BeforeValidator(_full_batch)]


class Table(BaseModel):
    """A table that refuses keys it does not know."""

    model_config = ConfigDict(extra="forbid", frozen=True)


class Choices(Table):
    """A table whose further keys are the keywords of the things it names."""

    model_config = ConfigDict(extra="allow", frozen=True)
    table: ClassVar[str]

    @model_validator(mode="after")
    def _fit(self) -> Choices:
        fixed = {name: getattr(self, name) for name in type(self).model_fields}
        fitted = options.fit(self.table, fixed, self.__pydantic_extra__ or {})
        # A value that reads its own forms stays as it was written.
        plain = {name: value for name, value in fitted.items() if not hasattr(value, "read")}
        (self.__pydantic_extra__ or {}).update(plain)
        return self

    def taken_by(self, key: str) -> dict[str, Any]:
        """The settings that the choice made by `key` takes."""
        choice = next(choice for choice in options.choices(self.table) if choice.key == key)
        names = choice.options(getattr(self, key))
        return {n: v for n, v in (self.__pydantic_extra__ or {}).items() if n in names}


class AlgorithmTable(Choices):
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
            raise InputError(
                'algorithm.local_lr is "auto", which an experiment picks before it runs; give a number here'
            )
        return build_algorithm(self.name, **self.taken_by("name"))

    def with_step(self, local_lr: float) -> AlgorithmTable:
        """The same with another η_l."""
        (choice,) = options.choices("algorithm")
        if "local_lr" not in choice.options(self.name):
            raise InputError(f"algorithm {self.name!r} has no `local_lr` to set; call its step size that")
        return self.model_copy(update={"local_lr": float(local_lr)})

    @model_validator(mode="after")
    def _ranges(self) -> AlgorithmTable:
        (self.with_step(1.0) if self.is_auto else self).build()
        return self


class NetworkTable(Choices):
    """`[network]`: the graph, its weights, and when the server is reached."""

    table = "network"
    graph: str = "ring"
    agents: Count
    weights: str = "metropolis"
    server: str = "never"
    varying: str = "none"
    presence: str = "everybody"
    reporters: Count | None = None
    receivers: Literal["all", "sampled"] = "all"
    gossip_steps: Natural = 1
    gossip_before_server: bool = False
    guard: str = "none"
    server_sum: Literal["masked"] | None = None

    @model_validator(mode="before")
    @classmethod
    def _infer(cls, given: Any) -> Any:
        """A value that one schedule alone takes names that schedule; a file of links or weights has its agents."""
        if not isinstance(given, dict):
            return given
        if "server" not in given:
            (choice,) = (choice for choice in options.choices("network") if choice.key == "server")
            for name in choice.registry.rows:
                if choice.options(name) and set(choice.options(name)) <= set(given):
                    given = given | {"server": name}
                    break
        weights = str(given.get("weights"))
        if "graph" not in given and WEIGHTS.is_data(weights):
            given = {"graph": weights} | given
        if "agents" not in given and graphs.GRAPHS.is_data(given.get("graph")):
            read = WEIGHTS[weights](None).shape[0] if given["graph"] == weights else None
            given = given | {"agents": read or graphs.by_name(given["graph"]).num_agents}
        return given

    @model_validator(mode="after")
    def _ranges(self) -> NetworkTable:
        self.schedule()
        self.build_guard()
        return self

    def schedule(self) -> Schedule:
        """When the server is reached."""
        made: Any = SCHEDULES[self.server](**self.taken_by("server"))
        if getattr(made, "__name__", "") == "<lambda>":  # results name what they ran
            made.__name__ = label(self.server)
        return as_schedule(made)

    def build_guard(self) -> Guard | None:
        """What is done with messages that lie too far away."""
        return GUARDS[self.guard](**self.taken_by("guard"))

    def build(self, weights: Any = None, presence: Any = None) -> Network:
        """Graph, weights and schedule together; on a matrix already made, if one is given, and so for presence."""
        given = (None, weights) if weights is not None else self._links()
        made = Network(
            given[0],
            weights=given[1],
            server=self.schedule(),
            varying=VARYING[self.varying](**self.taken_by("varying")),
            presence=PRESENCE[self.presence](**self.taken_by("presence")) if presence is None else presence,
            sampling=None if self.reporters is None else sample_groups(self.reporters, groups=self.groups()),
            receivers=self.receivers,
            gossip_steps=self.gossip_steps,
            gossip_before_server=self.gossip_before_server,
            guard=self.build_guard(),
            server_sum=self.server_sum,
        )
        if made.num_agents != self.agents:
            raise InputError(
                f"network.agents is {self.agents}, but {label(self.graph)} has {made.num_agents}; make both the same"
            )
        return made

    def _links(self) -> tuple[Any, Any]:
        """The graph, and its rule of weights by name or as a function."""
        rule, chosen = WEIGHTS[self.weights], self.taken_by("weights")
        if self.graph == self.weights:  # a file of weights has the links in it
            return None, rule(None)
        graph = graphs.by_name(self.graph, agents=self.agents, **self.taken_by("graph"))

        def weigh(graph: Any) -> Any:
            return rule(graph, **chosen)

        weigh.__name__ = f"{label(self.weights)}({', '.join(chosen)})"
        return graph, weigh if chosen else self.weights

    def groups(self) -> list[int]:
        """From whom reporters are sampled: every cluster where there are clusters, else everybody."""
        clusters = int(self.taken_by("graph").get("clusters", 1))
        return [agent * clusters // self.agents for agent in range(self.agents)]


T = TypeVar("T", bound=BaseModel)


def checked(
    model: type[T], tables: dict[str, Any], source: str, hint: str = "`pisco list presets` names examples"
) -> T:
    """The tables as a model; the first mistake is one `InputError`."""
    try:
        return model.model_validate(tables)
    except ValidationError as error:
        raise InputError(_sentence(error, source, model, hint)) from error


def _sentence(error: ValidationError, source: str, model: type[BaseModel], hint: str) -> str:
    """The first mistake in one sentence: where, what, and what is expected."""
    first = error.errors(include_url=False)[0]
    # Where several kinds are allowed, the place names the kind that was tried too.
    where = [str(part) for part in first["loc"] if "[" not in str(part) and part not in ("str", "int", "float", "bool")]
    given, kind = first["input"], first["type"]
    place = ".".join(where)
    context = first.get("ctx", {})
    cause = context.get("error")
    if isinstance(cause, InputError):
        return str(cause)
    if kind == "extra_forbidden":
        what = "a table" if isinstance(given, dict) else "a setting"
        inside = [] if where[1:] or what == "a table" else _inside(model, place)
        near = f"did you mean {' or '.join(map(repr, inside))}?"
        return f"{place} is not {what}; {near if inside else suggest(where[-1], _fields(model, where[:-1]))}"
    if kind == "missing":
        annotation: Any = _fields(model, where[:-1])[where[-1]].annotation
        table = _is_table(annotation)
        hint = f"as in {place} = {example(annotation)}" if where[1:] and not table else hint
        return f"{source} lacks {f'the table [{place}]' if table else place}; add it, {hint}"
    if kind in ("model_type", "dict_type"):
        return f"{place} is {given!r}, expected a table [{place}] with keys of its own"
    if kind == "literal_error":
        return f"{place} is {given!r}, expected {context['expected']}"
    expected = {
        "int_parsing": "expected a whole number",
        "int_type": "expected a whole number",
        "int_from_float": "expected a whole number",
        "finite_number": "expected a finite number",
        "float_parsing": "expected a number",
        "float_type": "expected a number",
        "string_type": "expected a text in quotes",
        "list_type": "expected a list in brackets",
        "greater_than_equal": f"expected a whole number at least {context.get('ge')}",
        "less_than_equal": f"expected at most {context.get('le')}",
    }
    return f"{place} is {given!r}, {cause or expected.get(kind, first['msg'])}"


def _fields(model: Any, where: list[str]) -> dict[str, Any]:
    """The fields of the table at a place; the positions in a list are skipped."""
    for part in where:
        if part in model.model_fields:
            annotation = model.model_fields[part].annotation
            model = next((each for each in (annotation, *get_args(annotation)) if _is_table(each)), model)
    return model.model_fields


def _inside(model: type[BaseModel], name: str) -> list[str]:
    """Where a setting belongs that was given without its table."""

    def holds(table: str) -> bool:
        brought = (row for choice in options.choices(table) for row in map(choice.options, choice.registry.rows))
        return name in _fields(model, [table]) or any(name in row for row in brought)

    return [f"{table}.{name}" for table in model.model_fields if holds(table)]


def _is_table(annotation: Any) -> bool:
    return isinstance(annotation, type) and issubclass(annotation, BaseModel)
