"""The report of a run that is still going on, served to browsers on this machine only.

The server answers GET for two paths, `/` and `/data.json`, from 127.0.0.1 and under that name only (another name in
the Host header would be a web site that points its own name here). Numbers are put together between two chunks of
rounds, only when a page has asked since, and never for more than a twenty-fifth of the time.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Mapping
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import parse_qs, urlsplit

from pisco.costs import Prices
from pisco.errors import InputError
from pisco.report.html import build_page, encode, page_data

if TYPE_CHECKING:
    from pisco.engines.driver import Progress
    from pisco.results import Result

ADDRESS = "127.0.0.1"
SHARE = 25
LEAST_SECONDS = 1.0
LAST_LOOK_SECONDS = 4.0


class LivePage:
    """Follows one run: call it with every `Progress`, then `finish` it.

    Args:
      name: of the run.
      rounds: how many there will be.
      port: 0 takes a free one.
    """

    def __init__(self, name: str, rounds: int, port: int = 0):
        self.name, self.rounds = name, rounds
        self.version, self.heard, self.fetched = 0, 0.0, -1
        self.asked = threading.Event()
        self.next_time = 0.0
        self.data: dict[str, Any] = {"measures": [], "results": [], "prices": Prices()._asdict(), "html": {}}
        self.data |= {"live": {"state": "waiting", "done": 0, "rounds": rounds}, "version": 0}
        handler = type("Handler", (_Handler,), {"page": self})
        try:
            self.server = _Server((ADDRESS, port), handler)
        except (OSError, OverflowError) as error:
            raise InputError(
                f"the live page cannot use port {port} ({error}); take another --port, or 0 for a free one"
            ) from error
        self.server.daemon_threads = True
        self.port = int(self.server.server_address[1])
        self.thread = threading.Thread(target=self.server.serve_forever, daemon=True, name="live page")
        self.thread.start()

    @property
    def address(self) -> str:
        """Where to look."""
        return f"http://{ADDRESS}:{self.port}/"

    def __call__(self, progress: Progress) -> None:
        """Take news from the run; cheap unless a page is open and it is time."""
        now = time.monotonic()
        if now < self.next_time or not (self.asked.is_set() or self.version == 0):
            return
        self.asked.clear()
        self._publish(progress.so_far(), {"state": "running", "done": progress.done, "rounds": self.rounds})
        self.next_time = time.monotonic() + max(LEAST_SECONDS, SHARE * (time.monotonic() - now))

    def finish(self, result: Result, saved: Path) -> None:
        """Show the whole result; wait a moment for a page that is open to fetch it."""
        state = "interrupted" if result.interrupted else "finished"
        live = {"state": state, "done": result.rounds, "rounds": self.rounds, "saved": str(saved)}
        self._publish(result, live)
        until = time.monotonic() + LAST_LOOK_SECONDS
        looking = self.heard and time.monotonic() - self.heard < LAST_LOOK_SECONDS
        while looking and self.fetched < self.version and time.monotonic() < until:
            time.sleep(0.05)
        self.close()

    def close(self) -> None:
        """Stop serving."""
        if not self.thread.is_alive():
            return
        self.server.shutdown()
        self.server.server_close()
        self.thread.join(timeout=5)

    def _publish(self, result: Result, live: Mapping[str, Any]) -> None:
        result.label = result.label or self.name
        data = page_data([result])
        self.version += 1
        self.data = data | {"live": dict(live), "version": self.version}


class _Server(ThreadingHTTPServer):
    def handle_error(self, request: Any, client_address: Any) -> None:
        """A browser that goes away in the middle of an answer is ignored."""


class _Handler(BaseHTTPRequestHandler):
    page: LivePage
    server_version, sys_version = "pisco", ""

    def do_GET(self) -> None:
        names = {f"{ADDRESS}:{self.page.port}", f"localhost:{self.page.port}"}
        if self.headers.get("Host", "") not in names:
            self._answer(HTTPStatus.FORBIDDEN, b"this page is for its own machine only\n", "text/plain")
            return
        where, data = urlsplit(self.path), self.page.data
        self.page.heard = time.monotonic()
        if where.path == "/":
            self.page.asked.set()
            html = build_page(data, title=f"{self.page.name}: a run")
            self._answer(HTTPStatus.OK, html.encode(), "text/html; charset=utf-8")
        elif where.path == "/data.json":
            self.page.asked.set()
            if parse_qs(where.query).get("seen") == [str(data["version"])]:
                self._answer(HTTPStatus.NO_CONTENT, b"", "application/json")
            else:
                self._answer(HTTPStatus.OK, encode(data).encode(), "application/json")
            self.page.fetched = data["version"]
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
