"""Writing files that others may be reading."""

from __future__ import annotations

import csv
import io
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any


def atomic_write(path: Path, *pieces: Any, durable: bool = True) -> None:
    """Write a file so that a reader, or a kill at any moment, sees the old one or the new one.

    Where it need not be `durable`, it does not wait for the disk, and a loss of power may lose it.
    """
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        with temporary.open("wb") as file:
            file.writelines(pieces)
            if durable:
                file.flush()
                os.fsync(file.fileno())
        temporary.replace(path)
    finally:
        temporary.unlink(missing_ok=True)


def write_csv(path: Path, records: Sequence[Mapping[str, Any]]) -> None:
    """Write records with the same keys as a table."""
    text = io.StringIO()
    writer = csv.DictWriter(text, fieldnames=list(records[0]), lineterminator="\n")
    writer.writeheader()
    writer.writerows(records)
    atomic_write(path, text.getvalue().encode())
