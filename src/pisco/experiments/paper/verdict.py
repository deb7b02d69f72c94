"""What a figure says about a claim, in words that can be checked."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

HOLDS, PARTLY, NOT = "holds", "holds partly", "does not hold"


class Verdict(NamedTuple):
    """A claim of the paper, the statistic that tests it with its spread over seeds, and the outcome."""

    claim: str
    statistic: str
    measured: str
    outcome: str
    why: str = ""
    depends_on_size: bool = False
    """Whether a quick run may come to another outcome."""


def spread(values: np.ndarray, unit: str = "") -> str:
    """Mean, least and greatest over seeds.

    >>> spread(np.array([1.0, 2.0, 3.0]))
    '2 (1 to 3)'
    """
    return f"{np.mean(values):.3g}{unit} ({np.min(values):.3g} to {np.max(values):.3g})"


def up_to(values: np.ndarray | float, holds: float, partly: float) -> str:
    """The outcome of a claim that the mean over seeds is at most `holds`."""
    return outcome(bool(np.mean(values) <= holds), bool(np.mean(values) <= partly))


def outcome(good: bool, partly: bool = False) -> str:
    """Holds, holds partly, or does not hold."""
    return HOLDS if good else PARTLY if partly else NOT
