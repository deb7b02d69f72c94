"""Tables from names to factories, whose rows refuse options that they do not have."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Mapping
from typing import Any, TypeVar

from pisco.errors import InputError

T = TypeVar("T")


def checked(kind: str, factories: Mapping[str, Callable[..., T]]) -> dict[str, Callable[..., T]]:
    """The same table, where an unknown or missing keyword option is an `InputError`.

    >>> rows = checked("graph", {"ring": lambda *, agents: agents})
    >>> rows["ring"](agents=3)
    3
    >>> rows["ring"](agents=3, seed=1)
    Traceback (most recent call last):
    ...
    pisco.errors.InputError: graph 'ring' has no option 'seed'; known: agents
    """
    return {name: _checked(f"{kind} {name!r}", factory) for name, factory in factories.items()}


def _checked(what: str, factory: Callable[..., T]) -> Callable[..., T]:
    options = {
        option.name: option.default is option.empty
        for option in inspect.signature(factory).parameters.values()
        if option.kind is option.KEYWORD_ONLY
    }

    @functools.wraps(factory)
    def call(*args: Any, **given: Any) -> T:
        for option in given:
            if option not in options:
                raise InputError(f"{what} has no option {option!r}; known: {', '.join(options) or 'none'}")
        missing = [option for option, required in options.items() if required and option not in given]
        if missing:
            raise InputError(f"{what} needs the option {missing[0]!r}; options: {', '.join(options)}")
        return factory(*args, **given)

    return call
