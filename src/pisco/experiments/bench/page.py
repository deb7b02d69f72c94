"""One page to explore measured cells: pick a task, a network and prices; no other file, no network."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from string import Template
from typing import Any

from pisco._version import __version__
from pisco.errors import InputError, writing
from pisco.experiments.bench.scores import KINDS, MAY_MISS, RATIOS
from pisco.experiments.bench.store import pack
from pisco.files import atomic_write
from pisco.report.panels import COLOURS

PARTS = Path(__file__).parent / "page"


def write_page(cells: Sequence[Mapping[str, Any]], path: Path) -> Path:
    """Write the page of some cells."""
    if path.suffix.lower() not in (".html", ".htm"):
        raise InputError(f"the benchmark's page is HTML, not {path}; give it a name that ends in .html")
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
    text = json.dumps(data, separators=(",", ":"), ensure_ascii=False, allow_nan=False)
    page = Template((PARTS / "bench.html").read_text(encoding="utf-8")).substitute(
        version=__version__,
        # No text in the data can end the element that holds it.
        data=text.replace("<", "\\u003c"),
        css=(PARTS / "bench.css").read_text(encoding="utf-8"),
        js=(PARTS / "bench.js").read_text(encoding="utf-8"),
    )
    with writing(path):
        path.parent.mkdir(parents=True, exist_ok=True)
        atomic_write(path, page.encode())
    return path
