"""The playground: one page that runs PISCO in the browser, on a network that its visitor draws."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from pisco.report.html import check_html, filled, save

AGENTS = 24
START = (0.0, 0.0)
SCRIPTS = ("helpers.js", "playground-pisco.js", "playground-charts.js", "playground.js")


def agents_data() -> list[dict[str, Any]]:
    """A quadratic of two unknowns for every agent, its curvatures between 0.05 and 3: fᵢ(x) = ½(x − bᵢ)ᵀAᵢ(x − bᵢ).

    >>> len(agents_data()), sorted(agents_data()[0])
    (24, ['hessian', 'minimizer'])
    """
    rng = np.random.default_rng(7)
    angles, turns = rng.uniform(0, np.pi, AGENTS), rng.permutation(AGENTS) * 2 * np.pi / AGENTS
    curvatures, far = 3.0 * 60.0 ** -rng.uniform(0, 1, (AGENTS, 2)), rng.uniform(0.4, 1.6, AGENTS)
    axes = np.stack([np.cos(angles), np.sin(angles), -np.sin(angles), np.cos(angles)], axis=1).reshape(-1, 2, 2)
    hessians = np.round(np.einsum("nki,nk,nkj->nij", axes, curvatures, axes), 4)
    minimizers = np.round(np.stack([1.5 + far * np.cos(turns), 1.0 + far * np.sin(turns)], axis=1), 4)
    rows = zip(hessians.tolist(), minimizers.tolist(), strict=True)
    return [{"hessian": hessian, "minimizer": minimizer} for hessian, minimizer in rows]


def playground_page() -> str:
    """The page as HTML; it fetches nothing."""
    data = {"agents": agents_data(), "start": START}
    return filled("playground.html", data, styles=["report.css", "playground.css"], scripts=SCRIPTS)


def write_playground(path: str | Path) -> Path:
    """Write the page as one HTML file."""
    path = Path(path)
    check_html("the playground", path)
    return save(path, playground_page())
