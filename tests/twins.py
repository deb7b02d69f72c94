"""Naive NumPy twins: each algorithm as a plain loop in the paper's notation, one agent a column (X is d×n).

`mixes` is the sequence W⁰, W¹, … that the coins chose; `gradient(X)` the agents' full gradients, column by column.
Every twin yields a dictionary of matrices after each round.
"""

import numpy as np


def pisco(x0, gradient, mixes, *, local_lr, comm_lr=1.0, local_steps, one_exchange=False):
    n = mixes[0].shape[0]
    X = np.outer(x0, np.ones(n))
    G = gradient(X)
    Y = G.copy()
    for W in mixes:
        x, y, g = X.copy(), Y.copy(), G.copy()
        for _ in range(local_steps):
            x = x - local_lr * y
            new = gradient(x)
            y = y + new - g
            g = new
        X = ((1 - comm_lr) * X + comm_lr * (x - local_lr * y)) @ W
        G = gradient(X)
        Y = y @ W + G - g if one_exchange else (y + G - g) @ W
        yield {"params": X, "tracker": Y, "grads": G}


def dsgd(x0, gradient, mixes, *, local_lr, combine_first=False):
    X = np.outer(x0, np.ones(mixes[0].shape[0]))
    for W in mixes:
        G = gradient(X)
        X = X @ W - local_lr * G if combine_first else (X - local_lr * G) @ W
        yield {"params": X}


TWINS = {"pisco": pisco, "dsgd": dsgd}
