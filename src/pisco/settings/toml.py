"""Reading and writing the TOML that configurations need: tables, lists, strings, numbers and booleans."""

from __future__ import annotations

import json
import math
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from pisco.errors import InputError


def read(path: Path) -> dict[str, Any]:
    """The tables of a file; a mistake in it is named with file and line."""
    try:
        text = path.read_bytes().decode("utf-8-sig")  # some editors of Windows put a mark first
    except UnicodeDecodeError as error:
        raise InputError(f"{path} is not a text file in UTF-8 (byte {error.start}); give a TOML file") from error
    except OSError as error:
        raise InputError(f"cannot read {path} ({error.strerror or error}); check the path") from error
    if not text.strip():
        raise InputError(f"{path} is empty; `pisco list presets` names experiments to start from")
    try:
        return tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise InputError(f"{path} is not valid TOML: {error}") from error


def value(text: str) -> Any:
    """A value as TOML reads it, or Python; what neither can read is a plain string.

    >>> value(".2"), value("[1, 2]"), value("ring"), value("'0.2'"), value("True")
    (0.2, [1, 2], 'ring', '0.2', True)
    """
    written = {"True": "true", "False": "false"}.get(text, f"0{text}" if text.startswith(".") else text)
    try:
        read = tomllib.loads(f"value = {written}")
    except tomllib.TOMLDecodeError:
        return text
    return read["value"] if set(read) == {"value"} else text


def write(tables: Mapping[str, Any]) -> str:
    """The text of nested tables.

    >>> print(write({"name": "x", "run": {"rounds": 5, "seeds": [0, 1]}}), end="")
    name = "x"
    <BLANKLINE>
    [run]
    rounds = 5
    seeds = [0, 1]
    """
    lines = [f"{_key(key)} = {_literal(value)}" for key, value in tables.items() if not isinstance(value, Mapping)]
    for key, table in tables.items():
        if isinstance(table, Mapping):
            lines += ["", f"[{_key(key)}]"]
            lines += [f"{_key(k)} = {_literal(v)}" for k, v in table.items()]
    return "\n".join(lines).lstrip("\n") + "\n"


def _key(key: str) -> str:
    return key if key.replace("_", "").replace("-", "").isalnum() and key.isascii() else json.dumps(key)


def _literal(value: Any) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, float):
        return repr(value) if math.isfinite(value) else {"inf": "inf", "-inf": "-inf"}.get(str(value), "nan")
    if isinstance(value, Mapping):
        inner = ", ".join(f"{_key(k)} = {_literal(v)}" for k, v in value.items())
        return f"{{ {inner} }}" if inner else "{}"
    if isinstance(value, list | tuple) and any(isinstance(each, Mapping | list | tuple) for each in value):
        return "".join(["[\n", *(f"  {_literal(each)},\n" for each in value), "]"])  # a table or row a line
    if isinstance(value, list | tuple):
        return f"[{', '.join(_literal(each) for each in value)}]"
    # JSON's escapes are TOML's, except DEL, which TOML wants escaped.
    return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")
