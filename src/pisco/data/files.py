"""Datasets from the user's own files: LIBSVM text and NumPy archives."""

from __future__ import annotations

import math
import zipfile
import zlib
from itertools import accumulate
from pathlib import Path
from typing import NamedTuple

import numpy as np

from pisco.data.dataset import Dataset, small_dtype
from pisco.data.storage import read_bytes
from pisco.errors import InputError, check_counts, path_of
from pisco.memory import check_fits

_KEYS = ("features", "labels", "test_features", "test_labels", "classes", "feature_names")


def load_libsvm(path: str | Path, num_features: int | None = None, test: str | Path | None = None) -> Dataset:
    """Read LIBSVM text, one sample per line: `label index:value index:value ...`, into dense arrays.

    Indices count from 1; a file that uses index 0 is read as counting from 0. Text after `#` is a comment,
    and names that end in .gz, .bz2 or .xz are decompressed. Features become int8 when every value is a whole
    number that fits, else float32. Labels stay as they are written.

    Args:
        path: the training part.
        num_features: the width; None takes the largest index of both parts.
        test: the test part, or None.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     file = Path(folder, "tiny")
    ...     _ = file.write_text("+1 1:0.5 3:2  # a comment\\n-1 2:1\\n")
    ...     load_libsvm(file).features
    array([[0.5, 0. , 2. ], [0. , 1. , 0. ]], dtype=float32)
    """
    if num_features is not None:
        check_counts(num_features=num_features)
    parts = [_parse(path_of(file)) for file in ((path,) if test is None else (path, test))]
    first = 0 if any(part.indices.size and part.indices.min() == 0 for part in parts) else 1
    largest = max(int(part.indices.max(initial=first)) for part in parts)
    width = largest - first + 1 if num_features is None else int(num_features)
    dtype = small_dtype(np.concatenate([part.values for part in parts]))
    dense = [_dense(part, first, width, dtype) for part in parts]
    test_part = (dense[1], parts[1].labels) if len(parts) == 2 else (None, None)
    return Dataset(Path(path).name, dense[0], parts[0].labels, *test_part)


def load_npz(path: str | Path) -> Dataset:
    """Read a NumPy archive: arrays features, labels and, if you like, test_features, test_labels, classes and
    feature_names.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     file = Path(folder, "tiny.npz")
    ...     np.savez(file, features=np.eye(3, dtype=np.int8), labels=[0, 1, 2])
    ...     load_npz(file)
    Dataset('tiny', 3 samples of shape (3,) int8, 3 classes)
    """
    stored = read_npz(path)
    missing = [key for key in _KEYS[:2] if key not in stored]
    if missing:
        raise InputError(
            f"{path} has no array {missing[0]!r} (it has: {', '.join(stored) or 'none'}); save it with "
            f"np.savez({', '.join(f'{key}=...' for key in _KEYS[:2])}), optionally {', '.join(_KEYS[2:])}"
        )
    classes = tuple(map(str, stored["classes"].ravel())) if "classes" in stored else None
    named = tuple(map(str, stored["feature_names"].ravel())) if "feature_names" in stored else None
    test = (stored.get("test_features"), stored.get("test_labels"))
    return Dataset(Path(path).stem, stored["features"], stored["labels"], *test, classes, columns=named)


def read_npz(path: str | Path) -> dict[str, np.ndarray]:
    """All arrays of a NumPy archive; pickled objects are refused, since loading them runs code."""
    path = path_of(path)
    try:
        # Opened here, since np.load leaves the file open when it is damaged.
        with path.open("rb") as file:
            archive = np.load(file, allow_pickle=False)
            if isinstance(archive, np.ndarray):
                raise InputError(f"{path} holds a single array; save an archive with np.savez")
            return {key: archive[key] for key in archive.files}
    except InputError:
        raise
    except FileNotFoundError as error:
        raise InputError(f"there is no file {path}; check the path") from error
    except (OSError, EOFError, ValueError, KeyError, SyntaxError, zipfile.BadZipFile, zlib.error) as error:
        raise InputError(
            f"{path} is not a readable .npz archive of plain arrays; save it again with np.savez"
        ) from error


class _Rows(NamedTuple):
    path: Path
    lines: np.ndarray
    labels: np.ndarray
    starts: np.ndarray
    indices: np.ndarray
    values: np.ndarray

    def line_of(self, entry: int) -> int:
        return int(self.lines[np.searchsorted(self.starts, entry, side="right") - 1])


def _parse(path: Path) -> _Rows:
    lines, labels, lengths, indices, values = [], [], [], [], []
    content = read_bytes(path).removeprefix(b"\xef\xbb\xbf")
    for number, line in enumerate(content.splitlines(), start=1):
        tokens = line.split(b"#", 1)[0].split()
        if not tokens:
            continue
        try:
            label, row_indices, row_values = _parse_row(tokens)
        except ValueError as error:
            raise InputError(
                f"line {number} of {path}: {error}; expected `label index:value index:value ...`"
            ) from error
        lines.append(number)
        labels.append(label)
        lengths.append(len(row_indices))
        indices += row_indices
        values += row_values
    if not labels:
        raise InputError(f"{path} has no samples; give a file with lines `label index:value index:value ...`")
    array = np.array(labels, np.int64)
    small = array.min() >= -128 and array.max() <= 127
    return _Rows(
        path,
        np.array(lines),
        array.astype(np.int8) if small else array,
        np.array([0, *accumulate(lengths)][:-1]),
        np.array(indices, np.int64),
        np.array(values, np.float64),
    )


def _parse_row(tokens: list[bytes]) -> tuple[int, list[int], list[float]]:
    label = _number(tokens[0])
    if label != round(label) or abs(label) >= 2**31:
        raise ValueError(f"the label {label:g} is not a whole number")
    indices, values = [], []
    for token in tokens[1:]:
        try:
            index, value = token.split(b":")
            indices.append(int(index))
            values.append(float(value))
        except ValueError:
            raise ValueError(f"{_show(token)} is not index:value") from None
    if indices and (min(indices) < 0 or max(indices) >= 2**31):
        raise ValueError(f"index {min(indices) if min(indices) < 0 else max(indices)} is out of range")
    if len(set(indices)) < len(indices):
        raise ValueError("an index occurs twice")
    if not all(abs(value) < 3e38 for value in values):
        raise ValueError("a value is not a finite float32")
    return int(label), indices, values


def _number(token: bytes) -> float:
    try:
        number = float(token)
    except ValueError:
        number = math.nan
    if not math.isfinite(number):
        raise ValueError(f"the label {_show(token)} is not a number")
    return number


def _show(token: bytes) -> str:
    return repr(token[:40].decode("utf-8", "replace"))


def _dense(rows: _Rows, first: int, width: int, dtype: type) -> np.ndarray:
    columns = rows.indices - first
    if columns.size and columns.max() >= width:
        entry = int(np.argmax(columns >= width))
        raise InputError(
            f"line {rows.line_of(entry)} of {rows.path} has index {rows.indices[entry]}, but num_features is "
            f"{width} and indices count from {first}; leave num_features out or make it larger"
        )
    size = len(rows.labels) * width * np.dtype(dtype).itemsize
    # Three times: as it is read, as the agents hold it, and as jax does.
    check_fits(f"{rows.path}, dense with {width} features,", 3 * size, "select fewer features or fewer rows")
    features = np.zeros((len(rows.labels), width), dtype)
    owner = np.repeat(np.arange(len(rows.labels)), np.diff(rows.starts, append=len(columns)))
    features[owner, columns] = rows.values
    return features
