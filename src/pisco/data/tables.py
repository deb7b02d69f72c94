"""Datasets from tables: CSV text, with commas or tabs, and Parquet, numbers in columns and one column of labels."""

from __future__ import annotations

import csv
import io
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from pisco.data.dataset import Dataset, small_dtype
from pisco.data.storage import read_bytes
from pisco.display import plural
from pisco.errors import InputError, path_of, suggest

SUFFIXES = (".csv", ".tsv", ".parquet")
TABBED = (".tsv", ".tsv.gz", ".tsv.bz2", ".tsv.xz")

Columns = dict[str, np.ndarray]
"""Every column by its name, as numbers or as texts."""


def load_table(path: str | Path, label: str | None = None, drop: Sequence[str] | None = None) -> Dataset:
    """Read a table with named columns, .csv, .tsv (tabs in place of commas) or .parquet: one column is the label,
    the others are numbers.

    The names are the first line of a CSV file; names that end in .gz, .bz2 or .xz are decompressed. Labels that are
    whole numbers stay as they are; texts are numbered in sorted order, and kept as `Dataset.classes`. Features become
    int8 when every value is a whole number that fits, else float32. Parquet needs pandas and pyarrow.

    Args:
        path: the file.
        label: the column of labels; None takes the one called "label", else the last.
        drop: columns to leave out.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     file = Path(folder, "pets.csv")
    ...     _ = file.write_text("kilos,legs,pet\\n4.5,4,cat\\n0.1,2,bird\\n30,4,dog\\n")
    ...     pets = load_table(file)
    >>> pets.classes, pets.labels, pets.features[0]
    (('bird', 'cat', 'dog'), array([1, 0, 2], dtype=int8), array([4.5, 4. ], dtype=float32))
    """
    path = path_of(path)
    columns = _parquet(path) if path.suffix == ".parquet" else _csv(path)
    names = list(columns)
    if label is None:
        label = "label" if "label" in columns else names[-1]
    drop = () if drop is None else drop
    if isinstance(drop, str):
        raise InputError(f"drop is {drop!r}, expected a list of columns, as in drop = [{drop!r}]")
    for name in (label, *drop):
        if name not in columns:
            raise InputError(f"{path} has no column {name!r}; {suggest(name, names)}")
    features = [name for name in names if name != label and name not in drop]
    if not features:
        raise InputError(f"{path} has no column beside the label {label!r}; add columns of numbers")
    if "" in features:
        raise InputError(
            f"column {names.index('') + 1} of {path} has no name, like the row numbers that pandas writes; name it, or "
            'leave it out with drop = [""] (or index=False in pandas)'
        )
    for name in features:
        _check_numbers(path, name, columns[name])
    labels, classes = _labels(path, label, columns[label])
    values = np.stack([columns[name] for name in features], axis=1)
    values = values.astype(small_dtype(values))
    return Dataset(path.name.split(".")[0], values, labels, classes=classes, columns=tuple(features))


def _labels(path: Path, name: str, column: np.ndarray) -> tuple[np.ndarray, tuple[str, ...] | None]:
    """Numbers for the labels, and the texts that they stand for."""
    if column.dtype.kind == "f":
        _check_numbers(path, name, column)
        whole = (column == np.round(column)) & (np.abs(column) < 2**31)
        if not whole.all():
            row = int(np.argmin(whole))
            raise InputError(
                f"row {row + 1} of {path} has the label {column[row]:g} in {name!r}, expected whole numbers or texts; "
                "choose another column as the label, or name its classes"
            )
        return column.astype(np.int8 if np.abs(column).max() < 128 else np.int64), None
    missing = np.flatnonzero(column == "")
    if missing.size:
        raise InputError(f"row {missing[0] + 1} of {path} has no label in {name!r}; fill it in or remove the row")
    classes, numbers = np.unique(column, return_inverse=True)
    return numbers.astype(np.int8 if len(classes) <= 128 else np.int64), tuple(map(str, classes))


def _check_numbers(path: Path, name: str, column: np.ndarray) -> None:
    """Refuse texts and gaps in a column of numbers, by the first that is there."""
    if column.dtype.kind != "f":
        texts = [(row, text) for row, text in enumerate(column, start=1) if _number(text) is None]
        row, text = texts[0]
        raise InputError(
            f"column {name!r} of {path} holds texts such as {str(text)[:40]!r} (row {row}), expected numbers; turn it "
            f"into numbers, leave it out with drop = [{name!r}], or name it as the label"
        )
    # Beyond this float32 is infinite.
    wrong = np.flatnonzero(~(np.abs(column) < 3e38))
    if wrong.size:
        raise InputError(
            f"row {wrong[0] + 1} of {path} has {column[wrong[0]]:g} in column {name!r}, expected a finite number; "
            "fill it in or remove such rows"
        )


def _csv(path: Path) -> Columns:
    mark, marks = ("\t", "tabs") if path.name.endswith(TABBED) else (",", "commas")
    try:
        text = read_bytes(path).decode("utf-8-sig")
        lines = csv.reader(io.StringIO(text, newline=""), delimiter=mark, strict=True)
        rows = [(lines.line_num, row) for row in lines if row]
    except (UnicodeDecodeError, csv.Error) as error:
        raise InputError(f"{path} is not CSV text in UTF-8 ({error}); save it again as such") from error
    if len(rows) < 2:
        raise InputError(f"{path} has no samples; give a line of column names, then one line a sample")
    names = [name.strip() for name in rows[0][1]]
    other = next((each for each in ",;\t|" if each != mark and len(names) == 1 and each in names[0]), None)
    if other is not None:
        raise InputError(f"the columns of {path} are separated by {other!r}; separate them with {marks}")
    _check_names(path, names)
    for number, row in rows[1:]:
        if len(row) != len(names):
            raise InputError(
                f"line {number} of {path} has {plural(len(row), 'value')}, expected {len(names)} as in its first line; "
                f"separate them with {marks}, and put quotes around one that holds a {marks[:-1]}"
            )
    return {name: _column([row[at].strip() for _, row in rows[1:]]) for at, name in enumerate(names)}


def _check_names(path: Path, names: list[str]) -> None:
    if all(_number(name) is not None for name in names):
        raise InputError(f"the first line of {path} holds numbers, expected the names of the columns; add such a line")
    twice = next((name for at, name in enumerate(names) if name in names[:at]), None)
    if twice is not None:
        raise InputError(f"{path} has two columns {twice!r}; give each a name of its own")


def _column(cells: Sequence[str]) -> np.ndarray:
    """Numbers if there is no text among them; a gap beside numbers is NaN."""
    numbers = [_number(cell) for cell in cells]
    if None in numbers:
        return np.array(cells)
    return np.array(numbers, np.float64)


def _number(cell: str) -> float | None:
    try:
        return float(cell) if cell else np.nan
    except ValueError:
        return None


def _parquet(path: Path) -> Columns:
    if not path.is_file():
        raise InputError(f"there is no file {path}; check the path")
    try:
        import pandas

        frame = pandas.read_parquet(path)
    except ImportError as error:
        raise InputError(f"{path} needs pandas and pyarrow; install both, or save the table as .csv") from error
    except (OSError, ValueError) as error:
        raise InputError(
            f"{path} is not a readable Parquet file ({str(error).splitlines()[0]}); save it again"
        ) from error
    if frame.empty:
        raise InputError(f"{path} has no samples; give a row for each")
    _check_names(path, [str(name) for name in frame.columns])
    columns = {}
    for name, series in frame.items():
        if pandas.api.types.is_numeric_dtype(series):
            columns[str(name)] = series.to_numpy(np.float64, na_value=np.nan)
        else:
            cells = zip(series.isna(), series, strict=True)
            columns[str(name)] = _column(["" if gap else str(value) for gap, value in cells])
    return columns
