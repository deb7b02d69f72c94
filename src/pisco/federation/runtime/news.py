"""New plans and revocations reach everybody through the server: signed by the authority, shown, then put into the kit.

The coordinator copies them into the server's kit alone. The server tells who reports to it that there is something new.
Members then ask for it, and now and then anyway. Whatever the server says, only what the authority signed, and signed
later than what is in force, gets into a kit. A running process finds it there.
"""

from __future__ import annotations

import contextlib
import json
import logging
import threading
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from pathlib import Path

from google.protobuf.message import DecodeError

from pisco.errors import InputError
from pisco.federation import authority as ca
from pisco.federation import signed
from pisco.federation.kits import PLAN, Kit
from pisco.federation.plan import Federation
from pisco.federation.runtime.lines import printable
from pisco.files import atomic_write

log = logging.getLogger("pisco.federation")

EVERY, SELDOM = 5.0, 60.0
"""Seconds between two questions: where the server does not say whether there is news, and where it does."""


@dataclass(frozen=True)
class Notice:
    """What somebody has, and, as an answer, the texts that are newer; JSON on the wire."""

    version: int = 0
    listed: float = 0.0
    revocations: int = 0  # lists are dated in whole seconds, and only grow
    plan: str = ""
    revoked: str = ""
    holds: str = ""  # the hash of the plan that one acts by; as an answer, of that which everybody does
    lacking: str = ""  # those who do not

    def SerializeToString(self) -> bytes:
        """As messages of protobuf are asked."""
        return json.dumps(asdict(self)).encode()

    @classmethod
    def FromString(cls, data: bytes) -> Notice:
        """As messages of protobuf are read."""
        try:
            found = json.loads(data)
            numbers = int(found["version"]), float(found["listed"]), int(found["revocations"])
            words = (str(found.get(name, ""))[:1000] for name in ("holds", "lacking"))
            return cls(*numbers, str(found["plan"]), str(found["revoked"]), *words)
        except (ValueError, KeyError, TypeError, OverflowError, RecursionError):
            raise DecodeError("not a notice") from None


def have(kit: Kit) -> Notice:
    """What is in force here."""
    return Notice(kit.version, kit.listed, len(kit.revoked))


def newer(kit: Kit, than: Notice) -> Notice:
    """The texts in our kit that are newer than what somebody has."""
    own = have(kit)
    with contextlib.suppress(OSError):  # it is being copied just now
        plan = (kit.folder / PLAN).read_text() if own.version > than.version else ""
        later = (own.listed, own.revocations) > (than.listed, than.revocations)
        revoked = (kit.folder / ca.REVOKED).read_text() if later else ""
        return Notice(own.version, own.listed, own.revocations, plan, revoked)
    return own


def take(kit: Kit, notice: Notice) -> None:
    """Show what is new, and put it into the kit; what the authority did not sign, or signed before, is refused."""
    if notice.revoked:
        _beside(kit.folder / ca.REVOKED, notice.revoked, lambda path: _list(kit, path))
    if notice.plan:
        _beside(kit.folder / PLAN, notice.plan, lambda path: _plan(kit, path))


def _beside(place: Path, text: str, check: Callable[[Path], bool]) -> None:
    """Put a text in place if it passes, looked at as a file beside it."""
    beside = place.with_name(f"new-{place.name}")
    try:
        atomic_write(beside, text.encode())
        if check(beside):
            beside.replace(place)
    except (OSError, InputError, UnicodeError) as error:
        log.warning("what the server brings is not taken: %s", printable(str(error)))
    finally:
        with contextlib.suppress(OSError):
            beside.unlink(missing_ok=True)


def _list(kit: Kit, path: Path) -> bool:
    listed = ca.read_revoked(path, kit.signer, kit.federation.name)
    if (listed.last_update_utc.timestamp(), len(listed)) <= (kit.listed, len(kit.revoked)):
        return False
    new = sorted({each.serial_number for each in listed} - kit.revoked)
    log.warning("the authority revokes %s", ", ".join(f"{serial:x}" for serial in new) or "nothing new")
    return True


def _plan(kit: Kit, path: Path) -> bool:
    plan = Federation.load(path)
    version = signed.check(path, plan, kit.signer)
    if version <= kit.version or plan.name != kit.federation.name:
        return False
    log.warning("the authority signs version %d of the plan, %s: %s", version, plan.hash[:12], described(plan))
    return True


def described(plan: Federation) -> str:
    """The changes of a plan, in one line."""
    words = [
        f"from round {change.round} on {change.action} {change.name}{f' ({at})' if at else ''}"
        f"{', who is gone' if change.now else ''}"
        for change in plan.changes
        for at in [change.address or change.reach]
    ]
    return "; ".join(words) or "no changes of the roster"


class Newsstand:
    """The server's part: what every member had when it asked last."""

    def __init__(self, kit: Kit):
        self.kit = kit
        self._had: dict[str, Notice] = {}

    def holds(self, name: str, plan: str) -> bool:
        """Whether a member acts by the plan with this hash."""
        return name in self._had and self._had[name].holds == plan

    def new_for(self, name: str, plan: str) -> bool:
        """Whether there is news for a member, where ours is the plan with this hash."""
        return self._had.get(name) != replace(have(self.kit), holds=plan)

    def tell(self, name: str, request: Notice, plan: str, lacking: Callable[[], list[str]]) -> Notice:
        """Answer a member; `lacking` are those who do not act by our plan."""
        self._had[name] = replace(request, plan="", revoked="", lacking="")
        without = ", ".join(lacking())
        return replace(newer(self.kit, request), holds="" if without else plan, lacking=without)


class Newsreader:
    """Asks the server when it says that there is news, and now and then, until it is closed.

    Args:
      kit: where what is new is put.
      ask: the question.
      holds: the hash of the plan that is acted by here.
      look: called every second, and after every answer, to take what is new.
    """

    def __init__(
        self,
        kit: Kit,
        ask: Callable[[Notice], Notice],
        holds: Callable[[], str] = str,
        look: Callable[[], None] = lambda: None,
    ):
        self.kit, self._ask, self._holds, self._look = kit, ask, holds, look
        self.answer, self.every = Notice(), EVERY
        self._asked, self._said, self._heard, self._new = time.monotonic(), "", -EVERY, False
        self._closed = threading.Event()
        threading.Thread(target=self._loop, daemon=True, name="news").start()

    def heard(self, *, new: bool) -> None:
        """The server answers our reports, and says whether there is news."""
        self._heard, self._new = time.monotonic(), new

    def _due(self) -> bool:
        now, told = time.monotonic(), self.every >= EVERY and self._holds() == self._said
        quiet = told and not self._new and now - self._heard < EVERY
        return now - self._asked >= (SELDOM if quiet else min(self.every, EVERY))

    def _loop(self) -> None:
        while not self._closed.wait(min(self.every, 1.0)):
            with contextlib.suppress(Exception):  # the server is away, or older than this question
                self.kit.look_for_certificate()
                self._look()
                if self._due():
                    self._asked, said = time.monotonic(), self._holds()
                    self.answer = self._ask(replace(have(self.kit), holds=said))
                    self._said = said
                    take(self.kit, self.answer)
                    self._look()

    def close(self) -> None:
        self._closed.set()
