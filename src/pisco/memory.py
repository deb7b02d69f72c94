"""What this machine can hold: sizes are checked before anything is built."""

from __future__ import annotations

import math
import os
from pathlib import Path

from pisco.errors import InputError

_LIMITS = ("/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory/memory.limit_in_bytes")


def host_memory() -> float:
    """Bytes of memory that this machine, or the container around this process, has; infinite where it is unknown."""
    try:
        least = float(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"))
    except (AttributeError, OSError, ValueError):
        return math.inf
    for limit in map(Path, _LIMITS):
        try:
            least = min(least, float(limit.read_text()))
        except (OSError, ValueError):  # no such file, or "max"
            continue
    return least


def check_fits(what: str, needed: float, fix: str, room: float | None = None) -> None:
    """Refuse what certainly needs more bytes than there are: in memory, unless another `room` is given."""
    room = host_memory() if room is None else room
    if needed > room:
        amounts = f"{needed / 1e9:,.0f} GB of memory and there are {room / 1e9:,.0f}"
        raise InputError(f"{what} needs about {amounts}; {fix}")
