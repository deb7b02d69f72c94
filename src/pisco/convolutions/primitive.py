"""A convolution that stays fast when every agent has a kernel of its own.

Batched over kernels, XLA's convolution becomes a grouped one, whose gradient is slow on a GPU; inside a loop, XLA's CPU
backend falls back to a naive one. The primitive here computes patches and matrix products instead, where that is
quicker (docs/models.md has the figures). `rewrite.py` puts it in the place of a user's convolutions.

A convolution is bilinear: ⟨conv(images, kernel), out⟩ is linear in each of the three *roles*. The primitive computes
any role from the two others, so its derivatives are itself in another role.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax
from jax.extend import core
from jax.interpreters import ad, batching, mlir

from pisco.convolutions.patches import IMAGES, KERNEL, OUT, Form, alone_by_patches, by_patches, other_roles

GROUPED, UNROLLED = 4, 256
"""On a GPU, stacked agents use XLA's grouped convolution from so many places of the output per channel on, and XLA's
convolution agent by agent for the kernel's gradient (ResNet-18 on an H200: each role at its quickest)."""

# The primitive: operands are the two roles that are not missing; all lead with the agents where they are stacked.

convolution = core.Primitive("agents_convolution")


@convolution.def_abstract_eval
def _result(first: Any, second: Any, *, form: Form, missing: int, stacked: bool) -> Any:
    batch = (second if missing == IMAGES else first).shape[int(stacked)]
    lead = first.shape[:1] if stacked else ()
    shape = (*lead, *form.shape(missing, batch))
    return jax.core.ShapedArray(shape, form.dtypes[missing])  # pyright: ignore[reportAttributeAccessIssue]


def _transposed(which: int) -> Callable[..., Any]:
    def rule(slope: Any, first: Any, second: Any, *, form: Form, missing: int, stacked: bool) -> Any:
        roles = other_roles(missing)
        known = {roles[1 - which]: (first, second)[1 - which], missing: slope}
        operands = [known[role] for role in sorted(known)]
        return convolution.bind(*operands, form=form, missing=roles[which], stacked=stacked)

    return rule


ad.defbilinear(convolution, _transposed(0), _transposed(1))


def _join(x: Any) -> Any:
    return x.reshape(x.shape[0] * x.shape[1], *x.shape[2:])


def _batched(operands: Sequence[Any], axes: Sequence[Any], *, form: Form, missing: int, stacked: bool) -> Any:
    size = next(x.shape[axis] for x, axis in zip(operands, axes, strict=True) if axis is not None)
    bind = functools.partial(convolution.bind, form=form, missing=missing)
    kernel = dict(zip(other_roles(missing), axes, strict=True)).get(KERNEL, 0)
    if kernel is None and not stacked:  # one kernel for all: more images of the same
        alone = [x if axis is None else jnp.moveaxis(x, axis, 0) for x, axis in zip(operands, axes, strict=True)]
        joined = [x if axis is None else _join(x) for x, axis in zip(alone, axes, strict=True)]
        made = bind(*joined, stacked=False)
        return made.reshape(size, made.shape[0] // size, *made.shape[1:]), 0
    fronted = [
        jnp.broadcast_to(x, (size, *x.shape)) if axis is None else jnp.moveaxis(x, axis, 0)
        for x, axis in zip(operands, axes, strict=True)
    ]
    if not stacked:
        return bind(*fronted, stacked=True), 0
    made = bind(*map(_join, fronted), stacked=True)
    return made.reshape(size, made.shape[0] // size, *made.shape[1:]), 0


batching.primitive_batchers[convolution] = _batched


# How it is computed.


def _natively(first: jax.Array, second: jax.Array, *, form: Form, missing: int) -> jax.Array:
    """One kernel, by XLA's own convolution and its transposes."""
    axes = "".join("HWDEFG"[: len(form.space)])
    names = (f"N{axes}C", f"{axes}IO", f"N{axes}C")

    def conv(images, kernel):
        return lax.conv_general_dilated(
            images,
            kernel,
            form.strides,
            form.padding,
            lhs_dilation=form.image_dilation,
            rhs_dilation=form.dilation,
            dimension_numbers=names,
            feature_group_count=form.groups,
            precision=form.precision,
            preferred_element_type=form.dtypes[OUT],
        )

    if missing == OUT:
        return conv(first, second)
    like = jax.ShapeDtypeStruct(form.shape(missing, second.shape[0]), form.dtypes[missing])
    if missing == IMAGES:
        return jax.linear_transpose(lambda images: conv(images, first), like)(second)[0]
    return jax.linear_transpose(lambda kernel: conv(first, kernel), like)(second)[0]


def _in_usual_order(first: jax.Array, second: jax.Array, *, form: Form, missing: int) -> jax.Array:
    """One kernel, by XLA's own convolution with batch first and channels last: its transposes, whose axes stand in
    another order, are what XLA's CPU backend is slow at inside a loop."""
    sizes = zip(form.space, form.image_dilation, form.window, form.dilation, form.out_space, form.strides, strict=True)
    reach = [((n - 1) * i + 1, (w - 1) * d + 1, (m - 1) * s + 1) for n, i, w, d, m, s in sizes]
    own = form._replace(groups=1)
    if missing == IMAGES:  # the slope, spread out, with the turned kernel
        kernel = jnp.flip(first, range(len(form.space))).swapaxes(-1, -2)
        ends = zip(reach, form.padding, strict=True)
        padding = tuple((w - low - 1, n + low - m) for (n, w, m), (low, _) in ends)
        own = own._replace(strides=form.image_dilation, padding=padding, image_dilation=form.strides)
        return _natively(second, kernel, form=own, missing=OUT)
    if missing == KERNEL:  # the images' channels as a batch, the slope as the kernel
        axes = range(1, 1 + len(form.space))
        first, second = first.transpose(-1 % first.ndim, *axes, 0), second.transpose(*axes, 0, -1 % second.ndim)
        first, second = lax.optimization_barrier((first, second))  # or XLA undoes it
        ends = zip(reach, form.padding, strict=True)
        padding = tuple((low, m - n + w - low - 1) for (n, w, m), (low, _) in ends)
        own = own._replace(strides=form.dilation, padding=padding, dilation=form.strides)
        return jnp.moveaxis(_natively(first, second, form=own, missing=OUT), 0, -2)
    return _natively(first, second, form=form, missing=OUT)


def _on_cpu(first, second, *, form, missing, stacked):
    single = all(dtype == jnp.float32 for dtype in form.dtypes)  # others have no quick convolution on a CPU
    if single and form.groups == 1 and math.prod(form.window) > 1:
        own = functools.partial(_in_usual_order, form=form, missing=missing)
        return lax.map(lambda pair: own(*pair), (first, second)) if stacked else own(first, second)
    return (by_patches if stacked else alone_by_patches)(first, second, form=form, missing=missing)


def _elsewhere(first, second, *, form, missing, stacked):
    native = functools.partial(_natively, form=form, missing=missing)
    if not stacked:
        return native(first, second)
    rows = (second if missing == IMAGES else first).shape[1] * math.prod(form.out_space)
    if form.window != (1,) * len(form.window):
        if missing != KERNEL and rows >= GROUPED * max(form.channels):
            return jax.vmap(native)(first, second)
        if missing == KERNEL and rows >= UNROLLED * max(form.channels):
            return jnp.stack([native(*own) for own in zip(first, second, strict=True)])
    return by_patches(first, second, form=form, missing=missing)


mlir.register_lowering(convolution, mlir.lower_fun(_on_cpu, multiple_results=False), platform="cpu")
mlir.register_lowering(convolution, mlir.lower_fun(_elsewhere, multiple_results=False))
convolution.def_impl(jax.jit(convolution.bind, static_argnames=("form", "missing", "stacked")))
