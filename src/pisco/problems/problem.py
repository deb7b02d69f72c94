"""A problem: a loss, every agent's data, a start, and what to measure on the test data."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from pisco.errors import InputError, check_number
from pisco.types import Key, Params

Batch = Any
Loss = Callable[[Params, Batch, Key | None], jax.Array]
Metric = Callable[[Params, Batch], jax.Array]


@jax.tree_util.register_pytree_node_class
class Problem:
    """min over x of f(x) = (1/n)·Σᵢ fᵢ(x), where fᵢ is the mean loss over agent i's samples.

    Args:
      loss: `loss(params, batch, key)` for a batch whose leaves lead with the samples: either one loss per sample
        or their mean. `key` is None when the loss is evaluated rather than trained on (no dropout then).
      init: the start x⁰, a pytree, or a function of a key that draws one.
      data: a list with one pytree of arrays per agent (sizes may differ), or one pytree whose leaves lead with
        (agents, samples).
      test: a pytree of test samples, for `metrics`.
      metrics: name to `metric(params, batch)`, one value per test sample; reported as the mean, `test_<name>`.
      eval_batch: how many samples to evaluate at once (bounds memory).
      eval_width: at how many rounds' parameters to evaluate them at once (small models gain by more).
      eval_samples: measure loss and gradient on the first so many samples of every agent at most; None takes all.
      name: for tables and plots.

    >>> data = {"a": np.ones((3, 5, 2)), "y": np.ones((3, 5))}            # 3 agents, 5 samples each
    >>> Problem(lambda x, batch, key: (batch["a"] @ x - batch["y"]) ** 2, jnp.zeros(2), data)
    Problem(problem: 3 agents, 15 samples)
    """

    def __init__(
        self,
        loss: Loss,
        init: Params | Callable[[Key], Params],
        data: Any,
        *,
        test: Any = None,
        metrics: Mapping[str, Metric] | None = None,
        eval_batch: int = 65536,
        eval_width: int = 1,
        eval_samples: int | None = None,
        name: str = "problem",
    ):
        for option, value in (
            ("eval_batch", eval_batch),
            ("eval_width", eval_width),
            ("eval_samples", 1 if eval_samples is None else eval_samples),
        ):
            check_number(option, value, low=1, integer=True)
        flat, sizes = _flatten_agents(data)
        self.loss = loss
        self.start = init
        self.data = jax.tree.map(jnp.asarray, flat)
        self.sizes = jnp.asarray(sizes, jnp.int32)
        self.offsets = jnp.asarray(np.concatenate([[0], np.cumsum(sizes)[:-1]]), jnp.int32)
        self.test = None if test is None else jax.tree.map(jnp.asarray, test)
        self.metrics = tuple((metrics or {}).items()) if test is not None else ()
        self.max_size = int(max(sizes))
        self.min_size = int(min(sizes))
        self.eval_batch = eval_batch
        self.eval_width = eval_width
        self.eval_samples = None if eval_samples is None or eval_samples >= max(sizes) else int(eval_samples)
        self.name = name
        _check_finite("data", flat)
        if test is not None:
            _check_finite("test data", test)
        self.per_sample = self._check_loss()
        self._check_metrics(test, metrics)

    @property
    def num_agents(self) -> int:
        """n."""
        return self.sizes.shape[0]

    @property
    def num_samples(self) -> int:
        """Samples of all agents together."""
        return jax.tree.leaves(self.data)[0].shape[0]

    def init(self, key: Key) -> Params:
        """The start x⁰ of one agent."""
        drawn = self.start(key) if callable(self.start) else self.start
        return jax.tree.map(jnp.asarray, drawn)

    def batch_loss(self, params: Params, batch: Batch, key: Key | None = None) -> jax.Array:
        """The mean loss over a batch."""
        return jnp.mean(self.loss(params, batch, key))

    def sample_losses(self, params: Params, batch: Batch, key: Key | None = None) -> jax.Array:
        """One loss per sample, also where the user's loss only gives the mean."""
        if self.per_sample:
            return self.loss(params, batch, key)
        alone = jax.tree.map(lambda leaf: leaf[:, None], batch)
        return jax.vmap(lambda sample: self.loss(params, sample, key))(alone)

    def objective(self, params: Params) -> jax.Array:
        """f at one parameter vector, over every agent's samples (or the first `eval_samples` of each)."""
        if self.eval_samples is not None:
            slots = jnp.arange(self.eval_samples)
            held = jnp.minimum(self.sizes, self.eval_samples)[:, None]  # an agent may have fewer
            rows = (self.offsets[:, None] + jnp.minimum(slots, held - 1)).reshape(-1)
            some = jax.tree.map(lambda leaf: leaf[rows], self.data)
            weights = jnp.where(slots < held, 1.0 / (self.num_agents * jnp.asarray(held, float)), 0.0)
            return self.weighted_total(
                lambda batch: self.sample_losses(params, batch), some, weights.reshape(-1)
            )
        if self.min_size == self.max_size and self.num_samples <= self.eval_batch:
            return self.batch_loss(params, self.data)

        agent_of = jnp.repeat(jnp.arange(self.num_agents), self.sizes, total_repeat_length=self.num_samples)
        weights = 1.0 / (self.num_agents * jnp.asarray(self.sizes, float)[agent_of])
        return self.weighted_total(lambda batch: self.sample_losses(params, batch), self.data, weights)

    def test_metrics(self, params: Params) -> dict[str, jax.Array]:
        """The mean of every metric over the test samples."""
        if not self.metrics:
            return {}
        count = jax.tree.leaves(self.test)[0].shape[0]
        ones = jnp.ones(count)  # summed, then divided: counts of right answers stay exact
        return {
            f"test_{name}": self.weighted_total(lambda batch, m=metric: m(params, batch), self.test, ones)
            / count
            for name, metric in self.metrics
        }

    def weighted_total(
        self, values: Callable[[Batch], jax.Array], data: Any, weights: jax.Array
    ) -> jax.Array:
        """Σ weights·values(data), a block of samples at a time; the last block overlaps with weight zero."""
        total = weights.shape[0]
        block = min(self.eval_batch, total)
        if block == total:
            return jnp.vdot(weights, values(data).astype(weights.dtype))

        def one(start):
            begin = jnp.minimum(start, total - block)
            batch = jax.tree.map(lambda leaf: lax.dynamic_slice_in_dim(leaf, begin, block), data)
            w = lax.dynamic_slice_in_dim(weights, begin, block)
            fresh = begin + jnp.arange(block) >= start
            return jnp.vdot(jnp.where(fresh, w, 0), values(batch).astype(w.dtype))

        # Checkpointed: the backward pass recomputes a block instead of keeping all of them.
        return lax.map(jax.checkpoint(one), jnp.arange(0, total, block)).sum()

    def _check_loss(self) -> bool:
        """Whether the loss is given per sample; refuses one that cannot be used."""
        params = jax.eval_shape(self.init, jax.random.key(0))
        for path, leaf in jax.tree_util.tree_leaves_with_path(params):
            if not jnp.issubdtype(leaf.dtype, jnp.floating):
                where = jax.tree_util.keystr(path) or "params"
                raise InputError(
                    f"{where} has dtype {leaf.dtype}, expected a floating dtype: give the start as floats"
                )
        batch = _some(self.data)
        try:
            out = jax.eval_shape(lambda p, b: self.loss(p, b, None), params, batch)
        except InputError:
            raise
        except Exception as error:
            raise InputError(
                f"loss(params, batch, key=None) fails on {PROBE} samples "
                f"({type(error).__name__}: {str(error).splitlines()[0]}); "
                "check that the start fits the data, and that the loss works without a key"
            ) from error
        shape = getattr(out, "shape", None)
        if shape not in ((), (PROBE,)):
            raise InputError(
                f"loss returns shape {shape} for {PROBE} samples, expected one loss a sample or their mean"
            )
        return shape == (PROBE,)

    def _check_metrics(self, test: Any, metrics: Any) -> None:
        """Refuse test samples or metrics that cannot be used."""
        if metrics is not None and not isinstance(metrics, Mapping):
            raise InputError(f"metrics is {metrics!r}, expected names and functions, as in {{'accuracy': f}}")
        if test is not None:
            _common_length("test", test)
        params = jax.eval_shape(self.init, jax.random.key(0))
        for name, metric in self.metrics:
            try:
                shape = jax.eval_shape(metric, params, _some(self.test)).shape
            except Exception as error:
                raise InputError(
                    f"the metric {name!r} fails on {PROBE} test samples "
                    f"({type(error).__name__}: {str(error).splitlines()[0]}); "
                    "check that test samples look like training samples"
                ) from error
            if shape != (PROBE,):
                raise InputError(
                    f"the metric {name!r} returns shape {shape} for {PROBE} samples, expected one value a sample"
                )

    def __repr__(self) -> str:
        return f"Problem({self.name}: {self.num_agents} agents, {self.num_samples} samples)"

    def tree_flatten(self):
        fixed = (self.loss, self.start if callable(self.start) else None, self.metrics, self.max_size)
        fixed += (self.min_size, self.eval_batch, self.eval_width, self.eval_samples)
        fixed += (self.name, self.per_sample)
        start = None if callable(self.start) else self.start
        return (self.data, self.sizes, self.offsets, self.test, start), fixed

    @classmethod
    def tree_unflatten(cls, aux, children):
        self = object.__new__(cls)
        self.data, self.sizes, self.offsets, self.test, start = children
        self.loss, drawn, self.metrics, self.max_size, self.min_size = aux[:5]
        self.eval_batch, self.eval_width, self.eval_samples, self.name, self.per_sample = aux[5:]
        self.start = start if drawn is None else drawn
        return self


PROBE = 7
"""Samples that functions are tried on, without values: a number that no shape has by chance."""


def _some(data: Any) -> Any:
    return jax.tree.map(lambda leaf: jax.ShapeDtypeStruct((PROBE, *leaf.shape[1:]), leaf.dtype), data)


def _flatten_agents(data: Any) -> tuple[Any, list[int]]:
    """All agents' samples one after the other, and how many each has."""
    if isinstance(data, list):
        if not data:
            raise InputError("data has no agents; give one pytree of arrays per agent")
        sizes = [_common_length(f"agent {i}'s data", part) for i, part in enumerate(data)]
        shapes = {jax.tree.structure(part) for part in data}
        if len(shapes) > 1:
            raise InputError("agents' data have different structures; give every agent the same fields")
        inner = {tuple(np.shape(leaf)[1:] for leaf in jax.tree.leaves(part)) for part in data}
        if len(inner) > 1:
            raise InputError(f"agents' samples have different shapes, {sorted(inner)}; give all the same")
        return jax.tree.map(lambda *leaves: np.concatenate([np.asarray(x) for x in leaves]), *data), sizes
    arrays = jax.tree.map(np.asarray, data)
    leaves = jax.tree.leaves(arrays)
    if not leaves or any(leaf.ndim < 2 for leaf in leaves):
        raise InputError(
            "data needs leaves that lead with (agents, samples); or give a list with one entry per agent"
        )
    leading = {leaf.shape[:2] for leaf in leaves}
    if len(leading) > 1:
        raise InputError(f"data leaves lead with different (agents, samples): {sorted(leading)}")
    ((agents, samples),) = leading
    if not agents or not samples:
        raise InputError(
            f"data has {agents} agents with {samples} samples each; every agent needs at least one"
        )
    return jax.tree.map(lambda x: x.reshape(agents * samples, *x.shape[2:]), arrays), [samples] * agents


def _common_length(what: str, part: Any) -> int:
    lengths = {np.shape(leaf)[0] if np.ndim(leaf) else 0 for leaf in jax.tree.leaves(part)}
    if len(lengths) != 1 or 0 in lengths:
        raise InputError(
            f"{what} has leaves of lengths {sorted(lengths)}, expected one common length of at least 1"
        )
    return lengths.pop()


def _check_finite(what: str, tree: Any) -> None:
    for path, leaf in jax.tree_util.tree_leaves_with_path(tree):
        array = np.asarray(leaf)
        if np.issubdtype(array.dtype, np.floating) and not np.isfinite(array).all():
            row = int(np.argwhere(~np.isfinite(array))[0][0])
            where = jax.tree_util.keystr(path)
            raise InputError(
                f"{what}{where} holds NaN or infinity (first in row {row}); remove or fill such rows"
            )
