"""Which step sizes are stable when all agents are alike, mode by mode: ours, not the paper's.

On quadratics with one Hessian the agents' deviations from their mean split into the eigenmodes of W and, in each, into
curvatures a. (Agents with Hessians of their own do not split so, and these limits are too large for them: `moments`.)
In mode μ one PISCO round is linear, (x, y) ← M·(x, y), with q = 1 − a·η_l and S = (1 − q^(T_o+1))/a, the sum of the
round's steps:

    x⁺ = μ(x − η_c·S·y)
    y⁺ = μ(y − a·x + a·x⁺)                      two exchanges
    y⁺ = (μ − 1)·q^T_o·y + y − a·x + a·x⁺        one exchange

A server round is the same with μ = 0, M₀. With two exchanges M₀ = 0: every mode but the mean is wiped out, so with
probability p of reaching the server the deviations shrink in mean square iff (1 − p)·ρ(M)² < 1. With one exchange the
trackers' gradients are not averaged, M₀ ≠ 0, and the condition is ρ((1 − p)·M⊗M̄ + p·M₀⊗M₀) < 1. The mean itself takes
gradient steps: |1 − η_c·a·S| < 1. A W that is not symmetric has complex modes, and the same conditions hold: in a basis
that makes W triangular and J diagonal every M does so too. A disconnected graph has further modes μ = 1, one for every
component beyond the first; at p = 0 they are the means of components that never meet, and take gradient steps too.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Required, TypedDict, Unpack

import numpy as np

from pisco.errors import InputError
from pisco.networks.spectral import DENSE_UP_TO, as_csr, inner_modes, is_connected, is_symmetric

CURVATURES = 24
"""The curvatures at which stability is tested, evenly up to L: the worst mode need not be the steepest."""


class Rule(TypedDict, total=False):
    """What of PISCO's settings matters here besides η_l."""

    local_steps: Required[int]
    comm_lr: float  # 1 unless given
    server_prob: float  # 0
    one_exchange: bool  # False


def round_matrix(
    mode: Any, curvature: Any, *, local_lr: Any, comm_lr: float, local_steps: int, one_exchange: bool
) -> np.ndarray:
    """M: how one PISCO round maps (x, y) in the mode with eigenvalue `mode`; modes, curvatures, η_l may be arrays."""
    mode, curvature, local_lr = np.broadcast_arrays(mode, curvature, local_lr)
    mode = mode.astype(complex if np.iscomplexobj(mode) else float)
    shrink = 1 - curvature * local_lr
    steps = _geometric(shrink, local_steps + 1) * local_lr
    x = np.stack([mode, -mode * comm_lr * steps], axis=-1)
    one = np.ones_like(mode)
    fresh = np.stack([-curvature, one], axis=-1) + curvature[..., None] * x
    if one_exchange:
        y = fresh + np.stack([0 * one, (mode - 1) * shrink**local_steps], axis=-1)
    else:
        y = mode[..., None] * fresh
    return np.stack([x, y], axis=-2)


def _geometric(ratio: np.ndarray, terms: int) -> np.ndarray:
    """1 + r + … of `terms` terms; in closed form where there are many."""
    if terms <= 100:
        return sum((ratio**t for t in range(terms)), np.zeros_like(ratio))
    gap = 1 - ratio
    with np.errstate(over="ignore", invalid="ignore", divide="ignore"):
        return np.where(np.abs(gap) < 1e-12, float(terms), (1 - ratio**terms) / gap)


def _radius(matrices: np.ndarray) -> np.ndarray:
    """The spectral radius of 2×2 matrices, in closed form."""
    half = (matrices[..., 0, 0] + matrices[..., 1, 1]) / 2
    product = matrices[..., 0, 0] * matrices[..., 1, 1] - matrices[..., 0, 1] * matrices[..., 1, 0]
    inside = half**2 - product
    if np.iscomplexobj(matrices):
        return np.maximum(np.abs(half + np.sqrt(inside)), np.abs(half - np.sqrt(inside)))
    real = np.abs(half) + np.sqrt(np.maximum(inside, 0))
    return np.where(inside < 0, np.sqrt(np.maximum(product, 0)), real)


def growth(
    modes: Iterable[complex],
    smoothness: float,
    *,
    local_lr: float,
    condition: float | None = None,
    **rule: Unpack[Rule],
) -> float:
    """The factor by which the worst squared deviation grows a round, in the mean over coins; below 1 is stable.

    Every curvature up to L counts, or with `condition` those from L/condition on: then the factor tells not only
    whether a quadratic of that condition number converges but how fast.

    >>> growth([-0.826], 1.0, local_lr=0.03, local_steps=0) > 1 > growth([-0.826], 1.0, local_lr=0.02, local_steps=0)
    True
    """
    return float(_growths(modes, _curvatures(smoothness, condition), np.array([local_lr]), **rule)[0])


def _curvatures(smoothness: float, condition: float | None) -> np.ndarray:
    if condition is None:
        return smoothness * np.arange(1, CURVATURES + 1) / CURVATURES
    return np.geomspace(smoothness / condition, smoothness, CURVATURES)


def _growths(
    modes: Iterable[complex],
    curvatures: np.ndarray,
    local_lrs: np.ndarray,
    *,
    local_steps: int,
    comm_lr: float = 1.0,
    server_prob: float = 0.0,
    one_exchange: bool = False,
) -> np.ndarray:
    """`growth` for many step sizes at once."""
    chosen = np.asarray(list(modes))
    if server_prob == 0:
        chosen = chosen[np.abs(chosen - 1) > 1e-9]
    lrs = local_lrs[:, None]
    with np.errstate(over="ignore", invalid="ignore"):
        steps = (1 - (1 - curvatures * lrs) ** (local_steps + 1)) / curvatures
        worst = np.max((1 - comm_lr * curvatures * steps) ** 2, axis=1)
        if chosen.size:

            def matrices(modes: np.ndarray) -> np.ndarray:
                rule = {"comm_lr": comm_lr, "local_steps": local_steps, "one_exchange": one_exchange}
                return round_matrix(modes[:, None], curvatures, local_lr=lrs[..., None], **rule)

            gossip = matrices(chosen)
            if one_exchange and server_prob > 0:
                moments = (1 - server_prob) * _moments(gossip) + server_prob * _moments(matrices(0 * chosen))
                fine = np.asarray(np.isfinite(moments).all(axis=(-1, -2)))
                moments = np.where(fine[..., None, None], moments, 0.0)  # LAPACK refuses what is not finite
                square = np.abs(np.linalg.eigvals(moments)).max(axis=-1)
                square = np.where(fine, square, np.inf)
            else:
                square = (1 - server_prob) * _radius(gossip) ** 2
            worst = np.maximum(worst, np.max(square, axis=(1, 2)))
    return np.where(np.isfinite(worst), worst, np.inf)


def _moments(matrices: np.ndarray) -> np.ndarray:
    """How 2×2 matrices map the second moments (xx, xy, yy); those of complex ones have a yx of their own."""
    if np.iscomplexobj(matrices):
        both = np.einsum("...ij,...kl->...ikjl", matrices, matrices.conj())
        return both.reshape(*matrices.shape[:-2], 4, 4)
    a, b, c, d = (matrices[..., i, j] for i in (0, 1) for j in (0, 1))
    rows = [[a * a, 2 * a * b, b * b], [a * c, a * d + b * c, b * d], [c * c, 2 * c * d, d * d]]
    return np.stack([np.stack(row, axis=-1) for row in rows], axis=-2)


def largest_stable_step(modes: Iterable[complex], smoothness: float, **rule: Unpack[Rule]) -> float:
    """The η_l up to which every smaller step is stable: scanned upwards from 10⁻⁶/L (10⁻¹²/L), then bisected.

    Only for agents with one and the same Hessian; `largest_safe_step` is for all others.

    Args:
      modes: the eigenvalues of W except the mean's own 1, as `weight_modes` gives them.
      smoothness: L; every curvature up to it counts.
      **rule: PISCO's settings besides η_l.

    >>> round(largest_stable_step([-0.826238], 1.0, local_steps=0), 4)      # (1+μ)²/(2μ²)
    0.0221
    """
    modes = list(modes)
    curvatures = _curvatures(smoothness, None)

    def stable(steps: np.ndarray) -> np.ndarray:
        return _growths(modes, curvatures, steps, **rule) < 1

    # Upwards in steps of a tenth: above the limit there may be stable islands, which do not count. (The powers of
    # 1.1 miss a·η_l = 1, where one exchange with T_o > 1 touches growth 1 without crossing it.)
    steps = 1e-6 * 1.1 ** np.arange(218) / smoothness
    fine = stable(steps)
    if not fine[0]:  # far below, or nowhere
        steps *= 1e-6
        fine = stable(steps)
        if not fine[0]:
            return 0.0
    if fine.all():
        return float(steps[-1])
    last = int(fine.argmin()) - 1
    low, high = steps[last], steps[last + 1]
    for _ in range(3):
        inner = np.linspace(low, high, 60)
        last = max(int(stable(inner).argmin()) - 1, 0)
        low, high = inner[last], inner[last + 1]
    return float(low)


def best_step(
    modes: Iterable[complex], smoothness: float, *, condition: float, **rule: Unpack[Rule]
) -> tuple[float, float]:
    """(η_l, growth) of the step that shrinks the worst mode fastest on quadratics of this condition number.

    >>> step, shrink = best_step([0.0], 1.0, condition=10, local_steps=0)      # gradient descent: about 2/(L + L/10)
    >>> round(step, 2), round(shrink, 2)
    (1.81, 0.67)
    """
    modes, curvatures = list(modes), _curvatures(smoothness, condition)
    steps = np.geomspace(1e-4, 3, 60) / smoothness
    for _ in range(2):
        found = _growths(modes, curvatures, steps, **rule)
        at = int(np.argmin(found))
        best = float(steps[at]), float(found[at])
        steps = np.geomspace(steps[max(at - 1, 0)], steps[min(at + 1, len(steps) - 1)], 41)
    return best


def weight_modes(weights: Any) -> tuple[complex, ...]:
    """The eigenvalues of W that matter, except the mean's own 1.

    Of a symmetric W they are the smallest and the largest below 1. A disconnected graph has a 1 more. Of a W that is
    not symmetric all are kept, one of each conjugate pair.

    >>> [round(mode, 3) for mode in weight_modes(np.array([[0.5, 0.5, 0], [0.5, 0.5, 0], [0, 0, 1]]))]
    [0.0, 0.0, 1.0]
    """
    matrix = as_csr(weights)
    more, n = () if is_connected(matrix) else (1.0,), matrix.shape[0]
    if is_symmetric(matrix):
        return (*inner_modes(matrix), *more)
    if n > DENSE_UP_TO:
        raise InputError(
            f"the weights are not symmetric, and the eigenvalues of {n} agents are out of reach; "
            f"stability of such weights is known up to {DENSE_UP_TO} agents"
        )
    values = np.linalg.eigvals(matrix.toarray())
    inner = values[np.abs(values - 1) > 1e-9]
    return (*inner[inner.imag >= 0].tolist(), *more)
