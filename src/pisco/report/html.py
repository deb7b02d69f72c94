"""One page that tells what results show: no other file, no network, readable without a script."""

from __future__ import annotations

import base64
import functools
import gzip
import json
from collections.abc import Mapping, Sequence
from html import escape
from pathlib import Path
from string import Template
from typing import TYPE_CHECKING, Any

from pisco._version import __version__
from pisco.costs import Prices
from pisco.errors import InputError, writing
from pisco.files import atomic_write
from pisco.report.curves import page_numbers
from pisco.report.summary import paragraphs
from pisco.report.tables import endings_table, settings_table, targets_table
from pisco.results import check_prices, check_results
from pisco.targets import USUAL, Targets

if TYPE_CHECKING:
    from pisco.results import Result

PARTS = Path(__file__).parent / "page"
SCRIPTS = ("helpers.js", "curves.js", "network.js", "labels.js", "page.js")


def write_page(
    results: Sequence[Result],
    path: str | Path,
    *,
    targets: Targets = USUAL,
    prices: Prices = Prices(),  # noqa: B008 (a tuple)
    title: str | None = None,
) -> Path:
    """Write the report of one or several results as one HTML file."""
    check_results("write_page", results)
    check_prices(prices)
    if not results:
        raise InputError("there is no result to report; give at least one")
    with writing(path):
        path = Path(path)
    return save(path, build_page(page_data(results, targets=targets, prices=prices), title=title or _title(results)))


def page_data(
    results: Sequence[Result],
    *,
    targets: Targets = USUAL,
    prices: Prices = Prices(),  # noqa: B008 (a tuple)
) -> dict[str, Any]:
    """What a page shows: numbers for its charts, and its text and tables as HTML."""
    return page_numbers(results) | {
        "prices": prices._asdict(),
        "html": {
            "words": _words(paragraphs(results, targets, prices)),
            "targets-table": targets_table(results, targets, prices),
            "ending-table": endings_table(results, prices),
            "settings-table": settings_table(results),
        },
    }


def _words(told: Sequence[str]) -> str:
    first, *rest = (f"<p>{escape(words)}</p>" for words in told)
    if not rest:
        return first
    return f'{first}<details class="words"><summary>Each result in words</summary>{"".join(rest)}</details>'


def build_page(data: Mapping[str, Any], *, title: str) -> str:
    """The HTML of a page; one that follows a run may ask its own server for news, any other may fetch nothing."""
    html, live = data.get("html", {}), data.get("live")
    numbers = {name: value for name, value in data.items() if name != "html"}
    labels = [result["label"] for result in data["results"]]
    return filled(
        "report.html",
        numbers,
        styles=["report.css"],
        scripts=SCRIPTS,
        title=escape(title),
        subtitle=escape(", ".join(labels[:6]) + (f" and {len(labels) - 6} more" if len(labels) > 6 else "")),
        connect="'self'" if live else "'none'",
        words=html.get("words", ""),
        targets=html.get("targets-table", ""),
        ending=html.get("ending-table", ""),
        settings=html.get("settings-table", ""),
        price_server=f"{data['prices']['server']:g}",
        price_gossip=f"{data['prices']['gossip']:g}",
        price_gradient=f"{data['prices']['gradient']:g}",
        plotly=_plotly(),
    )


def filled(
    template: str | Path,
    data: Mapping[str, Any],
    *,
    styles: Sequence[str | Path],
    scripts: Sequence[str | Path],
    **words: str,
) -> str:
    """A template with data and words in it; files are those of the folder `page`, or named by whole paths."""

    def part(name: str | Path) -> str:
        return (PARTS / name).read_text(encoding="utf-8")

    script = "\n".join(map(part, scripts))
    return Template(part(template)).substitute(
        version=__version__,
        # No text in the data can end the element that holds it.
        data=encode(data).replace("<", "\\u003c"),
        css="".join(map(part, styles)),
        js=f'"use strict";\n(() => {{\n{script}}})();',
        **words,
    )


def check_html(what: str, path: Path) -> None:
    """Refuse a page whose name says that it is something else."""
    if path.suffix.lower() not in (".html", ".htm"):
        raise InputError(f"{what} is an HTML page, not {path}; give it a name that ends in .html")


def save(path: Path, page: str) -> Path:
    """Write a page; folders are made."""
    with writing(path):
        path.parent.mkdir(parents=True, exist_ok=True)
        atomic_write(path, page.encode())
    return path


def encode(data: Mapping[str, Any]) -> str:
    """Compact JSON; numbers that are not finite were made null before."""
    return json.dumps(data, separators=(",", ":"), ensure_ascii=False, allow_nan=False)


@functools.cache
def _plotly() -> str:
    """plotly.js as the package brings it, packed to less than half: 2.0 of 4.8 MB."""
    from plotly.offline import get_plotlyjs

    return base64.b64encode(gzip.compress(get_plotlyjs().encode(), 9, mtime=0)).decode()


def _title(results: Sequence[Result]) -> str:
    if len(results) == 1:
        return f"{results[0].label or 'A run'}: a report"
    return f"{len(results)} results compared"
