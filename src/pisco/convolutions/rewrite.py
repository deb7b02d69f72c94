"""A user's function with its convolutions replaced by those of `primitive.py`, the rest as it is."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax
from jax.extend import core

from pisco.convolutions.patches import OUT, Form
from pisco.convolutions.primitive import convolution
from pisco.jaxprs import holds, run_alone


def with_fast_convolutions(function: Callable[..., Any]) -> Callable[..., Any]:
    """The same function of pytrees of arrays, whose convolutions stay fast when their kernels are batched.

    It is traced, and `lax.conv_general_dilated` is replaced wherever it stands: inside `jit`, `scan`, `cond`, `while`,
    `checkpoint` and `custom_jvp` too. The rules of a `custom_vjp` are the user's own and stay as they are.

    >>> kernel, images = jnp.ones((4, 2, 3, 3)), jnp.ones((4, 1, 2, 5, 5))          # 4 agents
    >>> one = lambda k, x: lax.conv(x, k[None], (1, 1), "SAME").sum()
    >>> jax.vmap(with_fast_convolutions(one))(kernel, images)
    Array([338., 338., 338., 338.], dtype=float32)
    """

    def call(*arguments):
        if jax.config.jax_disable_jit:  # pyright: ignore[reportAttributeAccessIssue]
            return function(*arguments)  # somebody looks at concrete values, step by step
        closed, shape = jax.make_jaxpr(function, return_shape=True)(*arguments)
        if not has_convolutions(closed.jaxpr):
            return function(*arguments)
        leaves = core.jaxpr_as_fun(_replaced(closed))(*jax.tree.leaves(arguments))
        return jax.tree.unflatten(jax.tree.structure(shape), leaves)

    return call


def _convolve(images: jax.Array, kernel: jax.Array, params: dict[str, Any]) -> jax.Array | None:
    """One equation of a jaxpr, in our layout and back; None where it is not for us."""
    numbers = params["dimension_numbers"]
    if params["batch_group_count"] != 1 or jnp.issubdtype(images.dtype, jnp.complexfloating):
        return None
    batch, channels, *space = numbers.lhs_spec
    features, inputs, *window = numbers.rhs_spec
    images = images.transpose(batch, *space, channels)
    kernel = kernel.transpose(*window, inputs, features)
    out = params["preferred_element_type"] or jnp.promote_types(images.dtype, kernel.dtype)
    form = Form(
        tuple(params["window_strides"]),
        tuple((int(low), int(high)) for low, high in params["padding"]),
        tuple(params["lhs_dilation"]),
        tuple(params["rhs_dilation"]),
        params["feature_group_count"],
        params["precision"],
        images.shape[1:-1],
        kernel.shape[:-2],
        (images.shape[-1], kernel.shape[-1]),
        (images.dtype, kernel.dtype, jnp.dtype(out)),
    )
    if 0 in (*images.shape, *kernel.shape) or min(form.out_space, default=1) < 1:
        return None  # nothing comes out: XLA knows how
    made = convolution.bind(images, kernel, form=form, missing=OUT, stacked=False)
    back = [0] * made.ndim
    batch, channels, *space = numbers.out_spec
    for source, target in enumerate((batch, *space, channels)):
        back[target] = source
    return made.transpose(*back)


def _replaced(closed: core.ClosedJaxpr) -> core.ClosedJaxpr:
    """The same program with our convolutions."""
    jaxpr = closed.jaxpr

    def run(*arguments):
        known: dict[core.Var, Any] = dict(zip(jaxpr.constvars, closed.consts, strict=True))
        known |= dict(zip(jaxpr.invars, arguments, strict=True))

        def read(atom):
            return atom.val if isinstance(atom, core.Literal) else known[atom]

        for equation in jaxpr.eqns:
            made = None
            if equation.primitive is lax.conv_general_dilated_p:
                images, kernel = map(read, equation.invars)
                made = _convolve(images, kernel, equation.params)
            if made is None:
                inside = {name: _inside(value) for name, value in equation.params.items()}
                outs = run_alone(jaxpr, equation.replace(params=inside), read)
            else:
                outs = [made]
            known.update(zip(equation.outvars, outs, strict=True))
        return [read(atom) for atom in jaxpr.outvars]

    avals = [v.aval for v in jaxpr.invars]
    return jax.make_jaxpr(run)(
        *(jax.ShapeDtypeStruct(a.shape, a.dtype, weak_type=getattr(a, "weak_type", False)) for a in avals)
    )


def _inside(value: Any) -> Any:
    """A parameter of an equation, where it is or holds a jaxpr with convolutions."""
    if type(value) in (tuple, list):
        return type(value)(_inside(part) for part in value)
    if isinstance(value, core.ClosedJaxpr) and has_convolutions(value.jaxpr):
        return _replaced(value)
    if isinstance(value, core.Jaxpr) and not value.constvars and has_convolutions(value):
        made = _replaced(core.ClosedJaxpr(value, ()))
        return value if made.consts else made.jaxpr
    return value


def has_convolutions(jaxpr: core.Jaxpr) -> bool:
    """Whether any are in a traced program."""
    return holds(jaxpr, lax.conv_general_dilated_p)
