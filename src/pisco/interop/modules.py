"""`--module my_model.py`: one agent's problem from the user's own file."""

from __future__ import annotations

import importlib.util
import inspect
import sys
from pathlib import Path
from typing import Any

from pisco.errors import InputError
from pisco.problems.problem import Problem

FUNCTION = "agent"


def load_problem(path: str | Path, data: str | Path | None = None) -> Problem:
    """What the file's function `agent` returns: a `pisco.Problem` with one agent.

    Args:
      path: a Python file that defines `agent(data)`, or `agent()` if it finds its data by itself.
      data: handed on as a `Path`.
    """
    path = Path(path)
    if not path.is_file():
        raise InputError(
            f"there is no file {path}; --module takes a Python file that defines {FUNCTION}(data)"
        )
    spec = importlib.util.spec_from_file_location(path.stem, path)
    if spec is None or spec.loader is None:
        raise InputError(f"{path} is not a Python file; --module takes one that defines {FUNCTION}(data)")
    module = importlib.util.module_from_spec(spec)
    sys.modules.setdefault(path.stem, module)  # where dataclasses and pickles look their classes up
    _guarded(path, "loading it", lambda: spec.loader.exec_module(module))  # type: ignore[union-attr]
    function = getattr(module, FUNCTION, None)
    if not callable(function):
        raise InputError(f"{path} defines no function {FUNCTION}; add one that returns a pisco.Problem")
    takes = len(inspect.signature(function).parameters)
    if data is not None and not takes:
        raise InputError(f"{FUNCTION}() of {path} takes no data; leave --data out, or give it a parameter")
    made = _guarded(path, f"{FUNCTION}()", lambda: function(*([data and Path(data)] if takes else [])))
    if not isinstance(made, Problem):
        raise InputError(
            f"{FUNCTION}() of {path} returns {type(made).__name__}, expected a pisco.Problem "
            "(pisco.interop.torch.problem makes one from a PyTorch module)"
        )
    if made.num_agents != 1:
        raise InputError(
            f"{FUNCTION}() of {path} returns a problem of {made.num_agents} agents, expected this one's data alone"
        )
    return made


def _guarded(path: Path, what: str, function: Any) -> Any:
    try:
        return function()
    except InputError:
        raise
    except Exception as error:
        line = next((f.lineno for f in reversed(_frames(error)) if f.filename == str(path)), None)
        at = f", line {line}" if line else ""
        said = (str(error).splitlines() or [""])[0]
        raise InputError(f"{path}{at}: {what} fails ({type(error).__name__}: {said}); fix it") from error


def _frames(error: BaseException) -> list[Any]:
    import traceback

    return list(traceback.extract_tb(error.__traceback__))
