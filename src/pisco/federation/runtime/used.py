"""What an agent has masked in the newest round, on disk: no mask hides two vectors, and no vector is in two sums.

Their difference would tell them apart. After a restart the same vector is masked again, and is the same message; other
data, or another kind of machine, would make it another one.

The file has two places, written in turn and in place: a write that a loss of power cuts short is one whose message
nobody was given, and the other place holds what was before. Nothing is renamed, so that it does not wait for what
everybody else writes to the same disk.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
from cryptography.hazmat.primitives.poly1305 import Poly1305

from pisco.errors import InputError
from pisco.federation.runtime.peers import Stopped
from pisco.files import atomic_write

PLACE = 1 << 12
"""Bytes of a place."""


class UsedMasks:
    """The note of an agent with its state in a folder."""

    def __init__(self, folder: Path, *, durable: bool):
        self.path, self.durable = folder / "masks-used.json", durable
        self._writing = ThreadPoolExecutor(1, thread_name_prefix="notes")
        self._writes, self.round, self.sums = self._kept() if self.path.exists() else (0, -1, {})

    def take(self, k: int, phase: int, context: bytes, arrays: Sequence[np.ndarray]) -> Callable[[], None]:
        """Note a sum and what goes into it; refuse another one in its place.

        It is on disk once what is returned was called: before that, nobody may have the message.
        """
        if k > self.round:
            self.round, self.sums = k, {}
        # Against accidents: nobody else writes here. Any quick hash would do.
        tag = Poly1305(bytes(range(32)))
        for array in arrays:
            tag.update(np.ascontiguousarray(array).reshape(-1).view(np.uint8).data)
        mark = hashlib.sha256(context + tag.finalize()).hexdigest()
        if k < self.round or self.sums.get(str(phase)) not in (None, mark):
            raise Stopped(
                f"another vector was masked in round {k} before, and the two together would reveal both to the server; "
                "start again with the same data on the same kind of machine, or let everybody start over"
            )
        self.sums[str(phase)] = mark
        self._writes += 1
        # The disk is waited for while the message is made.
        return self._writing.submit(self._write, self._writes, self.round, dict(self.sums)).result

    def _write(self, *facts: Any) -> None:
        place, line = facts[0] % 2, _line(facts)
        if not self.path.exists():
            atomic_write(self.path, line + line, durable=self.durable)
        with self.path.open("r+b", buffering=0) as file:
            file.seek(place * PLACE)
            file.write(line)
            if self.durable:
                getattr(os, "fdatasync", os.fsync)(file.fileno())  # its length stays: no need to wait for the rest

    def _kept(self) -> tuple[int, int, dict[str, str]]:
        data = self.path.read_bytes()
        found = [_facts(data[at : at + PLACE]) for at in (0, PLACE)]
        if not any(found):
            raise InputError(f"{self.path} is damaged; bring it back from a copy, or start the whole federation over")
        return max(facts for facts in found if facts)


def _line(facts: Sequence[Any]) -> bytes:
    text = json.dumps(facts).encode()
    line = hashlib.sha256(text).hexdigest().encode() + b" " + text
    if len(line) >= PLACE:
        raise Stopped(f"round {facts[1]} has {len(facts[2])} sums, and no more can be noted")
    return line.ljust(PLACE - 1) + b"\n"


def _facts(line: bytes) -> Any:
    mark, _, text = line.strip().partition(b" ")
    return tuple(json.loads(text)) if hashlib.sha256(text).hexdigest().encode() == mark else None
