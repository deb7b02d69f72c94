"""Start-up: `pisco demo` with an empty and with a warm compilation cache, and `import pisco`."""

import os
import subprocess
import sys
import tempfile
import time

from common import report, row


def seconds(*command: str, **environment: str) -> float:
    began = time.perf_counter()
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL, env=os.environ | environment)
    return time.perf_counter() - began


def rows():
    with tempfile.TemporaryDirectory() as folder:
        demo = (sys.executable, "-m", "pisco.cli.main", "demo", "--out", f"{folder}/demo")
        cold = seconds(*demo, PISCO_CACHE=folder)
        warm = seconds(*demo, PISCO_CACHE=folder)
    yield row("start: pisco demo, empty compilation cache", cold, 60, "s", "≤ 1")
    yield row("start: pisco demo, warm compilation cache", warm, 25, "s", "≤ 1")
    bare = min(seconds(sys.executable, "-c", "pass") for _ in range(3))
    full = min(seconds(sys.executable, "-c", "import pisco") for _ in range(3))
    yield row("start: import pisco", full - bare, 1.5, "s", "≤ 1")


if __name__ == "__main__":
    report(rows())
