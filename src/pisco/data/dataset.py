"""What every loader returns: features, labels and, where there is one, the test part."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np

from pisco.display import plural
from pisco.errors import InputError, check_number


@dataclass(frozen=True, eq=False, repr=False)
class Dataset:
    """A labelled dataset in memory, checked when it is made.

    Features keep the dtype they come in, so that bits and bytes stay small; a loss casts the batch it uses.

    Args:
        name: what tables and plots call it.
        features: array whose first axis runs over the samples.
        labels: one whole number per sample.
        test_features: held-out samples of the same shape, or None.
        test_labels: their labels, or None.
        classes: names of the labels, in the order of the label values.
        groups: one whole number per training sample, who it comes from (a person, a hospital), for the partition
            "by_group"; or None.
        columns: names of the features, where a sample is one row of them; or None.

    >>> Dataset("two points", [[0.0, 1.0], [2.0, 3.0]], [-1, 1])
    Dataset('two points', 2 samples of shape (2,) float64, 2 classes)
    """

    name: str
    features: np.ndarray
    labels: np.ndarray
    test_features: np.ndarray | None = None
    test_labels: np.ndarray | None = None
    classes: tuple[str, ...] | None = None
    groups: np.ndarray | None = None
    columns: tuple[str, ...] | None = None

    def __post_init__(self) -> None:
        def keep(field: str, value: Any) -> None:
            object.__setattr__(self, field, value)

        if (self.test_features is None) != (self.test_labels is None):
            missing = "test_labels" if self.test_labels is None else "test_features"
            raise InputError(f"dataset {self.name!r} has a test part without {missing}; give both or neither")
        for part in ("",) if self.test_features is None else ("", "test_"):
            features = _check_features(f"{part}features of {self.name!r}", getattr(self, f"{part}features"))
            labels = check_labels(f"{part}labels of {self.name!r}", getattr(self, f"{part}labels"))
            if len(features) != len(labels):
                raise InputError(
                    f"dataset {self.name!r} has {len(features)} rows of {part}features and {len(labels)} {part}labels; "
                    "give one label per row"
                )
            keep(f"{part}features", features)
            keep(f"{part}labels", labels)
            if features.shape[1:] != self.features.shape[1:]:
                raise InputError(
                    f"a test sample of {self.name!r} has shape {features.shape[1:]}, expected "
                    f"{self.features.shape[1:]} as in training; give both parts one shape"
                )
        if self.groups is not None:
            keep("groups", check_labels(f"groups of {self.name!r}", self.groups))
            if len(self.groups) != len(self.labels):
                raise InputError(
                    f"dataset {self.name!r} has {len(self.labels)} samples and {len(self.groups)} groups; "
                    "give one group per training sample"
                )
        for field in ("columns", "classes"):
            names = getattr(self, field)
            if isinstance(names, str) or not isinstance(names, Iterable | None):
                raise InputError(f"{field} of {self.name!r} is {names!r}, expected a list of names")
            keep(field, None if names is None else tuple(names))
        if self.columns is not None and (len(self.columns),) != self.features.shape[1:]:
            raise InputError(
                f"dataset {self.name!r} names {len(self.columns)} columns, but a sample has shape "
                f"{self.features.shape[1:]}; name every column or leave the names out"
            )
        if self.classes is not None and len(self.classes) < len(self.label_values):
            raise InputError(
                f"dataset {self.name!r} names {len(self.classes)} classes but has "
                f"{len(self.label_values)} different labels; name every class or leave `classes` out"
            )

    @property
    def num_samples(self) -> int:
        """How many training samples there are."""
        return len(self.labels)

    @property
    def num_classes(self) -> int:
        """How many classes there are: those named, else those seen."""
        return len(self.label_values) if self.classes is None else len(self.classes)

    @cached_property
    def label_values(self) -> np.ndarray:
        """The different labels of both parts, in increasing order."""
        return np.unique(self.labels if self.test_labels is None else np.concatenate([self.labels, self.test_labels]))

    def hold_out(self, share: float, seed: int = 0) -> Dataset:
        """The same samples with a share of them, drawn by the seed, as the test part.

        The first drawn of every label stays in training, so that no label is met in testing alone.

        >>> Dataset("ten", np.arange(10), [0, 1] * 5).hold_out(0.2)
        Dataset('ten', 8 samples of shape () int64, 2 for testing, 2 classes)
        """
        check_number("test", share, low=0, open_low=True, high=0.9)
        check_number("seed", seed, low=0, integer=True)
        if self.test_labels is not None:
            raise InputError(f"{self.name} has a test part of its own; leave test = {share:g} out")
        order = np.random.default_rng(int(seed)).permutation(self.num_samples)
        free = np.delete(order, np.unique(self.labels[order], return_index=True)[1])
        count = round(share * self.num_samples)
        if not 0 < count <= len(free):
            raise InputError(
                f"{self.name} has {self.num_samples} samples of {self.num_classes} classes, too few for "
                f"test = {share:g}; choose another share, or give more samples"
            )
        test, train = np.sort(free[:count]), np.setdiff1d(order, free[:count])
        groups = None if self.groups is None else self.groups[train]
        held = {"test_features": self.features[test], "test_labels": self.labels[test], "groups": groups}
        return replace(self, features=self.features[train], labels=self.labels[train], **held)

    def __repr__(self) -> str:
        samples = f"{plural(self.num_samples, 'sample')} of shape {self.features.shape[1:]} {self.features.dtype}"
        test = "" if self.test_labels is None else f", {len(self.test_labels)} for testing"
        return f"Dataset({self.name!r}, {samples}{test}, {plural(self.num_classes, 'class', 'classes')})"


def check_labels(what: str, labels: Any) -> np.ndarray:
    """Labels as a 1-d integer array; whole floats and booleans are converted, all else is refused."""
    labels = np.asarray(labels)
    if labels.ndim != 1:
        raise InputError(f"{what} have shape {labels.shape}, expected one label per sample; flatten them")
    if labels.size == 0:
        raise InputError(f"{what} are empty; give at least one sample")
    if labels.dtype.kind == "b":
        return labels.astype(np.int8)
    if labels.dtype.kind == "f":
        whole = np.isfinite(labels) & (labels == np.round(labels))
        if not whole.all():
            row = int(np.argmin(whole))
            raise InputError(f"{what} have {labels[row]} at row {row}, expected whole numbers; number the classes")
        return labels.astype(np.int64)
    if labels.dtype.kind not in "iu":
        raise InputError(f"{what} have dtype {labels.dtype}, expected whole numbers; number the classes")
    return labels


def small_dtype(values: np.ndarray) -> type:
    """int8 where all values are whole numbers that fit, else float32."""
    return np.int8 if np.all((values == np.round(values)) & (values >= -128) & (values <= 127)) else np.float32


def _check_features(what: str, features: Any) -> np.ndarray:
    features = np.asarray(features)
    if features.dtype.kind not in "biuf":
        raise InputError(
            f"{what} have dtype {features.dtype}, expected real numbers; cast them, for example to float32"
        )
    if features.ndim < 1 or features.size == 0:
        raise InputError(f"{what} have shape {features.shape}, expected at least one sample with one value")
    if features.dtype.kind == "f":
        finite = np.isfinite(features).reshape(len(features), -1).all(axis=1)
        if not finite.all():
            row = int(np.argmin(finite))
            raise InputError(f"{what} are not finite at row {row}; remove or fill in such rows first")
    return features
