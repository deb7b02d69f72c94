"""`pisco.run`: an algorithm, a problem and a network become a result."""

from __future__ import annotations

import os
import warnings
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence, Sized
from dataclasses import replace
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.core import Tracer

from pisco.clock import Clock
from pisco.engines.agents import about_agents
from pisco.engines.debug import DebugEngine
from pisco.engines.driver import Outcome, Progress, drive
from pisco.engines.job import Engine, Job, Run, check_kinds
from pisco.engines.progress import Follower, followed
from pisco.engines.scan import ScanEngine
from pisco.engines.sharded import ShardedEngine
from pisco.engines.sizes import usual_eval_every
from pisco.errors import InputError, choose
from pisco.metrics import by_column
from pisco.networks.network import Network
from pisco.networks.schedules import Schedule
from pisco.problems.problem import Problem
from pisco.results import Result
from pisco.types import Algorithm

ENGINES: dict[str, Callable[[], Engine]] = {"scan": ScanEngine, "debug": DebugEngine, "sharded": ShardedEngine}

SEEDS_UP_TO = 100_000
WATCHED_UP_TO = 20
"""Points of a sweep whose agents are looked at one by one."""


def run(
    algorithm: Algorithm,
    problem: Problem,
    network: Network,
    *,
    rounds: int,
    batch_size: int | None = None,
    seed: int | Sequence[int] = 0,
    eval_every: int | None = None,
    engine: str | Engine = "scan",
    chunk_rounds: int = 100,
    checkpoint: str | Path | None = None,
    resume: bool = False,
    progress: bool | Callable[[Progress], None] | None = None,
    clock: Clock | str | Path | Mapping[str, Any] | None = None,
) -> Result:
    """Train `problem` with `algorithm` over `network`.

    Args:
      algorithm: such as `pisco.algorithms.pisco(local_lr=0.3, local_steps=1)`.
      problem: loss and data of every agent.
      network: graph, weights and server schedule.
      rounds: communication rounds.
      batch_size: samples per gradient, drawn with replacement; None takes all of an agent's samples.
      seed: one seed, or several: then every array of the result leads with the seeds.
      eval_every: rounds between two measurements (round 0 and the last one are always measured); None measures as
        often as looks at no more samples than training does (`pisco.engines.sizes.usual_eval_every`).
      engine: "scan" (compiled, the default), "sharded" (all devices of all processes), "debug" (plain
        Python), or an engine object.
      chunk_rounds: rounds between two looks from Python: progress, checkpoints, Ctrl-C.
      checkpoint: a folder to keep checkpoints in.
      resume: continue from the newest checkpoint there, if there is one.
      progress: True shows the rounds and the loss, in a terminal and in a notebook; a function is called with a
        `Progress` after every chunk.
      clock: how long gradients and messages take, for the column `seconds`: a `Clock`, a preset ("datacenter",
        "campus", "continents", "phones"), a JSON or TOML file, or a table of its fields.

    Divergence is no error: see `Result.diverged_at`. After Ctrl-C the rounds so far come back with
    `Result.interrupted` set; a loop over runs ends by `Result.asked_to_stop`, as a run may have been at its end.

    >>> import pisco
    >>> problem = pisco.problems.quadratic([[[1.0]], [[1.0]]], [[0.0], [2.0]])
    >>> result = run(pisco.algorithms.dsgd(local_lr=0.1), problem, pisco.Network.path(2), rounds=50, seed=[0, 1])
    >>> result.history["loss"].shape
    (2, 51)
    """
    alone = isinstance(seed, int | np.integer)
    check_kinds(algorithm=algorithm, problem=problem, network=network)
    if eval_every is None:
        eval_every = usual_eval_every(algorithm, problem, network, batch_size)
    runs = _runs([(algorithm, network.server)], [seed] if alone else seed)
    return _run(
        Job(problem, network, runs, batch_size),
        engine,
        progress,
        alone=alone,
        rounds=rounds,
        eval_every=eval_every,
        chunk_rounds=chunk_rounds,
        checkpoints=_folder(checkpoint),
        resume=resume,
        clock=None if clock is None else Clock.of(clock),
    )[0]


def sweep(
    points: Sequence[tuple[Algorithm, Schedule]],
    problem: Problem,
    network: Network,
    *,
    rounds: int,
    batch_size: int | None = None,
    seeds: Sequence[int] = (0,),
    eval_every: int | None = None,
    engine: str | Engine = "scan",
    chunk_rounds: int = 100,
    progress: bool | Callable[[Progress], None] | None = None,
    clock: Clock | str | Path | Mapping[str, Any] | None = None,
) -> list[Result]:
    """Many runs of one program: every (algorithm, server schedule) with every seed, one result per point.

    Points may differ in step sizes and probabilities, not in structure (local steps, kind of schedule).

    >>> import pisco
    >>> problem = pisco.problems.quadratic([[[1.0]], [[1.0]]], [[0.0], [2.0]])
    >>> points = [(pisco.algorithms.dsgd(local_lr=0.1), pisco.bernoulli(p)) for p in (0.1, 0.9)]
    >>> [r.history["server_rounds"][0, -1] for r in sweep(points, problem, pisco.Network.path(2), rounds=20)]
    [np.int64(3), np.int64(18)]
    """
    points = list(points) if isinstance(points, Iterable) else [points]
    for point in points:
        if not (isinstance(point, tuple) and len(point) == 2 and hasattr(point[1], "decide")):
            raise InputError(
                f"the point {point!r} is no pair of an algorithm and a schedule, as in (pisco(…), bernoulli(0.1))"
            )
        check_kinds(algorithm=point[0], problem=problem, network=network)
    if not points:
        raise InputError("there is nothing to run; give at least one point, as in [(pisco(…), bernoulli(0.1))]")
    if eval_every is None:
        eval_every = usual_eval_every(points[0][0], problem, network.with_server(points[0][1]), batch_size)
    job = Job(problem, network, _runs(points, seeds), batch_size)
    options: Any = {"rounds": rounds, "eval_every": eval_every, "chunk_rounds": chunk_rounds}
    options["clock"] = None if clock is None else Clock.of(clock)
    return _run(job, engine, progress, len(points), **options)


def _runs(points: Sequence[tuple[Algorithm, Schedule]], seeds: Any) -> tuple[Run, ...]:
    """Every point with every seed, point by point."""
    if isinstance(seeds, str) or not isinstance(seeds, Iterable) or getattr(seeds, "ndim", 1) != 1:
        raise InputError(f"seed is {seeds!r}, expected a whole number or several, as in [0, 1, 2]")
    if isinstance(seeds, Sized) and len(seeds) > SEEDS_UP_TO:
        raise InputError(f"{len(seeds):,} seeds are too many for one call; give at most {SEEDS_UP_TO:,}")
    seeds = list(seeds)
    for seed in seeds:
        if isinstance(seed, bool) or not isinstance(seed, int | np.integer):
            raise InputError(f"seed is {seed!r}, expected a whole number")
    for seed, times in Counter(seeds).items():
        if times > 1:
            raise InputError(f"seed {seed} is given {times} times; give different ones, as in [0, 1, 2]")
    if len({jax.tree.structure(algorithm) for algorithm, _ in points}) > 1:
        points = [(algorithm.opened(), server) for algorithm, server in points]
    return tuple(Run(algorithm, server, int(seed)) for algorithm, server in points for seed in seeds)


def _run(
    job: Job,
    engine: str | Engine,
    progress: bool | Follower | None,
    points: int = 1,
    alone: bool = False,
    **options: Any,
) -> list[Result]:
    """One result per point; alone, without a leading axis for its one seed."""
    traced = jax.tree.leaves(([run.algorithm for run in job.runs], jnp.zeros(())))  # whatever is made inside `jit`
    if any(isinstance(leaf, Tracer) for leaf in traced):
        raise InputError("a run cannot be part of jax.jit, vmap or grad; for many step sizes use pisco.sweep")
    each, known = len(job.runs) // points, about_agents(job.problem, job.network)

    def result(outcome: Outcome, point: int) -> Result:
        own, frames = slice(point * each, (point + 1) * each), outcome.frames
        first, which = job.runs[own][0], 0 if alone else own
        algorithm, seen = first.algorithm, {}
        guard, named = job.network.guard, []
        if guard is not None and outcome.names:
            kept = (jax.tree.map(lambda leaf, i=i: leaf[i], outcome.names) for i in range(own.start, own.stop))
            named = [names.told(guard) for names in kept]
        if frames and point < frames["frame_errors"].shape[1]:
            seen = frames | {"frame_errors": frames["frame_errors"][:, point]}
        return Result(
            params=jax.tree.map(lambda leaf: leaf[which], outcome.params),
            history={name: values[which] for name, values in outcome.history.items()},
            seeds=tuple(run.seed for run in job.runs[own]),
            settings={
                "algorithm": {"name": algorithm.name} | algorithm.hyperparameters,
                "problem": job.problem.name,
                "network": repr(job.network.with_server(first.server)),
                "run": {name: options[name] for name in ("rounds", "eval_every")} | {"batch_size": job.batch_size},
            }
            | ({} if options["clock"] is None else {"clock": options["clock"].facts()})
            | outcome.facts,
            diverged_at=outcome.diverged_at[which],
            rounds=outcome.done,
            interrupted=outcome.interrupted,
            asked_to_stop=outcome.asked_to_stop,
            seconds=outcome.seconds,
            agents=known | seen,
            metrics=by_column(job.problem.metrics),
            named=named[0] if alone and named else named,
        )

    if job.runs[0].algorithm.caution and job.batch_size is not None:
        warnings.warn(job.runs[0].algorithm.caution, stacklevel=3)
    with followed(progress, options["rounds"], job.problem.name) as follower:

        def tell(news: Progress) -> None:
            assert follower is not None
            follower(replace(news, so_far=lambda: result(news.so_far(), 0)))

        watched = range(0, len(job.runs), each)[:WATCHED_UP_TO]
        outcome = drive(_engine(engine), job, progress=follower and tell, watched=watched, **options)
    return [result(outcome, point) for point in range(points)]


def _folder(checkpoint: Any) -> Path | None:
    if checkpoint is not None and not isinstance(checkpoint, str | os.PathLike):
        raise InputError(f"checkpoint is {checkpoint!r}, expected the path of a folder")
    return None if checkpoint is None else Path(checkpoint)


def _engine(engine: str | Engine) -> Engine:
    if isinstance(engine, str):
        return choose("engine", engine, ENGINES)()
    if isinstance(engine, type) or not hasattr(engine, "advance"):
        raise InputError(f"engine is {engine!r}, expected one of {', '.join(ENGINES)}, or an engine object")
    return engine
