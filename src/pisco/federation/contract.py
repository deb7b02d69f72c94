"""The data contract: what every agent's samples must look like, checked before an agent connects.

    [data]
    shape = [2]                # of one sample
    dtype = "float32"          # or one that casts to it: whole numbers are fine where real ones are expected
    tolerance = 10.0           # how far a column may be from its mean and spread
    features = [
      { name = "age", low = 0.0, high = 120.0 },
      { name = "bmi", mean = 26.0, spread = 4.5 },
    ]

`features` has one row for every column, in order, or a single one for all values of a sample. Labels are `classes` of
`[problem]`; `labels` here is for federations whose agents bring modules.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
from pydantic import Field, model_validator

from pisco.errors import InputError
from pisco.federation.roster import Seconds as Positive
from pisco.settings.tables import Count, Table

if TYPE_CHECKING:
    from pisco.data import Dataset

Kind = Literal["bool", "int8", "uint8", "int16", "uint16", "int32", "int64", "float16", "float32", "float64"]


STRANGE_LABEL = "has a label that is not in the plan"
"""What the others may know of it: a label is somebody's."""


class BadData(InputError):
    """An agent's data is not what the federation agreed on. `told` is what the others may know of it: no values."""

    def __init__(self, message: str, told: str):
        super().__init__(message)
        self.told = told


class Feature(Table):
    """One column: its name, and the range of its values or their mean and spread (standard deviation)."""

    name: str | None = None
    low: float | None = None
    high: float | None = None
    mean: float | None = None
    spread: Positive | None = None

    @model_validator(mode="after")
    def _whole(self) -> Feature:
        given = [number for number in (self.low, self.high, self.mean) if number is not None]
        if not all(map(math.isfinite, given)) or (self.mean is None) != (self.spread is None):
            raise InputError(
                f"the feature {self.name!r} needs finite numbers: low, high or both, or mean together with spread"
            )
        if self.low is not None and self.high is not None and self.low > self.high:
            raise InputError(f"the feature {self.name!r} has low = {self.low:g} above high = {self.high:g}; swap them")
        return self

    def objection(self, values: np.ndarray, tolerance: float) -> str | None:
        """What is wrong with a column's values; None: nothing."""
        least, most = float(values.min()), float(values.max())
        for value, out in ((least, self.low is not None and least < self.low),
                           (most, self.high is not None and most > self.high)):  # fmt: skip
            if out:
                return f"holds {value:g}, expected {_between(self.low, self.high)}"
        if self.mean is None or self.spread is None:
            return None
        mean, spread = float(values.mean(dtype=np.float64)), float(values.std(dtype=np.float64))
        usual = f"expected about {self.mean:g} with a spread of {self.spread:g}"
        if abs(mean - self.mean) > tolerance * self.spread:
            return f"has a mean of {mean:g}, {usual}"
        # Too narrow is judged by the range: a rare event has a small spread in its right unit too.
        if spread > tolerance * self.spread or 0 < most - least < self.spread / tolerance:
            return f"has a spread of {spread:g}, {usual}"
        return None


class Contract(Table):
    """`[data]`: shape, dtype, features and labels that every agent's file must have.

    >>> from pisco.data import Dataset
    >>> agreed = Contract.of(Dataset("ours", [[1.0, 20.0], [2.0, 40.0]], [0, 1], columns=("kilos", "bmi")))
    >>> [feature.name for feature in agreed.features], agreed.shape
    (['kilos', 'bmi'], [2])
    """

    shape: list[Count]
    dtype: Kind | None = None
    labels: list[int] | None = None
    tolerance: Positive = 10.0
    features: list[Feature] = Field(default_factory=list)

    @model_validator(mode="after")
    def _fits(self) -> Contract:
        names = [feature.name for feature in self.features]
        if len(names) > 1 and (len(self.shape) != 1 or len(names) != self.shape[0]):
            raise InputError(
                f"data.features has {len(names)} rows and data.shape is {self.shape}; give one row for every column, "
                "or a single one for all"
            )
        if len(names) > 1 and None in names and any(names):
            raise InputError(f"feature {names.index(None) + 1} of data.features has no name; name all of them or none")
        twice = next((name for name in names if name is not None and names.count(name) > 1), None)
        if twice is not None:
            raise InputError(f"data.features has {twice!r} twice; give each column its own name")
        if self.tolerance <= 1:
            raise InputError(f"data.tolerance is {self.tolerance:g}, expected more than 1; 10 lets sites differ")
        return self

    @classmethod
    def of(cls, dataset: Dataset, *, labels: bool = False) -> Contract:
        """A contract after an example: its shape and dtype, and every column's mean and spread, to three digits.

        A column of two values gets these as its range; one that is constant may be anything.
        """
        shape = list(dataset.features.shape[1:]) or [1]
        flat = dataset.features.reshape(dataset.num_samples, -1)
        columns = flat.T if len(shape) == 1 else [flat.reshape(-1)]
        names = dataset.columns or [None] * len(columns)
        rows = [{"name": name} | _usual(values) for name, values in zip(names, columns, strict=True)]
        return cls(
            shape=shape,
            dtype=dataset.features.dtype.name,  # type: ignore[arg-type]
            labels=dataset.label_values.tolist() if labels else None,
            features=[Feature(**row) for row in rows],  # type: ignore[arg-type]
        )

    def check(self, name: str, features: np.ndarray, columns: Sequence[str] | None, labels: Any = None) -> None:
        """Refuse samples that are not as agreed, with the column and what is wrong with it."""

        def refuse(told: str, more: str = "") -> None:
            raise BadData(f"{name}: {told}{more}", told)

        self._check_columns(features, columns, refuse)
        if self.dtype is not None and not np.can_cast(features.dtype, self.dtype, "same_kind"):
            refuse(f"expects features of dtype {self.dtype}, has {features.dtype}", "; convert them")
        flat = features.reshape(len(features), -1)
        for at, feature in enumerate(self.features):
            values = flat if len(self.features) != self.shape[0] or len(self.shape) > 1 else flat[:, at]
            objection = feature.objection(values, self.tolerance)
            if objection is not None:
                which = self._called(at)
                raise BadData(
                    f"{name}: {which} {objection}; is it in another unit, or another column?",
                    f"{which} is not in its agreed range",
                )
        if self.labels is not None and labels is not None:
            strange = np.setdiff1d(labels, self.labels)
            if strange.size:
                raise BadData(f"{name}: has the label {strange[0]}, the federation knows {self.labels}", STRANGE_LABEL)

    def check_file(self, path: Path | None) -> None:
        """The same for a file that only an agent's own module reads: its `features` and, if there are, `labels`."""
        from pisco.data import load
        from pisco.data.files import read_npz

        if path is None:
            raise InputError("the plan says what data must look like; give this agent's file with --data")
        if path.suffix != ".npz":
            found = load(str(path))
            self.check(path.name, found.features, found.columns, found.labels)
            return
        stored = read_npz(path)
        if "features" not in stored:
            raise BadData(f"{path} has no array 'features' for the plan's [data] to check", "has no array 'features'")
        named = tuple(map(str, stored["feature_names"].ravel())) if "feature_names" in stored else None
        self.check(path.name, stored["features"], named, stored.get("labels"))

    def _check_columns(self, features: np.ndarray, columns: Sequence[str] | None, refuse: Any) -> None:
        wanted = [feature.name for feature in self.features if feature.name is not None]
        named = bool(wanted) and len(wanted) == self.shape[0] and len(self.shape) == 1
        shape = list(features.shape[1:]) or [1]
        extra = [column for column in columns or () if column not in wanted] if named else []
        lacks = [column for column in wanted if column not in columns] if named and columns else []
        if shape != self.shape:
            found = f"; {extra[0]!r} is not in the plan" if extra else f"; {lacks[0]!r} is missing" if lacks else ""
            if len(shape) == len(self.shape) == 1:
                refuse(f"expects {self.shape[0]} features, has {shape[0]}", found)
            refuse(f"expects samples of shape {self.shape}, has {shape}")
        if not named:
            return
        if columns is None:
            refuse(
                "does not name its features",
                f"; save them as feature_names = {wanted[:2]}… in the npz file, in the order of the columns",
            )
        if lacks:
            refuse(f"lacks the feature {lacks[0]!r}", f"; it has {extra[0]!r} instead" if extra else "")
        at = next((at for at, column in enumerate(columns or ()) if column != wanted[at]), None)
        if at is not None:
            refuse(
                f"has its features in another order: column {at + 1} is {list(columns or ())[at]!r}, expected "
                f"{wanted[at]!r}",
                "; sort them as the plan has them",
            )

    def _called(self, at: int) -> str:
        if len(self.features) == 1 and self.shape != [1]:
            return "a sample"
        name = self.features[at].name
        return f"column {at + 1}" + ("" if name is None else f" ({name!r})")


def _usual(values: np.ndarray) -> dict[str, float]:
    """What an example says of a column."""
    least, most = float(values.min()), float(values.max())
    if least == most:
        return {}
    if np.isin(values, (least, most)).all():
        return {"low": least, "high": most}
    mean, spread = float(values.mean(dtype=np.float64)), float(values.std(dtype=np.float64))
    return {"mean": float(f"{mean:.3g}"), "spread": float(f"{spread:.3g}")}


def _between(low: float | None, high: float | None) -> str:
    if low is None or high is None:
        return f"at least {low:g}" if low is not None else f"at most {high:g}"
    return f"{low:g} to {high:g}"
