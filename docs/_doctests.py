"""A griffe extension: doctests in docstrings become fenced code, so that the site shows them as code."""

import re
from typing import Any

import griffe

BLOCK = re.compile(r"^(?P<indent> *)>>> .*(?:\n(?! *$).*)*", re.MULTILINE)


class FencedDoctests(griffe.Extension):
    """Wraps every paragraph that starts with `>>>`."""

    def on_object(self, *, obj: griffe.Object, **kwargs: Any) -> None:
        """Called for every object once its members are known."""
        if obj.docstring is not None and ">>> " in obj.docstring.value:
            obj.docstring.value = BLOCK.sub(_fenced, obj.docstring.value)


def _fenced(found: re.Match[str]) -> str:
    indent = found["indent"]
    return f"{indent}```pycon\n{found[0]}\n{indent}```"
