"""`pisco`: the commands, and how errors are shown."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from pisco.cli.agent import agent, server
from pisco.cli.attack import attack
from pisco.cli.bench import bench
from pisco.cli.catalogue import data, list_names
from pisco.cli.check import check
from pisco.cli.compare import compare, tune
from pisco.cli.console import (
    Command,
    Group,
    drop_stdout,
    keep_interrupts,
    keep_stdout,
    note,
    wants_traceback,
    warnings_as_lines,
)
from pisco.cli.demo import demo
from pisco.cli.diagnose import diagnose
from pisco.cli.federation import app as federation
from pisco.cli.launch import Launch, launch
from pisco.cli.network import network
from pisco.cli.plan import plan
from pisco.cli.playground import playground
from pisco.cli.relay import relay
from pisco.cli.report import report
from pisco.cli.reproduce import reproduce
from pisco.cli.results import export, plot, show
from pisco.cli.run import run

# Usage errors and exits. Typer may bundle its own click, so click's classes are reached through typer.
_TYPERS_OWN: tuple[type[BaseException], ...] = (typer.Exit, typer.Abort, *typer.BadParameter.__mro__[:3])


class _Commands(Group):
    """Errors that a user can fix become one line on stderr and an exit code."""

    def invoke(self, ctx: Any) -> Any:
        from pisco.errors import InputError, brief

        if wants_traceback():
            with warnings_as_lines():
                return super().invoke(ctx)
        try:
            with warnings_as_lines():
                return super().invoke(ctx)
        except InputError as error:
            note(f"error: {error}")
            raise typer.Exit(2) from None
        except BrokenPipeError:
            drop_stdout()
            raise typer.Exit(0) from None
        except OSError as error:
            drop_stdout()
            where = f"{error.filename}: " if error.filename else ""
            note(f"error: {where}{error.strerror or error}; what was already written is kept")
            raise typer.Exit(2) from None
        except MemoryError:
            note("error: out of memory; use fewer agents or local steps, a smaller batch or a smaller run.chunk_rounds")
            raise typer.Exit(2) from None
        except _TYPERS_OWN:
            raise
        except Exception as error:
            from pisco.registry import own_line

            if own := own_line(error):
                note(f"error: {own}: {brief(error)}; fix it (PISCO_TRACEBACK=1 shows how it came there)")
                raise typer.Exit(2) from None
            note(f"error: {brief(error)} — this should not happen; PISCO_TRACEBACK=1 shows where, please report it")
            raise typer.Exit(1) from None
        except KeyboardInterrupt:
            note("interrupted; type the command again, or `pisco run --resume DIR` for a run")
            raise typer.Exit(130) from None


app = typer.Typer(
    cls=_Commands,
    no_args_is_help=True,
    rich_markup_mode="rich",
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
    help="Semi-decentralized federated learning: PISCO and its relatives. Start with `pisco demo`.",
)


def _version(wanted: bool) -> None:
    if wanted:
        from pisco._version import __version__

        typer.echo(f"pisco {__version__}")
        raise typer.Exit


@app.callback()
def _options(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Show the version and exit.")
    ] = False,
) -> None:
    pass


for _name, _command in {
    "demo": demo,
    "run": run,
    "diagnose": diagnose,
    "plan": plan,
    "compare": compare,
    "tune": tune,
    "bench": bench,
    "check": check,
    "attack": attack,
    "reproduce": reproduce,
    "network": network,
    "plot": plot,
    "report": report,
    "playground": playground,
    "show": show,
    "export": export,
    "list": list_names,
    "data": data,
    "agent": agent,
    "server": server,
    "relay": relay,
}.items():
    app.command(_name, cls=Command)(_command)
app.command("launch", cls=Launch, context_settings={"allow_extra_args": True, "ignore_unknown_options": True})(launch)
app.add_typer(federation, name="federation")


def main() -> None:
    """The entry point of the command `pisco`."""
    keep_stdout()
    keep_interrupts()
    try:
        app()
    except KeyboardInterrupt:  # before the command began
        note("interrupted; type the command again")
        raise SystemExit(130) from None


if __name__ == "__main__":
    main()
