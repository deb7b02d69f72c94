"""What a figure says about a claim, in words that can be checked."""

from __future__ import annotations

from typing import NamedTuple

from pisco.statistics import Estimate

HOLDS, PARTLY, NOT, OPEN = "holds", "holds partly", "does not hold", "open"
NOT_TESTED = "not tested at this size"
ENOUGH = 20
"""Seeds from which on a claim is judged."""


class Verdict(NamedTuple):
    """A claim of the paper, the statistic that tests it with its interval over seeds, and the outcome."""

    claim: str
    statistic: str
    measured: str
    outcome: str
    why: str = ""
    seeds: int = 0
    """How many it rests on; 0 where there is nothing random, so that any size will do."""

    def at_this_size(self, quick: bool) -> Verdict:
        """The same where the size suffices, and else without an outcome: only what was measured, coarsely.

        >>> Verdict("c", "s", "3 (2 to 4)", HOLDS, seeds=3).at_this_size(quick=False)[2:4]
        ('coarsely, 3 seeds: 3 (2 to 4)', 'not tested at this size')
        """
        if not self.seeds or (self.seeds >= ENOUGH and not quick):
            return self
        seeds = "one seed" if self.seeds == 1 else f"{self.seeds} seeds"
        return self._replace(outcome=NOT_TESTED, measured=f"coarsely, {seeds}: {self.measured}")


def up_to(found: Estimate, holds: float, partly: float) -> str:
    """The outcome of a claim that something is at most `holds`, by the whole interval; open where it says nothing.

    >>> [up_to(Estimate(2, low, high), 3, 5) for low, high in ((1, 3), (1, 4), (6, 7), (4, 6))]
    ['holds', 'holds partly', 'does not hold', 'open']
    """
    if found.low > partly:
        return NOT
    return HOLDS if found.high <= holds else PARTLY if found.high <= partly else OPEN


def outcome(good: bool, partly: bool = False) -> str:
    """Holds, holds partly, or does not hold."""
    return HOLDS if good else PARTLY if partly else NOT
