"""Plain Python, nothing compiled: for people who step through their own loss with a debugger or print."""

from __future__ import annotations

from typing import Any

import jax
import numpy as np

from pisco.engines.job import Job, Segment
from pisco.engines.process_group import Alone, ProcessGroup
from pisco.engines.scan import ScanEngine
from pisco.networks.rounds import Links
from pisco.problems.gradient import in_turn


class DebugEngine:
    """Engine `debug`: what `scan` compiles runs as it is written, slowly; its loops and branches are Python's."""

    name = "debug"
    group: ProcessGroup = Alone()

    def __init__(self) -> None:
        self._scan = ScanEngine(batched=False, batching=in_turn)
        self.pack, self.unpack = self._scan.pack, self._scan.unpack

    def start(self, job: Job) -> Any:
        with jax.disable_jit():
            return self._scan.start(job)

    def measure(self, job: Job, states: Any) -> dict[str, np.ndarray]:
        with jax.disable_jit():
            return self._scan.measure(job, states)

    def advance(self, job: Job, states: Any, done: int, segment: Segment) -> tuple[Any, dict[str, np.ndarray], Links]:
        with jax.disable_jit():
            return self._scan.advance(job, states, done, segment)
