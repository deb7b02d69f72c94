"""A user's convolutions, replaced: the values and derivatives of XLA's own, in every form and wherever they stand."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

import pisco
from pisco.convolutions import patches
from pisco.convolutions.rewrite import with_fast_convolutions
from pisco.engines.evaluate import evaluate
from pisco.engines.scan import ScanEngine
from pisco.problems.gradient import agent_loss, in_turn, stacked, usual

SPACE = {1: (9,), 2: (7, 8), 3: (4, 5, 6)}
WINDOW = {1: (3,), 2: (3, 2), 3: (2, 3, 2)}
AGENTS, BATCH, CHANNELS, FEATURES = 3, 2, 4, 8

# dimensions, strides, padding, dilation of the images, of the kernel, groups, channels last
FORMS = [
    (1, 1, "SAME", 1, 1, 1, False),
    (1, 2, "VALID", 1, 2, 2, True),
    (2, 1, "SAME", 1, 1, 1, True),
    (2, 2, "SAME", 1, 1, 1, False),
    (2, 1, [(2, 1), (0, 3)], 1, 2, 2, False),
    (2, 2, [(-1, 0), (1, -1)], 1, 1, 1, True),
    (2, 1, [(2, 2), (1, 1)], 2, 1, 1, False),
    (2, 1, "SAME", 1, 1, CHANNELS, True),
    (2, 3, "VALID", 1, 1, CHANNELS, False),
    (3, 2, "SAME", 1, 1, 1, False),
    (1, 2, [(-1, 3)], 3, 2, 2, False),
    (1, 3, [(4, -2)], 2, 1, CHANNELS, True),
    (2, 2, [(-1, 2), (3, -2)], 3, 2, 2, True),
    (3, 1, [(2, -1), (-1, 2), (1, 1)], 2, 2, 2, False),
    (3, 2, [(-1, -1), (0, 1), (-2, 3)], 1, 1, CHANNELS, True),
    (1, 2, [(-4, -4)], 1, 1, 1, False),
]


def form(dims, stride, padding, image_dilation, dilation, groups, last):
    """A convolution and operands for several agents."""
    rng = np.random.default_rng(0)
    axes = "HWD"[:dims]
    images = rng.normal(size=(AGENTS, BATCH, CHANNELS, *SPACE[dims]))
    kernels = rng.normal(size=(AGENTS, FEATURES, CHANNELS // groups, *WINDOW[dims]))
    names = (f"NC{axes}", f"OI{axes}", f"NC{axes}")
    if last:
        names = (f"N{axes}C", f"{axes}IO", f"{axes}NC")
        images, kernels = np.moveaxis(images, 2, -1), np.moveaxis(kernels, (1, 2), (-1, -2))

    def convolve(x, k):
        return lax.conv_general_dilated(
            x,
            k,
            (stride,) * dims,
            padding,
            lhs_dilation=(image_dilation,) * dims,
            rhs_dilation=(dilation,) * dims,
            dimension_numbers=names,
            feature_group_count=groups,
        )

    return convolve, jnp.asarray(images), jnp.asarray(kernels)


KEPT = {1, 2, 3, 7, 12, 14, 15}
"""Of 1, 2 and 3 dimensions, with groups, one channel a group, every kind of padding, dilated, and of no windows."""

THINNED = [pytest.param(one, marks=[pytest.mark.slow] * (at not in KEPT)) for at, one in enumerate(FORMS)]


@pytest.mark.parametrize("which", THINNED, ids=str)
def test_values_and_derivatives_are_those_of_xla(which, x64):
    convolve, images, kernels = form(*which)

    def everything(function):
        def one(x, k, dx, dk):
            def total(x, k):
                return jnp.sin(function(x, k)).sum()

            def along(x, k):
                return jax.jvp(total, (x, k), (dx, dk))[1]

            slopes = jax.grad(total, (0, 1))
            # values, slopes, slopes of the slopes, forwards over backwards and the other way round
            return function(x, k), *jax.jvp(slopes, (x, k), (dx, dk)), jax.grad(along, (0, 1))(x, k)

        return jax.jit(jax.vmap(one))(images, kernels, images[::-1], kernels[::-1])

    native, ours = everything(convolve), everything(with_fast_convolutions(convolve))
    for a, b in zip(jax.tree.leaves(native), jax.tree.leaves(ours), strict=True):
        np.testing.assert_allclose(a, b, rtol=0, atol=1e-11)


@pytest.mark.parametrize("which", [one for one in FORMS if one[5] == 1], ids=str)
def test_in_single_precision_on_a_cpu(which):
    """Where XLA's own convolution is used, with its axes in the order that it is quick at."""
    convolve, images, kernels = form(*which)
    images, kernels = images.astype(jnp.float32), kernels.astype(jnp.float32)

    def slopes(function):
        one = jax.value_and_grad(lambda x, k: jnp.sin(function(x, k)).sum(), (0, 1))
        return jax.jit(jax.vmap(one))(images, kernels)

    native, ours = slopes(convolve), slopes(with_fast_convolutions(convolve))
    for a, b in zip(jax.tree.leaves(native), jax.tree.leaves(ours), strict=True):
        np.testing.assert_allclose(a, b, rtol=0, atol=1e-4)


@pytest.mark.parametrize("features", [1, 2, 9])
def test_one_channel_a_group_in_single_precision(features):
    """One kernel for all images, as in a measurement; 9 is what `conv_general_dilated_patches` asks for."""
    rng = np.random.default_rng(0)
    images, kernel = (jnp.asarray(rng.normal(size=s), jnp.float32) for s in ((12, 4, 7, 7), (4 * features, 1, 3, 3)))

    def convolve(x, k):
        return lax.conv_general_dilated(x, k, (1, 1), "VALID", feature_group_count=4)

    def everything(function):
        return jax.jit(jax.value_and_grad(lambda x, k: jnp.sin(function(x, k)).sum(), (0, 1)))(images, kernel)

    native, ours = (
        (*everything(each), jax.jit(each)(images, kernel)) for each in (convolve, with_fast_convolutions(convolve))
    )
    for a, b in zip(jax.tree.leaves(native), jax.tree.leaves(ours), strict=True):
        np.testing.assert_allclose(a, b, rtol=0, atol=1e-3)


@pytest.mark.parametrize("axes", [(0, None), (None, 0), (None, None)])
def test_one_kernel_or_one_batch_for_all(axes, x64):
    convolve, images, kernels = form(*FORMS[2])
    x, k = images[0] if axes[0] is None else images, kernels[0] if axes[1] is None else kernels

    def gradients(function):
        def both(x, k):
            return jax.grad(lambda x, k: jnp.sin(function(x, k)).sum(), (0, 1))(x, k)

        return jax.jit(both if axes == (None, None) else jax.vmap(both, axes))(x, k)

    for a, b in zip(gradients(convolve), gradients(with_fast_convolutions(convolve)), strict=True):
        np.testing.assert_allclose(a, b, rtol=0, atol=1e-11)


def test_two_axes_of_agents(x64):
    """Runs batched over agents batched: what a GPU does with several seeds."""
    convolve, images, kernels = form(*FORMS[3])
    images, kernels = jnp.stack([images, 2 * images]), jnp.stack([kernels, kernels + 1])

    def slopes(function):
        return jax.jit(jax.vmap(jax.vmap(jax.grad(lambda k, x: jnp.sin(function(x, k)).sum()))))(kernels, images)

    np.testing.assert_allclose(slopes(with_fast_convolutions(convolve)), slopes(convolve), rtol=0, atol=1e-11)


@pytest.mark.slow
def test_many_images_are_taken_in_blocks(monkeypatch, x64):
    convolve, images, kernels = form(*FORMS[2])
    images = jnp.concatenate([images[0], images[1], images[2]])

    def gradients(function):
        return jax.jit(jax.grad(lambda x, k: jnp.sin(function(x, k)).sum(), (0, 1)))(images, kernels[0])

    whole = gradients(convolve)
    monkeypatch.setattr(patches, "BLOCK_BYTES", 2 * 7 * 8 * 6 * 8 * 4)  # two of the six at a time
    jax.clear_caches()
    for a, b in zip(whole, gradients(with_fast_convolutions(convolve)), strict=True):
        np.testing.assert_allclose(a, b, rtol=0, atol=1e-11)


def test_blocks_of_half_precision_add_up(monkeypatch):
    """257 is no number of bfloat16: a sum of ones would end at 256."""
    monkeypatch.setattr(patches, "BLOCK_BYTES", 1)
    images, kernel = jnp.ones((300, 1, 3, 3), jnp.bfloat16), jnp.ones((2, 1, 3, 3), jnp.bfloat16)
    summed = with_fast_convolutions(lambda k, x: lax.conv(x, k, (1, 1), "VALID").astype(jnp.float32).sum())
    assert jax.jit(jax.grad(summed))(kernel, images).astype(float).tolist() == np.full((2, 1, 3, 3), 300).tolist()


def test_wherever_they_stand(x64):
    """Inside jit, scan with a weak carry, cond, checkpoint, custom_jvp."""
    rng = np.random.default_rng(1)
    kernels, images = rng.normal(size=(3, 4, 4, 3, 3)), rng.normal(size=(3, 2, 4, 6, 6))
    kernels[0] *= -1

    @jax.custom_jvp
    def doubled(x):
        return 2 * x

    doubled.defjvp(lambda primals, tangents: (doubled(*primals), 3 * tangents[0]))  # a rule that must be kept

    def loss(kernel, x):
        def layer(x):
            return jnp.tanh(doubled(lax.conv(x, kernel, (1, 1), "SAME")))

        def body(carry, _):
            x, count = carry
            return (jax.checkpoint(layer)(x), count + 1), None

        def deep(x):
            return lax.scan(body, (x, 0), None, length=2)[0][0]

        return lax.cond(kernel.sum() > 0, jax.jit(deep), lambda x: lax.conv(x, kernel, (1, 1), "SAME"), x).sum()

    native, ours = (jax.jit(jax.vmap(jax.grad(each)))(kernels, images) for each in (loss, with_fast_convolutions(loss)))
    np.testing.assert_allclose(ours, native, rtol=0, atol=1e-10)
    text = str(jax.make_jaxpr(jax.vmap(with_fast_convolutions(loss)))(kernels, images))
    assert "agents_convolution" in text and "conv_general_dilated" not in text


def test_half_precision_adds_up_in_single():
    convolve, images, kernels = form(*FORMS[2])
    images, kernels = images.astype(jnp.bfloat16), kernels.astype(jnp.bfloat16)
    ours = jax.vmap(with_fast_convolutions(convolve))(images, kernels)
    assert ours.dtype == jnp.bfloat16
    exact = jax.vmap(convolve)(images.astype(jnp.float32), kernels.astype(jnp.float32))
    np.testing.assert_allclose(ours.astype(jnp.float32), exact, rtol=2**-8, atol=1e-2)


@pytest.mark.parametrize(("small", "wide"), [(jnp.bfloat16, jnp.float32), (jnp.int8, jnp.int32)])
def test_one_channel_a_group_has_the_digits_that_are_asked_for(small, wide):
    rng = np.random.default_rng(0)
    images, kernel = (jnp.asarray(20 * rng.normal(size=shape), small) for shape in ((2, 6, 5, 5), (6, 1, 3, 3)))

    def conv(images, kernel):
        same = {"padding": "SAME", "feature_group_count": 6, "preferred_element_type": wide}
        return lax.conv_general_dilated(images, kernel, (1, 1), **same)

    expected = conv(images.astype(wide), kernel.astype(wide))
    found = jax.jit(with_fast_convolutions(conv))(images, kernel)
    assert found.dtype == wide
    np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-3)


def test_derivative_rules_of_the_user_stay_theirs(x64):
    """A convolution inside a function with a rule of its own: the rule counts, whatever it says."""
    kernel, images = (
        np.linspace(0, 1, 3 * 3 * 3).reshape(3, 1, 1, 3, 3),
        np.linspace(-1, 1, 3 * 25).reshape(3, 1, 1, 5, 5),
    )

    def conv(k, x):
        return lax.conv(x, k, (1, 1), "SAME")

    forward, backward = jax.custom_jvp(conv), jax.custom_vjp(conv)
    forward.defjvp(lambda primals, tangents: (forward(*primals), 3 * conv(tangents[0], primals[1])))
    backward.defvjp(lambda k, x: (conv(k, x), x), lambda x, slope: (slope.sum() * jnp.ones((1, 1, 3, 3)), 0 * x))
    for rule in (forward, backward):

        def loss(k, x, rule=rule):
            return (rule(k, x) ** 2).sum() + conv(k, x).sum()

        native, ours = (
            jax.jit(jax.vmap(jax.value_and_grad(f)))(kernel, images) for f in (loss, with_fast_convolutions(loss))
        )
        for a, b in zip(native, ours, strict=True):
            np.testing.assert_allclose(a, b, rtol=1e-12)


# A user's network in the engines.


def network(params, x):
    """A jitted layer, a checkpointed one, ReLU with its own derivative rule."""
    x = jax.nn.relu(jax.jit(lambda k, x: lax.conv(x, k, (1, 1), "SAME"))(params["a"], x))
    x = jax.checkpoint(lambda k, x: lax.conv(x, k, (2, 2), "SAME"))(params["b"], x)
    return x.sum(axis=(2, 3)) @ params["out"]


def loss_of_network(params, batch, key):
    logits = network(params, batch["x"])
    return jax.nn.logsumexp(logits, axis=1) - jnp.take_along_axis(logits, batch["y"][:, None], axis=1)[:, 0]


def is_right(params, batch):
    return jnp.argmax(network(params, batch["x"]), axis=1) == batch["y"]


def own_problem():
    rng = np.random.default_rng(0)
    sizes = (2, 3)
    data = [{"x": rng.normal(size=(m, 1, 4, 4)), "y": rng.integers(0, 3, m)} for m in sizes]
    params = {"a": rng.normal(size=(2, 1, 3, 3)), "b": rng.normal(size=(4, 2, 3, 3)), "out": rng.normal(size=(4, 3))}
    return pisco.Problem(loss_of_network, params, data, test=data[0], metrics={"accuracy": is_right}, eval_batch=3)


ENGINES = {"sharded": "sharded", "stacked": ScanEngine(batching=stacked), "debug": "debug"}


@pytest.mark.slow
@pytest.mark.parametrize("engine", ENGINES.values(), ids=ENGINES)
def test_engines_agree_on_a_users_network(engine, x64):
    problem, net = own_problem(), pisco.Network.path(2)
    assert usual(problem) is in_turn
    rule = pisco.algorithms.pisco(local_lr=0.05, local_steps=1)
    first, other = (pisco.run(rule, problem, net, rounds=1, batch_size=2, engine=e) for e in ("scan", engine))
    assert first.history["loss"][-1] != first.history["loss"][0]
    for name in ("loss", "grad_norm_sq", "test_accuracy"):
        np.testing.assert_allclose(other.history[name], first.history[name], rtol=1e-10, err_msg=name)
    for a, b in zip(jax.tree.leaves(other.params), jax.tree.leaves(first.params), strict=True):
        np.testing.assert_allclose(a, b, rtol=0, atol=1e-10)


def test_gradients_and_measurements_are_rewritten(x64):
    problem = own_problem()
    params = problem.init(jax.random.key(0))
    rows = {"mean_params": jax.tree.map(lambda x: x[None], params)}
    programs = {
        "a batch": jax.make_jaxpr(jax.grad(agent_loss(problem, 2)))(params, jax.random.key(0), 1),
        "all samples": jax.make_jaxpr(jax.grad(agent_loss(problem, None)))(params, jax.random.key(0), 1),
        "an agent of a federation": jax.make_jaxpr(agent_loss(problem, 2, place=0))(params, jax.random.key(0), 1),
        "a measurement": jax.make_jaxpr(lambda rows: evaluate(problem, rows))(rows),
    }
    for name, program in programs.items():
        text = str(program)
        assert "agents_convolution" in text and "conv_general_dilated" not in text, name


def test_a_loss_without_convolutions_is_called_as_it_is():
    def loss(params, batch, key):
        return (jax.nn.relu(batch["a"] @ params) - batch["y"]) ** 2

    data = {"a": np.ones((3, 5, 2), np.float32), "y": np.ones((3, 5), np.float32)}
    problem = pisco.Problem(loss, jnp.zeros(2), data)
    batch = jax.tree.map(lambda leaf: leaf[:4], problem.data)
    ours = jax.make_jaxpr(problem.batch_loss)(jnp.zeros(2), batch)
    assert str(ours) == str(jax.make_jaxpr(lambda p, b: jnp.mean(loss(p, b, None)))(jnp.zeros(2), batch))
    assert usual(problem) is stacked
    assert problem.loss is loss  # what checkpoints and programs are known by
