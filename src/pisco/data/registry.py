"""Datasets by name, and the one `load` that takes a name or a path."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from pisco.data import a9a, cifar10, mnist
from pisco.data.dataset import Dataset
from pisco.data.files import load_libsvm, load_npz
from pisco.data.storage import Record
from pisco.errors import InputError, suggest
from pisco.registry import Registry

DATASETS = Registry[Callable[[], Dataset]](
    "dataset",
    "pisco.datasets",
    {"a9a": a9a.load, "mnist": mnist.load, "fashion-mnist": mnist.load_fashion, "cifar10": cifar10.load},
)
_RECORDS = (a9a.record, mnist.record, mnist.record_fashion, cifar10.record)


def load(name_or_path: str | Path) -> Dataset:
    """Load a dataset by name (`DATASETS`), from a file (.npz or LIBSVM text), or by "my_data.py:function".

    As LIBSVM's own files are named, a file with `.t` added beside a LIBSVM file is taken as its test part.

    >>> load("a9a").num_samples
    32561
    >>> load("mnits")
    Traceback (most recent call last):
    ...
    pisco.errors.InputError: unknown dataset 'mnits', which is not a .npz or LIBSVM file either; did...
    """
    if not isinstance(name_or_path, str | Path):
        raise InputError(f"the dataset is {name_or_path!r}, expected a name ({', '.join(DATASETS)}) or a path")
    if name_or_path in DATASETS:
        loaded = DATASETS[str(name_or_path)]()
        if not isinstance(loaded, Dataset):
            raise InputError(f"{name_or_path} gives a {type(loaded).__name__}, expected a pisco.data.Dataset")
        return loaded
    path = Path(name_or_path).expanduser()
    if path.suffix == ".npz":
        return load_npz(path)
    if path.is_file():
        packed = path.suffix in (".gz", ".bz2", ".xz")
        test = path.with_suffix(f".t{path.suffix}") if packed else path.with_name(f"{path.name}.t")
        return load_libsvm(path, test=test if test.is_file() else None)
    if path.is_dir():
        raise InputError(f"{path} is a folder; give the .npz or LIBSVM file itself")
    if isinstance(name_or_path, Path) or len(path.parts) > 1:
        raise InputError(f"there is no file {path}; check the path")
    raise InputError(
        f"unknown dataset {name_or_path!r}, which is not a .npz or LIBSVM file either; "
        f"{suggest(name_or_path, DATASETS)}"
    )


def available() -> list[Record]:
    """For each named dataset where it is, how big it is and how to get it; nothing is downloaded.

    >>> [record.name for record in available()]
    ['a9a', 'mnist', 'fashion-mnist', 'cifar10']
    """
    return [record() for record in _RECORDS]
