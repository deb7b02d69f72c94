"""A member's audit log: what it refused, which plans and rolls it went by, who was expelled; every line on the last.

AUDIT.jsonl, one line each: `{"at", "kind", "facts", "hash", "signature"}`. A line's hash is over the hash before it
and its own time, kind and facts, and the member's key signs it. A line that was changed, left out or put in breaks the
chain; lines cut off at the end are missed by who has noted a later hash.

| kind | facts |
| --- | --- |
| start | member, federation, certificate, hash and version of the plan |
| plan | hash and version of a newer one |
| refusal | the line of the log |
| roll | its place, round, attempt, who is called, who was left out since the last attempt, the hash of all rolls |
| expulsion | the round from which on, and the members' indices |
| revoked | serial numbers of certificates |
| stop | nothing: the process ends, and was not killed |

Rolls come too often to be signed one by one; the next line of another kind signs them with itself. Where that is a
start, after a kill, somebody else may have written them.
"""

from __future__ import annotations

import base64
import datetime as dt
import hashlib
import json
import logging
import os
import threading
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from cryptography import x509

from pisco.errors import InputError
from pisco.federation import authority as ca
from pisco.federation.keyfiles import check_signed
from pisco.federation.kits import Kit
from pisco.federation.naming import Refused, member_of
from pisco.federation.plan import Federation
from pisco.federation.rolls import check_signature, sign

log = logging.getLogger("pisco.federation")

FILE = "audit.jsonl"
START, ROLL = "start", "roll"


class Noted(NamedTuple):
    """One line of a log that was found whole."""

    at: str
    kind: str
    facts: dict[str, Any]
    hash: str
    signed: bool = True
    """By itself: a line without is whole if one after it is signed."""


class BadLine(Exception):
    """What is wrong with a line."""


class AuditLog:
    """The log in a member's state folder, to which lines are added and nothing else."""

    def __init__(self, folder: Path, kit: Kit, *, durable: bool = True):
        self.path, self.kit, self.durable = folder / FILE, kit, durable
        self._lock = threading.Lock()
        self.head = ""
        for line in lines(self.path):  # one by one: a long run has many
            self.head = line.hash
        self._file = os.open(self.path, os.O_RDWR | os.O_CREAT | os.O_APPEND, 0o600)
        with os.fdopen(os.dup(self._file), "rb") as written:
            self._end = sum(len(line) for line in written if line.endswith(b"\n"))
        os.ftruncate(self._file, self._end)  # a line cut short by a kill
        plan = kit.federation
        self.add(
            START,
            member=kit.name,
            federation=plan.name,
            certificate=kit.certificate.decode(),
            plan=plan.hash,
            version=kit.version,
        )

    def add(self, kind: str, *, sure: bool = True, **facts: Any) -> None:
        """One more line. A `sure` one is signed, with all before it, and on disk before we go on."""
        with self._lock:
            if self._file < 0:
                return  # closed: somebody is still being answered
            at = dt.datetime.now(dt.UTC).isoformat(timespec="milliseconds")
            head = _hash(self.head, at, kind, facts)
            signature = base64.b64encode(sign(self.kit, bytes.fromhex(head))).decode() if sure else ""
            line = {"at": at, "kind": kind, "facts": facts, "hash": head, "signature": signature}
            content = json.dumps(line).encode() + b"\n"
            try:
                if os.write(self._file, content) != len(content):
                    raise OSError("the disk is full")
                if sure and self.durable:
                    os.fsync(self._file)
            except OSError as error:  # the run is worth more than a line of its log
                log.warning("cannot write to %s: %s", self.path, error)
                os.ftruncate(self._file, self._end)
                return
            self.head, self._end = head, self._end + len(content)

    def close(self) -> None:
        """The last line of a run."""
        self.add("stop")
        with self._lock:
            if self._file >= 0:
                os.close(self._file)
            self._file = -1


def read(path: Path, authority: bytes | None = None, plan: Federation | None = None) -> list[Noted]:
    """The lines of a log, checked: each on the one before; and signed by a member, where `authority` is given.

    The plan says whom certificates of another authority name.
    """
    return list(lines(path, authority, plan))


def lines(path: Path, authority: bytes | None = None, plan: Federation | None = None) -> Iterator[Noted]:
    """The same, one line after the other."""
    if not path.exists():
        return
    first = made = None
    certificate = b""
    with path.open(errors="replace", newline="\n") as file:
        for number, line in enumerate(file, 1):
            if not line.endswith("\n"):
                break
            try:
                said, before = json.loads(line), made.hash if made else ""
                made = Noted(said["at"], said["kind"], said["facts"], said["hash"], bool(said["signature"]))
                if made.hash != _hash(before, *made[:3]):
                    raise BadLine("was changed, or lines before it are missing")
                if made.kind != ROLL and not made.signed:
                    raise BadLine("is not signed")
                first = first or made
                if authority is not None and made.kind == START:
                    certificate = _signer(made.facts, first.facts["member"], authority, plan)
                if authority is not None and made.signed:
                    # Each, not the last alone: the member's next start signs whatever stands in the file by then.
                    _check(certificate, base64.b64decode(said["signature"]), made.hash)
            except BadLine as error:
                raise InputError(f"line {number} of {path} {error}; ask who could write to it") from None
            except (ValueError, KeyError, TypeError, AttributeError):
                raise InputError(f"line {number} of {path} cannot be read; ask who could write to it") from None
            yield made


def unsigned(lines: Sequence[Noted]) -> tuple[int, int]:
    """How many lines stand without a signature before a later start, and how many at the end.

    The start's own signature says only that the member found them there.
    """
    before = open_ = 0
    for line in lines:
        before += open_ if line.kind == START else 0
        open_ = 0 if line.signed else open_ + 1
    return before, open_


def _hash(before: str, at: str, kind: str, facts: dict[str, Any]) -> str:
    text = json.dumps([before, at, kind, facts], sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()


def _check(certificate: bytes, signature: bytes, digest: str) -> None:
    try:
        check_signature(certificate, bytes.fromhex(digest), signature)
    except ValueError:
        raise BadLine("is not signed by the member") from None


def _signer(facts: dict[str, Any], member: str, authority: bytes, plan: Federation | None) -> bytes:
    certificate = facts["certificate"].encode()
    known = x509.load_pem_x509_certificate(certificate)
    if not check_signed(known, authority):
        raise BadLine("has a certificate that another authority signed")
    try:
        whose = member_of(known, plan) if plan else ca.common_name(known)
    except Refused as error:
        raise BadLine(f"is not a member's: {error}") from None
    if not whose == facts["member"] == member:
        raise BadLine(f"has a certificate of {whose!r}, and the log is of {member!r}")
    return certificate
