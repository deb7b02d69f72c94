"""A long study in pieces: finished ones are kept, and several processes with one folder share what is left."""

from __future__ import annotations

import hashlib
import json
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from pisco.errors import InputError
from pisco.files import atomic_write
from pisco.results import Result

Piece = Sequence[Any]
"""What one call computes, one result for each; it tells a piece from others."""

WHOLE = "whole"
POLL = 1.0
"""Seconds between two looks at what other processes have finished."""


def in_pieces(
    folder: Path | None, pieces: Sequence[Piece], facts: Any, compute: Callable[[Piece], list[Result]]
) -> list[Result]:
    """The results of all pieces in their order: loaded, computed here, or waited for while another process does.

    `facts` is what they have in common, for their names. Without a folder nothing is kept.
    """
    if folder is None:
        return [result for piece in pieces for result in compute(piece)]
    found: dict[int, list[Result]] = {}
    while len(found) < len(pieces):
        before = len(found)
        for at, piece in enumerate(pieces):
            if at in found:
                continue
            name = hashlib.sha256(json.dumps([list(piece), facts], default=str).encode()).hexdigest()[:16]
            place = folder / f"piece-{name}"
            with _claimed(place) as mine:
                kept = _load(place, len(piece))
                if kept is None and mine:
                    kept = compute(piece)
                    _save(place, kept)
            if kept is not None:
                found[at] = kept
        if len(found) == before:
            time.sleep(POLL)
    return [result for at in range(len(pieces)) for result in found[at]]


@contextmanager
def _claimed(place: Path) -> Iterator[bool]:
    """Whether this process may compute a piece: no other does. A process that dies gives up its claim."""
    place.mkdir(parents=True, exist_ok=True)
    try:
        import fcntl
    except ImportError:  # Windows: no sharing
        yield True
        return
    with (place / "claim").open("a") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            yield False
            return
        yield True


def _save(place: Path, results: Sequence[Result]) -> None:
    for at, result in enumerate(results):
        result.save(place / str(at))
    atomic_write(place / WHOLE, b"")  # last: what was cut short is computed again


def _load(place: Path, count: int) -> list[Result] | None:
    if not (place / WHOLE).exists():
        return None
    try:
        return [Result.load(place / str(at)) for at in range(count)]
    except (InputError, OSError, ValueError, KeyError, TypeError):  # damaged
        return None
