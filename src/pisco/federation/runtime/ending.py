"""The mean model that a federation ends with, as far as it reaches the server.

Where the last round reaches the server, many methods end with what it hands out: everybody has the same parameters, and
they are part of an average. Agents tell which part; a closing average is asked for by the plan and needs no telling.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np

from pisco.errors import InputError
from pisco.federation.runtime.codec import MessageLayout
from pisco.files import atomic_write

CLOSED, LAST = "model", "last-average"


class EndModel:
    """The averages in a server's folder that may hold the model.

    >>> import tempfile
    >>> model = EndModel(Path(tempfile.mkdtemp()))
    >>> model.keep(9, 1, [np.zeros((1, 2)), np.ones((1, 3))])       # of round 9, the second exchange
    >>> model.load(9, [1, 1], ["w"]), model.load(10, [1, 1], ["w"])
    ({'w': array([[1., 1., 1.]])}, None)
    """

    def __init__(self, folder: Path):
        self.folder = folder

    def close_with(self, arrays: Sequence[np.ndarray]) -> None:
        """Keep the mean that the plan closes with."""
        self._write(CLOSED, 0, arrays)

    def keep(self, round_: int, exchange: int, arrays: Sequence[np.ndarray]) -> None:
        """Keep an average that everybody was handed in the last round, which is `round_` in messages."""
        self._write(f"{LAST}-{exchange}", round_, arrays)

    def load(self, round_: int, part: Sequence[int], names: Sequence[str]) -> dict[str, np.ndarray] | None:
        """The model by these names: the closing average, or the part of one of this round.

        A part is the number of the exchange, and of every array of the model its place in there; none: unknown.
        """
        found = self._read(CLOSED, 0)
        if found is None and part:
            average = self._read(f"{LAST}-{part[0]}", round_)
            if average is not None and all(place < len(average) for place in part[1:]):
                found = [average[place] for place in part[1:]]
        if found is None:
            return None
        known = len(names) == len(set(names)) == len(found)
        return dict(zip(names if known else map(str, range(len(found))), found, strict=True))

    def _write(self, name: str, round_: int, arrays: Sequence[np.ndarray]) -> None:
        layout = MessageLayout.of(arrays)
        atomic_write(self.folder / name, f"{round_} {layout}\n".encode(), layout.join(arrays))

    def _read(self, name: str, round_: int) -> list[np.ndarray] | None:
        file = self.folder / name
        if not file.exists():
            return None
        head, _, data = file.read_bytes().partition(b"\n")
        try:
            of, _, layout = head.decode().partition(" ")
            return MessageLayout.parse(layout).split(data) if int(of) == round_ else None
        except ValueError:
            raise InputError(
                f"{file} is damaged; move it away, and average the agents' results with `pisco federation collect`"
            ) from None
