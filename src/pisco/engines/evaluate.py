"""Measuring a state: everything at the mean parameters x̄, traced inside the engines' programs, wherever agents are.

Where agents have leaves of their own (`pisco.parts`), each has its own model: the mean of what is sent, and its own
leaves. f is then the mean of the agents' losses at these, a metric of test data the mean of the agents' metrics, and
‖∇f‖² is that of the shared leaves and the mean over agents of that of their own.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

from pisco.convolutions.rewrite import with_fast_convolutions
from pisco.errors import InputError, a_kind_of, brief
from pisco.metrics import AGENTS, METRICS, STATE, TEST, Metric, one_number
from pisco.networks.placement import EVERYBODY, Placement
from pisco.parts import LOCAL, LOCAL_BUFFERS, only, over
from pisco.problems.blocks import sample_values
from pisco.problems.problem import Problem
from pisco.tree import squared_norm, widened
from pisco.types import Around, Params, State

exact_products = jax.default_matmul_precision("highest")
"""For what is reported: accelerators round the factors of a float32 product to 10 bits unless told otherwise."""


def round_metrics(problem: Problem, state: State, here: Placement = EVERYBODY) -> dict[str, Any]:
    """What a round itself must note: the metrics of the state, and the agents' mean for `evaluate`."""
    state = innermost(state)
    row: dict[str, Any] = {"mean_params": over(here.mean(only(state.params)), state.params)}
    for metric in (*METRICS.values(), *problem.metrics):
        if metric.of == STATE:
            found = metric.function(state, here)
            row[metric.column] = found if found is None else jnp.asarray(found)  # it may be a number of Python's
    row |= _measure_agents(problem, state.params, here)
    return {name: value for name, value in row.items() if value is not None}


def evaluate(
    problem: Problem,
    rows: dict[str, Any],
    here: Placement = EVERYBODY,
    objective: Callable[[Params], jax.Array] | None = None,
) -> dict[str, jax.Array]:
    """Loss, gradient and test metrics at the mean parameters of many rounds at once.

    Many rounds share one pass over the data: on a9a that is ten times faster than a pass a round. Where samples are
    spread, `objective` is the part of f that those here make up.
    """

    @exact_products
    def at(mean):
        if problem.personal:
            return _at_own_models(problem, mean, here)
        loss, gradient = here.add(jax.value_and_grad(objective or problem.objective)(mean))
        return {"loss": loss, "grad_norm_sq": squared_norm(gradient)} | measure_test(problem, mean, here)

    noted = {name: values for name, values in rows.items() if name != "mean_params"}
    return lax.map(at, rows["mean_params"], batch_size=problem.eval_width) | noted


def _at_own_models(problem: Problem, mean: Any, here: Placement) -> dict[str, jax.Array]:
    """The same with leaves of every agent here leading in `mean`."""
    own = mean.keep((LOCAL, LOCAL_BUFFERS))
    agents = here.numbers(jax.tree.leaves(own)[0].shape[0])
    loss, gradient = jax.value_and_grad(problem.own_objective)(mean, agents)
    loss, common, apart = here.add((loss, only(gradient), squared_norm(gradient.local)))
    everybody = here.gather(own, problem.num_agents)
    tests = lax.map(lambda one: measure_test(problem, one.filled(mean), here), everybody)
    squares = squared_norm(common) + problem.num_agents * apart  # qᵢ∇fᵢ is one n-th of an agent's own gradient
    return {"loss": loss, "grad_norm_sq": squares} | {name: found.mean() for name, found in tests.items()}


def measure_test(problem: Problem, params: Params, here: Placement = EVERYBODY) -> dict[str, jax.Array]:
    """Every metric of the test data: what it makes of its values for all samples."""
    return {metric.column: _tested(problem, metric, params, here) for metric in problem.metrics if metric.of == TEST}


def _tested(problem: Problem, metric: Metric, params: Params, here: Placement) -> jax.Array:
    function = partial(with_fast_convolutions(metric.function), problem.whole(params))
    values = sample_values(function, problem.test, problem.eval_batch)
    return metric.reduce(here.gather(values, problem.num_test))


def _measure_agents(problem: Problem, params: Params, here: Placement) -> dict[str, jax.Array]:
    """Metrics of the test data at every agent's parameters; nothing is computed unless there are some."""
    asked = [metric for metric in problem.metrics if metric.of == AGENTS]
    if not asked:
        return {}
    # The worst and the spread come from the same values.
    kinds = {(metric.function, metric.reduce): metric for metric in asked}

    @exact_products
    def one(own):
        return {kind: _tested(problem, metric, own, here) for kind, metric in enumerate(kinds.values())}

    values, order = lax.map(one, here.everyone(params)), list(kinds)
    return {metric.column: metric.across(values[order.index((metric.function, metric.reduce))]) for metric in asked}


def check_state_metrics(problem: Problem, state: State) -> None:
    """Refuse a metric of the state that gives no number for a state like this one, before anything is run."""
    for metric in problem.metrics:
        if metric.of == STATE:
            try:
                found = jax.eval_shape(lambda s, f=metric.function: f(s, EVERYBODY), innermost(state))
            except Exception as error:
                raise InputError(f"the metric {metric.name!r} of the state fails ({brief(error)}); fix it") from error
            if found is not None and not one_number(found):
                raise InputError(f"the metric {metric.name!r} of the state gives {found}, not one number")


AGENTS_UP_TO = 500
"""With more agents than this, none is watched on its own."""


AGENT_ERRORS = "agent_errors"
"""The one measurement with a value for every agent."""


def agent_errors(state: State) -> dict[str, Any]:
    """‖xᵢ − x̄‖² of every agent, for reports to draw; nothing where the agents are too many to look at."""
    leaves = jax.tree.leaves(only(innermost(state).params))
    if leaves[0].shape[0] > AGENTS_UP_TO:
        return {}
    wide = [widened(x) for x in leaves]
    apart = [((x - x.mean(axis=0)) ** 2).reshape(x.shape[0], -1).sum(axis=1) for x in wide]
    return {AGENT_ERRORS: sum(apart[1:], start=apart[0])}


def with_params(state: State, params: Params) -> State:
    """The same state at other parameters."""
    around = isinstance(state, Around)
    changes = {"inner": with_params(state.inner, params)} if around else {"params": params}
    if dataclasses.is_dataclass(state):
        return dataclasses.replace(state, **changes)  # type: ignore[type-var]
    if not hasattr(state, "_replace"):
        raise InputError(f"the state is {a_kind_of(state)}, whose buffers cannot be renewed; use a NamedTuple")
    return state._replace(**changes)  # type: ignore[attr-defined]


def innermost(state: State) -> State:
    """The state of the method inside all others."""
    while isinstance(state, Around):
        state = state.inner
    return state
