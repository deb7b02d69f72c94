"""Guards between machines: the rule of `pisco.networks.guards` for one receiver, and whom it names.

How a message is combined follows from the messages of its round alone, so a restart, an attempt that does not count
and a replay give the same bits. Strikes and names are this process's own memory; they go into the log and to the
server.
"""

from __future__ import annotations

import logging
import math
import threading
from collections.abc import Mapping, Sequence
from typing import Any

import jax.numpy as jnp
import numpy as np

from pisco.federation.runtime.routes import GossipHop, ServerHop, average, gossip, mean, weigh
from pisco.guarding.apart import sketch, split
from pisco.guarding.watch import SETTLED
from pisco.networks.guards import Guard

log = logging.getLogger("pisco.federation")

Arrays = Sequence[np.ndarray]


def moves(own: Arrays, start: Arrays) -> np.ndarray:
    """How far each vector of a message has come since the round began, or from zero where that is nearer."""
    return np.array([min(_norm(z), _apart(z, s)) if s else _norm(z) for z, s in _with_starts(own, start)])


def guarded_gossip(
    guard: Guard, arrays: Mapping[int, Arrays], hop: GossipHop, place: int, start: Arrays, struck: set[int]
) -> tuple[list[np.ndarray], dict[int, float]]:
    """A gossip exchange, and the factor of every neighbour; who is in `struck` is left out, and joins it if it must."""
    others = [each for each, weight in hop.incoming.items() if each != place and weight]
    own, factors = _with_starts(arrays[place], start), dict.fromkeys(others, 0.0)
    shapes, came = [array.shape for array in start], moves(arrays[place], start)
    parts = {each: split(list(arrays[each]), shapes) for each in others}
    for at, (z, _) in enumerate(own):
        far = {each: _apart(z, parts[each][at]) for each in others}
        usual = max(_largest_usual(list(far.values())), float(came[at]), _tiny(z))
        factors = {each: max(factors[each], far[each] / usual) for each in others}
    keep = _keep(guard, factors, struck)
    if all(share == 1 for share in keep.values()):
        return gossip(arrays, hop, place), factors
    incoming = {each: hop.incoming[each] * keep[each] for each in others}
    held = hop.incoming.get(place, 0.0) + sum(hop.incoming[each] - incoming[each] for each in others)
    return gossip(arrays, hop._replace(incoming=incoming | {place: held}), place), factors


def guarded_mean(
    guard: Guard, arrays: Mapping[int, Arrays], places: Sequence[int], told: Mapping[int, np.ndarray], struck: set[int]
) -> tuple[list[np.ndarray], dict[int, float]]:
    """The server's average, and the factor of every reporter.

    `told` is what each says of its moves; where nobody does, parameters are compared with their own size.
    """
    vectors = max((len(each) for each in told.values()), default=1)
    parts = {each: [_part(arrays[each], vectors, at) for at in range(vectors)] for each in places}
    apart = {
        (i, j): [_apart(a, b) for a, b in zip(parts[i], parts[j], strict=True)] for i in places for j in places if i < j
    }

    def between(i: int, j: int) -> list[float]:
        return apart[min(i, j), max(i, j)]

    def spread(i: int) -> float:
        far = [between(i, j) for j in places if j != i]
        return sum(_lower_median([each[at] for each in far]) ** 2 for at in range(vectors))

    middle = min(places, key=spread)
    factors = dict.fromkeys([each for each in places if each != middle], 0.0)
    for at in range(vectors):
        far = {each: between(middle, each)[at] for each in factors}
        claims = [abs(float(told[each][at])) if told else _norm(parts[each][at]) for each in places]
        usual = max(_largest_usual(list(far.values())), _largest_usual(claims), _tiny(parts[middle][at]))
        factors = {each: max(factors[each], far[each] / usual) for each in factors}
    keep = _keep(guard, factors, struck)
    if all(share == 1 for share in keep.values()):
        return mean(arrays, places), factors
    weights = {each: keep.get(each, 1.0) / len(places) for each in places}
    weights[middle] += 1.0 - sum(weights.values())
    return weigh(arrays, weights), factors


class Watcher:
    """One receiver's eyes: it combines, counts strikes, and names who has too many of them."""

    def __init__(self, guard: Guard | None, struck: Mapping[str, Sequence[str]] | None = None):
        self.guard = guard
        self.named: dict[str, float] = {}
        self.struck: dict[int, set[str]] = {int(round_): set(who) for round_, who in (struck or {}).items()}
        self._heard: dict[int, set[str]] = {}
        self._strikes: dict[str, int] = {}
        self._factors: dict[str, float] = {}
        self._sums: dict[str, np.ndarray] = {}
        self._first, self._rounds = 0.0, 0
        self._lock = threading.Lock()

    def __bool__(self) -> bool:
        return self.guard is not None

    def gossip(
        self, round_: int, names: Sequence[str], arrays: Mapping[int, Arrays], hop: GossipHop, place: int, start: Any
    ) -> list[np.ndarray]:
        """An agent's gossip exchange, guarded."""
        if self.guard is None:
            return gossip(arrays, hop, place)
        struck = self._enter(round_, names)
        made, factors = guarded_gossip(self.guard, arrays, hop, place, start, struck)
        came, shapes = moves(arrays[place], start), [array.shape for array in start]
        for at, z in enumerate(split(list(arrays[place]), shapes)):
            if came[at] >= 0.5 * _norm(z):
                parts = {each: sketch(split(list(arrays[each]), shapes)[at], np)[0] for each in factors}
                self._add(names, parts, sketch(z, np)[0], _norm(z))
        self._note(round_, names, factors, struck)
        return made

    def mean(
        self, round_: int, names: Sequence[str], arrays: Mapping[int, Arrays], hop: ServerHop, told: bool
    ) -> list[np.ndarray]:
        """The server's average, guarded; where members have `told` their moves, these end every message."""
        if self.guard is None or not self.guard.guard_server:
            return average(arrays, hop)
        if not told:  # parameters, before somebody joins or at the end: no exchange of a round
            return guarded_mean(self.guard, arrays, hop.reporters, {}, set())[0]
        struck = self._enter(round_, names)
        claims = {place: each[-1] for place, each in arrays.items()}
        whole = {place: each[:-1] for place, each in arrays.items()}
        made, factors = guarded_mean(self.guard, whole, hop.reporters, claims, struck)
        for at in range(len(next(iter(claims.values()), ()))):
            parts = {place: _part(whole[place], len(claims[place]), at) for place in whole}
            size = _lower_median([_norm(part) for part in parts.values()])
            if _lower_median([abs(float(each[at])) for each in claims.values()]) >= 0.5 * size:
                rows = {place: sketch(part, np)[0] for place, part in parts.items()}
                middle = np.sort(np.stack(list(rows.values())), axis=0)[(len(rows) - 1) // 2]
                self._add(names, rows, middle, size)
        self._note(round_, names, factors, struck)
        return made

    def up(self, arrays: list[np.ndarray], start: Any) -> list[np.ndarray]:
        """What an agent sends to a server that guards: its message, and how far that has come."""
        return [*arrays, moves(arrays, start)] if self.guards_server else arrays

    @property
    def guards_server(self) -> bool:
        """Whether the server judges what it is sent."""
        return self.guard is not None and self.guard.guard_server

    def blame(self) -> str:
        """Who is known to send nonsense, for a sentence; empty: nobody."""
        worst = max(self.named or self._factors, key=(self.named or self._factors).__getitem__, default="")
        factor = self.named.get(worst, self._factors.get(worst, 0.0))
        too_far = self.guard is not None and float(self.guard.keep(np.float64(factor), np)) != 1.0
        return f"{worst} sent vectors {factor:.3g} times as far off as usual" if worst and too_far else ""

    def forget(self) -> None:
        """Somebody was expelled, and trackers start again: sums over rounds do too."""
        with self._lock:
            self._sums.clear()

    def _enter(self, round_: int, names: Sequence[str]) -> set[int]:
        """The places that are left out of this round already; an earlier round is over, and its strikes count."""
        with self._lock:
            for past in [each for each in self._heard if each < round_]:
                struck, heard = self.struck.pop(past, set()), self._heard.pop(past)
                self._rounds += 1
                gathered = {name: float(np.linalg.norm(total)) for name, total in self._sums.items()}
                usual = max(_largest_usual(list(gathered.values())), self._first)
                for name in heard:
                    drift = gathered.get(name, 0.0) / usual if usual else 0.0
                    self._factors[name] = max(self._factors[name], drift)
                    if float(self.guard.keep(np.float64(drift), np)) == 0:  # type: ignore[union-attr]
                        struck = struck | {name}
                    self._strikes[name] = self._strikes.get(name, 0) + 1 if name in struck else 0
                    self._name(name)
            return {place for place, name in enumerate(names) if name in self.struck.get(round_, ())}

    def _note(self, round_: int, names: Sequence[str], factors: Mapping[int, float], struck: set[int]) -> None:
        with self._lock:
            self._heard.setdefault(round_, set()).update(names[place] for place in factors)
            self.struck.setdefault(round_, set()).update(names[place] for place in struck)
            for place, factor in factors.items():
                self._factors[names[place]] = max(factor, self._factors.get(names[place], 0.0))

    def _add(self, names: Sequence[str], parts: Mapping[int, np.ndarray], own: np.ndarray, size: float) -> None:
        """What differs from one's own vector, added up over the rounds."""
        with self._lock:
            if self._rounds < SETTLED:
                self._first = max(self._first, size)
            for place, part in parts.items():
                self._sums[names[place]] = self._sums.get(names[place], 0.0) + (part - own).astype(np.float64)

    def _name(self, name: str) -> None:
        assert self.guard is not None
        if self._strikes[name] >= self.guard.strikes and name not in self.named:
            self.named[name] = min(self._factors[name], 1e300)
            log.warning(
                "%s sends vectors up to %.3g times as far off as usual, in %d rounds in a row: they are left out",
                name,
                self._factors[name],
                self._strikes[name],
            )


def _part(arrays: Arrays, vectors: int, at: int) -> Arrays:
    """One of the vectors of a message."""
    size = len(arrays) // vectors
    return arrays[at * size : (at + 1) * size]


def _keep(guard: Guard, factors: Mapping[int, float], struck: set[int]) -> dict[int, float]:
    """The share of every message that is taken; who is left out joins `struck`."""
    keep = {each: 0.0 if each in struck else float(guard.keep(np.float64(far), np)) for each, far in factors.items()}
    struck |= {each for each, share in keep.items() if share == 0}
    return keep


def _with_starts(own: Arrays, start: Arrays) -> list[tuple[Arrays, Arrays | None]]:
    """The vectors of a message, each with the parameters that it may come from."""
    shapes = [array.shape for array in start]
    return [(z, start if [a.shape for a in z] == shapes else None) for z in split(list(own), shapes)]


def _norm(arrays: Arrays) -> float:
    return math.sqrt(sum(float(np.square(array, dtype=np.float64).sum()) for array in arrays))


def _apart(first: Arrays, second: Arrays) -> float:
    return _norm([a.astype(np.float64) - b for a, b in zip(first, second, strict=True)])


def _largest_usual(values: Sequence[float]) -> float:
    place = len(values) - 1 - max(1, (len(values) - 1) // 4)
    return sorted(values)[place] if place >= 0 else 0.0


def _lower_median(values: Sequence[float]) -> float:
    return sorted(values)[(len(values) - 1) // 2] if len(values) else 0.0


def _tiny(arrays: Arrays) -> float:
    eps = max(float(jnp.finfo(array.dtype).eps) for array in arrays)
    return 16 * eps * _norm(arrays) + float(np.finfo(np.float32).tiny)
