"""Rolls: who takes part in which attempt at which round, as the server decided, in one signed chain.

The log is a list of rolls, and everything follows from their order. A roll of round k + 1 says that the attempt before
it counts; another roll of round k says that it does not. The last one, of the round after the last, is empty: all is
over. Every roll is hashed with all before it, so two members who name the same hash were told the same past.

ROLLS.jsonl: a line `{"federation", "certificate"}`, then `{"round", "attempt", "plan", "present", "signature"}` each;
`present` holds the agents' indices, and a signature is over the hash of all rolls until there.
"""

from __future__ import annotations

import base64
import errno
import hashlib
import itertools
import json
import os
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from cryptography import x509
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import load_pem_private_key

from pisco.errors import InputError
from pisco.federation.keyfiles import check_signed
from pisco.federation.kits import Kit
from pisco.federation.naming import Refused, member_of
from pisco.federation.plan import Federation
from pisco.federation.roster import SERVER

FILE = "rolls.jsonl"


class BadRoll(ValueError):
    """A roll that cannot be right; the sentence says why."""


class OtherPlan(BadRoll):
    """A roll by a plan that is not ours: somebody has not got the newest one yet."""


class Roll(NamedTuple):
    """Who takes part in an attempt at a round: the agents' indices, in order, by the plan with this hash.

    `expelled` are all who have been left off for good: members or the server named them for poison (`guard`).
    """

    round: int
    attempt: int
    plan: str
    present: tuple[int, ...]
    expelled: tuple[int, ...] = ()

    @classmethod
    def of(cls, said: Mapping[str, Any]) -> Roll:
        """A roll as it was written."""
        present = tuple(int(index) for index in said["present"])
        expelled = tuple(int(index) for index in said.get("expelled", ()))
        return cls(int(said["round"]), int(said["attempt"]), str(said["plan"]), present, expelled)

    def hash(self, before: bytes) -> bytes:
        """Of this roll and all before it."""
        told = self if self.expelled else self[:-1]  # rolls from before anybody could be expelled keep their hash
        return hashlib.sha256(before + json.dumps(told, separators=(",", ":")).encode()).digest()


def plan_mark(plan: Federation, round_: int) -> str:
    """What a roll says of the plan that holds in its round."""
    return plan.hash_at(round_)[:16]


def may_expel(plan: Federation, round_: int, expelled: Sequence[int]) -> bool:
    """Whether the plan's guard leaves members off, and these are a minority of them."""
    members = {member.index for member in plan.epoch_at(round_).members}
    fits = set(expelled) <= {*plan.indices.values()} and list(expelled) == sorted(set(expelled))
    return (
        plan.guard is not None and plan.guard.reports > 0 and fits and 2 * len(members & set(expelled)) < len(members)
    )


class Chain:
    """The rolls so far, as anybody knows them: how many, the newest, the hash of all, and who has ever taken part.

    >>> plan = Federation.create("demo", agents=3, algorithm={"local_lr": 0.1, "local_steps": 1}, rounds=5,
    ...                          presence="deadline", deadline=2.0, quorum=2)
    >>> chain, mark = Chain(plan), plan_mark(plan, 0)
    >>> chain.add(Roll(0, 0, mark, (0, 1, 2)), plan)
    >>> chain.add(Roll(0, 1, mark, (0, 1)), plan), chain.add(Roll(1, 0, mark, (0, 1)), plan)  # does the last count?
    (False, True)
    >>> chain.count, chain.head.present
    (3, (0, 1))
    """

    KEPT = 4

    def __init__(self, plan: Federation, kept: dict[str, Any] | None = None):
        self.joined = frozenset(member.index for member in plan.roster)
        self.count, self.hash, self.head = 0, bytes.fromhex(plan.hash_at(0)), Roll(-1, 0, "", ())
        self.hashes: dict[int, bytes] = {}  # after each of the newest few rolls
        self.summed = frozenset[int]()  # who still holds what was in a masked sum of an attempt that was called off
        if kept is not None:
            self.count, self.hash = kept["count"], bytes.fromhex(kept["hash"])
            self.head, self.joined = Roll.of(kept["head"]), frozenset(kept["joined"])
            self.hashes[self.count - 1], self.summed = self.hash, frozenset(kept.get("summed", ()))

    def facts(self) -> dict[str, Any]:
        """What `kept` takes back."""
        return {
            "count": self.count,
            "hash": self.hash.hex(),
            "head": self.head._asdict(),
            "joined": sorted(self.joined),
            "summed": sorted(self.summed),
        }

    def add(self, roll: Roll, plan: Federation) -> bool | None:
        """One more roll, refused where it does not follow; returns whether the attempt before it counts."""
        self._check(roll, plan)
        counts = roll.round > self.head.round if self.count else None
        if counts:
            self.joined |= frozenset(self.head.present)
        self.summed = self._summed_by(roll.round, plan)
        self.hash = roll.hash(self.hash)
        self.hashes[self.count], self.head = self.hash, roll
        self.hashes.pop(self.count - self.KEPT, None)
        self.count += 1
        return counts

    def _summed_by(self, round_: int, plan: Federation) -> frozenset[int]:
        """`summed` before another attempt, at this round: whoever takes part in one that counts has something new."""
        there = frozenset(self.head.present)
        if round_ > self.head.round:
            return self.summed - there
        return self.summed | there if plan.server_sum and plan.tries_server(self.head.attempt) else self.summed

    def repeats(self, round_: int, called: Collection[int], plan: Federation) -> bool:
        """Whether a sum of these would tell too much beside earlier ones, as too few bring a vector that is in none.

        Otherwise, of any sums that are combined, the last has a quorum of vectors that are in no other.
        """
        known, called = self._summed_by(round_, plan), self.joined & frozenset(called)
        return bool(known & called) and len(called - known) < plan.quorum_at(round_)

    def _check(self, roll: Roll, plan: Federation) -> None:
        follow = [(self.head.round + 1, 0)] + ([(self.head.round, self.head.attempt + 1)] if self.count else [])
        follow += [(self.head.round + 1, 1)] if plan.server_sum else []  # at once without the server
        if roll[:2] not in follow or self.head.round >= plan.rounds:
            raise BadRoll(f"attempt {roll.attempt} at round {roll.round} does not follow on {self.head[:2]}")
        if roll.plan != plan_mark(plan, roll.round):
            raise OtherPlan(f"round {roll.round} has another plan there than here; copy the newest federation.toml")
        if not set(self.head.expelled) <= set(roll.expelled) or set(roll.expelled) & set(roll.present):
            raise BadRoll(f"the roll of round {roll.round} calls somebody back who was expelled")
        if roll.expelled != self.head.expelled and not may_expel(plan, roll.round, roll.expelled):
            raise BadRoll(f"the roll of round {roll.round} expels {list(roll.expelled)}, which the plan does not allow")
        if roll.round == plan.rounds:
            if roll.present:
                raise BadRoll("somebody is called after the last round")
            return
        members = [member.index for member in plan.epoch_at(roll.round).members]
        if list(roll.present) != sorted(set(roll.present) & set(members)):
            raise BadRoll(f"the roll of round {roll.round} calls {list(roll.present)}, the members are {members}")
        if len(roll.present) < plan.quorum_at(roll.round, roll.expelled):
            raise BadRoll(f"the roll of round {roll.round} has {len(roll.present)} members, below the quorum")
        stay = set(roll.present) & self.joined
        if len(stay) < plan.fewest_reporters:
            few = f"fewer than {plan.fewest_reporters} members who do not join" if stay else "only members who join"
            raise BadRoll(f"the roll of round {roll.round} has {few}")
        if plan.tries_server(roll.attempt) and self.repeats(roll.round, roll.present, plan):
            raise BadRoll(f"too few on the roll of round {roll.round} bring a vector that is in no other sum")
        if len(stay) < len(roll.present) and not plan.tries_server(roll.attempt):
            raise BadRoll(f"somebody joins at attempt {roll.attempt} of round {roll.round}, which does without server")


def sign(kit: Kit, digest: bytes) -> bytes:
    """The signature of a kit's key."""
    key = load_pem_private_key(kit.key, None)
    assert isinstance(key, ec.EllipticCurvePrivateKey)
    return key.sign(digest, ec.ECDSA(hashes.SHA256()))


def check_signature(certificate: bytes, digest: bytes, signature: bytes) -> None:
    """Refuse what the certificate's key did not sign."""
    key = x509.load_pem_x509_certificate(certificate).public_key()
    try:
        assert isinstance(key, ec.EllipticCurvePublicKey)
        key.verify(signature, digest, ec.ECDSA(hashes.SHA256()))
    except (InvalidSignature, AssertionError):
        raise BadRoll("its signature is not the server's") from None


class RollFile:
    """The server's log on disk: a roll is in it before anybody hears of it."""

    def __init__(self, folder: Path, kit: Kit, *, durable: bool = True):
        self.path, self.kit, self.durable = folder / FILE, kit, durable
        plan = kit.federation
        self.rolls = read(self.path, plan) if self.path.exists() else []
        whole = self.path.read_bytes() if self.path.exists() else b""
        # Without a buffer: what the disk refuses is never written later, behind our back.
        self._file = self.path.open("r+b" if whole else "wb", buffering=0)
        self._end = whole.rfind(b"\n") + 1
        self._cut()  # a line cut short by a kill was told to nobody
        about = {"federation": plan.name, "certificate": kit.certificate.decode()}
        if json.dumps(about).encode() not in whole:
            self._write(about)

    def add(self, roll: Roll, signature: bytes) -> None:
        """Keep a roll."""
        self._write(roll._asdict() | {"signature": base64.b64encode(signature).decode()})
        self.rolls.append(roll)

    def _write(self, line: dict[str, Any]) -> None:
        content = json.dumps(line).encode() + b"\n"
        try:
            if self._file.write(content) != len(content):
                raise OSError(errno.ENOSPC, "No space left on device")
            if self.durable:
                os.fsync(self._file.fileno())
        except OSError:
            self._cut()
            raise
        self._end += len(content)

    def _cut(self) -> None:
        """Leave whole lines alone."""
        self._file.truncate(self._end)
        self._file.seek(self._end)

    def close(self) -> None:
        self._file.close()


def read(path: Path, plan: Federation, authority: bytes | None = None) -> list[Roll]:
    """The rolls of a log, checked: each follows on the one before it, and the server's key signed them all.

    authority: the certificate that must have signed the server's; None takes the one in the log.
    """
    chain, certificate, signature = Chain(plan), b"", b""
    try:
        lines = path.read_text(errors="replace").split("\n")[:-1]
    except OSError as error:
        raise InputError(f"cannot read {path} ({error.strerror}); give the server's {FILE}") from None
    rolls: list[Roll] = []
    for number, line in enumerate(lines, 1):
        try:
            said = json.loads(line)
            if "certificate" in said:
                certificate = _signer(said, plan, authority)
                continue
            roll, signature = Roll.of(said), base64.b64decode(said["signature"])
            chain.add(roll, plan)
            rolls.append(roll)
            if number == len(lines) or "certificate" in lines[number]:
                check_signature(certificate, chain.hash, signature)  # of all rolls until here
        except (BadRoll, ValueError, KeyError, TypeError) as error:
            why = error if isinstance(error, BadRoll) else "it is not a roll"
            raise InputError(f"line {number} of {path} cannot be used: {why}; bring back the whole log") from None
    return rolls


def counted(rolls: Sequence[Roll]) -> list[Roll]:
    """Those that count: the last attempt at every round that is over."""
    return [roll for roll, after in itertools.pairwise(rolls) if after.round > roll.round]


def _signer(said: dict[str, Any], plan: Federation, authority: bytes | None) -> bytes:
    if said["federation"] != plan.name:
        raise BadRoll("it is of another federation")
    certificate = said["certificate"].encode()
    known = x509.load_pem_x509_certificate(certificate)
    try:
        signed = authority is None or check_signed(known, authority)
        if signed and member_of(known, plan) == SERVER:
            return certificate
    except Refused:
        pass
    raise BadRoll("the certificate in it is not the server's")
