"""The problem that all agents of a federation share, made of one agent's own data."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
from pydantic import model_validator

from pisco import registry
from pisco.errors import InputError
from pisco.federation.contract import STRANGE_LABEL, BadData
from pisco.metrics import NAMED, TEST
from pisco.problems.registry import PROBLEMS
from pisco.settings.tables import Choices, Count

if TYPE_CHECKING:
    from pathlib import Path

    from pisco.data import Dataset
    from pisco.federation.plan import Federation
    from pisco.problems.problem import Problem


class SharedProblemTable(Choices):
    """`[problem]`: the loss by name with its options; `classes` and `features` say what data must look like.

    `metrics` names what else agents with test data measure on it, as in an experiment file.
    """

    table = "problem"
    name: str = "logistic"
    classes: list[int] | None = None
    features: list[Count] | None = None
    metrics: list[str] | None = None

    @model_validator(mode="after")
    def _of_test_data(self) -> SharedProblemTable:
        for name in self.metrics or ():
            if NAMED[name].of != TEST:
                raise InputError(
                    f"the metric {name!r} is not of test data, and no member holds all agents; leave it out"
                )
        return self


def one_agent(table: SharedProblemTable, dataset: Dataset, dtype: str) -> Problem:
    """The problem of an agent that holds these samples; a `BadData` says what does not fit."""
    from pisco.data import Dataset

    if table.features is not None and list(dataset.features.shape[1:]) != table.features:
        told = f"expects samples of shape {table.features}, has {list(dataset.features.shape[1:])}"
        raise BadData(f"{dataset.name}: {told}", told)
    features, labels = dataset.features, dataset.labels
    if table.classes is not None:
        strange = np.setdiff1d(dataset.label_values, table.classes)
        if strange.size:
            raise BadData(
                f"{dataset.name} has the label {strange[0]}, the federation knows {table.classes}", STRANGE_LABEL
            )
        # One sample of every class, which no agent holds: an agent may lack a class, but all number them the same way.
        blank = np.zeros((len(table.classes), *features.shape[1:]), features.dtype)
        features, labels = np.concatenate([features, blank]), np.concatenate([labels, table.classes])
    whole = Dataset(dataset.name, features, labels, dataset.test_features, dataset.test_labels)
    data = {"dataset": whole, "agents": 1, "partition": [np.arange(dataset.num_samples)], "dtype": dtype}
    factory, takes = PROBLEMS[table.name], registry.options(PROBLEMS[table.name])
    made = factory(**{key: each for key, each in data.items() if key in takes}, **table.taken_by("name"))
    measured = [] if dataset.test_features is None else table.metrics or []
    return made.with_metrics(*(NAMED[name] for name in measured))


def read_problem(plan: Federation, data: Path | None, module: Path | None) -> Problem:
    """An agent's problem: its samples under the plan's loss, or what its own file of Python makes of them."""
    if module is not None:
        from pisco.interop.modules import load_problem

        if plan.data is not None:
            plan.data.check_file(data)
        return load_problem(module, data)
    if data is None:
        raise InputError("an agent needs its data; give --data my.npz, or a model of your own with --module")
    from pisco.data.registry import load
    from pisco.data.tables import SUFFIXES

    loaded = load(str(data))
    if loaded.classes is not None and set(data.suffixes) & set(SUFFIXES):  # one member cannot know the others' texts
        raise InputError(
            f"{data} has texts as labels ({', '.join(loaded.classes[:3])}, …), which every member would number on its "
            "own; give numbers, the same for all members"
        )
    return plan.build_problem(loaded)


def check_options(table: SharedProblemTable, shape: list[int] | None) -> None:
    """Refuse what no agent could use while there are no kits yet: options, and classes that the loss does not have.

    Where the plan tells no shape of a sample, that is what a vector and an image are both refused for. A problem of
    somebody's own is not tried: it may want samples of another shape, or other ones than blank.
    """
    from pisco.data import Dataset

    if table.name not in PROBLEMS.rows:
        return
    labels = np.array(table.classes or (0, 1))
    said = set()
    for each in [shape] if shape else [[1], [8, 8, 1]]:
        blank = Dataset("the plan", np.zeros((len(labels), *each), np.float32), labels)
        try:
            one_agent(table, blank, "float32")
            return
        except InputError as error:
            said.add(str(error))
    if len(said) == 1:
        raise InputError(said.pop())
