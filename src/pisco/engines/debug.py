"""Plain Python, nothing compiled: for people who step through their own loss with a debugger or print."""

from __future__ import annotations

import jax

from pisco.engines.process_group import Alone, ProcessGroup
from pisco.engines.scan import ScanEngine
from pisco.problems.gradient import in_turn


class DebugEngine:
    """What `scan` compiles runs as plain Python, slowly: for a debugger, or for print in a loss of your own."""

    name = "debug"
    group: ProcessGroup = Alone()

    def __init__(self) -> None:
        scan, plainly = ScanEngine(batched=False, batching=in_turn), jax.disable_jit()
        self.start, self.measure = plainly(scan.start), plainly(scan.measure)
        self.advance = plainly(scan.advance)
        self.pack, self.unpack = scan.pack, scan.unpack
