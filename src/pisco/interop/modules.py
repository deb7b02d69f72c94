"""`--module my_model.py`: one agent's problem from the user's own file."""

from __future__ import annotations

import inspect
from pathlib import Path

from pisco.errors import InputError
from pisco.problems.problem import Problem
from pisco.registry import guarded, load_file

FUNCTION = "agent"


def load_problem(path: str | Path, data: str | Path | None = None) -> Problem:
    """What the file's function `agent` returns: a `pisco.Problem` with one agent.

    Args:
      path: a Python file that defines `agent(data)`, or `agent()` if it finds its data by itself.
      data: handed on as a `Path`.
    """
    path = Path(path).resolve()
    function = getattr(load_file(path), FUNCTION, None)
    if not callable(function):
        raise InputError(f"{path} defines no function {FUNCTION}; add one that returns a pisco.Problem")
    takes = len(inspect.signature(function).parameters)
    if data is not None and not takes:
        raise InputError(f"{FUNCTION}() of {path} takes no data; leave --data out, or give it a parameter")
    made = guarded(path, f"{FUNCTION}()", lambda: function(*([data and Path(data)] if takes else [])))
    if not isinstance(made, Problem):
        raise InputError(
            f"{FUNCTION}() of {path} returns {type(made).__name__}, expected a pisco.Problem "
            "(pisco.interop.torch.problem makes one from a PyTorch module)"
        )
    if made.num_agents != 1:
        raise InputError(
            f"{FUNCTION}() of {path} returns a problem of {made.num_agents} agents, expected one, with its own data"
        )
    return made
