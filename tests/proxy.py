"""A bad link on purpose: a TCP proxy that drops, delays or cuts what goes through it."""

import contextlib
import random
import socket
import threading
import time


class Proxy(contextlib.AbstractContextManager):
    """Listens on a port of its own and passes everything on to `target`, as badly as it is told.

    target: host:port to pass on to; connect to `address` instead.
    delay: seconds that every piece of data takes longer, each way.
    drop: chance, by `seed`, that a piece of data resets its connection instead of arriving.
    port: where to listen; 0 takes a free one.
    """

    def __init__(self, target, *, delay=0.0, drop=0.0, seed=0, port=0):
        host, _, number = target.rpartition(":")
        self.target, self.delay, self.drop = (host, int(number)), delay, drop
        self.dropped = self.passed = self.connections = 0
        self._random, self._lock = random.Random(seed), threading.Lock()
        self._open, self._until, self._closed = set(), 0.0, False
        self._listener = socket.create_server(("127.0.0.1", port), backlog=256)
        self.address = f"127.0.0.1:{self._listener.getsockname()[1]}"
        threading.Thread(target=self._accept, daemon=True).start()

    def cut(self, seconds):
        """Reset every connection now and let none through for so long."""
        self._until = time.monotonic() + seconds
        self.reset()

    def reset(self):
        """Reset every connection now; new ones are welcome."""
        with self._lock:
            pairs = list(self._open)
        for pair in pairs:
            self._kill(pair)

    def __exit__(self, *_):
        self._closed = True
        # A thread blocked in accept wakes only when the socket is shut down, not when it is closed.
        with contextlib.suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        self.reset()

    def _accept(self):
        while not self._closed:
            try:
                near, _ = self._listener.accept()
            except OSError:
                return
            if time.monotonic() < self._until:
                _hard_close(near)
                continue
            threading.Thread(target=self._connect, args=(near,), daemon=True).start()

    def _connect(self, near):
        try:
            far = socket.create_connection(self.target, timeout=10)
        except OSError:
            _hard_close(near)
            return
        far.settimeout(None)
        pair = (near, far)
        with self._lock:
            self._open.add(pair)
            self.connections += 1
        for source, sink in (pair, pair[::-1]):
            late = []  # (when, data): delayed data keep flowing, they only arrive later
            ready = threading.Condition()
            threading.Thread(target=self._read, args=(source, late, ready), daemon=True).start()
            threading.Thread(target=self._write, args=(pair, sink, late, ready), daemon=True).start()

    def _read(self, source, late, ready):
        while True:
            try:
                data = source.recv(65536)
            except OSError:
                data = b""
            with self._lock:
                lost = bool(data) and self.drop > 0 and self._random.random() < self.drop
                self.dropped += lost
            with ready:
                late.append((time.monotonic() + self.delay, b"" if lost else data))
                ready.notify()
            if lost or not data:
                return

    def _write(self, pair, sink, late, ready):
        while True:
            with ready:
                ready.wait_for(lambda: late)
                when, data = late.pop(0)
            time.sleep(max(0.0, when - time.monotonic()))
            try:
                if not data:
                    raise OSError
                with self._lock:
                    self.passed += len(data)
                sink.sendall(data)
            except OSError:
                self._kill(pair)
                return

    def _kill(self, pair):
        with self._lock:
            self._open.discard(pair)
        for each in pair:
            _hard_close(each)


def _hard_close(connection):
    """Close with a reset, as a link that breaks does; a reader that is blocked wakes up."""
    with contextlib.suppress(OSError):
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")
    with contextlib.suppress(OSError):
        connection.shutdown(socket.SHUT_RDWR)
    connection.close()
