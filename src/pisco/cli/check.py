"""`pisco check`."""

from __future__ import annotations

from typing import Annotated

import typer

from pisco.cli.completion import listed
from pisco.cli.console import key_values, print_table, say, say_json

USUAL = {"local_lr": 0.05, "local_steps": 2}


def check(
    algorithm: Annotated[
        str,
        typer.Argument(
            help="A file and a factory in it, as in my_algos.py:extra.", autocompletion=listed("algorithms")
        ),
    ],
    settings: Annotated[
        list[str] | None, typer.Option("--set", "-s", metavar="KEY=VALUE", help="A hyperparameter; may be repeated.")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
) -> None:
    """Check that an update rule of your own keeps what every engine relies on.

    Exit codes: 0 all checks pass, 1 some do not, 2 the rule cannot be built.

    Example:

      pisco check my_algos.py:extra --set local_lr=0.1
    """
    from pisco.algorithms.registry import needed
    from pisco.testing import check_algorithm

    report = check_algorithm(algorithm, **needed(algorithm, USUAL) | key_values(settings))
    if as_json:
        say_json({"rule": report.rule, "passed": report.passed, "checks": dict(report.checks)})
    else:
        rows = [(name, broken or "nothing") for name, broken in report.checks]
        print_table(report.rule, ("check", "what breaks"), rows)
        say("all checks pass" if report.passed else "some checks fail")
    if not report.passed:
        raise typer.Exit(1)
