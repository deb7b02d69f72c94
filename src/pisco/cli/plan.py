"""`pisco plan`."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from shlex import quote
from typing import TYPE_CHECKING, Annotated, Any

import typer

from pisco.cli.completion import listed
from pisco.cli.console import cell, err, note, print_table, say, say_json, use_compilation_cache
from pisco.cli.options import Experiment, Json, NumRounds, Set, load_experiment
from pisco.display import plural

if TYPE_CHECKING:
    from pisco.costs import Prices
    from pisco.experiments import Config
    from pisco.experiments.planned import Planned
    from pisco.planning import Choice, Plan


def plan(
    experiment: Experiment,
    settings: Set = None,
    target: Annotated[
        str, typer.Option(metavar="COLUMN=BOUND", help="What to reach; see `pisco list metrics`.")
    ] = "grad_norm_sq_mean=0.05",
    algorithms: Annotated[
        str | None,
        typer.Option(
            "--algorithms",
            "--methods",
            help="Methods to choose from (`pisco list algorithms`), as in pisco,dsgt; or `all`.",
            autocompletion=listed("algorithms"),
            show_default="pisco-one-exchange,pisco; the experiment's own where they cannot run",
        ),
    ] = None,
    price_server: Annotated[
        float | None, typer.Option(min=0, help="Price of a message to or from the server.", show_default="10")
    ] = None,
    price_gossip: Annotated[
        float | None, typer.Option(min=0, help="Price of a message between agents.", show_default="1")
    ] = None,
    price_gradient: Annotated[
        float | None, typer.Option(min=0, help="Price of a gradient of one agent.", show_default="0")
    ] = None,
    rounds: NumRounds = None,
    seconds: Annotated[float, typer.Option(help="Seconds that the plan may take.")] = 60.0,
    theory: Annotated[bool, typer.Option("--theory", help="Only what the theory says; no pilot runs.")] = False,
    toml: Annotated[
        Path | None, typer.Option("--out", "-o", help="Write the planned experiment there, ready to run.")
    ] = None,
    picture: Annotated[
        Path | None, typer.Option("--plot", help="Price against p, as .png or .html (default: beside --out).")
    ] = None,
    as_json: Json = False,
) -> None:
    """Find the cheapest way to run an experiment, or with a clock the quickest.

    It chooses weights, p, local steps, step size, and one exchange or two: theory rules out, pilot runs decide.

    Examples:

      pisco plan a9a --price-server 10 --price-gossip 1 -o plan.toml

      pisco plan a9a --set clock.preset=campus --algorithms pisco,dsgt

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
    prices = _prices(price_server, price_gossip, price_gradient)
    methods: Any = {"methods": [name.strip() for name in algorithms.split(",")]} if algorithms is not None else {}
    if algorithms == "all":
        methods = {"methods": _recommended(config, prices)}
    if theory and algorithms:
        raise InputError("--theory is about PISCO alone; leave out --algorithms")
    if theory and (toml is not None or picture is not None):
        raise InputError("--theory plans nothing that could be written; leave out -o and --plot")
    if toml is not None and toml.suffix != ".toml":
        raise InputError(f"-o {toml} does not end in .toml; a plan is an experiment file, give it that ending")
    for path in (toml, picture):
        if path is not None:
            probe(path)
    if picture is not None and picture.suffix not in (".png", ".html"):
        raise InputError(f"--plot {picture} ends in neither .png nor .html; give it one of these endings")
    use_compilation_cache()
    if theory:
        say_theory(config, goal, as_json)
        return
    with _status(seconds) as tell:
        planned = plan_config(config, target=goal, prices=prices, seconds=seconds, tell=tell, **methods)
    if toml is not None:
        atomic_write(toml, planned.config.to_toml().encode())
        picture = picture or toml.with_suffix(".png")
    if not as_json:
        _show(planned, experiment)  # before anything else can fail
    if picture is not None:
        plot(planned, picture)
    if as_json:
        say_json(_record(planned, toml, picture))
    elif toml is not None:
        say(f"written: {toml} and {picture}")
        say(f"next: pisco run {quote(str(toml))}")
    elif picture is not None:
        say(f"picture: {picture}")
    found = planned.plan
    if not found.reachable:
        note(
            f"warning: the target is out of reach in {plural(config.run.rounds, 'round')}: the best value of any pilot "
            f"run is {found.lowest:.3g}, and there the curves are flat; give an easier --target, larger batches, or, "
            "if gradients are noisy, many more rounds with smaller steps"
        )
    elif not found.measured:
        note(
            f"warning: no pilot run got to the target (that of this plan was run for {found.checked_rounds} rounds of "
            f"{config.run.rounds}), so the plan may not either; give more rounds, more --seconds or an easier --target"
        )
    if found.interrupted:
        note("the search was cut short; this is the best so far (more --seconds may find better)")
    if found.asked_to_stop:
        raise typer.Exit(130)


def _recommended(config: Config, prices: Prices | None) -> list[str]:
    """What measured cells recommend for such a network and such prices, and that they do."""
    from pisco.algorithms.registry import ALGORITHMS
    from pisco.costs import Prices
    from pisco.experiments.bench.learned import recommended

    network = config.network.build()
    found, rate = recommended(network, prices or Prices()), max(network.mixing_rate, 0.0)
    note(
        f"measured cells of {len(ALGORITHMS)} methods (`pisco bench`) recommend {', '.join(found)} at λ_w = {rate:.3g}"
    )
    return found


def _prices(*given: float | None) -> Prices | None:
    """The prices, those that are left out as usual; None where none was given: a clock counts then, if there is one."""
    from pisco.costs import Prices

    if all(price is None for price in given):
        return None
    return Prices(*(usual if price is None else price for price, usual in zip(given, Prices(), strict=True)))


def probe(path: Path) -> None:
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
        "method": setting.method,
        "weights": setting.weights,
        "p": f"{setting.server_prob:.3g}",
        "local steps T_o": cell(setting.local_steps, "d"),
        "step size η_l": f"{setting.local_lr:.4g}",
        "rounds to the target": cell(found.rounds),
        words + " to the target": cell(found.price),
        "how that is known": _known(found),
        "run without diverging for": plural(found.checked_rounds, "round"),
    }
    if not math.isnan(found.stable_limit):
        rows["stable η_l at x⁰, in theory"] = f"{found.stable_limit:.3g}"
        rows["growth of deviations a round"] = _growth_words(found.growth)
    else:
        rows["stable η_l, in theory"] = "left out: it knows PISCO, on steady links where all report"
    print_table(f"Plan for {experiment}: {goal}, in {found.seconds:.0f} s", ("", ""), rows.items())
    print_table(
        f"The best setting for each p ({words})",
        ("p", "method", "weights", "T_o", "η_l", words, "known from"),
        [
            (
                f"{s.server_prob:.3g}{' ←' if s == setting else ''}",
                s.method,
                s.weights if s.server_prob < 1 or s.periodic else "–",
                cell(s.local_steps, "d"),
                f"{s.local_lr:.3g}",
                cell(row.price),
                _source(row),
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
    say(f"{plural(found.pilots, 'setting')} tried in pilot runs, {found.diverged} of them diverged")


def _known(found: Plan) -> str:
    if found.measured:
        return "measured: mean of pilot runs"
    if not found.reachable:
        return f"unreachable: pilot runs end at {found.lowest:.3g}"
    return "predicted: no pilot run got there" if math.isfinite(found.price) else "not known: no pilot run got there"


def _source(row: Choice) -> str:
    if row.measured:
        return "pilot runs"
    return "prediction" if math.isfinite(row.price) else "not reached"


def _growth_words(growth: tuple[float, float]) -> str:
    first, last = growth
    if first < 1:
        return f"{first:.3g} at x⁰: stable"
    if last < 1:
        return f"{first:.3g} at x⁰, {last:.3g} after a descent: settles"
    return f"{first:.3g} at x⁰, {last:.3g} after a descent: bounded only by server rounds or by the loss"


def _record(planned: Planned, toml: Path | None, picture: Path | None) -> dict[str, Any]:
    found = planned.plan
    return vars(found) | {
        "target": {found.target.column: found.target.bound},
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
