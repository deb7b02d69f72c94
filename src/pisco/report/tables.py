"""The tables of a page as HTML, readable without a script; prices carry what a script needs to change them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from html import escape
from typing import TYPE_CHECKING

import numpy as np

from pisco.costs import Prices
from pisco.report.numbers import number, size, spread, writing
from pisco.report.plots import labels_of
from pisco.report.summary import differing_settings, settings_of
from pisco.results import measured
from pisco.targets import Reached, Targets, reached

if TYPE_CHECKING:
    from pisco.results import Result


def targets_table(results: Sequence[Result], targets: Targets, prices: Prices) -> str:
    """Rounds, bytes, price and, where some result has a clock, seconds to every target."""
    timed = any("seconds" in result.history for result in results)
    heads = ("Result", "Target", "Seeds", "Rounds", "Server rounds", "Sent", "Price", *["Seconds"] * timed)
    rows = []
    for name, found in zip(labels_of(results), reached(results, targets), strict=True):
        for each in found:
            cells = [_head(name), _cell(str(each.target))]
            cells.append(_cell(f"{len(each.rounds)} of {len(each.result.seeds)}", "number"))
            if not len(each.rounds):
                best = escape(writing(each.target.metric)(each.best))
                cells.append(f'<td colspan="{len(heads) - 3}">not reached; the best was {best}</td>')
            else:
                paid = each.paid(prices)
                cells += [_cell(paid[what].words(number), "number") for what in ("rounds", "server_rounds")]
                cells.append(_cell(paid["bytes"].words(size), "number"))
                cells.append(_price_at(each, prices))
                cells += [_cell(paid["seconds"].words(number) if "seconds" in paid else "–", "number")] * timed
            rows.append(cells)
    if not rows:
        return "<p>No result measures any of the targets.</p>"
    caption = "Medians over seeds and their 95% intervals; a seed that did not get there needs more than it had"
    return _table(caption, heads, rows, words=2)


def endings_table(results: Sequence[Result], prices: Prices) -> str:
    """Where every result ended, and what it had sent by then."""
    shown = {name: metric for name, metric in measured(results).items() if metric.usual}
    titles = (metric.title[:1].upper() + metric.title[1:] for metric in shown.values())
    timed = any("seconds" in result.history for result in results)
    heads = ("Result", "Rounds", *titles, "Server rounds", "Sent", "Price", *["Seconds by the clock"] * timed, "Time")
    rows = []
    for name, result in zip(labels_of(results), results, strict=True):
        cells = [_head(name), _cell(number(result.rounds), "number")]
        for column, metric in shown.items():
            known = column in result.history
            ending = spread(result.final(column).astype(float), writing(metric)) if known else "–"
            cells.append(_cell(ending, "number"))
        sent = _final(result, "bytes_server") + _final(result, "bytes_gossip")
        cells.append(_cell(spread(_final(result, "server_rounds")), "number"))
        cells.append(_cell(spread(sent, size), "number"))
        cells.append(_price(partial(_final, result), result, prices))
        showed = spread(_final(result, "seconds")) if "seconds" in result.history else "–"
        cells += [_cell(showed, "number")] * timed
        cells.append(_cell(f"{result.seconds:.1f} s", "number"))
        rows.append(cells)
    return _table("The last measured round: medians over seeds and their 95% intervals", heads, rows)


def settings_table(results: Sequence[Result]) -> str:
    """Every setting of every result; those that differ come first."""
    flats = [settings_of(result) for result in results]
    for flat, result in zip(flats, results, strict=True):
        flat |= {f"versions.{name}": version for name, version in result.versions.items()}
    differing = set(differing_settings(results))
    names = dict.fromkeys(name for flat in flats for name in flat)
    rows = []
    for name in sorted(names, key=lambda name: name not in differing):
        mark = ' <span class="differs">differs</span>' if name in differing else ""
        cells = [f'<th scope="row">{escape(name)}{mark}</th>']
        rows.append([*cells, *(_cell(str(flat.get(name, "–"))) for flat in flats)])
    heads = ("Setting", *labels_of(results))
    return _table("What was run, and with what", heads, rows, words=len(heads))


def _final(result: Result, name: str) -> np.ndarray:
    return result.final(name).astype(float) if name in result.history else np.zeros(len(result.seeds))


def _head(words: str) -> str:
    return f'<th scope="row">{escape(words)}</th>'


def _cell(words: str, kind: str = "") -> str:
    return f'<td class="{kind}">{escape(words)}</td>' if kind else f"<td>{escape(words)}</td>"


COUNTS = {"server": "messages_server", "gossip": "messages_gossip", "gradient": "gradients"}
"""What prices are paid for, and the columns that count it."""


def _price(column: Callable[[str], np.ndarray], result: Result, prices: Prices) -> str:
    return _priced(column, number(float(np.median(prices.paid(column, result.history)))))


def _price_at(each: Reached, prices: Prices) -> str:
    """The median price at a target; a script that changes prices must know which seeds missed it."""
    samples = {name: each.sample(lambda column, name=name: column(name)) for name in COUNTS.values()}
    missed = next(iter(samples.values())).missed
    now = each.sample(lambda column: prices.paid(column, each.result.history)).median.alone().words(number)
    flags = ",".join(str(int(each)) for each in missed)
    return _priced(lambda name: samples[name].values, now, f' data-missed="{flags}"')


def _priced(column: Callable[[str], np.ndarray], now: str, more: str = "") -> str:
    listed = {kind: ",".join(f"{value:.0f}" for value in column(name)) for kind, name in COUNTS.items()}
    data = " ".join(f'data-{kind}="{values}"' for kind, values in listed.items())
    return f'<td class="number" {data}{more}>{escape(now)}</td>'


def _table(caption: str, heads: Sequence[str], rows: Sequence[Sequence[str]], words: int = 1) -> str:
    """The first `words` columns hold words, the others numbers."""
    kinds = [""] * words + [' class="number"'] * (len(heads) - words)
    head = "".join(f'<th scope="col"{k}>{escape(name)}</th>' for name, k in zip(heads, kinds, strict=True))
    body = "".join(f"<tr>{''.join(cells)}</tr>" for cells in rows)
    return (
        f'<div class="scroll" tabindex="0" role="region" aria-label="{escape(caption)}"><table>'
        f"<caption>{escape(caption)}</caption><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table></div>"
    )
