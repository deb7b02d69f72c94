"""Handwritten digits of 8 × 8 pixels, from scikit-learn: the quickest images there are."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import numpy as np

from pisco.data.dataset import Dataset
from pisco.data.storage import Record
from pisco.errors import InputError

HOW = "pip install scikit-learn"
BYTES = 57_523


def load() -> Dataset:
    """1,797 images of handwritten digits as rows of 64 values from 0 to 16, labels 0 to 9; no test part of its own.

    The test part of E. Alpaydin and C. Kaynak, Optical Recognition of Handwritten Digits, UCI Machine Learning
    Repository, 1998, as it comes with scikit-learn.
    """
    try:
        from sklearn.datasets import load_digits
    except ImportError as error:
        raise InputError(f"digits are in the package scikit-learn, which is not on this machine; {HOW}") from error
    images, labels = map(np.asarray, load_digits(return_X_y=True))
    return Dataset("digits", images.astype(np.uint8), labels.astype(np.uint8), classes=tuple("0123456789"))


def record() -> Record:
    """Where scikit-learn keeps them, without importing it."""
    spec = importlib.util.find_spec("sklearn")
    file = Path(spec.origin).parent / "datasets/data/digits.csv.gz" if spec is not None and spec.origin else None
    if file is None or not file.is_file():
        return Record("digits", None, BYTES, HOW)
    return Record("digits", file, file.stat().st_size, "found")
