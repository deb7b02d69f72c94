"""Messages as bytes: what an exchange carries, and the checks on what comes back.

A message is the leaves of a tree one after the other as raw little-endian bytes, in chunks. Everything is checked
before memory is taken for it: who sends, for which exchange, the layout, the size; and at the end that all numbers are
finite. Who tells by a mark which layout it expects is answered without a header where that is it.
"""

from __future__ import annotations

import functools
import hashlib
import itertools
import math
import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol

import jax
import jax.numpy as jnp
import numpy as np

from pisco.federation.runtime.buffers import Buffers
from pisco.privacy.summing import SHORT, WIDE, word_of

CHUNK = 1 << 20
"""Bytes of one chunk; gRPC refuses messages above 4 MiB unless told otherwise."""

SMALL = 64 * 1024
"""Bytes up to which a message travels in one piece, and without being asked for."""

_LEAF = re.compile(r"([a-z0-9_]{1,20})\[((?:\d{1,12}(?:,\d{1,12}){0,7})?)\]")
_DTYPES = ("float32", "float64", "bfloat16", "float16")
_MASKED = re.compile(r"masked\d\d_2_")
"""What is masked otherwise, by another version, has another name: nobody takes the one for the other."""
_PLANES = np.dtype("<u8"), np.dtype("<u4"), np.dtype("<u2")

_RECEIVED = Buffers()

Data = bytes | memoryview
"""A message's bytes."""


class BadMessage(ValueError):
    """What a peer sent cannot be used; the sentence says why."""


class Where(NamedTuple):
    """Which exchange a message belongs to."""

    federation: bytes
    round: int
    phase: int


@dataclass(frozen=True)
class MessageLayout:
    """Dtypes and shapes of a message's leaves.

    >>> MessageLayout.of([np.zeros((1, 3), np.float32), np.zeros(1, np.float64)])
    MessageLayout(float32[1,3] float64[1])
    >>> MessageLayout.parse("float32[1,3] float64[1]").size
    20

    A masked message is not leaf by leaf. Words of 8 bytes come first (those of float64), then the upper 4 bytes of all
    words of 6, then their lower 2. So a processor takes many of a kind at a time.
    """

    leaves: tuple[tuple[str, tuple[int, ...]], ...]

    @classmethod
    def of(cls, arrays: Sequence[Any]) -> MessageLayout:
        return cls(tuple((str(array.dtype), tuple(array.shape)) for array in arrays))

    @classmethod
    def parse(cls, text: str) -> MessageLayout:
        """Read a layout that a peer sent; refuses whatever `str` would not write."""
        leaves = []
        for word in text.split(" ") if text else ():
            match = _LEAF.fullmatch(word)
            if not match:
                raise BadMessage(f"the layout {text[:60]!r} cannot be read")
            leaves.append((match[1], tuple(int(part) for part in match[2].split(",") if part)))
        if not leaves:
            raise BadMessage("the layout is empty")
        found = cls(tuple(leaves))
        if not all(name in _DTYPES for name, _ in found.plain.leaves) or found not in (found.plain, found.masked):
            raise BadMessage(f"the layout {text[:60]!r} is unknown here; give everybody one version of pisco")
        return found

    @property
    def size(self) -> int:
        """Bytes of a whole message."""
        return sum(dtype.itemsize * math.prod(shape) for dtype, shape in self._pieces)

    @property
    def count(self) -> int:
        """Numbers of a whole message."""
        return sum(math.prod(shape) for _, shape in self.leaves)

    @functools.cached_property
    def mark(self) -> bytes:
        """A few bytes that tell it from others."""
        return hashlib.blake2b(str(self).encode(), digest_size=4).digest()

    @property
    def dtypes(self) -> list[np.dtype]:
        """Of the arrays that a message is split into."""
        return [dtype for dtype, _ in self._pieces]

    @functools.cached_property
    def _pieces(self) -> list[tuple[np.dtype, tuple[int, ...]]]:
        if not any(_MASKED.match(name) for name, _ in self.leaves):
            return [(_dtype(name), shape) for name, shape in self.leaves]
        sizes = dict.fromkeys((WIDE.size, SHORT.size), 0)
        for name, shape in self.leaves:
            sizes[word_of(_dtype(name)).size] += math.prod(shape)
        return list(zip(_PLANES, [(sizes[WIDE.size],), (sizes[SHORT.size],), (sizes[SHORT.size],)], strict=True))

    @functools.cached_property
    def plain(self) -> MessageLayout:
        """The same without masks."""
        return MessageLayout(tuple((_MASKED.sub("", name), shape) for name, shape in self.leaves))

    @functools.cached_property
    def masked(self) -> MessageLayout:
        """The same with every number hidden in a word: of 8 bytes in float64, of 6 elsewhere."""
        words = ((f"masked{8 * word_of(_dtype(name)).size}_2_{name}", shape) for name, shape in self.plain.leaves)
        return MessageLayout(tuple(words))

    @property
    def shapes(self) -> list[Any]:
        """Every leaf of one agent, without the leading axis."""
        return [jax.ShapeDtypeStruct(shape[1:], _dtype(name)) for name, shape in self.leaves]

    def __str__(self) -> str:
        return " ".join(f"{name}[{','.join(map(str, shape))}]" for name, shape in self.leaves)

    def __repr__(self) -> str:
        return f"MessageLayout({self})"

    def join(self, arrays: Sequence[Any]) -> bytes:
        """The arrays as one message."""
        return b"".join(np.ascontiguousarray(array).tobytes() for array in arrays)

    def split(self, data: bytes | bytearray | memoryview) -> list[np.ndarray]:
        """A whole message as arrays that share its memory."""
        arrays, at = [], 0
        for dtype, shape in self._pieces:
            count = math.prod(shape)
            arrays.append((np.frombuffer(data, dtype, count, at) if count else np.empty(0, dtype)).reshape(shape))
            at += dtype.itemsize * count
        return arrays


def _dtype(name: str) -> np.dtype:
    """Of a leaf's numbers."""
    name = _MASKED.sub("", name)
    return np.dtype(jnp.bfloat16) if name == "bfloat16" else np.dtype(name)


class Update(NamedTuple):
    """A message as what changed since another one, see `pisco.federation.runtime.updates`."""

    pieces: Sequence[Any]
    data: Data
    layout: str = ""  # told where the receiver may not know it


class Arrived(NamedTuple):
    """A chunk that came in. (A message of protobuf's copies its bytes every time that it is asked for them.)"""

    header: Any
    data: Data


class HeldCopy(Protocol):
    """A copy of an earlier message, which may be none."""

    @property
    def mark(self) -> bytes:
        """Its hash."""
        ...

    @property
    def layout(self) -> MessageLayout | None:
        """Its layout, where that is known."""
        ...

    def size(self, layout: MessageLayout, pieces: Sequence[Any]) -> int:
        """How many bytes an update must have."""
        ...

    def updated(self, layout: MessageLayout, pieces: Sequence[Any], data: Any) -> list[np.ndarray]:
        """The copy with an update."""
        ...


def encode(
    where: Where, sender: str, layout: MessageLayout, message: Data | Update, *, known: bool = False
) -> Iterator[Any]:
    """A message as chunks, the first one with the header, unless the receiver told that it knows what it says."""
    from pisco.federation.runtime.chunks import DataChunk
    from pisco.federation.runtime.wire_pb2 import Chunk, Header

    pieces, data, told = message if isinstance(message, Update) else Update((), message, str(layout))
    data = memoryview(data)
    header = Header(**where._asdict(), sender=sender, layout=told, size=len(data), pieces=pieces)
    if known and (pieces or data):
        header = Header(size=len(data), pieces=pieces) if pieces else None
    if header is not None:
        yield Chunk(header=header, data=bytes(data[:CHUNK]))
    for start in range(CHUNK if header is not None else 0, len(data), CHUNK):
        yield DataChunk(data[start : start + CHUNK])


def decode(
    chunks: Iterable[Any],
    where: Where,
    sender: str,
    *,
    layout: MessageLayout | None = None,
    limit: int,
    held: HeldCopy | None = None,
) -> tuple[MessageLayout, list[np.ndarray]] | None:
    """The arrays of a message, or None when the stream is empty: the sender does not have it yet.

    Args:
      chunks: what came in.
      where: the exchange that was asked for.
      sender: who must have sent it.
      layout: what it must look like; None takes any layout, up to the limit.
      limit: the most bytes that a message may have; 0: see what it is. One of more than a chunk is then not read
        on, and has no arrays.
      held: our copy of an earlier one, where the message may tell what changed.
    """
    incoming = iter(chunks)
    first = next(incoming, None)
    if first is None:
        return None
    header = first.header
    # Who answers is known by its certificate, and to what by the call; a header tells where something does not fit.
    brief = layout is not None and not header.federation
    if not brief and header.federation != where.federation:
        raise BadMessage("it belongs to another federation")
    if not brief and (header.round, header.phase) != (where.round, where.phase):
        raise BadMessage(
            f"it is for round {header.round}, phase {header.phase}, "
            f"but round {where.round}, phase {where.phase} was asked for"
        )
    if not brief and header.sender != sender:
        raise BadMessage(f"it says it comes from {header.sender[:80]!r}")
    update = list(header.pieces)
    if update and held is None:
        raise BadMessage("it holds only changes, but was asked for the whole message")
    known = held.layout if update and held else None
    known = layout if brief else known
    found = known or MessageLayout.parse(header.layout)  # gRPC bounds a chunk, and so its header
    if layout is not None and found != layout:
        raise BadMessage(f"it holds {str(found)[:200]}, expected {str(layout)[:200]}")
    if update and found != found.plain:
        raise BadMessage("it holds changes of masked vectors, which are sent whole")
    size = held.size(found, update) if update and held else found.size
    if limit == 0 and (found.size > CHUNK or len(first.data) != size):
        return found, []
    limit = limit or CHUNK
    announced = size if brief and not update else header.size
    if max(size, found.size) > limit or announced != size:
        raise BadMessage(f"it announces {header.size} bytes for a layout of {size}; the most is {limit}")
    if len(first.data) == size:
        data: Any = first.data
    else:
        # What is only announced takes no memory, unless it is what we expect.
        data = _RECEIVED.lend(size).data if layout is not None and not update else bytearray()
        at = 0
        for chunk in itertools.chain([first], incoming):
            piece = chunk.data
            end = at + len(piece)
            if end > size or not piece:
                raise BadMessage(f"it does not end after the {size} bytes it announced")
            data[at:end] = piece
            at = end
        if at != size:
            raise BadMessage(f"it ends after {at} of {size} bytes")
    arrays = held.updated(found, update, data) if update and held else found.split(data)
    if not all(array.dtype.kind == "u" or np.isfinite(array).all() for array in arrays):
        raise BadMessage("it holds NaN or infinity")
    if next(incoming, None) is not None:
        raise BadMessage(f"it does not end after the {size} bytes it announced")
    return found, arrays
