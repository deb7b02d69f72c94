"""Waiting for what takes as long as the machine takes: only standing still is a failure.

Two busy cores may need ten times as long as two idle ones, so that no number of seconds for the whole is right.
"""

import subprocess
import time

QUIET = 300
"""Seconds in which nothing moves, on however busy a machine: then nothing will."""


class Patience:
    """Looks at what should move; too long without a change is a failure."""

    def __init__(self, moved, quiet=QUIET, say=lambda: ""):
        self.moved, self.quiet, self.say = moved, quiet, say
        self.last, self.since = moved(), time.monotonic()

    def look(self):
        now = self.moved()
        if now != self.last:
            self.last, self.since = now, time.monotonic()
        waited = time.monotonic() - self.since
        assert waited < self.quiet, f"nothing has moved for {self.quiet} s, at {now}: {self.say()}"


def wait_until(condition, moved=lambda: None, *, every=0.02, **patience):
    """Wait for a condition for as long as `moved()` changes."""
    patience = Patience(moved, **patience)
    while not condition():
        patience.look()
        time.sleep(every)


def written(folder):
    """How many files a folder holds, and when the last was written: this moves while programs work in it."""
    times = []
    for file in folder.rglob("*"):
        try:
            times.append(file.stat().st_mtime_ns)
        except OSError:  # renamed or deleted a moment ago
            continue
    return len(times), max(times, default=0)


def outcome(process, folder, **patience):
    """The exit code of a process that works in a folder, what it printed, and its errors."""
    patience = Patience(lambda: written(folder), **patience)
    while True:
        try:
            out, err = process.communicate(timeout=0.5)
            return process.returncode, out, err
        except subprocess.TimeoutExpired:
            try:
                patience.look()
            except AssertionError:
                process.kill()
                raise
