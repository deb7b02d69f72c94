"""One cell: a method on a network and a task, tuned, judged, and kept as a file that travels."""

from __future__ import annotations

import hashlib
import json
import math
import warnings
from collections.abc import Callable, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import jax
import numpy as np

from pisco._version import __version__
from pisco.clock import Clock
from pisco.clock.stopwatch import Stopwatch
from pisco.costs import message_sizes
from pisco.engines.driver import Progress
from pisco.engines.job import Job, Run, carry_shapes
from pisco.engines.run import sweep
from pisco.errors import InputError
from pisco.experiments.bench.suite import Place
from pisco.experiments.bench.tasks import Variant, variants
from pisco.experiments.tune import TUNING_SEEDS, Tuned, pick
from pisco.files import atomic_write
from pisco.networks.network import Network
from pisco.networks.schedules import watches_loss
from pisco.problems.problem import Problem
from pisco.registry import is_reference, label
from pisco.results import Result

COLUMNS = ("messages_gossip", "messages_server", "bytes_gossip", "bytes_server", "gradients", "seconds")
"""What is counted at the target beside rounds and server rounds."""

Follow = Callable[[Progress], None] | None


def setting_key(place: Place) -> str:
    """What every method of a task and network shares: cells with the same key can be set side by side.

    Files of yours count with their names and what they hold, wherever they lie: cells travel.
    """
    held: dict[str, str] = {}

    def by_name(path: Path) -> Path:
        held[path.name] = hashlib.sha256(path.read_bytes() if path.is_file() else b"").hexdigest()
        return Path(path.name)

    facts = [__version__, *place.moved(by_name), place.network]
    judging = asdict(place.task.judging)
    judging.pop("server_probs")  # each p is an entry of its own
    return _digest([*facts, judging, *([held] if held else [])])


def key_of(place: Place) -> str:
    """What the cell is computed from; a method in a file of yours counts with its text."""
    text = ""
    if is_reference(place.method):
        text = Path(place.method.rpartition(":")[0]).expanduser().read_text()
    probs = list(place.task.judging.server_probs)
    return _digest([setting_key(place), label(place.method), dict(place.options), probs, text])


def _digest(facts: Any) -> str:
    return hashlib.sha256(json.dumps(facts, sort_keys=True, default=str).encode()).hexdigest()[:16]


def kept(folder: Path, place: Place) -> dict[str, Any] | None:
    """The cell that an earlier run left there, if it is whole and of the same settings."""
    try:
        cell = json.loads((folder / place.file).read_text())
        return cell if cell["key"] == key_of(place) else None
    except (OSError, ValueError, KeyError, TypeError):
        return None


def keep(folder: Path, place: Place, cell: dict[str, Any]) -> None:
    """Write a cell so that a kill at any moment leaves none or a whole one."""
    folder.mkdir(parents=True, exist_ok=True)
    atomic_write(folder / place.file, (json.dumps(cell, separators=(",", ":")) + "\n").encode(), durable=False)


def measure(place: Place, graph: Any, problem: Problem, progress: Follow = None) -> dict[str, Any]:
    """Tune every p on the tuning seeds by the one rule, then run what was picked on the others."""
    task, judging = place.task, place.task.judging
    facts: dict[str, Any] = {"task": task.name, "network": place.network, "method": label(place.method)}
    facts |= {"key": key_of(place), "setting": setting_key(place), "target": list(task.target)}
    try:
        found, refused = variants(place, graph, problem)
    except InputError as error:
        found, refused = [], [str(error)]
    entries: list[dict[str, Any]] = []
    if found:
        network = found[0].network
        facts |= {"agents": network.num_agents, "edges": network.graph.num_edges, "rounds": task.rounds}
        facts |= {"mixing_rate": float(f"{max(network.mixing_rate, 0.0):.6g}")}
        tuned = [_tune(place, variant, problem, progress) for variant in found]
        points = [
            (variant.build(each.local_lr), variant.network.server) for variant, each in zip(found, tuned, strict=True)
        ]
        # What a schedule decides that watches the loss is known to the run alone, so that one is timed as it runs.
        timed = watches_loss(network.server) and not network.splits_rounds
        clock = judging.clock if timed else None
        results = _sweep(points, place, found[0], problem, range(judging.seeds), progress, clock)
        sizes = _sizes(found[0], problem)
        for point, result in zip(points, results, strict=True):
            _add_seconds(result, point, network, sizes, judging.clock)
        facts |= {"share_sent": round(sum(sizes.sent) / max(1, sum(sizes.whole)), 4), "exchanges": len(sizes.sent)}
        facts |= {"gradients_a_round": sizes.gradients}
        entries = [_entry(*each, place) for each in zip(found, tuned, results, strict=True)]
    device = jax.devices()[0].device_kind
    return facts | {"refused": refused, "entries": entries, "seeds": judging.seeds, "device": device}


def _tune(place: Place, variant: Variant, problem: Problem, progress: Follow) -> Tuned:
    """The step size that `tune.RULE` picks."""
    judging = place.task.judging
    seeds = range(TUNING_SEEDS[0], TUNING_SEEDS[0] + judging.tuning_seeds)
    points = [(variant.build(lr), variant.network.server) for lr in judging.grid]
    results = _sweep(points, place, variant, problem, seeds, progress)
    return pick(judging.grid, results, dict([place.task.target]))


def _sizes(variant: Variant, problem: Problem) -> Any:
    run = Run(variant.build(1.0), variant.network.server, 0)
    job = Job(problem, variant.network, (run,), None)
    return message_sizes(run.algorithm, carry_shapes(job).state.params, problem.num_agents)


def _sweep(
    points: Sequence[Any],
    place: Place,
    variant: Variant,
    problem: Problem,
    seeds: Sequence[int],
    progress: Follow,
    clock: Any = None,
) -> list[Result]:
    """All points with all seeds; on an accelerator in batches of one size: tuning and judging share a program."""
    task, judging = place.task, place.task.judging
    batch = len(points)
    if jax.default_backend() != "cpu":
        both = math.lcm(judging.seeds, judging.tuning_seeds)
        batch = both * math.ceil(len(judging.grid) * judging.tuning_seeds / both) // len(seeds)
    how: dict[str, Any] = {"rounds": task.rounds, "batch_size": task.batch_size, "eval_every": task.eval_every}
    how |= {"chunk_rounds": task.rounds, "seeds": seeds, "progress": progress, "clock": clock}
    found: list[Result] = []
    for begin in range(0, len(points), batch):
        some = list(points[begin : begin + batch])
        full = some + some[-1:] * (batch - len(some))
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", UserWarning)  # cautions for whoever picks a method by hand
            results = sweep(full, problem, variant.network, **how)
        if any(result.asked_to_stop for result in results):
            raise KeyboardInterrupt
        found += results[: len(some)]
    return found


def _add_seconds(result: Result, point: Any, network: Network, sizes: Any, clock: str) -> None:
    """The column of seconds, drawn again from the seeds where the run has not counted them itself.

    None where a schedule decides agent by agent from the loss: who reached the server is not kept of such a run.
    """
    algorithm, server = point
    if watches_loss(server):
        return
    runs = [Run(algorithm, server, seed) for seed in result.seeds]
    watch = Stopwatch(Clock.of(clock), network.with_server(server), runs, sizes)
    result.history["seconds"] = watch.at(result.column("round")[0].tolist())


def _entry(variant: Variant, tuned: Tuned, result: Result, place: Place) -> dict[str, Any]:
    """What the judged seeds had spent when they met the target, or by the end."""
    column, bound = place.task.target
    met = ~np.isnan(result.at_target(column, "round", bound=bound))

    def spent(name: str) -> np.ndarray:
        return np.where(met, result.at_target(column, name, bound=bound), result.final(name).astype(float))

    rounds, server = spent("round"), spent("server_rounds")
    laws: dict[str, Any] = {}
    for name in COLUMNS:
        if name == "seconds":
            laws[name] = _short(spent(name)) if name in result.history else None
        elif name in result.history:
            laws[name] = _law(result, name) or [round(value) for value in spent(name).tolist()]
    grid = [trial.local_lr for trial in tuned.trials]
    return {
        "server_prob": variant.server_prob,
        "schedule": repr(variant.network.server),
        "local_lr": tuned.local_lr,
        "tuning_failed": tuned.failed,
        "at_edge": tuned.local_lr in (grid[0], grid[-1]) and len(grid) > 1,
        "missed": [seed for seed, there in zip(result.seeds, met, strict=True) if not there],
        "round": [int(value) for value in rounds],
        "server_rounds": _law(result, "server_rounds", of=("round",)) or [int(value) for value in server],
        **laws,
    }


def _law(result: Result, name: str, of: Sequence[str] = ("round", "server_rounds")) -> dict[str, list[float]] | None:
    """Whole numbers c with column = c₀ + c₁·rounds + c₂·server rounds in every row of every seed, if there are."""
    columns = [result.column(each).ravel().astype(float) for each in of]
    given = np.stack([np.ones_like(columns[0]), *columns], axis=1)
    values = result.column(name).ravel().astype(float)
    found = np.round(np.linalg.lstsq(given, values, rcond=None)[0])
    return {"law": [int(each) for each in found]} if np.array_equal(given @ found, values) else None


def _short(values: np.ndarray) -> list[float]:
    return [float(f"{value:.4g}") for value in values.tolist()]
