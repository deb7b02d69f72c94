"""Rounds, memory and mixing as the number of agents grows: rings and random 4-regular graphs, d = 124."""

import jax
import jax.numpy as jnp
import numpy as np
from common import engine_rounds, report, row, shortest

import pisco
from pisco.engines.job import Job, Run, Segment, seed_key
from pisco.engines.scan import ScanEngine, advance
from pisco.networks import graphs
from pisco.networks.mixing import choose_operator
from pisco.problems.logistic import LogisticLoss

WIDTH, ROUNDS = 124, 10


def random_regular(n: int, degree: int = 4) -> graphs.Graph:
    """A random graph of almost equal degrees, from `degree`/2 random cycles: quick for a million agents."""
    rng = np.random.default_rng(0)
    orders = [rng.permutation(n) for _ in range(degree // 2)]
    edges = np.concatenate([np.stack([order, np.roll(order, 1)], axis=1) for order in orders])
    return graphs.from_edges(np.unique(np.sort(edges, axis=1), axis=0), n, f"random {degree}-regular({n})")


FAMILIES = {"ring": graphs.ring, "random 4-regular": random_regular}


def problem_of(n: int) -> pisco.Problem:
    """Two samples of 124 bits for every agent."""
    rng = np.random.default_rng(0)
    data = {
        "features": rng.integers(0, 2, (n, 2, WIDTH), dtype=np.int8),
        "labels": rng.choice(np.array([-1, 1], np.int8), (n, 2)),
    }
    return pisco.Problem(LogisticLoss(0.01), jnp.zeros(WIDTH), data)


def memory_beyond_data(problem: pisco.Problem, network: pisco.Network) -> int:
    """Bytes that the compiled rounds hold at most besides the data: the state, its successor and scratch."""
    rule = pisco.algorithms.pisco(local_lr=1e-3, local_steps=1)
    job = Job(problem, network, (Run(rule, network.server, 0),), 2)
    engine = ScanEngine(batched=False)
    (carry,) = engine.start(job)
    run = job.runs[0]._replace(seed=seed_key(0))
    program = advance.lower(
        run,
        carry,
        problem,
        network.gossip,
        jnp.int32(0),
        segment=Segment(1, ROUNDS, measured=False),
        batch_size=2,
        batched=False,
    ).compile()
    sizes = program.memory_analysis()
    state = sum(leaf.nbytes for leaf in jax.tree.leaves(carry))
    return state + sizes.output_size_in_bytes - sizes.alias_size_in_bytes + sizes.temp_size_in_bytes


def rows():
    counts = [10**3, 10**4, 10**5] + ([10**6] if jax.default_backend() != "cpu" else [])
    for family, build in FAMILIES.items():
        per_round = {}
        for n in counts:
            problem = problem_of(n)
            network = pisco.Network(build(n), weights="metropolis", server=pisco.bernoulli(0.1))
            call = engine_rounds(problem, 2, ROUNDS, 1, network)
            per_round[n] = shortest({"ours": call}, repeats=3)["ours"] / ROUNDS
            if n > counts[0]:
                before = n // 10
                linear = 1e3 * 10 * per_round[before]
                name = f"scale: {family}, n={n:.0e} against 10 × n={before:.0e}"
                yield row(name, 1e3 * per_round[n], linear, "ms/round", "≤ 1.2 at 1e5, GPU")
            if n >= 10**5:
                state = 3 * n * WIDTH * 4 / 1e6
                used = memory_beyond_data(problem, network) / 1e6
                yield row(f"memory: {family}, n={n:.0e} against X, Y, G", used, state, "MB", "≤ 4")
                yield mixing(family, network, n)


def mixing(family: str, network: pisco.Network, n: int) -> dict:
    """Bandwidth of one gossip exchange against a plain copy's, each row counted as often as it must be fetched.

    A ring's rows are used again while they are near; on a random graph an agent's neighbours lie anywhere, so every
    one of its rows is fetched for it.
    """
    x = jax.random.normal(jax.random.key(0), (n, WIDTH))
    operator = choose_operator(network.weights)
    mix, copy = jax.jit(lambda operator, x: operator(x)), jax.jit(lambda x: x + 1)
    times = shortest({"mix": lambda: mix(operator, x), "copy": lambda: copy(x)}, repeats=20)
    fetched = 1 if family == "ring" else network.weights.nnz / n
    gigabytes = x.nbytes / 1e9
    ours, reference = (1 + fetched) * gigabytes / times["mix"], 2 * gigabytes / times["copy"]
    name = f"mixing: {family}, n={n:.0e} against a copy"
    return row(name, ours, reference, "GB/s", "≥ 0.6", operator=type(operator).__name__)


if __name__ == "__main__":
    report(rows())
