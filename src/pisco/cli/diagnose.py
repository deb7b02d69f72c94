"""`pisco diagnose`."""

from __future__ import annotations

from typing import Annotated

import typer

from pisco.cli.console import print_table, say, say_json, use_compilation_cache
from pisco.cli.options import Experiment, Json, NumRounds, Set, load_experiment
from pisco.display import plural


def diagnose(
    experiment: Experiment,
    settings: Set = None,
    rounds: NumRounds = None,
    samples: Annotated[int, typer.Option(min=1, help="Samples, of all agents together, to measure on.")] = 5_000,
    as_json: Json = False,
) -> None:
    """Measure noise, how agents differ, curvature and mixing, and say what will pay.

    Tracking, local steps, more server rounds or compression: theory compares them; nothing is trained.

    Examples:

      pisco diagnose a9a

      pisco diagnose a9a --set problem.partition=iid --set run.batch_size=8
    """
    from pisco.experiments.planned import diagnose_config

    config = load_experiment(experiment, settings, rounds)
    use_compilation_cache()
    found = diagnose_config(config, samples=samples)
    if as_json:
        values = found.facts._asdict() | {"spread": found.facts.spread._asdict()}
        say_json(found._asdict() | {"facts": values, "verdicts": [verdict._asdict() for verdict in found.verdicts]})
        return
    facts = found.facts
    measured = {
        "noise of a batch's gradient, σ²/b": facts.spread.noise,
        "how agents differ, ζ² = mean of ‖∇f_i − ∇f‖²": facts.spread.heterogeneity,
        "… and how it moves ∇f, ‖mean of H_i(∇f_i − ∇f)‖²": facts.spread.drift,
        "largest curvature of any agent, L": facts.curvature,
        **({} if found.through else {"… and by how much agents' curvatures differ, δ": facts.unlike_curvature}),
        "the way to go, f(x⁰) − f* or more": facts.gap,
        "mixing of gossip, λ_w": found.mixing_rate,
        f"… with the server at p = {found.server_prob:g}, λ_p": found.expected_mixing_rate,
    }
    title = f"Measured for {experiment}" + (f", in the scale of {found.through}" if found.through else "")
    title += f"; gradients of what is sent, beside every agent's own {found.kept}" if found.kept else ""
    print_table(title, ("", ""), [(name, f"{value:.3g}") for name, value in measured.items()])
    print_table(
        f"What will pay in {plural(facts.rounds, 'round')} with {found.local_steps} gradients between exchanges",
        ("", ""),
        [(verdict.question, verdict.words) for verdict in found.verdicts],
    )
    how = f"through {found.through}" if found.through else "with plain steps"
    say(f"{how}, the least error is expected of {found.method}; `pisco plan` and `pisco compare` find settings by runs")
