"""Write what `pisco bench` prints for the package's cells into docs/benchmark.md, draw its map and its page to explore.

    python tools/benchmark_page.py             # the documentation of the cells that come with the package
    python tools/benchmark_page.py CELLS       # first put these among them: a folder of cells, or a .tar.gz of one
    python tools/benchmark_page.py CELLS sd-gt # the same where a method's code has changed since

Every block of the page that follows a line `<!-- measured: NAME -->`, up to the next empty line, is written again. A
cell that is there already stays, unless the new one differs in its seconds alone or is of a method that is named.
"""

from __future__ import annotations

import json
import math
import sys
import tarfile
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from PIL import Image

from pisco.experiments.bench import learned, store
from pisco.experiments.bench import map as maps
from pisco.experiments.bench.cells import key_of
from pisco.experiments.bench.page import write_page
from pisco.experiments.bench.scores import by_setting, chart, ranking, whole
from pisco.experiments.bench.suite import load
from pisco.registry import label

ROOT = Path(__file__).parent.parent
RATIO = 10.0
SHOWN = ("a9a/ring-10", "a9a/split-10", "least-squares/ring-10", "least-squares/split-10")
SHOWN += (
    "least-squares/karate-34",
    "fashion-0_1/ring-10",
    "fashion-0_1/split-10",
    "cifar-0_1/ring-10",
    "speeches/path-10",
)


# ------------------------------------------------------------------------------------------------- cells


def brought(path: Path) -> Iterator[dict[str, Any]]:
    """The cells of a folder or of an archive."""
    if path.is_dir():
        yield from (json.loads(file.read_text()) for file in sorted(path.rglob("*.json")))
        return
    with tarfile.open(path) as archive:
        for member in archive:
            if member.name.endswith(".json") and (stream := archive.extractfile(member)) is not None:
                yield json.loads(stream.read())


def without_seconds(cell: dict[str, Any]) -> Any:
    """What two measurements of one cell have to agree in."""
    (group,) = store.pack([cell | {"devices": ["any"]}])["groups"]
    for row in group["cells"][0]["entries"]:
        row[store.PACKED.index("seconds")] = None
    return json.loads(json.dumps(group))


def add(path: Path, changed: Sequence[str]) -> None:
    """Put cells among those of the package, in the order of the suite; those of changed methods take their place."""
    suite = load("full")
    places = {(place.task.name, place.network, label(place.method)): place for place in suite.places()}
    cells = {(cell["task"], cell["network"], cell["method"]): cell for cell in store.bundled()}
    done: Counter[str] = Counter()
    for cell in brought(path):
        at = (cell["task"], cell["network"], cell["method"])
        if at not in places or cell["key"] != key_of(places[at]):
            raise SystemExit(f"{'/'.join(at)} is no cell of today's suite; measure it again")
        known = at in cells and cell["method"] not in changed
        if known and without_seconds(cell) != without_seconds(cells[at]):
            print(f"{'/'.join(at)} was measured otherwise before, and stays as it was")
            continue
        done["measured again" if at in cells else "new"] += 1
        cells[at] = cell
    tasks, networks = list(suite.tasks), list(suite.networks)
    order = sorted((at for at in places if at in cells), key=lambda at: (tasks.index(at[0]), networks.index(at[1])))
    store.write_packed([cells[at] for at in order], store.MEASURED)
    store.bundled.cache_clear()
    lacking = sum(any(entry["seconds"] is None for entry in cell["entries"]) for cell in store.bundled())
    print(dict(done), f"{len(cells)} of {len(places)} cells, {lacking} without seconds")


# ------------------------------------------------------------------------------------------------ blocks


def row(*cells: object) -> str:
    """A row of a table."""
    return "| " + " | ".join(map(str, cells)) + " |"


def table(*headers: str) -> list[str]:
    """The head of one."""
    return [row(*headers), row(*["---"] * len(headers))]


def bullets(sentences: list[str]) -> list[str]:
    """A list of sentences."""
    return [f"- {sentence}" for sentence in sentences]


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


def safe(scores) -> list[str]:
    """Who reached every target."""
    found = [each for each in maps.leaderboard(scores, RATIO) if each["reached"] == len(scores)]
    some = sorted(found, key=lambda each: each["median × the cheapest"])
    names = ", ".join(f"`{each['method']}` {each['median × the cheapest']:.2g}" for each in some)
    return [f"On all {len(scores)} tasks and networks, with the median of what it costs over the cheapest: {names}."]


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


def counted(scores) -> list[str]:
    """How many cells there are, and where some are missing."""
    cells, every = store.bundled(), len(load("full").places())
    methods = len({cell["method"] for cell in cells})
    words = f"{'All' if len(cells) == every else f'{len(cells):,} of the'} {every:,} cells of the suite"
    rest = Counter((cell["task"], cell["network"]) for cell in cells if (cell["task"], cell["network"]) not in scores)
    more = (
        f"; {min(rest.values())} to {max(rest.values())} on {len(rest)} others, which are left out above"
        if rest
        else ""
    )
    return [f"{words}: {methods} methods on {len(scores)} tasks and networks{more}."]


def main() -> None:
    """All of it."""
    if sys.argv[1:]:
        add(Path(sys.argv[1]), sys.argv[2:])
    scores = whole(by_setting(store.bundled()))
    blocks = {
        "bytes": who(scores, "bytes"),
        "words": bullets(maps.sentences(scores)),
        "messages": who(scores, "messages"),
        "message-words": bullets(maps.sentences(scores, currency="messages")),
        "theory": bullets(maps.theory_sentences(scores)),
        "board": board(scores),
        "safe": safe(scores),
        "some": some(scores),
        "cells": counted(scores),
        "check": checked(scores),
    }
    page = ROOT / "docs" / "benchmark.md"
    text = page.read_text()
    for name, lines in blocks.items():
        before, mark, rest = text.partition(f"<!-- measured: {name} -->\n\n")
        if not mark:
            raise SystemExit(f"docs/benchmark.md has no line <!-- measured: {name} -->; add it before that block")
        text = before + mark + "\n".join(lines) + rest[rest.index("\n\n") :]
    page.write_text(text)
    picture = maps.write_map(scores, ROOT / "docs" / "images" / "benchmark-map.png")
    Image.open(picture).convert("RGB").quantize(48).save(picture, optimize=True)
    write_page(store.bundled(), ROOT / "docs" / "benchmark" / "explore.html")


if __name__ == "__main__":
    main()
