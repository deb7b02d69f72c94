"""What the neural-network problems share: cross entropy, accuracy, images as floats, Glorot starts."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from pisco.data import Dataset
from pisco.problems.problem import Problem
from pisco.problems.supervised import Partition, agent_data, class_labels, split, tested
from pisco.tree import widened
from pisco.types import Key, Params

Model = Callable[[Params, jax.Array, Key | None], jax.Array]


@dataclass(frozen=True)
class CrossEntropy:
    """The softmax cross entropy of `model(params, features, key)`, one value per sample, + ½·ridge·‖params‖²."""

    model: Model
    ridge: float = 0.0

    def __call__(self, params: Params, batch: Any, key: Key | None) -> jax.Array:
        logits = widened(self.model(params, batch["features"], key))
        chosen = jnp.take_along_axis(logits, batch["labels"][:, None].astype(jnp.int32), axis=1)[:, 0]
        losses = jax.nn.logsumexp(logits, axis=1) - chosen
        if not self.ridge:
            return losses
        return losses + 0.5 * self.ridge * sum(jnp.sum(leaf * leaf) for leaf in jax.tree.leaves(params))


@dataclass(frozen=True)
class Accuracy:
    """Whether the largest logit is the label's, one value per sample."""

    model: Model

    def __call__(self, params: Params, batch: Any) -> jax.Array:
        return jnp.argmax(self.model(params, batch["features"], None), axis=1) == batch["labels"]


def classifier(
    model: Model,
    init: Callable[[Key], Params] | Params,
    dataset: Dataset,
    *,
    agents: int,
    partition: Partition,
    partition_options: Mapping[str, Any] | None,
    eval_batch: int,
    eval_samples: int | None = None,
    ridge: float = 0.0,
    name: str,
) -> Problem:
    """A problem from a model that turns features into logits."""
    labels, test_labels, _ = class_labels(dataset)
    parts = split(dataset, agents, partition, partition_options)
    small = np.uint8 if labels.max() < 256 else np.int32
    return Problem(
        CrossEntropy(model, ridge),
        init,
        agent_data(dataset.features, labels.astype(small), parts),
        **tested(dataset.test_features, None if test_labels is None else test_labels.astype(small), Accuracy(model)),
        eval_batch=eval_batch,
        eval_samples=eval_samples,
        name=f"{name} on {dataset.name}",
    )


def as_floats(features: jax.Array, dtype: Any) -> jax.Array:
    """Bytes become [0, 1]; other features are only cast."""
    scale = 1 / 255 if features.dtype == jnp.uint8 else 1
    return features.astype(dtype) * jnp.asarray(scale, dtype)


def glorot(key: Key, shape: tuple[int, ...], dtype: Any) -> jax.Array:
    """Uniform on ±√(6/(fan_in + fan_out)); the last two axes are in and out, those before a receptive field."""
    field = int(np.prod(shape[:-2]))
    limit = np.sqrt(6 / (field * (shape[-2] + shape[-1])))
    return jax.random.uniform(key, shape, dtype, -limit, limit)
