"""Figures as data: rows of panels with curves or stacked bars, drawn to a picture or to an interactive page."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from io import BytesIO
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from pisco.errors import InputError
from pisco.report.style import colour, curve, tidy

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure


class Curve(NamedTuple):
    """One curve; y is (seeds, rows), and `index` its colour wherever it appears."""

    label: str
    x: np.ndarray
    y: np.ndarray
    index: int
    points: bool = False


class Bars(NamedTuple):
    """Stacked bars: for every name a mean per label; `lines` are dotted, in the colour of the part they name."""

    labels: Sequence[str]
    parts: Mapping[str, np.ndarray]
    lines: Mapping[str, float]


class Panel(NamedTuple):
    """One set of axes."""

    title: str
    x_title: str
    y_title: str
    curves: Sequence[Curve] = ()
    bars: Bars | None = None
    log_x: bool = False
    log_y: bool = False
    percent: bool = False


Rows = Sequence[Sequence[Panel]]
SMALL = 190_000
"""Bytes of a picture, for which colours are given up."""


def draw(rows: Rows, path: str | Path | None = None) -> Figure:
    """The picture; a .png is written with a palette, so that it stays small.

    >>> line = Curve("λ", np.arange(3), np.ones((1, 3)), 0)
    >>> [ax.get_title() for ax in draw([[Panel("one", "x", "y", [line])]]).axes]
    ['one']
    """
    from matplotlib.figure import Figure

    down, across = len(rows), max(map(len, rows))
    figure = Figure(figsize=(3.5 * across + 0.3, 2.7 * down + 0.5), dpi=110, layout="constrained")
    axes = figure.subplots(down, across, squeeze=False)
    handles: dict[str, Any] = {}
    for row, places in zip(rows, axes, strict=True):
        for panel, ax in zip(row, places, strict=False):
            _draw_bars(ax, panel.bars) if panel.bars else _draw_curves(ax, panel)
            tidy(ax)
            ax.set_title(panel.title, fontsize=9)
            ax.set_xlabel(panel.x_title, fontsize=8)
            ax.set_ylabel(panel.y_title, fontsize=8)
            ax.tick_params(labelsize=8, which="both")
            if panel.percent:
                ax.yaxis.set_major_formatter("{x:.0%}")
            for handle, label in zip(*ax.get_legend_handles_labels(), strict=True):
                handles.setdefault(label, handle)
        for ax in places[len(row) :]:
            ax.set_visible(False)
    wide = max(1, min(len(handles), int(26 * across / (max(map(len, handles), default=1) + 4)) or 1))
    figure.legend(
        handles.values(), handles.keys(), loc="outside lower center", ncols=wide, frameon=False, fontsize=9
    )
    if path is not None:
        _save(figure, Path(path))
    return figure


def _draw_curves(ax: Axes, panel: Panel) -> None:
    for each in panel.curves:
        x = np.broadcast_to(each.x, each.y.shape)
        if each.points:
            ax.plot(
                x[0], np.mean(each.y, axis=0), "o", color=colour(each.index), label=each.label, markersize=4.5
            )
        else:
            curve(ax, x, each.y, each.index, each.label, log=panel.log_y)
    if panel.log_x:
        ax.set_xscale("log")
        if all(each.points for each in panel.curves):
            places = sorted({float(x) for each in panel.curves for x in each.x})
            ax.set_xticks(places, [f"{place:g}" for place in places])
            ax.minorticks_off()
    if panel.log_y:
        ax.set_yscale("log")


def _draw_bars(ax: Axes, bars: Bars) -> None:
    places, bottom = np.arange(len(bars.labels)), np.zeros(len(bars.labels))
    for index, (name, values) in enumerate(bars.parts.items()):
        ax.bar(places, values, bottom=bottom, color=colour(index), width=0.7, label=name)
        bottom = bottom + values
    for index, (name, value) in enumerate(bars.lines.items()):
        ax.axhline(value, color=colour(index), linestyle=":", linewidth=1.6, label=name)
    ax.set_xticks(places, [_short(label) for label in bars.labels], rotation=45)
    top = max(bottom.max(initial=0), *bars.lines.values())
    if 0 < top < math.inf:
        ax.set_ylim(top=1.08 * top)


def _short(label: str) -> str:
    """10^-1.25 as a power.

    >>> _short("10^-1.25"), _short("0.1")
    ('$10^{-1.25}$', '0.1')
    """
    base, power, exponent = label.partition("^")
    return f"${base}^{{{exponent}}}$" if power else label


def _save(figure: Figure, path: Path) -> None:
    from PIL import Image

    held = BytesIO()
    figure.savefig(held, format="png")
    picture = Image.open(held).convert("RGB")
    for colours in (256, 128, 64):
        small = BytesIO()
        picture.quantize(colours).save(small, format="png", optimize=True)
        if small.tell() <= SMALL:
            break
    try:
        path.write_bytes(small.getvalue())
    except OSError as error:
        raise InputError(
            f"cannot write the picture {path} ({error.strerror}); use a folder you may write to"
        ) from error


def interactive(rows: Rows, path: str | Path, title: str) -> Path:
    """The same panels as one page that needs nothing from elsewhere; mean values only."""
    import plotly.graph_objects as go
    from plotly.subplots import make_subplots

    down, across = len(rows), max(map(len, rows))
    titles = [
        row[i].title.replace("\n", "<br>") if i < len(row) else "" for row in rows for i in range(across)
    ]
    figure = make_subplots(rows=down, cols=across, subplot_titles=titles)
    figure.update_annotations(font_size=11)  # the panels' titles; plotly's own size makes neighbours overlap
    seen: set[str] = set()

    def add(trace: Any, label: str, place: tuple[int, int]) -> None:
        trace.update(name=label, legendgroup=label, showlegend=label not in seen)
        seen.add(label)
        figure.add_trace(trace, row=place[0], col=place[1])

    for place, panel in (
        ((r + 1, c + 1), panel) for r, row in enumerate(rows) for c, panel in enumerate(row)
    ):
        for each in panel.curves:
            mean, tone = np.mean(each.y, axis=0), colour(each.index)
            mean = np.where(np.isfinite(mean) & (np.abs(mean) < 1e30), mean, np.nan)
            mode = "markers" if each.points or len(mean) == 1 else "lines"
            add(go.Scatter(x=each.x, y=mean, mode=mode, marker={"color": tone}), each.label, place)
        if panel.bars:
            labels = list(panel.bars.labels)
            for index, (name, values) in enumerate(panel.bars.parts.items()):
                add(go.Bar(x=labels, y=values, marker={"color": colour(index)}), name, place)
            for index, (name, value) in enumerate(panel.bars.lines.items()):
                line = {"color": colour(index), "dash": "dot"}
                level = [value] * len(labels)
                add(go.Scatter(x=labels, y=level, mode="lines", line=line), name, place)
            figure.update_xaxes(type="category", row=place[0], col=place[1])
        scale: dict[str, Any] = {"type": "log"} if panel.log_x else {}
        figure.update_xaxes(title=panel.x_title, row=place[0], col=place[1], **scale)
        scale = {"type": "log"} if panel.log_y else {}
        scale |= {"tickformat": ".0%"} if panel.percent else {}
        figure.update_yaxes(title=panel.y_title, row=place[0], col=place[1], **scale)
    figure.update_layout(title=title, barmode="stack", template="plotly_white", height=330 * down + 150)
    figure.update_layout(margin_t=120, legend={"orientation": "h", "y": -0.12})
    figure.update_xaxes(title_font_size=11)
    figure.update_yaxes(title_font_size=11)
    path = Path(path)
    try:
        path.write_text(figure.to_html(include_plotlyjs=True), encoding="utf-8")
    except OSError as error:
        raise InputError(f"cannot write the page {path} ({error}); use a folder you may write to") from error
    return path
