"""Seconds per round and bytes of a federation on loopback: real processes, mutual TLS, everything kept on disk.

    python benchmarks/bench_federation.py                     # n = 4, d = 50,000: the figures of docs/performance.md
    python benchmarks/bench_federation.py --agents 4 --dim 50000000 --rounds 3    # 200 MB of parameters
    python benchmarks/bench_federation.py --compressor top-k                      # a tenth of the entries
    python benchmarks/bench_federation.py --wire bfloat16
    python benchmarks/bench_federation.py --dim 124 --rounds 400 --pause 0.08     # a small model with slower rounds

Prints one JSON object. `cpu_ms_per_agent` is what a round costs one agent's process, whatever else the machine does. A
round's time is what agents see between two finished rounds; traffic is what the
kernel counted on the loopback device during those rounds, against the bytes of the vectors that were exchanged, and
against those that are counted, which compression makes fewer. (Where the machine has other traffic: `unshare
--map-root-user --net sh -c 'ip link set lo up && exec "$0" "$@"' python benchmarks/bench_federation.py`.)
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np

MODULE = """
import jax.numpy as jnp, numpy as np, pisco

def agent():
    data = {{"b": np.zeros((1, 4), np.float32)}}
    # The cheapest loss whose gradient has {dim} entries: what is timed is the engine. Numbers as those of a model.
    start = jnp.asarray(np.random.default_rng(0).normal(size={dim}), jnp.float32)
    return pisco.Problem(lambda x, batch, key: 0.5 * jnp.vdot(x, x) + batch["b"].sum(), start, data=[data])
"""

WORKER = """
import json, sys, time
from pathlib import Path
from pisco.federation.runtime.agent import Agent
from pisco.federation.kits import Kit
from pisco.interop.modules import load_problem

kit, module, folder, pause = [*sys.argv[1:], "0"][:4]
seen = []

def note(done):
    seen.append((time.perf_counter(), time.process_time()))
    time.sleep(float(pause))

agent = Agent(Kit.load(kit), load_problem(module), Path(folder), progress=note)
agent.run()
Path(folder, "times.json").write_text(json.dumps(seen))
"""


def loopback_bytes() -> int:
    """Bytes that went over the loopback device so far (each counted once)."""
    for line in Path("/proc/net/dev").read_text().splitlines():
        name, _, counts = line.partition(":")
        if name.strip() == "lo":
            return int(counts.split()[0])
    return 0


def main() -> None:
    from pisco.cli.console import use_compilation_cache
    from pisco.federation import kits
    from pisco.federation.authority import Authority
    from pisco.federation.plan import Federation
    from pisco.results import Result

    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--agents", type=int, default=4)
    parser.add_argument("--dim", type=int, default=50_000)
    parser.add_argument("--rounds", type=int, default=200)
    parser.add_argument("--server-prob", type=float, default=0.1)
    parser.add_argument("--port", type=int, default=17400)
    parser.add_argument("--pause", type=float, default=0.0, help="seconds that every round takes longer")
    parser.add_argument("--compressor", help="PISCO with this compressor")
    parser.add_argument("--wire", help="16 bits an entry: float16 or bfloat16")
    given = parser.parse_args()
    use_compilation_cache()
    with tempfile.TemporaryDirectory() as folder:
        home = Path(folder)
        algorithm = {"name": "pisco", "local_lr": 0.01, "local_steps": 1}
        if given.compressor:
            algorithm |= {"name": "pisco-compressed", "compressor": given.compressor}
        plan = Federation.create(
            "bench",
            rounds=given.rounds,
            agents=given.agents,
            port=given.port,
            algorithm=algorithm,
            wire=given.wire,
            network={"graph": "ring", "server_prob": given.server_prob},
            eval_every=given.rounds,
        )
        Authority.create(home / "authority", plan.name)
        (home / "model.py").write_text(MODULE.format(dim=given.dim))
        for name in (*plan.names, "server"):
            kits.issue(home, plan, name, home / name)
        pisco = [sys.executable, "-m", "pisco.cli.main"]
        before, began = loopback_bytes(), time.perf_counter()
        processes = [
            subprocess.Popen([*pisco, "server", "--kit", str(home / "server"), "--state", str(home / "s-server")])
        ]
        for name in plan.names:
            command = [sys.executable, "-c", WORKER, str(home / name), str(home / "model.py"), str(home / f"s-{name}")]
            command += [str(given.pause)]
            processes.append(subprocess.Popen(command, env=os.environ))
        codes = [process.wait() for process in processes]
        traffic, seconds = loopback_bytes() - before, time.perf_counter() - began
        assert not any(codes), codes
        history = Result.load(home / "server" / "result").history
        found = [json.loads((home / f"s-{name}" / "times.json").read_text()) for name in plan.names]
    rounds, processor = np.moveaxis(np.diff(found, axis=1)[:, 5:], 2, 0)  # the first ones fill caches
    messages = int(history["messages_gossip"][-1] + history["messages_server"][-1])
    vectors = messages * given.dim * 4
    counted = int(history["bytes_gossip"][-1] + history["bytes_server"][-1])
    print(
        json.dumps(
            {
                "agents": given.agents,
                "dim": given.dim,
                "rounds": given.rounds,
                "pause": given.pause,
                "median_ms": round(1e3 * float(np.median(rounds)), 2),
                "cpu_ms_per_agent": round(1e3 * float(processor.mean()), 2),
                "p90_ms": round(1e3 * float(np.quantile(rounds, 0.9)), 2),
                "seconds": round(seconds, 1),
                "sent": given.compressor or given.wire or "whole",
                "vector_bytes": vectors,
                "counted_bytes": counted,
                "loopback_bytes": traffic,
                "traffic_ratio": round(traffic / vectors, 4),
                "of_counted": round(traffic / counted, 4),
                "cores": os.cpu_count(),
                "load": os.getloadavg()[0],
            }
        )
    )


if __name__ == "__main__":
    main()
