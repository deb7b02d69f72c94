"""An agent that nobody can dial: it stays connected to every relay, and comes when one calls."""

from __future__ import annotations

import contextlib
import errno
import logging
import socket
import threading
import time
from collections.abc import Callable, Iterator

from pisco.errors import InputError
from pisco.federation.kits import Kit, Refused
from pisco.federation.plan import Federation
from pisco.federation.roster import OUTBOUND, RelayPoint
from pisco.federation.runtime import tunnels
from pisco.federation.runtime.lines import Lines, printable
from pisco.federation.runtime.relay import BEAT, Relay, streams_of
from pisco.federation.runtime.splicing import hang_up, splice

log = logging.getLogger("pisco.federation")


def ways_in(
    kit: Kit, plan: Callable[[], Federation], address: str, listen: str, moved: str | None
) -> Callable[[], None]:
    """Open what lets others in beyond a member's own port, where it answers at `listen`; gives what closes it.

    That is a relay, if the member is one in the plan (on the host of `moved`, if it listens elsewhere than planned),
    and an outbound agent's connections to all relays.
    """
    tunnels.proxy_for(kit, "example.org")  # one that cannot be used is said now, not at the first call
    ways = contextlib.ExitStack()
    for point in plan().relays or ():
        if point.name == kit.name:
            host, _, port = point.address.rpartition(":")
            relay = Relay(kit, f"{moved.rpartition(':')[0] if moved else host}:{port}", plan)
            kit.own_relay = relay.address
            ways.callback(relay.close)
    if address == OUTBOUND:
        ways.callback(Outbound(kit, plan(), listen).close)
    return ways.close


class Outbound:
    """Stays connected until it is closed; calls end at `listen`, where the agent itself answers."""

    def __init__(self, kit: Kit, plan: Federation, listen: str):
        self.kit, self.listen = kit, listen
        self._seats = threading.Semaphore(streams_of(plan))  # a relay calls as often as it likes
        self._closed, self._lock = threading.Event(), threading.Lock()
        self._open: set[socket.socket] = set()
        for relay in plan.relays or ():
            threading.Thread(target=self._stay, args=(relay,), daemon=True, name="outbound").start()

    def close(self) -> None:
        """Hang up everywhere."""
        self._closed.set()
        with self._lock:
            left = list(self._open)
        for each in left:
            with contextlib.suppress(OSError):
                each.shutdown(socket.SHUT_RDWR)

    @contextlib.contextmanager
    def _kept(self, raw: socket.socket) -> Iterator[None]:
        """While it is used, `close` reaches it."""
        with self._lock:
            self._open.add(raw)
        try:
            if self._closed.is_set():
                raise OSError(errno.ECANCELED, "we hang up")
            yield
        finally:
            with self._lock:
                self._open.discard(raw)
            hang_up(raw)

    def _stay(self, relay: RelayPoint) -> None:
        pause, said = 0.1, ""
        while not self._closed.is_set():
            began = time.monotonic()
            try:
                secured = tunnels.knock(self.kit, relay, "register")
                with self._kept(secured), contextlib.closing(Lines(secured)) as lines:
                    self._listen_to(relay, lines)
            except (OSError, Refused, InputError) as error:
                trouble = tunnels.said(error)
            else:
                trouble = ""
            if self._closed.is_set():
                return
            if time.monotonic() - began > BEAT:  # it was there for a while
                pause, said = 0.1, ""
            if trouble != said:
                log.warning("the relay %s at %s: %s; trying again", relay.name, relay.address, trouble)
                said = trouble
            self._closed.wait(pause)
            pause = min(2.0, 2 * pause)

    def _listen_to(self, relay: RelayPoint, lines: Lines) -> None:
        heard = told = time.monotonic()
        while not self._closed.is_set():
            for line in lines.turn(BEAT / 2):
                heard = time.monotonic()
                verb, _, rest = line.partition(" ")
                if verb == "ok":
                    log.info("others reach us through the relay %s", relay.name)
                elif verb == "no":
                    raise OSError(errno.EACCES, "it refuses us: " + printable(rest))
                elif verb == "call" and self._seats.acquire(blocking=False):
                    threading.Thread(target=self._take, args=(relay, rest), daemon=True, name="outbound").start()
            now = time.monotonic()
            if now - heard > 3 * BEAT:
                raise OSError(errno.ETIMEDOUT, "it went silent")
            if now - told > BEAT:
                told = now
                lines.send("here")

    def _take(self, relay: RelayPoint, token: str) -> None:
        try:
            raw = tunnels.agreed(tunnels.knock(self.kit, relay, "take", printable(token)))
            with self._kept(raw):
                splice(tunnels.here(self.listen), raw)
        except (OSError, Refused, InputError) as error:  # who called sees it, and tries again
            log.debug("a call through the relay %s came to nothing: %s", relay.name, error)
        finally:
            self._seats.release()
