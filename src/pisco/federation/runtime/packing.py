"""Numbers in fewer bytes, none of them lost.

The first byte of a number, its sign and most of its exponent, takes few values in a vector. Where these are at most 16,
they are listed once, and every number says with half a byte which of them is its own. (The length is the same for all
vectors that can be packed: it says nothing of what is in them.)
"""

from __future__ import annotations

import numpy as np

from pisco.federation.runtime.codec import Data, MessageLayout

KINDS = 16


def _width(layout: MessageLayout) -> int:
    """Bytes of a number; 0 where they differ."""
    widths = {dtype.itemsize for dtype in layout.dtypes}
    return widths.pop() if len(widths) == 1 else 0


def pack(data: Data, layout: MessageLayout) -> bytes | None:
    """A message in fewer bytes; None where that cannot be.

    >>> layout = MessageLayout((("float32", (1, 124)),))
    >>> data = np.linspace(-1, 1, 124, dtype=np.float32).tobytes()
    >>> packed = pack(data, layout)
    >>> len(data), len(packed), unpack(packed, layout) == data
    (496, 450, True)
    """
    width = _width(layout)
    count = len(data) // width if width else 0
    if count <= 2 * KINDS:
        return None
    numbers = np.frombuffer(data, np.uint8).reshape(count, width)  # little-endian: the first byte is the last
    first = numbers[:, -1].tobytes()
    kinds = sorted(set(first))
    if len(kinds) > KINDS:
        return None
    places = bytearray(256)
    for place, kind in enumerate(kinds):
        places[kind] = place
    halves = np.frombuffer(first.translate(places) + bytes(count % 2), np.uint8)
    told = bytes(kinds).ljust(KINDS, b"\0")
    return told + (halves[::2] << 4 | halves[1::2]).tobytes() + numbers[:, :-1].tobytes()


def unpack(packed: bytes, layout: MessageLayout) -> bytes | None:
    """The message; None where this is none of that layout."""
    width, size = _width(layout), layout.size
    count = size // width if width else 0
    pairs = (count + 1) // 2
    if not count or len(packed) != KINDS + pairs + count * (width - 1):
        return None
    halves = np.frombuffer(packed, np.uint8, pairs, KINDS)
    places = np.stack([halves >> 4, halves & 15], axis=1).reshape(-1)[:count]
    numbers = np.empty((count, width), np.uint8)
    numbers[:, -1] = np.frombuffer(packed, np.uint8, KINDS)[places]
    numbers[:, :-1] = np.frombuffer(packed, np.uint8, offset=KINDS + pairs).reshape(count, width - 1)
    return numbers.tobytes()
