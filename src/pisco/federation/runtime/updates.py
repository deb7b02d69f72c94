"""Messages that tell what changed: what a method compresses travels compressed.

A compressed method compresses a difference, adds it to a public copy, and mixes the copies. Whoever pulls a copy says
by a hash which one it holds already. If that one and a difference that was compressed give the new copy to the bit, the
difference travels, else the copy does: to who was absent, is new, or has begun again, once. So it does not matter here
how a method keeps its copies, and nobody has to trust that somebody else's is right.
"""

from __future__ import annotations

import hashlib
import threading
from collections.abc import Hashable, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from pisco.errors import InputError
from pisco.federation.runtime.codec import BadMessage, MessageLayout, Update
from pisco.federation.runtime.cut import exchange
from pisco.federation.runtime.wire_pb2 import Piece
from pisco.networks.rounds import RoundMix
from pisco.parts import sent_only
from pisco.types import Codec


class Compressing(NamedTuple):
    """The kind of a cut at which one's own difference is compressed; nothing is exchanged there."""

    number: int  # which of a round
    codec: Codec
    structure: Any


class CutMix(RoundMix):
    """The `Mix` of one agent whose round is cut: also where it compresses, so that the bytes can be sent."""

    compressed = 0

    def each(self, function: Any, key: jax.Array, tree: Any) -> Any:
        if not isinstance(function, Codec):
            return super().each(function, key, tree)
        number = self.compressed
        self.compressed += 1
        own = jax.random.key_data(jax.random.fold_in(key, self.here.numbers(1)[0]))

        def marked(tree: Any) -> Any:
            leaves, structure = jax.tree.flatten(tree)
            kept = exchange([*leaves, own], Compressing(number, function, structure))[:-1]
            return jax.tree.unflatten(structure, kept)

        return sent_only(marked)(tree)


class Difference(NamedTuple):
    """One compressed difference: as bytes, and as what they say."""

    number: int
    key: bytes
    data: bytes
    arrays: list[np.ndarray]


def compress(kind: Compressing, leaves: Sequence[Any]) -> tuple[Difference, list[np.ndarray]]:
    """A difference, and what the program goes on with: what receivers decode, so that all have the same bits."""
    *own, key = (np.asarray(leaf) for leaf in leaves)
    tree = jax.tree.unflatten(kind.structure, [leaf[0] for leaf in own])
    data = kind.codec.encode(tree, _key(key.tobytes()))
    arrays = [np.asarray(leaf)[None] for leaf in jax.tree.leaves(kind.codec.decode(data, tree, _key(key.tobytes())))]
    return Difference(kind.number, key.tobytes(), data, arrays), [*arrays, key]


class Copy(NamedTuple):
    """What somebody holds of a member's messages of one exchange; without arrays it is zeros."""

    mark: bytes
    layout: MessageLayout | None
    arrays: list[np.ndarray] | None
    codecs: Sequence[Codec] = ()

    @classmethod
    def of(cls, arrays: list[np.ndarray], codecs: Sequence[Codec] = ()) -> Copy:
        layout = MessageLayout.of(arrays)
        digest = hashlib.blake2b(str(layout).encode(), digest_size=8)
        for array in arrays:
            digest.update(np.ascontiguousarray(array).ravel().view(np.uint8).data)
        return cls(digest.digest(), layout, arrays, codecs)

    def size(self, layout: MessageLayout, pieces: Sequence[Piece]) -> int:
        """How many bytes an update must have."""
        return sum(codec.message_bytes(like) for _, codec, like, _ in self._read(layout, pieces) if codec)

    def updated(self, layout: MessageLayout, pieces: Sequence[Piece], data: Any) -> list[np.ndarray]:
        """The copy with an update of the right size."""
        new, begin, data = list(self.whole(layout)), 0, memoryview(data)
        for at, codec, like, key in self._read(layout, pieces):
            if codec:
                end = begin + codec.message_bytes(like)
                try:
                    change = jax.tree.leaves(codec.decode(bytes(data[begin:end]), like, _key(key)))
                except (ValueError, TypeError, LookupError, ArithmeticError) as error:  # of anybody's codec
                    raise BadMessage(f"its changes cannot be read: {error}") from None
                new[at : at + len(like)] = [
                    old + np.asarray(add)[None] for old, add in zip(new[at : at + len(like)], change, strict=True)
                ]
                begin = end
        return new

    def whole(self, layout: MessageLayout) -> list[np.ndarray]:
        """The arrays."""
        return layout.split(bytes(layout.size)) if self.arrays is None else self.arrays

    def _read(self, layout: MessageLayout, pieces: Sequence[Piece]) -> list[tuple[int, Codec | None, list[Any], bytes]]:
        """Where every piece begins, what reads it, and the shapes of what it tells of."""
        found, at, shapes = [], 0, layout.shapes
        for piece in pieces:
            like = shapes[at : at + piece.leaves]
            if not piece.leaves or len(like) < piece.leaves or piece.codec > len(self.codecs):
                raise BadMessage("its changes do not fit its arrays")
            codec = self.codecs[piece.codec - 1] if piece.codec else None
            try:
                _ = codec and codec.message_bytes(like)
            except InputError as error:
                raise BadMessage(f"its changes cannot be read: {error}") from None
            found.append((at, codec, like, piece.key))
            at += piece.leaves
        if at != len(shapes):
            raise BadMessage(f"its changes are of {at} arrays, expected {len(shapes)}")
        return found


class Outgoing:
    """What others know of us: the copies that we sent last, and the differences since."""

    def __init__(self) -> None:
        self._differences: dict[int, Difference] = {}
        self._copies: dict[Hashable, list[Copy]] = {}

    def add(self, difference: Difference) -> None:
        """One more, in the place of the one before it."""
        self._differences[difference.number] = difference

    def updates(self, slot: Hashable, arrays: list[np.ndarray]) -> dict[bytes, Update]:
        """How our message of one exchange comes of the last ones, by their marks; empty where it must go whole."""
        new = Copy.of(arrays)
        assert new.layout is not None
        known, found = self._copies.get(slot) or [NOTHING], {}
        for copy in known:
            update = self._explain(copy.whole(new.layout), arrays)
            if update is not None and len(update.data) < new.layout.size:
                found[copy.mark] = update._replace(layout=str(new.layout) if copy is NOTHING else "")
        # Two: an attempt at a round that does not count leaves some with the newest one and others without it.
        self._copies[slot] = [*known, new][-2:]
        return found

    def _explain(self, copy: list[np.ndarray], arrays: list[np.ndarray]) -> Update | None:
        at, pieces, data = 0, list[Piece](), list[bytes]()
        while at < len(arrays):
            fits = (each for each in self._differences.values() if _leads(each, copy[at:], arrays[at:]))
            found = next(fits, None)
            if found is not None:
                pieces.append(Piece(codec=found.number + 1, leaves=len(found.arrays), key=found.key))
                data.append(found.data)
            elif not _same(copy[at], arrays[at]):
                return None
            elif pieces and not pieces[-1].codec:
                pieces[-1].leaves += 1
            else:
                pieces.append(Piece(leaves=1))
            at += len(found.arrays) if found else 1
        return Update(pieces, b"".join(data))


class Incoming:
    """What we know of others: the last copy of each, by exchange. It is lost with the process, and then sent whole."""

    def __init__(self, codecs: Sequence[Codec]):
        self.codecs = codecs
        self._copies: dict[tuple[str, Hashable], Copy] = {}
        self._lock = threading.Lock()

    def held(self, name: str, slot: Hashable, layout: MessageLayout | None) -> Copy:
        """Our copy of a member's, or zeros."""
        with self._lock:
            found = self._copies.get((name, slot))
        if found is not None and layout in (None, found.layout):
            return found
        return NOTHING._replace(layout=layout, codecs=self.codecs)

    def keep(self, name: str, slot: Hashable, arrays: list[np.ndarray]) -> None:
        """What came is what we hold now."""
        copy = Copy.of(arrays, self.codecs)
        with self._lock:
            self._copies[name, slot] = copy


NOTHING = Copy(b"0", None, None)
"""What everybody holds before the first message."""


def _leads(difference: Difference, copy: list[np.ndarray], arrays: list[np.ndarray]) -> bool:
    """Whether a difference makes the first of these arrays of the copy."""
    some = list(zip(difference.arrays, copy, arrays, strict=False))
    fits = all(d.shape == c.shape and d.dtype == c.dtype for d, c, _ in some)
    return fits and len(some) == len(difference.arrays) and all(_same(c + d, a) for d, c, a in some)


def _same(one: np.ndarray, other: np.ndarray) -> bool:
    """To the bit: zeros have a sign."""
    return np.array_equal(np.ascontiguousarray(one).view(np.uint8), np.ascontiguousarray(other).view(np.uint8))


def _key(data: bytes) -> jax.Array:
    if len(data) != 8:
        raise ValueError(f"its key has {len(data)} bytes, expected 8")
    return jax.random.wrap_key_data(jnp.asarray(np.frombuffer(data, np.uint32)), impl="threefry2x32")
