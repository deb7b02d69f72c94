"""`pisco attack`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from pisco.cli.console import note, print_table, say, say_json

MOST = 64
"""Samples that an inversion looks for."""


def attack(
    folder: Annotated[Path, typer.Argument(help="The folder of a run (`pisco run … --out`).")],
    agent: Annotated[int, typer.Option(min=0, help="The agent to attack.")] = 0,
    batch_size: Annotated[
        int | None, typer.Option(min=1, help="Samples in the attacked gradient (default: the run's batch).")
    ] = None,
    steps: Annotated[int, typer.Option(min=1, help="Steps of the inversion.")] = 500,
    figure: Annotated[
        Path | None, typer.Option(help="Picture of what was found beside the true samples (square images).")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
) -> None:
    """Try to recover an agent's samples from its first gradient, and to tell which were trained on.

    Against a run of yours: its data is known, so the result shows how well the attack went.

    Example:

      pisco attack results/mine --batch-size 1
    """
    from pisco.attacks import inversion, membership
    from pisco.attacks.observed import observe

    seen = observe(folder, agent=agent, batch_size=batch_size)
    count = len(seen.rows)
    found = None
    if count <= MOST:
        found = inversion.attack(seen, steps=steps)
    else:
        note(f"a gradient of {count} samples is not inverted, only of up to {MOST}; give --batch-size for fewer")
    message, model = membership.from_message(seen), membership.from_model(seen)
    privacy = seen.problem.privacy
    told: dict[str, object] = {"folder": str(folder), "agent": agent, "samples": count}
    told["privacy"] = None if privacy is None else privacy.facts()
    if found is not None:
        told["inversion"] = {"recovered": found.recovered, "errors": [round(float(e), 6) for e in found.errors]}
    for name, ranking in (("membership_from_message", message), ("membership_from_model", model)):
        told[name] = None if ranking is None else ranking._asdict()
    if figure is not None:
        inversion.draw_found(found, figure)
        told["figure"] = str(figure)
    if as_json:
        say_json(told)
        return
    rows = []
    if found is not None:
        worst = f"errors {found.errors.min():.2g} to {found.errors.max():.2g} of their norms"
        rows.append(("samples from a gradient", f"{found.recovered} of {count} recovered, {worst}"))
    for name, ranking in (("batch from a gradient", message), ("training samples from the model", model)):
        if ranking is not None:
            rows.append((name, f"AUC {ranking.auc:.3f} (0.5: a guess), {ranking.hits:.0%} found at 1% false alarms"))
    print_table(f"attacks on agent {agent} of {folder}", ("", ""), rows)
    if figure is not None:
        say(f"drawn in {figure}")
