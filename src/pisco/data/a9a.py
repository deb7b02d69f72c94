"""a9a, the binary version of UCI Adult that comes with the package (rebuilt by `tools/build_a9a.py`)."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from pisco.data.dataset import Dataset
from pisco.data.files import read_npz
from pisco.data.storage import Record

BUNDLED = Path(__file__).parent / "bundled" / "a9a.npz"
NUM_FEATURES = 123


def load() -> Dataset:
    """a9a: 32,561 training and 16,281 test rows in their original order, 123 binary features, labels ±1.

    Adult: B. Becker and R. Kohavi, UCI Machine Learning Repository, 1996 (CC BY 4.0); binary encoding:
    J. C. Platt, in Advances in Kernel Methods, MIT Press, 1998; distributed with C.-C. Chang and
    C.-J. Lin, LIBSVM, ACM TIST 2(3), 2011.

    >>> load()
    Dataset('a9a', 32561 samples of shape (123,) int8, 16281 for testing, 2 classes)
    """
    stored = read_npz(BUNDLED)
    parts = {}
    for part in ("", "test_"):
        features = np.unpackbits(stored[f"{part}features"], axis=1, count=NUM_FEATURES).view(np.int8)
        positive = np.unpackbits(stored[f"{part}labels"], count=len(features)).view(np.int8)
        parts |= {f"{part}features": features, f"{part}labels": 2 * positive - 1}
    return Dataset("a9a", **parts, classes=("<=50K", ">50K"))


def record() -> Record:
    """Where the bundled file is."""
    return Record("a9a", BUNDLED, BUNDLED.stat().st_size, "comes with the package")
