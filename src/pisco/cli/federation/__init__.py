"""`pisco federation`: plan a federation, sign certificates, change the roster, follow a run."""

from __future__ import annotations

import typer

from pisco.cli.console import Command, Group
from pisco.cli.federation.audit import audit
from pisco.cli.federation.changes import change, init
from pisco.cli.federation.check import check
from pisco.cli.federation.follow import status, try_
from pisco.cli.federation.measure import measure
from pisco.cli.federation.members import issue, request, revoke
from pisco.cli.federation.models import collect, export
from pisco.cli.federation.replay import replay
from pisco.cli.federation.show import show

app = typer.Typer(
    cls=Group,
    no_args_is_help=True,
    rich_markup_mode="rich",
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
    help="Federations of machines with different owners: plan one, make kits, follow it.",
)


@app.callback()
def _installed() -> None:
    import importlib.util

    from pisco.errors import InputError

    if any(importlib.util.find_spec(package) is None for package in ("cryptography", "grpc")):
        raise InputError("federations need more packages; run pip install 'pisco-fl[federation]'")


for _command in (init, check, issue, request, revoke, change, show, status, measure, replay, audit, collect, export):
    app.command(cls=Command)(_command)
app.command("try", cls=Command)(try_)
