"""How commands speak: answers on stdout, everything else on stderr."""

from __future__ import annotations

import json
import math
import os
import warnings
from collections.abc import Container, Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

import typer

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table

    from pisco.engines.driver import Progress


def out() -> Console:
    """The console of stdout, made at every call, so that it follows redirection."""
    from rich.console import Console

    return Console()


def err() -> Console:
    """The console of stderr."""
    from rich.console import Console

    return Console(stderr=True)


def say(message: str) -> None:
    """One line on stdout as it is: nothing wrapped, coloured or interpreted."""
    out().print(message, markup=False, highlight=False, soft_wrap=True)


def note(message: str) -> None:
    """One line on stderr as it is."""
    err().print(message, markup=False, highlight=False, soft_wrap=True)


def say_json(value: Any) -> None:
    """One JSON object, and nothing else, on stdout; records become objects, what is not finite becomes null."""
    typer.echo(json.dumps(_finite(value), ensure_ascii=False))


def _finite(value: Any) -> Any:
    if hasattr(value, "_asdict"):
        value = value._asdict()
    if isinstance(value, dict):
        return {str(key): _finite(each) for key, each in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(each) for each in value]
    if isinstance(value, Path):
        return str(value)
    return None if isinstance(value, float) and not math.isfinite(value) else value


def table(title: str, *columns: str, right: Container[int] = ()) -> Table:
    """An empty table; `right` names the columns of numbers."""
    from rich.box import SIMPLE_HEAD
    from rich.table import Table

    made = Table(title=title, title_justify="left", box=SIMPLE_HEAD, pad_edge=False, collapse_padding=True)
    made.show_header = any(columns)
    for index, column in enumerate(columns):
        justify = "right" if index in right else "left"
        made.add_column(column, justify=justify, overflow="fold", no_wrap=index == 0)
    return made


def print_table(
    title: str, columns: Sequence[str], rows: Iterable[Sequence[str]], right: Container[int] = ()
) -> None:
    """A table on stdout; `right` names the columns of numbers."""
    shown = table(title, *columns, right=right)
    for row in rows:
        shown.add_row(*row)
    out().print(shown)


def cell(value: float | None, form: str = ".4g") -> str:
    """A number for a table; a dash where there is none.

    >>> cell(0.12345), cell(12.3, ".0f"), cell(None), cell(math.inf)
    ('0.1235', '12', '–', '–')
    """
    return "–" if value is None or not math.isfinite(value) else f"{value:{form}}"


def size(count: float | None) -> str:
    """Bytes for people; a dash where they are not known.

    >>> size(999), size(1_500), size(257_920)
    ('999 B', '1.5 kB', '258 kB')
    """
    if count is None:
        return "–"
    for unit in ("B", "kB", "MB", "GB"):
        if count < 999.5 or unit == "GB":
            return f"{count:.3g} {unit}"
        count /= 1000
    raise AssertionError


@contextmanager
def warnings_as_lines() -> Iterator[None]:
    """Warnings meant for users become one line each; those for programmers are dropped."""

    def show(message: Warning | str, *_: Any, **__: Any) -> None:
        note(f"warning: {message}")

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        warnings.simplefilter("default", UserWarning)
        warnings.showwarning = show
        yield


class ProgressBar(Protocol):
    """What a run calls after every chunk; `describe` starts the bar again for the next piece of work."""

    def __call__(self, progress: Progress, /) -> None: ...

    def describe(self, words: str, /) -> None: ...


@contextmanager
def progress_bar(rounds: int, words: str) -> Iterator[ProgressBar]:
    """A bar on stderr that shows rounds, loss and accuracy after every chunk."""
    import numpy as np
    from rich.progress import BarColumn, MofNCompleteColumn, SpinnerColumn, TextColumn, TimeRemainingColumn
    from rich.progress import Progress as Bar

    columns = (SpinnerColumn(), TextColumn("{task.description}"), BarColumn(18), MofNCompleteColumn())
    with Bar(*columns, TimeRemainingColumn(), TextColumn("{task.fields[news]}"), console=err()) as bar:
        task = bar.add_task(words, total=rounds, news="compiling, measuring the start…")

        class Update:
            def __call__(self, progress: Progress) -> None:
                news = [f"loss {np.mean(progress.row['loss']):.4g}"]
                if "test_accuracy" in progress.row:
                    news.append(f"accuracy {np.mean(progress.row['test_accuracy']):.1%}")
                bar.update(task, completed=progress.done, news=", ".join(news))

            def describe(self, words: str) -> None:
                bar.reset(task, description=words, total=rounds, news="compiling, measuring the start…")

        yield Update()


def use_compilation_cache() -> None:
    """Keep compiled programs in the user's cache, so that a second run starts at once."""
    import jax

    from pisco.data.storage import cache_folder

    if jax.config.jax_compilation_cache_dir is not None:  # pyright: ignore[reportAttributeAccessIssue]
        return
    folder = cache_folder() / "xla"
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError:  # a convenience only: without a place for it, compile every time
        return
    jax.config.update("jax_compilation_cache_dir", str(folder))
    jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.5)


def wants_traceback() -> bool:
    """Whether errors should show where they come from."""
    return os.environ.get("PISCO_TRACEBACK", "") not in ("", "0")


def key_values(pairs: list[str] | None) -> dict[str, Any]:
    """Options given as KEY=VALUE, values as TOML reads them."""
    from pisco.errors import InputError
    from pisco.settings import toml

    found = {}
    for pair in pairs or ():
        key, equals, value = pair.partition("=")
        if not equals or not key.strip():
            raise InputError(f"{pair!r} sets nothing; write key=value, as in alpha=0.3")
        found[key.strip()] = toml.value(value.strip())
    return found
