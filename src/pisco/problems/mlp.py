"""A network with one hidden layer: the paper's MNIST experiment."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from pisco.data import Dataset
from pisco.errors import check_counts
from pisco.problems.classifier import as_floats, classifier, glorot
from pisco.problems.problem import Problem
from pisco.problems.supervised import Partition, check_dataset, floating
from pisco.registry import by_name
from pisco.types import Key, Params


def _model(params: Params, features: jax.Array, key: Key | None) -> jax.Array:
    flat = as_floats(features.reshape(features.shape[0], -1), params["w1"].dtype)
    hidden = jax.nn.sigmoid(flat @ params["w1"] + params["c1"])
    return hidden @ params["w2"] + params["c2"]


@dataclass(frozen=True)
class _MlpStart:
    inputs: int
    hidden: int
    outputs: int
    dtype: str

    def __call__(self, key: Key) -> Params:
        first, second = jax.random.split(key)
        return {
            "w1": glorot(first, (self.inputs, self.hidden), self.dtype),
            "c1": jnp.zeros(self.hidden, self.dtype),
            "w2": glorot(second, (self.hidden, self.outputs), self.dtype),
            "c2": jnp.zeros(self.outputs, self.dtype),
        }


@by_name
def mlp(
    dataset: Dataset,
    *,
    agents: int,
    partition: Partition = "by_label",
    partition_options: Mapping[str, Any] | None = None,
    hidden: int = 32,
    dtype: Any = jnp.float32,
) -> Problem:
    """CrossEntropy(softmax(W₂·sigmoid(W₁a + c₁) + c₂), y), from a Glorot start drawn by the seed.

    Args:
      dataset: any classes; byte features are scaled to [0, 1].
      agents: n.
      partition: a name of `pisco.data.PARTITIONS`, a function, or one index array per agent.
      partition_options: keywords for a named partition.
      hidden: neurons in the hidden layer.
      dtype: of the parameters.

    >>> import numpy as np, pisco
    >>> toy = pisco.data.Dataset("toy", np.eye(4, dtype=np.float32), np.arange(4))
    >>> mlp(toy, agents=2, hidden=3)
    Problem(mlp on toy: 2 agents, 4 samples)
    """
    check_dataset(dataset)
    check_counts(hidden=hidden)
    inputs = int(np.prod(dataset.features.shape[1:]))
    start = _MlpStart(inputs, hidden, len(np.unique(dataset.labels)), floating("dtype", dtype).name)
    return classifier(
        _model,
        start,
        dataset,
        agents=agents,
        partition=partition,
        partition_options=partition_options,
        eval_batch=10_000,
        name="mlp",
    )
