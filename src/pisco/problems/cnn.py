"""The paper's convolutional network for CIFAR-10."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from pisco.convolutions.three_by_three import convolve
from pisco.data import Dataset
from pisco.errors import InputError, check_number
from pisco.problems.classifier import as_floats, classifier, glorot
from pisco.problems.problem import Problem
from pisco.problems.supervised import Partition, check_dataset, floating
from pisco.registry import by_name
from pisco.types import Key, Params

CHANNELS = (32, 64, 128)
MEAN = (0.4914, 0.4822, 0.4465)
STD = (0.2470, 0.2435, 0.2616)
"""Per channel over CIFAR-10's training images."""


def _pool(images: jax.Array) -> jax.Array:
    """The maximum over 2×2 blocks, by reshaping: no windowed scatter in the backward pass."""
    batch, height, width, channels = images.shape
    return images.reshape(batch, height // 2, 2, width // 2, 2, channels).max(axis=(2, 4))


@dataclass(frozen=True)
class _Model:
    dropout: float
    compute: str

    def __call__(self, params: Params, features: jax.Array, key: Key | None) -> jax.Array:
        dtype = jnp.dtype(self.compute)
        params = jax.tree.map(lambda leaf: leaf.astype(dtype), params)
        x = as_floats(features, dtype)
        if features.dtype == jnp.uint8:
            x = (x - jnp.asarray(MEAN, dtype)) / jnp.asarray(STD, dtype)
        for index in range(len(CHANNELS)):
            for layer in (f"conv{index + 1}a", f"conv{index + 1}b"):
                x = jax.nn.relu(convolve(x, params[layer]["kernel"]) + params[layer]["bias"])
            x = self._drop(_pool(x), key, index)
        x = x.reshape(x.shape[0], -1)
        x = jax.nn.relu(x @ params["dense1"]["kernel"] + params["dense1"]["bias"])
        x = self._drop(x, key, len(CHANNELS))
        return x @ params["dense2"]["kernel"] + params["dense2"]["bias"]

    def _drop(self, x: jax.Array, key: Key | None, layer: int) -> jax.Array:
        if key is None or self.dropout == 0:
            return x
        kept = jax.random.bernoulli(jax.random.fold_in(key, layer), 1 - self.dropout, x.shape)
        return jnp.where(kept, x / (1 - self.dropout), 0)


@dataclass(frozen=True)
class _CnnStart:
    side: int
    inputs: int
    outputs: int
    dtype: str

    def __call__(self, key: Key) -> Params:
        widths = [self.inputs, *[c for c in CHANNELS for _ in range(2)]]
        names = [f"conv{block + 1}{half}" for block in range(len(CHANNELS)) for half in "ab"]
        shapes = {name: (3, 3, a, b) for name, a, b in zip(names, widths[:-1], widths[1:], strict=True)}
        flattened = (self.side // 2 ** len(CHANNELS)) ** 2 * CHANNELS[-1]
        shapes |= {"dense1": (flattened, 128), "dense2": (128, self.outputs)}
        keys = jax.random.split(key, len(shapes))
        return {
            name: {"kernel": glorot(k, shape, self.dtype), "bias": jnp.zeros(shape[-1], self.dtype)}
            for k, (name, shape) in zip(keys, shapes.items(), strict=True)
        }


@by_name
def cnn(
    dataset: Dataset,
    *,
    agents: int,
    partition: Partition = "by_label",
    partition_options: Mapping[str, Any] | None = None,
    dropout: float = 0.2,
    eval_samples: int | None = None,
    dtype: Any = jnp.float32,
    compute: Any = None,
) -> Problem:
    """Three blocks of two 3×3 convolutions (32, 64, 128 channels), ReLU, max-pool 2 and dropout, then 128 and 10.

    Args:
      dataset: square images (samples, side, side, channels), side divisible by 8.
      agents: n.
      partition: a name of `pisco.data.PARTITIONS`, a function, or one index array per agent.
      partition_options: keywords for a named partition.
      dropout: the rate, after every block and after the hidden layer.
      eval_samples: measure the training loss on this many samples of every agent, the first; None takes all.
      dtype: of the parameters.
      compute: dtype of the network's passes, "bfloat16" for speed on an accelerator; None is that of the parameters.
    """
    check_dataset(dataset)
    check_number("dropout", dropout, low=0, high=0.99)
    shape = dataset.features.shape
    if len(shape) != 4 or shape[1] != shape[2] or shape[1] % 8:
        raise InputError(
            f"samples of {dataset.name} have shape {list(shape[1:])}, expected (side, side, channels), "
            "side divisible by 8"
        )
    dtype = floating("dtype", dtype)
    precision = dtype if compute is None else floating("compute", compute)
    start = _CnnStart(shape[1], shape[3], len(np.unique(dataset.labels)), dtype.name)
    return classifier(
        _Model(float(dropout), precision.name),
        start,
        dataset,
        agents=agents,
        partition=partition,
        partition_options=partition_options,
        eval_batch=500,
        eval_samples=eval_samples,
        name="cnn",
    )
