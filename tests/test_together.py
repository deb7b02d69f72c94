"""Streams, parts, optimizers, weights and transformations all at once: every engine runs it and agrees."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import pisco

from federations import Running, plan_for

SIZES = (6, 9, 7)
RNG = np.random.default_rng(0)


def drawn(count, shift=0.0):
    a = RNG.normal(size=(count, 3)).astype(np.float32)
    return {"a": a, "y": (a.sum(axis=1) + shift + RNG.normal(size=count)).astype(np.float32)}


HELD, TEST = [drawn(size, shift) for shift, size in enumerate(SIZES)], drawn(8)
START = {
    "w": np.full(3, 0.1, np.float32),
    "scale": np.full((), 2.0, np.float32),
    "head": np.zeros((), np.float32),
    "mean": np.zeros((), np.float32),
}
PARTS = {"frozen": "scale", "local": "head", "buffers": "mean"}
ALGORITHM = {
    "name": "pisco-vr",
    "local_lr": 0.05,
    "local_steps": 2,
    "direction": [{"name": "clip", "max_norm": 1.0}, "adam"],
}
RULE = pisco.algorithms.build(**ALGORITHM)
RING = pisco.Network.ring(3, server=pisco.bernoulli(0.4))


class Samples:
    """Samples one by one."""

    def __init__(self, arrays):
        self.arrays = arrays

    def __len__(self):
        return len(self.arrays["y"])

    def __getitem__(self, row):
        return {name: array[row] for name, array in self.arrays.items()}


def loss(model, batch, key):
    h = batch["a"] @ model["w"] * model["scale"]
    mean = model["mean"] if key is None else h.mean()
    return (h - mean + model["head"] - batch["y"]) ** 2, {"mean": 0.5 * model["mean"] + 0.5 * h.mean()}


def error(model, batch):
    return (batch["a"] @ model["w"] * model["scale"] - model["mean"] + model["head"] - batch["y"]) ** 2


def noisy(batch, key):
    return batch | {"a": batch["a"] + 0.1 * jax.random.normal(key, batch["a"].shape)}


def problem(data=HELD, test=TEST, weights="samples", **options):
    given = {"test": test, "metrics": {"error": error}, "weights": weights, "parts": PARTS, "transform": noisy}
    return pisco.Problem(loss, START, data, **(given | options))


def streamed(held=HELD, **options):
    return problem([Samples(each) for each in held], Samples(TEST), **options)


def run(given, rounds=4, **options):
    return pisco.run(
        RULE, given, RING, rounds=rounds, **({"batch_size": 4, "eval_every": 2, "chunk_rounds": 2} | options)
    )


def close(one, two, atol=2e-5):
    for a, b in zip(jax.tree.leaves(one), jax.tree.leaves(two), strict=True):
        np.testing.assert_allclose(a, b, atol=atol)


@pytest.fixture(scope="module")
def in_memory():
    return run(problem())


def test_a_stream_gives_the_same_bits_and_goes_on(in_memory, tmp_path):
    given = streamed()
    run(given, rounds=2, checkpoint=tmp_path)
    found = run(given, checkpoint=tmp_path, resume=True)
    for one, two in zip(jax.tree.leaves(found.params), jax.tree.leaves(in_memory.params), strict=True):
        np.testing.assert_array_equal(one, two)
    for name, column in in_memory.history.items():
        np.testing.assert_array_equal(found.history[name], column, err_msg=name)


@pytest.mark.slow
@pytest.mark.parametrize("engine", ["sharded", "debug"])
def test_other_engines_agree(in_memory, engine):
    found = run(streamed(), engine=engine)
    close(found.params, in_memory.params)
    close(found.history["test_error"], in_memory.history["test_error"], 1e-4)
    close(found.history["loss"], in_memory.history["loss"], 1e-4)


@pytest.mark.slow
def test_whole_data_and_few_measured_samples():
    even = [{name: array[:6] for name, array in each.items()} for each in HELD]  # buffers need whole batches
    options = {"batch_size": None, "rounds": 2}
    for more in ({"weights": [0.5, 0.3, 0.2]}, {"eval_samples": 4}):
        expected = run(problem(even, **more), **options)
        for engine in ("scan", "sharded"):
            found = run(streamed(even, **more), engine=engine, **options)
            close(found.params, expected.params)
            close(found.history["loss"], expected.history["loss"], 1e-4)


@pytest.mark.slow
def test_a_federation_agrees(tmp_path, in_memory):
    plan = plan_for(
        3,
        rounds=4,
        batch_size=4,
        weigh_by="samples",
        algorithm=ALGORITHM,
        network={"graph": "ring", "server_prob": 0.4},
        seed=0,
    )
    running = Running(tmp_path, plan, lambda i: streamed(HELD[i : i + 1], weights=None)).join()
    close(running.params(), in_memory.params)
    assert jnp.ndim(running.results["agent-0"].history["test_error"]) == 1
