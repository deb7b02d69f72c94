"""The fastest symmetric weights on a graph: the FDLA semidefinite program, by Newton's method on a barrier.

A general solver factors a system with one row per pair of agents, n⁶ work. Here the only unknowns are the m edge
weights and s, and the Newton system is written down directly, so 200 agents take seconds.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from pisco.networks.graph import Graph

FACTOR_UP_TO = 1500
"""Up to this many edges s is found to `PRECISE`, by factored Newton systems; above, to `ROUGH`, by iterated ones."""

PRECISE = 1e-9
ROUGH = 1e-3
"""How far above the optimum s may be, relative to s."""


@dataclass(frozen=True)
class _Point:
    """One iterate: the edge weights, the bound s, and the inverses P± = (sI ± (I − J − L(w)))⁻¹."""

    w: np.ndarray
    s: float
    below: np.ndarray  # P of sI − E
    above: np.ndarray  # P of sI + E


def fastest_weights(graph: Graph, *, nonnegative: bool = False) -> np.ndarray:
    """One weight per edge of a connected graph that minimises ‖I − L(w) − J‖₂, with L(w) = B·diag(w)·Bᵀ.

    min s  subject to  −sI ⪯ E(w) ⪯ sI,  E(w) = I − J − L(w). With t rising, Newton's method minimises
    t·s − log det(sI − E) − log det(sI + E); on its path s is within 2n/t of the optimum, which is when it stops.
    Relative to s that is 1e-9 up to 1500 edges and 1e-3 above.

    nonnegative: keep W's entries non-negative: −Σ log w_e − Σ log(1 − load_i) joins the barrier, where an agent's
      load is the sum of its edges' weights.

    >>> from pisco.networks.graphs import path
    >>> fastest_weights(path(3)).round(6).tolist()
    [0.5, 0.5]
    """
    return _Barrier(graph, nonnegative).minimise()


class _Barrier:
    def __init__(self, graph: Graph, nonnegative: bool):
        self.n, self.m, self.nonnegative = graph.num_agents, graph.num_edges, nonnegative
        self.i, self.j = graph.edges.T
        self.target = np.eye(self.n) - 1 / self.n
        self.tolerance = PRECISE if self.m <= FACTOR_UP_TO else ROUGH
        # Weights that end near zero make the systems too ill-conditioned to iterate on.
        self.newton = self.factor if nonnegative or self.m <= FACTOR_UP_TO else self.iterate
        self.terms = 2 * self.n + (self.m + self.n if nonnegative else 0)

    def minimise(self) -> np.ndarray:
        w = np.full(self.m, 1 / (2 + self.load(np.ones(self.m)).max()))  # strictly inside every constraint
        s = 0.1 + np.abs(np.linalg.eigvalsh(self.deviation(w))).max()
        t, point = self.terms / s, self.point(w, s)
        assert point is not None
        while True:
            point = self.centre(point, t)
            # s itself goes to 0 on a complete graph, so there is an absolute part.
            if self.terms / t <= self.tolerance * point.s + 1e-10:
                return point.w
            t *= 20

    def centre(self, point: _Point, t: float) -> _Point:
        """Newton's method with backtracking at one t, until half the squared decrement is small."""
        for _ in range(60):
            slope_w, slope_s = self.slope(point, t)
            step_w, step_s = self.newton(point, slope_w, slope_s)
            decrement = -(slope_w @ step_w + slope_s * step_s)
            if decrement < 1e-6:
                return point
            value, size = self.value(point, t), 1.0
            while size > 1e-8:
                tried = self.point(point.w + size * step_w, point.s + size * step_s)
                if tried is not None and self.value(tried, t) <= value - 0.1 * size * decrement:
                    break
                size /= 2
            else:
                return point  # rounding: no better point differs from this one
            point = tried
            if decrement < 0.02:
                return point
        return point

    # The barrier and its derivatives, with b_e = the column of B and q(P)_e = b_eᵀPb_e.

    def value(self, point: _Point, t: float) -> float:
        total = t * point.s + np.linalg.slogdet(point.below)[1] + np.linalg.slogdet(point.above)[1]
        if self.nonnegative:
            total -= np.log(point.w).sum() + np.log(1 - self.load(point.w)).sum()
        return float(total)

    def slope(self, point: _Point, t: float) -> tuple[np.ndarray, float]:
        w = self.quadratic(point.above) - self.quadratic(point.below)
        if self.nonnegative:
            room = 1 / (1 - self.load(point.w))
            w += room[self.i] + room[self.j] - 1 / point.w
        return w, float(t - np.trace(point.below) - np.trace(point.above))

    def factor(self, point: _Point, slope_w: np.ndarray, slope_s: float) -> tuple[np.ndarray, float]:
        """The Newton step by Cholesky: H_ef = (b_eᵀP₋b_f)² + (b_eᵀP₊b_f)², bordered by s."""
        from scipy.linalg import LinAlgError, cho_factor, cho_solve

        system = np.zeros((self.m + 1, self.m + 1))
        for inverse in (point.below, point.above):
            half = inverse[self.i] - inverse[self.j]
            system[:-1, :-1] += (half[:, self.i] - half[:, self.j]) ** 2
        system[-1, :-1], system[-1, -1] = self.border(point)
        system[:-1, -1] = system[-1, :-1]
        if self.nonnegative:
            ends = np.zeros((self.n, self.m))
            ends[self.i, np.arange(self.m)] = ends[self.j, np.arange(self.m)] = 1
            ends /= (1 - self.load(point.w))[:, None]
            system[:-1, :-1] += ends.T @ ends + np.diag(1 / point.w**2)
        slope = np.append(slope_w, slope_s)
        try:
            step = -cho_solve(cho_factor(system, lower=True), slope)
        except LinAlgError:  # singular to rounding, near the end
            step = -np.linalg.lstsq(system, slope, rcond=None)[0]
        return step[:-1], float(step[-1])

    def iterate(self, point: _Point, slope_w: np.ndarray, slope_s: float) -> tuple[np.ndarray, float]:
        """The Newton step by conjugate gradients on w, s eliminated: a product costs n³, whatever m is."""
        from scipy.sparse.linalg import LinearOperator, cg

        border, corner = self.border(point)
        diagonal = self.quadratic(point.below) ** 2 + self.quadratic(point.above) ** 2

        single = [
            inverse.astype(np.float32) for inverse in (point.below, point.above)
        ]  # ample for a rough step

        def product(v):
            laplacian = self.laplacian(v).astype(np.float32)
            out = sum(self.quadratic(inverse @ laplacian @ inverse).astype(float) for inverse in single)
            return out - border * (border @ v) / corner

        shape = (self.m, self.m)
        step, _ = cg(
            LinearOperator(shape, matvec=product),  # pyright: ignore[reportCallIssue]
            border * slope_s / corner - slope_w,
            rtol=0.1,
            maxiter=400,
            M=LinearOperator(shape, matvec=lambda v: v / diagonal),  # pyright: ignore[reportCallIssue]
        )
        return step, float(-(slope_s + border @ step) / corner)

    def border(self, point: _Point) -> tuple[np.ndarray, float]:
        """∂²/∂w∂s and ∂²/∂s² of the barrier."""
        below, above = point.below @ point.below, point.above @ point.above
        return self.quadratic(below) - self.quadratic(above), float(np.trace(below) + np.trace(above))

    # The pieces.

    def point(self, w: np.ndarray, s: float) -> _Point | None:
        """The iterate, or None outside the constraints."""
        if self.nonnegative and (w.min() <= 0 or self.load(w).max() >= 1):
            return None
        deviation, identity = self.deviation(w), np.eye(self.n)
        inverses: list[np.ndarray] = []
        for matrix in (s * identity - deviation, s * identity + deviation):
            try:
                lower = np.linalg.cholesky(matrix)
            except np.linalg.LinAlgError:
                return None
            half = np.linalg.inv(lower)
            inverses.append(half.T @ half)
        return _Point(w, s, *inverses)

    def deviation(self, w: np.ndarray) -> np.ndarray:
        return self.target - self.laplacian(w)

    def laplacian(self, w: np.ndarray) -> np.ndarray:
        matrix = np.diag(self.load(w))
        matrix[self.i, self.j] = matrix[self.j, self.i] = -w
        return matrix

    def load(self, w: np.ndarray) -> np.ndarray:
        return np.bincount(self.i, w, self.n) + np.bincount(self.j, w, self.n)

    def quadratic(self, matrix: np.ndarray) -> np.ndarray:
        own = matrix.diagonal()
        return own[self.i] + own[self.j] - matrix[self.i, self.j] - matrix[self.j, self.i]
