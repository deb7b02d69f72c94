"""Who holds which samples: ways to split a dataset over agents.

Each function returns a list with one array of sample indices per agent. No sample is given twice and no
agent is left without one. Those that draw at random are deterministic for a seed.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import numpy as np

from pisco.data.dataset import Dataset, check_labels
from pisco.display import plural
from pisco.errors import InputError, check_counts, check_number
from pisco.registry import Registry, options

Parts = list[np.ndarray]


def sorted_even(labels: Any, agents: int) -> Parts:
    """Sort by label and cut into equal runs: the paper's split, as heterogeneous as an even split can be.

    Every agent gets m = N // n samples; the last N - n m of the sorted order are left out.

    >>> [part.tolist() for part in sorted_even([1, -1, 1, -1, 1], agents=2)]
    [[1, 3], [0, 2]]
    """
    labels, agents = _check(labels, agents)
    size = len(labels) // agents
    return list(np.argsort(labels, kind="stable")[: agents * size].reshape(agents, size))


def by_label(labels: Any, agents: int) -> Parts:
    """Give whole classes to agents, or, with fewer classes than agents, runs of agents to classes.

    With C classes and n agents, n <= C: agent i gets the classes i, i + n, i + 2n, ... With n > C: agent i
    gets part of class floor(i C / n), whose samples its agents share evenly.

    >>> [part.tolist() for part in by_label([0, 1, 2, 0, 1, 2], agents=2)]
    [[0, 2, 3, 5], [1, 4]]
    >>> [part.tolist() for part in by_label([1, -1, 1, -1], agents=4)]
    [[1], [3], [0], [2]]
    """
    labels, agents = _check(labels, agents)
    values, ranks = np.unique(labels, return_inverse=True)
    if agents <= len(values):
        return [np.flatnonzero(ranks % agents == agent) for agent in range(agents)]
    holders = np.bincount(np.arange(agents) * len(values) // agents)
    parts = []
    for rank, count in enumerate(holders):
        samples = np.flatnonzero(ranks == rank)
        if len(samples) < count:
            raise InputError(
                f"label {values[rank]} has {plural(len(samples), 'sample')} for its {plural(count, 'agent')}; "
                "use fewer agents or the partition 'sorted'"
            )
        parts += np.array_split(samples, count)
    return parts


def iid(labels: Any, agents: int, seed: int = 0) -> Parts:
    """Shuffle and cut evenly: all agents' data look the same; sizes differ by one at most.

    >>> [len(part) for part in iid([0] * 7, agents=3)]
    [3, 2, 2]
    """
    labels, agents = _check(labels, agents)
    return [np.sort(part) for part in np.array_split(_generator(seed).permutation(len(labels)), agents)]


def dirichlet(labels: Any, agents: int, alpha: float = 0.5, seed: int = 0, min_samples: int = 1) -> Parts:
    """Share out each class in proportions drawn from a Dirichlet distribution: small alpha, uneven shares.

    Agents that end with fewer than `min_samples` samples are given some by those that have most.

    Hsu, Qi and Brown, Measuring the effects of non-identical data distribution for federated visual
    classification, 2019.

    Args:
        labels: label of every sample.
        agents: how many agents share them.
        alpha: concentration, above 0; 0.1 gives most of a class to few agents, 100 is near `iid`.
        seed: of the draw.
        min_samples: the least an agent may hold.

    >>> sum(len(part) for part in dirichlet([0, 1] * 50, agents=4, alpha=0.3))
    100
    """
    labels, agents = _check(labels, agents)
    check_number("alpha", alpha, low=0, open_low=True, high=1e6)
    check_counts(min_samples=min_samples)
    if agents * min_samples > len(labels):
        raise InputError(
            f"{agents} agents with min_samples {min_samples} need {agents * int(min_samples)} samples, but "
            f"there are {len(labels)}; make min_samples at most {len(labels) // agents}"
        )
    generator = _generator(seed)
    hands: list[list[np.ndarray]] = [[] for _ in range(agents)]
    for value in np.unique(labels):
        samples = generator.permutation(np.flatnonzero(labels == value))
        shares = generator.dirichlet(np.full(agents, float(alpha)))
        cuts = np.round(np.cumsum(shares)[:-1] * len(samples)).astype(int)
        for hand, part in zip(hands, np.split(samples, cuts), strict=True):
            hand.append(part)
    parts = [generator.permutation(np.concatenate(hand)) for hand in hands]
    sizes = np.array([len(part) for part in parts])
    while sizes.min() < min_samples:
        poor, rich = int(sizes.argmin()), int(sizes.argmax())
        count = min(int(min_samples) - sizes[poor], (sizes[rich] - sizes[poor]) // 2)
        parts[poor] = np.concatenate([parts[poor], parts[rich][:count]])
        parts[rich] = parts[rich][count:]
        sizes[poor] += count
        sizes[rich] -= count
    return [np.sort(part) for part in parts]


def shards(labels: Any, agents: int, shards_per_agent: int = 2, seed: int = 0) -> Parts:
    """Sort by label, cut into equal shards and deal them out: most agents hold a few labels.

    McMahan et al., Communication-efficient learning of deep networks from decentralized data, 2017. The last
    samples of the sorted order, too few for one more each, are left out.

    >>> labels = np.repeat([0, 1, 2, 3], 10)
    >>> [len(set(labels[part])) <= 2 for part in shards(labels, agents=2)]
    [True, True]
    """
    labels, agents = _check(labels, agents)
    check_counts(shards_per_agent=shards_per_agent)
    count = agents * int(shards_per_agent)
    if count > len(labels):
        raise InputError(
            f"{agents} agents with {shards_per_agent} shards each need {count} samples, but there are "
            f"{len(labels)}; make shards_per_agent at most {len(labels) // agents}"
        )
    size = len(labels) // count
    dealt = np.argsort(labels, kind="stable")[: count * size].reshape(count, size)
    return list(np.sort(_generator(seed).permutation(dealt).reshape(agents, -1), axis=1))


def by_group(labels: Any, agents: int, groups: Any = None) -> Parts:
    """Every agent is one group of the dataset (a person, a hospital, a role): those with the most samples, in order.

    Samples of smaller groups are left out.

    >>> [part.tolist() for part in by_group([0, 1, 0, 1, 0], agents=2, groups=[7, 8, 8, 9, 9])]
    [[1, 2], [3, 4]]
    """
    labels, agents = _check(labels, agents)
    if groups is None:
        raise InputError(
            "the partition 'by_group' needs a dataset that knows groups, as in pisco.data.Dataset(..., groups=...); "
            "choose another partition"
        )
    groups = check_labels("groups", groups)
    if len(groups) != len(labels):
        raise InputError(f"there are {len(labels)} labels and {len(groups)} groups; give one group per sample")
    _, ranks, sizes = np.unique(groups, return_inverse=True, return_counts=True)
    if agents > len(sizes):
        raise InputError(
            f"{agents} agents cannot have one of {len(sizes)} groups each; use at most {len(sizes)} agents"
        )
    largest = np.argsort(-sizes, kind="stable")[:agents]
    members = np.split(np.argsort(ranks, kind="stable"), np.cumsum(sizes)[:-1])
    return [members[group] for group in largest]


def label_counts(labels: Any, parts: Sequence[np.ndarray]) -> np.ndarray:
    """How many samples of each label each agent holds: (agents, classes), labels in increasing order.

    >>> label_counts([0, 1, 0, 1], [[0, 1], [3]])
    array([[1, 1], [0, 1]])
    """
    values, ranks = np.unique(check_labels("labels", labels), return_inverse=True)
    counts = [np.bincount(ranks[np.asarray(part, np.intp)], minlength=len(values)) for part in parts]
    return np.array(counts, np.int64).reshape(len(parts), len(values))


PARTITIONS = Registry[Callable[..., Parts]](
    "partition",
    "pisco.partitions",
    {
        "sorted": sorted_even,
        "by_label": by_label,
        "by_group": by_group,
        "iid": iid,
        "dirichlet": dirichlet,
        "shards": shards,
    },
)


def deal(dataset: Dataset, partition: str | Callable[..., Sequence[Any]], agents: int, **given: Any) -> list[Any]:
    """Split a dataset by a named partition or a function; one that takes `groups` is given the dataset's."""
    rule = PARTITIONS[partition] if isinstance(partition, str) else partition
    if "groups" in options(rule):
        given = {"groups": dataset.groups} | given
    if not isinstance(partition, str):  # what is named is checked as it is called
        try:
            inspect.signature(rule).bind(dataset.labels, agents=agents, **given)
        except TypeError as error:
            raise InputError(
                f"a partition is called as f(labels, agents=…); give yours these arguments ({error})"
            ) from None
    dealt = rule(dataset.labels, agents=agents, **given)
    if not isinstance(dealt, Iterable):
        raise InputError(f"the partition returns {dealt!r}, expected a list with every agent's samples")
    return list(dealt)


def _check(labels: Any, agents: Any) -> tuple[np.ndarray, int]:
    labels = check_labels("labels", labels)
    check_counts(agents=agents)
    if agents > len(labels):
        samples = plural(len(labels), "sample")
        raise InputError(f"{agents} agents cannot share {samples}; use at most {plural(len(labels), 'agent')}")
    return labels, int(agents)


def _generator(seed: Any) -> np.random.Generator:
    check_number("seed", seed, low=0, integer=True)
    return np.random.default_rng(int(seed))
