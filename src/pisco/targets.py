"""Targets: a bound on a column of the history, when results met it, and what they had paid by then."""

from __future__ import annotations

from collections import ChainMap
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from pisco.errors import InputError, check_number, suggest
from pisco.metrics import COST, METRICS, Metric
from pisco.statistics import Estimate, Sample

if TYPE_CHECKING:
    from pisco.costs import Prices
    from pisco.results import Result

__all__ = ["Reached", "Target", "reached"]

Targets = Mapping[str, float]
"""Columns and their bounds."""

USUAL: Targets = {"grad_norm_sq_mean": 0.05, "test_accuracy": 0.8}
SHOWN = ("rounds", "bytes", "price", "seconds")
PAID = ("rounds", "server_rounds", "gossip_rounds", "bytes_server", "bytes_gossip", "bytes", "price", "seconds")


def parse_targets(text: str | None) -> Targets:
    """Targets as they are written on a command line; the usual ones without.

    >>> parse_targets("test_auc=0.9,loss=0.4")
    {'test_auc': 0.9, 'loss': 0.4}
    """
    found: dict[str, float] = {}
    for part in [] if text is None else text.split(","):
        column, _, bound = (word.strip() for word in part.partition("="))
        if column in found:
            raise InputError(f"the target {column!r} is given twice; give each column one bound")
        try:
            found[column] = float(bound)
        except ValueError:
            raise InputError(f"the target {part!r} has no bound; write it as in test_accuracy=0.8") from None
        check_number(f"the target's bound of {column}", found[column])
    return found or USUAL


@dataclass(frozen=True)
class Target:
    """A bound on what a metric measures, to be reached from below where larger is better, and else from above.

    >>> print(Target.of("test_accuracy", 0.8))
    a test accuracy of at least 80%
    """

    metric: Metric
    bound: float

    @classmethod
    def of(cls, column: str, bound: float, known: Mapping[str, Metric] = METRICS) -> Target:
        """The target of a column; refuses one that is not known, has no direction, or that nothing can reach."""
        check_number(f"the target's bound of {column}", bound)
        metric = known.get(column) or METRICS.get(column)
        if metric is None:
            measures = [name for name, metric in known.items() if metric.of != COST]
            raise InputError(f"unknown target {column!r}; {suggest(column, measures)}")
        if metric.of == COST:
            raise InputError(f"the target {column!r} is no measure of training: it counts what was sent")
        if column not in known:
            raise InputError(f"the problem does not measure {column} (no test data?); give another target")
        if metric.rising is None:
            raise InputError(
                f"the target {column}={bound:g} does not say which way is better; measure it as "
                f"Metric({column.removeprefix('test_')!r}, …, rising=True), or rising=False where smaller is better"
            )
        if metric.unit == "%" and not 0 < bound <= 1:
            raise InputError(f"the target {column}={bound:g} is no share; give a number above 0 and up to 1")
        if metric.log and not metric.rising and bound <= 0:
            raise InputError(f"the target {column}={bound:g} is never reached; give a number above 0")
        return cls(metric, float(bound))

    @property
    def column(self) -> str:
        """What is to be reached."""
        return self.metric.column

    def __str__(self) -> str:
        bound = f"{100 * self.bound:.4g}%" if self.metric.unit == "%" else f"{self.bound:g}"
        return f"a {self.metric.title} of at {'least' if self.metric.rising else 'most'} {bound}"

    def met(self, values: np.ndarray) -> np.ndarray:
        """Where the bound holds."""
        return values >= self.bound if self.metric.rising else values <= self.bound

    def at(self, result: Result, wanted: str = "round") -> np.ndarray:
        """For every seed, the value of a column when the target is first met; NaN where it never is."""
        within, values = self.met(result.column(self.column)), result.column(wanted).astype(float)
        first = values[np.arange(len(values)), within.argmax(axis=1)]
        return np.where(within.any(axis=1), first, np.nan)


class Reached(NamedTuple):
    """A target that a result measures: when its seeds met it and what they had sent by then, of those that did."""

    target: Target
    result: Result

    def at(self, *columns: str) -> np.ndarray:
        """The sum of some columns at the target; not all results count what they send."""
        held = [self.target.at(self.result, name) for name in columns if name in self.result.history]
        met = ~np.isnan(self.target.at(self.result))
        return sum(held, np.zeros(len(met)))[met]

    @property
    def rounds(self) -> np.ndarray:
        """When it was met."""
        return self.at("round")

    @property
    def bytes(self) -> np.ndarray:
        """What had been sent."""
        return self.at("bytes_server", "bytes_gossip")

    @property
    def by_all(self) -> bool:
        """Whether every seed met it."""
        return len(self.rounds) == len(self.result.seeds)

    @property
    def best(self) -> float:
        """What those that did not meet it came to."""
        values = self.result.column(self.target.column).astype(float)
        values = values[np.isfinite(values)]
        return float(values.max() if self.target.metric.rising else values.min()) if values.size else np.nan

    def price(self, prices: Prices) -> np.ndarray:
        """What had been paid."""
        return prices.paid(self.at, self.result.history)

    @property
    def seconds(self) -> np.ndarray:
        """What the clock showed; nothing where there was none."""
        return self.at("seconds") if "seconds" in self.result.history else np.zeros(0)

    def sample(self, paid: Callable[[Callable[[str], np.ndarray]], np.ndarray]) -> Sample:
        """What `paid` makes of the columns at the target; of seeds that missed it, of what they had at the end."""

        def column(name: str) -> np.ndarray:
            held = name in self.result.history
            return self.target.at(self.result, name) if held else np.where(missed, np.nan, 0.0)

        missed = np.isnan(self.target.at(self.result))
        ends = {name: values for name, values in self.result.history.items() if name in METRICS}
        spent = paid(lambda name: np.atleast_2d(ends[name])[:, -1].astype(float) if name in ends else 0.0 * missed)
        return Sample.of(paid(column), spent)

    def paid(self, prices: Prices) -> dict[str, Estimate]:
        """The median over seeds of what had been paid in every respect; seeds that missed the target are censored."""
        history = self.result.history
        found: dict[str, Callable[..., np.ndarray]] = {name: lambda c, name=name: c(name) for name in PAID}
        found["rounds"] = lambda c: c("round")
        found["bytes"] = lambda c: c("bytes_server") + c("bytes_gossip")
        found["price"] = lambda c: prices.paid(c, history)
        if "seconds" not in history:
            del found["seconds"]
        return {name: self.sample(each).median for name, each in found.items()}


def reached(results: Sequence[Result], targets: Targets) -> list[list[Reached]]:
    """For every result, those of the targets that it measures; a column that nobody knows is refused."""
    if not isinstance(targets, Mapping):
        raise InputError(f"targets is {targets!r}, expected bounds by column, as in {{'loss': 0.5}}")
    own = [{column: result.metric(column) for column in result.history} for result in results]
    for column, bound in targets.items():
        Target.of(column, bound, ChainMap(*own, METRICS))
    return [
        [Reached(Target.of(c, b, rows), result) for c, b in targets.items() if c in rows]
        for result, rows in zip(results, own, strict=True)
    ]
