"""Traced programs taken apart: what stands in them, one equation of them alone, what a loop in them is given."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from jax.extend import core


def holds(jaxpr: Any, primitive: core.Primitive) -> bool:
    """Whether a primitive stands in a program, or in one inside it."""
    return any(
        equation.primitive is primitive
        or any(holds(inner, primitive) for inner in core.jaxprs_in_params(equation.params))
        for equation in jaxpr.eqns
    )


def run_alone(jaxpr: Any, equation: Any, read: Callable[[Any], Any]) -> list[Any]:
    """What one equation of a program gives, where `read` knows its variables."""
    variables = list(dict.fromkeys(atom for atom in equation.invars if isinstance(atom, core.Var)))
    alone = jaxpr.replace(
        constvars=[],
        invars=variables,
        outvars=equation.outvars,
        eqns=[equation],
        debug_info=jaxpr.debug_info.with_unknown_names(),
    )
    return core.jaxpr_as_fun(core.ClosedJaxpr(alone, ()))(*map(read, variables))


def loop_inputs(params: Mapping[str, Any], given: Sequence[Any]) -> tuple[list[Any], list[Any], list[Any]]:
    """The constants, the carry and the rows of a traced `scan`: jax 0.10 keeps their numbers, jax 0.11 a tree."""
    if "ft_in" in params:
        consts, carry, rows = params["ft_in"].update(given).unpack()
        return list(consts), list(carry), list(rows)
    first, second = params["num_consts"], params["num_consts"] + params["num_carry"]
    return list(given[:first]), list(given[first:second]), list(given[second:])
