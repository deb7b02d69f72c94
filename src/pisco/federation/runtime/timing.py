"""How long things take in a running federation: what agents time themselves, and the clock that it makes.

An agent times what it does between exchanges, and how soon a peer's message comes once it is asked for: at the quickest
that is a question and an answer, two latencies. One end of a link is never ahead of the other, so the smaller of both
is no wait for the other's work. Where messages are pushed, a ping and its answer are timed instead. Times go to the
server with the agent's reports.
"""

from __future__ import annotations

import math
import time
from collections import defaultdict, deque
from collections.abc import Mapping
from typing import Any

import numpy as np

from pisco.clock import Clock
from pisco.errors import InputError
from pisco.federation.plan import Federation
from pisco.federation.roster import SERVER

COMPUTE, LATENCY, BANDWIDTH = "compute", "latency ", "bandwidth "
"""What a report calls them; the last two with a member's name."""

PUSHED = "pushed"
"""Told by who is pushed messages: they need not be asked for."""

KEPT = 1000
SETTLED = 2
"""The first rounds of a process fill caches and open connections."""


class Timing:
    """The seconds of one agent's phases so far."""

    def __init__(self) -> None:
        self._since, self._busy, self._rounds = time.perf_counter(), 0.0, 0
        self.spent = {"compute": 0.0, "exchange": 0.0}  # since the process started
        self._of_rounds: deque[float] = deque(maxlen=KEPT)
        self.pushed = False
        self._quickest: dict[str, float] = {}
        self._speeds: dict[str, deque[float]] = defaultdict(lambda: deque(maxlen=KEPT))

    def stop(self) -> None:
        """What comes now is waiting."""
        now = time.perf_counter()
        self._busy += now - self._since
        self.spent["compute"] += now - self._since
        self._since = now

    def go(self) -> None:
        """Back to work."""
        now = time.perf_counter()
        self.spent["exchange"] += now - self._since
        self._since = now

    def round_over(self) -> None:
        """Take note of a round's work."""
        self.stop()
        self._rounds += 1
        if self._rounds > SETTLED:
            self._of_rounds.append(self._busy)
        self._busy = 0.0
        self.go()

    def answered(self, name: str, seconds: float, rest: int, rest_seconds: float) -> None:
        """A peer's answer began after these seconds; then the rest of it, so many bytes, took so long."""
        self._quickest[name] = min(seconds, self._quickest.get(name, math.inf))
        if rest > 0 and rest_seconds > 0:
            self._speeds[name].append(rest / rest_seconds)

    def told(self, gradients: int) -> dict[str, float]:
        """As a report has it; `gradients` is how many there are in a round."""
        found = {LATENCY + name: seconds / 2 for name, seconds in list(self._quickest.items()) if seconds < math.inf}
        found |= {BANDWIDTH + name: float(np.median(speeds)) for name, speeds in list(self._speeds.items())}
        if self.pushed:
            found[PUSHED] = 1.0
        if self._of_rounds:
            found[COMPUTE] = float(np.mean(self._of_rounds)) / max(1, gradients)
        return found


def clock_of(plan: Federation, told: Mapping[str, Mapping[str, float]]) -> Clock:
    """The clock of a federation from what its agents told, for the roster of its last epoch.

    A link's latency and bandwidth are the better ones of its two directions; links that were never used are like the
    median of the others.
    """
    names = plan.epochs[-1].names
    silent = [name for name in names if COMPUTE not in told.get(name, {})]
    if silent:
        raise InputError(
            f"{', '.join(silent)} reported no times yet; measure again when all agents have done {SETTLED + 1} rounds"
        )

    def of_links(what: str, best: Any, otherwise: float) -> list[list[float]]:
        seen = np.full((len(names), len(names)), np.nan)
        for i, name in enumerate(names):
            for j, other in enumerate(names):
                both = [told[a].get(what + b, math.nan) for a, b in ((name, other), (other, name))]
                known = [value for value in both if math.isfinite(value)]
                seen[i, j] = best(known) if known else math.nan
        usual = float(np.nanmedian(seen)) if np.isfinite(seen).any() else otherwise
        return np.where(np.isnan(seen), usual, seen).tolist()

    def of_server(what: str, otherwise: float) -> list[float]:
        return [told[name].get(what + SERVER, otherwise) for name in names]

    return Clock(
        compute=[told[name][COMPUTE] for name in names],
        latency_gossip=of_links(LATENCY, min, 0.0),
        bandwidth_gossip=of_links(BANDWIDTH, max, math.inf),
        latency_server=of_server(LATENCY, 0.0),
        bandwidth_server=of_server(BANDWIDTH, math.inf),
        asked=not all(PUSHED in told[name] for name in names),
    )
