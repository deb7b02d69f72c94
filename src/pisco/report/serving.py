"""A page that follows something, served to browsers on this machine only.

Two paths are answered, `/` and `/data.json`, on loopback and under the names that it has there only (another name in
the Host header would be a web site that points its own name here).
"""

from __future__ import annotations

import socket
import threading
import time
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, Protocol
from urllib.parse import parse_qs, urlsplit

ADDRESS = "127.0.0.1"
LAST_LOOK_SECONDS = 4.0


class Followed(Protocol):
    """What a page shows."""

    def html(self) -> str:
        """The page."""
        ...

    def news(self, seen: str) -> str | None:
        """Its data as JSON; None where the page that has seen this version needs none."""
        ...


class PageServer(ThreadingHTTPServer):
    """Answers at once, until it is closed.

    Args:
      page: what is shown.
      host: of this machine's loopback.
      port: 0 takes a free one.
    """

    daemon_threads = True

    def __init__(self, page: Followed, host: str = ADDRESS, port: int = 0):
        self.page, self.heard = page, 0.0
        self.address_family = socket.AF_INET6 if ":" in host else socket.AF_INET
        super().__init__((host, port), _Handler)
        self.port = int(self.server_address[1])
        host = f"[{host}]" if ":" in host else host
        self.names = {f"{name}:{self.port}" for name in (host, ADDRESS, "localhost")}
        self.address = f"http://{host}:{self.port}/"
        self._thread = threading.Thread(target=self.serve_forever, daemon=True, name="page")
        self._thread.start()

    @property
    def looked_at(self) -> bool:
        """Whether a page has asked just now."""
        return bool(self.heard) and time.monotonic() - self.heard < LAST_LOOK_SECONDS

    def close(self) -> None:
        """Stop serving."""
        if self._thread.is_alive():
            self.shutdown()
            self.server_close()
            self._thread.join(timeout=5)

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A browser that goes away in the middle of an answer is ignored."""


class _Handler(BaseHTTPRequestHandler):
    server: PageServer
    server_version, sys_version = "pisco", ""
    timeout = 30

    def do_GET(self) -> None:
        if self.headers.get("Host", "") not in self.server.names:
            self._answer(HTTPStatus.FORBIDDEN, b"this page is for its own machine only\n", "text/plain")
            return
        where, page = urlsplit(self.path), self.server.page
        self.server.heard = time.monotonic()
        if where.path == "/":
            self._answer(HTTPStatus.OK, page.html().encode(), "text/html; charset=utf-8")
        elif where.path == "/data.json":
            news = page.news(parse_qs(where.query).get("seen", [""])[0])
            status = HTTPStatus.NO_CONTENT if news is None else HTTPStatus.OK
            self._answer(status, (news or "").encode(), "application/json")
        else:
            self._answer(HTTPStatus.NOT_FOUND, b"there is nothing here\n", "text/plain")

    def _answer(self, status: HTTPStatus, body: bytes, kind: str) -> None:
        self.send_response(status)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(body)))
        self.send_header("Cache-Control", "no-store")
        self.send_header("X-Content-Type-Options", "nosniff")
        self.send_header("X-Frame-Options", "DENY")
        self.send_header("Cross-Origin-Resource-Policy", "same-origin")
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: Any) -> None:
        """Nothing: the terminal belongs to the run."""
