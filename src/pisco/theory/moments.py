"""Which step sizes are stable when agents' curvatures differ: exact second moments of PISCO on quadratics.

Agents whose Hessians differ do not split into the eigenmodes of W. A limit at the curvature of f, or at that of the
steepest agent, can be many times too large: between exchanges steep agents run ahead of flat ones. So here all agents
are taken together. With C = Y − G, which sums to zero over agents, one round is linear in (X, C):

    Z = Q^(T_o+1)·X − S_(T_o+1)·C          Q = I − η_l·H,  S_t = η_l·(I + Q + … + Q^(t−1)),  each agent with its own H
    X⁺ = W·((1 − η_c)·X + η_c·Z)
    C⁺ = W·C + (W − I)·H·X⁺                                     two exchanges
    C⁺ = W·C + (W − I)·H·(Q^T_o·X − S_T_o·C)                    one exchange

With probability p the round is M_J instead of M_W, so that the second moments Σ of the state become
(1 − p)·M_W·Σ·M_Wᵀ + p·M_J·Σ·M_Jᵀ. The spectral radius of that map is the growth of the squared error a round, in the
mean over coins. It takes any doubly stochastic W, symmetric or not, connected or not; and the pair of matrices of
one-way links, the first in the place of W for X, the second for C.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from pisco.errors import InputError, check_number, check_positive
from pisco.networks.spectral import as_csr

FLAT = 1e-6
"""Where f is flat nothing grows or shrinks: growth within this of 1 counts as stable."""

HUGE = 1e100
"""Entries beyond this, or not finite, are instability enough, and their squares would overflow."""


class RoundMaps:
    """The one-round maps of these agents, for any η_l."""

    def __init__(
        self,
        hessians: Any,
        weights: Any,
        *,
        local_steps: int,
        comm_lr: float = 1.0,
        server_prob: float = 0.0,
        one_exchange: bool = False,
    ):
        check_number("local_steps", local_steps, low=0, integer=True)
        check_positive(comm_lr=comm_lr)
        check_number("server_prob", server_prob, low=0, high=1)
        hessians, pair = np.asarray(hessians, float), weights if isinstance(weights, tuple) else (weights, weights)
        pull, push = (as_csr(each).toarray() for each in pair)
        n = len(pull)
        if hessians.shape != (n, *hessians.shape[-1:] * 2) or pull.shape != (n, n) or push.shape != (n, n):
            raise InputError(
                f"hessians have shape {hessians.shape} and weights {pull.shape}, expected (n, d, d) and (n, n)"
            )
        if max(abs(pull.sum(axis=0) - 1).max(), abs(push.sum(axis=1) - 1).max()) > 1e-6:
            raise InputError("weights are not doubly stochastic: every row and every column must sum to 1")
        values, self.vectors = np.linalg.eigh(hessians)
        self.flat = not values.max() > 0
        self.steepest = 1.0 if self.flat else float(values.max())
        self.values = np.maximum(values, 0.0) / self.steepest  # so that X and C are of one size
        self.local_steps, self.comm_lr, self.one_exchange = local_steps, comm_lr, one_exchange
        self.server_prob = server_prob
        parts = _parts(pull, apart=server_prob == 0)
        self.groups = [(part, tuple(each[np.ix_(part, part)] for each in (pull, push))) for part in parts]

    def limit(self) -> float:
        """The step up to which all smaller ones are stable."""
        if self.flat:
            return math.inf
        # Upwards, since beyond the limit there may be stable islands, which are no limit: by factors of two to the
        # first step that is not stable, by smaller ones from the one before, then by halves.
        low = 1e-3 / self.steepest
        while not self.stable(low):
            low /= 10
            if low < 1e-12 / self.steepest:
                return 0.0
        for factor in (2, 2**0.25):
            while self.stable(factor * low) and low < 1e6 / self.steepest:
                low *= factor
        top = low * factor
        while top > 1.003 * low:
            middle = (low + top) / 2
            low, top = (middle, top) if self.stable(middle) else (low, middle)
        return low

    def stable(self, local_lr: float) -> bool:
        """Does nothing grow?"""
        p = self.server_prob
        if self.one_exchange or not 0 < p < 1:
            return self.growth(local_lr) <= 1 + FLAT
        # With two exchanges a server round leaves all agents alike: deviations must not outgrow the server's visits,
        # nor x̄ from one visit to the next, which is far cheaper to follow than all moments.
        ((everybody, pair),) = self.groups
        n, d = self.values.shape
        with np.errstate(over="ignore", invalid="ignore"):
            gossip, server = (
                self._map(everybody, mixing, local_lr * self.steepest) for mixing in (pair, _averaging(n))
            )
        hessians = (self.vectors * self.values[:, None, :]) @ self.vectors.transpose(0, 2, 1)
        alike = np.tile(np.eye(d), (n, 1))
        after = np.concatenate([alike, -np.kron(_zero_sum(n), np.eye(d)).T @ hessians.reshape(n * d, d)])
        gossip *= math.sqrt(1 - p)
        if not np.abs(gossip).max() < HUGE or np.abs(np.linalg.eigvals(gossip)).max() >= 1:
            return False
        return p * _renewal_radius(gossip, after, server[:d]) <= 1 + FLAT / p

    def growth(self, local_lr: float) -> float:
        """The worst over the groups of agents that hear of each other."""
        p, worst = self.server_prob, 0.0
        for part, pair in self.groups:
            mixings = [(pair, 1 - p), (_averaging(len(part)), p)]
            with np.errstate(over="ignore", invalid="ignore"):
                step = local_lr * self.steepest
                maps = [(self._map(part, mixing, step), chance) for mixing, chance in mixings if chance > 0]
            if not all(np.abs(each).max() < HUGE for each, _ in maps):
                return math.inf
            worst = max(worst, _moment_radius(maps))
        return worst

    def _map(self, part: np.ndarray, mixing: tuple[np.ndarray, ...], step: float) -> np.ndarray:
        """M of the agents in `part`, on X and on the C that sum to zero."""
        values, vectors = self.values[part], self.vectors[part]
        n, d = values.shape
        steps = self.local_steps
        shrink = 1 - step * values
        powers = shrink ** np.arange(steps + 2)[:, None, None]
        sums = step * np.concatenate([np.zeros((1, n, d)), np.cumsum(powers, axis=0)])

        def own(of: np.ndarray) -> np.ndarray:
            """Block-diagonal: every agent's matrix with the eigenvectors of its Hessian and these eigenvalues."""
            out = np.zeros((n, d, n, d))
            out[np.arange(n), :, np.arange(n), :] = (vectors * of[:, None, :]) @ vectors.transpose(0, 2, 1)
            return out.reshape(n * d, n * d)

        pull, push = (np.kron(each.T, np.eye(d)) for each in mixing)  # agents lead: X·W of the paper is Wᵀ on the left
        unmix = push - np.eye(n * d)
        xx = pull @ own(1 - self.comm_lr + self.comm_lr * powers[steps + 1])
        xc = -self.comm_lr * pull @ own(sums[steps + 1])
        if self.one_exchange:
            gx, gc = own(values * powers[steps]), -own(values * sums[steps])
        else:
            gx, gc = own(values) @ xx, own(values) @ xc
        zero_sum = np.kron(_zero_sum(n), np.eye(d))
        cx, cc = zero_sum.T @ unmix @ gx, zero_sum.T @ (push + unmix @ gc) @ zero_sum
        return np.block([[xx, xc @ zero_sum], [cx, cc]])


def _averaging(n: int) -> tuple[np.ndarray, np.ndarray]:
    """J, for X and for C."""
    return np.full((n, n), 1 / n), np.full((n, n), 1 / n)


def _parts(matrix: np.ndarray, *, apart: bool) -> list[np.ndarray]:
    """The agents of every component; all together unless `apart`."""
    from scipy.sparse.csgraph import connected_components

    count, labels = connected_components(matrix != 0, directed=False) if apart else (1, np.zeros(len(matrix)))
    return [np.flatnonzero(labels == part) for part in range(count)]


def _zero_sum(n: int) -> np.ndarray:
    """An orthonormal basis of the vectors that sum to zero (Helmert's), n × (n − 1)."""
    k = np.arange(1, n)
    rows = np.arange(n)[:, None]
    return (np.where(rows < k, 1.0, 0.0) - np.where(rows == k, k, 0.0)) / np.sqrt(k * (k + 1.0))


def _moment_radius(maps: list[tuple[np.ndarray, float]]) -> float:
    """The spectral radius of Σ ↦ Σ_i chance_i·M_i·Σ·M_iᵀ."""
    if len(maps) == 1:
        return float(np.abs(np.linalg.eigvals(maps[0][0])).max()) ** 2
    size = len(maps[0][0])
    if size <= 8:
        whole = sum(chance * np.kron(each, each) for each, chance in maps)
        return float(np.abs(np.linalg.eigvals(whole)).max())
    from scipy.sparse.linalg import ArpackError, LinearOperator, eigs

    def apply(flat: np.ndarray) -> np.ndarray:
        moments = flat.reshape(size, size)
        return np.sum([chance * each @ moments @ each.T for each, chance in maps], axis=0).ravel()

    # The map takes positive matrices to such, so its radius is an eigenvalue with a positive matrix of its own.
    start = np.eye(size).ravel()
    whole = LinearOperator((size**2, size**2), matvec=apply, dtype=float)  # pyright: ignore[reportCallIssue]
    try:
        options: Any = {"tol": 1e-7, "maxiter": 100, "return_eigenvectors": False}
        return float(abs(eigs(whole, k=1, v0=start, **options)[0]))
    except ArpackError:  # eigenvalues crowd below it, or all are 0: so many rounds tell as much as is needed
        grown = 0.0
        for _ in range(1000):
            after = apply(start)
            grown = float(np.trace(after.reshape(size, size)) / np.trace(start.reshape(size, size)))
            if grown < 1e-30:
                break
            start = after / np.abs(after).max()
        return grown


def _renewal_radius(gossip: np.ndarray, after: np.ndarray, server: np.ndarray) -> float:
    """The spectral radius of E ↦ Σ_k server·gossip^k·after·E·(…)ᵀ, infinite where that does not converge."""
    d = after.shape[1]
    total = np.einsum("ai,bj->ijab", after, after).reshape(d * d, len(after), len(after))
    with np.errstate(over="ignore", invalid="ignore"):
        for _ in range(50):  # the sum of 2, 4, 8, … rounds
            more = gossip @ total @ gossip.T
            total = total + more
            if not np.isfinite(total).all():
                return math.inf
            if np.abs(more).max() <= 1e-10 * np.abs(total).max():
                renewed = server @ total @ server.T
                return float(np.abs(np.linalg.eigvals(renewed.reshape(d * d, d * d))).max())
            gossip = gossip @ gossip
    return math.inf
