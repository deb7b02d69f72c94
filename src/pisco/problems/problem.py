"""A problem: a loss, every agent's data, a start, and what to measure on the test data."""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol, runtime_checkable

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from pisco.convolutions.rewrite import with_fast_convolutions
from pisco.data.arrays import as_arrays, common_length, flatten_agents
from pisco.data.stream import STREAM_BYTES, Stream, StreamRows, everything, stream_of, test_rows
from pisco.display import card, plural, span
from pisco.errors import InputError, check_counts, choose
from pisco.metrics import AGENTS, COST, METRICS, TEST, Metric, as_metrics
from pisco.parts import LOCAL, LOCAL_BUFFERS, Kinds, names_of, whole
from pisco.privacy.gradients import Privacy, Protection
from pisco.problems.blocks import samples_at_once, weighted_total
from pisco.problems.checks import check_alone, check_loss, check_metrics, check_start, check_transform, without_buffers
from pisco.tree import like_one
from pisco.trouble import Trouble
from pisco.types import Key, Params

TRANSFORM_STREAM = 2**32 - 1
"""Apart from the randomness of the loss."""

_TRACED = ("data", "sizes", "offsets", "scales", "test", "start", "frozen", "protection")
_FIXED = ("loss", "transform", "metrics", "kinds", "privacy", "draws_start", "per_sample", "convolves", "num_agents")
_FIXED += ("max_size", "min_size", "num_test", "eval_batch", "eval_width", "eval_samples", "name")
"""What a compiled program takes of a problem as numbers, and what shapes the program."""

Batch = Any
Loss = Callable[[Params, Batch, Key | None], jax.Array]


@runtime_checkable
class WeightedLoss(Protocol):
    """A loss that also gives Σ weights·losses of a batch, for one to whom single samples are dear."""

    def weighted(self, params: Params, batch: Batch, weights: jax.Array, key: Key | None, /) -> jax.Array: ...


@jax.tree_util.register_pytree_node_class
class Problem:
    """min over x of f(x) = Σᵢ qᵢ·fᵢ(x), where fᵢ is the mean loss over agent i's samples; qᵢ = 1/n unless given.

    Args:
      loss: `loss(params, batch, key)` for a batch whose leaves lead with the samples: either one loss per sample
        or their mean. `key` is None when the loss is evaluated rather than trained on (no dropout then).
      init: the start x⁰, a pytree of arrays (a module that is one too), or a function of a key that draws one.
      data: a list with one pytree of arrays per agent (sizes may differ), or one pytree whose leaves lead with
        (agents, samples). What does not fit into memory stays where it is: memmaps in place of arrays, or for every
        agent an object with `__len__` and `__getitem__` (a data set of PyTorch or Hugging Face) that gives single
        samples. Batches are then gathered on the host, one chunk of rounds ahead.
      test: a pytree of test samples, for `metrics`; or memmaps, or one data set, which stay where they are too.
      metrics: what else to measure: a list of `Metric`, or name to `function(params, batch)`, one value per test
        sample, whose mean is reported as `test_<name>` (and is no target: which way is better is not known).
      weights: qᵢ of every agent, adding up to 1, or "samples" for its share of all samples.
      parts: leaves of the model that are not trained and sent like the others, by kind ("frozen", "local", "buffers",
        "local_buffers"): a pattern of their paths, several, or a function of a path, as in
        {"frozen": "encoder/*", "local": "head/*"}. With buffers the loss returns a pair: the losses, and the
        buffers' new values.
      transform: `transform(batch, key)` changes a batch at random for training (`problems.transforms`); measurements
        see the samples as they are.
      privacy: how gradients are clipped and noised (`pisco.Privacy`).
      eval_batch: how many samples to evaluate at once; None for as many as take about a gigabyte of memory.
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
        metrics: Mapping[str, Callable[[Params, Batch], Any]] | Sequence[Metric] | None = None,
        weights: Sequence[float] | str | None = None,
        parts: Mapping[str, Any] | None = None,
        transform: Callable[[Batch, Key], Batch] | None = None,
        privacy: Privacy | None = None,
        eval_batch: int | None = None,
        eval_width: int = 1,
        eval_samples: int | None = None,
        name: str = "problem",
    ):
        check_counts(
            eval_batch=1 if eval_batch is None else eval_batch,
            eval_width=eval_width,
            eval_samples=1 if eval_samples is None else eval_samples,
        )
        stream = stream_of(data)
        flat, sizes = (None, stream.sizes) if stream is not None else flatten_agents(data)
        self.loss, self.transform = loss, transform
        arrays = any(isinstance(leaf, jax.Array | np.ndarray) for leaf in jax.tree.leaves(init))
        self.draws_start = callable(init) and not arrays  # a module may be a tree of arrays and callable
        self.start = init if self.draws_start else as_arrays("the start", init)
        check_start(self.start, self.draws_start)
        self.kinds, self.frozen = None, None
        if parts is not None:
            self._divide(parts)
        self.data: Any = as_arrays("data", flat, sizes) if stream is None else stream
        self.num_agents = len(sizes)
        self.sizes = jnp.asarray(sizes, jnp.int32)
        self.offsets = jnp.asarray(np.concatenate([[0], np.cumsum(sizes)[:-1]]), jnp.int32)
        self.scales = scales_of(weights, sizes)
        self.test: Any = test_rows(test)
        if self.test is None and test is not None:
            self.test = as_arrays("test data", test)
        self.num_test = 0 if test is None else common_length("test", self.test)
        if isinstance(self.test, StreamRows) and self.trouble is not None:
            self.test.stream.trouble = self.trouble
        self.metrics = as_metrics(metrics or ())
        self.max_size = int(max(sizes))
        self.min_size = int(min(sizes))
        self.eval_width = eval_width
        self.eval_samples = None if eval_samples is None or eval_samples >= max(sizes) else int(eval_samples)
        self.name = name
        self._protect(privacy)
        self.per_sample, self.convolves = check_loss(self)
        self.eval_batch = samples_at_once(self) if eval_batch is None else eval_batch
        if stream is not None:
            self.eval_batch = min(self.eval_batch, max(1, STREAM_BYTES // stream.sample_bytes))
        check_alone(self)
        check_transform(self)
        check_metrics(self)

    def _divide(self, parts: Mapping[str, Any]) -> None:
        start: Any = self.start
        self.kinds = kinds = Kinds.read(parts, jax.eval_shape(start, jax.random.key(0)) if self.draws_start else start)
        if self.draws_start:  # once for all seeds
            self.frozen = jax.jit(lambda key: kinds.split(start(key))[1])(jax.random.key(0))
        else:
            self.start, self.frozen = kinds.split(start)

    @property
    def streams(self) -> bool:
        """Whether samples stay where they are and are gathered when needed."""
        return isinstance(self.data, Stream)

    @property
    def trouble(self) -> Trouble | None:
        """Where it is noted what goes wrong on the host while a program asks it; None where programs ask nobody."""
        asked = (self.data, self.loss, getattr(self.test, "stream", None))
        found = (getattr(each, "trouble", None) for each in asked)
        return next((each for each in found if isinstance(each, Trouble)), None)

    @property
    def num_samples(self) -> int:
        """Samples of all agents together."""
        return self.data.total if self.streams else jax.tree.leaves(self.data)[0].shape[0]

    @property
    def sample_like(self) -> Batch:
        """Shapes and dtypes of one sample."""
        return self.data.shapes if self.streams else like_one(self.data)

    @property
    def params_like(self) -> Params:
        """Shapes and dtypes of one agent's parameters: of the leaves that algorithms see."""
        return jax.eval_shape(self.init, jax.random.key(0))

    def take(self, rows: jax.Array) -> Any:
        """The samples with these numbers; those of a stream are not gathered yet."""
        return StreamRows(self.data, rows) if self.streams else jax.tree.map(lambda leaf: leaf[rows], self.data)

    @property
    def num_measured(self) -> int:
        """Samples that one measurement looks at: those of the loss, and the test samples, by each agent if needed."""
        kinds = {metric.of for metric in self.metrics}
        tested = self.num_test * ((TEST in kinds) + self.num_agents * (AGENTS in kinds))
        if self.eval_samples is None:
            return self.num_samples + tested
        return int(np.minimum(self.sizes, self.eval_samples).sum()) + tested

    def init(self, key: Key) -> Params:
        """The start x⁰ of one agent: the leaves that algorithms see."""
        drawn = self.start(key) if self.draws_start else self.start
        if self.draws_start and self.kinds is not None:
            drawn = self.kinds.split(drawn)[0]
        return jax.tree.map(jnp.asarray, drawn)

    @property
    def personal(self) -> bool:
        """Whether agents have leaves of their own, so that each has a model of its own to be measured."""
        return self.kinds is not None and bool({LOCAL, LOCAL_BUFFERS} & set(self.kinds.kinds))

    @property
    def renews(self) -> bool:
        """Whether the loss returns buffers."""
        return self.kinds is not None and self.kinds.renews

    def whole(self, params: Params) -> Params:
        """The user's tree, of what an algorithm holds of one agent."""
        return params if self.kinds is None else self.kinds.join(params, self.frozen)

    def model(self, params: Params, agent: int | None = None) -> Params:
        """The whole model of an agent, frozen leaves too, from a result's `params`; of all agents' mean where None."""
        params = whole(params)
        held = dict(zip(names_of(params), jax.tree.leaves(params), strict=True))
        frozen = dict(zip(names_of(self.frozen), jax.tree.leaves(self.frozen), strict=True))
        like = self.whole(self.params_like)
        if missing := sorted(set(names_of(like)) - held.keys() - frozen.keys()):
            raise InputError(f"the parameters lack {missing[0]}; give those of a run of this problem")

        def leaf(name: str) -> Any:
            if name in frozen:
                return frozen[name]
            return held[name].mean(axis=0) if agent is None else held[name][agent]

        return jax.tree.unflatten(jax.tree.structure(like), [leaf(name) for name in names_of(like)])

    def losses(self, params: Params, batch: Batch, key: Key | None = None) -> jax.Array:
        """What the user's loss says of a batch: one loss a sample or their mean."""
        batch = self.transformed(batch, key)
        out = with_fast_convolutions(self.loss)(self.whole(params), batch, key)
        return without_buffers(out) if self.renews else out

    def transformed(self, batch: Batch, key: Key | None) -> Batch:
        """The batch as training sees it; with its own randomness, so that the loss has the same as ever."""
        if key is None or self.transform is None:
            return batch
        return self.transform(batch, jax.random.fold_in(key, TRANSFORM_STREAM))

    def renewed(self, params: Params, batch: Batch, key: Key) -> Params:
        """The same parameters with the buffers that the loss returns for this batch."""
        assert self.kinds is not None
        batch = self.transformed(batch, key)
        return self.kinds.renewed(params, with_fast_convolutions(self.loss)(self.whole(params), batch, key)[1])

    def batch_loss(self, params: Params, batch: Batch, key: Key | None = None) -> jax.Array:
        """The mean loss over a batch."""
        return jnp.mean(self.losses(params, batch, key))

    def sample_losses(self, params: Params, batch: Batch, key: Key | None = None) -> jax.Array:
        """One loss per sample, also where the user's loss only gives the mean."""
        if self.per_sample:
            return self.losses(params, batch, key)
        alone = jax.tree.map(lambda leaf: leaf[:, None], batch)
        return jax.vmap(lambda sample: self.losses(params, sample, key))(alone)

    def weighted_loss(self, params: Params, batch: Batch, weights: jax.Array, key: Key | None = None) -> jax.Array:
        """Σ weights·losses over a batch, without the losses of single samples where the loss can do without."""
        if isinstance(self.loss, WeightedLoss):
            own = self.loss.weighted(self.whole(params), self.transformed(batch, key), weights, key)
            return own.astype(weights.dtype)
        return jnp.vdot(weights, self.sample_losses(params, batch, key).astype(weights.dtype))

    def objective(self, params: Params) -> jax.Array:
        """f at one parameter vector, over every agent's samples (or the first `eval_samples` of each)."""
        if self.eval_samples is not None:
            slots = jnp.arange(self.eval_samples)
            held = jnp.minimum(self.sizes, self.eval_samples)[:, None]  # an agent may have fewer
            rows = (self.offsets[:, None] + jnp.minimum(slots, held - 1)).reshape(-1)
            some = self.take(rows)
            weights = jnp.where(slots < held, 1.0 / (self.num_agents * jnp.asarray(held, float)), 0.0)
            weights = weights if self.scales is None else weights * self.scales[:, None]
            return weighted_total(self.weighted_loss, params, some, weights.reshape(-1), self.eval_batch)
        if self.together:
            return self.batch_loss(params, everything(self._all()))

        agent_of = jnp.repeat(jnp.arange(self.num_agents), self.sizes, total_repeat_length=self.num_samples)
        weights = 1.0 / (self.num_agents * jnp.asarray(self.sizes, float)[agent_of])
        weights = weights if self.scales is None else weights * self.scales[agent_of]
        return weighted_total(self.weighted_loss, params, self._all(), weights, self.eval_batch)

    @property
    def together(self) -> bool:
        """Whether f is the loss of all samples as one batch."""
        alike = self.min_size == self.max_size and self.scales is None and not self.personal
        return alike and self.eval_samples is None and self.num_samples <= self.eval_batch

    def _all(self) -> Any:
        return self.take(jnp.arange(self.num_samples)) if self.streams else self.data

    def own_objective(self, params: Params, agents: jax.Array) -> jax.Array:
        """Σ over these agents of qᵢ·fᵢ, each at a model of its own: `params` has their local leaves leading."""
        most = self.max_size if self.eval_samples is None else self.eval_samples
        slots = jnp.arange(most)

        def one(given):
            local, agent = given
            size = jnp.minimum(self.sizes[agent], most)
            rows = self.offsets[agent] + jnp.minimum(slots, size - 1)
            share = jnp.where(agent < self.num_agents, 1.0, 0.0) / (self.num_agents * jnp.asarray(size, float))
            share = share if self.scales is None else share * self.scales[agent]
            own, weights = local.filled(params), jnp.where(slots < size, share, 0.0)
            return weighted_total(self.weighted_loss, own, self.take(rows), weights, self.eval_batch)

        # Checkpointed: the backward pass keeps the activations of one agent at a time.
        return lax.map(jax.checkpoint(one), (params.keep((LOCAL, LOCAL_BUFFERS)), agents)).sum()

    @property
    def columns(self) -> dict[str, Metric]:
        """What a run measures, by column of its history: costs aside, all that can be a target."""
        ours = {name: metric for name, metric in METRICS.items() if metric.of not in (COST, TEST)}
        return ours | {metric.column: metric for metric in self.metrics}

    def with_metrics(self, *metrics: Metric) -> Problem:
        """The same problem with more to measure."""
        more = copy.copy(self)
        more.metrics = as_metrics([*self.metrics, *metrics])
        check_metrics(more)
        return more

    def weighted(self, weights: Sequence[float] | str | None) -> Problem:
        """The same problem with other weights of the agents."""
        return self._counting(scales_of(weights, np.asarray(self.sizes)))

    def parted(self, parts: Mapping[str, Any]) -> Problem:
        """The same problem with leaves that are frozen, local or buffers, as `parts` of `Problem` says."""
        if self.kinds is not None:
            raise InputError(f"the problem {self.name!r} says itself which parts its model has; leave out parts")
        other = copy.copy(self)
        other._divide(parts)
        other.per_sample, other.convolves = check_loss(other)
        check_alone(other, before=self)
        check_metrics(other)
        return other

    def scaled(self, scale: float | None) -> Problem:
        """The part of one agent, whose loss others weigh; None leaves it as it is."""
        return self._counting(self.scales if scale is None else jnp.full(self.num_agents, scale))

    def _counting(self, scales: Any) -> Problem:
        other = copy.copy(self)
        other.scales = scales
        check_alone(other, before=self)
        return other

    def private(self, privacy: Privacy | None, *, noise: Any = None, secret: Any = None) -> Problem:
        """The same problem with private gradients, or with plain ones; `noise` is what an ε came to."""
        other = copy.copy(self)
        other._protect(privacy, noise)
        if other.protection is not None:
            other.protection = other.protection._replace(secret=secret)
        return other

    def _protect(self, privacy: Privacy | None, noise: Any = None) -> None:
        if privacy is not None and not isinstance(privacy, Privacy):
            raise InputError(f"privacy is {privacy!r}, expected pisco.Privacy(clip=1.0, noise=1.0)")
        if privacy is not None and self.renews:
            raise InputError("buffers are made of whole batches, which no noise hides; drop privacy, or the buffers")
        self.privacy = privacy
        self.protection: Protection | None = None if privacy is None else privacy.protection(self.num_agents, noise)

    def _repr_html_(self) -> str:
        shapes = jax.tree.leaves(self.params_like)
        facts: dict[str, Any] = {"agents": self.num_agents, "parameters": f"{sum(x.size for x in shapes):,}"}
        facts |= {"samples": f"{self.num_samples:,}", "samples of an agent": span(self.min_size, self.max_size)}
        return card(f"Problem: {self.name}", facts | {"samples in a measurement": f"{self.num_measured:,}"})

    def __repr__(self) -> str:
        return f"Problem({self.name}: {plural(self.num_agents, 'agent')}, {plural(self.num_samples, 'sample')})"

    def tree_flatten(self):
        start, drawn = (None, self.start) if self.draws_start else (self.start, None)
        children = [start if name == "start" else getattr(self, name) for name in _TRACED]
        return children, (drawn, *(getattr(self, name) for name in _FIXED))

    @classmethod
    def tree_unflatten(cls, aux, children):
        self, (drawn, *fixed) = object.__new__(cls), aux
        vars(self).update(zip((*_TRACED, *_FIXED), (*children, *fixed), strict=True))
        if self.draws_start:
            self.start = drawn
        return self


def scales_of(weights: Sequence[float] | str | None, sizes: Any) -> jax.Array | None:
    """n·qᵢ, by which every agent's loss is multiplied: then W, J and whatever keeps a mean stay as they are."""
    if weights is None:
        return None
    if isinstance(weights, str):
        choose("weights", weights, {"samples": 1})
        weights = np.asarray(sizes) / np.sum(sizes)
    try:
        given = np.asarray(weights, float)
    except (TypeError, ValueError):
        raise InputError(f'weights is {weights!r}, expected a number for every agent, or "samples"') from None
    if given.shape != (len(sizes),):
        raise InputError(f"weights has shape {given.shape}, expected a number for each of the {len(sizes)} agents")
    for agent, value in enumerate(given):
        if not 0 <= value < np.inf:
            raise InputError(f"weights[{agent}] is {value:g}, expected a number that is not negative")
    if abs(given.sum() - 1) > 1e-6:
        raise InputError(f"weights add up to {given.sum():g}, expected 1; divide each by that")
    return jnp.asarray(len(sizes) * given / given.sum())
