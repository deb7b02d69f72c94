"""Who reports when the server averages: everybody, a uniform sample, or a few agents of every cluster.

The server takes a weighted mean of the reporters and sends it to all. A sampling rule draws the weights, one per agent,
zero for those who do not report. Weights that differ from 1/n make the round's map no longer doubly stochastic, though
unbiased; methods that need mean(Y) = mean(G) refuse it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from pisco.display import plural
from pisco.errors import InputError, check_counts

__all__ = ["Sampling", "sample", "sample_groups"]


class Sampling(NamedTuple):
    """`quota` agents of every group report; a group of n_c agents has weight n_c/n, shared by its reporters."""

    groups: Any  # (n,) the group of every agent
    quotas: Any  # (groups,) how many of a group report
    sizes: Any  # (groups,) how many agents a group has

    def weights(self, key: jax.Array) -> jax.Array:
        """One weight per agent, summing to one.

        >>> w = sample(2, agents=5).weights(jax.random.key(0))
        >>> float(w.sum()), int((w > 0).sum())
        (1.0, 2)
        """
        n = self.groups.shape[0]
        # Rank agents at random within their group: sort by (group, random), then subtract the group's first place.
        noise = jax.random.uniform(key, (n,), jnp.float32)
        order = jnp.lexsort((noise, self.groups))
        starts = jnp.cumsum(self.sizes) - self.sizes
        rank = jnp.zeros(n, jnp.int32).at[order].set(jnp.arange(n, dtype=jnp.int32)) - starts[self.groups]
        sizes, quotas = (jnp.asarray(self.sizes, float), jnp.asarray(self.quotas, float))  # int32 divides in float32
        share = sizes[self.groups] / (n * quotas[self.groups])
        return jnp.where(rank < self.quotas[self.groups], share, 0.0)


def sample(reporters: int, *, agents: int) -> Sampling:
    """`reporters` of the `agents`, uniformly without replacement."""
    check_counts(agents=agents)
    return sample_groups(reporters, groups=[0] * agents)


def sample_groups(reporters: int, *, groups: Sequence[int]) -> Sampling:
    """`reporters` of every group, where `groups[i]` is the group of agent i (0, 1, …)."""
    check_counts(reporters=reporters)
    labels = np.asarray(groups)
    if labels.ndim != 1 or not labels.size or not np.issubdtype(labels.dtype, np.integer):
        raise InputError(f"groups is {groups!r}, expected the group 0, 1, … of every agent")
    sizes = np.bincount(labels) if labels.min() >= 0 else np.zeros(1, int)
    if labels.min() < 0 or not sizes.all():
        raise InputError(f"groups {sorted(set(labels.tolist()))} do not number the clusters 0, 1, … without a gap")
    if reporters > sizes.min():
        least = plural(int(sizes.min()), "agent")
        raise InputError(f"reporters is {reporters}, but a group has only {least}; sample fewer")
    quotas = np.full(len(sizes), int(reporters))
    return Sampling(*(jnp.asarray(a, jnp.int32) for a in (labels, quotas, sizes)))
