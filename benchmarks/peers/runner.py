"""A runner in its own process: started, asked for measurements, ended with everything it started."""

from __future__ import annotations

import contextlib
import json
import os
import queue
import signal
import subprocess
import threading
import time
from collections import deque
from pathlib import Path

import wire


class Failed(Exception):
    """Why a runner gave no measurement, in one line."""


class Runner:
    """A process that answers every request with one measurement; the rest of its output goes to `log`."""

    def __init__(self, command: list[str], log: Path, env: dict[str, str], timeout: float):
        self.timeout, self.log = timeout, log
        self.tail: deque[str] = deque(maxlen=200)
        self.answers: queue.Queue[dict | None] = queue.Queue()
        self.process = subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
            env=env,
            start_new_session=True,  # Ctrl-C reaches the driver alone, which then ends the runner
        )
        threading.Thread(target=self._read, daemon=True).start()
        try:
            self.about = self._next()  # versions, and perhaps a note
        except BaseException:
            self.close()
            raise

    def measure(self) -> tuple[float, float]:
        """Seconds per round, and how many cores its own process had meanwhile."""
        with contextlib.suppress(BrokenPipeError):  # the answer says why
            self.process.stdin.write("go\n")
            self.process.stdin.flush()
        answer = self._next()
        return answer["seconds"], answer["cores"]

    def close(self) -> None:
        """End the process and everything below it."""
        family = _family(self.process.pid)
        with contextlib.suppress(OSError):
            self.process.stdin.close()
        if not self.busy:  # it ends by itself when its input does
            with contextlib.suppress(subprocess.TimeoutExpired):
                self.process.wait(10)
        for kind in (signal.SIGTERM, signal.SIGKILL):
            for pid in family:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, kind)
            for _ in range(20):
                if self.process.poll() is not None and not any(map(_alive, family)):
                    return
                time.sleep(0.1)

    def _read(self) -> None:
        with self.log.open("w") as log:
            for line in self.process.stdout:
                if line.startswith(wire.MARK):
                    self.answers.put(json.loads(line.removeprefix(wire.MARK)))
                else:
                    log.write(line)
                    log.flush()
                    self.tail.append(line.strip())
        self.answers.put(None)

    def _next(self) -> dict:
        self.busy = True
        try:
            answer = self.answers.get(timeout=self.timeout)
        except queue.Empty:
            raise Failed(f"no answer within {self.timeout:.0f} s; see {self.log}") from None
        if answer is None:
            said = [line for line in self.tail if "Error" in line] or [line for line in self.tail if line]
            raise Failed(f"{said[-1][:300] if said else 'ended without a word'}; see {self.log}")
        self.busy = False
        return answer


def _family(root: int) -> list[int]:
    """The process and its descendants, some of which sit in sessions of their own."""
    listed = subprocess.run(["ps", "-eo", "pid=,ppid="], capture_output=True, text=True, check=False).stdout
    children: dict[int, list[int]] = {}
    for line in listed.splitlines():
        pid, parent = map(int, line.split())
        children.setdefault(parent, []).append(pid)
    found, waiting = [], [root]
    while waiting:
        pid = waiting.pop()
        found.append(pid)
        waiting += children.get(pid, [])
    return found


def _alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True
