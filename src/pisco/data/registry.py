"""Datasets by name, and the one `load` that takes a name or a path."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

from pisco import registry
from pisco.data import a9a, cifar10, digits, mnist, shakespeare, sotu
from pisco.data.dataset import Dataset
from pisco.data.files import load_libsvm, load_npz
from pisco.data.storage import Record
from pisco.data.tables import SUFFIXES, load_table
from pisco.data.text import load_texts
from pisco.errors import InputError, a_kind_of, suggest
from pisco.registry import Registry

DATASETS = Registry[Callable[..., Dataset]](
    "dataset",
    "pisco.datasets",
    {
        "a9a": a9a.load,
        "mnist": mnist.load,
        "fashion-mnist": mnist.load_fashion,
        "cifar10": cifar10.load,
        "shakespeare": shakespeare.load,
        "sotu": sotu.load,
        "digits": digits.load,
    },
)
_RECORDS = (
    *(a9a.record, mnist.record, mnist.record_fashion, cifar10.record),
    *(shakespeare.record, sotu.record, digits.record),
)


FILES: dict[str, Callable[..., Dataset]] = {".npz": load_npz} | dict.fromkeys(SUFFIXES, load_table)
"""Readers by the end of a file's name; whatever else is read as LIBSVM text."""
_PACKED = (".gz", ".bz2", ".xz")


def load(name_or_path: str | Path, **options: Any) -> Dataset:
    """Load a dataset by name (`DATASETS`), from a file, or by "my_data.py:function".

    Files are tables (.csv, .tsv, .parquet), archives (.npz) and LIBSVM text. A folder is one of texts, an author a
    file (`load_texts`). As LIBSVM's own files are named, a file with `.t` added beside a LIBSVM file is taken as its
    test part.

    Args:
        name_or_path: the name or the path.
        options: keywords of that loader, such as `label` of `load_table`; and, where it knows none itself, `test`, the
            share of the samples to hold out for testing, and `seed`, which draws them (`Dataset.hold_out`).

    >>> load("a9a").num_samples
    32561
    >>> load("mnits")
    Traceback (most recent call last):
    ...
    pisco.errors.InputError: unknown dataset 'mnits', which is not a .csv, .npz or LIBSVM file either; did...
    """
    loader = _loader(name_or_path)
    takes = registry.options(loader)
    held = {} if "test" in takes else registry.options(partial(_held_out, None))
    given = registry.fit(f"dataset {registry.label(str(name_or_path))!r}", held | takes, options)
    loaded = loader(**{name: value for name, value in given.items() if name in takes})
    if not isinstance(loaded, Dataset):
        raise InputError(f"{name_or_path} gives {a_kind_of(loaded)}, expected a pisco.data.Dataset")
    return _held_out(loaded, **{name: value for name, value in given.items() if name in held})


def _held_out(loaded: Any, /, test: float | None = None, seed: int = 0) -> Dataset:
    return loaded if test is None else loaded.hold_out(test, seed)


def _loader(name_or_path: str | Path) -> Callable[..., Dataset]:
    """The function that loads it, which takes nothing but options."""
    if not isinstance(name_or_path, str | Path):
        raise InputError(f"the dataset is {name_or_path!r}, expected a name ({', '.join(DATASETS)}) or a path")
    if name_or_path in DATASETS:
        return DATASETS[str(name_or_path)]
    path = Path(name_or_path).expanduser()
    if path.is_dir():
        return partial(load_texts, path)
    plain = path.with_suffix("") if path.suffix in _PACKED else path
    if plain.suffix in FILES:
        return partial(FILES[plain.suffix], path)
    if path.is_file():
        return partial(_load_libsvm, path, plain.with_name(f"{plain.name}.t{path.suffix if plain != path else ''}"))
    if isinstance(name_or_path, Path) or len(path.parts) > 1:
        raise InputError(f"there is no file {path}; check the path")
    raise InputError(
        f"unknown dataset {name_or_path!r}, which is not a .csv, .npz or LIBSVM file either; "
        f"{suggest(name_or_path, DATASETS)}"
    )


def _load_libsvm(path: Path, test: Path, num_features: int | None = None) -> Dataset:
    return load_libsvm(path, num_features, test if test.is_file() else None)


def available() -> list[Record]:
    """For each named dataset where it is, how big it is and how to get it; nothing is downloaded.

    >>> [record.name for record in available()]
    ['a9a', 'mnist', 'fashion-mnist', 'cifar10', 'shakespeare', 'sotu', 'digits']
    """
    return [record() for record in _RECORDS]
