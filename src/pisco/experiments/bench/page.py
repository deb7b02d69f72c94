"""One page to explore measured cells: pick a task, a network and prices; no other file, no network."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from pisco.errors import InputError
from pisco.experiments.bench.scores import KINDS, MAY_MISS, RATIOS
from pisco.experiments.bench.store import pack
from pisco.report.html import check_html, filled, save
from pisco.report.panels import COLOURS

PARTS = Path(__file__).parent / "page"


def write_page(cells: Sequence[Mapping[str, Any]], path: Path) -> Path:
    """Write the page of some cells."""
    check_html("the benchmark's page", path)
    ran = {cell["setting"] for cell in cells if cell["entries"]}
    if not ran:
        raise InputError("every cell there was refused; there is nothing to rank")
    data = {
        # Nothing is known of a network that refused every method.
        "packed": pack([cell for cell in cells if cell["setting"] in ran]),
        "ratios": RATIOS,
        "mayMiss": MAY_MISS,
        "kinds": dict(zip(KINDS, COLOURS, strict=False)),
    }
    return save(path, filled(PARTS / "bench.html", data, styles=[PARTS / "bench.css"], scripts=[PARTS / "bench.js"]))
