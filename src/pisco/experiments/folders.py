"""Folders that runs live in: claimed before anything is computed, never overwritten, and gone on from."""

from __future__ import annotations

import itertools
import json
import tempfile
import warnings
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from shlex import quote

from pisco.engines.checkpoint import newest_round
from pisco.engines.driver import Progress
from pisco.errors import InputError
from pisco.experiments.config import Config
from pisco.experiments.loading import load
from pisco.files import atomic_write
from pisco.results import SUMMARY_FILE, Result
from pisco.settings.options import files

CONFIG_FILE, CHECKPOINTS, FILES = "config.toml", "checkpoints", "files.json"
MAY_CHANGE = ("run.rounds", "run.chunk_rounds", "run.engine")
"""What a resumed run may set again."""


def resume(
    folder: str | Path,
    *,
    rounds: int | None = None,
    chunk_rounds: int | None = None,
    engine: str | None = None,
    progress: bool | Callable[[Progress], None] | None = None,
) -> Result:
    """Go on with the run that `pisco run … --out` began in a folder, and keep its result there.

    From the newest whole checkpoint, to the same bits as a run that was never cut short; `rounds` prolongs it, a
    complete run is only read. Only what has a keyword here may change; `progress` is as for `pisco.run`.
    """
    if not isinstance(folder, str | Path):
        raise InputError(f"the folder is {folder!r}, expected one that `pisco run … --out` began")
    folder = Path(folder)
    changes = {"rounds": rounds, "chunk_rounds": chunk_rounds, "engine": engine}
    config = reopen(folder, [f"run.{name}={value}" for name, value in changes.items() if value is not None])
    whole = finished(folder, config)
    if whole is not None:
        return whole
    config = with_step(folder, config)
    result = config.execute(checkpoint=folder / CHECKPOINTS, resume=True, progress=progress)
    keep(result, folder, config)
    return result


def writable(folder: Path, probe: str = ".pisco", content: bytes = b"") -> None:
    """Make the folder and write to it, or say at once that it cannot be done."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        atomic_write(folder / probe, content)
        if not content:
            (folder / probe).unlink()
    except OSError as error:
        raise InputError(
            f"cannot write to {folder} ({error.strerror or error}); nothing was computed, take another folder"
        ) from error


def claim(folder: Path, config: Config) -> None:
    """Take a new folder for a run and keep its configuration there."""
    if (folder / SUMMARY_FILE).exists():
        raise InputError(
            f"{folder} already holds a result; choose another --out, or go on from it with "
            f"`pisco run --resume {quote(str(folder))} --set run.rounds=…`"
        )
    if (folder / CONFIG_FILE).exists():
        raise InputError(
            f"{folder} holds a run that was cut short; continue it with `pisco run --resume {quote(str(folder))}`, or "
            "choose another --out"
        )
    record(folder, config)
    own = _own_files(config)
    if own:
        writable(folder, FILES, json.dumps(own, indent=1).encode())


def _own_files(config: Config) -> dict[str, str]:
    """The SHA-256 of every file of the user's that an experiment runs or reads its network from."""
    return {str(path): digest for path, digest in files(config.to_dict()).items()}


def _warn_of_changes(folder: Path, config: Config) -> None:
    """A run that goes on with other files than it began with is neither the old one nor the new one."""
    try:
        before = dict(json.loads((folder / FILES).read_text()))
    except (OSError, ValueError, TypeError):  # of a run that names none, or one by an earlier version
        return
    for path, digest in _own_files(config).items():
        if before.get(path, digest) != digest:
            warnings.warn(
                f"{path} has changed since {folder} began, and the rounds so far used the old file; put that back, or "
                "start a new run in another folder",
                stacklevel=3,
            )


def record(folder: Path, config: Config) -> None:
    """Keep the configuration in a folder that was claimed for it."""
    writable(folder, CONFIG_FILE, config.to_toml().encode())


def with_step(folder: Path, config: Config) -> Config:
    """The experiment with a number for `local_lr = "auto"`, which its folder records."""
    if config.algorithm.is_auto:
        config = config.resolved()
        record(folder, config)
    return config


def release(folder: Path) -> None:
    """Give a claimed folder back when its experiment could not be started."""
    if not (folder / CHECKPOINTS).exists():
        for name in (CONFIG_FILE, FILES):
            (folder / name).unlink(missing_ok=True)
        with suppress(OSError):  # other files of the user's are there
            folder.rmdir()


def unused(folder: Path) -> Path:
    """The folder itself, or the first of folder-2, folder-3, … that is not there yet."""
    tries = (folder if count == 1 else folder.with_name(f"{folder.name}-{count}") for count in itertools.count(1))
    return next(path for path in tries if not path.exists())


def reopen(folder: Path, overrides: list[str]) -> Config:
    """The configuration of a run to go on with; only how long and how it runs may be set again."""
    stored = folder / CONFIG_FILE
    if not stored.is_file():
        raise InputError(f"{folder} holds no run to resume: {CONFIG_FILE} is missing; `pisco run … --out` starts one")
    before, config = load(stored), load(stored, overrides)
    old, new = before.flat(), config.flat()
    for key in sorted(old.keys() | new.keys()):
        if old.get(key) != new.get(key) and key not in MAY_CHANGE:
            raise InputError(
                f"a resumed run cannot change {key} from {old.get(key)!r} to {new.get(key)!r}, only "
                f"{', '.join(MAY_CHANGE)}; start a new run in another folder"
            )
    done = newest_round(folder / CHECKPOINTS)
    if done is not None and config.run.rounds < done:
        raise InputError(
            f"{folder} has got to round {done} already; give run.rounds={done} or more, or start a new run"
        )
    if done is not None:
        _warn_of_changes(folder, config)
    record(folder, config)
    return config


def finished(folder: Path, config: Config) -> Result | None:
    """The result of a folder, when it is whole and has all the rounds asked for."""
    if not (folder / SUMMARY_FILE).exists():
        return None
    try:
        result = Result.load(folder)
    except InputError as error:
        if newest_round(folder / CHECKPOINTS) is None:
            raise
        warnings.warn(f"{str(error).partition(';')[0]}; going on from its checkpoints", stacklevel=2)
        return None
    done = result.rounds >= config.run.rounds or result.diverged
    return result if done and not result.interrupted else None


def keep(result: Result, folder: Path, config: Config) -> Path:
    """Save a result, if needed where temporary files go: hours of computing must not end on a full disk."""
    try:
        return result.save(folder, config=config.to_dict())
    except (InputError, OSError) as error:
        cause = error.__cause__ or error
        said = f"cannot save to {folder} ({getattr(cause, 'strerror', None) or cause})"
        spare = Path(tempfile.mkdtemp(prefix="pisco-"))
        try:
            result.save(spare, config=config.to_dict())
        except (InputError, OSError):
            raise InputError(
                f"{said}; the checkpoints in {folder / CHECKPOINTS} are kept: free some space and type "
                f"`pisco run --resume {quote(str(folder))}`"
            ) from error
        raise InputError(f"{said}; the result was kept in {spare} instead") from error
