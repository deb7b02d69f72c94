"""`pisco.run`: an algorithm, a problem and a network become a result."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from pisco.engines.agents import about_agents
from pisco.engines.debug import DebugEngine
from pisco.engines.driver import Outcome, Progress, drive
from pisco.engines.job import Engine, Job, Run
from pisco.engines.scan import ScanEngine
from pisco.engines.sharded import ShardedEngine
from pisco.errors import InputError, choose
from pisco.networks.network import Network
from pisco.networks.schedules import Schedule
from pisco.problems.problem import Problem
from pisco.results import Result
from pisco.types import Algorithm

ENGINES: dict[str, Callable[[], Engine]] = {
    "scan": ScanEngine,
    "debug": DebugEngine,
    "sharded": ShardedEngine,
}


def run(
    algorithm: Algorithm,
    problem: Problem,
    network: Network,
    *,
    rounds: int,
    batch_size: int | None = None,
    seed: int | Sequence[int] = 0,
    eval_every: int = 1,
    engine: str | Engine = "scan",
    chunk_rounds: int = 100,
    checkpoint: str | Path | None = None,
    resume: bool = False,
    progress: Callable[[Progress], None] | None = None,
) -> Result:
    """Train `problem` with `algorithm` over `network`.

    Args:
      algorithm: such as `pisco.algorithms.pisco(local_lr=0.3, local_steps=1)`.
      problem: loss and data of every agent.
      network: graph, weights and server schedule.
      rounds: communication rounds.
      batch_size: samples per gradient, drawn with replacement; None takes all of an agent's samples.
      seed: one seed, or several: then every array of the result leads with the seeds.
      eval_every: rounds between two measurements (round 0 and the last one are always measured).
      engine: "scan" (compiled, the default), "sharded" (all devices of all processes), "debug" (plain
        Python), or an engine object.
      chunk_rounds: rounds between two looks from Python: progress, checkpoints, Ctrl-C.
      checkpoint: a folder to keep checkpoints in.
      resume: continue from the newest checkpoint there, if there is one.
      progress: called after every chunk.

    Divergence is no error: see `Result.diverged_at`. After Ctrl-C the rounds so far come back with
    `Result.interrupted` set.

    >>> import pisco
    >>> problem = pisco.problems.quadratic([[[1.0]], [[1.0]]], [[0.0], [2.0]])
    >>> result = run(pisco.algorithms.dsgd(local_lr=0.1), problem, pisco.Network.path(2), rounds=50, seed=[0, 1])
    >>> result.history["loss"].shape
    (2, 51)
    """
    several = not isinstance(seed, int | np.integer)
    seeds = _seeds(seed if several else [seed])  # pyright: ignore[reportArgumentType]
    _check_kinds(algorithm, problem, network)
    job = Job(problem, network, tuple(Run(algorithm, network.server, s) for s in seeds), batch_size)
    settings = _settings(job, algorithm, network.server, rounds, eval_every)

    def result(outcome: Outcome) -> Result:
        made = _result(outcome, slice(None) if several else 0, settings, seeds)
        return replace(made, agents=about_agents(problem, network, outcome.frames))

    def tell(news: Progress) -> None:
        assert progress is not None
        progress(replace(news, so_far=lambda: result(news.so_far())))

    outcome = drive(
        _engine(engine),
        job,
        rounds=rounds,
        eval_every=eval_every,
        chunk_rounds=chunk_rounds,
        checkpoints=None if checkpoint is None else Path(checkpoint),
        resume=resume,
        progress=None if progress is None else tell,
    )
    return result(outcome)


def sweep(
    points: Sequence[tuple[Algorithm, Schedule]],
    problem: Problem,
    network: Network,
    *,
    rounds: int,
    batch_size: int | None = None,
    seeds: Sequence[int] = (0,),
    eval_every: int = 1,
    engine: str | Engine = "scan",
    chunk_rounds: int = 100,
    progress: Callable[[Progress], None] | None = None,
) -> list[Result]:
    """Many runs of one program: every (algorithm, server schedule) with every seed, one result per point.

    Points may differ in step sizes and probabilities, not in structure (local steps, kind of schedule).

    >>> import pisco
    >>> problem = pisco.problems.quadratic([[[1.0]], [[1.0]]], [[0.0], [2.0]])
    >>> points = [(pisco.algorithms.dsgd(local_lr=0.1), pisco.bernoulli(p)) for p in (0.1, 0.9)]
    >>> [r.history["server_rounds"][0, -1] for r in sweep(points, problem, pisco.Network.path(2), rounds=20)]
    [np.int64(3), np.int64(18)]
    """
    seeds, points = _seeds(seeds), list(points)
    for point in points:
        if not (isinstance(point, tuple) and len(point) == 2 and hasattr(point[1], "decide")):
            raise InputError(
                f"the point {point!r} is no pair of an algorithm and a schedule, as in (pisco(…), bernoulli(0.1))"
            )
        _check_kinds(point[0], problem, network)
    runs = tuple(Run(algorithm, server, seed) for algorithm, server in points for seed in seeds)
    job = Job(problem, network, runs, batch_size)
    outcome = drive(
        _engine(engine),
        job,
        rounds=rounds,
        eval_every=eval_every,
        chunk_rounds=chunk_rounds,
        progress=progress,
    )
    results = []
    for index, (algorithm, server) in enumerate(points):
        which = slice(index * len(seeds), (index + 1) * len(seeds))
        settings = _settings(job, algorithm, server, rounds, eval_every)
        results.append(_result(outcome, which, settings, seeds))
    return results


def _seeds(seeds: Sequence[int]) -> tuple[int, ...]:
    if isinstance(seeds, str) or not isinstance(seeds, Iterable):
        raise InputError(f"seed is {seeds!r}, expected a whole number or several, as in [0, 1, 2]")
    seeds = list(seeds)
    for seed in seeds:
        if isinstance(seed, bool) or not isinstance(seed, int | np.integer):
            raise InputError(f"seed is {seed!r}, expected a whole number")
    return tuple(int(seed) for seed in seeds)


def _check_kinds(algorithm: Any, problem: Any, network: Any) -> None:
    """Refuse what is no algorithm, problem or network: given in another order, say."""
    for name, value, kind, example in (
        ("algorithm", algorithm, Algorithm, "pisco.algorithms.dsgd(local_lr=0.1)"),
        ("problem", problem, Problem, 'pisco.problems.logistic(pisco.data.load("a9a"), agents=10)'),
        ("network", network, Network, "pisco.Network.ring(10)"),
    ):
        if not isinstance(value, kind):
            raise InputError(f"{name} is {value!r}, expected one such as {example}")


def _engine(engine: str | Engine) -> Engine:
    if isinstance(engine, str):
        return choose("engine", engine, ENGINES)()
    if isinstance(engine, type) or not hasattr(engine, "advance"):
        raise InputError(f"engine is {engine!r}, expected one of {', '.join(ENGINES)}, or an engine object")
    return engine


def _settings(
    job: Job, algorithm: Algorithm, server: Schedule, rounds: int, eval_every: int
) -> dict[str, Any]:
    hyperparameters = dict(algorithm.hyperparameters.items())
    return {
        "algorithm": {"name": algorithm.name} | hyperparameters,
        "problem": job.problem.name,
        "network": repr(job.network.with_server(server)),
        "run": {"rounds": rounds, "batch_size": job.batch_size, "eval_every": eval_every},
    }


def _result(outcome: Outcome, which: int | slice, settings: dict[str, Any], seeds: tuple[int, ...]) -> Result:
    import jax

    return Result(
        params=jax.tree.map(lambda leaf: leaf[which], outcome.params),
        history={name: values[which] for name, values in outcome.history.items()},
        seeds=seeds,
        settings=settings,
        diverged_at=outcome.diverged_at[which],
        rounds=outcome.done,
        interrupted=outcome.interrupted,
        seconds=outcome.seconds,
    )
