"""What follows a run from outside: the live page and a tracker, beside the progress bar."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from pisco.cli.console import note, say

if TYPE_CHECKING:
    from pisco.engines.driver import Progress
    from pisco.experiments import Config
    from pisco.report.live import LivePage
    from pisco.report.trackers import Log
    from pisco.results import Result

REPORT_FILE = "report.html"


class Watchers:
    """Called with every `Progress`; `finish` once the result is kept."""

    def __init__(self, page: LivePage | None, log: Log | None):
        self.followers: list[Callable[[Progress], None]] = [each for each in (page, log) if each is not None]
        self.page, self.log = page, log

    def add(self, follower: Callable[[Progress], None]) -> None:
        """Call one more, before the others."""
        self.followers.insert(0, follower)

    def __call__(self, progress: Progress) -> None:
        for each in self.followers:
            each(progress)

    def finish(self, result: Result, folder: Path, *, quiet: bool) -> None:
        """The last rows and the last page; says where they are, unless stdout carries JSON."""
        tell = note if quiet else say
        if self.log is not None:
            looks = {tracker.look for tracker in self.log.trackers}
            self.log.finish(result)
            for look in sorted(looks):
                tell(f"log: {look}")
        if self.page is not None:
            from pisco.errors import InputError
            from pisco.report.html import write_page

            try:
                saved = write_page([result], folder / REPORT_FILE)
            except InputError as error:  # the result itself is kept
                note(f"warning: {error}")
                return
            tell(f"report: {saved}")
            self.page.finish(result, saved)


@contextmanager
def watching(config: Config, folder: Path, *, live: bool, port: int, log: str | None) -> Iterator[Watchers]:
    """Begin what was asked for, and end it however the run ends."""
    with ExitStack() as stack:
        page = tracker = None
        if log is not None:
            from pisco.report.trackers import Log

            seeds = config.run.seed_or_seeds()
            settings = {
                f"{name}.{key}": value
                for name, table in config.to_dict().items()
                if isinstance(table, dict)
                for key, value in table.items()
            }
            tracker = Log(log, [seeds] if isinstance(seeds, int) else seeds, settings, folder)
            stack.callback(tracker.close)
        if live:
            from pisco.report.live import LivePage

            page = LivePage(config.name or "run", config.run.rounds, port)
            stack.callback(page.close)
            note(f"live page: {page.address} (this machine only, until the run ends)")
        yield Watchers(page, tracker)
