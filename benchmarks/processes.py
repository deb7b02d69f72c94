"""Real processes for benchmarks: each runs one function of a benchmark file, process 0's answer comes back as JSON."""

from __future__ import annotations

import json
import os
import sys
import tempfile
from pathlib import Path

import numpy as np

import pisco
from pisco.engines.job import Job, Run, Segment
from pisco.engines.sharded import ShardedEngine


def in_processes(file: str, count: int, options: dict, devices: int = 1) -> list:
    """Run `python file --member options` in `count` processes; the rows that process 0 wrote."""
    from pisco.engines.cluster.supervisor import Supervisor

    with tempfile.TemporaryDirectory() as folder:
        answer = Path(folder) / "rows.json"

        def command(start: int, process: int, coordinator: str) -> list[str]:
            place = {"coordinator": coordinator, "count": count, "process": process, "devices": devices}
            told = json.dumps({"place": place, "options": options, "answer": str(answer)})
            return [sys.executable, file, "--member", told]

        code = Supervisor(command, count, max_failures=0, say=lambda line: print(line, file=sys.stderr)).run()
        if code:
            raise SystemExit(code)
        return json.loads(answer.read_text())


def member(told: str, work) -> None:
    """The other side: join, work, and let process 0 answer."""
    import jax

    from pisco.engines.cluster.processes import Rank, join

    told = json.loads(told)
    place = told["place"]
    jax.config.update("jax_num_cpu_devices", place["devices"])
    if place["count"] > 1:
        join(Rank(place["coordinator"], place["count"], place["process"]))
    rows = work(**told["options"])
    if place["process"] == 0:
        Path(told["answer"]).write_text(json.dumps(rows))


def needed_rows(network, blocks) -> int:
    """How many rows must cross between devices in one gossip exchange: each neighbour's once per device."""
    incoming = network.weights.T.tocoo()
    start, end = incoming.col // blocks.block, incoming.row // blocks.block
    away = start != end
    return np.unique(np.stack([start[away], end[away], incoming.col[away]]), axis=1).shape[1]


def rounds_of(network, params: int, rounds: int, *, local_steps: int = 1, work: int = 1):
    """A function that runs so many PISCO rounds on all devices, metrics off, compiled beforehand.

    Agent i minimises ½‖x − bᵢ‖² over `work` samples b: next to no computing, all of it communication, unless
    `work` is large.
    """
    rng = np.random.default_rng(0)
    data = {"b": rng.normal(size=(network.num_agents, work, params)).astype(np.float32)}
    problem = pisco.Problem(_loss, np.zeros(params, np.float32), data)
    rule = pisco.algorithms.pisco(local_lr=0.01, local_steps=local_steps)
    job = Job(problem, network, (Run(rule, network.server, 0),))
    engine, segment = ShardedEngine(), Segment(1, rounds, measured=False)
    states = engine.advance(job, engine.start(job), 0, segment)[0]
    state = {"states": states, "done": rounds}

    def run():
        state["states"], _, links = engine.advance(job, state["states"], state["done"], segment)
        state["done"] += rounds
        return links

    return engine, run


def _loss(params, batch, key):
    return 0.5 * ((params - batch["b"]) ** 2).sum(axis=-1)


def cores() -> int:
    """Cores this process may use."""
    return len(os.sched_getaffinity(0))
