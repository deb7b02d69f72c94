"""Where cells are read from: a folder of them, or one file in which they take less room."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any

from pisco.errors import InputError
from pisco.experiments.bench.cells import COLUMNS
from pisco.experiments.bench.runner import CELLS
from pisco.experiments.bench.scores import middle, score_of
from pisco.files import atomic_write

MEASURED = Path(__file__).with_name("measured.json")
"""Cells of the suite `full` that come with the package."""

SETTING = ("task", "network", "setting", "target", "agents", "edges", "mixing_rate", "rounds", "seeds")
OF_METHOD = ("method", "refused", "share_sent", "exchanges", "gradients_a_round")


def read(folder: Path | None = None) -> list[dict[str, Any]]:
    """The cells of a folder or of a packed file, with ours of the same tasks and networks beside; or ours alone."""
    if folder is None:
        return bundled()
    place = folder / CELLS if (folder / CELLS).is_dir() else folder
    cells = []
    for path in [folder] if folder.is_file() else sorted(place.glob("*.json")):
        try:
            told = json.loads(path.read_text())
            for cell in unpack(told) if folder.is_file() else [told]:
                cells.append({name: cell[name] for name in ("task", "network", "method", "setting", "entries")} | cell)
        except (OSError, ValueError, KeyError, TypeError) as error:
            what = "no file of `pisco bench pack`" if folder.is_file() else "no cell of a suite"
            fix = "give another, or a folder" if folder.is_file() else "delete it"
            raise InputError(f"{path} is {what} ({type(error).__name__}); {fix}") from error
    if not cells:
        raise InputError(f"{folder} holds no cells; `pisco bench SUITE --out {folder}` measures some")
    settings = {cell["setting"] for cell in cells}
    mine = {(cell["setting"], cell["method"]) for cell in cells}
    ours = [cell for cell in bundled() if cell["setting"] in settings]
    return cells + [cell for cell in ours if (cell["setting"], cell["method"]) not in mine]


@cache
def bundled() -> list[dict[str, Any]]:
    """The cells that come with the package."""
    return unpack(json.loads(MEASURED.read_text())) if MEASURED.exists() else []


PACKED = ("server_prob", "local_lr", "tuning_failed", "at_edge", "missed", "round", "server_rounds", *COLUMNS)
"""What an entry is packed as, in this order."""


def pack(cells: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """The same in less room: what methods share is said once, entries are rows, and of seconds the median is kept."""
    groups: dict[str, dict[str, Any]] = {}
    for cell in cells:
        group = groups.setdefault(cell["setting"], {"cells": [], "devices": []})
        group |= {name: cell[name] for name in SETTING if name in cell}  # one that was refused knows less
        devices = cell.get("devices") or [cell["device"]]
        group["devices"] = sorted({*group["devices"], *devices})
        own = {name: cell[name] for name in OF_METHOD if name in cell}
        group["cells"].append(own | {"entries": [_packed(cell, entry) for entry in cell["entries"]]})
    return {"columns": PACKED, "groups": list(groups.values())}


def _packed(cell: Mapping[str, Any], entry: Mapping[str, Any]) -> list[Any]:
    score = score_of(cell, entry)

    def one(name: str, value: Any) -> Any:
        if name == "missed":
            return "all" if score.missed.all() else value
        if name == "seconds" and value is not None:
            found = middle(score.sample(name))
            return found if math.isfinite(found) else float(score.spent[name].max())
        if isinstance(value, Mapping):
            return [value["law"]]
        return value[0] if isinstance(value, list) and len(set(map(str, value))) == 1 else value

    return [one(name, entry.get(name)) for name in PACKED]


def unpack(packed: Mapping[str, Any]) -> list[dict[str, Any]]:
    """The cells that were packed."""

    def entry(row: Sequence[Any]) -> dict[str, Any]:
        laws = [
            {"law": each[0]} if isinstance(each, list) and each and isinstance(each[0], list) else each for each in row
        ]
        return dict(zip(packed["columns"], laws, strict=True))

    return [
        {name: value for name, value in group.items() if name != "cells"}
        | cell
        | {"entries": [entry(row) for row in cell["entries"]]}
        for group in packed["groups"]
        for cell in group["cells"]
    ]


def write_packed(cells: Sequence[Mapping[str, Any]], path: Path) -> None:
    """One file of cells, one a line."""
    packed = pack(cells)

    def text(value: Any) -> str:
        return json.dumps(value, separators=(",", ":"), ensure_ascii=False)

    groups = []
    for group in packed["groups"]:
        rows = ",\n".join(map(text, group["cells"]))
        facts = text({name: value for name, value in group.items() if name != "cells"})[:-1]
        groups.append(f'{facts},"cells":[\n{rows}]}}')
    every = ",\n".join(groups)
    atomic_write(path, f'{{"columns":{text(packed["columns"])},"groups":[\n{every}]}}\n'.encode())
