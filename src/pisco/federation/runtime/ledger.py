"""The server's records: where every agent stands, what they measured, and the history of the whole federation."""

from __future__ import annotations

import itertools
import json
import logging
import math
import re
import threading
import time
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from pisco.errors import InputError
from pisco.federation.plan import Federation
from pisco.federation.rolls import Roll
from pisco.federation.roster import SERVER
from pisco.federation.runtime import reports
from pisco.federation.runtime.holdup import Holdup, furthest, holdup
from pisco.federation.runtime.traffic import costs
from pisco.federation.runtime.wire_pb2 import Overview, Report, Standing
from pisco.files import atomic_write, read_json
from pisco.metrics import Metric, by_column
from pisco.results import Result

log = logging.getLogger("pisco.federation")

FILE = "reports.json"
SAVE_EVERY = 5.0
LEFT_OFF = "left off every further roll: it was named for vectors that are too far off"
METRIC = re.compile(r"[A-Za-z0-9_ .:-]{1,60}")
"""Names that may go into a table or onto a terminal."""
MEASURED = re.compile(r"loss|epsilon|test_[A-Za-z0-9_ .:-]{1,55}")
"""Columns that an agent may fill; all others, such as `round` and the bytes, the server counts itself."""
MOST_BYTES = 1 << 40
"""Of one message that a member may claim; sums over any run stay below 2^63."""
MOST_SAMPLES = 1 << 48
MOST_LEAVES = 10_000
MOST_COLUMNS = 50
LEAF = re.compile(r"[A-Za-z0-9_ .:/-]{1,200}")
Indices = Callable[[], Collection[int] | None]


class Ledger:
    """What agents reported so far. A row they report again is the same row: rounds are repeatable."""

    def __init__(self, plan: Federation, folder: Path):
        self.plan, self.path = plan, folder / FILE
        self._lock = threading.Lock()
        self._rows: dict[str, list[tuple[int, dict[str, float]]]] = {name: [] for name in plan.names}
        self._standing: dict[str, dict[str, Any]] = {}
        self._sizes: dict[str, dict[str, list[Any]]] = {}
        self._columns: dict[str, Metric] = {}
        self._columns_of: Counter[str] = Counter()  # how many each has told of
        self._contact: dict[str, float] = {}
        self._complained: dict[str, float] = {}  # when the log said last that somebody cannot take part
        self._namings: set[tuple[str, str]] = set()  # who named whom, as the log has it
        self._told_fixed: set[str] = set()  # who told this process what stays the same
        self._samples: dict[str, int] = {}
        self._mean = 0.0  # of the founders' samples, once it is known
        self._rolls: Callable[[], list[Roll]] | None = None
        self._called: Indices = lambda: None
        self._expelled: Indices = tuple
        self._saved_at = time.monotonic()
        if self.path.exists():
            fix = "bring it back from a copy, or move it away: members report their rows again"
            kept = read_json(self.path, fix)
            try:
                for name, rows in kept["rows"].items():
                    self._rows[name] = [(int(round_), _measured(values)) for round_, values in rows]
                self._standing = {n: each for n, each in kept["standing"].items() if each["round"] <= plan.rounds}
                self._sizes = {n: each for n, each in kept["sizes"].items() if n in plan.names}
                self._columns = by_column(Metric(**facts) for facts in kept.get("columns", ()))
                self._samples = kept.get("samples", {})
                self._mean = kept.get("mean_samples", 0.0)
            except (KeyError, TypeError, ValueError, AttributeError):
                raise InputError(f"{self.path} is damaged; {fix}") from None
            self._contact = dict.fromkeys(self._standing, time.monotonic())  # patience starts again

    def attend(self, rolls: Callable[[], list[Roll]], called: Indices, expelled: Indices = tuple) -> None:
        """Who took part is known by these rolls, one a round; the others are as they last measured themselves.

        `called` gives the indices of those on the newest roll, if there is one: nobody waits for the others. `expelled`
        gives those that it leaves off for good.
        """
        self._rolls, self._called, self._expelled = rolls, called, expelled

    def adopt(self, plan: Federation) -> None:
        """Take a newer plan, with agents who join later."""
        with self._lock:
            self.plan = plan
            for name in plan.names:
                self._rows.setdefault(name, [])

    def why_not(self, report: Report) -> str | None:
        """Why a report cannot be taken; None when it can."""
        if report.round > self.plan.rounds:
            return f"it reports round {report.round} of {self.plan.rounds}"
        told = (*report.round_bytes, *report.whole_bytes, *report.start_server_bytes, *report.start_gossip_bytes)
        if len(told) > 4 * 64 or max(told, default=0) > MOST_BYTES:
            return "it reports messages of a size that cannot be"
        if max(report.bytes_sent, report.bytes_received) >= 1 << 63:
            return "it reports more bytes than can be counted"
        if len(report.model_part) > MOST_LEAVES + 1:
            return f"it reports a model of {len(report.model_part) - 1} arrays"
        if report.samples > MOST_SAMPLES:
            return f"it reports {report.samples} samples"
        return None

    def trouble(self, name: str, told: str) -> None:
        """A member says why it cannot take part; its next report takes that back."""
        now = time.monotonic()
        with self._lock:
            self._standing.setdefault(name, {"round": 0})["trouble"] = told
            self._contact[name] = now
            new = now - self._complained.get(name, -SAVE_EVERY) >= SAVE_EVERY
            if new:
                self._complained[name] = now
        if new:  # else who says so again and again fills our log
            log.warning("%s: %s", name, told)

    def troubles(self) -> dict[str, str]:
        """Who cannot take part, and why."""
        with self._lock:
            told = {name: self._standing.get(name, {}).get("trouble") for name in self._going()}
        return {name: trouble for name, trouble in told.items() if trouble}

    def count(self, name: str, samples: int) -> tuple[float, list[str]]:
        """A member tells how many samples it has. The founders' mean, or 0 and those who have not told yet.

        On disk before anybody hears of it; once the founders have told theirs, they stay, and so does the mean.
        """
        with self._lock:
            self._standing.get(name, {}).pop("trouble", None)  # it has started after all
            new, before = not self._mean or name not in self._samples, (self._samples, self._mean)
            if new:
                self._samples = self._samples | {name: samples}
            needed = [member.name for member in self.plan.roster if member.name not in self.plan.excused]
            missing = [each for each in needed if each not in self._samples] if not self._mean else []
            self._contact[name] = time.monotonic()
            if not missing and not self._mean:
                self._mean = self.plan.mean_samples(self._samples)
        if new:
            try:
                self.save()
            except OSError:  # it is told again, and then kept
                with self._lock:
                    self._samples, self._mean = before
                raise
        return self._mean, missing

    def told_before(self, name: str, samples: int) -> str | None:
        """Why a count cannot be taken: the others count by the mean that the first one is in."""
        with self._lock:
            before = self._samples.get(name, samples) if self._mean else samples
        if before == samples:
            return None
        return f"it reported {before} samples before, which give its weight, and now has {samples}; give the same data"

    def lacks(self, name: str) -> bool:
        """Whether a member should tell again what stays the same: this process has not heard it."""
        return name not in self._told_fixed

    def note(self, name: str, report: Report) -> int:
        """Take a report that can be taken; returns how many rows of this agent are held.

        One without what stays the same leaves that as it was told, and so it is with times.
        """
        with self._lock:
            rows, before = self._rows[name], self._standing.get(name, {})
            fixed = bool(report.leaves or report.whole_bytes or report.round_bytes)
            # Each once and in order. A server that lost some with a kill answers where to begin again.
            begin = len(rows) - report.first
            for row in report.rows[begin:] if begin >= 0 else ():
                if (not rows or row.round > rows[-1][0]) and row.round <= self.plan.rounds:
                    rows.append((row.round, _measured(row.values)))
            for told in report.columns[: MOST_COLUMNS - self._columns_of[name]]:
                self._columns_of[name] += 1
                if METRIC.fullmatch(told.name):
                    title = told.title if METRIC.fullmatch(told.title) else ""
                    rising = told.rising if told.HasField("rising") else None
                    own = Metric(
                        told.name, rising=rising, title=title, log=told.log, unit="%" if told.unit == "%" else ""
                    )
                    self._columns.setdefault(own.column, own)
            if fixed:
                self._told_fixed.add(name)
                self._sizes[name] = {
                    "sent": list(report.round_bytes),
                    "whole": list(report.whole_bytes or report.round_bytes),
                    "start_server": list(report.start_server_bytes),
                    "start_gossip": list(report.start_gossip_bytes),
                    "model_part": list(report.model_part),
                }
                if len(report.leaves) <= MOST_LEAVES and all(map(LEAF.fullmatch, report.leaves)):
                    self._sizes[name]["leaves"] = list(report.leaves)
            self._standing[name] = {
                "round": report.round,
                "bytes_sent": report.bytes_sent,
                "bytes_received": report.bytes_received,
                "waiting_for": report.waiting_for if report.waiting_for in (SERVER, *self.plan.names) else "",
            }
            timed = {
                key: value for key, value in report.times.items() if METRIC.fullmatch(key) and math.isfinite(value)
            }
            fits = ((key, far) for key, far in report.named.items() if key in self.plan.names and key != name)
            named = self._standing[name]["named"] = {key: far for key, far in fits if math.isfinite(far)}
            fresh = {key: far for key, far in named.items() if (name, key) not in self._namings}
            self._namings |= {(name, key) for key in fresh}
            kept = dict(itertools.islice(timed.items(), 2 * len(self.plan.names) + 4))
            self._standing[name]["times"] = kept if fixed or report.times else before.get("times", {})
            self._contact[name] = time.monotonic()
            count, due = len(rows), time.monotonic() - self._saved_at > SAVE_EVERY
        for suspect, far in fresh.items():
            log.warning("%s names %s: its vectors are up to %.3g times as far off as usual", name, suspect, far)
        if due:
            try:
                self.save()
            except OSError as error:  # what is lost with a kill is reported again
                log.warning("cannot keep what members report: %s; it is tried again", error)
        return count

    def save(self) -> None:
        """Keep it on disk; what is lost with a kill is reported again."""
        with self._lock:
            self._saved_at = time.monotonic()
            columns = [metric.facts() for metric in self._columns.values()]
            kept = {"rows": self._rows, "standing": self._standing, "sizes": self._sizes, "columns": columns}
            kept |= {"samples": self._samples, "mean_samples": self._mean} if self._samples else {}
            content = json.dumps(kept)
            atomic_write(self.path, content.encode())

    @property
    def leaves(self) -> list[str]:
        """The names of the parameters' arrays, as most agents tell them."""
        return self._agreed_sizes().get("leaves", []) if self._sizes else []

    @property
    def model_part(self) -> list[int]:
        """Where most agents find their parameters in what the server hands out; empty where they do not."""
        return self._agreed_sizes().get("model_part", []) if self._sizes else []

    def namers(self, suspect: str) -> set[str]:
        """The members who name somebody for vectors that are too far off."""
        with self._lock:
            return {name for name, each in self._standing.items() if suspect in each.get("named", ())}

    def silent(self, names: Iterable[str], *, unknown: bool = False) -> list[str]:
        """Those not heard of for longer than the plan's patience; who never was counts where `unknown` do."""
        now = time.monotonic()
        first = -math.inf if unknown else now
        with self._lock:
            return [n for n in names if now - self._contact.get(n, first) > self.plan.patience]

    def overview(self) -> Overview:
        """Where everybody stands."""
        now = time.monotonic()
        with self._lock:
            agents = [
                Standing(
                    name=name,
                    last_contact=now - self._contact[name] if name in self._contact else -1.0,
                    samples=self._samples.get(name, 0),
                    loss=self._rows[name][-1][1].get("loss", math.nan) if self._rows[name] else math.nan,
                    **self._told(name),
                )
                for name in self._going()
            ]
        held = self.holdup()
        return Overview(
            federation_name=self.plan.name, rounds=self.plan.rounds, agents=agents, held_by=held.name, held_why=held.why
        )

    def holdup(self) -> Holdup:
        """Who holds the run up, as far as is known here."""
        now, front, called = time.monotonic(), self.front(), self._called()
        with self._lock:
            members = self.plan.epoch_at(min(front, self.plan.rounds - 1)).members
            names = [member.name for member in members if called is None or member.index in called]
            standing = {name: dict(each) for name, each in self._standing.items()}
            silence = {name: now - at for name, at in self._contact.items()}
        going = [name for name in names if standing.get(name, {}).get("round", 0) < self.plan.rounds]
        return holdup(going, standing, silence)

    def front(self) -> int:
        """The furthest round that anybody can be in: nobody gets more than one ahead of all others."""
        with self._lock:
            return self._front()

    def _front(self) -> int:
        return furthest(self.plan, {name: each["round"] for name, each in self._standing.items()})

    def cancelled(self, name: str) -> bool:
        """Whether somebody who waited to join is not in the plan any more."""
        with self._lock:
            return name in self._standing and name not in self.plan.starts

    def _going(self) -> list[str]:
        """Who is or will be a member; those who left are not shown any more."""
        now = self.plan.epoch_at(min(self._front(), self.plan.rounds - 1))
        return [n for n in self.plan.names if any(n in e.names for e in self.plan.epochs if e.start >= now.start)]

    def _believed(self, name: str) -> dict[str, Any]:
        said = {key: value for key, value in self._standing.get(name, {}).items() if key != "named"}
        return said | {"round": min(said["round"], self._front())} if said else {}

    def _told(self, name: str) -> dict[str, Any]:
        """What a member is believed to say of itself, with the privacy that it has spent among its numbers."""
        said, rows = self._believed(name), self._rows[name]
        if self.plan.indices[name] in (self._expelled() or ()):
            said |= {"trouble": LEFT_OFF}
        spent = rows[-1][1].get("epsilon") if rows else None
        return said if spent is None else said | {"times": said.get("times", {}) | {"epsilon": spent}}

    def line(self) -> str:
        """The same in one line."""
        with self._lock:
            names = self._going()
            rounds = [self._believed(name)["round"] for name in names if name in self._standing]
        if not rounds:
            return "no agent has reported yet"
        here = f"{len(rounds)} of {len(names)} agents"
        held = self.holdup()
        why = f"; {held.name} holds the others up ({held.why})" if held.name else ""
        return f"{here}, rounds {min(rounds)} to {max(rounds)} of {self.plan.rounds}{why}"

    def result(self, seconds: float = 0.0, params: Any = None) -> Result:
        """The history of the federation: means over agents of what each measured on its own data.

        `loss` is (1/n)·Σᵢ fᵢ(xᵢ), every agent at its own parameters: nobody but the agents holds the data.
        """
        with self._lock:
            rows = {name: dict(each) for name, each in self._rows.items()}
        rolls = self._rolls() if self._rolls is not None else None
        if rolls is not None:
            self._fill(rows)

        def measuring(k: int) -> list[str]:
            # Who is gone for good cannot tell again what a killed server had not kept yet.
            gone = self.plan.gone_at(k - 1)
            members = (name for name in self.plan.epoch_at(k - 1).names if name not in gone or k in rows[name])
            # Who was left off for poison has numbers of its own, which are none of the federation's.
            off = rolls[k - 1].expelled if rolls is not None and 0 < k <= len(rolls) else ()
            members = (name for name in members if self.plan.indices[name] not in off)
            return [name for name in members if rolls is None or rows[name]]

        rounds = [
            k
            for k in sorted({k for each in rows.values() for k in each})
            if all(k in rows[name] for name in measuring(k)) and (rolls is None or k <= len(rolls))
        ]
        history: dict[str, np.ndarray] = {"round": np.asarray(rounds, np.int64)}
        first = [rows[name][k] for k in rounds[:1] for name in measuring(k)]
        for column in sorted({key for values in first for key in values}, key=lambda c: (c != "loss", c)):
            history[column] = np.asarray(
                [_all(column, [rows[n][k][column] for n in measuring(k) if column in rows[n][k]]) for k in rounds]
            )
        if rounds and self._sizes:
            history |= costs(self.plan, rounds, self._agreed_sizes(), rolls)
        return Result(
            params={} if params is None else params,
            history=history,
            seeds=(self.plan.seed,),
            settings=reports.settings(self.plan),
            rounds=rounds[-1] if rounds else 0,
            interrupted=not rounds or rounds[-1] < self.plan.rounds,
            seconds=seconds,
            label=self.plan.name,
            metrics=dict(self._columns),
        )

    def _agreed_sizes(self) -> dict[str, list[Any]]:
        """What most members say: all have the same model."""
        with self._lock:
            said = [json.dumps(each) for each in self._sizes.values()]
        return json.loads(max(said, key=said.count))

    def _fill(self, rows: dict[str, dict[int, dict[str, float]]]) -> None:
        """Give the absent the row that they measured last."""
        every = sorted({k for each in rows.values() for k in each})
        for each in rows.values():
            for before, k in itertools.pairwise(every):
                if k not in each and before in each:
                    each[k] = each[before]


def _measured(values: Mapping[str, float]) -> dict[str, float]:
    """What may be kept of a row: finite numbers under the names of measurements."""
    fine = ((key, value) for key, value in values.items() if MEASURED.fullmatch(key) and math.isfinite(value))
    return dict(itertools.islice(fine, MOST_COLUMNS))


def _all(column: str, values: list[float]) -> float:
    """The members' mean; what privacy was spent is that of the worst."""
    return float((np.max if column == "epsilon" else np.mean)(values)) if values else math.nan
