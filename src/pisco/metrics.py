"""What is measured of a state: everything at the mean parameters x̄, traced inside the engines' programs."""

from __future__ import annotations

from typing import Any

import jax
from jax import lax

from pisco.networks.placement import EVERYBODY, Placement
from pisco.problems.problem import Problem
from pisco.tree import squared_norm
from pisco.types import HasInner, HasTracker, State

DESCRIPTIONS = {
    "loss": "f(x̄), the mean over agents of their mean losses",
    "grad_norm_sq": "‖∇f(x̄)‖²",
    "grad_norm_sq_mean": "the mean of ‖∇f(x̄)‖² over the measured rounds so far",
    "consensus_error": "(1/n)·Σᵢ‖xᵢ − x̄‖²",
    "tracking_error": "(1/n)·Σᵢ‖yᵢ − ȳ‖², for methods with a tracker",
    "test_accuracy": "the share of test samples classified rightly at x̄",
}


def round_metrics(state: State, here: Placement = EVERYBODY) -> dict[str, Any]:
    """What a round itself must note: how far the agents are apart, and their mean for `evaluate`."""
    while isinstance(state, HasInner):
        state = state.inner
    row = {"mean_params": here.mean(state.params), "consensus_error": here.spread(state.params)}
    if isinstance(state, HasTracker):
        row["tracking_error"] = here.spread(state.tracker)
    return row


exact_products = jax.default_matmul_precision("highest")
"""For what is reported: accelerators round the factors of a float32 product to 10 bits unless told otherwise."""


def evaluate(problem: Problem, rows: dict[str, Any]) -> dict[str, jax.Array]:
    """Loss, gradient and test metrics at the mean parameters of many rounds at once.

    Many rounds share one pass over the data: on a9a that is ten times faster than a pass a round.
    """

    @exact_products
    def at(mean):
        loss, gradient = jax.value_and_grad(problem.objective)(mean)
        return {"loss": loss, "grad_norm_sq": squared_norm(gradient)} | problem.test_metrics(mean)

    noted = {name: values for name, values in rows.items() if name != "mean_params"}
    return lax.map(at, rows["mean_params"], batch_size=problem.eval_width) | noted


AGENTS_UP_TO = 500
"""With more agents than this, none is watched on its own."""


AGENT_ERRORS = "agent_errors"
"""The one measurement with a value for every agent."""


def agent_errors(state: State) -> dict[str, Any]:
    """‖xᵢ − x̄‖² of every agent, for reports to draw; nothing where the agents are too many to look at."""
    while isinstance(state, HasInner):
        state = state.inner
    leaves = jax.tree.leaves(state.params)
    if leaves[0].shape[0] > AGENTS_UP_TO:
        return {}
    apart = [((x - x.mean(axis=0)) ** 2).reshape(x.shape[0], -1).sum(axis=1) for x in leaves]
    return {AGENT_ERRORS: sum(apart[1:], start=apart[0])}
