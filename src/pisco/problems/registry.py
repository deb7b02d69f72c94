"""Problems on a data set, by name, for configurations."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

from pisco.errors import InputError
from pisco.problems.cnn import cnn
from pisco.problems.logistic import logistic
from pisco.problems.mlp import mlp
from pisco.problems.problem import Problem
from pisco.problems.softmax import softmax
from pisco.registry import Registry, checked


def _factory(what: str, found: Any) -> Callable[..., Problem]:
    """The factory, checked, and what it returns too: a user's own may return anything."""
    build = checked(what, found)

    @functools.wraps(build)
    def call(*args: Any, **given: Any) -> Problem:
        made = build(*args, **given)
        if not isinstance(made, Problem):
            raise InputError(f"{what} returns {type(made).__name__}, expected a pisco.Problem; return one from it")
        return made

    return call


PROBLEMS = Registry[Callable[..., Problem]](
    "problem", "pisco.problems", {"logistic": logistic, "softmax": softmax, "mlp": mlp, "cnn": cnn}, adopt=_factory
)
