"""Published methods by name: an update rule, with what the name fixes of it.

Adding a method is one file with its update rule, one row here and one entry in the docs.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from pisco.algorithms.dsgd import dsgd
from pisco.algorithms.pisco import pisco
from pisco.errors import InputError, choose, suggest
from pisco.types import Algorithm


@dataclass(frozen=True)
class Method:
    """One row: the factory, the hyperparameters that the name fixes, and a line of description."""

    factory: Callable[..., Algorithm]
    summary: str
    fixed: dict[str, Any] = field(default_factory=dict)

    @property
    def hyperparameters(self) -> dict[str, inspect.Parameter]:
        """The hyperparameters left to the caller."""
        parameters = inspect.signature(self.factory).parameters
        return {name: p for name, p in parameters.items() if name not in self.fixed}


ALGORITHMS: dict[str, Method] = {
    "pisco": Method(pisco, "local gradient tracking, two exchanges a round (the paper's Algorithm 1)"),
    "pisco-one-exchange": Method(
        pisco, "PISCO with parameters and tracker in one message", {"one_exchange": True}
    ),
    "dsgd": Method(dsgd, "decentralized SGD, adapt-then-combine"),
    "dsgd-cta": Method(dsgd, "decentralized SGD, combine-then-adapt", {"combine_first": True}),
}


def build(name: str, **hyperparameters: Any) -> Algorithm:
    """The method called `name` with these hyperparameters.

    >>> build("dsgd", local_lr=0.1)
    dsgd(local_lr=0.1, combine_first=False)
    >>> build("dsgd", lr=0.1)
    Traceback (most recent call last):
    ...
    pisco.errors.InputError: algorithm 'dsgd' has no hyperparameter 'lr'; did you mean 'local_lr'?
    """
    method = choose("algorithm", name, ALGORITHMS)
    for given in hyperparameters:
        if given not in method.hyperparameters:
            known = suggest(given, method.hyperparameters)
            raise InputError(f"algorithm {name!r} has no hyperparameter {given!r}; {known}")
    for needed, parameter in method.hyperparameters.items():
        if parameter.default is inspect.Parameter.empty and needed not in hyperparameters:
            raise InputError(f"algorithm {name!r} needs `{needed}`; set algorithm.{needed}")
    return method.factory(**method.fixed, **hyperparameters)
