"""Runs in which the noise of single samples is all that counts: what n, T_o and K do to it."""

from __future__ import annotations

from typing import Any

import numpy as np

from pisco import algorithms
from pisco.engines.run import run
from pisco.experiments.paper.work import uncut
from pisco.networks.network import Network
from pisco.networks.schedules import bernoulli
from pisco.problems.problem import Problem
from pisco.problems.quadratic import quadratic

MOVE = 0.1
"""η_l(T_o + 1) of the speed-up, kept so that noise is all that differs."""

USUAL = {"n": 8, "T_o + 1": 2, "K": 4000}
"""Of the rate, except the one of them that is varied."""


def _noisy(n: int, init: float) -> Problem:
    """f minimal at 0, agents of unlike curvature, and single samples that scatter."""
    generator = np.random.default_rng(0)
    curvature = np.linspace(0.5, 1.5, n)[:, None, None, None] * np.ones((1, 64, 1, 1)) * np.eye(4)
    samples = generator.normal(size=(n, 64, 4))
    samples -= samples.mean(axis=1, keepdims=True)
    return quadratic(curvature, samples, init=np.full(4, init))


def _gradients(
    problem: Problem, move: float, local_steps: int, rounds: int, seeds: tuple[int, ...], progress: Any
) -> np.ndarray:
    """‖∇f(x̄)‖² after every round, (seeds, 1 + rounds), with batches of 1 and η_l(T_o + 1) = move."""
    result = run(
        algorithms.pisco(local_lr=move / (local_steps + 1), local_steps=local_steps),
        problem,
        Network.ring(problem.num_agents, server=bernoulli(0.3)),
        rounds=rounds,
        batch_size=1,
        seed=seeds,
        eval_every=1,
        chunk_rounds=1000,
        progress=progress,
    )
    return uncut([result])[0].column("grad_norm_sq")


def noise_floor(n: int, local_steps: int, rounds: int, seeds: tuple[int, ...], progress: Any) -> np.ndarray:
    """‖∇f(x̄)‖² once only the noise of single samples is left, mean over the later rounds."""
    found = _gradients(_noisy(n, 0.0), MOVE, local_steps, rounds, seeds, progress)
    return found[:, rounds // 5 :].mean(axis=1)


def mean_gradient(seeds: tuple[int, ...], progress: Any, **values: int) -> np.ndarray:
    """The mean of ‖∇f(x̄)‖² over K rounds, η_c = 1 and Corollary 1's η_l: √(n·T_o·f̃/(L·σ²·K))/T_o, T_o + 1 for T_o."""
    n, steps, rounds = (values.get(name, usual) for name, usual in USUAL.items())
    gap, noise = 2.0, 4.0  # ½·4·1² and 4 coordinates, at the mean curvature 1
    move = np.sqrt(gap / noise * n * steps / rounds)
    return _gradients(_noisy(n, 1.0), float(move), steps - 1, rounds, seeds, progress)[:, :-1].mean(axis=1)
