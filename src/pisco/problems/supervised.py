"""From a data set and a partition to the agents' arrays: shared by the problems on labelled data."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import jax.numpy as jnp
import numpy as np

from pisco.data import Dataset
from pisco.data.partition import deal
from pisco.errors import InputError, check_counts

__all__ = ["split"]

Partition = str | Callable[..., Sequence[np.ndarray]] | Sequence[np.ndarray]


def check_dataset(dataset: Any) -> None:
    """Refuse what is no data set, such as a bare array."""
    if not isinstance(dataset, Dataset):
        raise InputError(
            f"the data set is of type {type(dataset).__name__}, expected a pisco.data.Dataset, as in "
            'pisco.data.load("a9a") or pisco.data.Dataset("mine", features, labels)'
        )


def floating(name: str, dtype: Any) -> np.dtype:
    """A dtype of parameters; what is no dtype, or none of floats, is refused."""
    try:
        found = jnp.dtype(dtype)
    except TypeError:
        found = None
    if found is None or not jnp.issubdtype(found, jnp.floating):
        raise InputError(f"{name} is {dtype!r}, expected a floating dtype such as 'bfloat16'")
    return found


def split(
    dataset: Dataset, agents: int, partition: Partition, options: Mapping[str, Any] | None = None
) -> list[np.ndarray]:
    """The sample indices of every agent: by a named rule, by your own function, or as given."""
    check_counts(agents=agents)
    if isinstance(partition, str) or callable(partition):
        partition = deal(dataset, partition, agents, **(dict(options or {}) if isinstance(partition, str) else {}))
    if not isinstance(partition, Iterable):
        raise InputError(f"partition is {partition!r}, expected a name, a function, or the samples of every agent")
    parts = [np.asarray(part) for part in partition]
    if len(parts) != agents:
        raise InputError(f"partition has {len(parts)} parts, expected one for each of the {agents} agents")
    for agent, part in enumerate(parts):
        if not part.size:
            raise InputError(f"partition leaves agent {agent} without samples; use fewer agents or another partition")
        if not np.issubdtype(part.dtype, np.integer) or part.min() < 0 or part.max() >= len(dataset.labels):
            raise InputError(
                f"partition gives agent {agent} an entry that is not an index of the {len(dataset.labels)} samples; "
                f"use whole numbers from 0 to {len(dataset.labels) - 1}"
            )
    return parts


def agent_data(features: np.ndarray, labels: np.ndarray, parts: Sequence[np.ndarray]) -> list[dict[str, np.ndarray]]:
    """One dictionary of features and labels per agent."""
    return [{"features": features[part], "labels": labels[part]} for part in parts]


def tested(features: np.ndarray | None, labels: np.ndarray | None, accuracy: Callable[..., Any]) -> dict[str, Any]:
    """The test samples in the same form and what to measure on them, as keywords of `Problem`."""
    if features is None or labels is None:
        return {}
    return {"test": {"features": features, "labels": labels}, "metrics": {"accuracy": accuracy}}


def class_labels(dataset: Dataset) -> tuple[np.ndarray, np.ndarray | None, int]:
    """Labels renumbered 0 … classes−1 in increasing order, for training and test, and how many classes."""
    values = np.unique(dataset.labels)
    if dataset.test_labels is None:
        return np.searchsorted(values, dataset.labels), None, len(values)
    unseen = np.setdiff1d(dataset.test_labels, values)
    if unseen.size:
        raise InputError(f"test label {unseen[0]!r} never occurs in the training labels")
    return np.searchsorted(values, dataset.labels), np.searchsorted(values, dataset.test_labels), len(values)
