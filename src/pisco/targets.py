"""Targets: a bound on a column of the history, when results met it, and what they had paid by then."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from pisco.errors import InputError, check_number, suggest
from pisco.metrics import COST, METRICS, Metric

if TYPE_CHECKING:
    from pisco.costs import Prices
    from pisco.results import Result

Targets = Mapping[str, float]
"""Columns and their bounds."""

USUAL: Targets = {"grad_norm_sq_mean": 0.05, "test_accuracy": 0.8}


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
        if column not in known and column in METRICS:
            raise InputError(
                f"the problem does not measure {column} (has it test data?); give another target"
            )
        if column not in known:
            raise InputError(f"unknown target {column!r}; {suggest(column, known)}")
        metric = known[column]
        if metric.rising is None:
            fix = "choose one that is measured, such as loss"
            if metric.of != COST:
                name = metric.column.removeprefix("test_")
                fix = (
                    f"measure it as Metric({name!r}, …, rising=True), or rising=False where smaller is better"
                )
            raise InputError(f"the target {column}={bound:g} says not which way is better; {fix}")
        check_number(f"the target's bound of {column}", bound)
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

    def rows(self, result: Result) -> np.ndarray:
        """For every seed, the first row of the history that meets it, or −1."""
        within = self.met(result.column(self.column))
        return np.where(within.any(axis=1), within.argmax(axis=1), -1)

    def at(self, result: Result, wanted: str = "round") -> np.ndarray:
        """For every seed, the value of a column when the target is first met; NaN where it never is."""
        rows, values = self.rows(result), result.column(wanted).astype(float)
        return np.where(rows >= 0, values[np.arange(len(rows)), rows], np.nan)


def targets_of(result: Result, targets: Targets) -> list[Target]:
    """Those of the targets that a result measures."""
    return [Target.of(c, b, {c: result.metric(c)}) for c, b in targets.items() if c in result.history]


def check_targets(targets: Targets, results: Sequence[Result]) -> None:
    """Refuse a column that no result has and that the library does not know."""
    held = {column: result.metric(column) for result in results for column in result.history}
    for column, bound in targets.items():
        Target.of(column, bound, METRICS | held)


class Reached(NamedTuple):
    """One target of one result; the arrays hold the seeds that met it, and `best` what the others came to."""

    target: Target
    seeds: int
    rounds: np.ndarray
    server_rounds: np.ndarray
    bytes: np.ndarray
    messages_server: np.ndarray
    messages_gossip: np.ndarray
    best: float

    @property
    def by_all(self) -> bool:
        """Whether every seed met the target."""
        return len(self.rounds) == self.seeds

    def price(self, prices: Prices) -> np.ndarray:
        """What had been paid when the target was met."""
        return prices.server * self.messages_server + prices.gossip * self.messages_gossip


def reached(result: Result, target: Target) -> Reached:
    """When a result met a target, and what it had sent by then."""
    met = target.rows(result) >= 0

    def at(name: str) -> np.ndarray:
        known = name in result.history  # not all results count what they send
        return target.at(result, name)[met] if known else np.zeros(met.sum())

    values = result.column(target.column).astype(float)
    values = values[np.isfinite(values)]
    return Reached(
        target,
        len(result.seeds),
        at("round"),
        at("server_rounds"),
        at("bytes_server") + at("bytes_gossip"),
        at("messages_server"),
        at("messages_gossip"),
        float((values.max() if target.metric.rising else values.min()) if values.size else np.nan),
    )
