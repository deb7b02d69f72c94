"""Losses with every agent's data; `Problem` for your own."""

from pisco.problems.cnn import cnn
from pisco.problems.logistic import logistic
from pisco.problems.mlp import mlp
from pisco.problems.problem import Problem
from pisco.problems.quadratic import quadratic
from pisco.problems.registry import PROBLEMS
from pisco.problems.softmax import softmax

__all__ = ["PROBLEMS", "Problem", "cnn", "logistic", "mlp", "quadratic", "softmax"]
