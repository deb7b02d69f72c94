"""Bytes that cross the loopback in a round of the engine `sharded`, against the theory; one JSON object a line.

Real processes exchange real messages over gloo. They live in a network namespace of their own (`unshare`), whose
loopback counter is read before and after: everything counts, also headers, acknowledgements and heartbeats.

Theory, for vectors of d numbers on D processes, per exchange (PISCO has two a round):
  gossip: every agent's row once to every other process that has a neighbour of it;
  server: 2(D − 1)·d, what an all-reduce of one partial sum per process needs at least.
"""

from __future__ import annotations

import argparse
import json
import shutil
import subprocess
import sys
from pathlib import Path

import jax
from processes import in_processes, member, needed_rows, rounds_of

import pisco
from pisco.engines.sharded.transfers import Blocks
from pisco.networks import graphs

GRAPHS = {
    "ring of 8": lambda: graphs.ring(8),
    "ring of 10": lambda: graphs.ring(10),
    "grid of 4×4": lambda: graphs.grid(4, 4),
    "Erdős–Rényi of 16": lambda: graphs.erdos_renyi(16, 0.3, seed=1),
    "complete of 8": lambda: graphs.complete(8),
}
SERVERS = {"gossip": pisco.never(), "server": pisco.always(), "a coin with p = 0.5": pisco.bernoulli(0.5)}
EXCHANGES = 2
PRIVATE = ("unshare", "--map-root-user", "--net", "sh", "-c", 'ip link set lo up && exec "$0" "$@"')


def loopback_bytes() -> int:
    """Bytes sent over the loopback of this network namespace so far."""
    for line in Path("/proc/self/net/dev").read_text().splitlines():
        if line.strip().startswith("lo:"):
            return int(line.split(":")[1].split()[8])
    raise SystemExit("this machine has no loopback")


def measure(params: int, rounds: int) -> list[dict]:
    from jax.experimental.multihost_utils import sync_global_devices

    rows = []
    for name, build in GRAPHS.items():
        for kind, server in SERVERS.items():
            if kind == "a coin with p = 0.5" and name != "ring of 8":
                continue
            network = pisco.Network(build(), server=server)
            engine, run = rounds_of(network, params, rounds)
            sync_global_devices("before")
            before = loopback_bytes()
            links = run()
            sync_global_devices("after")
            moved = (loopback_bytes() - before) / rounds
            blocks: Blocks = engine.blocks
            share = float(links.server.sum()) / rounds  # of the rounds, those that reached the server
            gossip = needed_rows(network, blocks) * params * 4 * EXCHANGES
            reduced = 2 * (blocks.devices - 1) * params * 4 * EXCHANGES
            theory = share * reduced + (1 - share) * gossip
            rows.append(
                {
                    "workload": f"{name}, {kind}, d = {params}, {jax.process_count()} processes",
                    "ours": round(moved),
                    "reference": round(theory),
                    "ratio": round(moved / theory, 4),
                    "unit": "bytes a round",
                }
            )
    return rows


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--processes", type=int, default=4)
    parser.add_argument("--params", type=int, default=50_000)
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--member", help=argparse.SUPPRESS)
    parser.add_argument("--here", action="store_true", help="count in this network namespace, with its other traffic")
    options = parser.parse_args()
    if options.member:
        member(options.member, measure)
        return
    can = shutil.which("unshare") and shutil.which("ip")
    if not options.here and can and subprocess.run([*PRIVATE, "true"], capture_output=True).returncode == 0:
        raise SystemExit(subprocess.run([*PRIVATE, sys.executable, *sys.argv, "--here"]).returncode)
    wanted = {"params": options.params, "rounds": options.rounds}
    for row in in_processes(__file__, options.processes, wanted):
        print(json.dumps(row, ensure_ascii=False), flush=True)


if __name__ == "__main__":
    main()
