"""The loop around an engine: chunks, checkpoints, progress and Ctrl-C."""

from __future__ import annotations

import math
import signal
import threading
import time
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from pisco.clock import Clock
from pisco.clock.stopwatch import Stopwatch
from pisco.costs import MessageSizes, message_sizes
from pisco.display import plural
from pisco.engines import checkpoint, private
from pisco.engines.evaluate import check_state_metrics
from pisco.engines.feeder import feeding
from pisco.engines.history import History, diverged_at
from pisco.engines.job import Engine, Job, carry_shapes, even_chunk, next_segment
from pisco.engines.sizes import check_sizes
from pisco.errors import InputError, check_counts, writing
from pisco.metrics import Metric
from pisco.seeds import seed_key, streams
from pisco.tree import like_many
from pisco.trouble import deferring, heeding

CHECKPOINT_SECONDS = 5.0
"""A checkpoint is written after the first chunk, then at most this often, and at the end."""


@dataclass
class Progress:
    """What a caller is told after every chunk."""

    done: int
    rounds: int
    row: dict[str, np.ndarray]  # the newest measurement, one value per run
    measured: int = 0  # and its round
    metrics: tuple[Metric, ...] = ()  # the problem's own
    so_far: Callable[[], Any] = lambda: None
    """Everything by now, put together when called: `drive` gives an `Outcome` without parameters, `run` a `Result`."""


@dataclass
class Outcome:
    """What a job produced; runs lead every array."""

    params: Any
    history: dict[str, np.ndarray]
    diverged_at: list[int | None]
    done: int
    interrupted: bool
    asked_to_stop: bool  # in the last chunk perhaps, when nothing was left to do
    seconds: float
    frames: dict[str, np.ndarray] = field(default_factory=dict)
    names: Any = ()  # whom guards have named, as they are carried
    facts: dict[str, Any] = field(default_factory=dict)
    """Settings that are known only once the run is prepared."""


@contextmanager
def _one_polite_interrupt() -> Iterator[Callable[[], bool]]:
    """The first Ctrl-C only asks to stop after the chunk in flight; the second interrupts at once."""
    asked = threading.Event()
    if threading.current_thread() is not threading.main_thread():
        yield asked.is_set
        return
    before = signal.getsignal(signal.SIGINT)

    def note(number, frame):
        asked.set()
        signal.signal(signal.SIGINT, before)

    signal.signal(signal.SIGINT, note)
    try:
        yield asked.is_set
    finally:
        signal.signal(signal.SIGINT, before)


def _check_folder(folder: Path | None, rounds: int, resume: bool) -> None:
    """Refuse a folder of checkpoints that this run could not use, before anything is computed."""
    if folder is None:
        return
    if folder.exists() and not folder.is_dir():
        raise InputError(f"checkpoint={str(folder)!r} is a file; give a folder")
    newest = checkpoint.newest_round(folder)
    if newest is not None and not resume:
        raise InputError(
            f"{folder} holds checkpoints up to round {newest} of an earlier run; pass resume=True to go on from them, "
            "or give another folder"
        )
    if newest is not None and newest > rounds:
        raise InputError(f"{folder} has got to round {newest} already; give rounds={newest} or more")


def _started(engine: Engine, job: Job) -> tuple[Any, dict[str, np.ndarray]]:
    """The states before the first round, and what is measured of them; a loss that is not finite is refused."""
    with heeding(job.problem.trouble):
        states = engine.start(job)
        row = engine.measure(job, states)
    for run, loss in zip(job.runs, row["loss"], strict=True):
        if not np.isfinite(loss):
            raise InputError(
                f"the loss at the start is {loss} (seed {run.seed}); give a start with a finite one, and samples "
                "without NaN"
            )
    return states, row


def _start_edges(job: Job, sizes: MessageSizes) -> np.ndarray:
    """What a gossip exchange before the first round uses, for every run; not drawn where there is none."""
    if not sizes.start_gossip:
        return np.zeros(len(job.runs), np.int64)
    links = [streams(seed_key(run.seed)).links for run in job.runs]
    return np.asarray([int(job.network.gossip.rule.draw(key, 0)[1]) for key in links], np.int64)


def drive(
    engine: Engine,
    job: Job,
    *,
    rounds: int,
    eval_every: int = 1,
    chunk_rounds: int = 100,
    checkpoints: Path | None = None,
    resume: bool = False,
    progress: Callable[[Progress], None] | None = None,
    watched: Sequence[int] = (0,),
    clock: Clock | None = None,
) -> Outcome:
    """Run a job to its last round, or to Ctrl-C; what was computed is always returned.

    `watched` are the runs whose agents are looked at one by one.
    """
    check_counts(rounds=rounds, eval_every=eval_every, chunk_rounds=chunk_rounds)
    rounds, eval_every, chunk_rounds = int(rounds), int(eval_every), int(chunk_rounds)
    _check_folder(checkpoints, rounds, resume)
    servers = {repr(run.server): run.server for run in job.runs}.values()
    sentences = {job.network.with_server(server).problem_with_reach for server in servers}
    for sentence in filter(None, sentences):
        warnings.warn(sentence, stacklevel=3)
    began = time.perf_counter()
    shapes, chunk_rounds = carry_shapes(job), min(chunk_rounds, rounds)
    check_state_metrics(job.problem, shapes.state)
    masked = job.network.masked
    sizes = message_sizes(job.runs[0].algorithm, shapes.state.params, job.problem.num_agents, masked=masked)
    check_sizes(job, shapes, sizes.gradients, rounds, eval_every, chunk_rounds)
    job, rounds = private.prepared(job, sizes, rounds)
    if checkpoints is not None:
        with writing(checkpoints):
            checkpoints.mkdir(parents=True, exist_ok=True)
    stopwatch = None if clock is None else Stopwatch(clock, job.network, job.runs, sizes)
    chunk = even_chunk(rounds, eval_every, chunk_rounds)

    def description() -> dict[str, Any]:
        return job.description | {"eval_every": eval_every}

    engine.group.check_same(lambda: description() | {"rounds": rounds, "chunk_rounds": chunk, "resume": resume})
    history, done, states = History(len(job.runs), watched), 0, None
    if resume:
        if checkpoints is None:
            raise InputError("resume needs the folder of the checkpoints; pass checkpoint=")
        found = engine.group.latest(checkpoints)
        if found is not None:
            checkpoint.check_job(found.job, description(), checkpoints)
            done, states = found.round, engine.unpack(job, found.state(like_many(shapes, len(job.runs))))
            history.restore(found.history)
            if stopwatch is not None and stopwatch.watches and history.reached.shape[1] < done:
                raise InputError("the checkpoints do not say which rounds reached the server; resume without a clock")
            if done < rounds and done % eval_every and history.rounds[-1] == done:
                history.take_back()
            elif done % eval_every == 0 and history.rounds[-1] != done:  # a stream failed when it was measured
                history.add_row(done, engine.measure(job, states))
    if states is None:
        states, first = _started(engine, job)
        history.start(first)

    def save() -> None:
        assert checkpoints is not None
        try:
            made = checkpoint.Checkpoint(done, description(), history.save(), {})
            engine.group.save(checkpoints, made, engine, states)
        except OSError as error:
            warnings.warn(f"no checkpoint of round {done}: {error}; the run goes on", stacklevel=2)

    start_edges = _start_edges(job, sizes)

    def outcome(params: Any = None, stopped: bool = False, names: Any = ()) -> Outcome:
        columns = history.columns(sizes, start_edges, job.network.presence is not None)
        columns |= {} if stopwatch is None else {"seconds": stopwatch.at(history.rounds, history.reached)}
        columns |= private.epsilons(job, sizes, history.rounds)
        seconds = time.perf_counter() - began
        frames = history.frames.arrays()
        told = private.facts(job)
        early = stopped and done < rounds
        return Outcome(params, columns, diverged_at(columns), done, early, stopped, seconds, frames, names, told)

    saved_at, saved_round, stopping = -math.inf, done, False
    go_on = "" if checkpoints is None else ", and can go on from its last checkpoint"
    polite, watching = _one_polite_interrupt(), deferring(job.problem.trouble)
    with polite as asked_to_stop, watching as failed, feeding(job, shapes) as feeder:
        chunk = chunk if feeder is None else min(chunk, feeder.rounds)
        while done < rounds and not history.hopeless and not stopping:
            segment = next_segment(done, rounds, eval_every, chunk)
            failure = None if feeder is None else feeder.provide(done, segment.rounds, rounds, eval_every, chunk)
            if failure is None:
                states, rows, links = engine.advance(job, states, done, segment)
                try:
                    failure = failed()
                except InputError as error:
                    raise InputError(f"{error}{go_on if saved_round else ''}") from error
                history.add(done, segment.stride, {} if failure else rows, links)
                done += segment.rounds
            if failure is not None:  # what was computed is kept
                if not done:
                    raise failure
                warnings.warn(f"{failure}; the run ends after {plural(done, 'round')}{go_on}", stacklevel=3)
                stopping = True
                break
            if progress:
                newest = (history.rows[-1], history.rounds[-1])
                progress(Progress(done, rounds, *newest, job.problem.metrics, outcome))
            due = checkpoints is not None and time.monotonic() - saved_at > CHECKPOINT_SECONDS
            stopping, due = engine.group.agree(asked_to_stop(), due)
            if due:
                save()
                saved_at, saved_round = time.monotonic(), done
        if checkpoints and saved_round != done:
            save()

    last = engine.pack(states)
    return outcome(last.state.params, stopped=stopping, names=last.names)
