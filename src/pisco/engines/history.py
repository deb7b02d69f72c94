"""What a run has measured so far, and whether it has diverged."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from pisco.costs import MessageSizes, cumulative_costs
from pisco.engines.agents import Frames
from pisco.engines.evaluate import AGENT_ERRORS
from pisco.metrics import with_running_mean
from pisco.networks.rounds import Links


class History:
    """Rows so far: the measured rounds, their metrics and the links used between them."""

    def __init__(self, runs: int, watched: Sequence[int]):
        self.watched = list(watched)
        self.rounds: list[int] = []
        self.rows: list[dict[str, np.ndarray]] = []
        self.links: list[np.ndarray] = []
        self.since = np.zeros((len(Links._fields), runs), np.int64)
        self.frames = Frames()
        self.reached = np.zeros((runs, 0), bool)
        """Which rounds reached the server, where links are told round by round."""

    def start(self, row: dict[str, np.ndarray]) -> None:
        self.rounds, self.rows, self.links = [0], [self._without_agents(0, row)], [self.since.copy()]

    def _without_agents(self, round_index: int, row: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
        """What an engine says of each agent is kept for the watched runs and some rounds only."""
        if AGENT_ERRORS in row:
            self.frames.add(round_index, row[AGENT_ERRORS][self.watched])
        return {name: values for name, values in row.items() if name != AGENT_ERRORS}

    def add(self, done: int, stride: int, rows: dict[str, np.ndarray], links: Links) -> None:
        counts = np.stack([np.asarray(column, np.int64) for column in links])  # (kinds, runs, evals)
        if counts.ndim == 4:
            reached = np.asarray(links.server, bool).reshape(counts.shape[1], -1)
            self.reached, counts = np.concatenate([self.reached, reached], axis=1), counts.sum(axis=-1)
        for index in range(counts.shape[-1]):
            self.since += counts[..., index]
            if rows:
                self.add_row(done + stride * (index + 1), {name: values[:, index] for name, values in rows.items()})

    def add_row(self, done: int, row: dict[str, np.ndarray]) -> None:
        """The measurement of a round whose links are counted already."""
        self.rounds.append(done)
        self.rows.append(self._without_agents(done, row))
        self.links.append(self.since.copy())
        self.since[:] = 0

    def save(self) -> dict[str, np.ndarray]:
        """Arrays for a checkpoint; metrics have runs first."""
        metrics = {f"metric {n}": np.stack([row[n] for row in self.rows], axis=1) for n in self.rows[0]}
        links = np.stack(self.links, axis=-1)
        reached = {"reached": self.reached} if self.reached.size else {}
        return {"rounds": np.asarray(self.rounds, np.int64), "links": links, "since": self.since.copy()} | (
            metrics | reached | self.frames.save()
        )

    def restore(self, saved: dict[str, np.ndarray]) -> None:
        self.rounds = saved["rounds"].tolist()
        self.links = list(np.moveaxis(saved["links"], -1, 0))
        self.since = saved["since"].copy()
        self.reached = saved.get("reached", self.reached)
        self.frames.restore(saved)
        metrics = {n.removeprefix("metric "): a for n, a in saved.items() if n.startswith("metric ")}
        self.rows = [{n: a[:, i] for n, a in metrics.items()} for i in range(len(self.rounds))]

    def take_back(self) -> None:
        """Forget the last row, which was measured only because a shorter run ended there."""
        self.rounds.pop()
        self.rows.pop()
        self.since += self.links.pop()

    def columns(self, sizes: MessageSizes, start_edges: np.ndarray, absences: bool) -> dict[str, np.ndarray]:
        """The history as users see it, runs first."""
        rounds = np.asarray(self.rounds, np.int64)
        out: dict[str, np.ndarray] = {"round": np.broadcast_to(rounds, (self.since.shape[1], len(rounds))).copy()}
        for name in self.rows[0]:
            out[name] = np.stack([row[name] for row in self.rows], axis=1).astype(np.float64)
        links = Links(*np.stack(self.links, axis=-1))
        if absences:  # the start is everybody's
            out["present"] = np.where(links.rounds, links.present / np.maximum(links.rounds, 1), sizes.agents)
        return with_running_mean(out) | cumulative_costs(links, sizes, start_edges)

    @property
    def hopeless(self) -> bool:
        """Whether every run has left the finite numbers, so that going on is a waste."""
        newest = self.rows[-1]
        watched = [newest[name] for name in ("loss", "grad_norm_sq", "consensus_error")]
        return not np.any(np.isfinite(watched).all(axis=0))


ABSURD = 1e6
"""A run has diverged when its loss, or the agents' distance from their mean, ends this far above the start."""


def diverged_at(history: dict[str, np.ndarray]) -> list[int | None]:
    """For every run that diverged, the round from which it stayed above its start; None for the others.

    The loss is taken at the mean of the agents, which may stay calm while they fly apart: so both are watched.
    """
    out: list[int | None] = []
    for loss, spread, rounds in zip(history["loss"], history["consensus_error"], history["round"], strict=True):
        began: list[int] = []
        for values, start in ((loss, loss[0]), (spread, max(spread[0], 1.0))):
            if not np.isfinite(values[-1]) or values[-1] > ABSURD * (1 + abs(start)):
                with np.errstate(invalid="ignore"):
                    fine = np.flatnonzero(values <= start)
                began.append(int(rounds[min(fine[-1] + 1, len(rounds) - 1)]) if fine.size else int(rounds[0]))
        out.append(min(began, default=None))
    return out
