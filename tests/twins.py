"""Naive NumPy twins: each algorithm as a plain loop in the paper's notation, one agent a column (X is d×n).

`mixes` is the sequence W⁰, W¹, … that the coins chose; `gradient(X)` the agents' full gradients, column by column.
Every twin yields a dictionary of matrices after each round. Compressors are given as functions of a matrix and the
round; the tests use deterministic ones.
"""

import numpy as np


def start(x0, mixes):
    return np.outer(x0, np.ones(mixes[0].shape[0]))


def private_gradient(samples, gradient, clip, noise, normals, smooth=False, divisor=None):
    """(Σⱼ clip(∇ℓⱼ) + σ·C·z)/b as a plain loop; `gradient(sample)` is one sample's, `normals` the drawn z."""
    total = np.zeros_like(normals)
    for sample in samples:
        g = np.asarray(gradient(sample), float)
        norm = np.sqrt((g**2).sum())
        if smooth:
            g = g * clip / (clip + norm)
        elif norm > clip:
            g = g * clip / norm
        total += g
    return (total + noise * clip * normals) / (divisor or len(samples))


def among_present(W, present, server):
    """A round's matrix when only some agents are there, entry by entry."""
    out, there = np.eye(len(W)), np.flatnonzero(present)
    for i in there:
        for j in there:
            if server:
                out[i, j] = 1 / len(there)
            elif i != j:
                out[i, j] = W[i, j]
                out[i, i] -= W[i, j]
    return out


def plain(direction, x):
    """Directions as they are."""
    return direction


class Momentum:
    def __init__(self, decay):
        self.decay, self.velocity = decay, 0.0

    def __call__(self, direction, x):
        self.velocity = direction + self.decay * self.velocity
        return self.velocity


class AdamW:
    """Kingma and Ba's Adam, its direction plus weight·x; `shared` mixes its second moment too."""

    def __init__(self, b1=0.9, b2=0.999, eps=1e-8, weight=0.0, shared=False):
        self.b1, self.b2, self.eps, self.weight, self.shared = b1, b2, eps, weight, shared
        self.m = self.v = self.steps = 0

    def mixed(self, W):
        self.v = self.v @ W if self.shared else self.v

    def __call__(self, direction, x):
        self.steps += 1
        self.m = self.b1 * self.m + (1 - self.b1) * direction
        self.v = self.b2 * self.v + (1 - self.b2) * direction**2
        m, v = self.m / (1 - self.b1**self.steps), self.v / (1 - self.b2**self.steps)
        return m / (np.sqrt(v) + self.eps) + self.weight * x


class Cosine:
    """What another says, times a factor that rises over `warmup` steps and falls to `end` by a cosine."""

    def __init__(self, inner, steps, warmup, end):
        self.inner, self.mixed, self.at = inner, inner.mixed, 0
        rest = (np.arange(warmup, steps) - warmup) / (steps - warmup)
        falls = end + (1 - end) * (1 + np.cos(np.pi * rest)) / 2
        self.factors = [*(np.arange(1, warmup + 1) / (warmup + 1)), *falls]

    def __call__(self, direction, x):
        self.at += 1
        return self.factors[self.at - 1] * self.inner(direction, x)


class Clip:
    """Every agent's column cut to a norm of its own."""

    def __init__(self, most):
        self.most = most

    def __call__(self, direction, x):
        norms = np.linalg.norm(direction, axis=0)
        return direction * np.minimum(1, self.most / norms)


def told(direction, W):
    """Let an optimizer that shares some of its memory mix it."""
    if hasattr(direction, "mixed"):
        direction.mixed(W)


def pisco(
    x0,
    gradient,
    mixes,
    *,
    local_lr,
    comm_lr=1.0,
    local_steps,
    one_exchange=False,
    direction=plain,
    outer=plain,
    present=None,
):
    """`present` has a mask for every round; the absent keep what they have."""
    X = start(x0, mixes)
    G = gradient(X)
    Y = G.copy()
    for k, W in enumerate(mixes):
        before = X, Y, G
        x, y, g = X.copy(), Y.copy(), G.copy()
        for _ in range(local_steps):
            x = x - local_lr * direction(y, x)
            new = gradient(x)
            y = y + new - g
            g = new
        x = x - local_lr * direction(y, x)
        X = (X - comm_lr * outer(X - x, X)) @ W
        told(direction, W)
        G = gradient(X)
        Y = y @ W + G - g if one_exchange else (y + G - g) @ W
        if present is not None:
            X, Y, G = (np.where(present[k], new, old) for new, old in zip((X, Y, G), before, strict=True))
        yield {"params": X, "tracker": Y, "grads": G}


def dsgd(
    x0, gradient, mixes, *, local_lr, comm_lr=1.0, local_steps=1, combine_first=False, direction=plain, outer=plain
):
    X = start(x0, mixes)
    for W in mixes:
        x = X
        for _ in range(local_steps):
            x = x - local_lr * direction(gradient(x), x)
        move = comm_lr * outer(X - x, X)
        X = X @ W - move if combine_first else (X - move) @ W
        told(direction, W)
        yield {"params": X}


def momentum_dsgd(x0, gradient, mixes, *, local_lr, momentum=0.9):
    X = start(x0, mixes)
    V = np.zeros_like(X)
    for W in mixes:
        V = momentum * V + gradient(X)
        X = (X - local_lr * V) @ W
        yield {"params": X, "velocity": V}


def dsgt(x0, gradient, mixes, *, local_lr, combine_first=False):
    X = start(x0, mixes)
    G = gradient(X)
    Y = G
    for W in mixes:
        X = X @ W - local_lr * Y if combine_first else (X - local_lr * Y) @ W
        new = gradient(X)
        Y, G = Y @ W + new - G, new
        yield {"params": X, "tracker": Y, "grads": G}


def kgt(
    x0,
    gradient,
    mixes,
    *,
    local_lr,
    comm_lr=1.0,
    local_steps,
    last_gradient=False,
    start="zero",
    lasting=False,
    W0=None,
    direction=plain,
    outer=plain,
):
    """`lasting`: the share of every agent's correction that is the same from round to round, μ = 0.9."""
    X = np.outer(x0, np.ones(mixes[0].shape[0]))
    G0, n = gradient(X), X.shape[1]
    C = {
        "zero": 0 * G0,
        "central": G0 @ np.full((n, n), 1 / n) - G0,
        "gossip": G0 @ (np.eye(n) if W0 is None else W0) - G0,
    }[start]
    past = []
    for W in mixes:
        x, total, used = X, 0.0, C
        if lasting:
            weights = 0.1 * 0.9 ** np.arange(len(past))[::-1]
            ratio = noise = np.ones(n)
            if past:
                mean = np.tensordot(weights, past, 1) / weights.sum()
                ratio = (mean**2).sum(0) / (np.tensordot(weights, [(c**2).sum(0) for c in past], 1) / weights.sum())
                noise = (weights**2).sum() / weights.sum() ** 2
            used = C * (0.0 if len(past) < 2 else np.clip((ratio - noise) / (1 - noise), 0, 1))
        for _ in range(local_steps):
            g = gradient(x) + used
            x, total = x - local_lr * direction(g, x), total + g
        Z = (g if last_gradient else total / local_steps) + C - used
        C = C - Z + Z @ W
        past.append(C)
        X = (X - comm_lr * outer(X - x, X)) @ W
        told(direction, W)
        yield {"params": X, "correction": C}


def scaffold(x0, gradient, mixes, *, local_lr, comm_lr=1.0, local_steps, fresh_gradient=False, reporters=None):
    """`reporters` lists the sampled agents of every round; the server's x and c are kept as single vectors."""
    n = mixes[0].shape[0]
    x, c, own = x0.copy(), np.zeros_like(x0), np.zeros((len(x0), n))
    for k in range(len(mixes)):
        S = list(range(n)) if reporters is None else reporters[k]
        X = np.outer(x, np.ones(n))
        y = X
        for _ in range(local_steps):
            y = y - local_lr * (gradient(y) - own + c[:, None])
        new = gradient(X) if fresh_gradient else own - c[:, None] + (X - y) / (local_steps * local_lr)
        x = x + comm_lr * (y - X)[:, S].mean(axis=1)
        c = c + len(S) / n * (new - own)[:, S].mean(axis=1)
        own = own.copy()
        own[:, S] = new[:, S]
        yield {"params": np.outer(x, np.ones(n)), "own": own, "shared": np.outer(c, np.ones(n))}


def choco(x0, gradient, mixes, *, local_lr, consensus_lr, compress):
    X = start(x0, mixes)
    public = np.zeros_like(X)
    for W in mixes:
        half = X - local_lr * gradient(X)
        public = public + compress(half - public)
        X = half + consensus_lr * public @ (W - np.eye(len(W)))
        yield {"params": X}


def beer(x0, gradient, mixes, *, local_lr, consensus_lr, compress, momentum=1.0):
    X = start(x0, mixes)
    G = gradient(X)
    V, H, Gh = G, np.zeros_like(X), np.zeros_like(X)
    for W in mixes:
        L = W - np.eye(len(W))
        X = X + consensus_lr * H @ L - local_lr * V
        H = H + compress(X - H)
        new = (1 - momentum) * G + momentum * gradient(X)  # with a weight below 1, MoTEF
        V = V + consensus_lr * Gh @ L + new - G
        Gh, G = Gh + compress(V - Gh), new
        yield {"params": X, "tracker": V, "grads": G, "public_params": H, "public_tracker": Gh}


def compressed_pisco(x0, gradient, mixes, servers, *, local_lr, local_steps, consensus_lr, compress):
    """Both exchanges with error feedback; neighbours and server keep copies of their own."""
    X = start(x0, mixes)
    G = gradient(X)
    Y = G
    copies = {(kind, what): np.zeros_like(X) for kind in (False, True) for what in "xy"}

    def exchange(V, W, server, what):
        copies[server, what] = copies[server, what] + compress(V - copies[server, what])
        return V + consensus_lr * copies[server, what] @ (W - np.eye(len(W)))

    for W, server in zip(mixes, servers, strict=True):
        x, y, g = X, Y, G
        for _ in range(local_steps):
            x = x - local_lr * y
            new = gradient(x)
            y, g = y + new - g, new
        X = exchange(x - local_lr * y, W, bool(server), "x")
        G = gradient(X)
        Y = exchange(y + G - g, W, bool(server), "y")
        yield {"params": X, "tracker": Y, "grads": G}


def extra(x0, gradient, mixes, *, local_lr):
    """In the paper's two-step form."""
    X0 = start(x0, mixes)
    W, half = mixes[0], (np.eye(len(mixes[0])) + mixes[0]) / 2
    X = X0 @ W - local_lr * gradient(X0)
    yield {"params": X}
    for _ in mixes[1:]:
        X0, X = X, 2 * X @ half - X0 @ half - local_lr * (gradient(X) - gradient(X0))
        yield {"params": X}


def exact_diffusion(x0, gradient, mixes, *, local_lr):
    """In the two-step form."""
    X0 = start(x0, mixes)
    W = mixes[0]
    X = (X0 - local_lr * gradient(X0)) @ W
    yield {"params": X}
    for _ in mixes[1:]:
        X0, X = X, (2 * X - X0 - local_lr * (gradient(X) - gradient(X0))) @ W
        yield {"params": X}


def led(x0, gradient, mixes, *, local_lr, local_steps):
    X = start(x0, mixes)
    D = np.zeros_like(X)
    for W in mixes:
        F = X
        for _ in range(local_steps):
            F = F - local_lr * gradient(F) - D / local_steps
        X = F @ W
        D = D + F - X
        yield {"params": X, "correction": D}


def proxskip(x0, gradient, mixes, *, local_lr, server_prob):
    X = start(x0, mixes)
    H = np.zeros_like(X)
    for W in mixes:
        ahead = X - local_lr * (gradient(X) - H)
        X = ahead @ W
        H = H + server_prob / local_lr * (X - ahead)
        yield {"params": X, "control": H}


def quasi_global(x0, gradient, mixes, *, local_lr, momentum, memory):
    X = start(x0, mixes)
    M = np.zeros_like(X)
    for W in mixes:
        new = (X - local_lr * (momentum * M + gradient(X))) @ W
        M = memory * M + (1 - memory) * (X - new) / local_lr
        X = new
        yield {"params": X, "velocity": M}


def sd_gt(x0, gradient, mixes, *, local_lr):
    X = start(x0, mixes)
    n = X.shape[1]
    Y, Z, anchor, news = np.zeros_like(X), np.zeros_like(X), X, [np.zeros_like(X)]
    for W in mixes:
        D = gradient(X) + Y + Z
        half = X - local_lr * D
        X = half @ W
        if np.allclose(W, 1 / n):
            m = len(news)  # the first is none: this round's, who gossips with nobody
            Y = Y + sum(news) / m
            delta = half - anchor + m * local_lr * Z
            Z = (delta - delta @ W) / (m * local_lr)
            anchor, news = X, [np.zeros_like(X)]
        else:
            news.append(D @ W - D)
        yield {"params": X, "correction": Y + Z, "anchor": anchor, "news": sum(news)}


def sd_gt_of_its_authors(x0, gradient, W, groups, *, local_lr, period, periods, ours=False):
    """Their loop where everybody reports; `ours` leaves out a period's last gossip, and each has a Z of its own."""
    X = np.outer(x0, np.ones(len(W)))
    Y, Z, center = np.zeros_like(X), np.zeros_like(X), x0
    share = np.equal.outer(groups, groups) / np.bincount(groups)[groups]  # averages over a subnet
    for _ in range(periods):
        begun, news = X, np.zeros_like(X)
        for t in range(period):
            V = np.eye(len(W)) if ours and t == period - 1 else W
            G = gradient(X)
            X = (X - local_lr * (G + Y + Z)) @ V
            sent = G + Y + Z if ours else G + Y  # the same to them: a subnet has one Z
            news = news + (sent @ V - sent) / period
            if t < period - 1:
                yield X
        Y = Y + news
        delta = X - begun + period * local_lr * Z
        overall = delta.mean(axis=1)
        Z = ((delta if ours else delta @ share) - overall[:, None]) / (period * local_lr)
        center = center + overall
        X = np.outer(center, np.ones(len(W)))
        yield X


def among_sampled(W, chosen, gossip=None):
    """A server round whose average only the sampled hear, entry by entry; all gossip before, if so."""
    average = np.eye(len(W))
    for i in chosen:
        for j in range(len(W)):
            average[i, j] = 1 / len(chosen) if j in chosen else 0.0
    return average if gossip is None else np.linalg.matrix_power(W, gossip) @ average


def fedprox(x0, gradient, mixes, *, local_lr, local_steps, prox, comm_lr=1.0):
    X = start(x0, mixes)
    for W in mixes:
        Y = X
        for _ in range(local_steps):
            Y = Y - local_lr * (gradient(Y) + prox * (Y - X))
        X = ((1 - comm_lr) * X + comm_lr * Y) @ W
        yield {"params": X}


def feddyn(x0, gradient, mixes, *, local_lr, local_steps, prox, reporters=None):
    n = mixes[0].shape[0]
    x, own, h = x0, np.zeros((len(x0), n)), np.zeros_like(x0)
    for k in range(len(mixes)):
        chosen = list(range(n)) if reporters is None else reporters[k]
        Y = np.outer(x, np.ones(n))
        for _ in range(local_steps):
            Y = Y - local_lr * (gradient(Y) - own + prox * (Y - x[:, None]))
        own = own.copy()
        for i in chosen:
            own[:, i] -= prox * (Y[:, i] - x)
        h = h - prox / n * sum(Y[:, i] - x for i in chosen)
        x = Y[:, chosen].mean(axis=1) - h / prox
        yield {"params": np.outer(x, np.ones(n)), "own": own, "shared": np.outer(h, np.ones(n))}


def fedadam(x0, gradient, mixes, *, local_lr, local_steps, comm_lr, first_decay, second_decay, floor):
    n = mixes[0].shape[0]
    x, m, v = x0, np.zeros_like(x0), np.full_like(x0, floor**2)
    for _ in mixes:
        Y = np.outer(x, np.ones(n))
        for _ in range(local_steps):
            Y = Y - local_lr * gradient(Y)
        change = (Y - x[:, None]).mean(axis=1)
        m = first_decay * m + (1 - first_decay) * change
        v = second_decay * v + (1 - second_decay) * change**2
        x = x + comm_lr * m / (np.sqrt(v) + floor)
        yield {"params": np.outer(x, np.ones(n)), "first": np.outer(m, np.ones(n)), "second": np.outer(v, np.ones(n))}


def gt_hsgd(x0, gradient, mixes, *, local_lr, momentum):
    X = start(x0, mixes)
    V = Y = gradient(X)
    for W in mixes:
        old, X = X, (X - local_lr * Y) @ W
        new = gradient(X) + (1 - momentum) * (V - gradient(old))
        Y, V = (Y + new - V) @ W, new
        yield {"params": X, "tracker": Y, "estimate": V}


def noloco(x0, gradient, mixes, *, local_lr, local_steps, comm_lr, momentum, consensus_lr, direction=plain):
    X = start(x0, mixes)
    M = np.zeros_like(X)
    for W in mixes:
        Y = X
        for _ in range(local_steps):
            Y = Y - local_lr * direction(gradient(Y), Y)
        M = momentum * M + comm_lr * (Y - X) @ W - consensus_lr * (X - X @ W)
        X = X + M
        yield {"params": X, "velocity": M}


def diloco(x0, gradient, mixes, *, local_lr, local_steps, direction, decay):
    """AdamW inside; outside Nesterov momentum on the mean of what the agents moved."""
    n, x, v = mixes[0].shape[0], x0, 0.0
    for _ in mixes:
        Y = np.outer(x, np.ones(n))
        for _ in range(local_steps):
            Y = Y - local_lr * direction(gradient(Y), Y)
        back = x - Y.mean(axis=1)
        v = decay * v + back
        x = x - (back + decay * v)
        yield {"params": np.outer(x, np.ones(n))}


def top_k(count):
    """Column by column, the entries of largest magnitude."""

    def compress(V):
        out = np.zeros_like(V)
        for i, column in enumerate(V.T):
            places = np.argsort(-np.abs(column), kind="stable")[:count]
            out[places, i] = column[places]
        return out

    return compress


def push_pull(x0, gradient, pairs, *, local_lr, comm_lr=1.0, local_steps, one_exchange=False):
    """PISCO where X is mixed by the first matrix of a pair and Y by the second; without local steps, Push-Pull."""
    X = np.outer(x0, np.ones(pairs[0][0].shape[0]))
    G = gradient(X)
    Y = G.copy()
    for pull, push in pairs:
        x, y, g = X, Y, G
        for _ in range(local_steps):
            x = x - local_lr * y
            new = gradient(x)
            y, g = y + new - g, new
        X = ((1 - comm_lr) * X + comm_lr * (x - local_lr * y)) @ pull
        G = gradient(X)
        Y = y @ push + G - g if one_exchange else (y + G - g) @ push
        yield {"params": X, "tracker": Y}
