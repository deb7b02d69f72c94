"""`pisco report`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from pisco.cli.console import say
from pisco.cli.options import Goals, PriceGossip, PriceGradient, PriceServer
from pisco.cli.results import Folders, read_results


def report(
    folders: Folders,
    page: Annotated[Path, typer.Option("--out", "-o", help="The HTML file to write.")] = Path("report.html"),
    targets: Goals = None,
    price_server: PriceServer = 10.0,
    price_gossip: PriceGossip = 1.0,
    price_gradient: PriceGradient = 0.0,
    title: Annotated[str | None, typer.Option(help="The page's title.")] = None,
) -> None:
    """Write one page about results: curves, a playback of the network, labels, targets, settings and a summary.

    It opens from disk without a network.

    Example:

      pisco report results/a9a results/dsgd -o report.html
    """
    from pisco.costs import Prices
    from pisco.report.html import check_html, write_page
    from pisco.targets import parse_targets

    check_html("a report", page)
    goals, prices = parse_targets(targets), Prices(price_server, price_gossip, price_gradient)
    prices.check()
    write_page(read_results(folders), page, targets=goals, prices=prices, title=title)
    say(f"report: {page}")
