"""`pisco plan`."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from pisco.cli.console import cell, err, note, print_table, say, say_json, use_compilation_cache
from pisco.cli.options import Experiment, Json, PriceGossip, PriceGradient, PriceServer, Rounds, Set, load_experiment

if TYPE_CHECKING:
    from pisco.costs import LinkTimes, Prices
    from pisco.experiments.planned import Planned


def plan(
    experiment: Experiment,
    settings: Set = None,
    target: Annotated[
        str, typer.Option(metavar="COLUMN=BOUND", help="What to reach; see `pisco list metrics`.")
    ] = "grad_norm_sq_mean=0.05",
    price_server: PriceServer = 10.0,
    price_gossip: PriceGossip = 1.0,
    price_gradient: PriceGradient = 0.0,
    latency_server: Annotated[
        float | None, typer.Option(min=0, help="Seconds to the server; with the next three, plan for time.")
    ] = None,
    latency_gossip: Annotated[float | None, typer.Option(min=0, help="Seconds to a neighbour.")] = None,
    bandwidth_server: Annotated[float | None, typer.Option(help="MB/s of the server's link.")] = None,
    bandwidth_gossip: Annotated[float | None, typer.Option(help="MB/s of an agent's link.")] = None,
    rounds: Rounds = None,
    seconds: Annotated[float, typer.Option(help="Time that the plan may take.")] = 60.0,
    theory: Annotated[bool, typer.Option("--theory", help="Only what the theory says; no pilot runs.")] = False,
    toml: Annotated[
        Path | None, typer.Option("--out", "-o", help="Write the planned experiment there, ready to run.")
    ] = None,
    picture: Annotated[
        Path | None, typer.Option("--plot", help="Price against p, as .png or .html (default: beside --out).")
    ] = None,
    as_json: Json = False,
) -> None:
    """Find the cheapest way to run an experiment with PISCO.

    It chooses weights, p, local steps, step size and one exchange or two: theory rules out, pilot runs decide.

    Examples:

      pisco plan a9a --price-server 10 --price-gossip 1 -o plan.toml

      pisco plan a9a --theory
    """
    from pisco.cli.theory import say_theory
    from pisco.errors import InputError
    from pisco.experiments.planned import plan_config, plot
    from pisco.files import atomic_write
    from pisco.targets import parse_targets

    config = load_experiment(experiment, settings, rounds)
    goals = parse_targets(target)
    if len(goals) != 1:
        raise InputError(f"--target {target!r} names {len(goals)} targets; a plan needs one")
    (goal,) = goals.items()
    links = latency_server, latency_gossip, bandwidth_server, bandwidth_gossip
    prices = _prices((price_server, price_gossip, price_gradient), *links)
    if theory and (toml is not None or picture is not None):
        raise InputError("--theory plans nothing that could be written; leave out -o and --plot")
    if toml is not None and toml.suffix != ".toml":
        raise InputError(f"-o {toml} does not end in .toml; a plan is an experiment file, give it that ending")
    for path in (toml, picture):
        if path is not None:
            _probe(path)
    if picture is not None and picture.suffix not in (".png", ".html"):
        raise InputError(f"--plot {picture} ends in neither .png nor .html; give it one of these endings")
    use_compilation_cache()
    if theory:
        say_theory(config, goal, as_json)
        return
    with _status(seconds) as tell:
        planned = plan_config(config, target=goal, prices=prices, seconds=seconds, tell=tell)
    if toml is not None:
        atomic_write(toml, planned.config.to_toml().encode())
        picture = picture or toml.with_suffix(".png")
    if not as_json:
        _show(planned, experiment)  # before anything else can fail
    if picture is not None:
        plot(planned, picture)
    if as_json:
        say_json(_record(planned, prices, toml, picture))
    elif toml is not None:
        say(f"written: {toml} and {picture}")
        say(f"next: pisco run {toml}")
    elif picture is not None:
        say(f"picture: {picture}")
    if not planned.plan.measured:
        note(
            f"warning: no pilot run got to the target within {config.run.rounds} rounds, so this plan may not either; "
            "give more rounds, more --seconds or an easier --target"
        )
    if planned.plan.interrupted:
        note("the search was cut short; this is the best so far (more --seconds may find better)")


def _prices(prices: tuple[float, float, float], *links: float | None) -> Prices | LinkTimes:
    """Prices of messages, or how fast links are where that is given."""
    from pisco.costs import LinkTimes, Prices
    from pisco.errors import InputError

    if all(value is None for value in links):
        return Prices(*prices)
    known = [value for value in links if value is not None]
    if len(known) < len(links):
        raise InputError(
            "planning for time needs all of --latency-server, --latency-gossip, --bandwidth-server and "
            "--bandwidth-gossip"
        )
    return LinkTimes(*known[:2], *(1e6 * megabytes for megabytes in known[2:]))


def _probe(path: Path) -> None:
    """Refuse a file that could not be written, before the search."""
    from pisco.errors import InputError
    from pisco.experiments.folders import writable

    if not path.resolve().parent.is_dir():
        raise InputError(f"there is no folder {path.resolve().parent} for {path.name}; make it first")
    if path.is_dir():
        raise InputError(f"{path} is a folder; give the name of a file in it")
    writable(path.resolve().parent)


@contextmanager
def _status(seconds: float) -> Iterator[Callable[[str], None]]:
    """A line on stderr that says what is going on; Ctrl-C is answered with the best so far."""
    began = time.monotonic()
    with err().status("planning…") as status:

        def tell(words: str) -> None:
            status.update(
                f"{words}  ({time.monotonic() - began:.0f} of at most {seconds:.0f} s, Ctrl-C for the best so far)"
            )

        yield tell


def _show(planned: Planned, experiment: str) -> None:
    found, words = planned.plan, planned.plan.unit
    goal = f"{found.target.column} {'≥' if found.target.metric.rising else '≤'} {found.target.bound:g}"
    setting = found.setting
    rows = {
        "weights": setting.weights,
        "exchanges a round": "one" if setting.one_exchange else "two",
        "p": f"{setting.server_prob:.3g}",
        "local steps T_o": f"{setting.local_steps}",
        "step size η_l": f"{setting.local_lr:.4g}",
        "rounds to the target": cell(found.rounds),
        words + " to the target": cell(found.price),
        "how that is known": (
            "measured: mean of pilot runs" if found.measured else "predicted: no pilot run got there"
        ),
        "run without diverging for": f"{found.checked_rounds} rounds",
        "stable η_l at x⁰, in theory": f"{found.stable_limit:.3g}",
        "growth of deviations a round": _growth_words(found.growth),
    }
    print_table(f"Plan for {experiment}: {goal}, in {found.seconds:.0f} s", ("", ""), rows.items())
    print_table(
        f"The best setting for each p ({words})",
        ("p", "weights", "exchanges", "T_o", "η_l", words, "known from"),
        [
            (
                f"{s.server_prob:.3g}{' ←' if s == setting else ''}",
                s.weights if s.server_prob < 1 else "–",
                "one" if s.one_exchange else "two",
                f"{s.local_steps}",
                f"{s.local_lr:.3g}",
                cell(row.price),
                "pilot runs" if row.measured else "prediction",
            )
            for row in found.by_probability
            for s in (row.setting,)
        ],
        right=(3, 4, 5),
    )
    e = found.estimates
    say(
        f"estimated at x⁰: L = {e.smoothness:.3g} (steepest agent {e.agent_smoothness:.3g}, after a descent "
        f"{e.end_smoothness:.3g}), σ² = {e.noise:.3g}, ζ² = {e.heterogeneity:.3g}, f(x⁰) − f* ≥ {e.gap:.3g}"
    )
    say(f"{found.pilots} settings tried in pilot runs, {found.diverged} of them diverged")


def _growth_words(growth: tuple[float, float]) -> str:
    first, last = growth
    if first < 1:
        return f"{first:.3g} at x⁰: stable"
    if last < 1:
        return f"{first:.3g} at x⁰, {last:.3g} after a descent: settles"
    return f"{first:.3g} at x⁰, {last:.3g} after a descent: bounded only by server rounds or by the loss"


def _record(planned: Planned, prices: Any, toml: Path | None, picture: Path | None) -> dict[str, Any]:
    found = planned.plan
    return vars(found) | {
        "target": {found.target.column: found.target.bound},
        "prices": {"kind": type(prices).__name__} | prices._asdict(),
        "cost": found.price,
        "growth": {"at_start": found.growth[0], "after_descent": found.growth[1]},
        "by_probability": [
            row.setting._asdict() | {"cost": row.price, "measured": row.measured} for row in found.by_probability
        ],
        "diverged_pilots": found.diverged,
        "seconds": round(found.seconds, 1),
        "config": planned.config.to_dict(),
        "toml": toml,
        "plot": picture,
    }
