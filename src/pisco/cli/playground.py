"""`pisco playground`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from pisco.cli.console import say


def playground(
    page: Annotated[Path, typer.Option("--out", "-o", help="The HTML file to write.")] = Path("playground.html"),
) -> None:
    """Write one page where you draw a network and watch PISCO gossip and reach the server, live in the browser.

    It opens from disk without a network, and its numbers are those of the library.

    Example:

      pisco playground -o playground.html
    """
    from pisco.report.playground import write_playground

    say(f"playground: {write_playground(page)}")
