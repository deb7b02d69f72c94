"""Plain Python, nothing compiled: for people who step through their own loss with a debugger or print."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp

from pisco.engines.process_group import Alone, ProcessGroup
from pisco.engines.scan import ScanEngine


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
        scan, plainly = ScanEngine(batched=False, batching=_one_by_one), jax.disable_jit()
        self.start, self.measure = plainly(scan.start), plainly(scan.measure)
        self.advance = plainly(scan.advance)
        self.pack, self.unpack = scan.pack, scan.unpack
