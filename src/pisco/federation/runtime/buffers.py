"""Large buffers that are used again: fresh memory costs more to get than a message does to write into it."""

from __future__ import annotations

import weakref
from collections import defaultdict

import numpy as np


class Buffers:
    """Lends buffers, and takes each back once nobody holds what was lent, or any view of it.

    >>> buffers = Buffers()
    >>> lent = buffers.lend(8)
    >>> lent[:] = 7
    >>> view = lent[2:].data
    >>> del lent
    >>> int(buffers.lend(8)[0])    # another one: `view` still holds the first
    0
    """

    def __init__(self) -> None:
        self._free: defaultdict[int, list[bytearray]] = defaultdict(list)

    def lend(self, size: int) -> np.ndarray:
        """So many bytes, with whatever they held before."""
        free = self._free[size]
        try:
            base = free.pop()
        except IndexError:
            base = bytearray(size)
        # Not a view of an array: views of views hold the first array alone, and not the one that was lent.
        lent = np.frombuffer(base, np.uint8)
        weakref.finalize(lent, free.append, base).atexit = False
        return lent
