"""Multinomial logistic regression: logistic regression for any number of classes."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from pisco.data import Dataset
from pisco.errors import check_number
from pisco.problems.classifier import as_floats, classifier
from pisco.problems.problem import Problem
from pisco.problems.supervised import Partition, check_dataset, floating
from pisco.registry import by_name
from pisco.types import Key, Params


def _model(params: Params, features: jax.Array, key: Key | None) -> jax.Array:
    flat = as_floats(features.reshape(features.shape[0], -1), params["w"].dtype)
    return flat @ params["w"] + params["c"]


@by_name
def softmax(
    dataset: Dataset,
    *,
    agents: int,
    partition: Partition = "by_label",
    partition_options: Mapping[str, Any] | None = None,
    ridge: float = 0.0,
    dtype: Any = jnp.float32,
) -> Problem:
    """CrossEntropy(softmax(Wᵀa + c), y) + ½·ridge·(‖W‖² + ‖c‖²), from zero; convex, strongly so with a ridge.

    Args:
      dataset: any classes; byte features are scaled to [0, 1].
      agents: n.
      partition: a name of `pisco.data.PARTITIONS`, a function, or one index array per agent.
      partition_options: keywords for a named partition.
      ridge: weight of the squared norm.
      dtype: of the parameters.

    >>> import pisco
    >>> toy = pisco.data.Dataset("toy", np.eye(4, dtype=np.float32), np.arange(4))
    >>> softmax(toy, agents=2)
    Problem(softmax on toy: 2 agents, 4 samples)
    """
    check_dataset(dataset)
    check_number("ridge", ridge, low=0)
    dtype = floating("dtype", dtype)
    inputs, outputs = int(np.prod(dataset.features.shape[1:])), len(np.unique(dataset.labels))
    return classifier(
        _model,
        {"w": jnp.zeros((inputs, outputs), dtype), "c": jnp.zeros(outputs, dtype)},
        dataset,
        agents=agents,
        partition=partition,
        partition_options=partition_options,
        ridge=float(ridge),
        eval_batch=10_000,
        name="softmax",
    )
