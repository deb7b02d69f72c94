"""What the driver and every runner share: the exported workload, and one answer per request over a pipe.

A runner loads a workload, then answers each line on its standard input with one measurement on its standard output.
Requests take turns between ours and the peer, so that other work on the machine hits both.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path

import numpy as np

MARK = "@measured "  # peers log to standard output too
LEARNING_RATE = 1e-3


@dataclass(frozen=True)
class Workload:
    """The agents' samples and the sizes that every runner must keep to."""

    features: np.ndarray  # (agents, samples, inputs), small integers
    labels: np.ndarray  # (agents, samples): ±1, or classes when hidden > 0
    weights: np.ndarray  # (agents, agents), the gossip matrix
    name: str
    hidden: int  # neurons of the hidden layer; 0 is logistic regression
    batch_size: int
    local_steps: int  # T_o: a round of PISCO takes T_o + 1 gradients
    server_prob: float
    rho: float

    @property
    def gradients(self) -> int:
        """Gradients of an agent in a round."""
        return self.local_steps + 1

    @property
    def scale(self) -> float:
        """Bytes become [0, 1]; the features of a9a are zeros and ones already."""
        return 1 / 255 if self.features.dtype == np.uint8 else 1.0

    def save(self, path: Path) -> None:
        """One .npz file that needs NumPy alone to read."""
        np.savez(path, **vars(self))


def load(path: str) -> Workload:
    """The workload in a file that `Workload.save` wrote."""
    with np.load(path) as kept:
        return Workload(**{name: value.item() if value.ndim == 0 else value for name, value in kept.items()})


def say(**fields: object) -> None:
    """One line for the driver."""
    print(MARK + json.dumps(fields), flush=True)


def serve(packages: list[str], measure: Callable[[], float], note: str = "") -> None:
    """Name the installed versions, then answer every line of input with `measure()`, seconds per round."""
    say(versions={package: version(package) for package in packages}, note=note)
    for _ in sys.stdin:
        began, used = time.perf_counter(), time.process_time()
        seconds = measure()
        cores = (time.process_time() - used) / (time.perf_counter() - began)
        say(seconds=seconds, cores=cores)


def repeated(step: Callable[[], object], rounds: int, seconds: float = 1.0) -> float:
    """Seconds per round of a step of so many rounds, repeated until there is enough to measure."""
    began, done = time.perf_counter(), 0
    while not done or time.perf_counter() - began < seconds:
        step()
        done += rounds
    return (time.perf_counter() - began) / done


def slope(stamps: list[float], warmup: int, blocks: int = 5) -> float:
    """Seconds per round from the times at which rounds began, the first `warmup` left out.

    A run that cannot be repeated in its process is cut into blocks of rounds, and the shortest counts, as elsewhere.
    """
    counted = stamps[warmup:]
    size = max(1, (len(counted) - 1) // blocks)
    starts = range(0, len(counted) - size, size)
    return min(counted[i + size] - counted[i] for i in starts) / size
