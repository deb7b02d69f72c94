"""A JAX loss of your own in a federation: robust regression on private data.

Every agent keeps this file and its own data, and runs

    pisco agent --kit KIT --module federate_jax.py --data my.npz

The plan is made with `pisco federation init DIR --problem none …`. Run as a script it simulates four such agents.
"""

import tempfile
from pathlib import Path

import jax.numpy as jnp
import numpy as np

import pisco

START = {"slope": jnp.zeros(3), "offset": jnp.zeros(())}


def loss(params, batch, key):
    away = batch["features"] @ params["slope"] + params["offset"] - batch["targets"]
    return jnp.sqrt(1 + away**2) - 1  # one value per sample; outliers count linearly


def agent(data):
    """What `pisco agent` calls: this machine's samples and the loss."""
    with np.load(data) as arrays:
        return pisco.Problem(loss, START, [{name: arrays[name] for name in ("features", "targets")}])


def make_data(folder, index):
    """Somebody's measurements, with an outlier."""
    rng = np.random.default_rng(index)
    features = rng.normal(size=(40, 3)).astype(np.float32)
    targets = (features @ np.array([1.0, -2.0, 0.5]) + 0.3 + 0.1 * rng.normal(size=40)).astype(np.float32)
    targets[0] = 50.0
    np.savez(folder / f"agent-{index}.npz", features=features, targets=targets)
    return folder / f"agent-{index}.npz"


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as folder:
        own = [agent(make_data(Path(folder), index)).data for index in range(4)]
    result = pisco.run(
        pisco.algorithms.pisco(local_lr=0.2, local_steps=2),
        pisco.Problem(loss, START, own),
        pisco.Network.ring(4, server=pisco.bernoulli(0.1)),
        rounds=100,
        batch_size=16,
    )
    found = np.append(result.params["slope"].mean(axis=0), result.params["offset"].mean())
    print("found:   ", np.round(found, 2), "after", result.rounds, "rounds")
    print("behind it: [ 1.  -2.   0.5  0.3]")
