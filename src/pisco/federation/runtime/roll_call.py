"""Who is called to which round: the server's decisions, from what members say and the time alone.

A round is attempted by those on its roll, and counts once all of them have said that they are done. If some have not
when the deadline is over, those who hold it up are left out, and the others attempt it again. Who is not on the roll is
not waited for: it is called for the next one once it says that it is there. Who makes the others wait, by vanishing or
by being slow, rests for three times as long, so that waiting for a member takes at most a quarter of the time.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Iterable, Sequence
from typing import NamedTuple

from pisco.display import plural
from pisco.federation.plan import Federation
from pisco.federation.rolls import Chain, Roll, may_expel, plan_mark

SLOW, ROUNDS, JITTER = 2.0, 3, 0.02
"""A member is slow that computes so many times as long as the median, in so many rounds running, by so many seconds."""

REST, LONGEST = 3.0, 32.0
"""How long a member rests, in units of the time for which it made the others wait. Who makes an attempt fail rests
twice as long each time in a row, up to so many times: it may be cut off from the others for long, and not from us."""


class Word(NamedTuple):
    """What a member said last. `waits_for`: an agent's index, -1 for the server, None while it computes."""

    known: int = 0
    done: int = 0
    ready: bool = False
    plan: str = ""
    seconds: float = 0.0
    waits_for: int | None = None


class RollCall:
    """The decisions so far, and the next one.

    >>> plan = Federation.create("demo", agents=3, algorithm={"local_lr": 0.1, "local_steps": 1}, rounds=5,
    ...                          presence="deadline", deadline=2.0, quorum=2)
    >>> call = RollCall(plan, [], now=0.0)
    >>> for agent in range(2):
    ...     call.hear(agent, Word(ready=True, plan=plan_mark(plan, 0)), now=0.0)
    >>> call.decide(1.0) is None, call.decide(2.0).present      # the third has missed the deadline
    (True, (0, 1))
    """

    def __init__(self, plan: Federation, rolls: Iterable[Roll], now: float):
        self.plan, self.chain = plan, Chain(plan)
        self.hashes = [self.chain.hash]  # after so many rolls
        self.opened: float | None = None  # when the newest roll was called; None: nobody has said a word yet
        self.counted: dict[int, int] = {}  # the last roll of each that counts: it must not be before that
        self._words: dict[int, Word] = {}
        self._heard: dict[int, float] = {}
        self._lost: dict[int, float] = {}  # since when each has been without a connection
        self._rests: dict[int, float] = {}
        self._failures: dict[int, float] = {}
        self._paces: dict[int, deque[float]] = {}
        self._blamers: dict[int, set[int]] = {}  # who has waited for each that was done
        self._noted = 0  # rolls whose paces are noted
        self._expelled: set[int] = set()  # to be left off from the next roll on
        self.lacks = ""  # why no roll was called, when it was last tried
        for roll in rolls:
            self._add(roll)
        if self.chain.count:
            self.opened = now

    def hear(self, index: int, word: Word, now: float) -> None:
        """A member says how far it is."""
        self._words[index], self._heard[index] = word, now
        self._lost.pop(index, None)
        if self.opened is None and word.ready:
            self.opened = now

    def expel(self, index: int) -> bool:
        """Leave a member off every further roll; not where the plan does not allow it, or it is off already."""
        before = {*self.chain.head.expelled, *self._expelled}
        if index in before or not may_expel(self.plan, max(self.chain.head.round, 0), sorted({*before, index})):
            return False
        self._expelled.add(index)
        return True

    def lose(self, index: int, now: float) -> None:
        """A member's connection broke."""
        self._heard.pop(index, None)
        self._lost[index] = now

    def add(self, roll: Roll, now: float) -> None:
        """A decision that is on disk."""
        before, waited = self.chain.head, now - (now if self.opened is None else self.opened)
        if self.chain.count and roll.round == before.round:
            waited = min(waited, self.plan.deadline or 0.0)  # longer: a quorum was missing
            for index in set(before.present) - set(roll.present):
                again = self._failures[index] = min(LONGEST, 2 * self._failures.get(index, 0.5))
                self._rests[index] = now + REST * waited * again
        else:
            for index in before.present:
                self._failures.pop(index, None)
        self._add(roll)
        self.opened = now

    def _add(self, roll: Roll) -> None:
        before = self.chain.head
        if self.chain.add(roll, self.plan):
            self.counted |= dict.fromkeys(before.present, self.chain.count - 1)
        self.hashes.append(self.chain.hash)

    def _note_paces(self, present: Sequence[int], now: float) -> None:
        """Let those rest who are slow round after round, before the next roll is called."""
        if self._noted == self.chain.count:
            return
        self._noted = self.chain.count
        for index in present:
            self._paces.setdefault(index, deque(maxlen=ROUNDS)).append(self._words[index].seconds)
        usual = sorted(self._words[index].seconds for index in present)[(len(present) - 1) // 2]
        for index in present:
            pace, late = self._paces[index], self._words[index].seconds - usual
            if len(pace) == ROUNDS and min(pace) > SLOW * usual and late > JITTER:
                self._rests[index] = now + REST * late

    # The next decision

    def decide(self, now: float, server_waits_for: int | None = None) -> Roll | None:
        """The next roll, once it can be called; the caller keeps it and then adds it."""
        head, plan = self.chain.head, self.plan
        if head.round >= plan.rounds or self.opened is None:
            return None
        assert plan.deadline is not None
        late = now >= self.opened + plan.deadline
        if not self.chain.count:
            called = self._ready(0, now)
            return self._roll(0, 0, called, now) if late or len(called) == len(plan.roster) else None
        if all(self._done(index) for index in head.present):
            self._note_paces(head.present, now)
            return self._roll(head.round + 1, 0, head.present, now)
        # Who died need not be waited for: its connection broke, and it has not come back soon.
        missing = {i for i in head.present if not self._done(i) and now - self._lost.get(i, now) >= plan.deadline / 4}
        if late:
            missing |= self._missing(now, server_waits_for)
        elif not missing:
            return None
        return self._roll(head.round, head.attempt + 1, [i for i in head.present if i not in missing], now)

    def _done(self, index: int) -> bool:
        return index in self._words and self._words[index].done >= self.chain.count

    def _here(self, index: int, now: float) -> bool:
        return index in self._heard and now - self._heard[index] <= (self.plan.deadline or 0.0)

    def _ready(self, round_: int, now: float) -> list[int]:
        """The members who say that they are there, know all rolls, and have our plan."""
        mark, found = plan_mark(self.plan, round_), []
        for member in self.plan.epoch_at(round_).members:
            word = self._words.get(member.index, Word())
            if self._here(member.index, now) and word.ready and word.known == self.chain.count and word.plan == mark:
                found.append(member.index)
        return found

    def _roll(self, round_: int, attempt: int, stay: Iterable[int], now: float) -> Roll | None:
        """A roll of those who stay and of those who come, or None without a quorum."""
        mark, expelled = plan_mark(self.plan, round_), {*self.chain.head.expelled, *self._expelled}
        if not may_expel(self.plan, round_, sorted(expelled)):
            expelled = {*self.chain.head.expelled}  # those that were just named are too many once the roster shrinks
        off = tuple(sorted(expelled))
        if round_ == self.plan.rounds:
            return Roll(round_, 0, mark, (), off)
        members = {member.index for member in self.plan.epoch_at(round_).members} - expelled
        # A word for round k + 1 is one for another attempt at k too: plans that agree later agree before.
        fits = plan_mark(self.plan, self.chain.head.round + 1)
        stay = {i for i in stay if i in members and self._here(i, now) and self._words[i].plan == fits}
        come = set(self._ready(self.chain.head.round + 1, now)) & members - set(self.chain.head.present)
        quorum, fewest = self.plan.quorum_at(round_, off), self.plan.fewest_reporters
        if not self.plan.tries_server(attempt):
            stay, come = stay & self.chain.joined, come & self.chain.joined  # who joins asks the server for a mean
        called = {i for i in stay | come if self._rests.get(i, now) <= now}
        if len(called) < quorum or len(called & self.chain.joined) < fewest:
            called = stay | come
        before = called & self.chain.joined
        if len(called) < quorum or len(before) < fewest:
            few = len(called) < quorum
            need, there, who = (quorum, called, "ready in time") if few else (fewest, before, "that took part before")
            self.lacks = f"round {round_} waits: it needs {plural(need, 'member')} {who}, and has {len(there)}"
            return None
        if not attempt and self.chain.repeats(round_, called, self.plan):
            return self._roll(round_, 1, stay, now)  # without the server
        return Roll(round_, attempt, mark, tuple(sorted(called)), off)

    def _missing(self, now: float, server_waits_for: int | None) -> set[int]:
        """Who holds up the attempt: the silent, those who still compute, or else the one most waited for."""
        present = self.chain.head.present
        waiting = [i for i in present if self._here(i, now) and not self._done(i)]
        here = [i for i in present if self._done(i) and self._here(i, now)]
        here += [i for i in waiting if self._words[i].waits_for is not None]
        missing = set(present) - set(here)
        if missing:
            return missing
        named = [*(self._words[i].waits_for for i in waiting), server_waits_for]
        waited_for = Counter(index for index in named if index in present)
        worst = max(waited_for, key=lambda i: (waited_for[i], not self._done(i), i), default=None)
        spare = len(present) - self.plan.quorum_at(self.chain.head.round, self.chain.head.expelled)
        if worst is None:  # they wait for the server, and it for nobody: its average does not get through to them
            return set(waiting) if len(waiting) <= spare else set()
        if not self._done(worst) or worst == server_waits_for:
            return {worst}
        # It is done: the way to it is cut, or one of the two lies. Who waits for a second one goes itself, and so does
        # one for whom a second member waits, where a quorum is left.
        by = [i for i in waiting if self._words[i].waits_for == worst]
        blamers = self._blamers.setdefault(worst, set())
        blamers |= {*by}
        again = {i for i in by if any(i in who for other, who in self._blamers.items() if other != worst)}
        both = again | {worst} if len(blamers) > 1 else again
        return next((gone for gone in (both, again) if 0 < len(gone) <= spare), {worst})
