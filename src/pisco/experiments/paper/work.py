"""How figures are computed: what is shown meanwhile, and where finished studies are kept."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Any, NamedTuple

from pisco._version import __version__
from pisco.errors import InputError
from pisco.experiments.tune import Trial, Tuned
from pisco.files import atomic_write
from pisco.results import Result

STUDIES = "studies"
"""The folder that finished studies are kept in."""

NOTE = "study.json"

Found = tuple[dict[str, Tuned], dict[tuple[str, float], Result]]
"""Every trial by p, and results by p and step size."""


def quiet(words: str, rounds: int) -> AbstractContextManager[None]:
    """A stage that shows nothing."""
    return nullcontext()


def uncut(results: list[Result]) -> list[Result]:
    """The same results, unless Ctrl-C cut them short: a part of a study is none."""
    if any(result.asked_to_stop for result in results):
        raise KeyboardInterrupt
    return results


class Keeper(NamedTuple):
    """Where one study is kept, if anywhere, and the key of what it was computed from."""

    folder: Path | None
    key: str

    def load(self) -> Found | None:
        """What an earlier run with the same key left, if it is whole."""
        if self.folder is None:
            return None
        try:
            note = json.loads((self.folder / NOTE).read_text())
            if note["key"] != self.key:
                return None
            trials = {
                p: Tuned(each["local_lr"], tuple(Trial(**t) for t in each["trials"]))
                for p, each in note["trials"].items()
            }
            results = {(p, lr): Result.load(self.folder / str(at)) for at, (p, lr) in enumerate(note["cells"])}
        except (InputError, OSError, ValueError, KeyError, TypeError):
            return None
        return trials, results

    def save(self, trials: Mapping[str, Tuned], results: Mapping[tuple[str, float], Result]) -> None:
        """Keep a finished study; its note comes last, so that what was cut short is computed again."""
        if self.folder is None:
            return
        for at, result in enumerate(results.values()):
            result.save(self.folder / str(at))
        told = {p: {"local_lr": t.local_lr, "trials": [each._asdict() for each in t.trials]} for p, t in trials.items()}
        note = {"key": self.key, "trials": told, "cells": list(results)}
        atomic_write(self.folder / NOTE, (json.dumps(note, indent=1) + "\n").encode())


class Work(NamedTuple):
    """What a figure is computed with: a way to show progress, and a folder to keep studies in."""

    stage: Callable[[str, int], AbstractContextManager[Any]] = quiet
    """Opens a piece of work of some rounds and gives what `run` takes as `progress`."""

    folder: Path | None = None

    def keeper(self, name: str, facts: Any) -> Keeper:
        """Where the study of this name, computed from these facts, is kept."""
        text = json.dumps([__version__, name, facts], sort_keys=True, default=str)
        key = hashlib.sha256(text.encode()).hexdigest()[:16]
        return Keeper(None if self.folder is None else self.folder / STUDIES / key, key)


QUIET = Work()
