"""What absent members leave behind: loss over all data, against a run of the same method with everybody.

    python benchmarks/bench_absence.py                    # the figures of docs/networks.md
    python benchmarks/bench_absence.py --method gt-hsgd   # a part of them

Prints a JSON object a line. Eight agents of 100 samples each of one truth, on a ring with p = 0.3; one of them is gone
from a third of the rounds on, or seldom there, or there is a storm. The part of the sums of who is absent stays as it
was left: with the noise of the last batch in PISCO, of a round's batches in pisco-vr, of a running estimate in GT-HSGD.
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
GONE, SLOW = 4, 7
METHODS = {
    "pisco": pisco.algorithms.pisco(local_lr=0.05, local_steps=1),
    "pisco-vr, 2 local steps": pisco.algorithms.kgt(local_lr=0.05, local_steps=2),
    "pisco-vr, 10 local steps": pisco.algorithms.kgt(local_lr=0.05, local_steps=10),
    "gt-hsgd": pisco.algorithms.gt_hsgd(local_lr=0.1),
}


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
    gone[rounds // 3 :, GONE] = False
    seldom[:, GONE] = np.random.default_rng(seed).random(rounds) < 0.04
    return {"everybody": everybody, "one gone": gone, "one seldom there": seldom, "storm": storm(gone, seed)}


def storm(gone: np.ndarray, seed: int) -> np.ndarray:
    """One gone, one in 7% of the rounds, and 200 times somebody away for 1 to 60 s (of 8 rounds), three at most."""
    draw, there, until = np.random.default_rng(seed), gone.copy(), np.zeros(AGENTS, int)
    there[:, SLOW] = draw.random(len(there)) < 0.07
    for k in np.linspace(0, 0.9 * len(there), 200).astype(int):
        well = [agent for agent in range(AGENTS) if agent != GONE and until[agent] <= k]
        if len(well) > AGENTS - 4:
            victim = draw.choice(well)
            until[victim] = k + draw.integers(8, 480)
            there[k : until[victim], victim] = False
    return there


def final(found: pisco.Result, own: pisco.Problem, away: bool) -> float:
    """f at the mean of those who are left, over everybody's data."""
    left = np.delete(found.params, GONE, axis=0) if away else found.params
    return float(own.objective(left.mean(axis=0)))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=10_000)
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--method", choices=METHODS, action="append", help="one alone; may be repeated")
    given = parser.parse_args()
    jax.config.update("jax_enable_x64", True)
    own = problem()
    for name in given.method or METHODS:
        for batch in (8, 32, None):
            measure(name, batch, own, given.rounds, given.seeds)


def measure(name: str, batch: int | None, own: pisco.Problem, rounds: int, seeds: int) -> None:
    """Print by how much the loss is higher, in the middle and at worst over seeds, for each way to be away."""
    excess: dict[str, list[float]] = {}
    for seed in range(seeds):
        ends = {}
        for who, there in masks(rounds, seed).items():
            network = pisco.Network.ring(AGENTS, server=pisco.bernoulli(0.3), presence=pisco.from_log(there))
            found = pisco.run(
                METHODS[name], own, network, rounds=rounds, batch_size=batch, seed=seed, eval_every=rounds
            )
            ends[who] = final(found, own, who in ("one gone", "storm"))
        for who, end in ends.items():
            excess.setdefault(who, []).append(end / ends["everybody"] - 1)
    rows = {
        who: {"median": float(np.median(excess[who])), "worst": float(np.max(excess[who]))}
        for who in excess
        if who != "everybody"
    }
    told = {"method": name, "batch": batch or "full", "rounds": rounds, "seeds": seeds, "machine": platform.machine()}
    print(json.dumps(told | rows), flush=True)


if __name__ == "__main__":
    main()
