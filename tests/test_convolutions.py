"""A user's convolutions, replaced: the values and derivatives of XLA's own, in every form and wherever they stand."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

from pisco.convolutions import patches
from pisco.convolutions.rewrite import with_fast_convolutions

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


@pytest.mark.parametrize("which", FORMS, ids=str)
def test_values_and_derivatives_are_those_of_xla(which, x64):
    convolve, images, kernels = form(*which)

    def everything(function):
        def one(x, k, dx, dk):
            def total(x, k):
                return jnp.sin(function(x, k)).sum()

            slopes = jax.grad(total, (0, 1))
            return function(x, k), *jax.jvp(slopes, (x, k), (dx, dk))  # values, slopes, slopes of the slopes

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
        return jax.vmap(jax.vmap(jax.grad(lambda k, x: jnp.sin(function(x, k)).sum())))(kernels, images)

    np.testing.assert_allclose(slopes(with_fast_convolutions(convolve)), slopes(convolve), rtol=0, atol=1e-11)


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

    native = jax.vmap(jax.grad(loss))(kernels, images)
    np.testing.assert_allclose(
        jax.vmap(jax.grad(with_fast_convolutions(loss)))(kernels, images), native, rtol=0, atol=1e-10
    )
    text = str(jax.make_jaxpr(jax.vmap(with_fast_convolutions(loss)))(kernels, images))
    assert "agents_convolution" in text and "conv_general_dilated" not in text


def test_half_precision_adds_up_in_single():
    convolve, images, kernels = form(*FORMS[2])
    images, kernels = images.astype(jnp.bfloat16), kernels.astype(jnp.bfloat16)
    ours = jax.vmap(with_fast_convolutions(convolve))(images, kernels)
    assert ours.dtype == jnp.bfloat16
    exact = jax.vmap(convolve)(images.astype(jnp.float32), kernels.astype(jnp.float32))
    np.testing.assert_allclose(ours.astype(jnp.float32), exact, rtol=2**-8, atol=1e-2)
