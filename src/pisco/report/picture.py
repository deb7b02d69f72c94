"""Panels drawn with matplotlib."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from pisco.errors import InputError, path_of
from pisco.report.interactive import interactive
from pisco.report.panels import (
    COLOURS,
    HEAD,
    POWER,
    SUBSCRIPT,
    Agents,
    Bars,
    Curve,
    Heat,
    Level,
    LinkLines,
    Panel,
    PanelRows,
    Tiles,
    every_nth,
)

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

__all__ = ["draw"]

DASHES = ("-", "--", ":", "-.")
QUIET = "#555555"
BESIDE: dict[str, dict[str, Any]] = {
    "right": {"loc": "upper left", "bbox_to_anchor": (1.0, 1.0)},
    "below": {"loc": "upper center", "bbox_to_anchor": (0.5, 0.0), "ncols": 2},
}


def draw(
    rows: PanelRows,
    path: str | Path | None = None,
    *,
    size: tuple[float, float] = (4.2, 3.2),
    dpi: int = 150,
    title: str = "",
    heights: Sequence[float] | None = None,
) -> Figure:
    """The picture of some panels.

    Args:
      rows: panels, row by row.
      path: file to write, as its ending says: .png, .svg, .pdf, or .html for an interactive page; None writes none.
      size: of one panel, in inches.
      dpi: pixels per inch.
      title: of an interactive page.
      heights: of every row, in inches, in place of the size's.

    >>> line = Curve("λ", np.arange(3), np.ones((1, 3)))
    >>> [ax.get_title() for ax in draw([[Panel("one", curves=[line])]]).axes]
    ['one']
    """
    from matplotlib.figure import Figure

    down, across = len(rows), max(map(len, rows))
    heights = [size[1]] * down if heights is None else heights
    figure = Figure(figsize=(size[0] * across, sum(heights) + 0.3), dpi=dpi, layout="constrained")
    axes = figure.subplots(down, across, squeeze=False, height_ratios=heights)
    named: dict[str, Any] = {}
    for row, places in zip(rows, axes, strict=True):
        for panel, ax in zip(row, places, strict=False):
            draw_panel(ax, panel)
            for handle, label in zip(*ax.get_legend_handles_labels(), strict=True):
                if not panel.legend:
                    named.setdefault(label, handle)
        for ax in places[len(row) :]:
            ax.set_visible(False)
    if named:
        longest = max(len(re.sub(r"[${^}_]", "", label)) for label in named)
        wide = int(8.7 * figure.get_figwidth() / (longest + 6))
        figure.legend(
            named.values(),
            named.keys(),
            loc="outside lower center",
            ncols=max(1, min(len(named), wide)),
            frameon=False,
            fontsize=9,
        )
    if path is not None:
        interactive(rows, path, title) if path_of(path).suffix == ".html" else save(figure, path)
    return figure


def draw_panel(ax: Axes, panel: Panel) -> None:
    """Draw one panel into axes of your own."""
    ax.spines[["top", "right"]].set_visible(False)
    ax.grid(True, color="#dddddd", linewidth=0.6)
    ax.set_axisbelow(True)
    ax.tick_params(labelsize=9, which="both")
    if panel.bars is not None:
        _bars(ax, panel.bars)
    if panel.heat is not None:
        _heat(ax, panel.heat)
    if panel.tiles is not None:
        _tiles(ax, panel.tiles)
    for links in panel.links:
        _links(ax, links)
    if panel.agents is not None:
        _agents(ax, panel.agents)
    if panel.image is not None:
        ax.imshow(panel.image, cmap="gray", vmin=0, vmax=1)
        ax.set_axis_off()
    if all(each is None for each in (panel.bars, panel.heat, panel.tiles, panel.agents, panel.image)):
        _curves(ax, panel)
    for level in panel.levels:
        _level(ax, level)
    if panel.percent:
        ax.yaxis.set_major_formatter("{x:.0%}")
    ax.set_title(_formulas(panel.title), fontsize=10)
    ax.set_xlabel(_formulas(panel.x_title), fontsize=9)
    ax.set_ylabel(_formulas(panel.y_title), fontsize=9)
    if panel.legend and ax.get_legend_handles_labels()[0]:
        place = BESIDE.get(panel.legend, {"loc": panel.legend})
        ax.legend(frameon=False, fontsize=9, title=panel.legend_title or None, **place)


def _curves(ax: Axes, panel: Panel) -> None:
    drawn = [_curve(ax, curve, panel) for curve in panel.curves]
    if not any(drawn):
        ax.text(0.5, 0.5, "nothing finite to draw", transform=ax.transAxes, ha="center", color=QUIET)
        return
    if panel.log_x:
        ax.set_xscale("log")
        left, right = ax.get_xlim()
        ax.tick_params(axis="x", which="minor", labelbottom=right < 10 * left)  # they would overlap
        if all(curve.points for curve in panel.curves):
            places = sorted({float(x) for curve in panel.curves for x in curve.x})
            ax.set_xticks(places, [f"{place:g}" for place in places])
            ax.minorticks_off()
    if panel.log_y:
        ax.set_yscale("log")
        low, high = ax.get_ylim()
        # A server round leaves a consensus error of rounding only, which would flatten everything else.
        ax.set_ylim(bottom=max(low, high * 1e-10))


def _curve(ax: Axes, curve: Curve, panel: Panel) -> bool:
    """The median over seeds with the band of its interval; whether anything could be drawn."""
    x, middle, low, high = curve.median_and_band(panel)
    if not len(x):
        return False
    alone = curve.points or len(x) == 1
    line = "none" if curve.points else DASHES[curve.index // len(COLOURS) % len(DASHES)]
    style: dict[str, Any] = {"color": curve.colour, "linestyle": line, "linewidth": 1.6, "markersize": 4.5}
    ax.plot(x, middle, marker="o" if alone else None, label=_formulas(curve.label), **style)
    if len(curve.y) > 1 and not curve.points:
        ax.fill_between(x, low, high, color=curve.colour, alpha=0.18, linewidth=0)
    return True


def _bars(ax: Axes, bars: Bars) -> None:
    at, ends = np.arange(len(bars.labels)), np.zeros(len(bars.labels))
    # A hundred bars with gaps between them flicker; let them touch.
    thick = 0.75 if len(at) <= 40 else 1.0
    for (name, values), colour in zip(bars.parts.items(), bars.colours, strict=False):
        if bars.horizontal:
            ax.barh(at, values, left=ends, height=thick, color=colour, label=name)
        else:
            drawn = ax.bar(at, values, bottom=ends, width=thick, color=colour, label=name)
            for bar, capped in zip(drawn, bars.capped, strict=False):
                bar.set(hatch="///" if capped else "", edgecolor="white" if capped else "none")
        ends = ends + values
    step = every_nth(len(at))
    shown = [_formulas(label) for label in bars.labels][::step]
    if bars.horizontal:
        ax.set_yticks(at[::step], shown)
        ax.set_ylim(len(at) - 0.5, -0.5)
        ax.xaxis.set_major_formatter("{x:,.0f}")
        ax.grid(False)
        return
    ax.set_xticks(at[::step], shown, **_turned(ax, bars.labels[::step]))
    ax.grid(False, axis="x")
    top = float(ends.max(initial=0.0)) or 1.0
    if bars.interval is not None:
        ax.errorbar(at, ends, bars.errors(), fmt="none", ecolor=QUIET, elinewidth=1, capsize=2.5)
    for x in at[np.array(bars.capped, bool)] if len(bars.capped) else ():
        ax.plot(x, 1.03 * ends[x], marker="^", color=QUIET, markersize=5)
    for x, height, (bold, lines) in zip(at.tolist(), ends.tolist(), bars.notes, strict=False):
        ax.text(x, height + 0.015 * top, lines, ha="center", va="bottom", fontsize=8.5)
        ax.text(x, height + 0.12 * top, bold, ha="center", va="bottom", fontsize=12, weight="bold")
    ax.set_ylim(0, (1.2 if bars.notes else 1.08) * top)


def _turned(ax: Axes, labels: Sequence[str]) -> dict[str, Any]:
    """How labels below bars stand: aslant where they would run into one another."""
    place = ax.get_subplotspec()
    figure = ax.get_figure(root=True)
    assert figure is not None
    inches = figure.get_figwidth() / (1 if place is None else place.get_gridspec().ncols)
    signs = sum(len(label.replace("^", "")) + 1 for label in labels)
    return {"rotation": 40, "ha": "right", "rotation_mode": "anchor"} if signs > 11 * inches else {}


def _level(ax: Axes, level: Level) -> None:
    if level.colour:
        ax.axhline(level.value, color=level.colour, linestyle=":", linewidth=1.6, label=level.label)
        return
    ax.axhline(level.value, color=QUIET, linewidth=1, linestyle=(0, (4, 3)))
    where: dict[str, Any] = {"xycoords": ("axes fraction", "data"), "textcoords": "offset points"}
    ax.annotate(level.label, (0.0, level.value), xytext=(4, 3), fontsize=8.5, color=QUIET, **where)


def _heat(ax: Axes, heat: Heat) -> None:
    down, across = heat.values.shape
    image = ax.imshow(heat.values, aspect="auto", cmap="Blues", interpolation="nearest", vmin=0)
    across_step, down_step = every_nth(across, 20), every_nth(down)
    turned = 90 if max(map(len, heat.labels)) > 3 else 0
    ax.set_xticks(range(0, across, across_step), heat.labels[::across_step], rotation=turned)
    ax.set_yticks(range(0, down, down_step))
    ax.grid(False)
    ax.figure.colorbar(image, ax=ax, label=heat.unit)


def _tiles(ax: Axes, tiles: Tiles) -> None:
    from matplotlib.patches import Rectangle

    for row, kinds in enumerate(tiles.which.tolist()):
        for column, kind in enumerate(kinds):
            if kind >= 0:
                shade = 0.15 + 0.55 * float(tiles.strength[row, column])
                look: dict[str, Any] = {"facecolor": tiles.colours[kind], "edgecolor": "white", "alpha": shade}
                ax.add_patch(Rectangle((column - 0.5, row - 0.5), 1, 1, **look))
            ax.text(column, row, tiles.words[row][column], ha="center", va="center", fontsize=7.5, linespacing=1.1)
    for kind, colour in zip(tiles.kinds, tiles.colours, strict=True):
        ax.plot([], [], marker="s", linestyle="none", color=colour, alpha=0.6, label=kind)
    ax.set_xticks(range(len(tiles.across)), tiles.across)
    ax.set_yticks(range(len(tiles.down)), tiles.down)
    ax.set_xlim(-0.5, len(tiles.across) - 0.5)
    ax.set_ylim(len(tiles.down) - 0.5, -0.5)
    ax.grid(False)


def _links(ax: Axes, links: LinkLines) -> None:
    from matplotlib.collections import LineCollection, PolyCollection

    style: Any = "dashed" if links.dashed else "solid"
    look: dict[str, Any] = {"colors": links.colour, "linestyles": style, "zorder": 1}
    ax.add_collection(LineCollection(list(links.lines), linewidths=links.widths, **look))
    if links.heads:
        ax.add_collection(PolyCollection(list(links.heads), facecolors=HEAD, linewidths=0, zorder=1.5))
    if links.label:
        widest = float(np.max(links.widths))
        ax.plot([], [], color=links.colour, linewidth=widest, linestyle=style, label=links.label)


def _agents(ax: Axes, agents: Agents) -> None:
    count = len(agents.places)
    few = count <= 20
    area = (420 if few else 240) if agents.numbered else max(12.0, 6000 / count)
    edge = 1.5 if agents.numbered else 0.5
    look: dict[str, Any] = {"edgecolors": "white", "linewidths": edge, "zorder": 2, "clip_on": False}
    ax.scatter(*agents.places.T, s=area, c=agents.colours, **look)
    if agents.numbered:
        style: dict[str, Any] = {"ha": "center", "va": "center", "color": "white", "zorder": 3}
        for agent, (x, y) in enumerate(agents.places):
            ax.text(x, y, str(agent), fontsize=9 if few else 7, **style)
    ax.set_aspect("equal")
    ax.set_axis_off()
    ax.margins(0.08)


def _formulas(words: str) -> str:
    """Powers of ten and subscripts as mathematics.

    >>> _formulas("p = 10^-1.25"), _formulas("λ_w = 0.1"), _formulas("my_T_o")
    ('p = $10^{-1.25}$', 'λ$_{w}$ = 0.1', 'my_T_o')
    """
    return SUBSCRIPT.sub(r"\1$_{\2}$", POWER.sub(r"$10^{\1}$", words))


def save(figure: Figure, path: str | Path) -> None:
    """Write a figure in the format that the ending names; folders are made."""
    path = path_of(path)
    if not path.name or path.is_dir():  # matplotlib would write the hidden file .png
        raise InputError(
            f"cannot write the picture {path}, which is a folder; give the path of a file, as in curves.png"
        )
    if not path.suffix:  # matplotlib would add one, and write another file than was asked for
        raise InputError(f"cannot write the picture {path}, whose format is not said; name it {path}.png, .svg or .pdf")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        figure.savefig(path)
    except (OSError, ValueError) as error:
        why = getattr(error, "strerror", None) or error
        raise InputError(
            f"cannot write the picture {path} ({why}); use a folder you may write to and .png, .svg, .pdf or .html"
        ) from error
