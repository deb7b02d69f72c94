"""The map: who is cheapest where, as a picture and in words, beside what theory predicts."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from itertools import groupby
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from pisco.experiments.bench.scores import KINDS, RATIOS, SERVER, Case, Ranked, Score, Square, chart, ranking
from pisco.networks.spectral import expected_mixing_rate
from pisco.report.panels import Panel, Tiles
from pisco.report.picture import draw
from pisco.theory.orders import large_batch_rounds

Scores = Mapping[Case, Sequence[Score]]


def panels(scores: Scores, ratios: Sequence[float] = RATIOS, currency: str = "bytes") -> list[list[Panel]]:
    """A panel for every task: price of the server across, networks by their mixing rate down."""
    squares, rows = chart(scores, ratios, currency), []
    for task in dict.fromkeys(at[0] for at in squares):
        mine = {at: {square.ratio: square for square in some} for at, some in squares.items() if at[0] == task}
        which = np.full((len(mine), len(ratios)), -1)
        strength, words = np.zeros(which.shape), [["–"] * len(ratios) for _ in mine]
        for row, some in enumerate(mine.values()):
            for column, ratio in enumerate(ratios):
                if ratio in some:
                    square = some[ratio]
                    which[row, column] = KINDS.index(square.first.score.kind)
                    strength[row, column] = min(1.0, math.log2(max(square.margin.value, 1.0)))
                    words[row][column] = _tile(square)
        down = [f"{at[1]}\nλ = {scores[at][0].cell['mixing_rate']:.2g}" for at in mine]
        tiles = Tiles([f"{ratio:g}" for ratio in ratios], down, KINDS, which, strength, words)
        title = f"{task}: the cheapest method, and what the second costs over it"
        rows.append([Panel(title, f"price of {_one(currency)} of the server, over a neighbour's", tiles=tiles)])
    return rows


def write_map(scores: Scores, path: Path, ratios: Sequence[float] = RATIOS, currency: str = "bytes") -> Path:
    """Draw the map."""
    rows = panels(scores, ratios, currency)
    heights = [0.55 * len(panel.tiles.down) + 1.2 for (panel,) in rows if panel.tiles is not None]
    draw(rows, path, size=(12.0, 1.0), dpi=120, heights=heights)
    return path


def _one(currency: str) -> str:
    return f"a {currency.removesuffix('s')}"


def _tile(square: Square) -> str:
    score, margin = square.first.score, square.margin.value
    p = "" if score.server_prob is None else f"\np = {score.server_prob:g}"
    return f"{score.method}{p}\n" + ("alone" if math.isinf(margin) else f"× {margin:.2f}")


# ------------------------------------------------------------------------------------------------ words


def sentences(scores: Scores, ratios: Sequence[float] = RATIOS, currency: str = "bytes") -> list[str]:
    """When which kind of method is cheapest, counted over the squares of the map."""
    squares = [square for some in chart(scores, ratios, currency).values() for square in some]
    if not squares:
        return ["no method reached its target on any network"]
    clear = sum(square.margin.low > 1 for square in squares)
    even = sum(
        square.second is not None and math.isclose(square.first.price, square.second.price) for square in squares
    )
    told = [
        f"{len(squares)} squares (task × network × price); in {clear} of them the first is ahead of the second "
        f"beyond the 95% interval, in {even} both cost the same, and the first by name is shown",
        "what the cheapest method uses: " + _shares(squares, lambda score: score.kind),
        "compressed messages: " + _shares(squares, lambda score: "yes" if score.compressed else "no"),
        "local steps: " + _shares(squares, lambda score: "yes" if score.local_steps else "no"),
        "who is cheapest most often: " + _shares(squares, lambda score: score.method, most=6),
    ]
    for kind in KINDS:
        mine = [square for square in squares if square.first.score.kind == kind]
        if mine:
            low, high = (end(square.ratio for square in mine) for end in (min, max))
            rates = [scores[square.setting][0].cell["mixing_rate"] for square in mine]
            where = f"prices {low:g} to {high:g}, mixing rates {min(rates):.2g} to {max(rates):.2g}"
            told.append(f"{kind} is cheapest at {where}: " + _shares(mine, lambda score: score.method, most=4))
    return [*told, *_until(scores, squares)]


def _until(scores: Scores, squares: Sequence[Square]) -> list[str]:
    """Up to which price the server alone is cheapest, where the network is connected and where it is not."""
    ends: dict[Case, float] = {square.setting: 0.0 for square in squares}
    for square in squares:
        if square.first.score.kind == SERVER:
            ends[square.setting] = max(ends[square.setting], square.ratio)
    told = []
    for words, whole in (("are connected", True), ("are disconnected", False)):
        mine = Counter(end for at, end in ends.items() if (scores[at][0].cell["mixing_rate"] > 0) == whole)
        if mine:
            parts = [f"{end:g} on {count}" if end else f"none on {count}" for end, count in sorted(mine.items())]
            told.append(
                f"the server alone is cheapest up to a price of {', '.join(parts)} of the {mine.total()} tasks and "
                f"networks that {words}"
            )
    return told


def _shares(squares: Sequence[Square], what: Any, most: int = 10) -> str:
    counts = Counter(what(square.first.score) for square in squares)
    return ", ".join(f"{name} {count / len(squares):.0%}" for name, count in counts.most_common(most))


def stretches(squares: Sequence[Square]) -> str:
    """The winners of one row in words: "led up to 10, pisco at p = 0.1 from 30 on"."""
    found = [(label, list(some)) for label, some in groupby(squares, key=lambda square: square.first.score.label)]
    if len(found) == 1:
        return f"{found[0][0]} at every price"
    parts = [f"{label} up to {some[-1].ratio:g}" for label, some in found[:-1]]
    return ", ".join([*parts, f"{found[-1][0]} from {found[-1][1][0].ratio:g} on"])


# ----------------------------------------------------------------------------------------------- theory


class Predicted(NamedTuple):
    """How the p that theory recommends for a method does in one square."""

    setting: Case
    ratio: float
    theory: float
    measured: float
    loss: float
    """The price at theory's p over that at the best one."""


def predictions(scores: Scores, ratios: Sequence[float] = RATIOS, currency: str = "bytes") -> list[Predicted]:
    """Corollary 2's rounds, ∝ 1/((1+p)·λ_p²) + 1/n, times what a round costs: its best p against the measured one."""
    found = []
    for at, some in scores.items():
        mine = [score for score in some if score.method == "pisco" and score.server_prob is not None]
        for ratio in ratios:
            prices = {score.server_prob: score.price(ratio, currency) for score in mine}
            finite = {p: price for p, price in prices.items() if math.isfinite(price)}
            if len(finite) < 2:
                continue
            expected = {p: _expected(score, ratio) for p, score in zip(prices, mine, strict=True)}
            theory, best = (min(table, key=lambda p: table[p]) for table in (expected, finite))
            found.append(Predicted(at, ratio, theory, best, prices[theory] / finite[best]))  # pyright: ignore
    return found


def _expected(score: Score, ratio: float) -> float:
    """What theory expects p to cost, in exchanges of one vector."""
    p, cell = float(score.server_prob or 0.0), score.cell
    rate = expected_mixing_rate(float(cell["mixing_rate"]), p)
    if rate <= 0:
        return math.inf
    gossip, server = 2 * cell["edges"], 2 * cell["agents"] * ratio
    return large_batch_rounds(1.0, rate, p, 1.0, int(cell["agents"])) * ((1 - p) * gossip + p * server)


def theory_sentences(scores: Scores, currency: str = "bytes") -> list[str]:
    """How theory's p compares with the measured best one, and whether p falls as the server gets more expensive."""
    found = predictions(scores, currency=currency)
    if not found:
        return ["theory's p cannot be checked: pisco was measured at fewer than two p that reached the target"]
    losses = np.array([each.loss for each in found])
    same = np.mean([each.theory == each.measured for each in found])
    lower = np.mean([each.theory < each.measured for each in found])
    rows = [[each.measured for each in some] for _, some in groupby(found, key=lambda each: each.setting)]
    falls = np.mean([all(np.diff(row) <= 0) for row in rows])
    told = f"the p that Corollary 2 recommends for pisco costs {np.median(losses):.3g} times the best p in the median"
    return [
        f"{told} ({np.quantile(losses, 0.9):.3g} at the 90th percentile)",
        f"that p is the best in {same:.0%} of the squares and smaller than the best in {lower:.0%}",
        f"as the server gets more expensive the best p never rises: on {falls:.0%} of the networks",
    ]


def leaderboard(scores: Scores, ratio: float = 10.0, currency: str = "bytes") -> list[dict[str, Any]]:
    """Every method over all tasks and networks: how often it is cheapest, and what it costs over the cheapest."""
    over: dict[str, list[float]] = {}
    firsts: Counter[str] = Counter()
    for some in scores.values():
        ranked: list[Ranked] = ranking(some, ratio, currency)
        if not ranked or math.isinf(ranked[0].price):
            continue
        # Medians of whole rounds are often equal: then all of them are the cheapest, not the first by name.
        firsts.update(each.score.method for each in ranked if math.isclose(each.price, ranked[0].price))
        for each in ranked:
            over.setdefault(each.score.method, []).append(each.price / ranked[0].price)
    rows = [
        {
            "method": method,
            "cheapest": firsts[method],
            "reached": sum(map(math.isfinite, values)),
            "ran": len(values),
            "median × the cheapest": float(np.median(values)),
        }
        for method, values in over.items()
    ]
    return sorted(rows, key=lambda row: (-row["cheapest"], row["median × the cheapest"], row["method"]))
