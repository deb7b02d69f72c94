"""What is measured: one row for every column of a history, with its direction, its title and how it is shown."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, fields, replace
from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp
import numpy as np

from pisco.errors import InputError, a_kind_of, choose
from pisco.parts import only
from pisco.registry import Registry, checked
from pisco.types import HasTracker, State

if TYPE_CHECKING:
    from pisco.networks.placement import Placement

__all__ = ["Metric", "auc", "each_agent", "f1"]

TRAINING, TEST, AGENTS, STATE, COST = "training", "test", "agents", "state", "cost"


def mean(values: jax.Array) -> jax.Array:
    """The mean over samples."""
    return values.astype(float).mean(axis=0)


@dataclass(frozen=True)
class Metric:
    """What is measured, and what is known of it.

    Args:
      name: the column is `test_<name>` for a metric of test data, else `<name>`.
      function: of test data, `function(params, batch)` at the mean of the agents: one value for every sample. Of the
        state, `function(state, here)`: one number, with sums over agents taken by `here` (`here.mean(tree)`,
        `here.spread(tree)`), or None where the state has nothing to measure.
      rising: whether larger is better; None leaves that open, and then the column is no target.
      reduce: makes one number of the values of all test samples: their mean, or what needs the whole test set, such as
        an area under a curve (then `function` may give any tree whose leaves lead with the samples).
      of: "test", "state", or "agents": as of test data, but at every agent's own parameters, a pass over the test data
        for each ("training" and "cost" are measured by the library itself).
      across: of agents, makes one number of theirs.
      title: for axes and tables; the column's name without.
      log: whether it is drawn on a logarithmic axis, which needs positive values.
      unit: "%" for shares of one, "B" for bytes, "s" for seconds.
      usual: whether plots and tables show it unasked.

    >>> Metric("error", lambda params, batch: abs(batch["y"] - params), rising=False).column
    'test_error'
    """

    name: str
    function: Any = None
    rising: bool | None = None
    reduce: Callable[[Any], jax.Array] = mean
    of: str = TEST
    title: str = ""
    log: bool = False
    unit: str = ""
    usual: bool = True
    across: Callable[[jax.Array], jax.Array] = jnp.min

    def __post_init__(self) -> None:
        if not (isinstance(self.name, str) and self.name):
            raise InputError(f"a metric is called {self.name!r}, expected a text that names it")
        choose("kind of metric (`of`)", self.of, dict.fromkeys((TEST, AGENTS, STATE, TRAINING, COST)))
        if self.rising not in (True, False, None):
            raise InputError(f"{self.name}: rising is {self.rising!r}, expected True, False or None")
        kinds = {"title": str, "unit": str, "log": bool, "usual": bool, "reduce": Callable, "across": Callable}
        for name, kind in kinds.items():
            if not isinstance(getattr(self, name), kind):
                expected = {str: "a text", bool: "True or False"}.get(kind, "a function")
                raise InputError(f"{self.name}: {name} is {getattr(self, name)!r}, expected {expected}")
        object.__setattr__(self, "title", self.title or self.column.replace("_", " "))

    @property
    def column(self) -> str:
        """Its name in a history."""
        return f"test_{self.name}" if self.of in (TEST, AGENTS) else self.name

    def facts(self) -> dict[str, Any]:
        """What a result keeps of it: all but its functions."""
        return {f.name: getattr(self, f.name) for f in fields(self) if f.name not in ("function", "reduce", "across")}


def consensus_error(state: State, here: Placement) -> jax.Array:
    """(1/n)·Σᵢ‖xᵢ − x̄‖² of the leaves that are sent."""
    return here.spread(only(state.params))


def tracking_error(state: State, here: Placement) -> jax.Array | None:
    """(1/n)·Σᵢ‖yᵢ − ȳ‖² of the leaves that are sent."""
    tracks = isinstance(state, HasTracker) and jax.tree.structure(state.tracker) == jax.tree.structure(state.params)
    return here.spread(only(state.tracker)) if tracks else None


METRICS: dict[str, Metric] = {
    metric.column: metric
    for metric in (
        Metric("grad_norm_sq_mean", None, False, of=TRAINING, log=True, title="running mean of ‖∇f(x̄)‖²"),
        Metric("grad_norm_sq", None, False, of=TRAINING, log=True, title="‖∇f(x̄)‖²", usual=False),
        Metric("loss", None, False, of=TRAINING, title="loss f(x̄)"),
        Metric("accuracy", None, True, unit="%"),
        Metric("consensus_error", consensus_error, False, of=STATE, log=True),
        Metric("tracking_error", tracking_error, False, of=STATE, log=True, usual=False),
        Metric("round", of=COST, title="rounds", usual=False),
        Metric("server", of=COST, title="server rounds since the previous row", usual=False),
        Metric("present", of=COST, title="agents present, on average since the previous row", usual=False),
        Metric("server_rounds", of=COST),
        Metric("gossip_rounds", of=COST),
        Metric("gradients", of=COST, title="gradients of all agents", usual=False),
        Metric("exchanges", of=COST, title="sequential exchanges", usual=False),
        Metric("messages_server", of=COST, title="messages to and from the server", usual=False),
        Metric("messages_gossip", of=COST, title="messages between agents", usual=False),
        Metric("bytes_server", of=COST, title="bytes to and from the server", unit="B"),
        Metric("bytes_gossip", of=COST, title="bytes between agents", unit="B"),
        Metric("epsilon", of=COST, title="ε spent by the worst agent"),
        Metric("seconds", of=COST, title="seconds by the clock", unit="s"),
    )
}
"""What the library measures itself, in the order in which it is shown."""


GRADIENT = ("grad_norm_sq", "grad_norm_sq_mean")
"""The columns of ‖∇f(x̄)‖²."""


def _adopted(what: str, found: Any) -> Metric:
    made = found if isinstance(found, Metric) or not callable(found) else checked(what, found)()
    if not isinstance(made, Metric):
        raise InputError(f"{what} is {a_kind_of(made)}, expected a metric, as in lag = pisco.Metric('lag', …)")
    return made


NAMED = Registry[Metric]("metric", "pisco.metrics", {}, adopt=_adopted)
"""Metrics of users, by name: a `Metric`, or a function without arguments that makes one."""


def as_metrics(given: Any) -> tuple[Metric, ...]:
    """Metrics from what users give: a list of them, or functions by name.

    A function by name is what the table says of its column (`accuracy`), or a metric whose direction is not known.
    """
    if isinstance(given, Mapping):
        given = [Metric(name, function) for name, function in given.items()]
    made: dict[str, Metric] = {}
    for metric in given if isinstance(given, Iterable) else [given]:
        usable = isinstance(metric, Metric) and callable(metric.function) and metric.of in (TEST, AGENTS, STATE)
        if not usable:
            raise InputError(
                f"one of metrics is {metric!r}, expected functions by name or metrics of test data or of the state, "
                "as in {'error': f} or [Metric('error', f, rising=False)]"
            )
        if set(metric.name) & set(",=\n"):  # as in --targets test_auc=0.9,loss=0.4, and in tables of text
            raise InputError(f"a metric is called {metric.name!r}; leave out commas, = and line breaks")
        ours = METRICS.get(metric.column)
        if metric.column in made or (ours is not None and metric.of == STATE):
            raise InputError(f"two metrics are called {metric.column!r}; give each a name of its own")
        if ours is not None and metric.rising is None:
            metric = replace(ours, function=metric.function, reduce=metric.reduce)
        made[metric.column] = metric
    return tuple(made.values())


def one_number(found: Any) -> bool:
    """Whether a metric can be that."""
    return getattr(found, "shape", None) == () and not jnp.iscomplexobj(found)


def by_column(metrics: Iterable[Metric]) -> dict[str, Metric]:
    """Metrics as a result keeps them: by column, without their functions."""
    return {metric.column: Metric(**metric.facts()) for metric in metrics}


def with_running_mean(columns: Mapping[str, Any]) -> dict[str, Any]:
    """The same columns with `grad_norm_sq_mean` after the one that it is the mean of; rows are the last axis."""
    out = {}
    for name, values in columns.items():
        out[name] = np.asarray(values)
        if name == "grad_norm_sq":
            with np.errstate(over="ignore", invalid="ignore"):
                out["grad_norm_sq_mean"] = np.cumsum(out[name], axis=-1) / np.arange(1, out[name].shape[-1] + 1)
    return out


def each_agent(metric: Metric) -> tuple[Metric, Metric]:
    """What a metric of test data is at the worst agent, and how far the best one is from it, beside that of x̄.

    >>> error = Metric("error", lambda params, batch: abs(batch["y"] - params), rising=False)
    >>> [each.column for each in each_agent(error)]
    ['test_error_worst', 'test_error_spread']
    """
    if not isinstance(metric, Metric) or metric.of != TEST or metric.rising is None:
        name = getattr(metric, "name", metric)
        raise InputError(
            f"the metric {name!r} has no worst agent; give one of test data that says which way is better, as "
            "in each_agent(problem.columns['test_accuracy'])"
        )
    worst = jnp.min if metric.rising else jnp.max
    return (
        replace(metric, name=f"{metric.name}_worst", of=AGENTS, across=worst, title=f"{metric.title}, worst agent"),
        replace(
            metric,
            name=f"{metric.name}_spread",
            rising=False,
            log=False,
            of=AGENTS,
            across=jnp.ptp,
            title=f"{metric.title}, best agent minus worst",
        ),
    )


def auc(function: Callable[..., Any]) -> Metric:
    """The area under the ROC curve over the whole test set; ties count half, and it is NaN where a class is missing.

    `function(params, batch)` gives a score and a label for every sample; labels above 0 are the positive class.

    >>> ranked = auc(lambda params, batch: (batch["x"] * params, batch["y"]))
    >>> ranked.reduce((jnp.array([0.1, 0.4, 0.4, 0.8]), jnp.array([0, 0, 1, 1])))
    Array(0.875, dtype=float32)
    """
    return Metric("auc", function, rising=True, reduce=_area, title="test AUC")


def _area(outputs: tuple[jax.Array, jax.Array]) -> jax.Array:
    scores, labels = outputs
    order = jnp.argsort(scores)
    ranked, positive = scores[order], labels[order] > 0
    before = jnp.append(0, jnp.cumsum(~positive))  # negatives among the first k
    # Whole numbers up to here, so that only the mean is rounded.
    beaten = sum(before[jnp.searchsorted(ranked, ranked, side)] for side in ("left", "right"))
    share = jnp.where(positive, beaten / (2 * before[-1]), 0).sum() / positive.sum()
    return jnp.where(jnp.isnan(scores).any(), jnp.nan, share)


def f1(function: Callable[..., Any]) -> Metric:
    """2·precision·recall/(precision + recall) over the whole test set; NaN where no class is positive, nor called so.

    `function(params, batch)` gives a score and a label for every sample; above 0 is the positive class, of both.
    """
    return Metric("f1", function, rising=True, reduce=_f1, title="test F1")


def _f1(outputs: tuple[jax.Array, jax.Array]) -> jax.Array:
    called, positive = (value > 0 for value in outputs)
    return 2 * (called & positive).sum() / (called.sum() + positive.sum())
