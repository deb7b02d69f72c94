"""Figure `network-dependency`: λ_p^-2 against p, and the path graph."""

from __future__ import annotations

from typing import Any

import numpy as np

from pisco.experiments.paper.figure import Figure, Shown
from pisco.experiments.paper.verdict import Verdict, outcome
from pisco.experiments.paper.work import QUIET, Work
from pisco.networks.network import Network
from pisco.networks.spectral import expected_mixing_rate
from pisco.report.panels import Curve, Panel
from pisco.theory.paper import network_dependency

RATES = (1e-3, 1e-2, 0.1, 0.4)
SIZES = (8, 16, 32, 64, 128, 256)


def compute(quick: bool = False, work: Work = QUIET) -> dict[int, float]:
    """λ_w of path graphs with Metropolis weights; the rest is a formula."""
    return {n: Network.path(n).mixing_rate for n in SIZES}


def slope(x: Any, y: Any) -> float:
    """The exponent e of y ∝ x^e, by least squares on the logarithms.

    >>> round(slope([1, 2, 4], [3, 12, 48]), 9)
    2.0
    """
    return float(np.polyfit(np.log(x), np.log(y), 1)[0])


def present(found: dict[int, float]) -> Shown:
    """λ_p^-2 for four λ_w with p = √λ_w marked, and for paths of n agents."""
    probs = np.geomspace(1e-4, 1, 81)
    lines, marks, table = [], [], []
    for index, rate in enumerate(RATES):
        values = network_dependency(rate, probs)
        lines.append(Curve(f"λ_w = {rate:g}", probs, values[None], index))
        root = np.sqrt(rate)
        marks.append(Curve("p = √λ_w", np.array([root]), np.array([[expected_mixing_rate(rate, root) ** -2]]), 6, True))
        table += [
            {"curve": f"λ_w = {rate:g}", "n": "", "p": f"{p:.4g}", "λ_p^-2": f"{value:.6g}"}
            for p, value in zip(probs[::8], values[::8], strict=True)
        ]
    sizes = np.array(list(found))
    alone = np.array(list(found.values())) ** -2.0
    helped = np.array([expected_mixing_rate(rate, 1 / n) ** -2 for n, rate in found.items()])
    paths = []
    for index, (name, values) in enumerate((("path, p = 0", alone), ("path, p = 1/n", helped))):
        paths.append(Curve(name, sizes, values[None], 4 + index, points=True))
        table += [
            {"curve": name, "n": n, "p": "0" if values is alone else f"1/{n}", "λ_p^-2": f"{value:.6g}"}
            for n, value in zip(sizes, values, strict=True)
        ]
    panels = [
        Panel("the network dependency", "p", "λ_p⁻²", [*lines, *marks], log_x=True, log_y=True),
        Panel("path graphs, Metropolis weights", "agents n", "λ_p⁻²", paths, log_x=True, log_y=True),
    ]
    at_root = [rate * expected_mixing_rate(rate, np.sqrt(rate)) ** -2 for rate in RATES]
    above = [np.max(p**2 * expected_mixing_rate(r, p) ** -2) for r in RATES for p in probs if p >= r]
    exponents = slope(sizes, alone), slope(sizes, helped)
    verdicts = [
        Verdict(
            "p = √λ_w turns λ_w^-2 into λ_w^-1",
            "λ_w·λ_p^-2 at p = √λ_w, at most 1 (a formula: no seeds)",
            f"{min(at_root):.3g} to {max(at_root):.3g}",
            outcome(max(at_root) <= 1 + 1e-12),
        ),
        Verdict(
            "p ≥ λ_w: the dependency is at most p^-2",
            "the greatest p²·λ_p^-2 over the curves",
            f"{max(above):.3g}",
            outcome(max(above) <= 1 + 1e-12),
        ),
        Verdict(
            "path graph: n⁴ with p = 0 becomes n² with p = 1/n",
            "fitted exponents of λ_p^-2, n = 8 … 256 (no seeds)",
            f"{exponents[0]:.3g} and {exponents[1]:.3g}",
            outcome(abs(exponents[0] - 4) < 0.3 and abs(exponents[1] - 2) < 0.3),
        ),
    ]
    settings = {"λ_w": list(RATES), "path graphs": {str(n): rate for n, rate in found.items()}, "weights": "metropolis"}
    return Shown([panels], table, verdicts, settings)


NETWORK_DEPENDENCY = Figure("network-dependency", "λ_p^-2 against p, and path graphs", compute, present)
