"""The one error that bad input raises, and the small checks that raise it.

An `InputError` is one sentence that names the value and the fix. The command line prints it and exits
with code 2; library users catch it as the `ValueError` it is.
"""

from __future__ import annotations

import difflib
import math
import os
import sys
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from numbers import Real
from pathlib import Path
from typing import Any, TypeVar

import numpy as np

__all__ = ["InputError", "check_counts", "check_number", "check_positive"]

T = TypeVar("T")


@contextmanager
def writing(path: Any) -> Iterator[None]:
    """What the system says against a path that is written, or Python against its name, becomes an `InputError`."""
    try:
        yield
    except InputError:
        raise
    except OSError as error:
        raise InputError(f"cannot write {path} ({error.strerror or error}); give another path") from error
    except (TypeError, ValueError) as error:  # "" and "/" have no name, and a number is no path
        shown = str(path) if isinstance(path, os.PathLike) else path
        why = "it is a folder" if shown and isinstance(shown, str) and Path(shown).is_dir() else error
        raise InputError(f"cannot write {shown!r} ({why}); give the path of a file") from error


class InputError(ValueError):
    """Something the caller passed in cannot be used; the message says what and how to fix it."""


def a_kind_of(given: Any) -> str:
    """The type of something, with its article.

    >>> a_kind_of(1), a_kind_of([])
    ('an int', 'a list')
    """
    name = type(given).__name__
    return f"{'an' if name[0] in 'aeiouAEIO' else 'a'} {name}"


def path_of(given: Any) -> Path:
    """The path that somebody names; what is none, such as a table already read, is refused."""
    if not isinstance(given, str | os.PathLike):
        raise InputError(f"a path is expected where {a_kind_of(given)} is given; give the path of a file")
    return Path(given)


def brief(error: BaseException) -> str:
    """The kind of an error, and the first line of what it says; our own say enough."""
    return (str(error) if isinstance(error, InputError) else f"{type(error).__name__}: {error}").splitlines()[0]


def suggest(name: Any, known: Iterable[str]) -> str:
    """A clause that names the nearest known word, or lists them all when none is near."""
    known = sorted(known)
    near = difflib.get_close_matches(str(name), known, n=1, cutoff=0.6)
    return f"did you mean {near[0]!r}?" if near else f"known: {', '.join(known) or 'none'}"


def choose(kind: str, name: str, table: Mapping[str, T]) -> T:
    """Look `name` up in a registry.

    >>> choose("graph", "rnig", {"ring": 1, "path": 2})
    Traceback (most recent call last):
    ...
    pisco.errors.InputError: unknown graph 'rnig'; did you mean 'ring'?
    """
    if not isinstance(name, str) or name not in table:
        raise InputError(f"unknown {kind} {name!r}; {suggest(name, table)}")
    return table[name]


def check_distinct(kind: str, given: Iterable[Any]) -> None:
    """Refuse a list that names something twice.

    >>> check_distinct("algorithm", ["pisco", "dsgt", "pisco"])
    Traceback (most recent call last):
    ...
    pisco.errors.InputError: pisco is named more than once; name every algorithm once
    """
    for value, times in Counter(given).items():
        if times > 1:
            raise InputError(f"{value} is named more than once; name every {kind} once")


def check_positive(**values: Any) -> None:
    """Refuse numbers that are not above 0, such as step sizes.

    >>> check_positive(local_lr=0.1, comm_lr=0)
    Traceback (most recent call last):
    ...
    pisco.errors.InputError: comm_lr is 0, expected a number greater than 0
    """
    for name, value in values.items():
        check_number(name, value, low=0, open_low=True)


def check_counts(**values: Any) -> None:
    """Refuse what is no whole number of at least 1.

    >>> check_counts(rounds=100, local_steps=0)
    Traceback (most recent call last):
    ...
    pisco.errors.InputError: local_steps is 0, expected a number at least 1
    """
    for name, value in values.items():
        check_number(name, value, low=1, integer=True)


def check_batch_size(value: Any) -> None:
    """Refuse what is neither None, which is all of an agent's samples, nor a whole number of at least 1.

    >>> check_batch_size("full")
    Traceback (most recent call last):
    ...
    pisco.errors.InputError: batch_size is "full", as in files; in Python leave it out, or give None, for all samples
    """
    if isinstance(value, str) and value == "full":
        raise InputError('batch_size is "full", as in files; in Python leave it out, or give None, for all samples')
    if value is not None:
        check_counts(batch_size=value)


def check_number(
    name: str,
    value: Any,
    *,
    low: float = -math.inf,
    high: float = math.inf,
    open_low: bool = False,
    integer: bool = False,
) -> None:
    """Refuse a concrete number outside [low, high]; traced values pass (they were checked at the edge)."""
    jax = sys.modules.get("jax")  # not imported for this alone: data are read without it
    if jax is not None and isinstance(value, jax.core.Tracer):
        return
    given = value.item() if hasattr(value, "dtype") and np.ndim(value) == 0 else value
    if not isinstance(given, Real) or isinstance(given, bool):
        raise InputError(f"{name} is {value!r}, expected a {'whole ' * integer}number")
    number = float(given)
    if integer and not number.is_integer():
        raise InputError(f"{name} is {value!r}, expected a whole number")
    below = number <= low if open_low else number < low
    if not math.isfinite(number) or below or number > high:
        bounds = [f"{'greater than' if open_low else 'at least'} {low:.10g}"] if low > -math.inf else []
        bounds += [f"at most {high:.10g}"] if high < math.inf else []
        kind = "finite number" if math.isinf(number) and bounds else "number"
        raise InputError(f"{name} is {value!r}, expected a {kind} {' and '.join(bounds) or 'that is finite'}")
