"""Masks made ahead: while a member waits for the server, those of the exchange that usually comes next.

The masks of an exchange depend on its name, its reporters and its layout, which are mostly known before its vector is.
They are made in a thread, held in memory, used for exactly the exchange that they were made for, and dropped where
another one comes.
"""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence

import numpy as np

from pisco.federation.runtime import masks
from pisco.federation.runtime.buffers import Buffers
from pisco.federation.runtime.codec import MessageLayout, Where
from pisco.federation.runtime.fixed import WORD

Step = tuple[int, int, int]
"""From one phase to another, so many rounds later."""


class MasksAhead:
    """Learns which exchange follows on which, and makes the masks of the next one in a thread."""

    def __init__(self) -> None:
        self._buffers = Buffers()
        self._last: Where | None = None
        self._after: dict[int, Step] = {}
        self._layouts: dict[int, MessageLayout] = {}
        self._wrong: set[Step] = set()  # what did not come true: a round whose name is not known before it begins
        self._making: tuple[bytes, Step, threading.Thread] | None = None
        self._words = np.empty(0, WORD)

    def take(self, where: Where, context: bytes) -> np.ndarray | None:
        """The sum of our masks in this exchange, if it was made ahead; it is given once."""
        if self._last is not None:
            self._after[self._last.phase] = (self._last.phase, where.phase, where.round - self._last.round)
        making, self._last, self._making = self._making, where, None
        if making is None:
            return None
        made, step, thread = making
        thread.join()
        if made != context:
            self._wrong.add(step)
            return None
        words, self._words = self._words, np.empty(0, WORD)
        return words

    def made(self, name: str, pairs: Mapping[str, bytes], context: bytes, layout: MessageLayout) -> np.ndarray:
        """The same, made now."""
        words = self._buffers.lend(WORD.itemsize * layout.count).view(WORD)
        masks.fill(words, name, pairs, context)
        return words

    def prepare(self, name: str, pairs: Mapping[str, bytes], reporters: Sequence[str], layout: MessageLayout) -> None:
        """Begin with those of the exchange after the one that was taken, where one follows at once."""
        assert self._last is not None
        self._layouts[self._last.phase] = layout
        step = self._after.get(self._last.phase)
        if step is None or step in self._wrong or step[2] not in (0, 1) or step[1] not in self._layouts:
            return
        where, layout = self._last._replace(phase=step[1], round=self._last.round + step[2]), self._layouts[step[1]]
        context = masks.exchange_context(where, reporters, layout)

        def work() -> None:
            self._words = self.made(name, pairs, context, layout)

        self._making = context, step, threading.Thread(target=work, daemon=True, name="masks")
        self._making[2].start()
