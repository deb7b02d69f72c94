"""What is measured: an agent's rows, how they reach the server, and the history the server makes of them."""

from __future__ import annotations

import logging
import threading
import time
from typing import TYPE_CHECKING, Any

import numpy as np

from pisco.costs import message_sizes
from pisco.engines.checkpoint import Checkpoint
from pisco.federation.kits import Refused
from pisco.federation.plan import Federation
from pisco.federation.roster import SERVER
from pisco.federation.runtime.transport import grpc
from pisco.federation.runtime.wire_pb2 import Column, Report, Row
from pisco.parts import sent_names

if TYPE_CHECKING:
    from pisco.federation.runtime.agent import Agent

log = logging.getLogger("pisco.federation")

AT_ONCE = 1000
"""Rows in one report: far below the largest request that is accepted."""


class Rows:
    """An agent's measurements, one row for every measured round."""

    def __init__(self) -> None:
        self.rounds: list[int] = []
        self.values: dict[str, list[float]] = {}

    def add(self, round_: int, values: dict[str, float]) -> None:
        """One more row; a round measured again after a restart replaces nothing, it is the same."""
        if self.rounds and self.rounds[-1] >= round_:
            return
        self.rounds.append(round_)
        for name, value in values.items():
            self.values.setdefault(name, []).append(value)

    def arrays(self) -> dict[str, np.ndarray]:
        return {"rounds": np.asarray(self.rounds, np.int64)} | {
            f"metric {name}": np.asarray(values, np.float64) for name, values in self.values.items()
        }

    @classmethod
    def restore(cls, found: Checkpoint | None) -> Rows:
        rows = cls()
        if found is not None:
            rows.rounds = found.history["rounds"].tolist()
            rows.values = {
                name.removeprefix("metric "): values.tolist()
                for name, values in found.history.items()
                if name.startswith("metric ")
            }
        return rows

    def columns(self) -> dict[str, np.ndarray]:
        """As a result's history."""
        return {"round": np.asarray(self.rounds, np.int64)} | {
            name: np.asarray(values) for name, values in self.values.items()
        }

    def since(self, count: int, only: str | None = None) -> list[Row]:
        """The rows from a place on, as they travel; of one column `only`, if one is named."""
        end = min(len(self.rounds), count + AT_ONCE)
        return [
            Row(round=self.rounds[at], values={n: values[at] for n, values in self.values.items() if only in (None, n)})
            for at in range(count, end)
        ]


class Reporter:
    """Tells the server every second where the agent stands, and the rows that it does not have yet.

    What stays the same is told once, and again to a server that has started again; times when they have moved.
    """

    EVERY = 1.0
    MOVED = 0.2
    """By how much of what was told."""

    def __init__(self, agent: Agent):
        self.agent = agent
        self.held = 0
        self.sizes = message_sizes(agent.algorithm, agent.programs.params_like, 1)
        self._lacks, self._times = True, {}
        self._met = False
        self._lock = threading.Lock()
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._loop, daemon=True, name="report")
        self._thread.start()

    def _loop(self) -> None:
        while not self._stop.wait(self.EVERY):
            self._send(timeout=10.0)

    def _fixed(self) -> Report:
        """What stays the same as long as we run."""
        agent, sizes = self.agent, self.sizes
        return Report(
            round_bytes=sizes.sent if agent.programs.codecs else sizes.whole,
            whole_bytes=sizes.whole,
            start_server_bytes=sizes.start_server,
            start_gossip_bytes=sizes.start_gossip,
            columns=[
                Column(name=metric.name, rising=metric.rising, title=metric.title, log=metric.log, unit=metric.unit)
                for metric in agent.metrics.values()
            ],
            leaves=sent_names(agent.programs.params_like),
            model_part=agent.programs.model_part,
        )

    def _moved(self, times: dict[str, float]) -> bool:
        told = self._times
        return times.keys() != told.keys() or any(abs(times[k] - told[k]) > self.MOVED * abs(told[k]) for k in times)

    def _send(self, timeout: float) -> bool:
        agent = self.agent
        with self._lock:
            times = agent.timing.told(self.sizes.gradients)
            report = Report(
                federation=agent.federation_hash(agent.done + 1),
                round=agent.done,
                bytes_sent=agent.bytes_sent,
                bytes_received=agent.mailroom.bytes_received,
                waiting_for=agent.mailroom.waiting_for,
                # No noise hides what a private site measures on its data: it stays there.
                rows=agent.history.since(self.held, "epsilon" if agent.hides else None),
                first=self.held,
                times=times if self._lacks or self._moved(times) else {},
                named=agent.watcher.named,
            )
            if self._lacks:
                report.MergeFrom(self._fixed())
            try:
                began = time.monotonic()
                receipt = agent.peer(SERVER, agent.done).report(report, timeout)
                self.held, self._lacks = receipt.rows, receipt.lacks
                if report.times:
                    self._times = times
                if agent.news is not None:
                    agent.news.heard(new=receipt.news)
                agent.mailroom.hear(receipt.troubles, receipt.held_by, receipt.held_why)
                if self._met:  # the first one also connects
                    agent.timing.answered(SERVER, time.monotonic() - began, 0, 0.0)
                self._met = True
            except (grpc.RpcError, OSError, Refused, ValueError):
                return False
            return True

    @property
    def server_matters(self) -> bool:
        """Where no round reaches the server, a federation may do without one."""
        plan = self.agent.plan
        return self._met or not plan.network_of(plan.epochs[-1]).server.never_reached

    def finish(self) -> None:
        """The last rows; without the server they stay with the agent."""
        patience = self.agent.plan.patience if self.server_matters else 1.0
        end, pause = time.monotonic() + patience, 0.05
        while self.held < len(self.agent.history.rounds):
            if not self._send(timeout=10.0):
                if time.monotonic() > end or self.agent.mailroom.stopping.wait(pause):
                    log.warning("the server did not take our last measurements; they are in our own result")
                    return
                pause = min(1.0, 2 * pause)

    def stop(self) -> None:
        self._stop.set()


def settings(plan: Federation) -> dict[str, Any]:
    """What was run, as in every result."""
    return {
        "algorithm": plan.algorithm.model_dump(),
        "problem": "private data" if plan.problem is None else plan.problem.name,
        "network": repr(plan.network_of(plan.epochs[-1])),
        "run": {
            "rounds": plan.rounds,
            "batch_size": plan.batch_size,
            "eval_every": plan.eval_every,
            "engine": "federation",
        },
        "federation": {"name": plan.name, "hash": plan.hash_at(plan.rounds)},
    }
