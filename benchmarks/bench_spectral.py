"""Mixing rates of large graphs: our Lanczos against scipy's `eigsh`, with the same factors where eigenvalues crowd.

OPENBLAS_NUM_THREADS=1 python benchmarks/bench_spectral.py 10000 100000
"""

from __future__ import annotations

import sys
import time

import numpy as np
from scipy.sparse.linalg import ArpackNoConvergence, LinearOperator, eigsh

from pisco.networks import graphs, spectral, weights


def largest(apply, n, sign, most, tolerance=1e-10, vectors=40):
    """The largest (or, with sign −1, the smallest) eigenvalue across 1; None when it does not settle."""
    start = np.random.default_rng(0).standard_normal(n)

    def centred(x):
        out = apply(x.ravel() - x.mean())
        return sign * (out - out.mean())

    try:
        found = eigsh(
            LinearOperator((n, n), matvec=centred, dtype=float),
            k=1,
            which="LA",
            v0=start - start.mean(),
            tol=tolerance,
            maxiter=most,
            ncv=vectors,
            return_eigenvectors=False,
        )
    except ArpackNoConvergence:
        return None
    return sign * float(found[0])


def gaps(matrix):
    """(1 − μ₂, 1 + μ_min), as `spectral._gaps` has them; about 1000 products before it turns to factors."""
    n = matrix.shape[0]
    high, low = (largest(lambda x: matrix @ x, n, sign, 25) for sign in (1, -1))
    if high is None:
        solve = spectral._factor(spectral.laplacian(matrix)[1:, 1:])
        upper = 1 / largest(lambda x: np.concatenate([[0.0], solve(x[1:])]), n, 1, 200, vectors=20)
    else:
        upper = 1 - high
    if low is None:
        below = spectral._gershgorin_gap(matrix) - 1e-12
        solve = spectral._factor(matrix + (1 - below) * spectral._identity(matrix))
        return upper, below + 1 / largest(solve, n, 1, 200, vectors=20)
    return upper, 1 + low


for n in map(int, sys.argv[1:] or ["10000"]):
    side = int(n**0.5)
    for graph in (
        graphs.path(n),
        graphs.grid(side, side),
        graphs.erdos_renyi(n, 2 * np.log(n) / n, 0),
        graphs.random_regular(n, 4, seed=1),
    ):
        matrix = spectral.as_csr(weights.metropolis(graph))
        began = time.process_time()
        ours = spectral._gaps(matrix)
        between = time.process_time()
        theirs = gaps(matrix)
        seconds = f"{between - began:.2f} s and {time.process_time() - between:.2f} s"
        apart = max(abs(a / b - 1) for a, b in zip(ours, theirs, strict=True))
        print(f"{graph.name}: {seconds}, relative difference {apart:.0e}", flush=True)
