"""Numbers as a report writes them."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

import numpy as np

from pisco.metrics import Metric
from pisco.statistics import median_curve

if TYPE_CHECKING:
    from pisco.results import Result


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


def size(count: float | None) -> str:
    """Bytes for people; a dash where they are not known.

    >>> size(999), size(1_500), size(999_900), size(None)
    ('999 B', '1.5 kB', '1 MB', '–')
    """
    if count is None:
        return "–"
    for unit in ("B", "kB", "MB", "GB", "TB"):
        if count < 999.5 or unit == "TB":
            break
        count /= 1000
    return f"{count:.3g} {unit}"


def spread(values: np.ndarray, words: Callable[[float], str] = number) -> str:
    """The median, and its 95% bootstrap interval where seeds differ.

    >>> spread(np.array([1.0, 3.0])), spread(np.array([2.0]))
    ('2 (1 to 3)', '2')
    """
    middle, low, high = (words(float(each[0])) for each in median_curve(np.asarray(values, float)[:, None]))
    return middle if low == high else f"{middle} ({low} to {high})"


def writing(metric: Metric) -> Callable[[float], str]:
    """How values of a metric are written."""
    return "{:.1%}".format if metric.unit == "%" else number


def endings(result: Result) -> list[tuple[str, str]]:
    """A row for every usual column: its last value, the median over seeds and its interval."""
    from pisco.results import measured  # which knows jax

    words = {"%": "{:.2%}".format, "B": size}
    return [
        (metric.title, spread(result.final(name), words.get(metric.unit, _four_digits)))
        for name, metric in measured([result], costs=True).items()
        if metric.usual
    ]


def _four_digits(value: float) -> str:
    return f"{value:,.0f}" if 1000 <= abs(value) < 1e15 else f"{value:.4g}"
