"""One setting on trial: what its seeds measured, what they paid, and where they lead."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from pisco.metrics import with_running_mean
from pisco.planning.forecast import rows_to
from pisco.planning.meters import Meter
from pisco.planning.settings import Setting
from pisco.targets import Target

REACHED, MISSED, DIVERGED = "reached", "missed", "diverged"
COSTLIER, SLOWER, RUNNING = "costlier", "slower", "running"
LUCKY = "lucky"
"""It reached the target with these seeds, and with more of them it cost much more or did not."""


def values_of(target: Target, rows: Mapping[str, Sequence[float]]) -> np.ndarray:
    """The target's column, from measured ones."""
    return with_running_mean(rows)[target.column]


@dataclass
class Pilot:
    """One setting on trial: the rows of every seed, and how it ended."""

    setting: Setting
    seeds: tuple[int, ...]
    meter: Meter
    states: list[Any] = field(repr=False)
    rows: list[dict[str, list[float]]] = field(repr=False)
    rounds: int = 0
    status: str = RUNNING
    met_at: list[int | None] = field(default_factory=list)
    served: list[list[int]] = field(default_factory=list, repr=False)
    """Server rounds of every seed, up to each row."""
    reached: list[list[bool]] = field(default_factory=list, repr=False)
    """Which rounds of every seed reached the server, where the schedule watches the loss."""
    stride: int = 1

    @property
    def unit(self) -> float:
        """The expected price of a round."""
        return self.meter.unit

    @property
    def floor(self) -> float:
        """The least that the target can cost, the mean over seeds; where it is not reached, what is paid so far.

        A few seeds are often lucky: where the server does the work, its coins may have come early; where gossip does
        it, they may not have come at all. The mean of what was paid and the mean rounds at the expected price
        estimate the same (Wald's identity); the larger one counts. Where there is no coin there is no luck in it.
        """
        rounds = [self.rounds if at is None else at for at in self.met_at]
        paid = [
            self.meter.paid(index, at, served[at // self.stride], reached)
            for index, (at, served, reached) in enumerate(zip(rounds, self.served, self.reached, strict=True))
        ]
        if self.setting.periodic:
            return float(np.mean(paid))
        begun = np.mean([self.meter.paid(index, 0, 0) for index in range(len(rounds))])
        return max(float(np.mean(paid)), float(begun + np.mean(rounds) * self.unit))

    @property
    def cost(self) -> float:
        """The price at the target, the mean over seeds; infinite unless all got there."""
        return self.floor if all(at is not None for at in self.met_at) else math.inf

    def standing(self, target: Target, rounds: int) -> float:
        """Where the target's column stood after so many rounds, the median over seeds; smaller is better."""
        at = rounds // self.stride
        values = [values_of(target, row)[min(at, len(row["loss"]) - 1)] for row in self.rows]
        middle = float(np.median(values))
        return -middle if target.metric.rising else middle

    def rounds_ahead(self, target: Target) -> float:
        """Rounds to the target: what seeds took, the mean, or where their median curve leads (`forecast`)."""
        if all(at is not None for at in self.met_at):
            return float(np.mean([at for at in self.met_at if at is not None]))
        running = target.column not in self.rows[0]  # a mean over rows: what is under it is forecast
        column = target.column.removesuffix("_mean") if running else target.column
        values, bound = np.median([row[column] for row in self.rows], axis=0), target.bound
        if target.metric.rising and target.metric.unit == "%":
            values, bound = 1 - values, 1 - bound
        elif target.metric.rising:
            return math.inf
        if self.status == DIVERGED:
            return math.inf
        # What has been run is no forecast: the seeds that missed it count as not yet there.
        return max(rows_to(values, bound, running=running) * self.stride, float(self.rounds))

    def predicted(self, target: Target) -> float:
        """The price at the target, as measured or forecast; infinite where the curve is flat."""
        if math.isfinite(self.cost):
            return self.cost
        # Without a coin, what rounds have cost so far: where the loss is watched the server comes less and less often.
        unit = self.floor / self.rounds if self.setting.periodic and self.rounds else self.unit
        ahead = self.rounds_ahead(target)
        return ahead * unit if math.isfinite(ahead) else math.inf  # where rounds cost nothing, too

    def parts(self, price: float) -> dict[str, float]:
        """For what a price is paid."""
        served = self.setting.server_prob
        if self.setting.periodic and self.rounds:
            served = float(np.mean([row[-1] for row in self.served])) / self.rounds
        return self.meter.parts(price, served)
