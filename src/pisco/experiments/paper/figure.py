"""What a figure of the paper is here: something to compute, and how to show what was computed."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Sequence
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import jax
import numpy as np

from pisco._version import __version__
from pisco.experiments import tune
from pisco.experiments.paper.study import ACCURACY, Cell
from pisco.experiments.paper.verdict import Verdict
from pisco.experiments.paper.work import Work
from pisco.files import atomic_write, write_csv
from pisco.report.panels import Curve, Panel
from pisco.report.picture import draw


class Shown(NamedTuple):
    """Panels to draw (none for a table), records for the CSV, verdicts, and the resolved settings."""

    panels: list[list[Panel]]
    records: list[dict[str, Any]]
    verdicts: list[Verdict]
    settings: dict[str, Any]


class Figure(NamedTuple):
    """One figure or table: `compute(quick, work)` needs jax and numpy alone, `present` takes what it gave."""

    name: str
    words: str
    compute: Callable[[bool, Work], Any]
    present: Callable[[Any], Shown]
    needs: str = ""
    """A dataset that may be missing."""


def curves(cells: Sequence[Cell], column: str, labels: Sequence[str], *, per_x: float = 1) -> list[Curve]:
    """A column of some cells against rounds (over `per_x`), with the step size in no label: colours mean p."""
    return [
        Curve(
            f"p = {cell.label}",
            cell.result.column("round")[0] / per_x,
            cell.result.column(column).astype(float),
            labels.index(cell.label),
        )
        for cell in cells
        if cell.label in labels
    ]


def loss_and_accuracy(
    cells: Sequence[Cell], labels: Sequence[str], words: str, x_title: str, *, per_x: float = 1
) -> list[Panel]:
    """The training loss and the test accuracy of some cells."""
    loss, accuracy = (curves(cells, column, labels, per_x=per_x) for column in ("loss", ACCURACY))
    return [
        Panel(f"{words}: training loss", x_title, "f(x̄)", loss, log_y=True),
        Panel(f"{words}: test accuracy", x_title, "at x̄", accuracy, percent=True, rising=True),
    ]


def some_rows(count: int, most: int = 60) -> np.ndarray:
    """At most `most` of the rows, dense at the start.

    >>> some_rows(5).tolist(), len(some_rows(1001)) <= 60, some_rows(1001)[-1]
    ([0, 1, 2, 3, 4], True, np.int64(1000))
    """
    if count <= most:
        return np.arange(count)
    return np.unique(np.round(np.geomspace(1, count, most)).astype(int) - 1)


def records(
    cells: Sequence[Cell], columns: Sequence[str], labels: Sequence[str], *, most: int = 60, **same: Any
) -> list[dict[str, Any]]:
    """Median, least and greatest over seeds of some columns in at most `most` rounds, for the CSV."""
    out = []
    for cell in cells:
        if cell.label not in labels:
            continue
        rounds = cell.result.column("round")[0]
        for row in some_rows(len(rounds), most):
            record = same | {"p": cell.label, "local_lr": f"{cell.local_lr:g}", "round": int(rounds[row])}
            for name in columns:
                known = name in cell.result.history
                values = cell.result.column(name)[:, row] if known else np.full(1, np.nan)
                for what, measure in (("median", np.median), ("min", np.min), ("max", np.max)):
                    record[f"{name} {what}"] = "" if np.isnan(values).any() else f"{measure(values):.4g}"
            out.append(record)
    return out


def markdown(records: Sequence[dict[str, Any]]) -> str:
    """Records as a table.

    >>> print(markdown([{"p": 0, "rounds": 3}]))
    | p | rounds |
    | --- | --- |
    | 0 | 3 |
    """
    rows = [list(records[0]), ["---"] * len(records[0]), *([str(v) for v in r.values()] for r in records)]
    return "\n".join(f"| {' | '.join(row)} |" for row in rows)


def kept(figure: Figure, folder: Path, *, quick: bool) -> list[Verdict] | None:
    """The verdicts of a figure that was written before by this code and at this size, if it was."""
    try:
        made = json.loads((folder / f"{figure.name}-settings.json").read_text())
        verdicts = json.loads((folder / f"{figure.name}-verdicts.json").read_text())
        same = made["code"] == code() and made["quick"] == quick
        return [Verdict(**verdict) for verdict in verdicts] if same else None
    except (OSError, ValueError, KeyError, TypeError):
        return None


@cache
def code() -> str:
    """A mark of what figures are computed by: grids, seeds, rounds and claims are in it."""
    files = [*sorted(Path(__file__).parent.glob("*.py")), Path(tune.__file__)]
    return hashlib.sha256(b"".join(file.read_bytes() for file in files)).hexdigest()[:16]


def write(figure: Figure, found: Any, folder: Path, *, quick: bool = False) -> Shown:
    """Write the picture, the page, the numbers, settings and verdicts of what was computed."""
    shown, stem = figure.present(found), folder / figure.name
    shown = shown._replace(verdicts=[verdict.at_this_size(quick) for verdict in shown.verdicts])
    if shown.panels:
        draw(shown.panels, f"{stem}.html", title=f"{figure.name}: {figure.words}")
        draw(shown.panels, f"{stem}.png", dpi=95)
        _shrink(Path(f"{stem}.png"))
    else:
        atomic_write(Path(f"{stem}.md"), f"{markdown(shown.records)}\n".encode())
    write_csv(Path(f"{stem}.csv"), shown.records)
    made = {"figure": figure.name, "quick": quick, "pisco": __version__, "code": code(), "jax": jax.__version__}
    settings = made | {"device": jax.devices()[0].device_kind, "settings": shown.settings}
    verdicts = [verdict._asdict() for verdict in shown.verdicts]
    for name, content in (("verdicts", verdicts), ("settings", settings)):  # with settings, a figure is whole
        text = json.dumps(content, indent=2, ensure_ascii=False, default=str)
        atomic_write(Path(f"{stem}-{name}.json"), f"{text}\n".encode())
    return shown


def _shrink(path: Path) -> None:
    """Give a picture a palette: results are kept with the documentation, where files are small."""
    from PIL import Image

    with Image.open(path) as picture:
        small = picture.convert("RGB").quantize(128)
    small.save(path, optimize=True)
