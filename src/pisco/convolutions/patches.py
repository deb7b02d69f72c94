"""Convolutions as patches and matrix products, for agents that lead and have kernels of their own."""

from __future__ import annotations

import itertools
import math
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import lax

IMAGES, KERNEL, OUT = 0, 1, 2
"""The roles: (batch, *space, channels), (*window, channels of a group, features) and (batch, *space, features)."""

BLOCK_BYTES = 1 << 25
"""Where one kernel serves all images, their patches take so much at a time: a large batch must not fill the memory."""


class Form(NamedTuple):
    """What is known of a convolution beside its operands."""

    strides: tuple[int, ...]
    padding: tuple[tuple[int, int], ...]
    image_dilation: tuple[int, ...]
    dilation: tuple[int, ...]  # of the kernel
    groups: int
    precision: Any
    space: tuple[int, ...]  # of the images
    window: tuple[int, ...]  # of the kernel
    channels: tuple[int, int]  # of the images and of the output
    dtypes: tuple[Any, Any, Any]  # of the roles

    @property
    def padded(self) -> tuple[int, ...]:
        sizes = zip(self.space, self.image_dilation, self.padding, strict=True)
        return tuple(low + high + (size - 1) * d + 1 for size, d, (low, high) in sizes)

    @property
    def out_space(self) -> tuple[int, ...]:
        sizes = zip(self.padded, self.window, self.dilation, self.strides, strict=True)
        return tuple((size - (k - 1) * d - 1) // s + 1 for size, k, d, s in sizes)

    @property
    def depthwise(self) -> bool:
        """One channel and one feature a group: sums, no matrix product.

        (Of several features a group XLA's CPU backend, as of jaxlib 0.10.2, compiles such sums wrongly.)
        """
        return self.channels == (self.groups, self.groups)

    def shape(self, role: int, batch: int) -> tuple[int, ...]:
        if role == KERNEL:
            return (*self.window, self.channels[0] // self.groups, self.channels[1])
        return (batch, *(self.space if role == IMAGES else self.out_space), self.channels[role == OUT])


def other_roles(missing: int) -> list[int]:
    return [role for role in (IMAGES, KERNEL, OUT) if role != missing]


def by_patches(first: jax.Array, second: jax.Array, *, form: Form, missing: int) -> jax.Array:
    """Stacked agents, each with its own kernel."""
    if missing == OUT:
        return _product(_patches(first, form), second, form)
    if missing == KERNEL:
        return _kernel_slope(_patches(first, form), second, form)
    return _image_slope(first, second, form)


def _offsets(form: Form) -> list[tuple[int, ...]]:
    reach = [range(0, size * d, d) for size, d in zip(form.window, form.dilation, strict=True)]
    return list(itertools.product(*reach))


def _patches(images: jax.Array, form: Form) -> jax.Array:
    """(agents, batch, *space, window, channels): what every place of the output sees."""
    if math.prod(form.window) > 1:
        images = lax.optimization_barrier(images)
    config = [(low, high, d - 1) for (low, high), d in zip(form.padding, form.image_dilation, strict=True)]
    if any(entry != (0, 0, 0) for entry in config):
        zero = jnp.zeros((), images.dtype)
        images = lax.pad(images, zero, [(0, 0, 0), (0, 0, 0), *config, (0, 0, 0)])
    parts = []
    for offset in _offsets(form):
        spans = zip(offset, form.out_space, form.strides, strict=True)
        ends = [start + (size - 1) * stride + 1 for start, size, stride in spans]
        start, end = (0, 0, *offset, 0), (*images.shape[:2], *ends, images.shape[-1])
        parts.append(lax.slice(images, start, end, (1, 1, *form.strides, 1)))
    # A barrier: what feeds the patches would otherwise be computed again for every one of them.
    return parts[0][..., None, :] if len(parts) == 1 else lax.optimization_barrier(jnp.stack(parts, axis=-2))


def _flat(form: Form, kernel: jax.Array) -> jax.Array:
    """(agents, window, groups, channels of a group, features of a group)."""
    kernel = kernel.reshape(kernel.shape[0], math.prod(form.window), *kernel.shape[-2:])
    return _grouped(kernel, form).swapaxes(2, 3)


def _grouped(x: jax.Array, form: Form) -> jax.Array:
    """The last axis cut into groups."""
    return x.reshape(*x.shape[:-1], form.groups, x.shape[-1] // form.groups)


def _matrix(x: jax.Array) -> jax.Array:
    """(agents, places, all else)."""
    return x.reshape(*x.shape[:2], math.prod(x.shape[2:]))


def _product(patches: jax.Array, kernel: jax.Array, form: Form) -> jax.Array:
    agents, batch = patches.shape[:2]
    seen = _grouped(patches.reshape(agents, math.prod(patches.shape[1:-2]), *patches.shape[-2:]), form)
    if form.groups == 1:  # as matrices: with more axes, XLA's CPU backend is many times slower
        made = _einsum("npx,nxf->npf", _matrix(seen), kernel.reshape(agents, -1, kernel.shape[-1]), form, OUT)
    elif form.depthwise:
        made = _summed(seen, _flat(form, kernel)[:, None, :, :, 0], 2, form, OUT)
    else:
        made = _einsum("npwgc,nwgcf->npgf", seen, _flat(form, kernel), form, OUT)
    return made.reshape(agents, *form.shape(OUT, batch))


def _kernel_slope(patches: jax.Array, slope: jax.Array, form: Form) -> jax.Array:
    agents = patches.shape[0]
    seen = _grouped(patches.reshape(agents, math.prod(patches.shape[1:-2]), *patches.shape[-2:]), form)
    slope = _grouped(slope.reshape(agents, math.prod(slope.shape[1:-1]), slope.shape[-1]), form)
    if form.groups == 1:
        made = _einsum("npx,npf->nxf", _matrix(seen), _matrix(slope), form, KERNEL)
    elif form.depthwise:
        made = _summed(seen, slope[:, :, None], 1, form, KERNEL)
    else:
        made = _einsum("npwgc,npgf->nwcgf", seen, slope, form, KERNEL)
    return made.reshape(agents, *form.shape(KERNEL, 0))


def _image_slope(kernel: jax.Array, slope: jax.Array, form: Form) -> jax.Array:
    agents, batch, ones = slope.shape[0], slope.shape[1], (1,) * len(form.space)
    if form.strides == ones and form.image_dilation == ones and min(map(min, form.padding)) >= 0:
        # A convolution with the turned kernel: no sum of overlapping patches.
        reach = [(k - 1) * d for k, d in zip(form.window, form.dilation, strict=True)]
        padding = tuple((r - low, r - high) for r, (low, high) in zip(reach, form.padding, strict=True))
        turned = _grouped(jnp.flip(kernel, range(1, 1 + len(form.space))), form)
        turned = jnp.moveaxis(turned, -1, -3).swapaxes(-1, -2)  # features of a group, groups, channels of a group
        turned = turned.reshape(*kernel.shape[:-2], form.channels[1] // form.groups, form.channels[0])
        back = form._replace(
            padding=padding,
            space=form.out_space,
            channels=form.channels[::-1],
            dtypes=(form.dtypes[OUT], form.dtypes[KERNEL], form.dtypes[IMAGES]),
        )
        return _product(_patches(slope, back), turned, back)
    slope = _grouped(slope.reshape(agents, math.prod(slope.shape[1:-1]), slope.shape[-1]), form)
    parts = _einsum("npgf,nwgcf->nwpgc", slope, _flat(form, kernel), form, IMAGES)
    parts = parts.reshape(agents, math.prod(form.window), batch, *form.out_space, form.channels[0])
    return _overlapped(parts, form)


def _overlapped(parts: jax.Array, form: Form) -> jax.Array:
    """The transpose of `_patches`: every part added where it was taken from."""
    zero, total = jnp.zeros((), parts.dtype), None
    for index, offset in enumerate(_offsets(form)):
        config = []
        for start, size, stride, whole in zip(offset, form.out_space, form.strides, form.padded, strict=True):
            config.append((start, whole - start - (size - 1) * stride - 1, stride - 1))
        placed = lax.pad(parts[:, index], zero, [(0, 0, 0), (0, 0, 0), *config, (0, 0, 0)])
        total = placed if total is None else total + placed
    assert total is not None
    # Undo the padding: what was cut off gets zeros, what was added is cut off, dilated places are picked.
    low_high = [(-low, -high, 0) for low, high in form.padding]
    total = lax.pad(total, zero, [(0, 0, 0), (0, 0, 0), *low_high, (0, 0, 0)])
    return total[(slice(None), slice(None), *(slice(None, None, d) for d in form.image_dilation))]


def _summed(first: jax.Array, second: jax.Array, axis: int, form: Form, role: int) -> jax.Array:
    """Σ first·second; products have the digits of what is asked for, which may be more than those of the factors."""
    wide = jnp.promote_types(jnp.promote_types(first.dtype, second.dtype), form.dtypes[role])
    return (first.astype(wide) * second.astype(wide)).sum(axis=axis).astype(form.dtypes[role])


def _einsum(words: str, first: jax.Array, second: jax.Array, form: Form, role: int) -> jax.Array:
    dtype = form.dtypes[role]
    if first.dtype != second.dtype:
        common = jnp.promote_types(first.dtype, second.dtype)
        first, second = first.astype(common), second.astype(common)
    wide = jnp.promote_types(dtype, first.dtype)
    return jnp.einsum(words, first, second, precision=form.precision, preferred_element_type=wide).astype(dtype)


def alone_by_patches(first: jax.Array, second: jax.Array, *, form: Form, missing: int) -> jax.Array:
    """One kernel and many images, a block of them at a time."""
    roles = other_roles(missing)
    images = (second if missing == IMAGES else first).shape[0]
    one = math.prod(form.out_space) * math.prod(form.window) * max(form.channels) * 4
    most = max(1, BLOCK_BYTES // max(one, 1))
    blocks = next(count for count in range(-(-images // most) or 1, images + 2) if not images % count or count > images)

    def call(*operands):
        made = by_patches(*(x[None] for x in operands), form=form, missing=missing)
        return made[0]

    if blocks == 1:
        return call(first, second)
    cut = [
        x if role == KERNEL else x.reshape(blocks, images // blocks, *x.shape[1:])
        for role, x in zip(roles, (first, second), strict=True)
    ]
    moving = [role != KERNEL for role in roles]

    def step(total: Any, parts: Any) -> Any:
        parts = iter(parts)
        made = call(*(next(parts) if moves else x for moves, x in zip(moving, cut, strict=True)))
        return (total + made, None) if missing == KERNEL else (total, made)

    wide = jnp.promote_types(form.dtypes[KERNEL], jnp.float32)  # half precision would stand still after some blocks
    start: Any = jnp.zeros(form.shape(KERNEL, 0), wide) if missing == KERNEL else None
    total, made = lax.scan(step, start, [x for moves, x in zip(moving, cut, strict=True) if moves])
    return total.astype(form.dtypes[KERNEL]) if missing == KERNEL else made.reshape(images, *made.shape[2:])
