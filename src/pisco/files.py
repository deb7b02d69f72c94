"""Writing files that others may be reading."""

from __future__ import annotations

import os
from pathlib import Path


def atomic_write(path: Path, content: bytes) -> None:
    """Write a file so that a reader, or a kill at any moment, sees the old one or the new one."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        with temporary.open("wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(path)
    finally:
        temporary.unlink(missing_ok=True)
