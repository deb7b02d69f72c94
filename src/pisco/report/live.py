"""The report of a run that is still going on, served to browsers on this machine only.

Numbers are put together between two chunks of rounds, only when a page has asked since, and never for more than a
twenty-fifth of the time.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pisco.costs import Prices
from pisco.errors import InputError
from pisco.report.html import build_page, encode, page_data
from pisco.report.serving import LAST_LOOK_SECONDS, PageServer

if TYPE_CHECKING:
    from pisco.engines.driver import Progress
    from pisco.results import Result

__all__ = ["LivePage"]

SHARE = 25
LEAST_SECONDS = 1.0


class LivePage:
    """Follows one run: call it with every `Progress`, then `finish` it.

    Args:
      name: of the run.
      rounds: how many there will be.
      port: 0 takes a free one.
    """

    def __init__(self, name: str, rounds: int, port: int = 0):
        self.name, self.rounds = name, rounds
        self.version, self.fetched = 0, -1
        self.asked = threading.Event()
        self.next_time = 0.0
        self.data: dict[str, Any] = {"measures": [], "results": [], "prices": Prices()._asdict(), "html": {}}
        self.data |= {"live": {"state": "waiting", "done": 0, "rounds": rounds}, "version": 0}
        try:
            self.server = PageServer(self, port=port)
        except (OSError, OverflowError) as error:
            raise InputError(
                f"the live page cannot use port {port} ({error}); take another --port, or 0 for a free one"
            ) from error
        self.port, self.address = self.server.port, self.server.address

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
        looking = self.server.looked_at
        while looking and self.fetched < self.version and time.monotonic() < until:
            time.sleep(0.05)
        time.sleep(0.1 if looking else 0.0)  # what it asked for is under way
        self.close()

    def close(self) -> None:
        """Stop serving."""
        self.server.close()

    def html(self) -> str:
        """The page as it is now."""
        self.asked.set()
        return build_page(self.data, title=f"{self.name}: a run")

    def news(self, seen: str) -> str | None:
        """Its data, unless this version has been seen."""
        self.asked.set()
        data = self.data
        self.fetched = data["version"]
        return None if seen == str(data["version"]) else encode(data)

    def _publish(self, result: Result, live: Mapping[str, Any]) -> None:
        result.label = result.label or self.name
        data = page_data([result])
        self.version += 1
        self.data = data | {"live": dict(live), "version": self.version}
