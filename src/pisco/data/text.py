"""Texts by author as samples that ask for the next token: characters, or pieces found by byte-pair encoding (BPE)."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from pisco.data.dataset import Dataset
from pisco.data.storage import read_bytes
from pisco.errors import InputError, check_counts, check_number, path_of
from pisco.memory import check_fits

__all__ = ["Tokenizer", "bpe", "by_author", "characters", "load_texts"]


class Tokenizer(NamedTuple):
    """Texts as numbers, and what the numbers stand for."""

    pieces: tuple[str, ...]
    """The text of every token; a piece that is part of a character shows as "�"."""
    encode: Callable[[Sequence[str]], list[np.ndarray]]
    """The tokens of several texts."""
    decode: Callable[[Sequence[int]], str]
    """The text of several tokens."""


def characters(texts: Sequence[str]) -> Tokenizer:
    """A token for every character that occurs, in the order of their codes.

    >>> tokens = characters(["noon", "moon"])
    >>> tokens.pieces, tokens.encode(["moon"])[0]
    (('m', 'n', 'o'), array([0, 2, 2, 1], dtype=uint8))
    >>> tokens.encode(["sun"])
    Traceback (most recent call last):
    ...
    pisco.errors.InputError: character 's' is in none of the texts that the tokenizer was made from; ...
    """
    codes = np.array(sorted({ord(character) for text in _texts(texts) for character in set(text)}), np.uint32)
    pieces = tuple(map(chr, codes.tolist()))
    dtype = _smallest(len(pieces))

    def encode(texts: Sequence[str]) -> list[np.ndarray]:
        return [one(text) for text in _texts(texts)]

    def one(text: str) -> np.ndarray:
        given = np.frombuffer(text.encode("utf-32-le"), np.uint32)
        places = np.minimum(np.searchsorted(codes, given), max(len(codes) - 1, 0))
        wrong = codes[places] != given if len(codes) else np.ones(len(given), bool)
        if wrong.any():
            raise InputError(
                f"character {chr(given[wrong.argmax()])!r} is in none of the texts that the tokenizer was made from; "
                "make it from all texts"
            )
        return places.astype(dtype)

    return Tokenizer(pieces, encode, lambda tokens: "".join(pieces[token] for token in _tokens(tokens, len(pieces))))


def bpe(texts: Sequence[str], size: int) -> Tokenizer:
    """`size` pieces of text found by byte-pair encoding: all bytes, and what most often stands together.

    Every text can be written with them. Needs the package `tokenizers`.

    >>> tokens = bpe(["the cat, the hat, the bat"] * 5, 260)
    >>> [tokens.pieces[token] for token in tokens.encode(["the bat"])[0]]
    ['the', ' ', 'b', 'at']
    """
    check_number("vocabulary", size, low=257, high=1_000_000, integer=True)
    try:
        import tokenizers
    except ImportError as error:
        raise InputError(
            f"vocabulary = {size} needs the package tokenizers; pip install 'pisco-fl[text]', or leave vocabulary out "
            "for characters"
        ) from error
    level: Any = tokenizers.pre_tokenizers.ByteLevel
    model = tokenizers.Tokenizer(tokenizers.models.BPE())
    model.pre_tokenizer = level(add_prefix_space=False)
    model.decoder = tokenizers.decoders.ByteLevel()
    trainer: Any = tokenizers.trainers.BpeTrainer
    alphabet = sorted(level.alphabet())
    model.train_from_iterator(_texts(texts), trainer(vocab_size=size, initial_alphabet=alphabet, show_progress=False))
    count = model.get_vocab_size()

    def encode(texts: Sequence[str]) -> list[np.ndarray]:
        return [np.array(found.ids, _smallest(count)) for found in model.encode_batch(_texts(texts))]

    def decode(tokens: Sequence[int]) -> str:
        return model.decode(_tokens(tokens, count))

    return Tokenizer(tuple(decode([token]) for token in range(count)), encode, decode)


def _texts(given: Any) -> list[str]:
    """Several texts; one alone would be taken for a list of its characters."""
    texts = list(given) if isinstance(given, Iterable) and not isinstance(given, str) else [None]
    if not all(isinstance(text, str) for text in texts):
        raise InputError(f"the texts are {str(given)[:40]!r}, expected a list of texts, as in [text]")
    return [str(text) for text in texts]


def _tokens(given: Any, count: int) -> list[int]:
    tokens = [int(token) for token in given]
    if wrong := [token for token in tokens if not 0 <= token < count]:
        raise InputError(f"token {wrong[0]} is not one of this tokenizer's; give tokens from 0 to {count - 1}")
    return tokens


def check_options(length: Any, stride: Any, vocabulary: Any, test: Any, **authors: Any) -> None:
    """Refuse lengths and sizes that no text could have, and nobody as authors."""
    for what, wanted in authors.items():
        if wanted is not None:
            check_number(what, wanted, low=1, integer=True)
    check_number("length", length, low=1, high=10_000, integer=True)
    if stride is not None:
        check_counts(stride=stride)
    if vocabulary is not None:
        check_number("vocabulary", vocabulary, low=257, high=1_000_000, integer=True)
    check_number("test", test, low=0.01, high=0.9)


def by_author(
    name: str,
    parts: Sequence[tuple[str, str]],
    *,
    length: int = 80,
    stride: int | None = None,
    vocabulary: int | None = None,
    alphabet: Sequence[str] | None = None,
) -> Dataset:
    """Samples of `length` tokens whose label is the next token, a group for every author.

    Authors without a sample in both parts are left out; groups are numbered among the others, in the given order. Test
    samples whose label is in no training sample are left out.

    Args:
        name: of the dataset.
        parts: for every author the text to train on and the text to test with.
        length: tokens of a sample.
        stride: tokens from one sample to the next; None is `length`, so that samples do not overlap.
        vocabulary: None takes characters; a number takes that many pieces, found in the texts to train on (`bpe`).
        alphabet: texts whose characters count; None is those of `parts`.

    >>> by_author("two", [("ab" * 9, "abab"), ("ba" * 7, "baba")], length=3)
    Dataset('two', 9 samples of shape (3,) uint8, 2 for testing, 2 classes)
    """
    stride = length if stride is None else stride
    check_counts(length=length, stride=stride)
    train = [text for text, _ in parts]
    if vocabulary is None:
        tokens = characters([text for pair in parts for text in pair] if alphabet is None else alphabet)
    else:
        tokens = bpe(train, vocabulary)
    size = sum(map(len, train)) // stride * length * _smallest(len(tokens.pieces))().itemsize
    check_fits(f"{name} in steps of {stride}", 3 * size, "make the stride larger")
    pairs = zip(tokens.encode(train), tokens.encode([text for _, text in parts]), strict=True)
    found = [tuple(_windows(part, length + 1, stride) for part in pair) for pair in pairs]
    found = [pair for pair in found if min(map(len, pair)) > 0]
    if not found:
        raise InputError(f"no author in {name} has enough text for samples of {length} tokens; make length smaller")
    samples, tests = (np.concatenate([pair[part] for pair in found]) for part in (0, 1))
    tests = tests[np.isin(tests[:, -1], samples[:, -1])]
    return Dataset(
        name,
        samples[:, :-1],
        samples[:, -1],
        tests[:, :-1],
        tests[:, -1],
        classes=tokens.pieces,
        groups=np.repeat(np.arange(len(found)), [len(pair[0]) for pair in found]),
    )


def check_authors(what: str, wanted: int | None, dataset: Dataset) -> Dataset:
    """The dataset, where it has as many authors as were asked for."""
    if wanted is not None:
        found = 0 if dataset.groups is None else int(dataset.groups.max()) + 1
        check_number(what, wanted, low=1, high=found, integer=True)
    return dataset


def load_texts(
    path: str | Path, length: int = 80, stride: int | None = None, vocabulary: int | None = None, test: float = 0.2
) -> Dataset:
    """Read texts in UTF-8: a file, or a folder whose files *.txt are one author each, in the order of their names.

    The last part of a text is its test part. Options as in `by_author`; `test` is the share to test with.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     for author in ("ann", "bob"):
    ...         _ = Path(folder, f"{author}.txt").write_text("to and fro " * 20, encoding="utf-8")
    ...     load_texts(folder, length=10).groups.max()
    np.int64(1)
    """
    check_options(length, stride, vocabulary, test)
    path = path_of(path)
    files = sorted(path.glob("*.txt")) if path.is_dir() else [path]
    if not files:
        raise InputError(f"{path} is a folder without files *.txt; give the file itself, or a folder of texts")
    try:
        texts = [read_bytes(file).decode("utf-8-sig") for file in files]
    except UnicodeDecodeError as error:
        raise InputError(f"{path} is not text in UTF-8 ({error.reason}); save it as UTF-8") from error
    return by_author(
        path.name, [cut(text, test) for text in texts], length=length, stride=stride, vocabulary=vocabulary
    )


def cut(text: str, test: float) -> tuple[str, str]:
    """The first part of a text, and the share at its end.

    >>> cut("to train on, to test", 0.4)
    ('to train on,', ' to test')
    """
    at = len(text) - round(test * len(text))
    return text[:at], text[at:]


def _smallest(count: int) -> type[np.unsignedinteger]:
    return np.uint8 if count <= 256 else np.uint16 if count <= 65_536 else np.uint32


def _windows(tokens: np.ndarray, width: int, stride: int) -> np.ndarray:
    if len(tokens) < width:
        return np.empty((0, width), tokens.dtype)
    return np.lib.stride_tricks.sliding_window_view(tokens, width)[::stride]
