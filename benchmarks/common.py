"""What the benchmarks share: timings that take turns, rows, and workloads."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Callable, Iterable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

import pisco
from pisco.engines.job import Carry, Job, Run, Segment
from pisco.engines.scan import ScanEngine
from pisco.tree import stack_agents, zeros_like
from pisco.types import StartMix

Call = Callable[[], Any]


def shortest(calls: dict[str, Call], repeats: int) -> dict[str, float]:
    """The shortest time of each call. They take turns, so that other work on the machine hits all of them."""
    times: dict[str, list[float]] = {name: [] for name in calls}
    for _ in range(repeats + 1):  # the first time compiles
        for name, call in calls.items():
            began = time.perf_counter()
            jax.block_until_ready(call())
            times[name].append(time.perf_counter() - began)
    return {name: min(found[1:]) for name, found in times.items()}


def row(workload: str, ours: float, reference: float, unit: str, target: str, **more: Any) -> dict[str, Any]:
    """One line of the table: what was measured, against what, and what the ratio should be."""
    digits = {"ours": ours, "reference": reference, "ratio": ours / reference}
    rounded = {name: float(f"{value:.4g}") for name, value in digits.items()}
    return {
        "workload": workload,
        **rounded,
        "unit": unit,
        "target": target,
        "device": jax.devices()[0].device_kind,
        **more,
    }


def own_processes(script: str, calls: Iterable[list[str]]) -> Iterable[dict[str, Any]]:
    """The last line, as JSON, of the script called with each list of arguments; a process each, one after the other."""
    for arguments in calls:
        done = subprocess.run([sys.executable, script, *arguments], capture_output=True, text=True)
        if done.returncode:
            yield {"arguments": arguments, "failed": done.stderr.strip().splitlines()[-1:]}
        else:
            yield json.loads(done.stdout.strip().splitlines()[-1])


def report(rows: Iterable[dict[str, Any]]) -> list[dict[str, Any]]:
    """Print every row as JSON when it is there, and the table at the end."""
    kept = []
    for one in rows:
        print(json.dumps(one, ensure_ascii=False), flush=True)
        kept.append(one)
    columns = ("workload", "ours", "reference", "unit", "ratio", "target")
    cells = [columns, *[tuple(str(one[column]) for column in columns) for one in kept]]
    widths = [max(len(line[at]) for line in cells) for at in range(len(columns))]
    print()
    for line in cells:
        print("  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)).rstrip())
    return kept


# ------------------------------------------------------------------------------------------- workloads


def a9a(agents: int = 10) -> pisco.Problem:
    """Sorted a9a, the paper's logistic regression."""
    return pisco.problems.logistic(pisco.data.load("a9a"), agents=agents)


def images(shape: tuple[int, ...], samples: int) -> pisco.data.Dataset:
    """Random bytes in the shape of MNIST or CIFAR-10: times do not depend on the values."""
    rng = np.random.default_rng(0)
    pixels = rng.integers(0, 256, (samples, *shape), dtype=np.uint8)
    return pisco.data.Dataset("random images", pixels, np.arange(samples) % 10)


def mnist_shaped(agents: int = 10) -> pisco.Problem:
    return pisco.problems.mlp(images((28, 28), 60_000), agents=agents, partition="iid")


def cifar_shaped(agents: int = 5, **options: Any) -> pisco.Problem:
    return pisco.problems.cnn(images((32, 32, 3), 50_000), agents=agents, partition="iid", **options)


def engine_rounds(problem: pisco.Problem, batch_size: int, rounds: int, local_steps: int, network: Any = None) -> Call:
    """The scan engine's program for so many rounds of PISCO from the start, metrics off."""
    job, engine, segment = _rounds_of_pisco(problem, batch_size, rounds, local_steps, network)
    kept = engine.pack(engine.start(job))
    return lambda: engine.advance(job, engine.unpack(job, kept), 0, segment)[0]


def held_rounds(
    problem: pisco.Problem, batch_size: int, rounds: int, local_steps: int, engine: ScanEngine | None = None
) -> Call:
    """The same for large models: the state stays on the device, and every call goes on where the last one ended.

    They start from Y = G = 0, which takes no program of its own.
    """
    job, engine, segment = _rounds_of_pisco(problem, batch_size, rounds, local_steps, None, engine)
    rule, server = job.runs[0].algorithm, job.runs[0].server

    @jax.jit
    def at_rest(key):
        params, silent = stack_agents(problem.init(key), problem.num_agents), StartMix(*(lambda tree: tree,) * 2)
        return Carry(rule.init(params, key, lambda params, key: zeros_like(params), silent), server.start())

    held = [[at_rest(jax.random.key(0))]]

    def call():
        held.append(engine.advance(job, held.pop(), 0, segment)[0])
        return held[0]

    return call


def _rounds_of_pisco(problem, batch_size, rounds, local_steps, network=None, engine=None):
    network = network or pisco.Network.ring(problem.num_agents, server=pisco.bernoulli(0.1))
    rule = pisco.algorithms.pisco(local_lr=1e-3, local_steps=local_steps)
    job = Job(problem, network, (Run(rule, network.server, 0),), batch_size)
    return job, engine or ScanEngine(), Segment(1, rounds, measured=False)


def bare_gradients(problem: pisco.Problem, batch_size: int, rounds: int, per_round: int) -> Call:
    """A compiled loop of nothing but gradient steps on batches drawn beforehand, in the shape of PISCO's loops."""
    agents, samples = problem.num_agents, problem.min_size
    drawn = jax.random.randint(jax.random.key(1), (rounds, per_round, agents, batch_size), 0, samples)
    rows = drawn + problem.offsets[:, None]
    keys = jax.random.split(jax.random.key(2), (rounds, per_round, agents))
    one = jax.vmap(jax.grad(problem.batch_loss))

    @jax.jit
    def loop(params, data, rows, keys):
        def step(params, drawn):
            rows, keys = drawn
            batch = jax.tree.map(lambda leaf: leaf.at[rows].get(mode="promise_in_bounds"), data)
            return jax.tree.map(lambda x, g: x - 1e-3 * g, params, one(params, batch, keys)), None

        def one_round(params, drawn):
            most, last = jax.tree.map(lambda x: x[:-1], drawn), jax.tree.map(lambda x: x[-1], drawn)
            return step(lax.scan(step, params, most)[0], last)

        return lax.scan(one_round, params, (rows, keys))[0]

    start = jax.tree.map(lambda x: jnp.stack([x] * agents), problem.init(jax.random.key(0)))
    return lambda: loop(start, problem.data, rows, keys)


def joint_steps(problem: pisco.Problem, batch_size: int, steps: int) -> Call:
    """Gradient steps of one model on the joint batch, its loss as the user wrote it, in one compiled loop."""
    rows = jax.random.randint(jax.random.key(1), (steps, batch_size), 0, problem.num_samples)
    keys = jax.random.split(jax.random.key(2), steps)

    @jax.jit
    def loop(params, data, rows, keys):
        def step(params, drawn):
            rows, key = drawn
            batch = jax.tree.map(lambda leaf: leaf.at[rows].get(mode="promise_in_bounds"), data)
            grads = jax.grad(lambda p: jnp.mean(problem.loss(p, batch, key)))(params)
            return jax.tree.map(lambda x, g: x - 1e-3 * g, params, grads), None

        return lax.scan(step, params, (rows, keys))[0]

    start = problem.init(jax.random.key(0))
    return lambda: loop(start, problem.data, rows, keys)
