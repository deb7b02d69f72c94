"""Panels drawn with plotly, as one page that needs nothing from elsewhere."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from pisco.errors import writing
from pisco.report.panels import HEAD, POWER, SUBSCRIPT, Panel, PanelRows


def interactive(rows: PanelRows, path: str | Path, title: str) -> Path:
    """Write the panels as an HTML page, with curves to zoom into and to switch off."""
    from plotly.subplots import make_subplots

    down, across = len(rows), max(map(len, rows))
    titles = [_html(row[i].title) if i < len(row) else "" for row in rows for i in range(across)]
    figure = make_subplots(rows=down, cols=across, subplot_titles=titles)
    figure.update_annotations(font_size=11)  # the panels' titles; plotly's own size makes neighbours overlap
    named: set[str] = set()
    for r, row in enumerate(rows, 1):
        for c, panel in enumerate(row, 1):
            for trace in _traces(panel):
                name = trace.pop("name", "")
                group = {"name": _html(name), "legendgroup": name, "showlegend": bool(name) and name not in named}
                figure.add_trace(trace if trace["type"] == "heatmap" else trace | group, row=r, col=c)
                named.add(name)
            x, y = _axes(panel)
            figure.update_xaxes(title_text=_html(panel.x_title), title_font_size=11, row=r, col=c, **x)
            figure.update_yaxes(title_text=_html(panel.y_title), title_font_size=11, row=r, col=c, **y)
    named_by = next((panel.legend_title for row in rows for panel in row if panel.legend_title), "")
    look = {
        "barmode": "stack",
        "template": "plotly_white",
        "legend": {"orientation": "h", "yref": "container", "y": 0.02, "title": {"text": named_by}},
    }
    figure.update_layout(title=title, height=330 * down + 150, margin_t=120, margin_b=110, **look)
    path = Path(path)
    with writing(path):
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(figure.to_html(include_plotlyjs=True), encoding="utf-8")
    return path


def _axes(panel: Panel) -> tuple[dict[str, Any], dict[str, Any]]:
    x: dict[str, Any] = {"type": "log"} if panel.log_x else {}
    y: dict[str, Any] = {"type": "log"} if panel.log_y else {}
    x["exponentformat"] = y["exponentformat"] = "power"  # a millionth of a loss is no "1µ"
    if panel.percent:
        y["tickformat"] = ".0%"
    if panel.bars is not None:
        (y if panel.bars.horizontal else x)["type"] = "category"
    if panel.heat is not None or panel.tiles is not None or (panel.bars is not None and panel.bars.horizontal):
        y["autorange"] = "reversed"  # the first agent on top
    if panel.image is not None:
        y["autorange"] = "reversed"
    if panel.agents is not None or panel.image is not None:
        x["visible"] = y["visible"] = False
        y["scaleanchor"] = "x"
    return x, y


def _traces(panel: Panel) -> Iterator[dict[str, Any]]:
    """What plotly draws, each with the name that it has in the legend."""
    for curve in panel.curves:
        x, middle, low, high = curve.median_and_band(panel)
        alone = curve.points or len(x) == 1
        if len(curve.y) > 1 and not alone:
            around = {"x": np.append(x, x[::-1]), "y": np.append(high, low[::-1]), "fill": "toself"}
            quiet = {"line": {"width": 0}, "fillcolor": curve.colour, "opacity": 0.15, "hoverinfo": "skip"}
            yield {"type": "scatter", "mode": "lines"} | around | quiet
        look = {"mode": "markers" if alone else "lines", "line": {"color": curve.colour}}
        yield {"type": "scatter", "x": x, "y": middle, "name": curve.label} | look
    if panel.bars is not None:
        bars, labels = panel.bars, [_html(label) for label in panel.bars.labels]
        ways = ("y", "x", "h") if bars.horizontal else ("x", "y", "v")
        for (name, values), colour in zip(bars.parts.items(), bars.colours, strict=False):
            bar = {ways[0]: labels, ways[1]: values, "orientation": ways[2], "marker": {"color": colour}}
            if bars.capped:
                bar["marker"]["pattern"] = {"shape": ["/" if capped else "" for capped in bars.capped]}
            if bars.interval is not None and name == list(bars.parts)[-1]:
                below, above = bars.errors()
                bar["error_y"] = {"array": above, "arrayminus": below, "color": "#555555", "thickness": 1}
            yield {"type": "bar", "name": name} | bar
        words = [f"<b>{bold}</b><br>{_html(lines)}" for bold, lines in bars.notes]
        if words:
            tops = {"x": labels, "y": np.sum(list(bars.parts.values()), axis=0), "text": words}
            yield {"type": "scatter", "mode": "text", "textposition": "top center"} | tops
    for level in panel.levels:
        ends = [x for curve in panel.curves for x in curve.median_and_band(panel)[0]]
        across = labels if panel.bars is not None else [min(ends, default=0), max(ends, default=1)]
        line = {"color": level.colour or "#555555", "dash": "dot"}
        flat = {"x": across, "y": [level.value] * len(across), "mode": "lines", "line": line}
        yield {"type": "scatter", "name": level.label} | flat
    if panel.heat is not None:
        heat = panel.heat
        yield {"type": "heatmap", "x": heat.labels, "z": heat.values, "colorscale": "Blues", "zmin": 0}
    if panel.tiles is not None:
        tiles, words = panel.tiles, [[_html(word) for word in row] for row in panel.tiles.words]
        yield {"type": "heatmap", "x": tiles.across, "y": tiles.down, "z": tiles.which, "text": words} | {
            "texttemplate": "%{text}",
            "showscale": False,
            "colorscale": "Blues",
            "hoverinfo": "text",
        }
    if panel.image is not None:
        yield {"type": "heatmap", "z": panel.image, "colorscale": "gray", "zmin": 0, "zmax": 1, "showscale": False}
    gap = np.full((1, 2), np.nan)
    for links in panel.links:
        widths = np.round(links.widths, 2)
        for width in np.unique(widths):  # a line of plotly has one width
            chosen = [line for line, each in zip(links.lines, widths, strict=True) if each == width]
            x, y = np.concatenate([points for line in chosen for points in (line, gap)]).T
            line = {"color": links.colour, "width": width, "dash": "dash" if links.dashed else "solid"}
            name = links.label if width == widths.max() else ""
            look = {"mode": "lines", "line": line, "hoverinfo": "skip", "name": name}
            yield {"type": "scatter", "x": x, "y": y} | look
        if links.heads:
            x, y = np.concatenate([points for head in links.heads for points in (head, gap)]).T
            look = {"mode": "lines", "fill": "toself", "fillcolor": HEAD, "line": {"width": 0}}
            yield {"type": "scatter", "x": x, "y": y, "hoverinfo": "skip"} | look
    if panel.agents is not None:
        agents, (x, y) = panel.agents, panel.agents.places.T
        look = {"marker": {"color": agents.colours, "size": 24 if agents.numbered else 8}}
        look |= {"mode": "markers+text" if agents.numbered else "markers", "textfont": {"color": "white"}}
        numbers = {"text": [str(agent) for agent in range(len(x))], "hoverinfo": "text"}
        yield {"type": "scatter", "x": x, "y": y} | look | numbers


def _html(words: str) -> str:
    """Powers, subscripts and lines as a page writes them.

    >>> _html("p = 10^-1.25"), _html("λ_w")
    ('p = 10<sup>-1.25</sup>', 'λ<sub>w</sub>')
    """
    powers = POWER.sub(r"10<sup>\1</sup>", words)
    return SUBSCRIPT.sub(r"\1<sub>\2</sub>", powers).replace("\n", "<br>")
