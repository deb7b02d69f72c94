"""Lines of text over TLS: how members and relays talk before bytes are passed on."""

from __future__ import annotations

import contextlib
import errno
import os
import selectors
import socket
import ssl
import threading
import time
from collections import deque

from pisco.federation.runtime.splicing import hang_up

ANSWER = 15.0
"""Seconds in which a relay says whether it has whom we want; it asks that member, who comes to it."""

PROMPT = 5.0
"""Seconds in which a line is taken by the other end."""


def say(secured: socket.socket, *words: str) -> None:
    """One line."""
    secured.sendall((" ".join(words) + "\n").encode())


def hear(secured: socket.socket, seconds: float = ANSWER) -> str:
    """One line, within so many seconds."""
    line, end = b"", time.monotonic() + seconds
    while not line.endswith(b"\n"):
        secured.settimeout(max(0.01, end - time.monotonic()))
        piece = secured.recv(1)
        if not piece or len(line) > 300:
            raise OSError(errno.ECONNRESET, "it hung up")
        line += piece
    return line[:-1].decode("ascii", "replace")


def printable(details: str) -> str:
    """What a peer says, fit for one line of a log and for a terminal."""
    return "".join(each if each.isprintable() else " " for each in details[:300]).strip()


class Lines:
    """The lines of a TLS connection, read and written by one thread alone, which others can wake."""

    def __init__(self, secured: ssl.SSLSocket):
        self.secured, self._buffer = secured, b""
        self._out: deque[str] = deque()
        self._wakes, self._wake = os.pipe()
        os.set_blocking(self._wake, False)
        self._selector = selectors.DefaultSelector()
        self._selector.register(secured, selectors.EVENT_READ)
        self._selector.register(self._wakes, selectors.EVENT_READ)
        self._lock, self._closed = threading.Lock(), False

    def send(self, line: str) -> None:
        """Have a line sent, from any thread."""
        with self._lock:
            if self._closed:
                return
            self._out.append(line)
            with contextlib.suppress(BlockingIOError):
                os.write(self._wake, b".")

    def turn(self, seconds: float) -> list[str]:
        """Send what waits, and give what has come, after at most so many seconds; an end is an `OSError`."""
        self.secured.settimeout(PROMPT)
        if not self.secured.pending():
            for key, _ in self._selector.select(seconds):
                if key.fd == self._wakes:
                    os.read(self._wakes, 4096)
        while self._out:
            say(self.secured, self._out.popleft())
        self.secured.settimeout(0.0)
        try:
            while True:
                piece = self.secured.recv(4096)
                if not piece:
                    raise ConnectionResetError("it hung up")
                self._buffer += piece
                if len(self._buffer) > 8192:
                    raise ConnectionResetError("what it sends has no end")
        except (ssl.SSLWantReadError, BlockingIOError):
            pass
        *lines, self._buffer = self._buffer.split(b"\n")
        return [line.decode("ascii", "replace") for line in lines]

    def close(self) -> None:
        with self._lock:
            self._closed = True
            self._selector.close()
            os.close(self._wake)
            os.close(self._wakes)
        hang_up(self.secured)
