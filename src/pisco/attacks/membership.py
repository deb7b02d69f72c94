"""Membership inference: whether a sample that one has was among those that an agent trained on.

From a message: candidates are the samples of the batch and others of the same agent, whose gradients the attacker can
compute. The gradient that was seen is written as a combination of theirs (ridge regression), and the coefficients rank
the candidates. From the model at the end: small losses speak for training samples (S. Yeom et al., "Privacy risk in
machine learning", 2018).
"""

from __future__ import annotations

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from pisco.attacks.observed import Observed, sample_gradient
from pisco.data.stream import everything

CANDIDATES, FEWEST = 400, 50
"""Members of a batch that are looked for, at most, and others among them, at least."""


class Ranking(NamedTuple):
    """How well scores tell members from others: the area under the ROC curve, and hits at 1% false alarms."""

    auc: float
    hits: float
    members: int
    others: int


def rank(members: Any, others: Any) -> Ranking:
    """The ranking of two sets of scores; ties count half.

    >>> rank([3, 2], [1, 0])
    Ranking(auc=1.0, hits=1.0, members=2, others=2)
    """
    members, others = np.sort(np.asarray(members, float)), np.sort(np.asarray(others, float))
    below = (np.searchsorted(others, members) + np.searchsorted(others, members, "right")) / 2
    bar = others[-1 - int(0.01 * len(others))]
    hits = float((members > bar).mean())
    return Ranking(float(below.mean() / len(others)), hits, len(members), len(others))


def from_message(seen: Observed, trials: int = 20, seed: int = 0) -> Ranking | None:
    """Who was in the batch of a gradient that was seen, over some draws of batch and noise; None for full batches."""
    if len(np.unique(seen.rows)) == len(seen.own):
        return None
    problem, clip, random = seen.problem, seen.clip, np.random.default_rng(seed)

    @jax.jit
    def gradients(batch: Any) -> jax.Array:
        def one(sample: Any) -> jax.Array:
            found = sample_gradient(problem, seen.start, sample, clip)
            return jnp.concatenate([leaf.ravel() for leaf in jax.tree.leaves(found)])

        return jax.lax.map(one, batch)

    members, others = [], []
    for trial in range(trials):
        gradient, rows = seen.again(trial)
        inside = random.permutation(np.unique(rows))[:CANDIDATES]
        outside = random.permutation(np.setdiff1d(seen.own, rows))[: max(FEWEST, len(inside))]
        candidates = np.concatenate([inside, outside])
        table = np.asarray(gradients(seen.samples(candidates)), np.float64)
        told = np.concatenate([np.asarray(leaf, np.float64).ravel() for leaf in jax.tree.leaves(gradient)])
        products = table @ table.T
        ridge = 1e-6 * np.trace(products) / len(candidates)
        if problem.protection is not None and clip is not None:  # as much as the noise asks for
            ridge += float(problem.protection.noise[seen.agent] * clip) ** 2
        scores = np.linalg.solve(products + ridge * np.eye(len(candidates)), table @ told)
        members.append(scores[: len(inside)])
        others.append(scores[len(inside) :])
    return rank(np.concatenate(members), np.concatenate(others))


def from_model(seen: Observed, seed: int = 0) -> Ranking | None:
    """Who was among the agent's training samples, by the loss at the end of the run; None without test samples."""
    problem = seen.problem
    test: Any = everything(problem.test)
    if test is None:
        return None
    random = np.random.default_rng(seed)
    inside = seen.samples(random.permutation(seen.own)[: 10 * CANDIDATES])
    held = set(np.asarray(inside["labels"]).ravel().tolist())
    same = np.flatnonzero(np.isin(np.asarray(test["labels"]), list(held)))  # an agent may have few labels
    outside = jax.tree.map(lambda leaf: leaf[random.permutation(same)[: 10 * CANDIDATES]], test)
    losses = [np.asarray(problem.sample_losses(seen.end, batch)) for batch in (inside, outside)]
    return rank(-losses[0], -losses[1])
