"""The project's one checkpoint format: readable with jax and numpy alone, atomic, and checked when read.

A file is the line `pisco checkpoint 1`, the length of a JSON header (8 bytes), the header (round, job, and name,
dtype and shape of every array), the arrays' bytes one after the other, and the SHA-256 of all that. Two are kept, so
a file that was cut short or damaged leaves the one before it.

Where several processes hold the agents, each writes those it has as a part, `round-N.part-I-of-M`, in the same format;
the file `round-N.ckpt`, written last, names the parts with their SHA-256 and makes them a checkpoint.
"""

from __future__ import annotations

import hashlib
import json
import math
import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import jax
import numpy as np

from pisco.errors import InputError
from pisco.files import atomic_write

MAGIC = b"pisco checkpoint 1\n"
KEPT = 2


class Checkpoint(NamedTuple):
    """What a file holds: the round, the job's description, the history so far, and the state's leaves by name."""

    round: int
    job: dict[str, Any]
    history: dict[str, np.ndarray]
    leaves: dict[str, Any]

    def state(self, like: Any) -> Any:
        """The leaves in the structure of `like`, whose names, shapes and dtypes must agree."""
        expected = named_leaves(like)
        odd = sorted(expected.keys() ^ self.leaves.keys())
        if odd:
            raise InputError(
                f"the checkpoint holds another state (differs in {', '.join(odd[:3])}); start from round 0"
            )
        for name, want in expected.items():
            found = self.leaves[name]
            if found.shape != want.shape or found.dtype != want.dtype:
                raise InputError(
                    f"{name} is {found.dtype}{found.shape} in the checkpoint, "
                    f"expected {want.dtype}{want.shape}; start from round 0"
                )
        return jax.tree.unflatten(jax.tree.structure(like), [self.leaves[name] for name in expected])


def save(folder: Path, made: Checkpoint, parts: Sequence[dict[str, Any]] = (), *, durable: bool = True) -> Path:
    """Write the checkpoint of a round and drop all but the newest two; `parts` are those written before."""
    header = {"round": made.round, "job": made.job} | ({"parts": list(parts)} if parts else {})
    path = folder / f"round-{made.round:09d}.ckpt"
    _write(path, header, made.history, made.leaves, durable)
    kept = _newest_first(folder)
    old = [part for part in folder.glob("round-*.part-*") if part.name[: len(path.stem)] < kept[:KEPT][-1].stem]
    for file in [*kept[KEPT:], *old, *folder.glob(".round-*.tmp")]:  # the last: of those who were killed
        file.unlink(missing_ok=True)
    return path


def newest_round(folder: Path) -> int | None:
    """The round of the newest checkpoint, by its name alone; None where there is none."""
    found = _newest_first(folder)
    return int(found[0].stem.removeprefix("round-")) if found else None


def save_part(
    folder: Path, round_index: int, part: tuple[int, int], first: int, leaves: dict[str, np.ndarray]
) -> dict[str, Any]:
    """Write part I of M: the rows of the agents from `first` on. Returns what the checkpoint says of it."""
    name = f"round-{round_index:09d}.part-{part[0]}-of-{part[1]}"
    digest = _write(folder / name, {"round": round_index, "job": {}}, {}, leaves)
    return {"name": name, "first": first, "sha256": digest.hex()}


def named_leaves(state: Any) -> dict[str, Any]:
    """The leaves of a state by their names in a file."""
    return {jax.tree_util.keystr(path): leaf for path, leaf in jax.tree_util.tree_leaves_with_path(state)}


def _write(
    path: Path, header: dict[str, Any], history: dict[str, Any], leaves: dict[str, Any], durable: bool = True
) -> bytes:
    """Write a file piece by piece, so that a large state is not copied first. Returns its SHA-256."""
    arrays = [
        (section, name, np.asarray(array, order="C"))
        for section, held in (("history", history), ("state", leaves))
        for name, array in held.items()
    ]
    header["arrays"] = [
        {"in": section, "name": name, "dtype": array.dtype.name, "shape": array.shape}
        for section, name, array in arrays
    ]
    encoded = json.dumps(header).encode()
    pieces = [MAGIC, len(encoded).to_bytes(8, "big"), encoded]
    pieces += [array.reshape(-1).view(np.uint8).data for _, _, array in arrays]  # bfloat16 has no buffer of its own
    digest = hashlib.sha256()
    for piece in pieces:
        digest.update(piece)
    path.parent.mkdir(parents=True, exist_ok=True)
    atomic_write(path, *pieces, digest.digest(), durable=durable)
    return digest.digest()


def read(path: Path) -> Checkpoint:
    """One checkpoint with its parts; raises `InputError` when something is damaged."""
    header, sections, _ = _decode(path)
    leaves = sections["state"]
    pieces: dict[str, list[np.ndarray]] = {}
    for part in sorted(header.get("parts", ()), key=lambda part: part["first"]):
        _, held, digest = _decode(path.parent / part["name"])
        if digest.hex() != part["sha256"]:
            raise InputError(f"{path.parent / part['name']} is not the part that {path.name} names")
        for name, rows in held["state"].items():
            pieces.setdefault(name, []).append(rows)
    joined = {name: np.concatenate(rows, axis=1) for name, rows in pieces.items()}  # runs, agents, …
    return Checkpoint(header["round"], header["job"], sections["history"], leaves | joined)


def _decode(path: Path) -> tuple[dict[str, Any], dict[str, dict[str, np.ndarray]], bytes]:
    content = path.read_bytes()
    body, digest = memoryview(content)[:-32], content[-32:]
    if not content.startswith(MAGIC) or hashlib.sha256(body).digest() != digest:
        raise InputError(f"{path} is not a whole pisco checkpoint")
    at = len(MAGIC) + 8
    end = at + int.from_bytes(body[len(MAGIC) : at], "big")
    header = json.loads(bytes(body[at:end]))
    sections: dict[str, dict[str, np.ndarray]] = {"history": {}, "state": {}}
    for record in header["arrays"]:
        dtype, shape = np.dtype(record["dtype"]), tuple(record["shape"])
        size = dtype.itemsize * math.prod(shape)
        sections[record["in"]][record["name"]] = np.frombuffer(body[end : end + size], dtype).reshape(shape)
        end += size
    return header, sections, digest


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
