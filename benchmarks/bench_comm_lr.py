"""What η_c is worth: PISCO on a9a, ring of 10, η_l tuned for every η_c; prints JSON lines.

The theory sets η_c = α√(1+p)·λ_p, α ≥ 0.1 free; everything else here uses 1. For every form, T_o, p and η_c the product
η_c·η_l is tuned by the rule, the tuning seeds and a part of the grid of `pisco tune`. Reported are rounds until the
running mean of ‖∇f(x̄)‖² is 0.05, the median over twenty other seeds with a 95% bootstrap interval, and how many of
them missed it (a missed one counts as more than all rounds).

    python benchmarks/bench_comm_lr.py            # meant for an accelerator
    python benchmarks/bench_comm_lr.py --quick    # T_o = 1 and few seeds
    python benchmarks/bench_comm_lr.py --row one,10,0.1    # one row: exchanges, T_o, p; minutes on a CPU
"""

from __future__ import annotations

import argparse
import json
import math
from collections.abc import Iterator
from typing import Any

import pisco
from pisco.engines.run import sweep
from pisco.experiments.tune import GRID, TUNING_SEEDS, pick
from pisco.networks.spectral import expected_mixing_rate
from pisco.statistics import Sample

FORMS = {"two exchanges": False, "one exchange": True}
ROUNDS = {0.0: 500, 0.1: 500, 1.0: 100}
FIRST = {1: {0.0: 0.004, 0.1: 0.016, 1.0: 0.16}, 10: {0.0: 0.001, 0.1: 0.0016, 1.0: 0.025}}
"""The first of seven η_c·η_l to try with two exchanges, by T_o and p: FDLA weights allow little without a server."""

FIRST_OF_ONE = {1: 0.063, 10: 0.01}
TARGET = {"grad_norm_sq_mean": 0.05}


def measured(
    problem: Any, network: Any, p: float, rule: dict[str, Any], tuning_seeds: Any, seeds: Any
) -> Iterator[tuple[float, float, bool, Sample]]:
    """(η_c, η_l, whether that is an end of the grid, rounds to the target) for every η_c."""
    theory = math.sqrt(1 + p) * expected_mixing_rate(network.mixing_rate, p)
    comm_lrs = [theory, *(c for c in (0.3, 1.0, 1.5) if abs(c / theory - 1) > 0.1)]
    steps = rule["local_steps"]
    begin = GRID.index(FIRST_OF_ONE[steps] if rule["one_exchange"] else FIRST[steps][p])
    moves = GRID[begin : begin + 7]
    options: Any = {"rounds": min(ROUNDS[p], 100) if rule["one_exchange"] else ROUNDS[p], "batch_size": 256}
    options["eval_every"] = 1

    def ran(points, seeds):
        rules = [pisco.algorithms.pisco(comm_lr=c, local_lr=lr, **rule) for c, lr in points]
        return sweep([(each, pisco.bernoulli(p)) for each in rules], problem, network, seeds=seeds, **options)

    tried = iter(ran([(c, move / c) for c in comm_lrs for move in moves], tuning_seeds))
    picked = [pick(moves, [next(tried) for _ in moves], TARGET).local_lr for _ in comm_lrs]
    best = [(c, move / c) for c, move in zip(comm_lrs, picked, strict=True)]
    ((column, bound),) = TARGET.items()
    for (c, lr), move, result in zip(best, picked, ran(best, seeds), strict=True):
        taken = Sample.of(result.at_target(column, bound=bound), result.final("round"))
        yield c, lr, move in (moves[0], moves[-1]), taken


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="T_o = 1, two exchanges, five seeds")
    parser.add_argument("--row", help="only these exchanges, T_o and p, as in one,10,0.1")
    args = parser.parse_args()
    problem = pisco.problems.logistic(pisco.data.load("a9a"), agents=10)
    network = pisco.Network.ring(10, weights="fdla")
    for form, one_exchange in list(FORMS.items())[: 1 if args.quick else 2]:
        for local_steps in (1,) if args.quick else (1, 10):
            for p in ROUNDS:
                if args.row not in (None, f"{form.split()[0]},{local_steps},{p:g}"):
                    continue
                rule = {"local_steps": local_steps, "one_exchange": one_exchange}
                tuning_seeds, seeds = (TUNING_SEEDS[:3], range(5)) if args.quick else (TUNING_SEEDS, range(20))
                for c, lr, edge, rounds in measured(problem, network, p, rule, tuning_seeds, seeds):
                    record = {"form": form, "T_o": local_steps, "p": p, "η_c": round(c, 3)}
                    record |= {"η_l": float(f"{lr:.3g}"), "η_c·η_l": float(f"{c * lr:.3g}"), "end of the grid": edge}
                    record |= {"rounds": str(rounds.median), "missed": int(rounds.missed.sum())}
                    print(json.dumps(record, ensure_ascii=False), flush=True)


if __name__ == "__main__":
    main()
