"""How commands speak: answers on stdout, everything else on stderr."""

from __future__ import annotations

import json
import math
import os
import re
import signal
import sys
import threading
import warnings
from collections.abc import Callable, Container, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, redirect_stdout, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, TextIO

import typer
from typer.core import TyperCommand, TyperGroup

from pisco.report.numbers import size as size

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table

    from pisco.engines.progress import Bar


_LITERALLY: Any = {"markup": False, "emoji": False}
"""What users wrote is shown as it is: `rich` would take [a] for a colour and :b: for a picture."""

_answers: TextIO | None = None
"""Stdout while a command runs and `sys.stdout` is something else."""


class _Helpful:
    """Help whose reader goes away, as `head` does, ends well; rich would end the process with an error."""

    def format_help(self, ctx: Any, formatter: Any) -> None:
        try:
            super().format_help(ctx, formatter)  # pyright: ignore[reportAttributeAccessIssue]
        except SystemExit:
            raise SystemExit(0) from None


class Group(_Helpful, TyperGroup):
    """Commands under one name."""


class Command(_Helpful, TyperCommand):
    """A command whose stdout carries its answer alone: what users' own code prints meanwhile goes to stderr."""

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self.help = re.sub(r"(?<=\S)\n(?=\S)", " ", self.help or "")  # paragraphs wrap where the terminal ends

    def invoke(self, ctx: Any) -> Any:
        global _answers
        _answers = sys.stdout
        try:
            with redirect_stdout(sys.stderr):
                return super().invoke(ctx)
        finally:
            _answers = None


def keep_stdout() -> None:
    """For a process that is all ours: what libraries write to stdout goes to stderr, a sign that stdout's encoding
    lacks becomes a question mark, and `sys.stdout` is the one way out."""
    if sys.stdout is None or sys.stderr is None:  # closed by the caller
        return
    sys.stdout.flush()
    sys.stdout = os.fdopen(os.dup(sys.stdout.fileno()), "w", encoding=sys.stdout.encoding, errors="replace")
    sys.stderr.reconfigure(errors="replace")  # type: ignore[union-attr]
    os.dup2(sys.stderr.fileno(), 1)


def keep_interrupts() -> None:
    """Ctrl-C is not lost where Python would only print it: in the callback by which jax follows garbage collection."""

    def interrupt(number: int, frame: Any) -> None:
        if frame is not None and frame.f_code.co_name == "_xla_gc_callback":
            threading.Timer(0.05, signal.pthread_kill, [threading.main_thread().ident, number]).start()
        else:
            signal.default_int_handler(number, frame)

    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:  # else somebody ignores it on purpose
        signal.signal(signal.SIGINT, interrupt)


def drop_stdout() -> None:
    """Forget what could not be written: Python would try again at the exit, and complain."""
    with suppress(OSError):
        os.dup2(os.open(os.devnull, os.O_WRONLY), answers().fileno())


def answers() -> TextIO:
    """Where answers go: stdout, whoever else may think that it is theirs."""
    return _answers or sys.stdout


def out() -> Console:
    """The console of stdout, made at every call, so that it follows redirection."""
    from rich.console import Console

    class Answers(Console):
        def on_broken_pipe(self) -> None:  # rich would end the process with an error
            raise BrokenPipeError

    return Answers(file=answers(), **_LITERALLY)


def err() -> Console:
    """The console of stderr."""
    from rich.console import Console

    return Console(stderr=True, **_LITERALLY)


def say(message: str) -> None:
    """One line on stdout as it is: nothing wrapped, coloured or interpreted."""
    out().print(message, highlight=False, soft_wrap=True)


@contextmanager
def private_files() -> Iterator[None]:
    """What is written here only its owner can read."""
    before = os.umask(0o077)
    try:
        yield
    finally:
        os.umask(before)


def note(message: str) -> None:
    """One line on stderr as it is."""
    err().print(message, highlight=False, soft_wrap=True)


def say_json(value: Any) -> None:
    """One JSON object, and nothing else, on stdout; records become objects, what is not finite becomes null."""
    spelled = not answers().encoding.lower().startswith("utf")
    typer.echo(json.dumps(_finite(value), ensure_ascii=spelled), file=answers())


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


WHOLE = 20
"""Cells of a table that are no longer than this stay on one line; longer ones may break where there is no room."""


def tables(
    columns: Sequence[str], rows: Iterable[Sequence[str]], right: Container[int] = (), room: float = math.inf
) -> list[Table]:
    """A table that fits into `room` signs, in parts if it must, each with the first column.

    Numbers and short words stay whole; `right` names columns of numbers.
    """
    rows = [tuple(row) for row in rows]
    parts: list[list[int]] = [[0]]
    least = _widths(columns, rows, room)[1]
    for at in range(1, len(least)):
        if len(parts[-1]) > 1 and _total([least[other] for other in [*parts[-1], at]]) > room:
            parts.append([0])
        parts[-1].append(at)
    return [
        _table(
            [columns[at] for at in part],
            [[row[at] for at in part] for row in rows],
            [part.index(at) for at in part if at in right],
            room,
        )
        for part in parts
    ]


def _table(columns: Sequence[str], rows: Sequence[Sequence[str]], right: Container[int], room: float) -> Table:
    from rich.box import SIMPLE_HEAD
    from rich.table import Table

    made = Table(box=SIMPLE_HEAD, pad_edge=False, collapse_padding=True)
    made.show_header = any(columns)
    widths, least = _widths(columns, rows, room)
    while _total(widths) > room and widths != least:
        widest = max(range(len(widths)), key=lambda at: (widths[at] > least[at], widths[at]))
        widths[widest] -= 1
    for index, column in enumerate(columns):
        justify = "right" if index in right else "left"
        made.add_column(column, justify=justify, overflow="fold", width=widths[index])
    for row in rows:
        made.add_row(*row)
    return made


def _widths(columns: Sequence[str], rows: Sequence[Sequence[str]], room: float) -> tuple[list[int], list[int]]:
    """How wide columns would like to be, and at least are; the first, which names the others' rows, may be wide."""
    from rich.cells import cell_len

    cells = [[cell_len(row[at]) for row in rows] for at in range(len(columns))]
    heads = [[cell_len(word) for word in column.split()] for column in columns]
    least = [min(WHOLE, max([0, *head, *cell])) for head, cell in zip(heads, cells, strict=True)]
    # A long head may break, also where there is room: its numbers are short.
    likes = [max([least[at], min(WHOLE, cell_len(column)), *cells[at]]) for at, column in enumerate(columns)]
    least[0] = int(min(likes[0], max(WHOLE // 2, min(0.6 * room, room - 4 - max(least[1:], default=0)))))
    return likes, least


def _total(widths: Sequence[int]) -> int:
    """The width of a table: a blank at both ends, two between columns."""
    return sum(widths) + 2 * len(widths)


def print_table(
    title: str, columns: Sequence[str], rows: Iterable[Sequence[str]], right: Container[int] = (), caption: str = ""
) -> None:
    """A table on stdout; `right` names the columns of numbers.

    A terminal too narrow for it gets it in parts, each with the first column, and what is no terminal gets it whole.
    """
    from rich.text import Text

    console = out()
    room = console.width if console.is_terminal else math.inf
    console.print(Text(title, style="table.title"), soft_wrap=room == math.inf)
    console.width = 10_000  # rich would cut what is wider than it thinks that the terminal is
    for part in tables(columns, rows, right, room):
        console.print(part)
    if caption:
        say(caption)


def cell(value: float | None, form: str = ".4g") -> str:
    """A number for a table; a dash where there is none.

    >>> cell(0.12345), cell(12.3, ".0f"), cell(None), cell(math.inf)
    ('0.1235', '12', '–', '–')
    """
    return "–" if value is None or not math.isfinite(value) else f"{value:{form}}"


def picture(asked: Path | None, usual: str, plot: Callable[[Path], Any], tell: Callable[[str], None] = say) -> None:
    """Draw to the path that was asked for, or to the usual one; if that one cannot be written, a warning is enough."""
    from pisco.errors import InputError

    path = asked or Path(usual)
    try:
        plot(path)
    except InputError as error:
        if asked is not None:
            raise
        note(f"warning: {error}")
        return
    tell(f"picture: {path}")


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


def progress_bar(rounds: int, words: str) -> AbstractContextManager[Bar]:
    """A bar on stderr that shows rounds, loss and accuracy after every chunk."""
    from pisco.engines import progress

    return progress.progress_bar(rounds, words, err())


def use_compilation_cache() -> None:
    """Keep compiled programs in the user's cache, even fast ones, so that a second run starts at once."""
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
    jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.0)
    # Two that write the same program at once: the reader compiles it instead.
    warnings.filterwarnings("ignore", message="Error (reading|writing) persistent compilation cache")


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
