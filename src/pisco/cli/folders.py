"""Folders that results go to: claimed before anything is computed, and never overwritten."""

from __future__ import annotations

import itertools
import tempfile
from contextlib import suppress
from pathlib import Path

from pisco.engines.checkpoint import newest_round
from pisco.errors import InputError
from pisco.experiments import Config, load
from pisco.files import atomic_write
from pisco.results import SUMMARY_FILE, Result

CONFIG_FILE, CHECKPOINTS = "config.toml", "checkpoints"
MAY_CHANGE = ("run.rounds", "run.chunk_rounds", "run.engine")
"""What a resumed run may set anew."""


def writable(folder: Path, probe: str = ".pisco", content: bytes = b"") -> None:
    """Make the folder and write to it, or say at once that it cannot be done."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        atomic_write(folder / probe, content)
        if not content:
            (folder / probe).unlink()
    except OSError as error:
        raise InputError(
            f"cannot write to {folder} ({error.strerror or error}); nothing was computed, take another --out"
        ) from error


def claim(folder: Path, config: Config) -> None:
    """Take a new folder for a run and keep its configuration there."""
    if (folder / SUMMARY_FILE).exists():
        raise InputError(
            f"{folder} already holds a result; choose another --out, or go on from it with "
            f"`pisco run --resume {folder} --set run.rounds=…`"
        )
    if (folder / CONFIG_FILE).exists():
        raise InputError(
            f"{folder} holds a run that was cut short; continue it with `pisco run --resume {folder}`, or "
            "choose another --out"
        )
    record(folder, config)


def record(folder: Path, config: Config) -> None:
    """Keep the configuration in a folder that was claimed for it."""
    writable(folder, CONFIG_FILE, config.to_toml().encode())


def release(folder: Path) -> None:
    """Give a claimed folder back when its experiment could not be started."""
    if not (folder / CHECKPOINTS).exists():
        (folder / CONFIG_FILE).unlink(missing_ok=True)
        with suppress(OSError):  # other files of the user's are there
            folder.rmdir()


def unused(folder: Path) -> Path:
    """The folder itself, or the first of folder-2, folder-3, … that is not there yet."""
    tries = (
        folder if count == 1 else folder.with_name(f"{folder.name}-{count}") for count in itertools.count(1)
    )
    return next(path for path in tries if not path.exists())


def reopen(folder: Path, overrides: list[str]) -> Config:
    """The configuration of a run to go on with; only how long and how it runs may be set anew."""
    stored = folder / CONFIG_FILE
    if not stored.is_file():
        raise InputError(
            f"{folder} holds no run to resume: {CONFIG_FILE} is missing; `pisco run … --out` starts one"
        )
    before, config = load(stored), load(stored, overrides)
    old, new = _flat(before), _flat(config)
    for key in sorted(old.keys() | new.keys()):
        if old.get(key) != new.get(key) and key not in MAY_CHANGE:
            raise InputError(
                f"--resume cannot change {key} from {old.get(key)!r} to {new.get(key)!r}, only "
                f"{', '.join(MAY_CHANGE)}; start a new run with another --out"
            )
    done = newest_round(folder / CHECKPOINTS)
    if done is not None and config.run.rounds < done:
        raise InputError(
            f"{folder} has got to round {done} already; give --set run.rounds={done} or more, or start a new run"
        )
    record(folder, config)
    return config


def finished(folder: Path, config: Config) -> Result | None:
    """The result of a folder, when it has all the rounds asked for."""
    if not (folder / SUMMARY_FILE).exists():
        return None
    result = Result.load(folder)
    done = result.rounds >= config.run.rounds or result.diverged
    return result if done and not result.interrupted else None


def keep(result: Result, folder: Path, config: Config) -> Path:
    """Save a result, if need be where temporary files go: hours of computing must not end on a full disk."""
    try:
        return result.save(folder, config=config.to_dict())
    except OSError as error:
        spare = Path(tempfile.mkdtemp(prefix="pisco-"))
        try:
            result.save(spare, config=config.to_dict())
        except OSError:
            raise InputError(
                f"cannot save to {folder} ({error.strerror or error}); the checkpoints in "
                f"{folder / CHECKPOINTS} are kept: free some space and type `pisco run --resume {folder}`"
            ) from error
        raise InputError(
            f"cannot save to {folder} ({error.strerror or error}); the result was kept in {spare} instead"
        ) from error


def _flat(config: Config) -> dict[str, object]:
    tables = config.to_dict()
    return {
        f"{name}.{key}" if isinstance(table, dict) else name: value
        for name, table in tables.items()
        for key, value in (table.items() if isinstance(table, dict) else [("", table)])
    }
