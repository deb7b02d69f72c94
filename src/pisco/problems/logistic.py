"""Logistic regression with the paper's nonconvex regulariser."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from pisco.data import Dataset
from pisco.errors import InputError, check_number
from pisco.problems.problem import Problem
from pisco.problems.supervised import Partition, agent_data, check_dataset, class_labels, floating, split, tested
from pisco.registry import by_name


@jax.custom_jvp
def _softplus(z: jax.Array) -> jax.Array:
    """log(1 + eᶻ), whose derivative is one sigmoid: the one jax finds costs two more exponentials and a logarithm."""
    return jax.nn.softplus(z)


_softplus.defjvps(lambda tangent, _, z: tangent * jax.nn.sigmoid(z))


@dataclass(frozen=True)
class LogisticLoss:
    """log(1 + exp(−y·aᵀx)) + ρ·Σ_l x_l²/(1 + x_l²), one value per sample."""

    rho: float

    def __call__(self, params: jax.Array, batch: Any, key: Any) -> jax.Array:
        margins = batch["labels"].astype(params.dtype) * _scores(params, batch["features"])
        square = params * params
        return _softplus(-margins) + self.rho * jnp.sum(square / (1 + square))


def _scores(params: jax.Array, features: jax.Array) -> jax.Array:
    # Features stay int8 in memory and are cast after the gather: faster than float32 throughout.
    return features.astype(params.dtype) @ params


def _accuracy(params: jax.Array, batch: Any) -> jax.Array:
    predicted = jnp.where(_scores(params, batch["features"]) > 0, 1, -1)
    return predicted == batch["labels"].astype(predicted.dtype)


@by_name
def logistic(
    dataset: Dataset,
    *,
    agents: int,
    partition: Partition = "sorted",
    partition_options: Mapping[str, Any] | None = None,
    rho: float = 0.01,
    bias: bool = True,
    dtype: Any = jnp.float32,
) -> Problem:
    """ℓ(x; (a, y)) = log(1 + exp(−y·aᵀx)) + ρ·Σ_l x_l²/(1 + x_l²), labels ±1, from x⁰ = 0.

    Args:
      dataset: two classes; the larger label is +1.
      agents: n.
      partition: a name of `pisco.data.PARTITIONS`, a function, or one index array per agent.
      partition_options: keywords for a named partition, such as {"alpha": 0.3}.
      rho: ρ, the weight of the regulariser.
      bias: append a feature that is always one.
      dtype: of the parameters.

    >>> import pisco
    >>> pisco.problems.logistic(pisco.data.load("a9a"), agents=10)
    Problem(logistic on a9a: 10 agents, 32560 samples)
    """
    check_dataset(dataset)
    check_number("rho", rho, low=0)
    labels, test_labels, classes = class_labels(dataset)
    if classes != 2:
        raise InputError(f"logistic regression needs 2 classes, {dataset.name} has {classes}; take softmax instead")
    if dataset.features.ndim != 2:
        raise InputError(
            f"samples of {dataset.name} have shape {list(dataset.features.shape[1:])}, expected one row of numbers "
            "each; reshape them to (samples, features)"
        )
    features, test_features = _with_bias(dataset.features, bias), _with_bias(dataset.test_features, bias)
    return Problem(
        LogisticLoss(float(rho)),
        jnp.zeros(features.shape[1], floating("dtype", dtype)),
        agent_data(features, _signs(labels), split(dataset, agents, partition, partition_options)),
        **tested(test_features, _signs(test_labels), _accuracy),
        eval_batch=8192,
        eval_width=32,
        name=f"logistic on {dataset.name}",
    )


def _signs(labels: np.ndarray | None) -> Any:
    return None if labels is None else (2 * labels - 1).astype(np.int8)


def _with_bias(features: np.ndarray | None, bias: bool) -> Any:
    if features is None or not bias:
        return features
    return np.concatenate([features, np.ones((len(features), 1), features.dtype)], axis=1)
