"""Weights chosen for PISCO (`pisco-step`) against FDLA and Metropolis, in rounds on gossip alone; prints JSON lines.

For each graph, form of exchange and choice of weights the step size is tuned on one grid, the same for all; what is
reported is the fewest rounds to the target, the mean over problems (quadratics) or seeds (a9a).

    python benchmarks/bench_weights.py            # quadratics with agents' Hessians and minimisers of their own
    python benchmarks/bench_weights.py --a9a      # and a9a, batches of 256, the paper's training target
"""

from __future__ import annotations

import argparse
import json

import jax
import numpy as np

import pisco
from pisco.engines.run import sweep
from pisco.networks import graphs

GRAPHS = {
    "ring of 10": lambda: graphs.ring(10),
    "path of 10": lambda: graphs.path(10),
    "grid 3 × 4": lambda: graphs.grid(3, 4),
    "Erdős–Rényi(10, 0.3)": lambda: graphs.erdos_renyi(10, 0.3, 12),
    "Erdős–Rényi(20, 0.2)": lambda: graphs.erdos_renyi(20, 0.2, 1),
}
WEIGHTS = ("fdla", "metropolis", "pisco-step")
STEPS = tuple(float(f"{step:.3g}") for step in np.geomspace(0.002, 1.0, 19))
A9A_STEPS = (0.01, 0.02, 0.05, 0.1, 0.2, 0.35, 0.5)


def quadratics(n: int, draw: int, d: int = 8):
    """Hessians of condition about ten in the mean, minimisers apart."""
    random = np.random.default_rng(draw)
    rotated = [np.linalg.qr(random.normal(size=(d, d)))[0] for _ in range(n)]
    spectra = np.geomspace(0.1, 1.0, d) * random.uniform(0.7, 1.3, size=(n, d))
    shared = np.linalg.qr(random.normal(size=(d, d)))[0]
    hessians = [
        0.8 * shared @ np.diag(s) @ shared.T + 0.2 * q @ np.diag(s) @ q.T for q, s in zip(rotated, spectra, strict=True)
    ]
    return pisco.problems.quadratic(np.stack(hessians), random.normal(size=(n, d)))


def fewest(problem, network, one_exchange, steps, rounds, target, batch_size=None, seeds=(0,)):
    """(rounds, η_l) of the best step: the mean over seeds, infinite where a seed does not get there."""
    points = [
        (pisco.algorithms.pisco(local_lr=lr, local_steps=1, one_exchange=one_exchange), pisco.never()) for lr in steps
    ]
    how = {"batch_size": batch_size, "seeds": seeds, "eval_every": 1, "chunk_rounds": rounds}
    results = sweep(points, problem, network, rounds=rounds, **how)
    found = []
    for lr, result in zip(steps, results, strict=True):
        taken = result.at_target(target[0], at_most=target[1])
        found.append((np.inf if np.isnan(taken).any() else float(taken.mean()), lr))
    return min(found)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--a9a", action="store_true", help="a9a as well")
    parser.add_argument("--rounds", type=int, default=1500)
    args = parser.parse_args()
    for name, make in GRAPHS.items():
        graph = make()
        networks = {rule: pisco.Network(graph, weights=rule) for rule in WEIGHTS}
        for one_exchange in (False, True):
            record = {"problem": "quadratics", "graph": name, "exchanges": 1 if one_exchange else 2}
            for rule, network in networks.items():
                best = []
                for draw in range(3):
                    problem = quadratics(graph.num_agents, draw)
                    start = float(np.sum(np.asarray(jax.grad(problem.objective)(problem.start)) ** 2))
                    target = ("grad_norm_sq", 1e-5 * start)
                    best.append(fewest(problem, network, one_exchange, STEPS, args.rounds, target))
                record[rule] = {
                    "rounds": float(np.mean([rounds for rounds, _ in best])),
                    "local_lr": [lr for _, lr in best],
                    "mixing_rate": network.mixing_rate,
                }
            print(json.dumps(record, ensure_ascii=False).replace("Infinity", "null"), flush=True)
        if args.a9a:
            problem = pisco.problems.logistic(pisco.data.load("a9a"), agents=graph.num_agents)
            record = {"problem": "a9a", "graph": name, "exchanges": 2}
            for rule, network in networks.items():
                target = ("grad_norm_sq_mean", 0.05)
                rounds, lr = fewest(problem, network, False, A9A_STEPS, 300, target, 256, (0, 1, 2))
                record[rule] = {"rounds": rounds, "local_lr": lr, "mixing_rate": network.mixing_rate}
            print(json.dumps(record, ensure_ascii=False).replace("Infinity", "null"), flush=True)


if __name__ == "__main__":
    main()
