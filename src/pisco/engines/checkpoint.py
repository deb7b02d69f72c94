"""The project's one checkpoint format: readable with jax and numpy alone, atomic, and checked when read.

A file is the line `pisco checkpoint 1`, the length of a JSON header (8 bytes), the header (round, job, and name,
dtype and shape of every array), the arrays' bytes one after the other, and the SHA-256 of all that. Two are kept, so
a file that was cut short or damaged leaves the one before it.
"""

from __future__ import annotations

import hashlib
import json
import math
import os
import warnings
from pathlib import Path
from typing import Any, NamedTuple

import jax
import numpy as np

from pisco.errors import InputError

MAGIC = b"pisco checkpoint 1\n"
KEPT = 2


class Checkpoint(NamedTuple):
    """What a file holds: the round, the job's description, the history so far, and the state's leaves by name."""

    round: int
    job: dict[str, Any]
    history: dict[str, np.ndarray]
    leaves: dict[str, np.ndarray]

    def state(self, like: Any) -> Any:
        """The leaves in the structure of `like`, whose names, shapes and dtypes must agree."""
        expected = {jax.tree_util.keystr(p): leaf for p, leaf in jax.tree_util.tree_leaves_with_path(like)}
        odd = sorted(expected.keys() ^ self.leaves.keys())
        if odd:
            raise InputError(
                f"the checkpoint holds another state (differs in {', '.join(odd[:3])}); start anew"
            )
        for name, want in expected.items():
            found = self.leaves[name]
            if found.shape != want.shape or found.dtype != want.dtype:
                raise InputError(
                    f"{name} is {found.dtype}{found.shape} in the checkpoint, "
                    f"expected {want.dtype}{want.shape}; start anew"
                )
        return jax.tree.unflatten(jax.tree.structure(like), [self.leaves[name] for name in expected])


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


def save(
    folder: Path, round_index: int, job: dict[str, Any], history: dict[str, np.ndarray], state: Any
) -> Path:
    """Write the checkpoint of a round and drop all but the newest two."""
    folder.mkdir(parents=True, exist_ok=True)
    named = [("history", name, array) for name, array in history.items()]
    for path, leaf in jax.tree_util.tree_leaves_with_path(state):
        named.append(("state", jax.tree_util.keystr(path), leaf))
    arrays = [np.asarray(array, order="C") for _, _, array in named]
    header = {
        "round": round_index,
        "job": job,
        "arrays": [
            {"in": section, "name": name, "dtype": array.dtype.name, "shape": array.shape}
            for (section, name, _), array in zip(named, arrays, strict=True)
        ],
    }
    encoded = json.dumps(header).encode()
    body = b"".join([MAGIC, len(encoded).to_bytes(8, "big"), encoded, *(array.tobytes() for array in arrays)])
    path = folder / f"round-{round_index:09d}.ckpt"
    atomic_write(path, body + hashlib.sha256(body).digest())
    for old in _newest_first(folder)[KEPT:]:
        old.unlink(missing_ok=True)
    return path


def read(path: Path) -> Checkpoint:
    """One checkpoint file; raises `InputError` when it is damaged."""
    content = path.read_bytes()
    body, digest = content[:-32], content[-32:]
    if not body.startswith(MAGIC) or hashlib.sha256(body).digest() != digest:
        raise InputError(f"{path} is not a whole pisco checkpoint")
    at = len(MAGIC) + 8
    end = at + int.from_bytes(body[len(MAGIC) : at], "big")
    header = json.loads(body[at:end])
    sections: dict[str, dict[str, np.ndarray]] = {"history": {}, "state": {}}
    for record in header["arrays"]:
        dtype, shape = np.dtype(record["dtype"]), tuple(record["shape"])
        size = dtype.itemsize * math.prod(shape)
        sections[record["in"]][record["name"]] = np.frombuffer(body[end : end + size], dtype).reshape(shape)
        end += size
    return Checkpoint(header["round"], header["job"], sections["history"], sections["state"])


def latest(folder: Path) -> Checkpoint | None:
    """The newest whole checkpoint of a folder, or None; damaged ones are passed over with a warning."""
    for path in _newest_first(folder):
        try:
            return read(path)
        except (InputError, OSError, ValueError, KeyError) as error:
            warnings.warn(f"passing over a damaged checkpoint: {error}", stacklevel=2)
    return None


def check_job(found: dict[str, Any], wanted: dict[str, Any], folder: Path) -> None:
    """Refuse a checkpoint of another experiment, naming the first difference."""
    for name in wanted:
        if found.get(name) != wanted[name]:
            raise InputError(
                f"{folder} holds a checkpoint of another experiment: {name} was {found.get(name)!r} there and is "
                f"{wanted[name]!r} now; resume with the same settings or use another folder"
            )


def _newest_first(folder: Path) -> list[Path]:
    return sorted(folder.glob("round-*.ckpt"), reverse=True)
