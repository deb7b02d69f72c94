"""`pisco federation check`: whether this machine's data is what the federation agreed on."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from pisco.cli.console import say
from pisco.display import plural


def check(
    kit: Annotated[Path, typer.Option("--kit", "-k", help="This member's kit.")],
    data: Annotated[Path | None, typer.Option(help="This agent's samples, as for `pisco agent`.")] = None,
    module: Annotated[
        Path | None, typer.Option(help="A Python file whose `agent(data)` returns a pisco.Problem.")
    ] = None,
) -> None:
    """Check this machine's data against the plan, as `pisco agent` does at its start; nothing is sent.

    Example:

      pisco federation check --kit kits/north --data my.npz
    """
    from pisco.cli.agent import open_kit
    from pisco.federation.runtime.agent import check_problem
    from pisco.federation.shared_problem import read_problem

    opened = open_kit(kit)
    plan = opened.federation
    problem = read_problem(plan, data, module)
    check_problem(problem, plan.batch_size)
    agreed = "its shape and labels" if plan.data is None else plural(len(plan.data.features), "feature")
    say(f"fits: {plural(problem.num_samples, 'sample')}, checked against {agreed} of {plan.name}")
