"""What `pisco diagnose` says, and what runs show: a9a on a ring of 10, Metropolis weights; prints a table and JSON.

For each question the error with over the error without: as said, and as seen, the mean of ‖∇f‖² over the rounds (the
start aside) at the best of ten step sizes (the one whose mean over the seeds is least), the median over the seeds and
their range.

    python benchmarks/bench_diagnose.py                             # ten minutes on two cores
    python benchmarks/bench_diagnose.py --question tracking --seeds 1
"""

from __future__ import annotations

import argparse
import json
from functools import cache
from typing import Any

import numpy as np

import pisco
from pisco.algorithms import build
from pisco.planning import diagnose

AGENTS, ROUNDS, STEPS, EVERY = 10, 200, 4, 4
REACHES = (0.025, 0.05, 0.1, 0.2, 0.4, 0.8, 1.6, 3.2, 6.4, 12.8)
"""η·T, what a round may move in units of the gradient."""

TRACKING, LOCAL, SERVER, COMPRESSION = "tracking", "local steps", "more server rounds", "compression"
ROWS = [
    ("sorted", 256, 0.0, TRACKING),
    ("sorted", 256, 0.1, TRACKING),
    ("sorted", 8, 0.1, TRACKING),
    ("sorted", 256, 1.0, TRACKING),
    ("iid", 256, 0.0, TRACKING),
    ("iid", 256, 0.1, TRACKING),
    ("iid", 256, 1.0, TRACKING),
    ("iid", 8, 0.1, TRACKING),
    ("sorted", 256, 0.1, LOCAL),
    ("sorted", 256, 1.0, LOCAL),
    ("iid", 256, 0.1, LOCAL),
    ("iid", 8, 0.1, LOCAL),
    ("sorted", 256, 0.1, SERVER),
    ("sorted", 256, 0.0, SERVER),
    ("iid", 256, 0.1, SERVER),
    ("sorted", 256, 0.1, COMPRESSION),
    ("iid", 256, 0.1, COMPRESSION),
]


@cache
def problem(partition: str) -> pisco.Problem:
    """a9a, dealt out."""
    return pisco.problems.logistic(pisco.data.load("a9a"), agents=AGENTS, partition=partition)


@cache
def said(partition: str, batch_size: int, p: float) -> Any:
    """The diagnosis."""
    network = pisco.Network.ring(AGENTS, server=pisco.bernoulli(p))
    return diagnose(problem(partition), network, rounds=ROUNDS, batch_size=batch_size, local_steps=STEPS)


@cache
def error(
    method: str, partition: str, batch_size: int, p: float, steps: int, seeds: int
) -> tuple[np.ndarray, float, bool]:
    """The error of every seed at the best step, that step times T, and whether it is an end of the grid."""
    options: dict[str, Any] = {"local_steps": steps}
    if method == "pisco-compressed":
        options |= {"one_exchange": True, "compressor": {"name": "top-k", "fraction": 0.1}}
    if method in ("pisco-one-exchange", "pisco-compressed"):
        options["local_steps"] = steps - 1  # PISCO counts the steps before the communication step
    points = [(build(method, local_lr=reach / steps, **options), pisco.bernoulli(p)) for reach in REACHES]
    how: Any = {"rounds": ROUNDS, "batch_size": batch_size, "eval_every": EVERY, "seeds": range(seeds)}
    found = pisco.sweep(points, problem(partition), pisco.Network.ring(AGENTS), **how)
    ends = [np.nan_to_num(each.history["grad_norm_sq"][:, 1:].mean(axis=1), nan=np.inf) for each in found]
    best = int(np.argmin([each.mean() for each in ends]))
    return ends[best], REACHES[best], best in (0, len(REACHES) - 1)


def seen(partition: str, batch_size: int, p: float, question: str, seeds: int) -> tuple[np.ndarray, list[Any]]:
    """The ratio of every seed, and the two steps with whether they are ends of the grid."""
    method = said(partition, batch_size, p).method
    at: Any = {"partition": partition, "batch_size": batch_size, "seeds": seeds}
    pairs: dict[str, Any] = {
        TRACKING: [("pisco-vr", p, STEPS), ("local-dsgd", p, STEPS)],
        LOCAL: [(method, p, 16), (method, p, 1)],
        SERVER: [(method, 1.0, STEPS), (method, p, STEPS)],
        COMPRESSION: [("pisco-compressed", p, STEPS), ("pisco-one-exchange", p, STEPS)],
    }
    (with_it, *one), (without, *other) = (error(m, p=chance, steps=t, **at) for m, chance, t in pairs[question])
    return with_it / without, [one, other]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--question", choices=[TRACKING, LOCAL, SERVER, COMPRESSION], nargs="+", help="only these")
    args = parser.parse_args()
    for partition, batch_size, p, question in ROWS:
        if question not in (args.question or [question]):
            continue
        (verdict,) = (v for v in said(partition, batch_size, p).verdicts if v.question == question)
        ratios, steps = seen(partition, batch_size, p, question, args.seeds)
        words = f"{np.median(ratios):.2f} ({ratios.min():.2f} to {ratios.max():.2f})"
        print(f"| {partition}, {batch_size}, {p:g} | {question} | {verdict.ratio:.2g} | {words} |", flush=True)
        record = {"labels": partition, "batch_size": batch_size, "p": p, "question": question, "said": verdict.ratio}
        print(json.dumps(record | {"seen": ratios.tolist(), "steps": steps}), flush=True)


if __name__ == "__main__":
    main()
