"""The point of semi-decentralized learning in one picture: a few server rounds save most of the gossip.

PISCO on a9a, sorted by label over a ring of 10 with FDLA weights, T_o = 1, batches of 256: the paper's first
experiment, for five probabilities p of reaching the server.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from pisco import algorithms
from pisco.data.registry import load as load_dataset
from pisco.display import plural
from pisco.engines.driver import Progress
from pisco.engines.run import sweep
from pisco.metrics import METRICS
from pisco.networks.network import Network
from pisco.networks.schedules import bernoulli
from pisco.problems.logistic import logistic
from pisco.report.panels import Bars, Curve, Level, Panel
from pisco.report.picture import draw
from pisco.report.plots import column_panel
from pisco.results import Result

ROUNDS = 500
SEEDS = (0, 1, 2, 3, 4)
TRAINING_TARGET = 0.05
ACCURACY_TARGET = 0.8


class Point(NamedTuple):
    """A probability and the step size that goes with it."""

    label: str
    server_prob: float
    local_lr: float


# η_l: what the rule and grid of `pisco tune` pick over 1000 rounds, as in the figure `iter-p`, whose first five seeds
# these are. Larger steps are faster until a long stretch without the server lets the gossip modes blow up; a seed with
# such a stretch may take very long, so medians are shown.
POINTS = (
    Point("0", 0.0, 0.01),
    Point("10^-1.25", 10**-1.25, 0.016),
    Point("0.1", 0.1, 0.063),
    Point("10^-0.5", 10**-0.5, 0.16),
    Point("1", 1.0, 0.63),
)


def run_demo(
    *, rounds: int = ROUNDS, seeds: Sequence[int] = SEEDS, progress: Callable[[Progress], None] | None = None
) -> list[Result]:
    """One result per point, all of them one program."""
    problem = logistic(load_dataset("a9a"), agents=10, partition="sorted", rho=0.01)
    results = sweep(
        [(algorithms.pisco(local_lr=p.local_lr, local_steps=1), bernoulli(p.server_prob)) for p in POINTS],
        problem,
        Network.ring(10, weights="fdla"),
        rounds=rounds,
        batch_size=256,
        seeds=seeds,
        eval_every=1,  # the paper's target is on the mean over all rounds
        chunk_rounds=50,
        progress=progress,
    )
    for point, result in zip(POINTS, results, strict=True):
        result.label = f"p = {point.label}"
    return results


def table(results: Sequence[Result]) -> list[dict[str, Any]]:
    """One record per point: the numbers of its median seed; None where that seed missed the target."""
    records: list[dict[str, Any]] = []
    for point, result in zip(POINTS, results, strict=True):
        rounds = result.at_target("grad_norm_sq_mean", at_most=TRAINING_TARGET)
        seed = _median(rounds)
        record = {"p": point.label, "server_prob": point.server_prob, "local_lr": point.local_lr}
        record |= {"seeds": len(rounds), "seeds_arrived": int(np.isfinite(rounds).sum())}
        record["rounds"] = _number(rounds[seed])
        for wanted in ("server_rounds", "gossip_rounds", "bytes_server", "bytes_gossip"):
            record[wanted] = _number(result.at_target("grad_norm_sq_mean", wanted, at_most=TRAINING_TARGET)[seed])
        arrivals = result.at_target("test_accuracy", at_least=ACCURACY_TARGET)
        record["rounds_to_accuracy"] = _number(arrivals[_median(arrivals)])
        base = records[0]["gossip_rounds"] if records else record["gossip_rounds"]
        known = base and record["gossip_rounds"] is not None
        record["gossip_saved"] = 1 - record["gossip_rounds"] / base if known else None
        records.append(record)
    return records


def write(results: Sequence[Result], records: Sequence[dict[str, Any]], folder: Path) -> Path:
    """Save every result, and draw `demo.png`: where the picture is."""
    for point, result in zip(POINTS, results, strict=True):
        result.save(folder / f"p-{point.label.replace('^', '')}")
    picture = folder / "demo.png"
    draw([panels(results, records)], picture, size=(4.6, 4.2))
    return picture


def panels(results: Sequence[Result], records: Sequence[dict[str, Any]]) -> list[Panel]:
    """Gossip and server rounds to the training target, and how every p gets there."""
    notes = []
    for record in records:
        saved = record["gossip_saved"] if 0 < record["server_prob"] < 1 else None
        counts = "target\nnot reached"
        if record["rounds"] is not None:
            counts = f"{record['gossip_rounds']:.0f} gossip\n{record['server_rounds']:.0f} server"
        notes.append(("" if saved is None else f"−{saved:.0%}", counts))
    parts = {
        f"{kind} rounds": np.array([record[f"{kind}_rounds"] or 0.0 for record in records])
        for kind in ("gossip", "server")
    }
    bars = Panel(
        "A few server rounds save most of the gossip",
        f"chance that a round reaches the server (median of {plural(records[0]['seeds'], 'seed')})",
        "rounds until the target (bold: gossip saved)",
        bars=Bars([f"p = {point.label}" for point in POINTS], parts, notes=notes),
        legend="upper right",
    )

    shown = [bars]
    for column, target in (("grad_norm_sq_mean", TRAINING_TARGET), ("test_accuracy", ACCURACY_TARGET)):
        curves = [
            Curve(f"p = {point.label}", result.column("round"), result.column(column).astype(float), index)
            for index, (point, result) in enumerate(zip(POINTS, results, strict=True))
        ]
        words = f"target {target:.0%}" if METRICS[column].unit == "%" else f"target {target:g}"
        panel = column_panel(METRICS[column], curves, "rounds")
        shown.append(panel._replace(log_x=True, levels=[Level(words, target)]))
    return shown


def point_of(records: Sequence[dict[str, Any]]) -> str:
    """What the numbers say, in one sentence."""
    alone, tenth, federated = records[0], records[2], records[-1]
    if None in (alone["rounds"], tenth["rounds"], federated["rounds"]):
        return "Too many runs missed the training target in the rounds they had; give them more to compare them."
    return (
        f"Reaching the server in one round of ten, {tenth['server_rounds']:.0f} times in all, saves "
        f"{tenth['gossip_saved']:.0%} of the gossip: {tenth['gossip_rounds']:.0f} gossip rounds instead of "
        f"{alone['gossip_rounds']:.0f}; with the server in every round, {federated['server_rounds']:.0f} "
        "server rounds are enough."
    )


def _median(rounds: np.ndarray) -> int:
    """Which seed has the median, those that never arrive last; the later of two, to be on the safe side."""
    return int(np.argsort(np.where(np.isnan(rounds), np.inf, rounds), kind="stable")[len(rounds) // 2])


def _number(value: float) -> float | None:
    return None if np.isnan(value) else float(value)
