"""A clock's prediction against real federations of 8 processes with injected delays; prints one JSON object each.

Every process runs on this machine and is reached through a proxy that delays each piece of data; before every gradient
an agent sleeps, agent 0 ten times as long. While a federation runs, `pisco federation measure` writes its clock; a
simulation of the same plan with that clock then says when the last round is over. Real time is counted from round 3,
when connections are open and programs loaded, to the last agent's last round.

    python benchmarks/bench_clock.py                      # three federations, some four minutes on 2 cores
    python benchmarks/bench_clock.py ring --rounds 40
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import numpy as np

sys.path.insert(0, str(Path(__file__).parent.parent / "tests"))

AGENTS, FROM = 8, 3
MODULE = """
import jax.numpy as jnp, numpy as np, pisco

def agent():
    data = {"b": np.zeros((1, 4), np.float32)}
    return pisco.Problem(lambda x, batch, key: 0.5 * jnp.vdot(x, x) + batch["b"].sum(), jnp.ones(1000), data=[data])
"""

WORKER = """
import json, sys, time
from pathlib import Path
from pisco.federation.runtime.agent import Agent
from pisco.federation.kits import Kit
from pisco.interop.modules import load_problem

kit, module, folder, listen, asleep = sys.argv[1:]
work = json.loads(asleep)  # seconds before every exchange of a round
seen = []
note = lambda done: seen.append(time.time())
agent = Agent(Kit.load(kit), load_problem(module), Path(folder), listen=listen, progress=note)
exchange = agent._exchange

def late(kind, call, leaves):
    time.sleep(work[call])
    return exchange(kind, call, leaves)

agent._exchange = late
agent.run()
Path(folder, "times.json").write_text(json.dumps(seen))
"""

PISCO, SCAFFOLD = {"name": "pisco", "local_lr": 0.01, "local_steps": 1}, {"name": "scaffold", "local_lr": 0.01}
CASES: dict[str, dict[str, Any]] = {
    "ring": {"algorithm": PISCO, "network": {"graph": "ring", "server_prob": 0.1}},
    "grid": {
        "algorithm": {"name": "pisco-one-exchange", "local_lr": 0.01, "local_steps": 3},
        "network": {"graph": "grid", "rows": 2, "server_prob": 0.3},
    },
    "server": {"algorithm": {"name": "fedavg", "local_lr": 0.01, "local_steps": 2}, "network": {"server": "always"}},
}


def federation(name: str, rounds: int, *, gradient: float, delay: float, far: float) -> dict[str, Any]:
    """One federation, measured on the way, and what its clock predicts."""
    import pisco
    from pisco.cli.federation.loopback import _environment, free_ports
    from pisco.costs import message_sizes
    from pisco.federation import kits
    from pisco.federation.authority import Authority
    from pisco.federation.plan import Federation

    from proxy import Proxy

    command = [sys.executable, "-m", "pisco.cli.main"]
    with tempfile.TemporaryDirectory() as folder, ExitStack() as stack:
        home = Path(folder)
        listens = [f"127.0.0.1:{port}" for port in free_ports(AGENTS + 1)]
        lags = [far, *[delay] * AGENTS]
        proxies = [stack.enter_context(Proxy(at, delay=lag)) for at, lag in zip(listens, lags, strict=True)]
        server, *agents = (proxy.address for proxy in proxies)
        plan = Federation.create(
            "clocked",
            rounds=rounds,
            agents={f"agent-{i}": address for i, address in enumerate(agents)},
            server_address=server,
            eval_every=rounds,
            patience=600.0,
            **CASES[name],
        )
        rule = plan.build_algorithm()
        works = message_sizes(rule, np.zeros((1, 1000), np.float32), 1).work[:-1]
        Authority.create(home / "authority", plan.name)
        (home / "model.py").write_text(MODULE)
        for each in (*plan.names, "server"):
            kits.issue(home, plan, each, home / each)
        started = [[*command, "server", "--kit", str(home / "server"), "--listen", listens[0]]]
        for i, each in enumerate(plan.names):
            asleep = json.dumps([gradient * (10 if i == 0 else 1) * work for work in works])
            places = map(str, (home / each, home / "model.py", home / f"s-{each}"))
            started.append([sys.executable, "-c", WORKER, *places, listens[1 + i], asleep])
        processes = [subprocess.Popen(each, env=_environment(), stdout=subprocess.DEVNULL) for each in started]
        clock_file = home / "clock.toml"
        try:
            while any(process.poll() is None for process in processes):
                time.sleep(2.0)
                # The newest clock counts; before all agents have told their times there is none.
                told = [*command, "federation", "measure", "--kit", str(home / "server"), "-o", str(clock_file)]
                subprocess.run(told, capture_output=True, check=False)
        finally:
            for process in processes:
                process.terminate()
        assert not any(process.wait() for process in processes)
        real = np.array([json.loads((home / f"s-{each}" / "times.json").read_text()) for each in plan.names])
        problem = pisco.Problem(
            lambda x, batch, key: (x**2).sum() + batch["b"].sum(),
            np.ones(1000, np.float32),
            data=[{"b": np.zeros((1, 4), np.float32)}] * AGENTS,
        )
        network = plan.network_of(plan.epochs[0])
        found = pisco.run(rule, problem, network, rounds=rounds, seed=plan.seed, eval_every=1, clock=str(clock_file))
        clock = pisco.Clock.of(str(clock_file))
    took = float(real[:, -1].max() - real[:, FROM - 1].max())
    seconds = found.history["seconds"]
    predicted = float(seconds[-1] - seconds[FROM])
    return {
        "federation": name,
        "rounds": rounds - FROM,
        "real_seconds": round(took, 2),
        "predicted_seconds": round(predicted, 2),
        "ratio": round(predicted / took, 3),
        "compute_ms": np.round(1e3 * clock.compute.median, 1).tolist(),
        "latency_gossip_ms": round(1e3 * float(np.median(clock.latency_gossip.median)), 1),
        "latency_server_ms": round(1e3 * float(np.median(clock.latency_server.median)), 1),
        "injected_ms": {"gradient": 1e3 * gradient, "slow": 1e4 * gradient, "link": 1e3 * delay, "server": 1e3 * far},
        "load": os.getloadavg()[0],
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("federations", nargs="*", help=f"of {', '.join(CASES)}; all unless given")
    parser.add_argument("--rounds", type=int, default=30)
    parser.add_argument("--gradient", type=float, default=0.05, help="seconds of sleep before a gradient")
    parser.add_argument("--delay", type=float, default=0.05, help="seconds to an agent, each way")
    parser.add_argument("--far", type=float, default=0.1, help="seconds to the server, each way")
    given = parser.parse_args()
    for name in given.federations or CASES:
        record = federation(name, given.rounds, gradient=given.gradient, delay=given.delay, far=given.far)
        print(json.dumps(record), flush=True)


if __name__ == "__main__":
    main()
