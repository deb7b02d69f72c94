"""What a member leaves behind that is gone for good: loss over all data, against a run with everybody.

    python benchmarks/bench_absence.py       # the figures of docs/networks.md

Prints one JSON object. Eight agents of 100 samples each of one truth, on a ring with p = 0.3; one of them is gone from
a third of the rounds on, or seldom there. Its part of the sums stays as it left it, with the noise of its last batch.
"""

from __future__ import annotations

import argparse
import json
import platform

import jax
import jax.numpy as jnp
import numpy as np

import pisco

AGENTS, SAMPLES, DIM = 8, 100, 20


def loss(params, batch, key):
    return jnp.logaddexp(0.0, -batch["y"] * (batch["x"] @ params)) + 0.005 * params @ params


def problem() -> pisco.Problem:
    """Logistic regression on samples of one truth, as clinics of a country would have them."""
    data = []
    for agent in range(AGENTS):
        draw = np.random.default_rng(agent)
        x = draw.normal(size=(SAMPLES, DIM))
        y = np.where(x @ np.linspace(-1, 1, DIM) + draw.normal(size=SAMPLES) > 0, 1.0, -1.0)
        data.append({"x": x, "y": y})
    return pisco.Problem(loss, np.zeros(DIM), data)


def masks(rounds: int, seed: int) -> dict[str, np.ndarray]:
    """Who is there, a row a round."""
    everybody = np.ones((rounds, AGENTS), bool)
    gone, seldom = everybody.copy(), everybody.copy()
    gone[rounds // 3 :, 4] = False
    seldom[:, 4] = np.random.default_rng(seed).random(rounds) < 0.04
    return {"everybody": everybody, "one gone": gone, "one seldom there": seldom}


def final(found: pisco.Result, own: pisco.Problem, away: bool) -> float:
    """f at the mean of those who are left, over everybody's data."""
    return float(own.objective(np.delete(found.params, 4, axis=0).mean(axis=0) if away else found.params.mean(axis=0)))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=10_000)
    parser.add_argument("--seeds", type=int, default=5)
    given = parser.parse_args()
    jax.config.update("jax_enable_x64", True)
    own, rows, method = problem(), [], pisco.algorithms.pisco(local_lr=0.05, local_steps=1)
    for batch in (8, 32, None):
        excess: dict[str, list[float]] = {}
        for seed in range(given.seeds):
            ends = {}
            for who, there in masks(given.rounds, seed).items():
                network = pisco.Network.ring(AGENTS, server=pisco.bernoulli(0.3), presence=pisco.from_log(there))
                found = pisco.run(
                    method, own, network, rounds=given.rounds, batch_size=batch, seed=seed, eval_every=given.rounds
                )
                ends[who] = final(found, own, who == "one gone")
            for who, end in ends.items():
                excess.setdefault(who, []).append(end / ends["everybody"] - 1)
        for who in ("one gone", "one seldom there"):
            median, worst = float(np.median(excess[who])), float(np.max(excess[who]))
            rows.append({"batch": batch or "full", "who": who, "median": median, "worst": worst})
    print(json.dumps({"machine": platform.machine(), "rounds": given.rounds, "seeds": given.seeds, "rows": rows}))


if __name__ == "__main__":
    main()
