"""How fast a matrix mixes: λ_w = 1 − ‖W − J‖₂², exactly for small n and in relative terms for large n.

A path of 100,000 agents has 1 − μ₂ ≈ 5·10⁻¹⁰, far below what an eigenvalue near 1 can resolve. The gaps
1 − μ₂ and 1 + μ_min are therefore computed directly, as the smallest eigenvalues of I − W and I + W:

- up to 1000 agents by a dense decomposition;
- circulant W by its Fourier sums Σ_s c_s(1 − cos 2πks/n);
- otherwise by Lanczos, which is quick where the gap is wide or isolated (expanders, clusters), and by Lanczos
  on the inverse where many eigenvalues crowd at the end (paths, grids): their sparse factors are cheap.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from pisco.errors import InputError, check_number

if TYPE_CHECKING:
    csr_array = Any  # SciPy ships no types, and what checkers infer is wrong

__all__ = ["eigenvalue_extremes", "expected_mixing_rate", "inner_modes", "mixing_rate"]

Apply = Callable[[np.ndarray], np.ndarray]

DENSE_UP_TO = 1000
"""Up to this many agents the spectrum is computed densely."""

SETTLED = 1e-6
"""A Lanczos value counts when its residual, relative to the gap, is below this; its error is far smaller."""


def mixing_rate(weights: Any) -> float:
    """λ_w = 1 − ‖W − J‖₂²: 1 when one round averages exactly, 0 when the graph is disconnected.

    weights: a doubly stochastic matrix, dense or sparse, symmetric or not; negative entries are fine.

    >>> round(mixing_rate([[0.75, 0.25], [0.25, 0.75]]), 12)
    0.75
    """
    matrix = as_csr(weights)
    n = matrix.shape[0]
    if n == 1:
        return 1.0
    if not is_connected(matrix):
        return 0.0
    if n <= DENSE_UP_TO:
        return 1.0 - float(np.linalg.norm(matrix.toarray() - 1 / n, 2)) ** 2
    steps = circulant_steps(matrix, 1e-14)
    if steps is not None:
        return _circulant_rate(n, *steps)
    if not is_symmetric(matrix):
        return _one_sided_rate(matrix)
    return min(gap * (2 - gap) for gap in _gaps(matrix, binding=True))


def one_way_rate(weights: Any) -> float:
    """1 − |μ|², μ the second largest eigenvalue in modulus of a matrix whose rows, or columns, sum to one."""
    matrix = as_csr(weights)
    steps = circulant_steps(matrix, 1e-14) if matrix.shape[0] > DENSE_UP_TO else None
    if steps is not None:
        return _circulant_rate(matrix.shape[0], *steps)
    sizes = np.sort(np.abs(_one_way_values(matrix, "LM")))[::-1]
    return float(max(0.0, 1 - sizes[1] ** 2)) if len(sizes) > 1 else 1.0


def least_real_part(weights: Any) -> float:
    """The smallest real part of the eigenvalues of a matrix whose rows, or columns, sum to one."""
    matrix = as_csr(weights)
    steps = circulant_steps(matrix, 1e-14)
    if steps is not None:
        return 1 - float(_circulant_gaps(matrix.shape[0], *steps)[0].max(initial=0.0))
    return float(np.real(_one_way_values(matrix, "SR")).min())


def _one_way_values(matrix: csr_array, which: str) -> np.ndarray:
    """Eigenvalues where links are one-way: all of them, or of many agents some at one end."""
    n = matrix.shape[0]
    if n <= DENSE_UP_TO:
        return np.linalg.eigvals(matrix.toarray())
    from scipy.sparse.linalg import ArpackNoConvergence, eigs

    start = np.random.default_rng(0).standard_normal(n)  # fixed, so that the answer is too
    try:  # for more than are asked for: one of two that crowd at the end is missed otherwise
        return eigs(matrix, k=20, which=which, ncv=80, maxiter=300, v0=start, return_eigenvectors=False)
    except ArpackNoConvergence:
        raise InputError(
            f"the eigenvalues of {n} agents with one-way links lie too close to be told apart; look at fewer agents"
        ) from None


def expected_mixing_rate(mixing_rate: float, server_prob: float) -> float:
    """λ_p = λ_w + p(1 − λ_w): the mixing rate of rounds that reach the server with probability p.

    >>> expected_mixing_rate(0.5, 0.1)
    0.55
    """
    check_number("server_prob", server_prob, low=0, high=1)
    return mixing_rate + server_prob * (1 - mixing_rate)


def eigenvalue_extremes(weights: Any) -> tuple[float, float]:
    """(μ_min, μ₂): the smallest and the second largest eigenvalue of a symmetric W.

    >>> low, second = eigenvalue_extremes([[0.75, 0.25], [0.25, 0.75]])
    >>> round(low, 12), round(second, 12)
    (0.5, 0.5)
    """
    matrix = _symmetric(weights)
    n = matrix.shape[0]
    if n == 1:
        return 1.0, 1.0
    if n <= DENSE_UP_TO:
        values = np.linalg.eigvalsh(matrix.toarray())
        rest = np.delete(values, np.abs(values - 1).argmin())
        return float(rest[0]), float(rest[-1])
    steps = circulant_steps(matrix, 1e-14)
    if steps is not None:
        spectrum = 1 - _circulant_gaps(n, *steps)[0]
        return float(spectrum.min()), float(spectrum.max())
    upper, lower = _gaps(matrix)
    return lower - 1, 1 - upper


def inner_modes(weights: Any) -> tuple[float, ...]:
    """The eigenvalues of a symmetric W that limit step sizes: the smallest, and the largest that is not 1.

    Every component of a graph has a 1 of its own. Where all are 1 there is none left.

    >>> [round(mode, 12) for mode in inner_modes([[0.75, 0.25, 0], [0.25, 0.75, 0], [0, 0, 1]])]
    [0.5, 0.5]
    """
    matrix = _symmetric(weights)
    small = matrix.shape[0] <= DENSE_UP_TO
    values = np.linalg.eigvalsh(matrix.toarray()) if small else np.array(eigenvalue_extremes(matrix))
    inner = values[values < 1 - 1e-12]
    return (float(inner[0]), float(inner[-1])) if inner.size else ()


def laplacian_extremes(matrix: csr_array) -> tuple[float, float]:
    """(λ₂, λ_max) of the Laplacian of a connected graph, the first with its relative accuracy kept."""
    if matrix.shape[0] <= 2 * DENSE_UP_TO:
        values = np.linalg.eigvalsh(matrix.toarray())
        return float(values[1]), float(values[-1])
    # I − L/d_max has its eigenvalues in [−1, 1], where the gaps say it all.
    scale = float(matrix.diagonal().max())
    upper, lower = _gaps(_identity(matrix) - matrix / scale)
    return scale * upper, scale * (2 - lower)


# ------------------------------------------------------------------------------------------ structure


def as_csr(weights: Any) -> csr_array:
    """A square matrix of numbers, dense or sparse, as SciPy CSR of its own, without zeros."""
    from scipy.sparse import csr_array, issparse

    if getattr(getattr(weights, "dtype", None), "kind", None) == "c":  # NumPy would drop half of each, with a warning
        raise InputError("`weights` holds complex numbers; pass real ones, as in weights.real")
    try:
        matrix = weights if issparse(weights) else np.asarray(weights, dtype=float)
    except (TypeError, ValueError):
        raise InputError("`weights` is not a matrix of numbers; pass n rows of n numbers, or a SciPy matrix") from None
    if matrix.ndim != 2 or matrix.shape[0] != matrix.shape[1] or matrix.shape[0] == 0:
        raise InputError(f"`weights` has shape {matrix.shape}, expected n × n, one row and column per agent")
    matrix = csr_array(matrix, dtype=float, copy=True)
    matrix.sum_duplicates()
    matrix.eliminate_zeros()
    return matrix


def check_sums(matrix: csr_array, axis: int, what: str, fix: str, tolerance: float = 1e-8) -> None:
    """Refuse rows or columns that do not sum to one; `what` names the one at {}."""
    sums = np.asarray(matrix.sum(axis=axis)).ravel()
    wrong = np.abs(sums - 1) > tolerance
    if wrong.any():
        at = int(wrong.argmax())
        raise InputError(f"{what.format(at)} sums to {sums[at]:.10g}, expected 1; {fix}")


def _symmetric(weights: Any) -> csr_array:
    matrix = as_csr(weights)
    if not is_symmetric(matrix):
        raise InputError("weights is not symmetric, so its eigenvalues may be complex; use mixing_rate")
    return matrix


def _identity(like: csr_array) -> csr_array:
    from scipy.sparse import eye_array

    return eye_array(like.shape[0], format="csr")


def is_connected(matrix: csr_array) -> bool:
    """Whether every agent hears of every other, directly or by way of others."""
    from scipy.sparse.csgraph import connected_components

    return connected_components(matrix, directed=False, return_labels=False) == 1


def is_symmetric(matrix: csr_array) -> bool:
    """Whether every link weighs the same both ways."""
    return float(abs(matrix - matrix.T).max()) <= 1e-12


def circulant_steps(matrix: csr_array, tolerance: float = 0.0) -> tuple[np.ndarray, np.ndarray] | None:
    """(s, c) with w_{i,i+s} = c_s for every i, or None when W is not circulant."""
    n, counts = matrix.shape[0], np.diff(matrix.indptr)
    width = int(counts[0])
    if (counts != width).any():
        return None
    steps = (matrix.indices.reshape(n, width) - np.arange(n)[:, None]) % n
    order = steps.argsort(axis=1)
    steps = np.take_along_axis(steps, order, axis=1)
    values = np.take_along_axis(matrix.data.reshape(n, width), order, axis=1)
    if (steps != steps[0]).any() or np.abs(values - values[0]).max() > tolerance:
        return None
    return steps[0].astype(np.int64), values[0]


def _circulant_gaps(n: int, steps: np.ndarray, values: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """1 − Re μ_k and Im μ_k for k = 1, …, ⌊n/2⌋, the first without cancellation."""
    k = np.arange(1, n // 2 + 1)
    turn = np.pi * np.arange(n) / n
    half, sine = 2 * np.sin(turn) ** 2, np.sin(2 * turn)
    real, imaginary = np.zeros(len(k)), np.zeros(len(k))
    for step, value in zip(steps, values, strict=True):
        place = k * step % n
        real += value * half[place]
        imaginary += value * sine[place]
    return real, imaginary


def _circulant_rate(n: int, steps: np.ndarray, values: np.ndarray) -> float:
    real, imaginary = _circulant_gaps(n, steps, values)
    return float((real * (2 - real) - imaginary**2).min())


# ----------------------------------------------------------------------------------------------- gaps


def _gaps(matrix: csr_array, *, binding: bool = False) -> tuple[float, float]:
    """(1 − μ₂, 1 + μ_min) of a symmetric W whose rows sum to 1; if `binding`, only the smaller is exact."""

    def settled(low: End, high: End) -> bool:
        return low.error <= SETTLED * abs(1 + low.value) and high.error <= SETTLED * abs(1 - high.value)

    low, high = _lanczos(lambda x: matrix @ x, matrix.shape[0], settled, most=1000)
    upper, lower = 1 - high.value, 1 + low.value
    if not is_connected(matrix):
        upper = 0.0
    elif high.error > SETTLED * abs(upper):
        upper = _crowded_upper_gap(matrix)
    bound = _gershgorin_gap(matrix)
    if low.error > SETTLED * abs(lower) and not (binding and bound > upper):
        lower = _crowded_lower_gap(matrix, bound)
    return upper, lower


def _one_sided_rate(matrix: csr_array) -> float:
    """1 − ‖W − J‖₂² of a W that is not symmetric: the upper gap of WᵀW."""
    fill = int((np.diff(matrix.indptr).astype(np.int64) ** 2).sum())
    if fill <= 50_000_000:
        return _gaps(matrix.T @ matrix, binding=True)[0]
    # A hub would make WᵀW nearly full: apply the two factors instead.
    _, high = _lanczos(
        lambda x: matrix.T @ (matrix @ x),
        matrix.shape[0],
        lambda _, high: high.error <= SETTLED * abs(1 - high.value),
        most=5000,
    )
    return 1 - high.value


def _crowded_upper_gap(matrix: csr_array) -> float:
    # The Laplacian from the off-diagonal entries alone: no 1 − w_ii that would cancel. Without agent 0 it is
    # regular, and P·[0 0; 0 L₀⁻¹]·P is its pseudo-inverse, P = I − J.
    solve = _factor(laplacian(matrix)[1:, 1:])
    return 1 / _largest(lambda x: np.concatenate([[0.0], solve(x[1:])]), matrix.shape[0])


def _crowded_lower_gap(matrix: csr_array, bound: float) -> float:
    # Where eigenvalues crowd at the end, Gershgorin's bound is nearly attained; slightly below it is regular.
    below = bound - 1e-12
    return below + 1 / _largest(_factor(matrix + (1 - below) * _identity(matrix)), matrix.shape[0])


def _gershgorin_gap(matrix: csr_array) -> float:
    """A lower bound of 1 + μ_min: min_i 1 + w_ii − Σ_{j≠i} |w_ij|."""
    diagonal = matrix.diagonal()
    return float((1 + diagonal + np.abs(diagonal) - np.asarray(abs(matrix).sum(axis=1)).ravel()).min())


def laplacian(matrix: csr_array) -> csr_array:
    """D − A of the links that a matrix holds; its diagonal does not count."""
    from scipy.sparse import csr_array, diags_array

    entries = matrix.tocoo()
    off = entries.row != entries.col
    links = csr_array((entries.data[off], (entries.row[off], entries.col[off])), shape=matrix.shape)
    return csr_array(diags_array(np.asarray(links.sum(axis=1)).ravel()) - links)


def _factor(matrix: csr_array) -> Apply:
    """x ↦ A⁻¹x by a sparse factorisation that keeps the pattern symmetric."""
    from scipy.sparse.linalg import splu

    options = {"SymmetricMode": True}
    return splu(matrix.tocsc(), permc_spec="MMD_AT_PLUS_A", diag_pivot_thresh=0.0, options=options).solve


def _inner(x: np.ndarray, y: np.ndarray) -> float:
    return float(np.einsum("i,i->", x, y))  # in one thread: waking the others for each step costs more


class End(NamedTuple):
    """One end of a spectrum: the value found, and the residual that bounds its error."""

    value: float
    error: float


def _largest(apply: Apply, n: int) -> float:
    """The largest eigenvalue across 1 of an inverse; it stands clear, so few steps are needed."""
    return _lanczos(apply, n, lambda _, high: high.error <= 1e-7 * abs(high.value), most=200)[1].value


def _lanczos(apply: Apply, n: int, settled: Callable[[End, End], bool], most: int) -> tuple[End, End]:
    """The smallest and the largest eigenvalue across 1 of a symmetric map of which 1 is an eigenvector.

    The three-term recurrence without reorthogonalisation: an eigenvalue may appear twice, but its value is
    right, and a step costs little more than the product. `scipy.sparse.linalg.eigsh` in its place
    finds the same values (to 1e-11) in 2 to 9 times the processor time, as it reorthogonalises and restarts. Seconds,
    ours and eigsh's: path of 10⁴ agents 0.17 and 0.39, grid 0.05 and 0.31, Erdős–Rényi 0.05 and 0.18; path of 10⁵ 0.94
    and 8.1, grid 1.7 and 9.2 (`OPENBLAS_NUM_THREADS=1 python benchmarks/bench_spectral.py 10000 100000`).
    """
    from scipy.linalg import eigh_tridiagonal

    new = np.random.default_rng(0).standard_normal(n)  # fixed, so that the answer is too
    new -= new.mean()
    old, beta = np.zeros(n), math.sqrt(_inner(new, new))
    alphas: list[float] = []
    betas: list[float] = []
    while True:
        old, new = new / beta, -beta * old if alphas else np.zeros(n)
        new += apply(old)
        new -= new.mean()
        alphas.append(_inner(new, old))
        new -= alphas[-1] * old
        # Once more: what rounding leaves of 1 and of the last vector is amplified by 1/beta.
        new -= new.mean()
        new -= _inner(new, old) * old
        beta = math.sqrt(_inner(new, new))
        # A tiny beta: the vectors so far span what there is (a star has three eigenvalues), more is noise.
        last = len(alphas) == most or beta <= 1e-10 * max(map(abs, alphas))
        if last or len(alphas) % 20 == 0:
            ends = []
            for index in (0, len(alphas) - 1):
                value, vector = eigh_tridiagonal(alphas, betas, select="i", select_range=(index, index))
                ends.append(End(float(value[0]), beta * abs(float(vector[-1, 0]))))
            if last or settled(*ends):
                return ends[0], ends[1]
        betas.append(beta)
