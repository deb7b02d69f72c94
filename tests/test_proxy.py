"""The bad link itself: it passes, delays, drops by its seed, and cuts."""

import contextlib
import socket
import threading
import time

import pytest

from proxy import Proxy


@pytest.fixture
def echo():
    """The address of a server that sends everything back."""
    listener = socket.create_server(("127.0.0.1", 0))

    def serve():
        with contextlib.suppress(OSError):
            while True:
                connection, _ = listener.accept()
                threading.Thread(target=answer, args=(connection,), daemon=True).start()

    def answer(connection):
        with contextlib.suppress(OSError), connection:
            while data := connection.recv(65536):
                connection.sendall(data)

    threading.Thread(target=serve, daemon=True).start()
    yield f"127.0.0.1:{listener.getsockname()[1]}"
    listener.shutdown(socket.SHUT_RDWR)
    listener.close()


def dial(proxy):
    host, _, port = proxy.address.rpartition(":")
    return socket.create_connection((host, int(port)), timeout=10)


def ask(connection, data=b"hello"):
    connection.sendall(data)
    got = b""
    while len(got) < len(data):
        piece = connection.recv(65536)
        if not piece:
            raise ConnectionResetError
        got += piece
    return got


def test_data_pass_whole_and_late(echo):
    with Proxy(echo, delay=0.1) as proxy, dial(proxy) as connection:
        data = bytes(range(256)) * 4000
        begin = time.monotonic()
        assert ask(connection, data) == data
        assert time.monotonic() - begin >= 0.2
        assert proxy.passed == 2 * len(data)


def test_a_cut_resets_and_refuses_for_its_time(echo):
    with Proxy(echo) as proxy, dial(proxy) as connection:
        assert ask(connection) == b"hello"
        proxy.cut(0.5)
        with pytest.raises(OSError):  # noqa: PT011
            ask(connection)
        with pytest.raises(OSError), dial(proxy) as refused:  # noqa: PT011
            ask(refused)
        time.sleep(0.6)
        with dial(proxy) as again:
            assert ask(again) == b"hello"


def test_drops_reset_connections(echo):
    with Proxy(echo, drop=0.2, seed=1) as proxy:
        lost = 0
        for _ in range(40):
            try:
                with dial(proxy) as connection:
                    assert ask(connection) == b"hello"
            except OSError:
                lost += 1
    assert lost == proxy.dropped and 5 <= lost <= 25
