"""What an agent or the server keeps on disk, so that a kill at any moment loses nothing.

The file is a checkpoint (`pisco.engines.checkpoint`), which survives the death of the process. To survive the loss of
power too, every write waits for the disk unless it need not be `durable`.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from pisco.engines import checkpoint
from pisco.errors import InputError
from pisco.federation.runtime.codec import BadMessage, MessageLayout
from pisco.federation.runtime.outbox import Outbox

log = logging.getLogger("pisco.federation")


class Store:
    """A folder with the newest two states of one member of a federation."""

    def __init__(self, folder: Path, *, member: str, federation: str, durable: bool = True):
        self.folder, self.durable = folder, durable
        self.identity = {"member": member, "federation": federation}
        _make_private(folder)
        self._lock(member)

    def _lock(self, member: str) -> None:
        """Two processes on one store would write over each other."""
        import fcntl

        self._file = (self.folder / "lock").open("w")
        try:
            fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            self._file.close()
            raise InputError(f"{self.folder} is in use: {member!r} already runs there; stop it first") from None

    def close(self) -> None:
        """Let another process have the folder."""
        self._file.close()

    def load(self) -> checkpoint.Checkpoint | None:
        """The newest whole state, or None in a new folder."""
        found = checkpoint.latest(self.folder)
        if found is None and checkpoint.newest_round(self.folder) is not None:
            # From round 0 it would be refused by everybody, or tell them other numbers than before.
            raise InputError(
                f"every checkpoint in {self.folder} is damaged, and a member cannot start over; bring back the folder "
                "from a copy, or move the files round-*.ckpt away where the whole federation starts over"
            )
        if found is not None:
            mine = {name: found.job.get(name) for name in self.identity}
            if mine != self.identity:
                raise InputError(
                    f"{self.folder} holds the state of {mine['member']!r} in {mine['federation']!r}, not of "
                    f"{self.identity['member']!r} in {self.identity['federation']!r}; use another folder"
                )
        return found

    def save(
        self, round_: int, state: Any, *, outbox: Outbox, history: Mapping[str, np.ndarray], notes: Mapping[str, Any]
    ) -> None:
        """Write the state after a round, with the messages that a peer may still ask for."""
        messages = outbox.kept()
        about = {
            f"message {r} {p}": {"layout": str(message.layout), "readers": sorted(message.readers)}
            for (r, p), message in messages.items()
        }
        data = {f"message {r} {p}": np.frombuffer(m.data, np.uint8) for (r, p), m in messages.items()}
        job = self.identity | {"floors": outbox.floors(), "messages": about} | dict(notes)
        leaves = checkpoint.named_leaves(state)
        made = checkpoint.Checkpoint(round_, job, dict(history) | data, leaves)
        checkpoint.save(self.folder, made, durable=self.durable)


def _make_private(folder: Path) -> None:
    """A folder for its owner alone: parameters and trackers tell of the data."""
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    if os.name == "posix" and folder.stat().st_mode & 0o077:
        try:
            folder.chmod(0o700)
        except OSError as error:
            raise InputError(
                f"{folder} can be read by others and is not ours to close ({error.strerror}); use another folder"
            ) from None
        log.info("%s could be read by others; it is for its owner alone now", folder)


def outbox_of(found: checkpoint.Checkpoint | None) -> Outbox:
    """The messages that were kept, ready to be pulled again."""
    if found is None:
        return Outbox({})
    outbox = Outbox(found.job["floors"])
    for name, about in found.job["messages"].items():
        _, round_, phase = name.split()
        data = found.history[name].tobytes()
        outbox.publish(int(round_), int(phase), kept_layout(about["layout"]), data, about["readers"])
    return outbox


def kept_layout(text: str) -> MessageLayout:
    """A layout in a state on disk, which another version may have written."""
    try:
        return MessageLayout.parse(text)
    except BadMessage:
        raise InputError(
            f"the state on disk holds messages of the kind {text[:60]!r}, which this version does not know; go on with "
            "the version of pisco that wrote it, or let everybody start over with empty folders"
        ) from None
