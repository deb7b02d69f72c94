"""Progress for people: a bar in a terminal, a line written anew in a notebook, a few lines anywhere else."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np

from pisco.errors import InputError

if TYPE_CHECKING:
    from pisco.engines.driver import Progress

Follower = Callable[["Progress"], None]
START = "compiling, measuring the start…"


class ProgressBar(Protocol):
    """What a run calls after every chunk; `describe` starts the bar anew for the next piece of work."""

    def __call__(self, progress: Progress, /) -> None: ...

    def describe(self, words: str, /) -> None: ...


@contextmanager
def progress_bar(rounds: int, words: str, console: Any) -> Iterator[ProgressBar]:
    """A bar on a console of `rich` that shows rounds, loss and accuracy after every chunk."""
    from rich.progress import BarColumn, MofNCompleteColumn, SpinnerColumn, TextColumn, TimeRemainingColumn
    from rich.progress import Progress as Bar

    columns = (SpinnerColumn(), TextColumn("{task.description}"), BarColumn(18), MofNCompleteColumn())
    with Bar(*columns, TimeRemainingColumn(), TextColumn("{task.fields[news]}"), console=console) as bar:
        task = bar.add_task(words, total=rounds, news=START)

        class Update:
            def __call__(self, progress: Progress) -> None:
                bar.update(task, completed=progress.done, news=_news(progress))

            def describe(self, words: str) -> None:
                bar.reset(task, description=words, total=rounds, news=START)

        yield Update()


@contextmanager
def followed(progress: bool | Follower | None, rounds: Any, words: str) -> Iterator[Follower | None]:
    """What a run is to call after every chunk: nothing, the caller's own function, or something to look at."""
    if progress is not True:
        if progress and not callable(progress):
            raise InputError(f"progress is {progress!r}, expected True, False or a function")
        yield progress or None
        return
    notebook = "ipykernel" in sys.modules
    if sys.stderr.isatty() and not notebook:
        try:
            from rich.console import Console
        except ImportError:
            pass
        else:
            with progress_bar(rounds, words, Console(stderr=True)) as bar:
                yield bar
            return
    stream = sys.stdout if notebook else sys.stderr  # notebooks show stderr as a fault
    told = 0

    def line(news: Progress) -> None:
        nonlocal told
        tenths = 10 * news.done // news.rounds
        if notebook or tenths > told:
            told = tenths
            ends = ("\r", "") if notebook else ("", "\n")
            text = f"{words}: round {news.done} of {news.rounds}, {_news(news)}"
            print(f"{ends[0]}{text:<79}", end=ends[1], file=stream, flush=True)

    try:
        yield line
    finally:
        if notebook:
            print(file=stream)


def _news(progress: Progress) -> str:
    news = [f"loss {np.mean(progress.row['loss']):.4g}"]
    if "test_accuracy" in progress.row:
        news.append(f"accuracy {np.mean(progress.row['test_accuracy']):.1%}")
    return ", ".join(news)
