"""The largest step that is safe for agents whose curvatures differ, on any doubly stochastic W.

Exact where Hessians are known; where only every agent's largest curvature is, the worst of several cases that such
curvatures allow. What planning and warnings go by.
"""

from __future__ import annotations

import math
from typing import Any, Unpack

import numpy as np

from pisco.errors import InputError, check_positive
from pisco.networks.spectral import as_csr
from pisco.theory.moments import RoundMaps
from pisco.theory.stability import Rule, growth, largest_stable_step, weight_modes

MOST_AGENTS, MOST_WITH_COINS = 64, 24
"""Up to so many agents a limit from curvatures takes a second or two; with coins, 0 < p < 1, moments cost more."""

SINGLED_OUT = 10
"""How many agents at most are imagined to be steep alone, and how many flat alone."""


def agents_growth(curvatures: Any, weights: Any, *, local_lr: float, **rule: Unpack[Rule]) -> float:
    """The factor by which the squared error grows a round, in the mean over coins; below 1 is stable.

    Args:
      curvatures: Hessians, or every agent's largest curvature, as for `largest_safe_step`.
      weights: W, n × n, dense or sparse.
      local_lr: η_l.
      **rule: PISCO's settings besides η_l.

    >>> average = np.full((2, 2), 0.5)
    >>> round(agents_growth([[[1.0]], [[3.0]]], average, local_lr=0.1, local_steps=0), 12)      # (1 − 0.1·2)²
    0.64
    """
    check_positive(local_lr=local_lr)
    if _too_many(curvatures, weights, rule.get("server_prob", 0.0)):
        return growth(weight_modes(weights), max(curvatures), local_lr=local_lr, **rule)
    return max(RoundMaps(each, weights, **rule).growth(local_lr) for each in _cases(curvatures, weights))


def largest_safe_step(curvatures: Any, weights: Any, **rule: Unpack[Rule]) -> float:
    """The η_l up to which every smaller step is stable, in mean square over the coins; 0 when none is.

    Given the agents' Hessians it is exact on quadratics. Given only the largest curvature of each agent it is the least
    of several cases in one dimension. All agents are that steep, the flatter half of them is flat, every other one is
    flat (either side of W's smallest eigenvector), one is flat, or all except one are flat. That is no proof for every
    Hessian below those curvatures, but on random ones the result was never more than 5% above the exact limit, and at
    least half of it nine times in ten (tests/test_stability.py). For more than `MOST_AGENTS` (`MOST_WITH_COINS` if 0 <
    p < 1) it is `largest_stable_step` at the steepest agent's curvature: a guide, and too large where agents differ
    much.

    Without a server the components of a graph never hear of each other: the limit is then that of the worst of them.

    Args:
      curvatures: (n, d, d), the agents' Hessians, or (n,), their largest curvatures (`agent_curvatures` estimates
        those). Negative curvature counts as none: leaving a saddle is no instability.
      weights: W, n × n, dense or sparse, doubly stochastic; symmetric or not, connected or not. Or the pair of one-way
        links, `(network.weights, network.push)`.
      **rule: PISCO's settings besides η_l.

    >>> average, unlike = np.full((3, 3), 1 / 3), np.array([0.1, 0.1, 3.0])
    >>> round(largest_safe_step(unlike[:, None, None], average, local_steps=0), 2)      # 2/(mean curvature)
    1.87
    >>> round(largest_safe_step(unlike[:, None, None], average, local_steps=9), 2)
    0.3
    >>> round(largest_safe_step(unlike, average, local_steps=9), 2)      # in some direction the others may be flat
    0.28
    """
    if _too_many(curvatures, weights, rule.get("server_prob", 0.0)):
        return largest_stable_step(weight_modes(weights), max(curvatures), **rule)
    limit = math.inf
    for case in _cases(curvatures, weights):
        rounds = RoundMaps(case, weights, **rule)
        # Most cases bind nothing: a look at a few steps tells so.
        if limit == math.inf or not all(rounds.stable(share * limit) for share in (1, 0.5)):
            limit = min(limit, rounds.limit())
    return limit


def _too_many(curvatures: Any, weights: Any, p: float) -> bool:
    most = MOST_WITH_COINS if 0 < p < 1 else MOST_AGENTS
    if np.ndim(curvatures) != 1 or len(curvatures) <= most:
        return False
    if isinstance(weights, tuple):
        raise InputError(f"limits of one-way links are known up to {most} agents, not for {len(curvatures)}; use fewer")
    return True


def _cases(curvatures: Any, weights: Any) -> list[np.ndarray]:
    """The Hessians to look at: those given, or the cases in one dimension that largest curvatures allow."""
    given = np.asarray(curvatures, float)
    if given.ndim != 1:
        return [given]
    weights = weights[0] if isinstance(weights, tuple) else weights
    matrix = as_csr(weights).toarray()
    if len(given) != len(matrix):
        raise InputError(f"curvatures are of {len(given)} agents and weights of {len(matrix)}; give one for each agent")
    one, steepest = np.eye(len(given)), np.argsort(-given, kind="stable")
    alone = given * one[steepest[:SINGLED_OUT]]
    without = given * (1 - one[np.argsort(-np.diagonal(matrix))[:SINGLED_OUT]])  # those who hear least of the others
    half = given * one[steepest[: (len(given) + 1) // 2]].sum(axis=0)
    turning = np.linalg.eigh(matrix + matrix.T)[1][:, 0]  # the smallest eigenvalue's: who differs most from neighbours
    sides = given * (turning > 0), given * (turning < 0)
    return [case[:, None, None] for case in (given, half, *sides, *alone, *without)]
