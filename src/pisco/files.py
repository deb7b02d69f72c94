"""Writing files that others may be reading."""

from __future__ import annotations

import csv
import errno
import io
import os
import threading
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any


def atomic_write(path: Path, *pieces: Any, durable: bool = True) -> None:
    """Write a file so that a reader, or a kill at any moment, sees the old one or the new one.

    Where it need not be `durable`, it does not wait for the disk, and a loss of power may lose it. A link at `path` is
    replaced, not followed.
    """
    temporary = path.with_name(f".{path.name}.{os.getpid()}-{threading.get_ident()}.tmp")
    try:
        temporary.unlink(missing_ok=True)  # of a process that was killed; or a link that somebody laid out
        with temporary.open("xb") as file:
            file.writelines(pieces)
            if durable:
                file.flush()
                os.fsync(file.fileno())
        temporary.replace(path)
        if durable:
            _sync_folder(path.parent)
    finally:
        temporary.unlink(missing_ok=True)


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
