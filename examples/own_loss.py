"""Your own loss, parameters and data: agents that each saw a piece of a curve fit all of it together.

The model is a small neural network kept as nested dictionaries, the agents hold different numbers of samples, and
each of them saw another stretch of x. Nobody can fit the whole curve alone.
"""

import jax
import jax.numpy as jnp
import numpy as np

import pisco

AGENTS, HIDDEN = 6, 24


def predict(params, x):
    """A network with one hidden layer of tanh."""
    hidden = jnp.tanh(x[:, None] * params["hidden"]["weight"] + params["hidden"]["bias"])
    return hidden @ params["out"]["weight"] + params["out"]["bias"]


def loss(params, batch, key):
    """One squared error per sample; pisco averages them."""
    return (predict(params, batch["x"]) - batch["y"]) ** 2


def start(key):
    """Parameters drawn by the seed; every agent starts from the same ones."""
    slopes, offsets, outs = jax.random.split(key, 3)
    return {
        "hidden": {
            "weight": 3 * jax.random.normal(slopes, (HIDDEN,)),
            "bias": 3 * jax.random.normal(offsets, (HIDDEN,)),
        },
        "out": {"weight": jax.random.normal(outs, (HIDDEN,)) / np.sqrt(HIDDEN), "bias": jnp.zeros(())},
    }


def agents_data(seed=0):
    """Agent i saw the i-th sixth of [−1, 1], in 20, 30, 40, … samples."""
    rng = np.random.default_rng(seed)
    ends = np.linspace(-1, 1, AGENTS + 1)
    data = []
    for agent in range(AGENTS):
        x = rng.uniform(ends[agent], ends[agent + 1], size=20 + 10 * agent).astype(np.float32)
        noise = 0.05 * rng.normal(size=len(x))
        data.append({"x": x, "y": (np.sin(4 * x) + noise).astype(np.float32)})
    return data


def main():
    grid = np.linspace(-1, 1, 200, dtype=np.float32)
    problem = pisco.Problem(
        loss,
        start,
        agents_data(),
        test={"x": grid, "y": np.sin(4 * grid)},
        metrics={"error": lambda params, batch: (predict(params, batch["x"]) - batch["y"]) ** 2},
        name="a curve in pieces",
    )
    print(problem)
    rule = pisco.algorithms.pisco(local_lr=0.03, local_steps=4)
    for p in (0.0, 0.2):
        network = pisco.Network.ring(AGENTS, server=pisco.bernoulli(p))
        result = pisco.run(rule, problem, network, rounds=1500, batch_size=16, eval_every=100)
        before, after = result.history["test_error"][[0, -1]] ** 0.5
        apart = result.history["consensus_error"][-1] ** 0.5
        print(f"p = {p}: RMSE on the whole curve {before:.3f} → {after:.3f}, agents {apart:.1e} apart")


if __name__ == "__main__":
    main()
