"""`pisco federation status` and `pisco federation try`: follow a federation, and run a whole one on this machine."""

from __future__ import annotations

import math
import time
from datetime import datetime
from pathlib import Path
from shlex import quote
from typing import TYPE_CHECKING, Annotated, Any

import typer

from pisco.cli.completion import listed
from pisco.cli.console import err, note, out, print_table, say, say_json, size, tables
from pisco.display import plural

if TYPE_CHECKING:
    from rich.console import Group


REPORTED = ["round", "lag", "loss", "epsilon", "bytes_sent", "bytes_received", "waiting_for", "trouble", "held_up_by"]
"""What the server has from the members alone; it sees the last contact itself."""


def status(
    kit: Annotated[Path, typer.Option("--kit", "-k", help="Any member's kit.")],
    once: Annotated[bool, typer.Option("--once", help="Print the table once and exit.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print it once as JSON.")] = False,
) -> None:
    """Show where every agent stands: round, lag, bytes, last contact. Ends with the run, or with Ctrl-C.

    Example:

      pisco federation status --kit kits/server
    """
    from rich.live import Live

    from pisco.errors import InputError
    from pisco.federation.kits import Kit
    from pisco.federation.runtime.asking import overview

    opened = Kit.load(kit)
    found = overview(opened)
    if as_json:
        told = {"federation": found.federation_name, "rounds": found.rounds, "agents": _records(found)}
        held = {"name": found.held_by, "why": found.held_why} if found.held_by else None
        say_json(told | {"held_up_by": held, "reported_by_members": REPORTED})
        return
    if once or not out().is_terminal:
        print_table(**_standing(found))
        return
    with Live(_live(found, out().width), console=out(), refresh_per_second=4) as live:
        while any(agent.round < found.rounds for agent in found.agents):
            time.sleep(1.0)
            try:
                found = overview(opened)
            except InputError as error:
                note(f"{error}")
                return
            live.update(_live(found, out().width))


def try_(
    agents: Annotated[int, typer.Option("--agents", "-n", help="How many agent processes.")] = 5,
    rounds: Annotated[int, typer.Option(help="Communication rounds.")] = 100,
    graph: Annotated[str, typer.Option(help="See `pisco list graphs`.", autocompletion=listed("graphs"))] = "ring",
    server_prob: Annotated[
        float | None, typer.Option(help="Chance that a round reaches the server (default: 0.1).")
    ] = None,
    algorithm: Annotated[
        str,
        typer.Option(
            help="See `pisco list algorithms`; or your own, as in my.py:method.", autocompletion=listed("algorithms")
        ),
    ] = "pisco",
    settings: Annotated[
        list[str] | None,
        typer.Option("--set", "-s", metavar="KEY=VALUE", help="Any other setting, as in algorithm.local_lr=0.1."),
    ] = None,
    folder: Annotated[Path | None, typer.Option("--out", "-o", help="Folder for kits, logs and results.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
) -> None:
    """Run a whole federation on this machine: real processes, certificates and TLS, on the bundled a9a.

    Example:

      pisco federation try --agents 5

      pisco federation try --algorithm my.py:method --set algorithm.local_lr=0.1
    """
    from rich.live import Live

    from pisco.cli.federation import loopback
    from pisco.cli.federation.changes import apply, reached, started
    from pisco.engines.job import check_needs
    from pisco.errors import InputError
    from pisco.experiments.folders import unused
    from pisco.federation.kits import Kit
    from pisco.federation.runtime.asking import overview
    from pisco.report.numbers import endings

    asked, folder = folder is not None, folder or unused(Path("results") / f"federation-{datetime.now():%Y%m%d-%H%M%S}")
    if folder.exists() and any(folder.iterdir()):
        raise InputError(f"{folder} is not empty; choose a new folder with --out")
    began = time.perf_counter()
    tables: dict[str, Any] = {"algorithm": started(algorithm), "problem": {"name": "logistic", "classes": [-1, 1]}}
    tables |= {"network": {"graph": graph} | reached(server_prob), "rounds": rounds, "batch_size": 64}
    tables |= {"eval_every": max(1, rounds // 20), "patience": 600.0}
    apply(tables, settings)
    if "server" not in tables["network"]:
        tables["network"].setdefault("server_prob", 0.1)
    plan = loopback.plan_here("try", agents, **tables)
    check_needs(plan.build_algorithm(), plan.network_of(plan.epochs[0]))
    here = loopback.Loopback(folder, plan, loopback.share_out("a9a", plan, folder / "data"))
    note(f"{plural(agents, 'agent')} and a server start as processes of their own; kits and logs are in {folder}")
    try:
        here.start()
        opened = Kit.load(here.kit("server"))
        with Live(console=err(), refresh_per_second=4, transient=True) as live:

            def watch() -> None:
                try:
                    live.update(_live(overview(opened, timeout=1.0), err().width))
                except InputError:
                    return  # not up yet, or already done
                time.sleep(0.4)

            here.wait(600.0 + 20.0 * agents, watch)
    except KeyboardInterrupt:
        again = "the same command with another --out" if asked else "the same command"
        note(f"interrupted; logs so far are in {folder}, and {again} starts anew")
        raise typer.Exit(130) from None
    finally:
        here.stop()
    result = here.result(time.perf_counter() - began)
    result.save(folder / "result")
    final = {name: float(column[-1]) for name, column in result.history.items()}
    if as_json:
        say_json({"folder": str(folder / "result"), "rounds": result.rounds, "final": final, "seconds": result.seconds})
        return
    title = f"federation of {agents}: {plural(result.rounds, 'round')} in {result.seconds:.1f} s"
    print_table(title, ("", ""), endings(result))
    say(f"saved in {folder / 'result'}")
    say(f"next: pisco report {quote(str(folder / 'result'))}")


def _records(found: Any) -> list[dict[str, Any]]:
    front = max((agent.round for agent in found.agents), default=0)
    return [
        {
            "name": agent.name,
            "round": agent.round,
            "lag": front - agent.round,
            "loss": agent.loss,
            "epsilon": dict(agent.times).get("epsilon"),
            "bytes_sent": agent.bytes_sent,
            "bytes_received": agent.bytes_received,
            "last_contact": agent.last_contact if agent.last_contact >= 0 else math.nan,
            "waiting_for": agent.waiting_for,
            "trouble": agent.trouble,
        }
        for agent in found.agents
    ]


def _standing(found: Any) -> dict[str, Any]:
    """What `print_table` takes."""
    records = _records(found)
    private = any(record["epsilon"] is not None for record in records)
    rows = []
    for record in records:
        seconds = record["last_contact"]
        rows.append(
            (
                record["name"],
                str(record["round"]),
                str(record["lag"]),
                *([f"{record['epsilon']:.3g}" if record["epsilon"] is not None else ""] if private else []),
                "" if math.isnan(record["loss"]) else f"{record['loss']:.4g}",
                size(record["bytes_sent"]),
                size(record["bytes_received"]),
                "never" if math.isnan(seconds) else f"{seconds:.0f} s ago",
                record["trouble"] or record["waiting_for"],
            )
        )
    held = f"{found.held_by} holds the others up: {found.held_why}\n" if found.held_by else ""
    return {
        "title": f"{found.federation_name}: {plural(found.rounds, 'round')}",
        "columns": (
            "agent",
            "round",
            "lag",
            *(("ε",) * private),
            "loss",
            "sent",
            "received",
            "last contact",
            "waits for",
        ),
        "rows": rows,
        "right": range(1, 7 + private),
        "caption": f"{held}everything except the last contact is what members report about themselves",
    }


def _live(found: Any, room: float) -> Group:
    from rich.console import Group
    from rich.text import Text

    given = _standing(found)
    return Group(
        Text(given["title"], style="table.title"),
        *tables(given["columns"], given["rows"], given["right"], room),
        Text(given["caption"]),
    )
