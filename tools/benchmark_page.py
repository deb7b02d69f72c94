"""Write what `pisco bench` prints for the package's cells into docs/benchmark.md, draw its map and its page to explore.

    python tools/benchmark_page.py

Every block of the page that follows a line `<!-- measured: NAME -->`, up to the next empty line, is written anew.
"""

from __future__ import annotations

import math
from pathlib import Path

from PIL import Image

from pisco.experiments.bench import learned
from pisco.experiments.bench import map as maps
from pisco.experiments.bench.page import write_page
from pisco.experiments.bench.scores import by_setting, chart, few, ranking, whole
from pisco.experiments.bench.store import bundled

ROOT = Path(__file__).parent.parent
RATIO = 10.0
SHOWN = ("a9a/ring-10", "a9a/split-10", "least-squares/ring-10", "least-squares/split-10")
SHOWN += ("least-squares/karate-34", "fashion-0_1/ring-10", "fashion-0_1/split-10")
FEW = ("pisco", "pisco-compressed", "proxskip", "led", "exact-diffusion")
"""One of every kind, and the ones that were measured everywhere."""


def row(*cells: object) -> str:
    """A row of a table."""
    return "| " + " | ".join(map(str, cells)) + " |"


def table(*headers: str) -> list[str]:
    """The head of one."""
    return [row(*headers), row(*["---"] * len(headers))]


def who(scores, currency: str) -> list[str]:
    """Who is cheapest where."""
    rates = {at: f"{some[0].cell['mixing_rate']:.2g}" for at, some in scores.items()}
    found = chart(scores, currency=currency)
    rows = [row(*at, rates[at], maps.stretches(squares)) for at, squares in found.items()]
    return table("task", "network", "λ", "cheapest") + rows


def board(scores) -> list[str]:
    """The leaderboard."""
    rows = table("method", "cheapest", "reached", "median × the cheapest")
    for each in maps.leaderboard(scores, RATIO):
        over = each["median × the cheapest"]
        reached = f"{each['reached']} of {each['ran']}"
        rows.append(
            row(f"`{each['method']}`", each["cheapest"], reached, f"{over:.2f}" if math.isfinite(over) else "–")
        )
    return rows


def some(scores) -> list[str]:
    """The first four of some tasks and networks."""
    rows = table(
        "task", "network", "method", "η_l", "rounds", "server kB", "gossip kB", "gradients", "seconds", "price, kB"
    )
    for name in SHOWN:
        at = tuple(name.split("/"))
        for each in ranking(scores.get(at, ()), RATIO)[:4]:
            score = each.score
            label = f"`{score.method}`" + ("" if score.server_prob is None else f", p = {score.server_prob:g}")
            server, gossip = (score.sample(f"bytes_{kind}").median.value / 1000 for kind in ("server", "gossip"))
            clock = score.seconds()
            numbers = [f"{score.local_lr:g}", score.sample("round").median.words("{:.0f}".format)]
            numbers += [f"{server:.3g}", f"{gossip:.3g}", f"{score.sample('gradients').median.value:g}"]
            numbers += ["–" if clock is None else f"{clock.value:.3g}", f"{each.price / 1000:.4g}"]
            rows.append(row(*at, label, *numbers))
    return rows


def checked(scores) -> list[str]:
    """Proposals on cells that were left out."""
    rows = table("by", "proposal", "squares", "median", "90%", "within 1.15")
    for by in ("bytes", "messages"):
        for each in learned.summary(learned.leave_one_out(scores, currency=by)):
            far = [f"{each[q]:.3f}" if math.isfinite(each[q]) else "missed" for q in ("median", "90%")]
            rows.append(row(by, each["proposal"], each["cells"], *far, f"{each['within 1.15']:.0%}"))
    return rows


def main() -> None:
    """All of it."""
    every = by_setting(bundled())
    scores, some_methods = whole(every), few(every, FEW)
    blocks = {
        "bytes": who(scores, "bytes"),
        "words": [f"- {sentence}" for sentence in maps.sentences(scores)],
        "messages": who(scores, "messages"),
        "theory": [f"- {sentence}" for sentence in maps.theory_sentences(scores)],
        "board": board(scores),
        "some": some(scores),
        "check": checked(scores),
        "few": who(some_methods, "bytes"),
        "few-words": [f"- {sentence}" for sentence in maps.sentences(some_methods)],
    }
    page = ROOT / "docs" / "benchmark.md"
    text = page.read_text()
    for name, lines in blocks.items():
        before, mark, rest = text.partition(f"<!-- measured: {name} -->\n\n")
        if not mark:
            raise SystemExit(f"docs/benchmark.md has no line <!-- measured: {name} -->; add it before that block")
        text = before + mark + "\n".join(lines) + rest[rest.index("\n\n") :]
    page.write_text(text)
    for shown, name in ((scores, "benchmark-map.png"), (some_methods, "benchmark-few.png")):
        picture = maps.write_map(shown, ROOT / "docs" / "images" / name)
        Image.open(picture).convert("RGB").quantize(48).save(picture, optimize=True)
    write_page(bundled(), ROOT / "docs" / "benchmark" / "explore.html")


if __name__ == "__main__":
    main()
