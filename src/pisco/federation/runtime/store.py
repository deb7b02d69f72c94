"""What an agent or the server keeps on disk, so that a kill at any moment loses nothing.

The file is the project's checkpoint format (`pisco.engines.checkpoint`), written piece by piece and renamed into place.
That survives the death of the process. To survive the loss of power too, `durable` waits for the disk at every write.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import jax
import numpy as np

from pisco.engines import checkpoint
from pisco.errors import InputError
from pisco.federation.runtime.codec import MessageLayout
from pisco.federation.runtime.outbox import Outbox

KEPT = 2


class Store:
    """A folder with the newest two states of one member of a federation."""

    def __init__(self, folder: Path, *, member: str, federation: str, durable: bool = False):
        self.folder, self.durable = folder, durable
        self.identity = {"member": member, "federation": federation}
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)  # parameters and trackers tell of the data
        self._lock(member)

    def _lock(self, member: str) -> None:
        """Two processes on one store would write over each other."""
        import fcntl

        self._file = (self.folder / "lock").open("w")
        try:
            fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            self._file.close()
            raise InputError(
                f"{self.folder} is in use: {member!r} already runs there; stop it first"
            ) from None

    def close(self) -> None:
        """Let another process have the folder."""
        self._file.close()

    def load(self) -> checkpoint.Checkpoint | None:
        """The newest whole state, or None in a new folder."""
        found = checkpoint.latest(self.folder)
        if found is not None:
            mine = {name: found.job.get(name) for name in self.identity}
            if mine != self.identity:
                raise InputError(
                    f"{self.folder} holds the state of {mine['member']!r} in {mine['federation']!r}, not of "
                    f"{self.identity['member']!r} in {self.identity['federation']!r}; use another folder"
                )
        return found

    def save(
        self,
        round_: int,
        state: Any,
        *,
        outbox: Outbox,
        history: Mapping[str, np.ndarray],
        notes: Mapping[str, Any],
    ) -> None:
        """Write the state after a round, with the messages that a peer may still ask for."""
        messages = outbox.kept()
        about = {
            f"message {r} {p}": {"layout": str(message.layout), "readers": sorted(message.readers)}
            for (r, p), message in messages.items()
        }
        named: list[tuple[str, str, Any]] = [("history", name, array) for name, array in history.items()]
        named += [
            ("history", f"message {r} {p}", np.frombuffer(m.data, np.uint8)) for (r, p), m in messages.items()
        ]
        named += [
            ("state", jax.tree_util.keystr(path), leaf)
            for path, leaf in jax.tree_util.tree_leaves_with_path(state)
        ]
        arrays = [np.ascontiguousarray(array) for _, _, array in named]
        header = {
            "round": round_,
            "job": self.identity | {"floors": outbox.floors(), "messages": about} | dict(notes),
            "arrays": [
                {"in": section, "name": name, "dtype": array.dtype.name, "shape": np.shape(given)}
                for (section, name, given), array in zip(named, arrays, strict=True)
            ],
        }
        encoded = json.dumps(header).encode()
        self._write(
            self.folder / f"round-{round_:09d}.ckpt",
            [checkpoint.MAGIC, len(encoded).to_bytes(8, "big"), encoded, *map(_bytes, arrays)],
        )
        for old in sorted(self.folder.glob("round-*.ckpt"), reverse=True)[KEPT:]:
            old.unlink(missing_ok=True)

    def _write(self, path: Path, pieces: list[Any]) -> None:
        temporary, digest = path.with_suffix(".tmp"), hashlib.sha256()
        with temporary.open("wb", buffering=0) as file:
            for piece in pieces:
                digest.update(piece)
                _write_all(file, piece)
            _write_all(file, digest.digest())
            if self.durable:
                os.fsync(file.fileno())
        temporary.replace(path)


def _write_all(file: Any, piece: Any) -> None:
    view = memoryview(piece)
    while view.nbytes:
        view = view[file.write(view) :]


def _bytes(array: np.ndarray) -> Any:
    """An array's memory; bfloat16 has no buffer of its own kind."""
    return array.reshape(-1).view(np.uint8).data


def outbox_of(found: checkpoint.Checkpoint | None) -> Outbox:
    """The messages that were kept, ready to be pulled again."""
    if found is None:
        return Outbox({})
    outbox = Outbox(found.job["floors"])
    for name, about in found.job["messages"].items():
        _, round_, phase = name.split()
        data = found.history[name].tobytes()
        outbox.publish(int(round_), int(phase), MessageLayout.parse(about["layout"]), data, about["readers"])
    return outbox
