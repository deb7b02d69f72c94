"""What is tried on a problem when it is made: its loss, its buffers and its metrics, on shapes and a few samples."""

from __future__ import annotations

import warnings
from collections import Counter
from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp
import numpy as np

from pisco.convolutions.rewrite import has_convolutions
from pisco.data.stream import StreamRows
from pisco.errors import InputError, brief
from pisco.metrics import AGENTS, TEST, one_number
from pisco.parts import names_of
from pisco.tree import like_many, like_one
from pisco.trouble import heeding
from pisco.types import Params

if TYPE_CHECKING:
    from pisco.problems.problem import Problem

PROBE = 7
"""Samples that functions are tried on, without values: a number that no shape has by chance."""


def without_buffers(out: Any) -> Any:
    """The losses of what a loss returned."""
    return out[0] if isinstance(out, tuple) and len(out) == 2 else out


def check_start(start: Any, draws: bool) -> None:
    """Refuse a start without numbers, or a function that cannot draw one."""
    try:
        found = jax.eval_shape(start, jax.random.key(0)) if draws else start
    except Exception as error:
        raise InputError(
            f"the start cannot be drawn: init(key) fails ({brief(error)}); let it return a pytree of arrays alone"
        ) from error
    if not jax.tree.leaves(found):
        raise InputError(f"the start is {found!r:.60}, which holds no numbers; give a pytree of arrays")
    names = Counter(names_of(found))
    for name in names:  # results, checkpoints and messages tell leaves apart by name
        if names[name] > 1 or any(name[:at] in names for at, sign in enumerate(name) if sign == "/"):
            raise InputError(f"two leaves of the start are called {name!r}, or one is inside the other; rename one")


def check_loss(problem: Problem) -> tuple[bool, bool]:
    """Whether the loss is given per sample, and whether it has convolutions; refuses one that cannot be used."""
    params = problem.params_like
    for path, leaf in jax.tree_util.tree_leaves_with_path(params):
        if not jnp.issubdtype(leaf.dtype, jnp.floating):
            where = jax.tree_util.keystr(path) or "params"
            raise InputError(f"{where} has dtype {leaf.dtype}, expected a floating dtype: give the start as floats")
    try:
        traced = jax.make_jaxpr(lambda p, b: problem.loss(problem.whole(p), b, None), return_shape=True)
        program, out = traced(params, like_many(problem.sample_like, PROBE))
        if problem.renews:
            check_buffers(problem, params)
            out = without_buffers(out)
        if getattr(out, "shape", None) == ():
            check_mean(problem)
    except InputError:
        raise
    except Exception as error:
        raise InputError(
            f"loss(params, batch, key=None) fails on {PROBE} samples ({brief(error)}); "
            "check that the start fits the data, and that the loss works without a key"
        ) from error
    shape = getattr(out, "shape", None)
    if isinstance(out, tuple):
        raise InputError("loss returns several things, expected one loss a sample or their mean; name buffers in parts")
    if shape not in ((), (PROBE,)):
        raise InputError(f"loss returns shape {shape} for {PROBE} samples, expected one loss a sample or their mean")
    if not jnp.issubdtype(out.dtype, jnp.floating):
        raise InputError(f"loss returns {out.dtype}, which has no gradient; return floats")
    return shape == (PROBE,), has_convolutions(program.jaxpr)


def check_transform(problem: Problem) -> None:
    """Refuse a transformation that fails, or loses samples, or gives what the loss cannot take."""
    if problem.transform is None:
        return

    try:
        params = problem.params_like
        like, key = like_many(problem.sample_like, PROBE), jax.random.key(0)
        batch = jax.eval_shape(problem.transformed, like, key)
        jax.eval_shape(lambda p, b: problem.losses(p, b, None), params, batch)
    except Exception as error:
        raise InputError(
            f"transform(batch, key) fails on {PROBE} samples, or the loss of what it returns does ({brief(error)}); "
            "return a batch like the one it is given"
        ) from error
    lengths = {leaf.shape[:1] for leaf in jax.tree.leaves(batch)}
    if lengths != {(PROBE,)}:
        raise InputError(f"transform(batch, key) makes {lengths} of {PROBE} samples; return as many as it is given")


def check_buffers(problem: Problem, params: Params) -> None:
    """Refuse a loss that trains without returning buffers, or returns others."""

    def train(params, batch, key):
        out = problem.loss(problem.whole(params), problem.transformed(batch, key), key)
        if not isinstance(out, tuple) or len(out) != 2:
            named = ", ".join(str(problem.kinds).split("; "))
            raise InputError(f"the loss returns no buffers ({named}); return (losses, new buffers), or drop them")
        return problem.kinds.renewed(params, out[1])  # type: ignore[union-attr]

    jax.eval_shape(train, params, like_many(problem.sample_like, PROBE), jax.random.key(0))


def check_mean(problem: Problem) -> None:
    """Refuse a sum: it grows by the same amount with every copy of the same samples, where a mean stays."""
    start, some, count = problem.init(jax.random.key(0)), *_some(problem)
    loss = jax.jit(lambda params, batch: without_buffers(problem.loss(problem.whole(params), batch, None)))

    def at(copies: int) -> float:
        return float(loss(start, jax.tree.map(lambda leaf: leaf[np.tile(np.arange(count), copies)], some)))

    with heeding(problem.trouble):
        if at(1) == 0:  # a sum of nothing
            start = jax.tree.map(lambda leaf: leaf + jnp.ones_like(leaf), start)
        found = [at(copies) for copies in (1, 2, 3, 4)]
        (once, twice, *_), (step, *later) = found, np.diff(found).tolist()
        # A loss that compares the samples of a batch does not grow evenly, and neither does noise.
        even = all(abs(other - step) < 0.02 * abs(step) for other in later)
        grows = even and abs(step) > 1e-3 * (abs(once) + abs(twice))
    if grows:
        raise InputError(
            f"loss returns a sum: {once:.4g} for {count} samples, {twice:.4g} for the same ones twice; "
            "return their mean, as in jnp.mean(…), or one loss a sample"
        )


def _some(problem: Problem) -> tuple[Any, int]:
    """A few samples from everywhere, and how many."""
    rows = np.linspace(0, problem.num_samples - 1, min(problem.num_samples, 4)).astype(int)
    some = problem.data.gather(rows) if problem.streams else jax.tree.map(lambda leaf: leaf[rows], problem.data)
    return some, len(rows)


def check_alone(problem: Problem, before: Problem | None = None) -> None:
    """Warn where a mean loss is asked of one sample at a time, unless it was `before`, and is not their mean."""
    if problem.per_sample or problem.together or hasattr(problem.loss, "weighted"):
        return
    if before is not None and not before.together:
        return
    if objection := why_not_alone(problem):
        warnings.warn(objection, stacklevel=3)


def why_not_alone(problem: Problem) -> str | None:
    """Why a mean loss is not to be asked of one sample at a time, if so; where it fails then, that is refused."""
    some, count = _some(problem)
    both = jax.jit(lambda params, batch: (problem.batch_loss(params, batch), problem.sample_losses(params, batch)))
    taken = "measured" if problem.min_size == problem.max_size else "measured, and full batches are taken,"
    fix = f"here it is {taken} one sample at a time; return one loss a sample"
    with heeding(problem.trouble):
        try:
            together, alone = (np.asarray(x, float) for x in both(problem.init(jax.random.key(0)), some))
        except InputError:
            raise
        except Exception as error:
            raise InputError(f"the loss fails on one sample alone ({brief(error)}), and {fix}") from error
    same = abs(together - alone.mean()) <= 0.05 * (abs(together) + abs(alone).mean())
    if same or not np.isfinite(together):
        return None
    return (
        f"the loss of {count} samples together is {together:.4g}, and of each alone {alone.mean():.4g} on average: "
        f"it compares samples, or weighs them differently, and {fix}"
    )


def check_metrics(problem: Problem) -> None:
    """Refuse metrics that cannot be used."""
    params = problem.params_like
    for metric in problem.metrics:
        if metric.of not in (TEST, AGENTS):
            continue
        if problem.test is None:
            raise InputError(
                f"the metric {metric.name!r} has no test data to look at; give the samples as test= (a problem of "
                "PyTorch modules takes none), or make it a metric of the state with Metric(..., of='state')"
            )
        reducing = "reduce"
        try:
            one = problem.test.stream.shapes if isinstance(problem.test, StreamRows) else like_one(problem.test)
            like = like_many(one, PROBE)
            values = jax.eval_shape(lambda p, b, f=metric.function: f(problem.whole(p), b), params, like)
            shapes = [leaf.shape for leaf in jax.tree.leaves(values)]
            leads = all(shape[:1] == (PROBE,) for shape in shapes)
            number: Any = jax.eval_shape(metric.reduce, values) if leads else None
            if metric.of == AGENTS and one_number(number):
                everybody = jax.ShapeDtypeStruct((problem.num_agents,), number.dtype)
                number, reducing = jax.eval_shape(metric.across, everybody), "across"
        except Exception as error:
            raise InputError(
                f"the metric {metric.name!r} fails on {PROBE} test samples ({brief(error)}); "
                "check that test samples look like training samples"
            ) from error
        if not one_number(number):
            raise InputError(
                f"the metric {metric.name!r} returns shape {', '.join(map(str, shapes))} for {PROBE} samples, "
                f"expected one value a sample, and one number from its {reducing}"
            )
