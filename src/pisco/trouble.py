"""What goes wrong on the host while a compiled program asks it for samples or gradients."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from functools import wraps
from typing import Any, TypeVar

import jax

from pisco.errors import InputError

Measures = TypeVar("Measures", bound=Callable[..., Any])


class Trouble:
    """Failures of functions that programs call: raised, or noted while somebody waits for the program to end in order.

    (What is raised inside a program arrives as an error of JAX, and what the program had computed is lost.)
    """

    def __init__(self) -> None:
        self._defers, self._lock = False, threading.Lock()
        self._failure: InputError | None = None
        self._spoiled = False  # whether something failed that was trained on

    def meet(self, error: InputError, *, training: bool) -> None:
        """Note an error, so that zeros can be given instead; or raise it."""
        if not self._defers:
            raise error
        with self._lock:
            self._failure, self._spoiled = self._failure or error, self._spoiled or training

    def met(self) -> InputError | None:
        """What went wrong when something was measured; raises what went wrong in training."""
        if self._spoiled and self._failure is not None:
            raise self._failure
        return self._failure

    @contextmanager
    def deferring(self) -> Iterator[Callable[[], InputError | None]]:
        """While it lasts programs end though the host fails; the function it gives is `met`."""
        self._failure, self._spoiled, self._defers = None, False, True
        try:
            yield self.met
        finally:
            self._defers = False


def deferring(trouble: Trouble | None) -> AbstractContextManager[Callable[[], InputError | None]]:
    """The same, where a problem's programs may call nobody."""
    return nullcontext(lambda: None) if trouble is None else trouble.deferring()


@contextmanager
def heeding(trouble: Trouble | None) -> Iterator[None]:
    """Programs end though the host fails; what went wrong is raised after that."""
    with deferring(trouble) as met:
        yield
        if (failure := met()) is not None:
            raise failure


def heeded(function: Measures) -> Measures:
    """The same for a function of a problem."""

    @wraps(function)
    def called(problem: Any, *args: Any, **kwargs: Any) -> Any:
        with heeding(problem.trouble):
            return jax.block_until_ready(function(problem, *args, **kwargs))

    return called  # type: ignore[return-value]
