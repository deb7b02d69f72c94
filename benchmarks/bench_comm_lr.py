"""What η_c is worth: PISCO on a9a, ring of 10, η_l tuned for every η_c; prints JSON lines.

The theory sets η_c = α√(1+p)·λ_p, α ≥ 0.1 free; everything else here uses 1. For every form, T_o, p and η_c the product
η_c·η_l·(T_o + 1), how far a round moves, is tuned on one grid by the rule of `pisco tune`, on seeds apart; what is
reported is rounds until the running mean of ‖∇f(x̄)‖² is 0.05, the median over twenty other seeds with a 95% bootstrap
interval, and how many of them missed it (a missed one counts as more than all rounds).

    python benchmarks/bench_comm_lr.py            # six minutes of CPU
    python benchmarks/bench_comm_lr.py --quick    # T_o = 1 and few seeds
"""

from __future__ import annotations

import argparse
import json
import math

import numpy as np

import pisco
from pisco.engines.run import sweep
from pisco.experiments.tune import pick
from pisco.networks.spectral import expected_mixing_rate

FORMS = {"two exchanges": False, "one exchange": True}
ROUNDS = {0.0: 400, 0.1: 200, 1.0: 60}
MOVES = {
    0.0: (0.005, 0.01, 0.02, 0.04, 0.07),
    0.1: (0.02, 0.04, 0.07, 0.12, 0.2, 0.35),
    1.0: (0.35, 0.6, 1.0, 1.7, 2.5, 3.5),
}
"""η_c·η_l·(T_o + 1) to try with two exchanges: FDLA weights allow little without a server."""

ONE_EXCHANGE_MOVES = (0.12, 0.2, 0.35, 0.6, 1.0, 1.7)
TARGET = {"grad_norm_sq_mean": 0.05}
TUNING_SEEDS = (100, 101, 102)


def measured(problem, network, p, rule, seeds):
    """(η_c, η_l, rounds to the target by seed) for every η_c, each with the η_l that was tuned for it."""
    rate = expected_mixing_rate(network.mixing_rate, p)
    theory = math.sqrt(1 + p) * rate
    comm_lrs = [theory, *(c for c in (0.3, 1.0, 1.5) if abs(c / theory - 1) > 0.1)]
    moves, rounds = (ONE_EXCHANGE_MOVES, min(ROUNDS[p], 100)) if rule["one_exchange"] else (MOVES[p], ROUNDS[p])
    options = {"rounds": rounds, "batch_size": 256, "eval_every": 2, "chunk_rounds": 50}

    def ran(points, seeds):
        steps = [pisco.algorithms.pisco(comm_lr=c, local_lr=lr, **rule) for c, lr in points]
        return sweep([(each, pisco.bernoulli(p)) for each in steps], problem, network, seeds=seeds, **options)

    grid = {c: [move / (c * (rule["local_steps"] + 1)) for move in moves] for c in comm_lrs}
    tried = ran([(c, lr) for c in comm_lrs for lr in grid[c]], TUNING_SEEDS)
    best = []
    for index, c in enumerate(comm_lrs):
        best.append((c, pick(grid[c], tried[index * len(moves) :][: len(moves)], TARGET).local_lr))
    ((column, bound),) = TARGET.items()
    for (c, lr), result in zip(best, ran(best, seeds), strict=True):
        taken = result.at_target(column, bound=bound)
        yield c, lr, np.where(np.isnan(taken), math.inf, taken)


def interval(values, draws=2000):
    """The median and its 95% bootstrap interval, by percentiles; infinite where most runs miss."""
    picked = np.random.default_rng(0).choice(values, size=(draws, len(values)))
    medians = np.sort(np.median(picked, axis=1))
    return float(np.median(values)), medians[int(0.025 * draws)].item(), medians[int(0.975 * draws)].item()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="T_o = 1, two exchanges, five seeds")
    args = parser.parse_args()
    problem = pisco.problems.logistic(pisco.data.load("a9a"), agents=10)
    network = pisco.Network.ring(10, weights="fdla")
    for form, one_exchange in list(FORMS.items())[: 1 if args.quick else 2]:
        for local_steps in (1,) if args.quick else (1, 10):
            for p in ROUNDS:
                rule = {"local_steps": local_steps, "one_exchange": one_exchange}
                for c, lr, rounds in measured(problem, network, p, rule, range(5 if args.quick else 20)):
                    middle, low, high = interval(rounds)
                    record = {"form": form, "T_o": local_steps, "p": p, "η_c": round(c, 3)}
                    record |= {"η_l": float(f"{lr:.3g}"), "η_c·η_l(T_o+1)": round(c * lr * (local_steps + 1), 4)}
                    record |= {"rounds": middle, "from": low, "to": high, "missed": int(np.isinf(rounds).sum())}
                    print(json.dumps(record, ensure_ascii=False).replace("Infinity", "null"), flush=True)


if __name__ == "__main__":
    main()
