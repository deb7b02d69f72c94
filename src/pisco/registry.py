"""Names to factories, and the one check of what a factory is given.

A name is a row of our own table, an entry point that another package declares in the table's group (`pisco.graphs`), a
function of a Python file ("my_graphs.py:tree"), or, where a table reads them, a file of data ("roads.graphml").
"""

from __future__ import annotations

import functools
import inspect
import re
import sys
import traceback
import typing
from collections.abc import Callable, Iterator, Mapping, Sequence
from importlib.metadata import EntryPoint, EntryPoints, entry_points
from numbers import Integral, Real
from pathlib import Path
from types import FunctionType, ModuleType, NoneType, SimpleNamespace, UnionType
from typing import Any, Generic, Literal, TypeVar

from pisco.errors import InputError, brief, check_distinct, suggest

T = TypeVar("T")
F = TypeVar("F", bound=Callable[..., Any])

_BASIC = {float: ("a number", "0.1"), int: ("a whole number", "1"), bool: ("true or false", "true")}
_BASIC |= {str: ("a text", '"…"')}


Options = Mapping[str, inspect.Parameter]
"""The keywords of a factory; annotations are types, not texts."""


def options(factory: Callable[..., Any]) -> dict[str, inspect.Parameter]:
    """What a factory takes by name, with its types resolved; `Any` where there is none, or one for type checkers alone.

    >>> def ring(agents: int, *, seed: "int" = 0): ...
    >>> options(ring)["seed"]
    <Parameter "seed: int = 0">
    """
    plain = inspect.unwrap(getattr(factory, "func", factory))
    names = getattr(plain, "__globals__", None) or vars(sys.modules[plain.__module__])

    def resolved(given: inspect.Parameter) -> inspect.Parameter:
        written = Any if given.annotation is given.empty else given.annotation
        try:
            found = typing.get_type_hints(SimpleNamespace(__annotations__={"it": written}), names)
        except NameError:
            found = {"it": Any}
        return given.replace(annotation=found["it"])

    known = inspect.signature(factory).parameters.items()
    return {name: resolved(each) for name, each in known if each.kind not in (each.VAR_POSITIONAL, each.VAR_KEYWORD)}


def fit(what: str, known: Options, given: Mapping[str, Any], table: str = "") -> dict[str, Any]:
    """The keywords given, in their declared types; one that is unknown, missing or of another type is refused.

    >>> def ring(agents: int, *, prob: float = 0.5): ...
    >>> fit("graph 'ring'", options(ring), {"agents": 3.0, "prob": 1})
    {'agents': 3, 'prob': 1.0}
    """
    for name in given:
        if name not in known:
            hint = suggest(name, known) if known else "it has none"
            raise InputError(f"{what} has no option {name!r}; {hint}")
    for name, option in known.items():
        if option.default is option.empty and name not in given:
            as_in = f"{table}{name} = {example(option.annotation)}"
            raise InputError(f"{table}{name} is missing; {what} needs it, as in {as_in}")
    fitted = {}
    for name, value in given.items():
        fits, fitted[name] = _converted(value, known[name].annotation)
        if not fits:
            raise InputError(f"{table}{name} is {value!r}, expected {_words(known[name].annotation)}")
    return fitted


def example(kind: Any) -> str:
    """A value of a type, as in files."""
    return _BASIC.get(kind, ("", "…"))[1]


def _converted(value: Any, kind: Any) -> tuple[bool, Any]:
    """Whether a value is of a type, and what it becomes."""
    origin, parts = typing.get_origin(kind), typing.get_args(kind)
    if origin in (typing.Union, UnionType):
        tried = [_converted(value, part) for part in parts]
        plain = all(part in (*_BASIC, NoneType) or typing.get_origin(part) is Literal for part in parts)
        return next((each for each in tried if each[0]), (not plain, value))  # of others their factory knows more
    if origin is Literal:
        return value in parts, value
    if isinstance(value, bool):
        return kind in (bool, Any), value
    if kind is float and not isinstance(value, Real):  # an array of one number, or a value that is traced
        return hasattr(value, "dtype") and value.dtype != bool and value.shape == (), value
    if kind is float:  # NaN passes every comparison on the way, and ends in a run of NaNs
        return value == value, float(value)
    if kind is int:
        whole = isinstance(value, Integral) or (isinstance(value, float) and value.is_integer())
        return whole, int(value) if whole else value  # pyright: ignore[reportArgumentType]
    if hasattr(kind, "read"):  # a type that knows its own forms
        return True, kind.read(value)  # pyright: ignore[reportAttributeAccessIssue]
    unchecked = getattr(kind, "_is_protocol", False) and not getattr(kind, "_is_runtime_protocol", False)
    if kind is Any or unchecked or not inspect.isclass(origin or kind):
        return True, value
    return isinstance(value, origin or kind) and not (origin and isinstance(value, str)), value


def _words(kind: Any) -> str:
    """A type for people."""
    origin, parts = typing.get_origin(kind), typing.get_args(kind)
    if origin in (typing.Union, UnionType):
        return " or ".join(_words(part) for part in parts if part is not NoneType)
    if origin is Literal:
        return " or ".join(f'"{part}"' for part in parts)
    return _BASIC.get(kind, (f"an object of type {getattr(kind, '__name__', kind)}",))[0]


def checked(what: str, factory: Callable[..., T], *, something: bool = False) -> Callable[..., T]:
    """The same factory, which refuses keywords that it does not have; what is no function is refused.

    Where it must make `something`, None is refused too: what a function returns that was left without its last line.
    """
    if not callable(factory):
        raise InputError(f"{what} is of type {type(factory).__name__}, expected a function; name one of the same file")
    known = list(options(factory).items())
    by_place = sum(option.kind is not option.KEYWORD_ONLY for _, option in known)

    def call(*args: Any, **given: Any) -> T:
        made = factory(*args, **fit(what, dict(known[min(len(args), by_place) :]), given))
        if something and made is None:
            raise InputError(f"{what} returns None; end it with `return` and what it makes")
        return made

    return functools.update_wrapper(call, factory, updated=())


def by_name(factory: F) -> F:
    """`checked`, for what people call in Python."""
    return typing.cast(F, checked(factory.__name__, factory))


# ------------------------------------------------------------------------------------ files of Python


def is_reference(name: Any) -> bool:
    """Whether a name is of the form "file.py:function"."""
    return isinstance(name, str) and re.fullmatch(r".+\.py:[^\W\d]\w*", name) is not None


def move(name: str, where: Callable[[Path], Path]) -> str:
    """The same name with its file put elsewhere.

    >>> move("my_algos.py:extra", lambda path: Path("/home/ann") / path)
    '/home/ann/my_algos.py:extra'
    """
    file, colon, function = name.rpartition(":") if is_reference(name) else (name, "", "")
    return f"{where(Path(file))}{colon}{function}"


def label(name: str) -> str:
    """A name without the folders before a file, for messages and tables."""
    return move(name, lambda path: Path(path.name))


def check_apart(kind: str, names: Sequence[str]) -> None:
    """Refuse a list that names something twice, also by two paths, or two files that tables could not tell apart."""
    check_distinct(kind, names)
    told: dict[str, str] = {}
    for name in names:
        other = told.setdefault(label(name), name)
        if other != name:
            raise InputError(f"{other} and {name} are both shown as {label(name)}; leave one out, or rename its file")


_own_files: set[str] = set()
"""Files of users that were run: their errors are for users to fix."""


def load_file(path: Path) -> ModuleType:
    """The module of a Python file, run once for as long as its text stays the same; it may import its neighbours."""
    return _run_file(path, guarded(path, "reading it", path.read_bytes))


@functools.cache
def _run_file(path: Path, text: bytes) -> ModuleType:
    _own_files.add(str(path))
    module = ModuleType(f"{path.stem} of {path.parent}")  # a name that no import has
    module.__file__ = str(path)
    sys.modules[module.__name__] = module  # where dataclasses look their classes up
    sys.path.insert(0, str(path.parent))
    try:
        guarded(path, "loading it", lambda: exec(compile(text, str(path), "exec"), module.__dict__))
    finally:
        sys.path.remove(str(path.parent))
    return module


def guarded(path: Path, what: str, function: Callable[[], T]) -> T:
    """What a function returns that reads or runs a user's file; an error becomes a sentence, with the line if known."""
    if not path.is_file():
        raise InputError(f"there is no file {path}; check the path")
    try:
        return function()
    except InputError:
        raise
    except Exception as error:
        at = own_line(error, str(path))
        if isinstance(error, SyntaxError) and error.lineno:  # that of an XML file has none
            at = f"{path}, line {error.lineno}"
        raise InputError(f"{at or path}: {what} fails ({brief(error)}); fix it") from error


def own_line(error: BaseException, *files: str) -> str:
    """The last line of users' files that an error went through, as in "my_algos.py, line 7"; empty where of none."""
    frames = traceback.extract_tb(error.__traceback__)
    lines = [f"{f.filename}, line {f.lineno}" for f in frames if f.filename in (files or _own_files)]
    return lines[-1] if lines else ""


def _from_file(kind: str, name: str) -> Any:
    file, _, function = name.rpartition(":")
    path = Path(file).expanduser().resolve()
    module = load_file(path)
    own = {key: each for key, each in vars(module).items() if callable(each) or not key.startswith("_")}
    if function not in own:
        imported = (ModuleType, FunctionType, type)
        made = [
            key
            for key, each in own.items()
            if not key.startswith("_")
            and not (isinstance(each, imported) and getattr(each, "__module__", "") != module.__name__)
        ]
        raise InputError(f"{path} defines no {kind} {function!r}; {suggest(function, made)}")
    if not inspect.isroutine(own[function]):
        return own[function]

    def call(*args: Any, **given: Any) -> Any:
        return guarded(path, f"{function}()", lambda: own[function](*args, **given))

    return functools.update_wrapper(call, own[function])


# ---------------------------------------------------------------------------------------------- tables


def _entries(group: str) -> EntryPoints:
    """A group's entry points of all installed packages."""
    folders = [Path(each or ".") for each in sys.path]
    return _read_entries(group, tuple((str(each), each.stat().st_mtime_ns) for each in folders if each.exists()))


@functools.lru_cache
def _read_entries(group: str, folders: tuple[tuple[str, int], ...]) -> EntryPoints:
    """Every package is read for them: only again where packages came or went."""
    return entry_points(group=group)


class Registry(Mapping[str, T], Generic[T]):
    """A table of what can be named. A row may be the "module:function" of something that is imported when asked for.

    Args:
      kind: what messages call a row.
      group: of entry points.
      rows: ours, by name.
      adopt: makes a row of what was found, from its name in messages and itself; the factory, checked, unless given.
      suffixes: of files of data that this table reads.
      read: their factory, `read(path, …)`.

    >>> Registry("graph", "pisco.graphs", {"ring": lambda *, agents: agents})["rnig"]
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
        adopt: Callable[[str, Any], Any] | None = None,
        suffixes: tuple[str, ...] = (),
        read: Callable[..., Any] = lambda path: path,
    ):
        self.kind, self.group, self.rows = kind, group, dict(rows)
        self.adopt, self.suffixes, self.read = adopt, suffixes, read

    def __getitem__(self, name: str) -> T:
        if not isinstance(name, str):
            raise InputError(f"the {self.kind} is {name!r}, expected a name; {suggest('', self)}")
        what, found = f"{self.kind} {label(name)!r}", self._find(name)
        made: Any = self.adopt(what, found) if self.adopt else checked(what, found, something=name not in self.rows)
        return made

    def _find(self, name: str) -> Any:
        row = self.rows.get(name)
        if row is not None:
            return EntryPoint(name, row, self.group).load() if isinstance(row, str) else row
        if is_reference(name):
            return _from_file(self.kind, name)
        if self.is_data(name):
            return functools.partial(self.read, Path(name).expanduser())
        for entry in _entries(self.group).select(name=name):
            try:
                return entry.load()
            except Exception as error:
                said = f"cannot be loaded from {entry.value} ({brief(error)})"
                raise InputError(f"{self.kind} {name!r} {said}") from error
        own = f', or your own, as in "{name}:function"' if name.endswith(".py") else ""
        if Path(name).suffix and self.suffixes and not own:
            own = f", or a file that ends in {', '.join(self.suffixes)}"
        known = suggest(name, self) if len(self) else f'name one of your own, as in "my.py:{name}"'
        raise InputError(f"unknown {self.kind} {name!r}; {known}{own}")

    @property
    def _others(self) -> set[str]:
        return _entries(self.group).names

    def is_data(self, name: Any) -> bool:
        """Whether a name is that of a file of data which this table reads."""
        return isinstance(name, str) and Path(name).suffix.lower() in self.suffixes

    def __contains__(self, name: object) -> bool:
        return name in self.rows or is_reference(name) or self.is_data(name) or name in self._others

    def __iter__(self) -> Iterator[str]:
        return iter(dict.fromkeys([*self.rows, *self._others]))

    def __len__(self) -> int:
        return sum(1 for _ in self)
