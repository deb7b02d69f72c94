"""Bytes that are passed on unread, from one connection to another."""

from __future__ import annotations

import contextlib
import socket
import threading
from collections.abc import Callable

_PIECE = 1 << 18


def hang_up(raw: socket.socket) -> None:
    """Close, and wake whoever waits on it."""
    with contextlib.suppress(OSError):
        raw.shutdown(socket.SHUT_RDWR)
    raw.close()


def splice(one: socket.socket, other: socket.socket, count: Callable[[int], None] = lambda size: None) -> None:
    """Pass on what comes from either side until one of them ends; both are then closed."""
    ends = [one, other]
    for each in ends:
        each.settimeout(None)
    back = threading.Thread(target=_pass_on, args=(other, one, count), daemon=True, name="splice")
    back.start()
    _pass_on(one, other, count)
    back.join()
    for each in ends:
        each.close()


def _pass_on(source: socket.socket, sink: socket.socket, count: Callable[[int], None]) -> None:
    buffer = memoryview(bytearray(_PIECE))
    with contextlib.suppress(OSError):
        while size := source.recv_into(buffer):
            sink.sendall(buffer[:size])
            count(size)
    for each in (source, sink):
        with contextlib.suppress(OSError):
            each.shutdown(socket.SHUT_RDWR)
