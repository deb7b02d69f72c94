"""Writing files that others may be reading."""

from __future__ import annotations

import csv
import errno
import io
import json
import os
import threading
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from pisco.errors import InputError

_BINARY = getattr(os, "O_BINARY", 0)  # where files have kinds


def atomic_write(path: Path, *pieces: Any, durable: bool = True, private: bool = False) -> None:
    """Write a file so that a reader, or a kill at any moment, sees the old one or the new one.

    Where it need not be `durable`, it does not wait for the disk, and a loss of power may lose it. A link at `path` is
    replaced, not followed; a device or a pipe, as `/dev/null`, is refused: a file would take its place, for everybody.
    Only its owner can read a `private` one, from the moment that it is made.
    """
    odd = path.exists() and not (path.is_file() or path.is_dir())
    if odd or path.absolute().parent == Path("/dev"):  # whose links stand for what is open
        raise InputError(f"cannot write {path}, which is a device or a pipe; give the path of a file")
    temporary = path.with_name(f".{path.name}.{os.getpid()}-{threading.get_ident()}.tmp")
    try:
        temporary.unlink(missing_ok=True)  # of a process that was killed; or a link that somebody laid out
        made = os.open(temporary, os.O_RDWR | os.O_CREAT | os.O_EXCL | _BINARY, 0o600 if private else 0o666)
        with os.fdopen(made, "wb") as file:
            file.writelines(pieces)
            if durable:
                file.flush()
                os.fsync(file.fileno())
        temporary.replace(path)
        if durable:
            _sync_folder(path.parent)
    finally:
        temporary.unlink(missing_ok=True)


def read_json(path: Path, fix: str) -> Any:
    """What a file of ours holds; one that is damaged is refused with what to do about it."""
    try:
        return json.loads(path.read_text())
    except ValueError:  # of either kind: no JSON, or no text
        raise InputError(f"{path} is damaged; {fix}") from None


def _sync_folder(folder: Path) -> None:
    """Wait until the names in a folder are on disk: without it a new file may be gone after a loss of power."""
    if os.name != "posix":
        return
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    except OSError as error:
        if error.errno not in (errno.EINVAL, errno.ENOTSUP):  # file systems that cannot
            raise
    finally:
        os.close(handle)


def write_csv(path: Path, records: Sequence[Mapping[str, Any]]) -> None:
    """Write records with the same keys as a table."""
    text = io.StringIO()
    writer = csv.DictWriter(text, fieldnames=list(records[0]), lineterminator="\n")
    writer.writeheader()
    writer.writerows(records)
    atomic_write(path, text.getvalue().encode())
