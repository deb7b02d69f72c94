"""Seconds per round with agents that listen, against the same agents behind a relay: real processes on loopback.

    python benchmarks/bench_relay.py                     # n = 5, d = 1,000,000: the figures of docs/performance.md

Prints one JSON object. Direct and relayed runs take turns, so that both see the same machine; `ratio` is the relayed
throughput over the direct one. Everything shares the cores: the relay's work, which would be another machine's, and
the copying at both ends slow the rounds down here as nowhere else. `relay_cpu_ms` is what a round costs the relay.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

import numpy as np
from bench_federation import MODULE, WORKER

RELAY = """
import json, sys, time, threading, signal
from pathlib import Path
from pisco.federation.kits import Kit
from pisco.federation.runtime.relay import Relay

kit, told = Kit.load(sys.argv[1]), Path(sys.argv[2])
relay = Relay(kit, kit.federation.relays[0].address, lambda: kit.federation)
done = threading.Event()
signal.signal(signal.SIGTERM, lambda *_: done.set())
began = time.process_time()
done.wait()
told.write_text(json.dumps({"seconds": time.process_time() - began, "bytes": relay.bytes}))
"""


def timed(given: argparse.Namespace, hidden: bool) -> dict[str, float]:
    """The median seconds of a round, and what the relay did."""
    from pisco.cli.federation.loopback import free_ports
    from pisco.federation import kits
    from pisco.federation.authority import Authority
    from pisco.federation.plan import Federation

    first, second, *ports = [f"127.0.0.1:{port}" for port in free_ports(given.agents + 2)]
    with tempfile.TemporaryDirectory() as folder:
        home = Path(folder)
        plan = Federation.create(
            "bench",
            rounds=given.rounds,
            agents={f"agent-{i}": "outbound" if hidden else at for i, at in enumerate(ports)},
            server_address=first,
            relays={"relay-1": second},
            algorithm={"name": "pisco", "local_lr": 0.01, "local_steps": 1},
            network={"graph": "ring", "server_prob": 0.1},
            eval_every=given.rounds,
        )
        Authority.create(home / "authority", plan.name)
        (home / "model.py").write_text(MODULE.format(dim=given.dim))
        for name in (*plan.names, *plan.helpers):
            kits.issue(home, plan, name, home / name)
        relay = subprocess.Popen([sys.executable, "-c", RELAY, str(home / "relay-1"), str(home / "relay.json")])
        pisco = [sys.executable, "-m", "pisco.cli.main"]
        processes = [subprocess.Popen([*pisco, "server", "--kit", str(home / "server")], stdout=sys.stderr)]
        for name in plan.names:
            command = [sys.executable, "-c", WORKER, str(home / name), str(home / "model.py"), str(home / f"s-{name}")]
            processes.append(subprocess.Popen(command, env=os.environ))
        codes = [process.wait() for process in processes]
        relay.terminate()
        assert not any([*codes, relay.wait()]), codes
        found = [json.loads((home / f"s-{name}" / "times.json").read_text()) for name in plan.names]
        told = json.loads((home / "relay.json").read_text())
    rounds = np.diff(found, axis=1)[:, 3:]  # the first ones fill caches
    return {"ms": 1e3 * float(np.median(rounds[..., 0])), "cpu": 1e3 * float(rounds[..., 1].mean())} | told


def main() -> None:
    from pisco.cli.console import use_compilation_cache

    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--agents", type=int, default=5)
    parser.add_argument("--dim", type=int, default=1_000_000)
    parser.add_argument("--rounds", type=int, default=25)
    parser.add_argument("--turns", type=int, default=3)
    given = parser.parse_args()
    use_compilation_cache()
    direct, relayed = [], []
    for _ in range(given.turns):
        direct.append(timed(given, hidden=False))
        relayed.append(timed(given, hidden=True))
    plain, behind = (float(np.median([each["ms"] for each in runs])) for runs in (direct, relayed))
    print(
        json.dumps(
            {
                "agents": given.agents,
                "dim": given.dim,
                "rounds": given.rounds,
                "direct_ms": [round(each["ms"], 1) for each in direct],
                "relayed_ms": [round(each["ms"], 1) for each in relayed],
                "ratio": round(plain / behind, 3),
                "agent_cpu_ms": [round(float(np.median([e["cpu"] for e in runs])), 1) for runs in (direct, relayed)],
                "relay_cpu_ms": round(1e3 * float(np.median([e["seconds"] for e in relayed])) / given.rounds, 1),
                "relayed_bytes": int(relayed[-1]["bytes"]),
                "cores": os.cpu_count(),
                "load": os.getloadavg()[0],
            }
        )
    )


if __name__ == "__main__":
    main()
