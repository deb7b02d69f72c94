"""`pisco agent` and `pisco server`: the processes of a federation."""

from __future__ import annotations

import errno
import json
import logging
import signal
import sys
import time
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from pisco.cli.console import private_files, say, use_compilation_cache
from pisco.display import plural

if TYPE_CHECKING:
    from pisco.federation.kits import Kit
    from pisco.federation.runtime.member import MemberProcess
    from pisco.results import Result

log = logging.getLogger("pisco.federation")

OUT_OF_PATIENCE = 3
"""Exit code when somebody did not answer for too long, or the disk is full: the same command continues."""
STOPPED = 4
"""Exit code when the run cannot go on: refused by a peer, or the numbers are no longer finite."""

KitFolder = Annotated[Path, typer.Option("--kit", "-k", help="The folder that `pisco federation issue` made.")]
StateFolder = Annotated[
    Path | None, typer.Option("--state", help="Where the state is kept between starts (default: KIT/state).")
]
Out = Annotated[Path | None, typer.Option("--out", "-o", help="Folder for the result (default: KIT/result).")]
Listen = Annotated[str | None, typer.Option(metavar="HOST:PORT", help="Listen here instead of at the plan's address.")]
Metrics = Annotated[str | None, typer.Option(metavar="HOST:PORT", help="Answer Prometheus here, as in 127.0.0.1:9400.")]
Page = Annotated[
    str | None, typer.Option(metavar="HOST:PORT", help="Serve a live page to browsers here, as in 127.0.0.1:9401.")
]
JsonLog = Annotated[bool, typer.Option("--log-json", help="Log lines as JSON objects.")]
Proxy = Annotated[
    str | None, typer.Option(metavar="URL", help="Dial out through this HTTP proxy (default: that of https_proxy).")
]
Durable = Annotated[bool, typer.Option(help="Wait for the disk after every round, to survive a loss of power.")]


def agent(
    kit: KitFolder,
    data: Annotated[
        Path | None, typer.Option(help="This agent's samples: an npz or CSV file (see `pisco data --help`).")
    ] = None,
    module: Annotated[
        Path | None, typer.Option(help="A Python file whose `agent(data)` returns a pisco.Problem.")
    ] = None,
    state: StateFolder = None,
    out: Out = None,
    listen: Listen = None,
    proxy: Proxy = None,
    durable: Durable = True,
    metrics: Metrics = None,
    log_json: JsonLog = False,
    privacy: Annotated[
        str | None,
        typer.Option(metavar="SETTINGS", help='Make our gradients private, as in "clip=1, epsilon=8, delta=1e-5".'),
    ] = None,
) -> None:
    """Take part in a federation with this machine's own data.

    The same command continues after any interruption. Exit codes: 0 all rounds done, 2 the data or something else that
    is given cannot be used, 3 somebody did not answer for longer than the plan's patience, 4 refused by a peer or
    diverged, 130 interrupted.

    Example:

      pisco agent --kit kits/agent-0 --data my.npz
    """
    opened = open_kit(kit, proxy)

    from pisco.federation.runtime.rolled_agent import AGENTS

    folder = state or kit / "state"
    rounds, every = opened.federation.rounds, _Every(5.0)

    def progress(done: int) -> None:
        if every() or done == rounds:
            loss = made.history.values.get("loss")
            news = f", loss {loss[-1]:.4g}" if loss else ""
            log.info("round %d of %d%s", done, rounds, news)

    with speaking(opened, log_json), _room(folder):
        problem = _checked_problem(opened, data, module)
        if privacy is not None:
            problem = problem.private(_privacy(privacy))
        kind = AGENTS[opened.federation.presence]
        made = kind(opened, problem, folder, listen=listen, durable=durable, progress=progress)
        if made.found is not None:
            log.info("continues after round %d of %d", made.done, rounds)
        result = _run(made, made.run, metrics)
    _keep(result, out or kit / "result")


def server(
    kit: KitFolder,
    state: StateFolder = None,
    out: Out = None,
    listen: Listen = None,
    proxy: Proxy = None,
    durable: Durable = True,
    metrics: Metrics = None,
    page: Page = None,
    log_json: JsonLog = False,
) -> None:
    """Average for a federation in the rounds that its coin chooses, and record its progress.

    The same command continues after any interruption. Exit codes as for `pisco agent`.

    Example:

      pisco server --kit kits/server
    """
    opened = open_kit(kit, proxy)

    from pisco.federation.runtime.rolled_server import SERVERS
    from pisco.report.federation import serve_page

    every = _Every(5.0)

    def progress(ledger: Any) -> None:
        if every():
            log.info("%s", ledger.line())

    folder = state or kit / "state"
    with speaking(opened, log_json), _room(folder):
        made = SERVERS[opened.federation.presence](opened, folder, listen=listen, durable=durable)
        with serve_page(made, page):
            result = _run(made, lambda: made.run(progress), metrics)
    _keep(result, out or kit / "result")


def _privacy(given: str) -> Any:
    """Settings of `pisco.Privacy` as the inside of a TOML table."""
    import tomllib
    from dataclasses import fields

    from pisco.errors import InputError, suggest
    from pisco.privacy import Privacy

    try:
        told = tomllib.loads(f"told = {{{given}}}")["told"]
    except tomllib.TOMLDecodeError:
        raise InputError(f'--privacy is {given!r}, expected settings such as "clip=1, noise=1.1, delta=1e-5"') from None
    known = [field.name for field in fields(Privacy)]
    for name in told:
        if name not in known:
            raise InputError(f"--privacy has no setting {name!r}; {suggest(name, known)}")
    return Privacy(**{"clip": None} | told)


def _checked_problem(kit: Kit, data: Path | None, module: Path | None) -> Any:
    """The member's own problem; of data that are not what was agreed on the others hear."""
    from pisco.federation.contract import BadData
    from pisco.federation.shared_problem import read_problem

    try:
        return read_problem(kit.federation, data, module)
    except BadData as bad:
        from pisco.federation.runtime.asking import tell_trouble

        if kit.name in kit.federation.names and tell_trouble(kit, bad.told):
            log.info("told the others: %s", bad.told)
        raise


def _run(member: MemberProcess, work: Callable[[], Result], metrics: str | None) -> Result:
    from pisco.federation.runtime.exporter import MemberMetrics, serve_metrics
    from pisco.federation.runtime.peers import Stopped, Waited

    interrupted: list[int] = []

    def stop(number: int, frame: Any) -> None:
        interrupted.append(number)
        member.mailroom.stop()

    before = {number: signal.signal(number, stop) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        with serve_metrics(MemberMetrics(member), metrics):
            return work()
    except Stopped as stopped:
        if interrupted:
            log.info("interrupted; the state is kept, type the command again to continue")
            raise typer.Exit(128 + interrupted[0]) from None
        log.error("stopped: %s", stopped)
        raise typer.Exit(OUT_OF_PATIENCE if isinstance(stopped, Waited) else STOPPED) from None
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


@contextmanager
def _room(folder: Path) -> Iterator[None]:
    """A full disk ends a member as somebody who does not answer does: it may be started again until there is room."""
    try:
        yield
    except OSError as error:
        if error.errno not in (errno.ENOSPC, errno.EDQUOT):
            raise
        log.error(
            "stopped: %s has no room (%s); the state is kept, type the command again once it has",
            folder,
            error.strerror,
        )
        raise typer.Exit(OUT_OF_PATIENCE) from None


def _keep(result: Result, folder: Path) -> None:
    with private_files():  # parameters tell of the data
        result.save(folder)
    loss = result.history.get("loss")
    ending = f", loss {loss[-1]:.4g}" if loss is not None and len(loss) else ""
    say(f"done: {plural(result.rounds, 'round')}{ending}; saved in {folder}")


def open_kit(folder: Path, proxy: str | None = None) -> Kit:
    """A kit, with a proxy to dial through if one is given, and jax in its precision."""
    from pisco.federation.kits import Kit

    opened = Kit.load(folder)
    if proxy is not None:
        from pisco.federation.runtime.tunnels import check_proxy

        opened.proxy = check_proxy(proxy)
    opened.federation.use_precision()
    use_compilation_cache()
    return opened


@contextmanager
def speaking(kit: Kit, as_json: bool = False) -> Iterator[None]:
    """Log lines on stderr, with the time and who wrote them."""
    from pisco.errors import InputError

    handler = logging.StreamHandler(sys.stderr)
    plain = logging.Formatter(f"%(asctime)s {kit.name}: %(message)s", "%Y-%m-%d %H:%M:%S")
    handler.setFormatter(_Json(kit) if as_json else plain)
    log.addHandler(handler)
    log.setLevel(logging.INFO)
    before, warnings.showwarning = warnings.showwarning, lambda message, *_, **__: log.warning("%s", message)
    kit.look_for_certificate()  # it says so when the certificate ends soon
    try:
        yield
    except InputError as error:
        if not as_json:
            raise
        log.error("%s", error)
        raise typer.Exit(2) from None
    finally:
        warnings.showwarning = before
        log.removeHandler(handler)


class _Json(logging.Formatter):
    """One JSON object a line, for what collects logs."""

    def __init__(self, kit: Kit):
        super().__init__()
        self.who = {"federation": kit.federation.name, "member": kit.name}

    def format(self, record: logging.LogRecord) -> str:
        at = datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds")
        return json.dumps({"time": at, "level": record.levelname.lower(), **self.who, "message": record.getMessage()})


class _Every:
    """True at most once in so many seconds."""

    def __init__(self, seconds: float):
        self.seconds, self.last = seconds, time.monotonic()

    def __call__(self) -> bool:
        now = time.monotonic()
        if now - self.last < self.seconds:
            return False
        self.last = now
        return True
