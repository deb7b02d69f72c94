"""Plain Python, nothing compiled: for people who step through their own loss with a debugger or print."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from pisco.engines.job import Job, Segment
from pisco.engines.process_group import Alone, ProcessGroup
from pisco.engines.scan import ScanEngine
from pisco.networks.rounds import Links


def _one_by_one(own: Callable[..., Any]) -> Callable[..., Any]:
    """One agent after the other, each with its own concrete parameters."""

    def every(params, key, agents):
        parts = [own(jax.tree.map(lambda x, i=i: x[i], params), key, agent) for i, agent in enumerate(agents)]
        return jax.tree.map(lambda *leaves: jnp.stack(leaves), *parts)

    return every


class DebugEngine:
    """Engine `debug`: what `scan` compiles runs as it is written, slowly; its loops and branches are Python's."""

    name = "debug"
    group: ProcessGroup = Alone()

    def __init__(self) -> None:
        self._scan = ScanEngine(batched=False, batching=_one_by_one)
        self.pack, self.unpack = self._scan.pack, self._scan.unpack

    def start(self, job: Job) -> Any:
        with jax.disable_jit():
            return self._scan.start(job)

    def measure(self, job: Job, states: Any) -> dict[str, np.ndarray]:
        with jax.disable_jit():
            return self._scan.measure(job, states)

    def advance(
        self, job: Job, states: Any, done: int, segment: Segment
    ) -> tuple[Any, dict[str, np.ndarray], Links]:
        with jax.disable_jit():
            return self._scan.advance(job, states, done, segment)
