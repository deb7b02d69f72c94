"""Where dataset files live: the `PISCO_DATA` folder, the cache folder, or a download into that folder."""

from __future__ import annotations

import bz2
import gzip
import hashlib
import lzma
import os
import zlib
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import NamedTuple

from pisco.errors import InputError


class Record(NamedTuple):
    """What is known of a dataset without loading it."""

    name: str
    found: Path | None
    """The folder or file that holds it; None when it is not on this machine."""
    size: int
    """Bytes on disk, or bytes to download when it is not here."""
    how: str
    """How to get it, in a few words."""


def cache_folder() -> Path:
    """The folder downloads go to: `PISCO_CACHE`, else the place the operating system has for caches."""
    if chosen := os.environ.get("PISCO_CACHE"):
        return Path(chosen)
    import pooch

    return Path(pooch.os_cache("pisco"))


def folders(dataset: str) -> Iterator[Path]:
    """The folders that may hold a dataset's files, in the order they are searched."""
    if chosen := os.environ.get("PISCO_DATA"):
        if not Path(chosen).is_dir():
            raise InputError(f"PISCO_DATA is {chosen!r}, which is not a folder; correct it or unset it")
        yield Path(chosen) / dataset
    yield cache_folder() / dataset  # last, so that pooch is not needed where PISCO_DATA has the file


def find(dataset: str, file: str) -> Path | None:
    """The first place that has a dataset's file, or None."""
    return next((path for folder in folders(dataset) if (path := folder / file).is_file()), None)


def download(dataset: str, title: str, url: str, known_hash: str, wanted: Iterable[str]) -> Path:
    """Download a file into the cache, checked against `known_hash`.

    Args:
        dataset: folder name inside the cache.
        title: what to call the dataset when the download fails.
        url: address of the file; its last part names the file.
        known_hash: "sha256:..." or "md5:...".
        wanted: the files to put in place by hand when the download fails.
    """
    import pooch

    folder = cache_folder() / dataset
    try:
        return Path(pooch.retrieve(url, known_hash, fname=url.rsplit("/", 1)[-1], path=folder))
    except (OSError, ValueError) as error:
        raise InputError(
            f"{title} is not on this machine and {url} could not be downloaded ({type(error).__name__}); put "
            f"{', '.join(wanted)} into {folder}, or into {dataset}/ of the folder that PISCO_DATA names"
        ) from error


def check_sha256(what: str | Path, content: bytes, sha256: str) -> None:
    """Refuse content whose SHA-256 is not the published one."""
    found = hashlib.sha256(content).hexdigest()
    if found != sha256:
        raise InputError(
            f"{what} has SHA-256 {found[:12]}…, expected {sha256[:12]}…; "
            "it is damaged or another version: delete it, or replace it with the official file"
        )


def read_bytes(path: str | Path) -> bytes:
    """The content of a file, decompressed when its name ends in .gz, .bz2 or .xz."""
    path = Path(path)
    try:
        content = path.read_bytes()
    except OSError as error:
        raise InputError(f"cannot read {path} ({error.strerror or error}); check the path") from error
    method = {".gz": gzip, ".bz2": bz2, ".xz": lzma}.get(path.suffix)
    if method is None:
        return content
    try:
        return method.decompress(content)
    except (OSError, EOFError, ValueError, zlib.error, lzma.LZMAError) as error:
        raise InputError(f"{path} is not a complete {path.suffix} file ({error}); get it again") from error
