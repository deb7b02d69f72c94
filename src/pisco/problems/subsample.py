"""A problem that is cheap to look at: the same training, measured on few samples. For planning, not for results."""

from __future__ import annotations

import copy
from weakref import WeakKeyDictionary

import jax
import numpy as np

from pisco.errors import InputError
from pisco.metrics import AGENTS, TEST
from pisco.problems.checks import why_not_alone
from pisco.problems.problem import Problem, WeightedLoss


def subsample(problem: Problem, samples: int = 10_000, *, test: bool = True, seed: int = 0) -> Problem:
    """The same loss and data, but only about `samples` of them are measured, drawn evenly from all agents.

    An agent's samples are reordered (batches are drawn at random anyway), so that the first ones, which are those that
    get measured, are a fair draw. `test=False` drops the test data. A loss that compares the samples of a batch is
    measured as before, on all of them.

    >>> import pisco
    >>> subsample(pisco.problems.logistic(pisco.data.load("a9a"), agents=10), 1000).eval_samples
    100
    """
    few = copy.copy(problem)
    if not test:
        few.test, few.num_test = None, 0
        few.metrics = tuple(metric for metric in few.metrics if metric.of not in (TEST, AGENTS))
    elif few.test is not None:
        few.num_test = min(few.num_test, samples)
        if few.num_test < problem.num_test:
            rows = np.random.default_rng(seed).permutation(problem.num_test)[:samples]
            few.test = jax.tree.map(lambda leaf: leaf[rows], few.test)
    each = max(1, samples // problem.num_agents)
    measured = problem.max_size if problem.eval_samples is None else problem.eval_samples
    if each >= measured or not _adds_up(problem):
        return few
    generator = np.random.default_rng(seed)
    offsets, sizes = np.asarray(problem.offsets), np.asarray(problem.sizes)
    order = np.concatenate([start + generator.permutation(size) for start, size in zip(offsets, sizes, strict=True)])
    data = problem.data
    few.data = data.reordered(order) if problem.streams else jax.tree.map(lambda leaf: leaf[order], data)
    few.eval_samples = each
    return few


def _adds_up(problem: Problem) -> bool:
    """Whether its loss is the mean of those of single samples; where these are taken alone already, nothing is lost."""
    if problem.per_sample or isinstance(problem.loss, WeightedLoss) or not problem.together:
        return True
    if problem not in _known:
        try:
            _known[problem] = why_not_alone(problem) is None
        except InputError:  # of one sample there is none
            _known[problem] = False
    return _known[problem]


_known: WeakKeyDictionary[Problem, bool] = WeakKeyDictionary()
