"""Resident memory after 100,000 rounds against that after 1,000, in a process of its own."""

import json
import subprocess
import sys
from pathlib import Path

from common import a9a, report, row

import pisco

LONG, SHORT = 100_000, 1_000


def resident() -> float:
    """Megabytes this process holds now (Linux)."""
    status = Path("/proc/self/status").read_text()
    return int(status.split("VmRSS:")[1].split()[0]) / 1e3


def held() -> dict[int, float]:
    """The megabytes held after SHORT and LONG rounds of one run."""
    problem = a9a()
    network = pisco.Network.ring(10, weights="metropolis", server=pisco.bernoulli(0.1))
    rule = pisco.algorithms.pisco(local_lr=0.01, local_steps=1)
    found = {}

    def look(progress):
        if progress.done in (SHORT, LONG):
            found[progress.done] = resident()

    pisco.run(rule, problem, network, rounds=LONG, batch_size=32, eval_every=100, progress=look)
    return found


def rows():
    fresh = subprocess.run([sys.executable, __file__, "held"], check=True, capture_output=True, text=True)
    short, long = json.loads(fresh.stdout)
    yield row(f"memory: {LONG} rounds against {SHORT}", long, short, "MB", "≤ 1.05")


if __name__ == "__main__":
    if sys.argv[1:] == ["held"]:
        print(json.dumps(list(held().values())))
    else:
        report(rows())
