"""Names to factories, and the one check of what a factory is given.

A name is a row of our own table, an entry point that another package declares in the table's group (`pisco.graphs`), a
function of a Python file ("my_graphs.py:tree"), or, where a table reads them, a file of data ("roads.graphml").
"""

from __future__ import annotations

import functools
import importlib
import inspect
import json
import re
import sys
import traceback
import typing
from collections.abc import Callable, Iterator, Mapping, Sequence
from importlib.metadata import EntryPoint, entry_points
from numbers import Integral, Real
from pathlib import Path
from types import ModuleType, NoneType, SimpleNamespace, UnionType
from typing import Any, Generic, Literal, NamedTuple, TypeVar

from pisco.errors import InputError, suggest

T = TypeVar("T")

_REFERENCE = re.compile(r"(?P<file>.+\.py):(?P<function>\w+)")
_BASIC = {float: "a number", int: "a whole number", bool: "true or false", str: "a text"}


# ------------------------------------------------------------------------------ keywords and their types


class Option(NamedTuple):
    """One keyword of a factory: its type, and its default (`inspect.Parameter.empty` where it has none)."""

    type: Any
    default: Any

    @property
    def needed(self) -> bool:
        return self.default is inspect.Parameter.empty


def options(factory: Callable[..., Any]) -> dict[str, Option]:
    """What a factory takes by name, with its types resolved; `Any` where there is none, or one for type checkers alone.

    >>> def ring(agents: int, *, seed: int = 0): ...
    >>> options(ring)["agents"]
    Option(type=<class 'int'>, default=<class 'inspect._empty'>)
    """
    plain = inspect.unwrap(getattr(factory, "func", factory))
    function = plain.__init__ if inspect.isclass(plain) else plain
    names = getattr(function, "__globals__", {})

    def resolved(annotation: Any) -> Any:
        try:
            return typing.get_type_hints(SimpleNamespace(__annotations__={"type": annotation}), names)["type"]
        except NameError:
            return Any

    written = getattr(function, "__annotations__", {})
    return {
        name: Option(resolved(written.get(name, Any)), parameter.default)
        for name, parameter in inspect.signature(factory).parameters.items()
        if parameter.kind not in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD)
    }


def fit(
    what: str, known: Mapping[str, Option], given: Mapping[str, Any], *, table: str = ""
) -> dict[str, Any]:
    """The keywords given, in their declared types; one that is unknown, missing or of another type is refused.

    >>> fit("graph 'ring'", {"agents": Option(int, 10)}, {"agnets": 3})
    Traceback (most recent call last):
    ...
    pisco.errors.InputError: graph 'ring' has no option 'agnets'; did you mean 'agents'?
    """
    for name in given:
        if name not in known:
            hint = suggest(name, known) if known else "it has none"
            raise InputError(f"{what} has no option {name!r}; {hint}")
    for name, option in known.items():
        if option.needed and name not in given:
            raise InputError(
                f"{table}{name} is missing; {what} needs it, as in {table}{name} = {_example(option.type)}"
            )
    return {name: convert(f"{table}{name}", value, known[name].type) for name, value in given.items()}


def convert(name: str, value: Any, kind: Any) -> Any:
    """A value as the type that is declared for it; whole numbers pass for numbers, arrays as they are.

    >>> convert("local_steps", 2.0, int), convert("local_lr", 1, float)
    (2, 1.0)
    >>> convert("local_steps", True, int)
    Traceback (most recent call last):
    ...
    pisco.errors.InputError: local_steps is True, expected a whole number
    """
    fits, made = _converted(value, kind)
    if not fits:
        raise InputError(f"{name} is {value!r}, expected {_words(kind)}")
    return made


def _converted(value: Any, kind: Any) -> tuple[bool, Any]:
    """Whether a value is of a type, and what it becomes."""
    origin, parts = typing.get_origin(kind), typing.get_args(kind)
    if origin in (typing.Union, UnionType):
        return next((tried for tried in (_converted(value, part) for part in parts) if tried[0]), (False, None))
    if origin is Literal:
        return value in parts, value
    if origin in (Sequence, list, tuple):
        if isinstance(value, list | tuple) and parts:
            each = [_converted(one, parts[0]) for one in value]
            return all(fits for fits, _ in each), [one for _, one in each]
        return not isinstance(value, str) and hasattr(value, "__len__"), value
    if kind in (float, int) and isinstance(value, Real) and not isinstance(value, bool):
        if kind is float:
            return True, float(value)
        whole = isinstance(value, Integral) or float(value).is_integer()
        return whole, int(value) if whole else value
    if kind is float:  # an array, or a value that is traced
        return hasattr(value, "dtype") and value.dtype != bool, value
    free = kind is Any or not inspect.isclass(kind) or getattr(kind, "_is_protocol", False)
    if kind is int:
        return False, value
    return free or isinstance(value, kind), value


def _words(kind: Any) -> str:
    """A type for people."""
    origin, parts = typing.get_origin(kind), typing.get_args(kind)
    if origin in (typing.Union, UnionType):
        return " or ".join(_words(part) for part in parts if part is not NoneType)
    if origin is Literal:
        return " or ".join(json.dumps(part) for part in parts)
    if origin in (Sequence, list, tuple):
        return "a list of numbers" if parts[:1] in ((float,), (int,)) else "a list"
    return _BASIC.get(kind, f"a value of type {getattr(kind, '__name__', kind)}")


def _example(kind: Any) -> str:
    listed = {float: "0.1", int: "1", bool: "true", str: '"…"'}
    return listed.get(kind, "[0.1, 0.2]" if typing.get_origin(kind) is Sequence else "…")


# ------------------------------------------------------------------------------------ files of Python


def is_reference(name: Any) -> bool:
    """Whether a name is one of the form "file.py:function"."""
    return isinstance(name, str) and _REFERENCE.fullmatch(name) is not None


def move(name: str, where: Callable[[Path], Path]) -> str:
    """The same name with its file put elsewhere.

    >>> move("my_algos.py:extra", lambda path: Path("/home/ann") / path)
    '/home/ann/my_algos.py:extra'
    """
    found = _REFERENCE.fullmatch(name)
    return f"{where(Path(found['file']))}:{found['function']}" if found else str(where(Path(name)))


def here(path: Path, folder: Path | None = None) -> Path:
    """An absolute path, from a folder or the current one."""
    return ((folder or Path.cwd()) / path.expanduser()).resolve()


def label(name: str) -> str:
    """A name for tables and figures, without the folders before a file."""
    return move(name, lambda path: Path(path.name)) if is_reference(name) else name


def load_file(path: Path) -> ModuleType:
    """The module of a Python file, run once for as long as its text stays the same; it may import its neighbours."""
    try:
        return _run_file(here(path), path.expanduser().read_bytes())
    except OSError as error:
        raise InputError(f"there is no file {path} to read ({error.strerror}); check the path") from None


@functools.cache
def _run_file(path: Path, text: bytes) -> ModuleType:
    module = ModuleType(f"{path.stem}-{path.parent}")  # a name that no import has
    module.__file__ = str(path)
    sys.modules[module.__name__] = module  # where dataclasses look their classes up
    sys.path.insert(0, str(path.parent))
    try:
        guarded(path, "loading it", lambda: exec(compile(text, str(path), "exec"), module.__dict__))
    finally:
        sys.path.remove(str(path.parent))
    return module


def guarded(path: Path, what: str, function: Callable[[], T]) -> T:
    """What a function of a user's file returns; an error in it becomes a sentence with the line."""
    try:
        return function()
    except InputError:
        raise
    except Exception as error:
        frames = reversed(traceback.extract_tb(error.__traceback__))
        line = next((frame.lineno for frame in frames if frame.filename == str(path)), None)
        line = error.lineno if isinstance(error, SyntaxError) else line
        at = f", line {line}" if line else ""
        said = (str(error).splitlines() or [""])[0]
        raise InputError(f"{path}{at}: {what} fails ({type(error).__name__}: {said}); mend it") from error


def _from_file(kind: str, name: str) -> Any:
    found = _REFERENCE.fullmatch(name)
    assert found is not None
    path, function = here(Path(found["file"])), found["function"]
    module = load_file(path)
    own = {key: value for key, value in vars(module).items() if callable(value) and key[0] != "_"}
    if function not in own:
        raise InputError(f"{path} defines no {kind} {function!r}; {suggest(function, own)}")
    if not inspect.isroutine(own[function]):
        return own[function]

    def call(*args: Any, **given: Any) -> Any:
        return guarded(path, f"{function}()", lambda: own[function](*args, **given))

    return functools.update_wrapper(call, own[function])


# ---------------------------------------------------------------------------------------------- tables


def checked(what: str, factory: Callable[..., T]) -> Callable[..., T]:
    """The same factory, which refuses keywords that it does not have."""
    known = options(factory)

    def call(*args: Any, **given: Any) -> T:
        rest = dict(list(known.items())[len(args) :])
        return factory(*args, **fit(what, rest, given))

    return functools.update_wrapper(call, factory, updated=())


class Registry(Mapping[str, T], Generic[T]):
    """A table of what can be named. A row may be the "module:function" of something that is imported when asked for.

    kind: what messages call a row.
    group: of entry points.
    adopt: makes a row of what was found, from its name in messages and itself; the factory, checked, unless given.
    suffixes, read: files of data that stand for a row, and the factory for one, `read(path, …)`.

    >>> table = Registry("graph", "pisco.graphs", {"ring": lambda *, agents: agents})
    >>> table["ring"](agents=3)
    3
    >>> table["rnig"]
    Traceback (most recent call last):
    ...
    pisco.errors.InputError: unknown graph 'rnig'; did you mean 'ring'?
    """

    def __init__(
        self,
        kind: str,
        group: str,
        rows: Mapping[str, Any],
        *,
        adopt: Callable[[str, Any], T] = checked,  # type: ignore[assignment]
        suffixes: tuple[str, ...] = (),
        read: Callable[..., Any] | None = None,
    ):
        self.kind, self.group, self.rows = kind, group, dict(rows)
        self.adopt, self.suffixes, self.read = adopt, suffixes, read

    def __getitem__(self, name: str) -> T:
        return self.adopt(f"{self.kind} {label(name)!r}", self._find(name))

    def _find(self, name: str) -> Any:
        if name in self.rows:
            row = self.rows[name]
            return EntryPoint(name, row, self.group).load() if isinstance(row, str) else row
        if is_reference(name):
            return _from_file(self.kind, name)
        if self.is_data(name):
            assert self.read is not None
            return functools.partial(self.read, Path(name).expanduser())
        for entry in entry_points(group=self.group, name=str(name)):
            try:
                return entry.load()
            except Exception as error:
                raise InputError(
                    f"{self.kind} {name!r} of {entry.value} cannot be loaded ({type(error).__name__}: {error}); "
                    "mend or remove that package"
                ) from error
        own = f', or your own, as in "{name}:function"' if str(name).endswith(".py") else ""
        raise InputError(f"unknown {self.kind} {name!r}; {suggest(str(name), self)}{own}")

    def is_data(self, name: Any) -> bool:
        """Whether a name is that of a file of data which this table reads."""
        return isinstance(name, str) and name not in self.rows and Path(name).suffix in self.suffixes

    def __contains__(self, name: object) -> bool:
        return name in set(self) or is_reference(name) or self.is_data(name)

    def __iter__(self) -> Iterator[str]:
        return iter(dict.fromkeys([*self.rows, *entry_points(group=self.group).names]))

    def __len__(self) -> int:
        return len(set(self))
