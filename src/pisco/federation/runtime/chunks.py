"""Chunks of a large message as bytes, without protobuf where they hold data alone: it copies them again and again.

What is written and read is what protobuf writes and reads (`Chunk` in wire.proto), to the byte. But a message of its
own copies its data when it is made, when it is written and when somebody asks for them, each time into fresh memory,
while no other thread of the process can run.
"""

from __future__ import annotations

from typing import NamedTuple

from pisco.federation.runtime.wire_pb2 import Chunk, Header

_DATA = b"\x12"
"""What a chunk without a header begins with: field 2, some bytes."""

_NO_HEADER = Header()


class DataChunk(NamedTuple):
    """A chunk without a header."""

    data: bytes | memoryview

    @property
    def header(self) -> Header:
        """That of a chunk which has none."""
        return _NO_HEADER

    def SerializeToString(self) -> bytes:
        """What protobuf writes.

        >>> DataChunk(b"abc").SerializeToString() == Chunk(data=b"abc").SerializeToString()
        True
        """
        return b"".join((_before(len(self.data)), self.data)) if len(self.data) else b""

    @staticmethod
    def FromString(wire: bytes) -> DataChunk | Chunk:
        """What protobuf reads; where it is data alone, without a copy."""
        if wire.startswith(_DATA):
            size = max(0, len(wire) - len(_before(len(wire))))
            start = _before(size)
            if len(start) + size == len(wire) and wire.startswith(start):
                return DataChunk(memoryview(wire)[len(start) :])
        return Chunk.FromString(wire)


def _before(size: int) -> bytes:
    """What stands before so many bytes of data: their number, seven bits at a time, the lowest first."""
    made = bytearray(_DATA)
    while size > 127:
        made.append(size & 127 | 128)
        size >>= 7
    made.append(size)
    return bytes(made)
