"""`pisco federation measure`: the clock of a running federation."""

from __future__ import annotations

from pathlib import Path
from shlex import quote
from typing import Annotated

import typer

from pisco.cli.console import print_table, say, say_json


def measure(
    kit: Annotated[Path, typer.Option("--kit", "-k", help="Any member's kit.")],
    out: Annotated[Path, typer.Option("--out", "-o", help="The clock's file.")] = Path("clock.toml"),
    as_json: Annotated[bool, typer.Option("--json", help="Print the clock as JSON.")] = False,
) -> None:
    """Write how long gradients and messages take in a running federation, as a clock that simulations can use.

    Agents time themselves; the server knows what they told last, in the seconds of this run.

    Example:

      pisco federation measure --kit kits/server -o clock.toml
    """
    import numpy as np

    from pisco.cli.plan import probe
    from pisco.federation.kits import Kit
    from pisco.federation.runtime.asking import overview
    from pisco.federation.runtime.timing import clock_of
    from pisco.files import atomic_write
    from pisco.settings import toml

    probe(out)
    opened = Kit.load(kit)
    found = overview(opened)
    clock = clock_of(opened.federation, {agent.name: dict(agent.times) for agent in found.agents})
    facts = clock.facts()
    atomic_write(out, toml.write(facts).encode())
    if as_json:
        say_json({"federation": found.federation_name, "file": str(out), "clock": facts})
        return
    own = zip(facts["compute"], facts["latency_server"], strict=True)
    names = opened.federation.epochs[-1].names
    links = np.array(facts["latency_gossip"])[~np.eye(len(names), dtype=bool)]
    rows = [(name, f"{1e3 * work:.3g}", f"{1e3 * away:.3g}") for name, (work, away) in zip(names, own, strict=True)]
    print_table(f"{found.federation_name}, in ms", ("agent", "a gradient", "to the server"), rows, right=(1, 2))
    if links.size:
        say(f"between agents: {1e3 * links.min():.3g} to {1e3 * links.max():.3g} ms, one way")
    say(f"written: {out}")
    say(f"next: pisco run EXPERIMENT --set clock.file={quote(str(out))}")
