"""Samples that stay where they are, in files or behind `__getitem__`: batches are gathered on the host when needed.

Which samples a batch holds is a hash of (key, agent, slot), so an engine knows them in advance and has them gathered
while the device still works on earlier ones (`engines.feeder`). Without that, they are gathered when asked for.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, Protocol, runtime_checkable

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from pisco.display import plural
from pisco.errors import InputError, brief
from pisco.tree import like_one
from pisco.trouble import Trouble

STREAM_BYTES = 32 << 20
"""About how much of a stream is in memory at once: batches that are used, those gathered ahead, a block measured."""


@runtime_checkable
class Samples(Protocol):
    """An agent's samples one by one: a pytree of numbers or arrays for every index below `len`."""

    def __len__(self) -> int: ...
    def __getitem__(self, index: Any, /) -> Any: ...


class _Arrays:
    """Arrays whose leaves lead with the samples, such as memmaps."""

    def __init__(self, tree: Any):
        self.tree = tree
        lengths = {len(leaf) for leaf in jax.tree.leaves(tree)}
        if len(lengths) != 1:
            raise InputError(f"data has leaves of lengths {sorted(lengths)}, expected one common length")
        self.size = lengths.pop()
        maps = [leaf._mmap for leaf in jax.tree.leaves(tree) if getattr(leaf, "_mmap", None) is not None]
        self.files = [(file, file.size()) for file in maps]

    def gather(self, rows: np.ndarray) -> Any:
        if any(file.size() < size for file, size in self.files):
            raise InputError("a file has become shorter")  # to read behind its end would end the process
        return jax.tree.map(lambda array: np.asarray(array)[rows], self.tree)


class _Items:
    """A data set of single samples: of PyTorch, of Hugging Face, or any with `__len__` and `__getitem__`."""

    def __init__(self, samples: Samples):
        try:
            self.samples, self.size = samples, len(samples)
        except Exception as error:
            raise InputError(f"the length of a data set is not known ({brief(error)}); give it a `__len__`") from error

    def gather(self, rows: np.ndarray) -> Any:
        if (held := len(self.samples)) < self.size:
            raise InputError(f"there are {plural(held, 'sample')} now, and there were {self.size} before")
        many = getattr(self.samples, "__getitems__", None)
        each = [int(row) for row in rows]
        got = many(each) if many is not None else [self.samples[row] for row in each]
        if len(got) != len(each):
            raise InputError(f"it returned {plural(len(got), 'sample')}, expected {len(each)}")

        def stacked(*leaves):
            return np.stack([np.asarray(leaf) for leaf in leaves])

        return jax.tree.map(stacked, *got, is_leaf=lambda value: isinstance(value, list))  # a row of a table


@jax.tree_util.register_static
class Stream:
    """All agents' samples, numbered one agent after the other; a leaf of no tree, the same for every program."""

    def __init__(self, sources: Sequence[Any], order: np.ndarray | None = None, name: str = "the data"):
        self.sources, self.order, self.name = list(sources), order, name
        self.sizes = [source.size for source in self.sources]
        self.ends = np.cumsum(self.sizes)
        self.total = int(self.ends[-1])
        for agent, size in enumerate(self.sizes):
            if not size:
                whose = name if len(self.sources) == 1 else f"agent {agent}'s data"
                raise InputError(f"{whose} have no samples; there must be at least one")
        self.shapes: Any = None
        first = self.gather(np.zeros(1, np.int64))
        self.shapes = like_one(first)
        if not self.sample_bytes:
            raise InputError(f"a sample of {name} holds no numbers; let `__getitem__` return numbers or arrays")
        self.ahead: dict[tuple[int, int], Any] = {}
        self.trouble = Trouble()

    @property
    def sample_bytes(self) -> int:
        """Bytes of one sample."""
        leaves = jax.tree.leaves(self.shapes)
        return sum(math.prod(leaf.shape) * leaf.dtype.itemsize for leaf in leaves)

    def reordered(self, order: np.ndarray) -> Stream:
        """The same samples with other numbers."""
        made = Stream(self.sources, order if self.order is None else self.order[order], self.name)
        made.trouble = self.trouble  # whoever waits looks in one place
        return made

    def gather(self, rows: np.ndarray) -> Any:
        """Samples by number, as arrays of jax's dtypes; whatever goes wrong is one sentence."""
        rows = np.asarray(rows, np.int64)
        rows = rows if self.order is None else self.order[rows]
        owner = np.searchsorted(self.ends, rows, side="right")
        order = np.argsort(owner, kind="stable")
        cuts = np.flatnonzero(np.diff(owner[order])) + 1
        parts = [(own, self._of(int(owner[own[0]]), rows[own])) for own in np.split(order, cuts)]
        if len(parts) == 1:
            return parts[0][1]

        if np.array_equal(order, np.arange(len(rows))):
            return jax.tree.map(lambda *leaves: np.concatenate(leaves), *(made for _, made in parts))

        def joined(*leaves):
            out = np.empty((len(rows), *leaves[0].shape[1:]), leaves[0].dtype)
            for (own, _), leaf in zip(parts, leaves, strict=True):
                out[own] = leaf
            return out

        return jax.tree.map(joined, *(made for _, made in parts))

    def _of(self, agent: int, rows: np.ndarray) -> Any:
        own = rows - (self.ends[agent] - self.sizes[agent])
        whose = self.name if len(self.sources) == 1 else f"agent {agent}'s data"
        try:
            made = jax.tree.map(_canonical, self.sources[agent].gather(own))
        except Exception as error:
            where = f"{self._failing(agent, own)} of {self.sizes[agent]}"
            raise InputError(f"{whose} fail at {where} ({brief(error)}); fix them") from error
        for leaf in jax.tree.leaves(made):
            if (bad := _first_not_finite(leaf)) is not None:
                raise InputError(f"{whose} hold NaN or infinity at sample {own[bad]}; give only finite numbers")
        if self.shapes is None:
            return made
        found = like_one(made)
        if jax.tree.flatten(found) != jax.tree.flatten(self.shapes):
            raise InputError(
                f"{whose} give {_told(found)} at samples {own.min()} to {own.max()}, and gave "
                f"{_told(self.shapes)} before; give all samples one shape and dtype"
            )
        return made

    def _failing(self, agent: int, own: np.ndarray) -> str:
        """The first of these samples that fails alone, too; else where it lies."""
        for row in own:
            try:
                self.sources[agent].gather(np.array([row]))
            except Exception:
                return f"sample {row}"
        return f"samples {own.min()} to {own.max()}"

    def at(self, rows: jax.Array) -> Any:
        """Inside a program: the samples with these numbers."""
        return self._callback(self._rows, rows.shape, rows)

    def batch(self, key: jax.Array, agent: Any, rows: jax.Array) -> Any:
        """Inside a program: the batch of one agent that this key draws, ready where it was gathered ahead."""
        return self._callback(self._ready, rows.shape, rows, jax.random.key_data(key), jnp.asarray(agent, jnp.int32))

    def _callback(self, function: Callable[..., Any], lead: tuple[int, ...], *given: Any) -> Any:
        like = jax.tree.map(lambda leaf: jax.ShapeDtypeStruct((*lead, *leaf.shape), leaf.dtype), self.shapes)
        return jax.pure_callback(function, like, *given, vmap_method="broadcast_all")

    def _rows(self, rows: Any, training: bool = False) -> Any:
        rows = np.asarray(rows)
        try:
            made = self.gather(rows.reshape(-1))
        except InputError as error:
            self.trouble.meet(error, training=training)
            made = jax.tree.map(lambda leaf: np.zeros((rows.size, *leaf.shape), leaf.dtype), self.shapes)
        return jax.tree.map(lambda leaf: leaf.reshape(*rows.shape, *leaf.shape[1:]), made)

    def _ready(self, rows: Any, words: Any, agent: Any) -> Any:
        rows = np.asarray(rows)
        words, agents = np.asarray(words).reshape(-1, 2), np.asarray(agent).reshape(-1)
        found = [self.ahead.get((int(first), int(second))) for first, second in words]
        if any(each is None for each in found):
            return self._rows(rows, training=True)
        agents = np.minimum(agents, len(self.sizes) - 1)  # devices that hold fewer agents than others are filled up
        if len({id(each) for each in found}) == 1:
            every = np.array_equal(agents, np.arange(jax.tree.leaves(found[0])[0].shape[0]))
            made = found[0] if every else jax.tree.map(lambda leaf: leaf[agents], found[0])
        else:
            pairs = list(zip(found, agents, strict=True))
            leaves = [[jax.tree.leaves(tree)[i] for tree, _ in pairs] for i in range(len(jax.tree.leaves(found[0])))]
            stacked = [np.stack([leaf[a] for leaf, a in zip(many, agents, strict=True)]) for many in leaves]
            made = jax.tree.unflatten(jax.tree.structure(found[0]), stacked)
        return jax.tree.map(lambda leaf: leaf.reshape(*rows.shape, *leaf.shape[2:]), made)

    def fingerprint(self) -> Any:
        """A few samples and all sizes: what tells one stream from another without reading it."""
        return self.gather(np.unique([0, self.total // 2, self.total - 1])), np.asarray(self.sizes)


class StreamRows(NamedTuple):
    """Some samples of a stream, not gathered yet."""

    stream: Stream
    rows: jax.Array


def test_rows(test: Any) -> StreamRows | None:
    """All test samples, where they are to stay where they are; None for arrays."""
    if isinstance(test, StreamRows):
        return test
    if not (_is_samples(test) or _on_disk(test)):
        return None
    stream = Stream([_Items(test) if _is_samples(test) else _Arrays(test)], name="the test data")
    return StreamRows(stream, jnp.arange(stream.total))


def everything(data: Any) -> Any:
    """Samples as arrays, gathered where they are not."""
    return data.stream.at(data.rows) if isinstance(data, StreamRows) else data


def piece(data: Any, begin: Any, count: int) -> Any:
    """`count` of the samples from `begin` on."""
    if isinstance(data, StreamRows):
        return data.stream.at(lax.dynamic_slice_in_dim(data.rows, begin, count))
    return jax.tree.map(lambda leaf: lax.dynamic_slice_in_dim(leaf, begin, count), data)


def _canonical(array: np.ndarray) -> np.ndarray:
    if array.dtype.kind in "OSUMm":
        raise InputError(f"samples hold {array.dtype}, expected numbers")
    kept = array.astype(jax.dtypes.canonicalize_dtype(array.dtype), copy=False)
    if array.dtype.kind in "iu" and kept.dtype != array.dtype and (kept != array).any():
        raise InputError(
            f"samples hold {array[kept != array].flat[0]}, which does not fit into {kept.dtype}; renumber them"
        )
    return kept


def _first_not_finite(leaf: np.ndarray) -> int | None:
    """The first row with NaN or infinity."""
    if not jnp.issubdtype(leaf.dtype, jnp.inexact):
        return None
    with np.errstate(over="ignore", invalid="ignore"):
        if np.isfinite(leaf.sum()):  # much quicker than to look at every number
            return None
    rows = np.isfinite(leaf).reshape(len(leaf), -1).all(axis=1)
    return None if rows.all() else int(np.argmin(rows))


def _told(shapes: Any) -> str:
    return ", ".join(f"{leaf.dtype}{leaf.shape}" for leaf in jax.tree.leaves(shapes))


def stream_of(data: Any) -> Stream | None:
    """A stream where data is to stay where it is: data sets of samples, or trees with memmaps; None for arrays."""
    if isinstance(data, list):
        kinds = [_is_samples(part) or _on_disk(part) for part in data]
        if not any(kinds):
            return None
        if not all(kinds):
            raise InputError("some agents' data are arrays and others' are not; give all agents the same kind")
        stream = Stream([_Items(part) if _is_samples(part) else _Arrays(part) for part in data])
    elif _on_disk(data):
        leaves = jax.tree.leaves(data)
        if any(leaf.ndim < 2 or leaf.shape[:2] != leaves[0].shape[:2] for leaf in leaves):
            raise InputError("data needs leaves that lead with the same (agents, samples)")
        agents = leaves[0].shape[0]
        stream = Stream([_Arrays(jax.tree.map(lambda leaf, i=i: leaf[i], data)) for i in range(agents)])
    elif _is_samples(data):
        raise InputError(f"data is one {type(data).__name__}, expected a list with the samples of every agent")
    else:
        return None
    for start in stream.ends[:-1]:
        stream.gather(start[None])  # looks like the first agent's, or a sentence
    return stream


def _is_samples(part: Any) -> bool:
    plain = isinstance(part, np.ndarray | jax.Array | dict | list | tuple | str)
    registered = not jax.tree_util.all_leaves([part])
    return not plain and not registered and isinstance(part, Samples)


def _on_disk(part: Any) -> bool:
    return any(isinstance(leaf, np.memmap) for leaf in jax.tree.leaves(part))
