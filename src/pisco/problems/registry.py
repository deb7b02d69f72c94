"""Problems on a data set, by name, for configurations."""

from __future__ import annotations

from collections.abc import Callable

from pisco.problems.cnn import cnn
from pisco.problems.logistic import logistic
from pisco.problems.mlp import mlp
from pisco.problems.problem import Problem
from pisco.problems.softmax import softmax
from pisco.registry import Registry

PROBLEMS = Registry[Callable[..., Problem]](
    "problem", "pisco.problems", {"logistic": logistic, "softmax": softmax, "mlp": mlp, "cnn": cnn}
)
