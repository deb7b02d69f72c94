"""Numbers as a report writes them."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from pisco.metrics import Metric


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


def writing(metric: Metric) -> Callable[[float], str]:
    """How values of a metric are written.

    >>> from pisco.metrics import METRICS
    >>> writing(METRICS["test_accuracy"])(0.84521), writing(METRICS["loss"])(0.84521)
    ('84.5%', '0.845')
    """
    return (lambda value: f"{value:.1%}") if metric.unit == "%" else number
