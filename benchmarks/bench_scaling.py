"""What it costs to spread a run over devices and processes of this machine; one JSON object a line.

All share one machine, so the honest reference for D devices is the same total work on one device: a ratio of 1 means
that spreading is free. From the processes' times a model of a round is fitted,

    t = c·(numbers read by gradients) + α·(messages in sequence) + (bytes over the loopback)/B,

checked against every measurement, and used to predict other clusters (`docs/scaling.md` has the assumptions).
"""

from __future__ import annotations

import argparse
import json
import time

import jax
import numpy as np
from processes import cores, in_processes, member, needed_rows, rounds_of

import pisco

PER_DEVICE, TOTAL, PARAMS, SAMPLES = 4, 16, 5_000, 16
EXCHANGES, GRADIENTS = 2, 2  # of a PISCO round with one local step
SIZES = (1_000, 10_000, 100_000, 300_000)
LINKS = {
    "1 Gbit/s, 100 µs": (1e9 / 8, 100e-6),
    "10 Gbit/s, 50 µs": (1e10 / 8, 50e-6),
    "100 Gbit/s, 5 µs": (1e11 / 8, 5e-6),
}


def prepare(kind, network, params, samples, rounds):
    """A run to be timed, with what the model needs to know of it."""
    engine, run = rounds_of(network, params, rounds, work=samples)
    devices = engine.blocks.devices
    server = network.server.probability == 1.0
    rows = 2 * (devices - 1) if server else needed_rows(network, engine.blocks)
    steps = 2 * (devices - 1) if server else len(engine.held.exchange.pairs)
    known = {
        "kind": kind,
        "devices": devices,
        "processes": jax.process_count(),
        "agents": network.num_agents,
        "params": params,
        "seconds": float("inf"),
        "numbers": network.num_agents * GRADIENTS * samples * params,
        "steps": EXCHANGES * steps,
        "bytes": EXCHANGES * rows * params * 4,
    }
    return known, run


def measure(rounds: int, repeats: int, communication: bool) -> list[dict]:
    devices = len(jax.devices())
    prepared = []
    for word, server in {"gossip": pisco.never(), "server": pisco.always()}.items():
        weak = pisco.Network.ring(PER_DEVICE * devices, server=server)
        prepared.append(prepare(f"weak, {word}", weak, PARAMS, SAMPLES, rounds))
        strong = pisco.Network.ring(TOTAL, server=server)
        prepared.append(prepare(f"strong, {word}", strong, PARAMS, SAMPLES, rounds))
        for params in SIZES if communication else ():
            bare = pisco.Network.ring(max(devices, 3), server=server)
            prepared.append(prepare(f"bare, {word}", bare, params, 1, rounds))
    for _ in range(repeats):  # in turn, so that what else the machine does disturbs all alike
        for known, run in prepared:
            began = time.perf_counter()
            run()
            known["seconds"] = min(known["seconds"], (time.perf_counter() - began) / rounds)
    return [known for known, _ in prepared]


def fit(points):
    """c, α and 1/B by least squares on relative errors, none of them negative."""
    from scipy.optimize import nnls

    columns = np.asarray([[p["numbers"], p["steps"], p["bytes"]] for p in points], float)
    seconds = np.asarray([p["seconds"] for p in points])
    scale = columns.max(axis=0)
    solved, _ = nnls(columns / scale / seconds[:, None], np.ones(len(points)))
    return solved / scale


def predicted(model, p):
    return float(np.dot(model, [p["numbers"], p["steps"], p["bytes"]]))


def cluster(model, hosts, server, link, params=1_000_000, samples=256):
    """Seconds a round where every host has one agent, computes as this machine does, and has a link of its own."""
    bandwidth, latency = link
    compute = model[0] * GRADIENTS * samples * params
    steps = 2 * (hosts - 1) if server else 2
    sent = (2 * (hosts - 1) / hosts if server else 2) * params * 4
    return compute + EXCHANGES * (steps * (model[1] + latency) + sent / bandwidth)


def say(**row):
    print(json.dumps(row, ensure_ascii=False), flush=True)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--repeats", type=int, default=60)
    parser.add_argument("--most", type=int, default=4, help="the largest number of devices and of processes")
    parser.add_argument("--member", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.member:
        member(options.member, measure)
        return
    counts = [count for count in (1, 2, 4, 8, 16) if count <= options.most]
    points = []
    for count in counts:
        wanted = {"rounds": options.rounds, "repeats": options.repeats, "communication": False}
        points += in_processes(__file__, 1, wanted, devices=count)
    for count in counts[1:]:
        points += in_processes(__file__, count, wanted | {"communication": True})
    alone = {p["kind"]: p["seconds"] / p["agents"] for p in points if p["devices"] == 1}
    for p in points:
        if p["kind"] not in alone:
            continue
        spread = f"{p['processes']} processes" if p["processes"] > 1 else f"{p['devices']} devices"
        reference = alone[p["kind"]] * p["agents"]
        say(
            workload=f"{p['kind']}, {p['agents']} agents on {spread}, d = {p['params']}",
            ours=round(1e3 * p["seconds"], 2),
            reference=round(1e3 * reference, 2),
            ratio=round(p["seconds"] / reference, 2),
            unit="ms a round",
            cores=cores(),
        )
    told = [p for p in points if p["processes"] > 1 or p["devices"] == 1]
    model = fit(told)
    say(
        workload="the model",
        nanoseconds_a_number=round(1e9 * model[0], 3),
        microseconds_a_message=round(1e6 * model[1], 1),
        megabytes_a_second=round(1e-6 / model[2]) if model[2] else None,
    )
    for p in told:
        say(
            workload=f"model: {p['kind']}, {p['agents']} agents on {p['processes']} processes, d = {p['params']}",
            ours=round(1e3 * p["seconds"], 2),
            reference=round(1e3 * predicted(model, p), 2),
            ratio=round(p["seconds"] / predicted(model, p), 2),
            unit="ms a round",
        )
    for words, link in LINKS.items():
        for server in (False, True):
            few, many = cluster(model, 4, server, link), cluster(model, 64, server, link)
            say(
                workload=f"predicted: 64 hosts, {'server' if server else 'gossip'} rounds, {words}",
                ours=round(1e3 * many, 2),
                reference=round(1e3 * few, 2),
                ratio=round(many / few, 3),
                unit="ms a round; the reference is 4 hosts",
            )


if __name__ == "__main__":
    main()
