"""Random cases of PISCO on quadratics, and the step at which each begins to grow, found without any theory.

The reference is PISCO's lines in NumPy: applied to every unit vector they give the linear map of a round, and what
second moments do under it, coin by coin in the mean, tells whether a step is stable. As a script it puts the limits of
`pisco.theory` beside the thresholds:

    python tests/stability_cases.py 200
"""

import sys
import time

import numpy as np
from scipy.sparse import csr_array
from scipy.sparse.csgraph import connected_components

from pisco import theory

KNOWN = ("Hessians", "largest curvatures", "modes, at the steepest agent's curvature", "modes, at the curvature of f")


class Case:
    """Random agents, weights and settings."""

    def __init__(self, seed, agents=8, dimensions=4):
        rng = np.random.default_rng(seed)
        n, d = int(rng.integers(2, agents + 1)), int(rng.integers(1, dimensions + 1))
        self.weights, self.hessians = random_weights(rng, n), random_hessians(rng, n, d)
        self.p = float(rng.choice([0, 0.05, 0.1, 0.3, 0.7, 1]))
        self.rule = {"local_steps": int(rng.integers(0, 6)), "one_exchange": bool(rng.integers(2))}
        self.rule["comm_lr"] = float(rng.choice([1, 1, 0.3]))

    @property
    def options(self):
        return self.rule | {"server_prob": self.p}

    @property
    def curvatures(self):
        return np.linalg.eigvalsh(self.hessians).max(axis=-1)

    def limits(self):
        """The largest step by what is known of the agents, in the rows' order."""
        modes = theory.weight_modes(self.weights)
        steepest, mean = self.curvatures.max(), np.linalg.eigvalsh(self.hessians.mean(axis=0)).max()
        return (
            theory.largest_safe_step(self.hessians, self.weights, **self.options),
            theory.largest_safe_step(self.curvatures, self.weights, **self.options),
            theory.largest_stable_step(modes, steepest, **self.options),
            theory.largest_stable_step(modes, mean, **self.options),
        )

    def threshold(self, start=None):
        """The least step at which second moments grow, within 1%, scanned upwards; infinite if none is.

        It starts at a hundredth of gradient descent's own limit unless told, or lower where even that grows.
        """
        low = start or 0.02 / (self.curvatures.max() * (self.rule["local_steps"] + 1))
        while grows(self, low):
            low /= 10
            if low < 1e-9 / self.curvatures.max():
                return 0.0
        high = 1.1 * low
        while not grows(self, high):
            low, high = high, 1.1 * high
            if high > 1e4 / self.curvatures.max():
                return np.inf
        while high > 1.01 * low:
            middle = (low + high) / 2
            low, high = (low, middle) if grows(self, middle) else (middle, high)
        return high


def random_weights(rng, n):
    """Symmetric or not, connected or not."""
    links = np.zeros((n, n), bool)
    kind = rng.choice(["ring", "path", "star", "complete", "random", "halves"])
    if kind == "star":
        links[0, 1:] = True
    elif kind == "complete":
        links[:] = True
    elif kind == "random":
        links = rng.random((n, n)) < 0.4
    else:
        links[np.arange(n - 1), np.arange(1, n)] = True
        links[n - 1, 0] = kind == "ring"
        links[n // 2 - 1, n // 2] = kind != "halves"
    links = np.triu(links | links.T, 1) + np.triu(links | links.T, 1).T
    degrees = links.sum(1)
    rule = rng.choice(["metropolis", "best-constant", "random", "product", "permutations"])
    if rule == "permutations":
        shares = rng.dirichlet(np.ones(4))
        return sum(share * np.eye(n)[rng.permutation(n)] for share in shares[1:]) + shares[0] * np.eye(n)
    if rule == "best-constant":
        laplacian = np.diag(degrees) - 1.0 * links
        values = np.linalg.eigvalsh(laplacian)
        inner = values[values > 1e-9]
        return np.eye(n) - (1.96 / (inner.min() + inner.max()) if inner.size else 0) * laplacian
    weights = links / (1 + np.maximum(degrees[:, None], degrees))
    if rule == "random":
        weights = rng.random((n, n)) * links
        weights = (weights + weights.T) / max((weights + weights.T).sum(1).max(), 1e-9) / rng.uniform(1, 1.6)
    weights += np.diag(1 - weights.sum(1))
    if rule == "product":
        weights = weights @ (0.6 * np.eye(n) + 0.4 * np.eye(n)[rng.permutation(n)])
    return weights


def random_hessians(rng, n, d):
    """All alike, alike up to a factor, full, of low rank, or one steep agent among flat ones."""
    kind = rng.choice(["same", "scaled", "full", "low rank", "one"])
    roots = rng.normal(size=(n, d, 1 if kind == "low rank" else d)) / np.sqrt(d)
    if kind in ("same", "scaled"):
        roots[:] = roots[0]
    hessians = roots @ roots.transpose(0, 2, 1)
    if kind in ("scaled", "low rank"):
        hessians *= np.exp(rng.normal(size=(n, 1, 1)))
    if kind == "one":
        hessians[1:] = 0.1 * np.eye(d)
    return hessians + 0.02 * np.eye(d)


def round_map(hessians, mixing, groups, *, local_lr, local_steps, one_exchange, comm_lr=1.0):
    """One round as a matrix, on the states that a run can be in: mean(Y) = mean(G) in every group."""
    n, d = hessians.shape[:2]

    def gradient(x):  # a batch of states, in the paper's columns
        return np.einsum("nij,bjn->bin", hessians, x)

    start = np.eye(2 * n * d).reshape(-1, 2, d, n)
    X, Y = start[:, 0], start[:, 1]
    x, y, g = X, Y, gradient(X)
    for _ in range(local_steps):
        x = x - local_lr * y
        new = gradient(x)
        y, g = y + new - g, new
    X = ((1 - comm_lr) * X + comm_lr * (x - local_lr * y)) @ mixing
    G = gradient(X)
    Y = y @ mixing + G - g if one_exchange else (y + G - g) @ mixing
    whole = np.stack([X, Y], 1).reshape(len(start), -1).T
    gaps = [np.einsum("bin->bi", (start[:, 1] - gradient(start[:, 0]))[:, :, group]) for group in groups]
    gaps = np.concatenate(gaps, axis=1)
    states = np.linalg.svd(gaps)[0][:, gaps.shape[1] :]
    return states.T @ whole @ states


def grows(case, local_lr, block=50, blocks=16):
    """Whether second moments, in the mean over coins, grow in the later half of 800 rounds, or sooner beyond doubt."""
    n = len(case.weights)
    groups = [np.arange(n)]
    if case.p == 0:
        count, labels = connected_components(csr_array(case.weights), directed=False)
        groups = [np.flatnonzero(labels == each) for each in range(count)]
    mixings = [(case.weights, 1 - case.p), (np.full((n, n), 1 / n), case.p)]
    maps = [(round_map(case.hessians, W, groups, local_lr=local_lr, **case.rule), q) for W, q in mixings if q > 0]
    moments, gained = np.eye(len(maps[0][0])), []
    for _ in range(blocks):
        gain = 0.0
        for _ in range(block):
            moments = sum(q * M @ moments @ M.T for M, q in maps)
            size = np.trace(moments)
            if size < 1e-250:
                return False
            gain += np.log(size)
            moments /= size
        gained.append(gain)
        if len(gained) > 1 and abs(gain) > 5:
            return gain > 0
    return sum(gained[blocks // 2 :]) > 0.01


def ratios(seeds, agents=8, dimensions=4, start=None):
    """Every limit over the threshold, (cases, 4); `start` is where to look for that, as a share of the first limit."""
    found = []
    for seed in seeds:
        case = Case(seed, agents, dimensions)
        limits = np.array(case.limits())
        found.append(limits / case.threshold(start and start * limits[0]))
    return np.array(found)


def main(count):
    began = time.monotonic()
    found = ratios(range(count))
    cases = [Case(seed) for seed in range(count)]
    odd = sum(abs(case.weights - case.weights.T).max() > 1e-12 for case in cases)
    apart = sum(connected_components(csr_array(case.weights), directed=False)[0] > 1 for case in cases)
    seconds = time.monotonic() - began
    print(f"{count} cases in {seconds:.0f} s, {odd} with W not symmetric, {apart} disconnected; limit over threshold:")
    for name, each in zip(KNOWN, found.T, strict=True):
        above, below = (each > 1.05).sum(), (each < 0.5).sum()
        print(f"{name}: {above} above 1.05, {below} below 0.5, {np.min(each):.3g} to {np.max(each):.3g}")


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 200)
