"""A user's arrays on their way in: agents one after the other, lengths and values checked, nothing cut silently."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.core import Tracer

from pisco.errors import InputError, a_kind_of


def _plain(where: str, value: Any) -> np.ndarray:
    if isinstance(value, Tracer):
        raise InputError(f"{where} holds a traced value; make the problem outside of jax.jit and vmap")
    if np.ma.is_masked(value):  # numpy would show what is under the mask
        raise InputError(f"{where} holds masked numbers; fill them, or leave those samples out")
    return np.asarray(value)


def as_arrays(what: str, tree: Any, sizes: Sequence[int] = ()) -> Any:
    """The leaves as jax holds them; what it would change is refused: texts, NaN, numbers too large for 32 bits.

    Where samples of several agents follow each other, `sizes` says how many each has.
    """
    ends = np.cumsum(sizes)

    def place(row: int) -> str:
        if not len(ends):
            return f" (in row {row})"
        agent = int(np.searchsorted(ends, row, side="right"))
        return f" (in sample {row - (ends[agent] - sizes[agent])} of agent {agent})"

    def leaf(path: Any, value: Any) -> jax.Array:
        where = what + jax.tree_util.keystr(path)
        if isinstance(value, jax.Array) and jnp.issubdtype(value.dtype, jax.dtypes.prng_key):
            raise InputError(f"{where} holds random keys, expected numbers; leave them out, as a loss is given a key")
        array = _plain(where, value)
        if array.dtype.kind in "OSUMm":
            arrays = "; give arrays alone, as eqx.filter(model, eqx.is_array) does" if callable(array.flat[0]) else ""
            raise InputError(f"{where} holds {array.dtype} such as {array.flat[0]!r:.60}, expected numbers{arrays}")
        if array.dtype.char in "gG":  # longer than jax has
            array = array.astype(np.complex128 if array.dtype.char == "G" else np.float64)
        kept = jax.dtypes.canonicalize_dtype(array.dtype)
        with np.errstate(over="ignore", invalid="ignore"):
            cast = array.astype(kept, copy=False)
        inexact = jnp.issubdtype(kept, jnp.inexact)
        wrong = np.argwhere(~np.isfinite(cast) if inexact else cast != array)
        if len(wrong):
            held, row = array[tuple(wrong[0])], place(int(wrong[0][0])) if array.ndim else ""
            if not np.isfinite(held):
                raise InputError(f"{where} holds NaN or infinity{row}; give only finite numbers")
            fix = "scale them" if inexact else "number them from 0 on"
            raise InputError(
                f"{where} holds {held}{row}, which does not fit into {kept}; {fix}, or "
                'keep 64 bits with jax.config.update("jax_enable_x64", True)'
            )
        return jnp.asarray(array)

    refuse_items(what, tree)
    return jax.tree_util.tree_map_with_path(leaf, tree)


def refuse_items(what: str, tree: Any) -> None:
    """Refuse a leaf that hands out items but is no array: NumPy would ask it for more of them without an end."""
    for leaf in jax.tree.leaves(tree):
        if hasattr(leaf, "__iter__") and not (hasattr(leaf, "__getitem__") or hasattr(leaf, "__array__")):
            raise InputError(
                f"{what} holds {a_kind_of(leaf)}, which makes its own batches, but pisco asks for samples by "
                "number; give the data set behind it"
            )
        if hasattr(leaf, "__getitem__") and not hasattr(leaf, "__array__") and not isinstance(leaf, Sequence):
            raise InputError(
                f"{what} holds {a_kind_of(leaf)}, which is no array; give arrays, or as data a list with one "
                "data set of samples for every agent"
            )


def flatten_agents(data: Any) -> tuple[Any, list[int]]:
    """All agents' samples one after the other, and how many each has."""
    refuse_items("data", data)
    if isinstance(data, list):
        if not data:
            raise InputError("data has no agents; give one pytree of arrays per agent")
        sizes = [common_length(f"agent {i}'s data", part) for i, part in enumerate(data)]
        shapes = {jax.tree.structure(part) for part in data}
        if len(shapes) > 1:
            raise InputError("agents' data have different structures; give every agent the same fields")
        inner = {tuple(np.shape(leaf)[1:] for leaf in jax.tree.leaves(part)) for part in data}
        if len(inner) > 1:
            raise InputError(f"agents' samples have different shapes, {sorted(inner)}; give all the same")
        return jax.tree.map(lambda *leaves: np.concatenate([_plain("data", x) for x in leaves]), *data), sizes
    arrays = jax.tree.map(lambda x: _plain("data", x), data)
    leaves = jax.tree.leaves(arrays)
    if not leaves or any(leaf.ndim < 2 for leaf in leaves):
        raise InputError("data needs leaves that lead with (agents, samples); or give a list with one entry per agent")
    leading = {leaf.shape[:2] for leaf in leaves}
    if len(leading) > 1:
        raise InputError(f"data leaves lead with different (agents, samples): {sorted(leading)}")
    ((agents, samples),) = leading
    if not agents or not samples:
        raise InputError(f"data has {agents} agents with {samples} samples each; every agent needs at least one")
    return jax.tree.map(lambda x: x.reshape(agents * samples, *x.shape[2:]), arrays), [samples] * agents


def common_length(what: str, part: Any) -> int:
    """How many samples the leaves hold, which must be the same number for all."""
    if not all(np.ndim(leaf) for leaf in jax.tree.leaves(part)):  # lists of numbers are trees too
        raise InputError(f"{what} holds single numbers, expected arrays of samples, as in np.array([1.0, 2.0])")
    lengths = {np.shape(leaf)[0] if np.ndim(leaf) else 0 for leaf in jax.tree.leaves(part)}
    if len(lengths) != 1 or 0 in lengths:
        raise InputError(f"{what} has leaves of lengths {sorted(lengths)}, expected one common length of at least 1")
    return lengths.pop()
