"""Shakespeare by play and role: who says what, the samples, the order in time, and bad input."""

import hashlib
import io
import os
import tarfile
from pathlib import Path

import numpy as np
import pytest

from pisco import data
from pisco.data import shakespeare
from pisco.errors import InputError

DATA = Path(os.environ.get("PISCO_DATA", "no-such-folder"))

PLAY = """A PLAY

by William Shakespeare

ANN.
Persons before the first act say nothing.

ACT I.
SCENE I. A wood.

[Enter ANN
and BOB.]

ANN.
{ann}

[Thunder.]

And this is mine too.

Bob.
[Aside.] {bob}

SCENE II.

Nobody says this.

ANN
The end.
"""


@pytest.fixture
def small(monkeypatch, tmp_path):
    """Two plays under their own checksum; the roles of the second say less."""
    texts = {
        "one_gut.txt": PLAY.format(ann="abcdefg" * 43, bob="hijklmnop" * 17),
        "two_play_gut.txt": PLAY.format(ann="abc" * 33, bob="short"),
    }
    with tarfile.open(tmp_path / shakespeare.ARCHIVE, "w:xz") as archive:
        for name, text in texts.items():
            member = tarfile.TarInfo(f"texts/{name}")
            member.size = len(text)
            archive.addfile(member, io.BytesIO(text.encode()))
    joined = b"".join(name.encode() + texts[name].encode() for name in sorted(texts))
    monkeypatch.setattr(shakespeare, "CONTENT", hashlib.sha256(joined).hexdigest())
    monkeypatch.setenv("PISCO_DATA", str(tmp_path))
    monkeypatch.setenv("PISCO_CACHE", str(tmp_path / "cache"))
    shakespeare.speeches.cache_clear()
    yield tmp_path
    shakespeare.speeches.cache_clear()


def found():
    return next(each.found for each in data.available() if each.name == "shakespeare")


def text_of(dataset, part=""):
    classes = np.array(dataset.classes)
    return ["".join(row) for row in classes[getattr(dataset, f"{part}features")]]


def test_roles_say_what_is_theirs(small):
    said = shakespeare.speeches()
    assert list(said) == ["one: ANN", "one: BOB", "two play: ANN", "two play: BOB"]
    assert said["one: ANN"] == "abcdefg" * 43 + "\nAnd this is mine too.\nThe end."
    assert said["one: BOB"] == "hijklmnop" * 17 and said["two play: BOB"] == "short"


def test_samples_ask_for_the_next_character_and_tests_come_later(small):
    read = data.load("shakespeare", length=10, test=0.25)
    whole = shakespeare.speeches()["one: ANN"]
    mine, trained = np.flatnonzero(read.groups == 0), len(whole) - round(0.25 * len(whole))
    assert np.unique(read.groups).tolist() == [0, 1, 2]  # "short" is too short
    for at, row in enumerate(mine):
        assert text_of(read)[row] == whole[10 * at : 10 * at + 10]
        assert read.classes[read.labels[row]] == whole[10 * at + 10]
    assert 10 * len(mine) < trained <= 10 * len(mine) + 10
    # Its test samples are cut from what follows, and none is begun before.
    assert text_of(read, "test_")[0] == whole[trained : trained + 10]
    assert set(read.test_labels.tolist()) <= set(read.labels.tolist())
    close = data.load("shakespeare", length=10, stride=1, roles=2)
    assert np.unique(close.groups).tolist() == [0, 1] and close.num_samples > 8 * (read.groups < 2).sum()
    parts = data.partition.deal(read, "by_group", 2)
    assert [np.unique(read.groups[part]).tolist() for part in parts] == [[0], [1]]


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"length": 0}, "length is 0"),
        ({"length": 5000}, "no author in shakespeare has enough text for samples of 5000 tokens"),
        ({"stride": 0}, "stride is 0"),
        ({"length": 10, "roles": 9}, "roles is 9, expected a number at least 1 and at most 3"),
        ({"roles": 0}, "roles is 0, expected a number at least 1"),
        ({"test": 0}, "test is 0"),
        ({"vocabulary": 100}, "vocabulary is 100"),
        ({"lenght": 5}, "did you mean 'length'"),
    ],
)
def test_bad_options_are_named(small, options, words):
    with pytest.raises(InputError, match=words):
        data.load("shakespeare", **options)


def test_missing_damaged_and_other_archives(small, monkeypatch):
    path = small / shakespeare.ARCHIVE
    assert found() == path
    whole = path.read_bytes()
    monkeypatch.setattr(shakespeare, "CONTENT", "other")
    with pytest.raises(InputError, match="holds other texts"):
        data.load("shakespeare")
    for content in (whole[:150], b"no archive"):
        path.write_bytes(content)
        with pytest.raises(InputError, match="not a complete archive"):
            data.load("shakespeare")
    path.unlink()
    assert found() is None
    with pytest.raises(InputError, match=r"put shakespeare\.tar\.xz.*PISCO_DATA"):
        data.load("shakespeare")


@pytest.mark.skipif(not (DATA / shakespeare.ARCHIVE).is_file(), reason=f"PISCO_DATA has no {shakespeare.ARCHIVE}")
def test_the_plays_have_their_roles():
    said = shakespeare.speeches()
    assert list(said)[:2] == ["hamlet: HAM", "othello: IAGO"]
    assert len({name.split(":")[0] for name in said}) == 37  # plays; the poems have no roles
    assert said["hamlet: HAM"].startswith("A little more than kin, and less than kind!\nNot so, my lord;")
    read = data.load("shakespeare", roles=32)
    assert read.features.shape[1] == 80 and read.features.dtype == np.uint8 and len(read.classes) == 83
    assert np.unique(read.groups).tolist() == list(range(32))
