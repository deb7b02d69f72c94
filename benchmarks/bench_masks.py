"""What masks cost: a federation on loopback, with `server_sum = "masked"` or not.

    python benchmarks/bench_masks.py         # n = 8, d = 1,000,000: the figures of docs/federation-security.md

    python benchmarks/bench_masks.py --server-prob 0.1 --rounds 62

Prints one JSON object. Real processes, mutual TLS, everything kept on disk; the two kinds take turns, and the shorter
times count. `round_ms` is what agents see between two finished rounds of PISCO (two exchanges), on average;
`cpu_ms_per_agent` and `cpu_ms_server` what a round costs one agent's process and the server's, whatever else the
machine does, and `cpu_ms` all of them; `bytes_per_round` what all agents send to the server and hear from it. `ratio`
has masked over plain of each. `alone` times the parts of one exchange in this process: one agent's message, and the
server's sum.
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
from types import SimpleNamespace
from typing import Any

import numpy as np
from bench_federation import MODULE, WORKER

SERVER = """
import json, sys, time
from pathlib import Path
from pisco.federation.kits import Kit
from pisco.federation.runtime.server import Server

seen, server = [], Server(Kit.load(sys.argv[1]), Path(sys.argv[2]))
found = server.run(lambda ledger: seen.append((server.saved, time.process_time()))).history
sent = float(found["bytes_server"][-1] - found["bytes_server"][0])
Path(sys.argv[2], "times.json").write_text(json.dumps({"seen": seen, "sent": sent}))
"""


def federation(given: argparse.Namespace, server_sum: str | None) -> dict[str, float]:
    """Run one, and read the times that its agents noted."""
    from pisco.federation import kits
    from pisco.federation.authority import Authority
    from pisco.federation.plan import Federation

    with tempfile.TemporaryDirectory() as folder:
        home = Path(folder)
        plan = Federation.create(
            "bench",
            rounds=given.rounds,
            agents=given.agents,
            port=given.port,
            algorithm={"name": "pisco", "local_lr": 0.01, "local_steps": 1},
            network={"graph": "ring", "server_prob": given.server_prob},
            eval_every=given.rounds,
            server_sum=server_sum,
        )
        Authority.create(home / "authority", plan.name)
        (home / "model.py").write_text(MODULE.format(dim=given.dim))
        for name in (*plan.names, "server"):
            kits.issue(home, plan, name, home / name)
        processes = [subprocess.Popen([sys.executable, "-c", SERVER, str(home / "server"), str(home / "s-server")])]
        for name in plan.names:
            command = [sys.executable, "-c", WORKER, str(home / name), str(home / "model.py"), str(home / f"s-{name}")]
            processes.append(subprocess.Popen(command, env=os.environ))
        codes = [process.wait() for process in processes]
        assert not any(codes), codes
        found = [json.loads((home / f"s-{name}" / "times.json").read_text()) for name in plan.names]
        server = json.loads((home / "s-server" / "times.json").read_text())
    rounds, processor = np.moveaxis(np.diff(found, axis=1)[:, 2:], 2, 0)  # the first ones fill caches
    # After the first rounds, and before goodbyes, of which each is kept too.
    made = [each for each in server["seen"] if 6 <= each[0] <= 2 * given.rounds * given.server_prob]
    averages, spent = np.subtract(made[-1], made[0])
    each = [1e3 * float(processor.mean()), 2e3 * given.server_prob * float(spent / max(1, averages))]
    times = {"round_ms": 1e3 * float(rounds.mean()), "cpu_ms_per_agent": each[0], "cpu_ms_server": each[1]}
    return times | {"cpu_ms": given.agents * each[0] + each[1], "bytes_per_round": server["sent"] / given.rounds}


def alone(dim: int, agents: int, repeats: int = 5) -> dict[str, dict[str, float]]:
    """The shortest time of one agent's message and of the server's sum, without and with masks."""
    from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey

    from pisco.federation.runtime import masks
    from pisco.federation.runtime.buffers import Buffers
    from pisco.federation.runtime.codec import Where
    from pisco.federation.runtime.routes import ServerHop
    from pisco.federation.runtime.sums import MaskedReports, MaskedSum, PlainSum, Reporting
    from pisco.federation.runtime.used import UsedMasks

    names = [f"agent-{i}" for i in range(agents)]
    hop = ServerHop(None, tuple(range(agents)), tuple(range(agents)))
    part = Reporting(Where(bytes(32), 1, 0), 0, hop, names)
    own, *others = [X25519PrivateKey.generate() for _ in names]
    public = [key.public_key().public_bytes_raw() for key in others]
    pairs = {n: masks.pair_key(own, p, bytes(32), ("agent-0", n)) for n, p in zip(names[1:], public, strict=True)}
    vector = np.random.default_rng(0).normal(size=(1, dim)).astype(np.float32)
    with tempfile.TemporaryDirectory() as folder:
        reports, adding = MaskedReports.__new__(MaskedReports), MaskedSum.__new__(MaskedSum)
        reports.agent = SimpleNamespace(name="agent-0", wanted=lambda where: True)  # type: ignore[assignment]
        ring = SimpleNamespace(pairs=lambda names, wanted: {name: pairs[name] for name in names})
        reports.ring = ring  # type: ignore[assignment]
        found = {}
        reports.buffers = Buffers()
        for kind, agent, server in (("plain", PlainSum(None), PlainSum(None)), ("masked", reports, adding)):
            times: dict[str, list[float]] = {"message_ms": [], "sum_ms": []}
            for _ in range(repeats):
                reports.used = UsedMasks(Path(folder), durable=False)
                began = time.perf_counter()
                layout, data = agent.message(part, [vector])
                times["message_ms"].append(time.perf_counter() - began)
                # What the others sent, in memory of their own; masks cancel, as a negative is the inverse and 1.
                sent = layout.split(data)
                arrays: Any = {p: [np.zeros_like(plane) for plane in sent] for p in range(agents)} | {0: sent}
                arrays |= {1: [~plane for plane in sent]} if kind == "masked" else {}
                began = time.perf_counter()
                server.combine(arrays, layout, hop)
                times["sum_ms"].append(time.perf_counter() - began)
            found[kind] = {name: round(1e3 * min(each), 2) for name, each in times.items()}
    return found


def main() -> None:
    from pisco.cli.console import use_compilation_cache

    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--agents", type=int, default=8)
    parser.add_argument("--dim", type=int, default=1_000_000)
    parser.add_argument("--rounds", type=int, default=22)
    parser.add_argument("--server-prob", type=float, default=1.0)
    parser.add_argument("--repeats", type=int, default=2)
    parser.add_argument("--port", type=int, default=17800)
    given = parser.parse_args()
    use_compilation_cache()
    kinds: dict[str, str | None] = {"plain": None, "masked": "masked"}
    runs = [{kind: federation(given, each) for kind, each in kinds.items()} for _ in range(given.repeats)]
    best = {kind: {name: round(min(run[kind][name] for run in runs), 2) for name in runs[0][kind]} for kind in kinds}
    ratio = {name: round(best["masked"][name] / best["plain"][name], 3) for name in best["plain"]}
    print(
        json.dumps(
            {
                "agents": given.agents,
                "dim": given.dim,
                "rounds": given.rounds,
                "server_prob": given.server_prob,
                **best,
                "ratio": ratio,
                "alone": alone(given.dim, given.agents),
                "cores": os.cpu_count(),
                "load": os.getloadavg()[0],
            }
        )
    )


if __name__ == "__main__":
    main()
