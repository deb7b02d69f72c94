"""Test accuracy against ε for PISCO, DSGT and FedAvg on a9a and Fashion-MNIST; every cell is kept as it is done.

All methods take as many gradients; the noise is found for ε and δ, and the step size on one grid by the first seed
(tuning spends privacy too, which is not counted here). A cell that the file has already is not run again.

    python benchmarks/bench_privacy.py privacy.json                    # both data sets
    python benchmarks/bench_privacy.py privacy.json --only a9a         # one of them
"""

from __future__ import annotations

import argparse
import json
import time
from pathlib import Path

import numpy as np

import pisco
from pisco.algorithms import build
from pisco.files import atomic_write

EPSILONS = (0.5, 2.0, 8.0, None)  # None: neither clipped nor noised
SEEDS, DELTA, CLIP = range(5), 1e-5, 1.0
RING = {"weights": "metropolis"}
METHODS = {
    "PISCO": ("pisco", {"local_steps": 1}, lambda: pisco.Network.ring(10, server=pisco.bernoulli(0.1), **RING), 1),
    "DSGT": ("dsgt", {}, lambda: pisco.Network.ring(10, **RING), 2),
    "FedAvg": ("fedavg", {"local_steps": 2}, lambda: pisco.Network.ring(10, server=pisco.always(), **RING), 1),
}
"""A method, what it is given, its network, and how many rounds it does for one of PISCO's, to the same gradients."""
STEPS = (0.03, 0.1, 0.3, 1.0)


def a9a():
    return pisco.problems.logistic(pisco.data.load("a9a"), agents=10, partition="sorted", rho=0.01)


def fashion():
    return pisco.problems.softmax(pisco.data.load("fashion-mnist"), agents=10, partition="sorted")


WORK = {"a9a": (a9a, 256, 200), "fashion-mnist": (fashion, 100, 100)}
"""A problem, its batches, and PISCO's rounds."""


def cell(problem, method: str, epsilon: float | None, batch_size: int, rounds: int) -> dict:
    name, settings, network, times = METHODS[method]
    if epsilon is not None:
        problem = problem.private(pisco.Privacy(clip=CLIP, epsilon=epsilon, delta=DELTA))
    total = rounds * times

    def run(step: float, seed: int):
        rule = build(name, local_lr=step, **settings)
        options = {"rounds": total, "batch_size": batch_size, "eval_every": total // 10, "seed": seed}
        return pisco.run(rule, problem, network(), **options)

    def accuracy(result) -> float:
        """The mean of the last three rows: single ones swing with the noise."""
        return float(np.mean(result.history["test_accuracy"][-3:]))

    first = {step: run(step, SEEDS[0]) for step in STEPS}
    best = max(STEPS, key=lambda step: accuracy(first[step]))
    results = [first[best], *(run(best, seed) for seed in SEEDS[1:])]
    found, result = [accuracy(each) for each in results], results[0]
    return {
        "accuracy": round(float(np.mean(found)), 4),
        "deviation": round(float(np.std(found, ddof=1)), 4),
        "local_lr": best,
        "noise": result.settings["privacy"]["noise"] if epsilon is not None else 0.0,
        "epsilon": float(result.history["epsilon"][-1]) if epsilon is not None else None,
        "consensus_error": float(np.mean([each.history["consensus_error"][-1] for each in results])),
        "rounds": total,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("out", type=Path)
    parser.add_argument("--only", choices=WORK)
    given = parser.parse_args()
    kept = json.loads(given.out.read_text()) if given.out.exists() else {}
    for data in [given.only] if given.only else WORK:
        make, batch_size, rounds = WORK[data]
        problem = make()
        for method in METHODS:
            for epsilon in EPSILONS:
                name = f"{data}, {method}, {'none' if epsilon is None else f'{epsilon:g}'}"
                if name in kept:
                    continue
                began = time.perf_counter()
                kept[name] = cell(problem, method, epsilon, batch_size, rounds)
                atomic_write(given.out, json.dumps(kept, indent=1).encode())
                print(name, json.dumps(kept[name]), f"{time.perf_counter() - began:.0f} s", flush=True)


if __name__ == "__main__":
    main()
