"""When results met their targets and what they had paid by then, seed by seed."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from pisco.report.plots import TITLES

if TYPE_CHECKING:
    from pisco.costs import Prices
from pisco.results import Result

TARGETS = {"grad_norm_sq_mean": 0.05, "test_accuracy": 0.8}


class Reached(NamedTuple):
    """One target of one result; the arrays hold the seeds that met it, and `best` what the others came to."""

    target: str
    bound: float
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


def reached(result: Result, targets: Mapping[str, float]) -> list[Reached]:
    """Every target that the result measures."""
    found = []
    for target, bound in targets.items():
        if target not in result.history:
            continue
        rising = "accuracy" in target
        rows = result.row_reaching(target, **({"at_least": bound} if rising else {"at_most": bound}))
        met = np.flatnonzero(rows >= 0)

        def at(name: str, met: np.ndarray = met, rows: np.ndarray = rows) -> np.ndarray:
            known = name in result.history
            return result.column(name)[met, rows[met]].astype(float) if known else np.zeros(len(met))

        values = result.column(target).astype(float)
        values = values[np.isfinite(values)]
        best = float((values.max() if rising else values.min()) if values.size else np.nan)
        sent = at("bytes_server") + at("bytes_gossip")
        found.append(
            Reached(
                target,
                bound,
                len(result.seeds),
                at("round"),
                at("server_rounds"),
                sent,
                at("messages_server"),
                at("messages_gossip"),
                best,
            )
        )
    return found


def target_words(target: str, bound: float) -> str:
    """A target in words.

    >>> target_words("test_accuracy", 0.8), target_words("loss", 0.5)
    ('a test accuracy of at least 80%', 'a loss f(x̄) of at most 0.5')
    """
    if target == "test_accuracy":
        return f"a test accuracy of at least {100 * bound:.4g}%"
    title = TITLES.get(target, target.replace("_", " "))
    return f"a {title} of at {'least' if 'accuracy' in target else 'most'} {bound:g}"


def number(value: float) -> str:
    """A number for people: whole when it is large, three digits when it is not.

    >>> number(1234567.8), number(0.0001234), number(12.0)
    ('1,234,568', '0.000123', '12')
    """
    if not np.isfinite(value):
        return "not finite"
    if abs(value) >= 1000:
        return f"{value:,.0f}" if abs(value) < 1e15 else f"{value:.2e}"
    return f"{value:.3g}"


def amount(count: float) -> str:
    """Bytes for people.

    >>> amount(999), amount(999_900), amount(1_234_000)
    ('999 bytes', '1 MB', '1.23 MB')
    """
    for unit in ("bytes", "kB", "MB", "GB", "TB"):
        if count < 999.5 or unit == "TB":
            break
        count /= 1000
    return f"{count:.3g} {unit}"


def spread(values: np.ndarray, words: Callable[[float], str] = number) -> str:
    """The mean, and from where to where when seeds differ.

    >>> spread(np.array([1.0, 3.0])), spread(np.array([2.0]))
    ('2 (1 to 3)', '2')
    """
    mean, low, high = (
        words(float(np.mean(values))),
        words(float(np.min(values))),
        words(float(np.max(values))),
    )
    return mean if low == high else f"{mean} ({low} to {high})"
