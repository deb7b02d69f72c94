"""Progress for people: a bar in a terminal, a line written over in a notebook, a few lines anywhere else."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

import numpy as np

from pisco.errors import InputError
from pisco.metrics import TEST

if TYPE_CHECKING:
    from pisco.engines.driver import Progress

Follower = Callable[["Progress"], None]
START = "compiling, measuring the start…"


class Bar:
    """A bar of `rich` to call after every chunk; `describe` starts it again for the next piece of work."""

    def __init__(self, bar: Any, rounds: int, words: str):
        self.bar, self.rounds = bar, rounds
        self.task = bar.add_task(words, total=rounds, news=START)

    def __call__(self, progress: Progress) -> None:
        self.bar.update(self.task, completed=progress.done, news=_news(progress))

    def describe(self, words: str) -> None:
        self.bar.reset(self.task, description=words, total=self.rounds, news=START)


@contextmanager
def progress_bar(rounds: int, words: str, console: Any) -> Iterator[Bar]:
    """A bar on a console of `rich` that shows rounds, loss and accuracy after every chunk."""
    from rich import progress as parts

    done, left = parts.MofNCompleteColumn(), parts.TimeRemainingColumn()
    what, news = (parts.TextColumn(field, markup=False) for field in ("{task.description}", "{task.fields[news]}"))
    columns = (parts.SpinnerColumn(), what, parts.BarColumn(18), done, left, news)
    with parts.Progress(*columns, console=console) as bar:
        try:
            yield Bar(bar, rounds, words)
            # What was kept from before was neither compiled nor measured.
            bar.live.transient = all(task.fields["news"] == START for task in bar.tasks)
        except InputError:  # then its sentence stands alone
            bar.live.transient = True
            raise


@contextmanager
def followed(progress: bool | Follower | None, rounds: Any, words: str) -> Iterator[Follower | None]:
    """What a run is to call after every chunk: nothing, the caller's own function, or something to look at."""
    if progress is not True:
        if progress and not callable(progress):
            raise InputError(f"progress is {progress!r}, expected True, False or a function")
        yield progress or None
        return
    notebook = "ipykernel" in sys.modules  # where stderr looks like a fault, and rich needs one package more
    if sys.stderr.isatty() and not notebook and find_spec("rich") is not None:
        from rich.console import Console

        with progress_bar(rounds, words, Console(stderr=True)) as bar:
            yield bar
        return
    told = 0

    def line(news: Progress) -> None:
        nonlocal told
        text = f"{words}: round {news.done} of {news.rounds}, {_news(news)}"
        if notebook:
            print(f"\r{text:<79}", end="" if news.done < news.rounds else "\n", flush=True)
        elif 10 * news.done // news.rounds > told:
            print(text, file=sys.stderr, flush=True)
        told = 10 * news.done // news.rounds

    yield line


def _news(progress: Progress) -> str:
    """The newest measurement: the loss, and the test metrics that are shown unasked."""
    row, news = progress.row, [f"loss {np.mean(progress.row['loss']):.4g}"]
    for metric in progress.metrics:
        if metric.of == TEST and metric.usual and metric.column in row:
            value = np.mean(row[metric.column])
            news.append(f"{metric.name} " + (f"{value:.1%}" if metric.unit == "%" else f"{value:.4g}"))
    return ", ".join(news) + (f" (round {progress.measured})" if progress.measured < progress.done else "")
