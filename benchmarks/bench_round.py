"""Overhead of a PISCO round over bare gradients, as a ratio in one run; prints one JSON object a line.

The reference is the same number of batched gradients on batches drawn beforehand, in a compiled loop of the same shape
(T_o gradients in an inner loop, one after it): no algorithm can be faster than the gradients it needs.
"""

from __future__ import annotations

import argparse
import json
import time

import jax
import jax.numpy as jnp
from jax import lax

import pisco
from pisco.engines.job import Job, Run, Segment
from pisco.engines.scan import ScanEngine


def best_of(call, repeats):
    """The shortest of several timings, after one call to compile."""
    call()
    times = []
    for _ in range(repeats):
        began = time.perf_counter()
        call()
        times.append(time.perf_counter() - began)
    return min(times)


def bare_gradients(problem, batch_size, rounds, per_round):
    """A compiled loop of nothing but gradients on batches drawn beforehand."""
    agents, samples = problem.num_agents, problem.min_size
    drawn = jax.random.randint(jax.random.key(1), (rounds, per_round, agents, batch_size), 0, samples)
    rows = drawn + problem.offsets[:, None]
    one = jax.vmap(jax.grad(lambda p, batch: problem.batch_loss(p, batch)))

    @jax.jit
    def loop(params, rows):
        def step(params, rows):
            batch = jax.tree.map(lambda leaf: leaf.at[rows].get(mode="promise_in_bounds"), problem.data)
            return jax.tree.map(lambda x, g: x - 1e-3 * g, params, one(params, batch)), None

        def one_round(params, rows):
            return step(lax.scan(step, params, rows[:-1])[0], rows[-1])

        return lax.scan(one_round, params, rows)[0]

    start = jax.tree.map(lambda x: jnp.stack([x] * agents), problem.init(jax.random.key(0)))
    return lambda: jax.block_until_ready(loop(start, rows))


def pisco_rounds(problem, batch_size, rounds, local_steps):
    """The scan engine's program for as many rounds, metrics off."""
    network = pisco.Network.ring(problem.num_agents, server=pisco.bernoulli(0.1))
    rule = pisco.algorithms.pisco(local_lr=1e-3, local_steps=local_steps)
    job = Job(problem, network, (Run(rule, network.server, 0),), batch_size)
    engine = ScanEngine()
    kept = engine.pack(engine.start(job))
    segment = Segment(1, rounds, measured=False)
    return lambda: jax.block_until_ready(engine.advance(job, engine.unpack(job, kept), 0, segment)[0])


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=500)
    parser.add_argument("--repeats", type=int, default=5)
    options = parser.parse_args()
    problem = pisco.problems.logistic(pisco.data.load("a9a"), agents=10)
    for local_steps in (1, 10):
        gradients = local_steps + 1
        ours = best_of(pisco_rounds(problem, 256, options.rounds, local_steps), options.repeats)
        bare = best_of(bare_gradients(problem, 256, options.rounds, gradients), options.repeats)
        row = {
            "workload": f"a9a, n=10, b=256, T_o={local_steps}",
            "ours_us_per_round": round(1e6 * ours / options.rounds, 1),
            "reference_us_per_round": round(1e6 * bare / options.rounds, 1),
            "ratio": round(ours / bare, 3),
            "device": jax.devices()[0].device_kind,
        }
        print(json.dumps(row), flush=True)


if __name__ == "__main__":
    main()
