"""How things look in a notebook, and counts in words."""

from __future__ import annotations

from collections.abc import Mapping
from html import escape
from typing import Any


def card(title: str, rows: Mapping[str, Any]) -> str:
    """A small table as HTML that needs nothing from elsewhere; whatever a text holds stays text.

    >>> card("Network", {"agents": 3})
    '<table><caption>Network</caption><tr><th>agents</th><td>3</td></tr></table>'
    """
    cells = (f"<tr><th>{escape(name)}</th><td>{escape(str(value))}</td></tr>" for name, value in rows.items())
    return f"<table><caption>{escape(title)}</caption>{''.join(cells)}</table>"


def span(least: int, most: int) -> str:
    """Two whole numbers, or one where they are the same.

    >>> span(1, 2000), span(3, 3)
    ('1 to 2,000', '3')
    """
    return f"{least:,}" if least == most else f"{least:,} to {most:,}"


def plural(count: int, one: str, many: str = "") -> str:
    """So many things, or one.

    >>> plural(1, "agent"), plural(2, "agent"), plural(0, "class", "classes")
    ('1 agent', '2 agents', '0 classes')
    """
    return f"{count} {one if count == 1 else many or f'{one}s'}"
