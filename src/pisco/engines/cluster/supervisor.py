"""Processes on this host, started and watched: a dead one is noticed, and the whole job starts again."""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from typing import IO, NamedTuple

BAD_INPUT, INTERRUPTED = 2, 130
"""Exit codes of a process that another start would not help: wrong settings, and Ctrl-C."""

POLL_SECONDS = 0.1
PATIENCE_SECONDS = 60.0
"""How long processes may take to end after Ctrl-C, or after one of them has finished with an error of the user's."""

PR_SET_PDEATHSIG = 1

CommandLine = Callable[[int, int, str], list[str]]
"""`command(start, process, coordinator)`: the command line of a process, at the first start (0) or a later one."""


class _Child(NamedTuple):
    process: subprocess.Popen[bytes]
    log: IO[bytes] | None  # what it printed; process 0 prints to the terminal


class _Failure(NamedTuple):
    index: int
    code: int
    words: str  # the end of what it printed


class Supervisor:
    """Starts `count` processes and keeps the job going until it is done or has failed too often.

    Args:
      command: the command line of every process.
      count: how many processes.
      max_failures: how often the job is started again.
      say: prints one line for the user.
      devices: accelerators of every process; process i sees those from i·devices on.
      stdout: the file number that process 0 prints to; None is this process's own.
    """

    def __init__(
        self,
        command: CommandLine,
        count: int,
        *,
        max_failures: int,
        say: Callable[[str], None],
        devices: int = 1,
        stdout: int | None = None,
    ):
        self.command, self.count, self.max_failures, self.say = command, count, max_failures, say
        self.devices, self.stdout = devices, stdout
        self.children: list[_Child] = []
        self.asked = 0  # Ctrl-C so far

    def run(self) -> int:
        """Returns the exit code of the job."""
        with self._signals():
            for failures in range(self.max_failures + 1):
                try:
                    failure = self._once(failures)
                finally:
                    self._end()
                if failure is None:
                    return 0
                if failure.code in (BAD_INPUT, INTERRUPTED) or self.asked:
                    if failure.index and failure.code == BAD_INPUT:
                        self.say(failure.words)
                    return INTERRUPTED if self.asked else failure.code
                quoted = f":\n{failure.words}" if failure.words and failure.code > 0 else ""
                self.say(f"process {failure.index} {_how(failure.code)}{quoted}")
                if failures < self.max_failures:
                    left = self.max_failures - failures - 1
                    self.say(
                        f"starting all {self.count} processes again from the last checkpoint "
                        f"({left} more failure{'' if left == 1 else 's'} allowed)"
                    )
        self.say(f"gave up after {self.max_failures + 1} failures; the checkpoints are kept")
        return 1

    def _once(self, start: int) -> _Failure | None:
        """One start of all processes, to its end: the failure that ended it, if one did."""
        coordinator = f"127.0.0.1:{free_port()}"
        self.children = []
        for index in range(self.count):
            self.children.append(self._start(self.command(start, index, coordinator), index))
        while True:
            codes = [child.process.poll() for child in self.children]
            for index, code in enumerate(codes):
                if code:
                    return self._blame(index, code)
            if all(code == 0 for code in codes):
                return None
            time.sleep(POLL_SECONDS)

    def _start(self, command: list[str], index: int) -> _Child:
        log = None if index == 0 else tempfile.TemporaryFile()  # noqa: SIM115
        first = index * self.devices
        # Accelerators of this host are shared out; CPUs are made, not shared, and ignore this.
        seen = ",".join(str(first + k) for k in range(self.devices))
        process = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=log or self.stdout,
            stderr=log,
            env=os.environ | {"JAX_LOCAL_DEVICE_IDS": seen},
            start_new_session=True,  # Ctrl-C comes through us, once
            preexec_fn=_die_with_parent(os.getpid()),
        )
        return _Child(process, log)

    def _blame(self, index: int, code: int) -> _Failure:
        """The failure to report: companions of a dead process fail too, so wait a moment for a clearer cause."""
        if code in (BAD_INPUT, INTERRUPTED):
            until = time.monotonic() + PATIENCE_SECONDS
            while any(c.process.poll() is None for c in self.children) and time.monotonic() < until:
                if code == BAD_INPUT and time.monotonic() > until - PATIENCE_SECONDS + 2:
                    break
                time.sleep(POLL_SECONDS)
        else:
            time.sleep(POLL_SECONDS)
            for other, child in enumerate(self.children):
                ended = child.process.poll()
                if ended is not None and ended in (-signal.SIGKILL, BAD_INPUT):
                    index, code = other, ended
        return _Failure(index, code, _tail(self.children[index].log))

    def _end(self) -> None:
        """Nothing that was started stays."""
        for child in self.children:
            if child.process.poll() is None:
                child.process.kill()
        for child in self.children:
            child.process.wait()
            if child.log is not None:
                child.log.close()

    @contextlib.contextmanager
    def _signals(self) -> Iterator[None]:
        """The first Ctrl-C (or a polite end) asks the processes to stop and save; the second ends them."""

        def ask(number, frame):
            self.asked += 1
            for child in self.children:
                if child.process.poll() is None:
                    with contextlib.suppress(ProcessLookupError):
                        child.process.send_signal(signal.SIGINT if self.asked == 1 else signal.SIGKILL)

        before = {number: signal.signal(number, ask) for number in (signal.SIGINT, signal.SIGTERM)}
        try:
            yield
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)


def free_port() -> int:
    """A port of this host that nobody uses now."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def _die_with_parent(parent: int) -> Callable[[], None] | None:
    """On Linux the kernel kills a process whose launcher is gone, however that went."""
    if not sys.platform.startswith("linux"):
        return None
    libc = ctypes.CDLL(None)

    def prepare() -> None:
        libc.prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
        if os.getppid() != parent:  # it went before the line above
            os._exit(1)

    return prepare


def _how(code: int) -> str:
    if code < 0:
        return f"was killed by {signal.Signals(-code).name}"
    return f"failed with exit code {code}"


def _tail(log: IO[bytes] | None) -> str:
    if log is None:
        return ""
    log.seek(0)
    printed = [line for line in log.read().decode(errors="replace").splitlines() if line.strip()]
    return "\n".join(printed[-3:])
