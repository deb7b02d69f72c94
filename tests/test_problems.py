"""Problems: losses, gradients, unequal sizes, and the paper's network architectures."""

import math
import sys

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import pisco
from pisco.convolutions.three_by_three import _copied, _gathered, convolve
from pisco.errors import InputError
from pisco.interop import host
from pisco.problems.blocks import weighted_total
from pisco.problems.gradient import gradient
from pisco.problems.sampling import batch_indices
from pisco.problems.subsample import subsample
from pisco.tree import squared_norm

from worlds import Quadratics


def uneven(scalar_loss, sizes=(1, 3, 6), dim=2):
    rng = np.random.default_rng(0)
    data = [{"a": rng.normal(size=(m, dim)), "y": rng.normal(size=m)} for m in sizes]

    def loss(params, batch, key):
        losses = (batch["a"] @ params - batch["y"]) ** 2
        return losses.mean() if scalar_loss else losses

    return pisco.Problem(loss, jnp.ones(dim), data, eval_batch=4), data


@pytest.mark.parametrize("scalar_loss", [True, False])
def test_unequal_sizes_full_batch_and_objective(scalar_loss, x64):
    problem, data = uneven(scalar_loss)
    x = np.array([0.3, -0.7])
    residuals = [part["a"] @ x - part["y"] for part in data]
    losses = [np.mean(r**2) for r in residuals]
    gradients = [2 * part["a"].T @ r / len(r) for part, r in zip(data, residuals, strict=True)]
    loss, slope = jax.jit(jax.value_and_grad(problem.objective))(jnp.asarray(x))
    np.testing.assert_allclose(loss, np.mean(losses), atol=1e-12)
    stacked = jax.jit(gradient(problem, None))(jnp.asarray(np.tile(x, (3, 1))), jax.random.key(0))
    np.testing.assert_allclose(stacked, gradients, atol=1e-12)
    np.testing.assert_allclose(slope, np.mean(gradients, 0), atol=1e-12)


def test_mini_batches_come_from_the_agents_own_samples(x64):
    problem, data = uneven(scalar_loss=False)
    key, x = jax.random.key(3), jnp.array([0.3, -0.7])
    stacked = jax.jit(gradient(problem, 1))(jnp.tile(x, (3, 1)), key)
    draw = jax.jit(lambda agent, size: batch_indices(key, agent, size, 1)[0])
    for agent, part in enumerate(data):
        chosen = int(draw(agent, len(part["y"])))
        a, y = part["a"][chosen], part["y"][chosen]
        np.testing.assert_allclose(stacked[agent], 2 * a * (a @ x - y), atol=1e-12)


def test_batch_indices_look_uniform_and_independent():
    size, batch, keys = 97, 256, jax.random.split(jax.random.key(0), 400)
    draw = jax.jit(jax.vmap(lambda k: jax.vmap(lambda agent: batch_indices(k, agent, size, batch))(jnp.arange(4))))
    drawn = np.asarray(draw(keys))
    assert drawn.min() == 0 and drawn.max() == size - 1
    counts = np.bincount(drawn.ravel(), minlength=size)
    expected = drawn.size / size
    chi2 = np.sum((counts - expected) ** 2 / expected)
    assert abs(chi2 - (size - 1)) < 5 * np.sqrt(2 * (size - 1))
    slots = np.stack([np.bincount(drawn[:, :, s].ravel(), minlength=size) for s in (0, 1, 255)])
    assert slots.max() < 4 * drawn[:, :, 0].size / size
    flat = drawn.reshape(-1, batch).astype(float)
    for a, b in [(flat[:-1, 0], flat[1:, 0]), (flat[:, 0], flat[:, 1]), (drawn[:, 0, 0], drawn[:, 1, 0])]:
        assert abs(np.corrcoef(a, b)[0, 1]) < 5 / np.sqrt(len(a))


def test_logistic_matches_its_formula(x64):
    dataset = pisco.data.Dataset("toy", np.array([[1, 0], [0, 1], [1, 1], [0, 0]], np.int8), np.array([-1, -1, 1, 1]))
    problem = pisco.problems.logistic(dataset, agents=2, rho=0.1, dtype=jnp.float64)
    x = np.array([0.5, -1.0, 0.2])
    a = np.c_[dataset.features, np.ones(4)]
    expected = np.mean(np.log1p(np.exp(-dataset.labels * (a @ x)))) + 0.1 * np.sum(x**2 / (1 + x**2))
    np.testing.assert_allclose(jax.jit(problem.objective)(jnp.asarray(x)), expected, atol=1e-12)


def test_softmax_matches_numpy_and_its_identities(x64):
    rng = np.random.default_rng(0)
    test = {"test_features": rng.normal(size=(6, 3)), "test_labels": [5] * 6}
    dataset = pisco.data.Dataset("toy", rng.normal(size=(12, 3)), [2, 5, 9] * 4, **test)
    problem = pisco.problems.softmax(dataset, agents=3, partition="iid", ridge=0.2, dtype=jnp.float64)
    w, c = rng.normal(size=(3, 3)), rng.normal(size=3)
    logits = dataset.features @ w + c
    chances = np.exp(logits) / np.exp(logits).sum(1, keepdims=True)
    hits = np.eye(3)[np.searchsorted([2, 5, 9], dataset.labels)]
    expected = -np.log((chances * hits).sum(1)).mean() + 0.1 * ((w**2).sum() + (c**2).sum())
    slopes = {"w": dataset.features.T @ (chances - hits) / 12 + 0.2 * w, "c": (chances - hits).mean(0) + 0.2 * c}
    params = {"w": jnp.asarray(w), "c": jnp.asarray(c)}
    objective = jax.jit(problem.objective)
    loss, found = jax.jit(jax.value_and_grad(problem.objective))(params)
    np.testing.assert_allclose(loss, expected, atol=1e-12)
    for name, slope in slopes.items():
        np.testing.assert_allclose(found[name], slope, atol=1e-12)
    # At the start all classes are as likely; one number added to all logits changes nothing but the ridge.
    np.testing.assert_allclose(objective(problem.init(jax.random.key(0))), np.log(3), atol=1e-12)
    plain = pisco.problems.softmax(dataset, agents=3, partition="iid", dtype=jnp.float64)
    moved = {"w": params["w"] + rng.normal(size=(3, 1)), "c": params["c"] + 7.0}
    objective = jax.jit(plain.objective)
    np.testing.assert_allclose(objective(moved), objective(params), atol=1e-12)
    accuracy = np.mean(np.argmax(dataset.test_features @ w + c, 1) == 1)
    np.testing.assert_allclose(np.mean(problem.metrics[0].function(params, problem.test)), accuracy)


def test_softmax_of_two_classes_is_logistic_regression(x64):
    rng = np.random.default_rng(1)
    dataset = pisco.data.Dataset("toy", rng.normal(size=(10, 2)), [-1, 1] * 5)
    two = pisco.problems.softmax(dataset, agents=2, dtype=jnp.float64)
    one = pisco.problems.logistic(dataset, agents=2, rho=0.0, dtype=jnp.float64)
    x = rng.normal(size=3)
    params = {"w": jnp.asarray(np.c_[np.zeros(2), x[:2]]), "c": jnp.asarray([0.0, x[2]])}
    losses = jax.jit(two.objective)(params), jax.jit(one.objective)(jnp.asarray(x))
    np.testing.assert_allclose(*losses, atol=1e-12)
    with pytest.raises(InputError, match="ridge is -1"):
        pisco.problems.softmax(dataset, agents=2, ridge=-1)


def test_a9a_is_as_the_paper_says():
    problem = pisco.problems.logistic(pisco.data.load("a9a"), agents=10)
    assert problem.init(jax.random.key(0)).shape == (124,)
    np.testing.assert_array_equal(problem.sizes, 3256)
    near = 1e-6 if jax.__version_info__ >= (0, 10, 2) else 1e-4  # jax 0.10.0 adds 32,560 terms one after the other
    np.testing.assert_allclose(jax.jit(problem.objective)(jnp.zeros(124)), np.log(2), rtol=near)


def test_mlp_learns_and_measures():
    rng = np.random.default_rng(0)
    features = rng.integers(0, 256, (120, 4, 4)).astype(np.uint8)
    labels = (features.reshape(120, -1).mean(1) > 127).astype(int) + (features[:, 0, 0] > 127)
    dataset = pisco.data.Dataset("toy", features, labels, features, labels)
    problem = pisco.problems.mlp(dataset, agents=3, hidden=8, partition="iid")
    shapes = jax.tree.map(np.shape, problem.init(jax.random.key(0)))
    assert shapes == {"w1": (16, 8), "c1": (8,), "w2": (8, 3), "c2": (3,)}
    rule = pisco.algorithms.pisco(local_lr=0.3, local_steps=2)
    result = pisco.run(rule, problem, pisco.Network.ring(3), rounds=200, batch_size=20, eval_every=50)
    assert result.history["loss"][-1] < 0.7 * result.history["loss"][0]
    assert result.history["test_accuracy"][-1] > result.history["test_accuracy"][0]


def test_convolution_as_patches_and_a_product(x64):
    rng = np.random.default_rng(0)
    images, kernel = (jnp.asarray(rng.normal(size=(3, 2, 8, 8, 4))), jnp.asarray(rng.normal(size=(3, 3, 3, 4, 5))))

    def native(x, k):
        return jax.lax.conv_general_dilated(x, k, (1, 1), "SAME", dimension_numbers=("NHWC", "HWIO", "NHWC"))

    def value_and_slopes(form):
        one = jax.value_and_grad(lambda x, k: jnp.sin(form(x, k)).sum(), (0, 1))
        return jax.jit(jax.vmap(one))(images, kernel)

    for ours, theirs in zip(*map(jax.tree.leaves, map(value_and_slopes, (convolve, native))), strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=0, atol=1e-12)
    np.testing.assert_array_equal(_gathered(images[0]), _copied(images[0]))


@pytest.fixture
def narrow(monkeypatch):
    """The convolutional network with few channels: quicker to compile, the same code."""
    monkeypatch.setattr(sys.modules["pisco.problems.cnn"], "CHANNELS", (4, 4, 8))


def toy_images(count=20, side=8):
    rng = np.random.default_rng(0)
    labels = np.arange(count) % 10
    features = rng.integers(0, 256, (count, side, side, 3)).astype(np.uint8)
    return pisco.data.Dataset("images", features, labels, features, labels)


def test_cnn_is_the_papers():
    problem = pisco.problems.cnn(toy_images(side=32), agents=5)
    shapes = jax.eval_shape(problem.init, jax.random.key(0))
    kernels = {name: layer["kernel"].shape for name, layer in shapes.items()}
    assert kernels == {
        "conv1a": (3, 3, 3, 32),
        "conv1b": (3, 3, 32, 32),
        "conv2a": (3, 3, 32, 64),
        "conv2b": (3, 3, 64, 64),
        "conv3a": (3, 3, 64, 128),
        "conv3b": (3, 3, 128, 128),
        "dense1": (2048, 128),
        "dense2": (128, 10),
    }


@pytest.mark.slow
def test_dropout_is_for_training_alone(narrow):
    problem = pisco.problems.cnn(toy_images(), agents=5, dropout=0.5)
    params, batch = problem.init(jax.random.key(0)), jax.tree.map(lambda leaf: leaf[:4], problem.data)
    loss = jax.jit(problem.batch_loss)
    still = [loss(params, batch) for _ in range(2)]
    noisy = [loss(params, batch, jax.random.key(k)) for k in range(2)]
    assert still[0] == still[1] and noisy[0] != noisy[1]


@pytest.mark.slow
def test_cnn_computes_in_bfloat16_around_parameters_in_float32(narrow):
    data, options = toy_images(), {"agents": 5, "dropout": 0.0}
    losses = []
    for compute in (None, "bfloat16"):
        problem = pisco.problems.cnn(data, compute=compute, **options)
        params, batch = problem.init(jax.random.key(0)), jax.tree.map(lambda leaf: leaf[:8], problem.data)
        loss, slopes = jax.value_and_grad(problem.batch_loss)(params, batch)
        assert {leaf.dtype.name for leaf in jax.tree.leaves((loss, slopes))} == {"float32"}
        losses.append(float(loss))
    assert losses[0] != losses[1] and losses[0] == pytest.approx(losses[1], rel=0.02)
    for nonsense in ("int8", "fast"):
        with pytest.raises(InputError, match="compute is .*floating dtype"):
            pisco.problems.cnn(data, compute=nonsense, **options)


@pytest.mark.slow
def test_cnn_trains_inside_the_scan(narrow):
    problem = pisco.problems.cnn(toy_images(), agents=5, dropout=0.0)
    rule = pisco.algorithms.pisco(local_lr=0.05, local_steps=1)
    net = pisco.Network.ring(5, server=pisco.bernoulli(0.5))
    result = pisco.run(rule, problem, net, rounds=12, batch_size=4, eval_every=6)
    assert result.history["loss"][-1] < result.history["loss"][0]


@given(st.integers(1, 9), st.integers(1, 30))
def test_blockwise_sums_do_not_depend_on_the_block(block, total):
    values = np.arange(total, dtype=np.float32)
    added = jax.jit(lambda *given: weighted_total(lambda _, *own: jnp.vdot(*own), (), *given, block))
    assert float(added(values, np.ones(total, np.float32))) == total * (total - 1) / 2


def test_agents_with_fewer_samples_than_are_measured_count_alike(x64):
    data = [{"y": np.arange(float(m))} for m in (1, 6, 9)]
    problem = pisco.Problem(lambda p, b, k: (b["y"] - p) ** 2, jnp.zeros(()), data, eval_samples=4)
    wanted = np.mean([np.mean(np.arange(min(m, 4)) ** 2.0) for m in (1, 6, 9)])
    np.testing.assert_allclose(jax.jit(problem.objective)(jnp.zeros(())), wanted, rtol=1e-12)


def test_one_small_agent_does_not_keep_a_problem_from_being_thinned():
    data = [{"y": np.arange(float(m))} for m in (1, 60, 90)]
    problem = pisco.Problem(lambda p, b, k: (b["y"] - p) ** 2, jnp.zeros(()), data)
    assert subsample(problem, 12).num_measured == 1 + 4 + 4
    assert subsample(problem, 3 * 90).num_measured == 1 + 60 + 90


def test_a_loss_that_compares_samples_is_measured_on_all_of_them():
    def loss(p, b, k):
        return jax.nn.logsumexp(b["y"] * p) - (b["y"] * p).mean()

    data = [{"y": np.arange(30.0) + agent} for agent in range(2)]
    problem = pisco.Problem(loss, jnp.ones(()), data)
    assert subsample(problem, 10).objective(1.0) == problem.objective(1.0)  # not the 0 of samples alone
    mean = pisco.Problem(lambda p, b, k: ((b["y"] - p) ** 2).mean(), jnp.ones(()), data)
    assert subsample(mean, 10).num_measured == 10
    pairs = pisco.Problem(lambda p, b, k: (b["y"][1:] - p * b["y"][:-1]).var() / (len(b["y"]) > 1), jnp.ones(()), data)
    assert subsample(pairs, 10).num_measured == 60


def bad_problem(**changes):
    given = {"loss": lambda p, b, k: (b @ p) ** 2, "init": jnp.zeros(2), "data": np.ones((3, 4, 2))} | changes
    return pisco.Problem(given.pop("loss"), given.pop("init"), given.pop("data"), **given)


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"init": jnp.zeros(3)}, "check that the start fits the data"),
        ({"init": jnp.zeros(2, int)}, "has dtype int32, expected a floating dtype"),
        ({"data": np.full((3, 4, 2), np.nan)}, "holds NaN or infinity"),
        ({"data": []}, "no agents"),
        ({"data": [np.ones((2, 2)), np.ones((0, 2))]}, "agent 1's data has leaves of lengths"),
        ({"data": np.ones(3)}, "lead with"),
        ({"loss": lambda p, b, k: b @ p[:, None]}, "loss returns shape"),
        ({"loss": lambda p, b, k: jax.random.normal(k) + b @ p}, "the loss works without a key"),
        ({"loss": lambda p, b, k: next(iter(()))}, r"fails on 7 samples \(StopIteration: \)"),  # it says nothing more
        ({"loss": lambda p, b, k: p}, r"loss returns shape \(2,\) for 7 samples"),
        ({"data": [np.ones((2, 2)), np.ones((2, 3))]}, "samples have different shapes"),
        ({"eval_batch": 0}, "eval_batch is 0"),
        ({"eval_samples": 1.5}, "eval_samples is 1.5"),
        ({"metrics": [1]}, "metrics is "),
        ({"test": np.ones((5, 3)), "metrics": {"m": lambda p, b: b @ p}}, "the metric 'm' fails on 7 test"),
        ({"test": np.ones((5, 2)), "metrics": {"m": lambda p, b: (b @ p).mean()}}, "expected one value a sample"),
    ],
)
def test_bad_problems_are_refused(changes, sentence):
    with pytest.raises(pisco.InputError, match=sentence):
        bad_problem(**changes)


def test_quadratic_shapes_are_checked():
    with pytest.raises(pisco.InputError, match="expected \\(agents, d, d\\)"):
        pisco.problems.quadratic(np.ones((2, 3, 3)), np.ones((2, 2)))
    with pytest.raises(pisco.InputError, match="init has shape"):
        pisco.problems.quadratic(np.ones((2, 1, 1)), np.ones((2, 1)), init=[1.0, 2.0])
    world = Quadratics()
    assert float(world.problem().objective(jnp.asarray(world.optimum))) > 0


def test_logistic_wants_two_classes():
    three = pisco.data.Dataset("three", np.eye(3), np.arange(3))
    with pytest.raises(pisco.InputError, match=r"needs 2 classes, three has 3; take softmax"):
        pisco.problems.logistic(three, agents=1)


def test_agents_in_groups(monkeypatch):
    """As many agents at a time as memory allows; the results are those of all at once."""
    from pisco.problems import gradient as made

    rng = np.random.default_rng(0)
    data = {"x": rng.normal(size=(5, 6, 4)), "y": rng.normal(size=(5, 6))}
    wide = pisco.Problem(
        lambda p, batch, key: (jnp.tanh(batch["x"] @ p["a"]) @ p["b"] - batch["y"]) ** 2,
        {"a": rng.normal(size=(4, 8)), "b": rng.normal(size=8)},
        data,
    )
    stack = jax.tree.map(lambda leaf: jnp.stack([leaf] * 5), wide.init(jax.random.key(0)))
    slopes = [
        jax.jit(made.gradient(wide, 3, batching=batching))(stack, jax.random.key(1))
        for batching in (made.stacked, made.in_groups(2), made.in_groups(5))
    ]
    for found in slopes[1:]:
        jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, atol=1e-6), found, slopes[0])
    assert made.group_size(wide, 3, stack, 0) == 5  # small
    monkeypatch.setattr(made, "LARGE_BYTES", 0)
    state = 4 * 5 * 40 * 4  # X, Y, G and the next G
    sizes = [made.group_size(wide, 100, stack, state + room) for room in (0, 30_000, math.inf)]
    assert sizes[0] == 1 < sizes[1] < 5 == sizes[2], sizes


def networks():
    """A network of one hidden layer, and one with attention, as losses of (params, batch, key) and their starts."""
    rng = np.random.default_rng(0)

    def layered(p, batch, key):
        hidden = jax.nn.gelu(batch["x"] @ p["a"])
        return ((hidden * jax.nn.sigmoid(hidden)) @ p["b"] - batch["y"]) ** 2

    def attending(p, batch, key):
        x = jnp.tanh(batch["x"][..., None] * p["in"])
        q, k, v = jnp.split(x @ p["qkv"], 3, axis=-1)
        weights = jax.nn.softmax(jnp.einsum("bid,bjd->bij", q, k))
        x = x + jnp.einsum("bij,bjd->bid", weights, v) @ p["out"]
        return (x.mean(axis=(1, 2)) - batch["y"]) ** 2

    def draw(*shape):
        return rng.normal(size=shape)

    start = {"in": draw(16), "qkv": draw(16, 48) / 4, "out": draw(16, 16) / 4}
    return {"layered": (layered, {"a": draw(24, 32), "b": draw(32)}), "attending": (attending, start)}


@pytest.mark.parametrize("name", [pytest.param("layered", marks=pytest.mark.slow), "attending"])
def test_a_lean_pass_keeps_products_and_has_the_same_gradient(name):
    """In engines too, which know nothing of the network; and where agents have unlike numbers of samples."""
    from pisco.engines.scan import ScanEngine
    from pisco.problems import gradient as made
    from pisco.problems.blocks import kept_bytes

    rng = np.random.default_rng(1)
    loss, start = networks()[name]
    data = [{"x": rng.normal(size=(size, 24)), "y": rng.normal(size=size)} for size in (5, 8, 6)]
    rule, network = pisco.algorithms.pisco(local_lr=0.001, local_steps=2), pisco.Network.ring(3)
    with jax.enable_x64(True):
        problem = pisco.Problem(loss, start, data)
        params, key = problem.init(jax.random.key(0)), jax.random.key(3)
        for batch_size in (4, None):
            plain = jax.jit(made.agent_gradient(problem, batch_size))(params, key, 1)
            found = jax.jit(made.agent_gradient(problem, batch_size, keep=made.products))(params, key, 1)
            jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-12, atol=1e-14), found, plain)
            assert "checkpoint" not in str(jax.make_jaxpr(made.agent_gradient(problem, batch_size))(params, key, 1))
        losses = [made.agent_loss(problem, 4, keep=keep) for keep in (None, made.products)]
        kept = [kept_bytes(loss, params, key, 1) for loss in losses]
        assert kept[1] < 0.7 * kept[0], kept
        if name == "attending":
            return
        results = [
            pisco.run(rule, problem, network, rounds=3, batch_size=3, engine=ScanEngine(batching=batching)).params
            for batching in (made.stacked, made.lean(made.stacked), made.lean(made.in_turn))
        ]
        for found in results[1:]:
            jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-11, atol=1e-13), found, results[0])


def test_a_lean_pass_keeps_small_products_and_copies_of_parameters():
    """Of attention what it gives, not its scores; of a pass in half precision its weights, not their float32 ones."""
    from pisco.problems import gradient as made

    def loss(p, batch, key):
        p = jax.tree.map(lambda leaf: leaf.astype(jnp.bfloat16), p)
        x = jnp.tanh(batch["x"].astype(jnp.bfloat16)[..., None] * p["in"])
        q, k, v = jnp.split(x @ p["qkv"], 3, axis=-1)
        weights = jax.nn.softmax(jnp.einsum("bid,bjd->bij", q, k))
        x = jnp.einsum("bij,bjd->bid", weights, v) @ p["out"]
        return (x.astype(float).mean(axis=(1, 2)) - batch["y"]) ** 2

    start = jax.tree.map(jnp.float32, networks()["attending"][1])
    problem = pisco.Problem(loss, start, {"x": np.ones((2, 5, 24)), "y": np.ones((2, 5))})
    kept = jax.vjp(lambda p: made.agent_loss(problem, 5, keep=made.products)(p, jax.random.key(0), 0), start)[1]
    shapes = {(leaf.shape, leaf.dtype.name) for leaf in jax.tree.leaves(kept)}
    assert {((16, 48), "bfloat16"), ((16, 16), "bfloat16"), ((5, 24, 48), "bfloat16")} <= shapes
    assert ((5, 24, 16), "bfloat16") in shapes or ((5, 16, 24), "bfloat16") in shapes  # weights · v
    assert not any(shape == (5, 24, 24) for shape, _ in shapes)
    assert not any(len(shape) == 2 and kind == "float32" and shape != (5, 24) for shape, kind in shapes), shapes


def test_large_models_on_an_accelerator_are_lean_unless_they_loop_or_convolve(monkeypatch):
    from pisco.problems import gradient as made

    rng = np.random.default_rng(0)
    data = {"x": rng.normal(size=(2, 6, 24)), "y": rng.normal(size=(2, 6))}
    loss, start = networks()["layered"]

    def looped(p, batch, key):
        x = jax.lax.scan(lambda x, w: (jnp.tanh(x @ w), None), batch["x"], p)[0]
        return (x.mean(axis=1) - batch["y"]) ** 2

    def convolved(p, batch, key):
        x = jax.lax.conv_general_dilated(batch["x"][:, None], p, (1,), "SAME")
        return (x.mean(axis=(1, 2)) - batch["y"]) ** 2

    plain = pisco.Problem(loss, start, data)
    problems = [plain, pisco.Problem(looped, rng.normal(size=(3, 24, 24)), data)]
    problems.append(pisco.Problem(convolved, rng.normal(size=(2, 1, 3)), data))
    assert made.usual(plain, 3) is made.stacked
    monkeypatch.setattr(jax, "default_backend", lambda: "gpu")
    assert made.usual(plain, 3).keep is None  # small
    monkeypatch.setattr(made, "LARGE_BYTES", 0)
    assert [made.usual(problem, 3).keep for problem in problems] == [made.products, None, None]


def test_a_lean_pass_asks_a_loss_from_elsewhere_once():
    asked = []

    def elsewhere(x):
        asked.append(len(x))
        return np.tanh(x)

    @jax.custom_vjp
    def outside(x):
        return jax.pure_callback(elsewhere, x, x, vmap_method="sequential")

    outside.defvjp(lambda x: (outside(x),) * 2, lambda y, back: (back * (1 - y**2),))
    from pisco.problems import gradient as made

    problem = pisco.Problem(
        lambda p, batch, key: outside(batch["x"] @ p) ** 2, np.ones(3, np.float32), {"x": np.ones((2, 4, 3))}
    )
    asked.clear()
    params = problem.init(jax.random.key(0))
    jax.block_until_ready(jax.jit(made.agent_gradient(problem, 2, keep=made.products))(params, jax.random.key(0), 0))
    assert asked == [2]


def test_a_loss_from_elsewhere_is_asked_for_whole_batches_of_agents_of_unequal_sizes():
    """One sample at a time would be a call each, and a gradient as large as the model for each of them."""
    rng, asked = np.random.default_rng(0), []
    data = [{"a": rng.normal(size=(size, 3)), "y": rng.normal(size=size)} for size in (4, 9, 6)]

    def own(given):
        def value(params, rows):
            asked.append(len(rows))
            return float(np.mean((given["a"][rows] @ params - given["y"][rows]) ** 2))

        def gradient(params, rows, seed):
            rest = given["a"][rows] @ params - given["y"][rows]
            return value(params, rows), (2 * rest @ given["a"][rows] / len(rows)).astype(params.dtype)

        return host.Local(lambda seed: np.ones(3, np.float32), gradient, value, len(given["y"]))

    theirs = host.problem(*map(own, data)).weighted("samples")
    ours = pisco.Problem(
        lambda x, batch, key: (batch["a"] @ x - batch["y"]) ** 2, np.ones(3, np.float32), data, weights="samples"
    )
    asked.clear()
    losses = [jax.jit(each.objective)(jnp.ones(3)) for each in (theirs, ours)]
    np.testing.assert_allclose(*losses, rtol=1e-6)
    assert asked == [4, 9, 6]
    rule, net = pisco.algorithms.pisco(local_lr=0.05, local_steps=1), pisco.Network.ring(3)
    asked.clear()
    got, expected = (pisco.run(rule, each, net, rounds=3) for each in (theirs, ours))
    assert min(asked) >= 4  # training on all samples, too
    np.testing.assert_allclose(got.params, expected.params, rtol=1e-5)
    np.testing.assert_allclose(got.history["loss"], expected.history["loss"], rtol=1e-5)


def test_slopes_of_half_precision_add_up_over_blocks():
    problem = pisco.Problem(
        lambda x, batch, key: x.astype(jnp.float32) * batch,
        jnp.zeros((), jnp.bfloat16),
        np.ones((2, 600)),
        eval_batch=1,
    )
    assert float(jax.jit(jax.grad(problem.objective))(jnp.zeros((), jnp.bfloat16))) == pytest.approx(1, rel=2**-7)


def test_squares_of_half_precision_have_all_their_digits():
    """(The tests' quick compiler knows no float16, whose squares end at 65504.)"""
    entry = float(jnp.bfloat16(1.3))
    found = squared_norm({"a": jnp.full(1000, 1.3, jnp.bfloat16), "b": jnp.full((), 1.3, jnp.bfloat16)})
    assert found.dtype == jnp.float32 and float(found) == pytest.approx(1001 * entry**2, rel=1e-5)


def test_a_large_model_is_measured_in_blocks_that_fit():
    """By shapes alone: what one sample's pass keeps decides, unless the user says how many; a small one takes all."""
    wide = 50_000

    def loss(params, batch, key):
        return jnp.tanh(batch["x"][:, None] * params["a"]) @ params["b"]

    start = {"a": np.zeros(wide, np.float32), "b": np.zeros(wide, np.float32)}
    data = {"x": np.zeros((2, 5000), np.float32)}
    fits = pisco.Problem(loss, start, data).eval_batch
    assert 10 < fits < (1 << 30) // (4 * wide)  # a sample keeps one row of them at least
    assert pisco.Problem(loss, start, data, eval_batch=77).eval_batch == 77
    few = {"a": np.zeros(3, np.float32), "b": np.zeros(3, np.float32)}
    assert pisco.Problem(loss, few, data).eval_batch == 65536
