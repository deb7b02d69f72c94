"""What a cell is run on: the problem of a task, and the network with what a method asks of it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from pisco.algorithms.registry import ALGORITHMS, build
from pisco.costs import uncounted
from pisco.data.dataset import Dataset
from pisco.data.partition import PARTITIONS
from pisco.data.registry import load as load_dataset
from pisco.engines.job import check_needs
from pisco.errors import InputError, check_counts, check_number, choose
from pisco.experiments.bench.suite import Place, Task
from pisco.metrics import STATE, Metric
from pisco.networks.graphs import by_name
from pisco.networks.network import Network
from pisco.networks.schedules import SCHEDULES, bernoulli
from pisco.problems.classifier import classifier
from pisco.problems.problem import Problem
from pisco.problems.registry import PROBLEMS
from pisco.registry import fit, label, options
from pisco.types import Algorithm, Key, Params

# ----------------------------------------------------------------------------------------------- problems


def least_squares(
    *, agents: int, samples: int = 40, features: int = 20, condition: float = 30.0, spread: float = 1.0, seed: int = 0
) -> Problem:
    """fᵢ(x) = mean of ½(aᵀx − b)² over an agent's samples, with an optimum of its own; `gap` is f(x̄) − f(x*).

    The largest curvature of f is 1, and so is f(0) − f(x*).
    """
    check_counts(samples=samples, features=features)
    check_number("condition", condition, low=1)
    check_number("spread", spread, low=0)
    random = np.random.default_rng(seed)
    scales = np.geomspace(1, condition**-0.5, features)
    a = random.normal(size=(agents, samples, features)) * scales * random.uniform(0.5, 1.5, (agents, 1, features))
    a /= np.sqrt(np.linalg.eigvalsh(_curvature(a))[-1])
    own = random.normal(size=features) / scales + spread * random.normal(size=(agents, features)) / scales
    b = np.einsum("nmd,nd->nm", a, own) + 0.1 * random.normal(size=(agents, samples))
    curvature = _curvature(a)
    best = np.linalg.solve(curvature, np.einsum("nmd,nm->d", a, b) / (agents * samples))
    far = np.sqrt(best @ curvature @ best / 2)
    best, b = best / far, b / far

    def gap(state: Any, here: Any) -> jax.Array:
        away = here.mean(state.params) - jnp.asarray(best, state.params.dtype)
        return 0.5 * away @ jnp.asarray(curvature, away.dtype) @ away

    start = jnp.zeros(features)
    data = {"a": a.astype(np.float32), "b": b.astype(np.float32)}
    metric = Metric("gap", gap, rising=False, of=STATE, log=True, title="f(x̄) − f(x*)")
    return Problem(_squares, start, data, name="least squares").with_metrics(metric)


def _curvature(a: np.ndarray) -> np.ndarray:
    return np.einsum("nmd,nme->de", a, a) / (a.shape[0] * a.shape[1])


def _squares(params: jax.Array, batch: Any, key: Any) -> jax.Array:
    return 0.5 * (batch["a"] @ params - batch["b"]) ** 2


@dataclass(frozen=True)
class _Tables:
    """Logits of the next character: scale × (a table for every place before it + c); the scale is one of step sizes."""

    scale: float

    def __call__(self, params: Params, features: jax.Array, key: Key | None) -> jax.Array:
        tables = params["w"]
        seen = jax.nn.one_hot(features, tables.shape[1], dtype=tables.dtype)
        return self.scale * (jnp.einsum("spc,pck->sk", seen, tables) + params["c"])


def next_character(
    dataset: Dataset, *, agents: int, partition: Any = "by_group", partition_options: Any = None, scale: float = 3.0
) -> Problem:
    """Softmax over the next character, a table for every place before it: convex, from zero."""
    places, known = dataset.features.shape[1], int(dataset.features.max()) + 1
    outputs = len(np.unique(dataset.labels))
    return classifier(
        _Tables(float(scale)),
        {"w": jnp.zeros((places, known, outputs)), "c": jnp.zeros(outputs)},
        dataset,
        agents=agents,
        partition=partition,
        partition_options=partition_options,
        eval_batch=10_000,
        name="next character",
    )


OWN: dict[str, Callable[..., Problem]] = {"least-squares": least_squares, "next-character": next_character}
"""Problems of the suites beside those that have a name in experiment files."""


def problem_of(task: Task, agents: int) -> Problem:
    """The problem of a task for so many agents; data that is not here is an `InputError`."""
    factory: Any = OWN.get(task.problem) or PROBLEMS[task.problem]
    takes, given = options(factory), dict(task.options) | {"agents": agents}
    if "dataset" in takes:
        if task.dataset is None:
            raise InputError(f"tasks.{task.name} lacks dataset; {task.problem} needs one, as in dataset = 'a9a'")
        given["dataset"] = reduced(load_dataset(task.dataset, **task.dataset_options), task.samples, task.pixels)
        given |= {} if task.partition is None else {"partition": task.partition}
        given |= {"partition_options": dict(task.partition_options)} if task.partition_options else {}
    return factory(**fit(f"problem {label(task.problem)!r}", takes, given))


def reduced(dataset: Dataset, samples: int | None, pixels: int = 1) -> Dataset:
    """Some samples, drawn once and for all, half as many for testing, and every so many-th row and column of images."""
    changes: dict[str, Any] = {}
    for part, most in (("", samples), ("test_", None if samples is None else samples // 2)):
        features, labels = getattr(dataset, f"{part}features"), getattr(dataset, f"{part}labels")
        if features is None:
            continue
        kept = np.arange(len(labels))
        if most is not None and most < len(kept):
            kept = np.sort(np.random.default_rng(0).permutation(len(labels))[:most])
        across = (slice(None), slice(None, None, pixels), slice(None, None, pixels))[: features.ndim]
        changes |= {f"{part}features": features[kept][across if pixels > 1 else ...], f"{part}labels": labels[kept]}
        if not part and dataset.groups is not None:
            changes["groups"] = dataset.groups[kept]
    if "test_labels" in changes:  # a label that is only met in testing can be learnt from nobody
        known = np.isin(changes["test_labels"], changes["labels"])
        changes |= {name: changes[name][known] for name in ("test_features", "test_labels")}
    return replace(dataset, **changes)


# ----------------------------------------------------------------------------------------------- networks


def graph_of(table: Mapping[str, Any]) -> Any:
    """The graph of a network's table: a family with its options, or a function of networkx that takes none."""
    if "networkx" in table:
        import networkx

        factory = getattr(networkx, str(table["networkx"]), None)
        if factory is None:
            raise InputError(f"networkx has no {table['networkx']!r}; name a graph, as in 'karate_club_graph'")
        return factory()
    given = {name: value for name, value in table.items() if name not in ("graph", "weights")}
    return by_name(str(table.get("graph")), **given)


class Variant(NamedTuple):
    """One way to run a method on a network: the network with its server's schedule, and p where there is a coin."""

    network: Network
    server_prob: float | None
    build: Callable[[float], Algorithm]
    """The algorithm, by its step size."""


def variants(place: Place, graph: Any, problem: Problem) -> tuple[list[Variant], list[str]]:
    """Every p at which a method can run there, or the schedule it is published with; and what was refused, and why.

    The graph is the suite's; what a method says of the server, of its weights and of who reports is its own.
    """
    row, judging = ALGORITHMS[place.method], place.task.judging
    weights = row.network.get("weights") or place.table.get("weights", "metropolis")
    if "server" in row.network:
        schedule = SCHEDULES[row.network["server"]]
        taken = {name: row.network[name] for name in options(schedule) if name in row.network}
        coins: list[tuple[Any, float | None]] = [(schedule(**taken), None)]
    else:
        coins = [(bernoulli(p), p) for p in judging.server_probs]
    fixed, found, refused = _fixed(place, problem), [], []
    for schedule, p in coins:
        own = {"server_prob": p} if p and "server_prob" in row.hyperparameters else {}

        def rule(lr: float, own: Mapping[str, Any] = own) -> Algorithm:
            return build(place.method, local_lr=lr, **fixed, **own)

        try:
            network = Network(graph, weights=weights, server=schedule).used_as(row.network)
            check_needs(rule(1.0), network)
            if network.gossip_steps == 0 and network.server.never_reached:
                raise InputError(f"{label(place.method)} at p = 0 sends nothing; let it reach the server")
            if network.problem_with_reach:
                raise InputError(network.problem_with_reach)
            found.append(Variant(network, p, rule))
        except InputError as error:
            refused.append(str(error))
    return found, list(dict.fromkeys(refused))


def _fixed(place: Place, problem: Problem) -> dict[str, Any]:
    """Hyperparameters beside the step size; as many local steps as give the suite's number of gradients a round."""
    known, wanted = ALGORITHMS[place.method].hyperparameters, place.task.judging.gradient_steps
    given = dict(place.options)
    if "local_steps" in known and "local_steps" not in given:
        trial = build(place.method, local_lr=1.0, **given, local_steps=wanted)
        given["local_steps"] = wanted - uncounted(trial, problem.params_like, wanted)
    return given


def check_names(task: Task) -> None:
    """Refuse a problem or a partition that is not known; data may be on another machine."""
    try:
        _ = task.problem in OWN or PROBLEMS[task.problem]
        _ = task.partition is None or PARTITIONS[task.partition]
    except InputError as error:
        raise InputError(f"tasks.{task.name}: {error}") from error


def check_target(task: Task, problem: Problem) -> None:
    """Refuse a target that the problem does not measure."""
    from pisco.metrics import METRICS
    from pisco.targets import Target

    try:
        Target.of(*task.target, METRICS | problem.columns)
        known = problem.columns | {"grad_norm_sq_mean": 1, "grad_norm_sq": 1, "loss": 1}
        choose("measured column", task.target[0], known)
    except InputError as error:
        raise InputError(f"tasks.{task.name}: {error}") from error
