"""A relay: members that nobody can dial stay connected to it, and whoever dials one of them is passed through.

It checks everybody's certificate, knows who wants whom, and passes on bytes that only the two of them can read.

    member → relay                       relay → member
    register                             ok; then: call TOKEN, here       (stays open; `here` every few seconds)
    dial NAME                            ok, or: no REASON                (NAME is called, and takes it)
    take TOKEN                           ok
"""

from __future__ import annotations

import contextlib
import logging
import secrets
import socket
import ssl
import threading
import time
from collections import Counter, OrderedDict
from collections.abc import Callable
from dataclasses import dataclass, field

from pisco.errors import InputError
from pisco.federation.kits import Kit, Refused
from pisco.federation.plan import Federation
from pisco.federation.roster import SERVER, check_address, host_of
from pisco.federation.runtime import tunnels
from pisco.federation.runtime.lines import Lines, hear, say
from pisco.federation.runtime.splicing import hang_up, splice
from pisco.federation.runtime.transport import Door, more_files

log = logging.getLogger("pisco.federation")

BEAT = 10.0
"""Seconds between two words of a member that stays connected; after three times as long it is taken for gone."""

GREETING = 10.0
"""Seconds in which a connection must have said who it is and what it wants."""

STRANGERS = 256
"""Connections that have not said who they are; one more, and the oldest is closed."""


def streams_of(plan: Federation) -> int:
    """How many connections one member may have through a relay: a few to every other."""
    return 4 * (len(plan.names) + 2)


@dataclass
class _Call:
    """Somebody is dialled and has not come yet."""

    target: str
    come: threading.Event = field(default_factory=threading.Event)
    far: ssl.SSLSocket | None = None


class Relay:
    """Listens at once, until it is closed.

    Args:
      kit: whose certificate it shows: a relay's own, or the server's.
      address: where it listens.
      plan: the plan in force, asked for at every connection.
    """

    def __init__(self, kit: Kit, address: str, plan: Callable[[], Federation]):
        self.kit, self.plan, self.door = kit, plan, Door(kit)
        self.bytes = 0
        more_files()
        host, port = host_of(check_address(address)), int(address.rpartition(":")[2])
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        try:
            self._listener = socket.create_server((host, port), family=family, backlog=128)
        except OSError as error:
            raise InputError(
                f"the relay cannot listen at {address} ({error.strerror or error}); is the port taken, or the host "
                "another machine's?"
            ) from None
        self.address = f"{address.rpartition(':')[0]}:{self._listener.getsockname()[1]}"
        self._shown, self._context = kit.certificate, tunnels.tls(kit, server=True, alpn=tunnels.ALPN)
        self._lock = threading.Lock()
        self._strangers: OrderedDict[ssl.SSLSocket, float] = OrderedDict()
        self._open: set[socket.socket] = set()
        self._there: dict[str, Lines] = {}
        self._calls: dict[str, _Call] = {}
        self._streams: Counter[str] = Counter()
        self._closed = threading.Event()
        for work in (self._accept, self._sweep):
            threading.Thread(target=work, daemon=True, name="relay").start()

    @property
    def connected(self) -> list[str]:
        """The members that stay connected now."""
        return sorted(self._there)

    @property
    def passing(self) -> int:
        """How many connections are passed through now, or wait for whom they dial."""
        with self._lock:
            return sum(self._streams.values())

    def close(self) -> None:
        """Stop listening and drop everybody."""
        self._closed.set()
        hang_up(self._listener)
        with self._lock:
            left = [*self._open, *self._strangers]
        for each in left:
            self._end(each)

    # Connections

    def _accept(self) -> None:
        while not self._closed.is_set():
            try:
                raw, _ = self._listener.accept()
            except OSError:
                if self._closed.wait(0.1):  # too many open files, for a moment
                    return
                continue
            try:
                if self._shown != self.kit.certificate:  # it was renewed
                    self._context = tunnels.tls(self.kit, server=True, alpn=tunnels.ALPN)
                    self._shown = self.kit.certificate
                secured = self._context.wrap_socket(tunnels.tuned(raw), server_side=True, do_handshake_on_connect=False)
                where = str(secured.getpeername()[0])
            except OSError:  # it is gone already, or our certificate is being copied
                raw.close()
                continue
            with self._lock:
                self._strangers[secured] = time.monotonic()
                oldest = next(iter(self._strangers)) if len(self._strangers) > STRANGERS else None
            if oldest is not None:
                self._end(oldest)
            threading.Thread(target=self._greet, args=(secured, where), daemon=True, name="relay").start()

    def _sweep(self) -> None:
        """End connections that have not said who they are in time, however slowly they speak."""
        while not self._closed.wait(1.0):
            with self._lock:
                late = [raw for raw, since in self._strangers.items() if time.monotonic() - since > GREETING]
            for raw in late:
                self._end(raw)

    def _end(self, raw: ssl.SSLSocket) -> None:
        with self._lock:
            self._strangers.pop(raw, None)
        with contextlib.suppress(OSError):  # below TLS: its own `shutdown` takes TLS from a thread about to greet
            socket.socket.shutdown(raw, socket.SHUT_RDWR)

    def _greet(self, secured: ssl.SSLSocket, where: str) -> None:
        try:
            secured.settimeout(GREETING)
            secured.do_handshake()
            certificate = tunnels.presented(secured)
            name = self.kit.identify(certificate)
            if secured.selected_alpn_protocol() != tunnels.ALPN:
                raise Refused("it speaks something else")
            verb, _, rest = hear(secured, GREETING).partition(" ")
            work = {"register": self._register, "dial": self._dial, "take": self._take}.get(verb)
            if work is None:
                raise Refused(f"{name} asks for something unknown")
            with self._lock:
                if self._strangers.pop(secured, None) is None:
                    raise Refused(f"{name} took too long")
                self._open.add(secured)
            if work(name, secured, rest, certificate):
                return  # somebody else looks after it now
        except Refused as refused:
            self.door.complain(where, str(refused))
            with contextlib.suppress(OSError):
                say(secured, "no", str(refused)[:200])
        except (OSError, ValueError):  # a stranger without a certificate, or somebody who hung up
            log.debug("somebody at %s was not let in", where)
        with self._lock:
            self._strangers.pop(secured, None)
            self._open.discard(secured)
        hang_up(secured)

    # What members ask for

    def _register(self, name: str, secured: ssl.SSLSocket, rest: str, certificate: bytes) -> bool:
        if name not in self.plan().hidden:
            raise Refused(f"{name} is not outbound in the plan")
        lines = Lines(secured)
        with self._lock:
            before, self._there[name] = self._there.get(name), lines
        if before is not None:
            with contextlib.suppress(OSError):
                before.secured.shutdown(socket.SHUT_RDWR)  # it has started again, or its way was cut
        log.info("%s is connected", name)
        heard = time.monotonic()
        try:
            lines.send("ok")
            while not self._closed.is_set() and time.monotonic() - heard < 3 * BEAT:
                for _ in lines.turn(BEAT):
                    heard = time.monotonic()
                    lines.send("here")
                self.kit.identify(certificate)  # it may have been revoked
        finally:
            with self._lock:
                mine = self._there.get(name) is lines
                if mine:
                    del self._there[name]
            lines.close()
            if mine:
                log.info("%s is not connected any more", name)
        return False

    def _dial(self, name: str, secured: ssl.SSLSocket, target: str, certificate: bytes) -> bool:
        plan = self.plan()
        if name not in plan.names and name != SERVER:
            raise Refused(f"{name} is not in the roster")
        with self._lock:
            crowded = self._streams[name] >= streams_of(plan)
            self._streams[name] += not crowded
        if crowded:
            raise Refused(f"{name} has too many connections at once")
        try:
            far = self._summon(target)
            if far is None:
                say(secured, "no", f"{target[:63]} is not connected there")
                return False
            try:
                for each in (far, secured):
                    each.settimeout(tunnels.TIMEOUT)
                    say(each, "ok")
                # Both stay in our hands as they are: without TLS they are plain sockets.
                self.join(name, target, *(each.unwrap() for each in (far, secured)))
            finally:
                with self._lock:
                    self._open.discard(far)
                hang_up(far)
        finally:
            with self._lock:
                self._streams[name] -= 1
        return False

    def join(self, name: str, target: str, far: socket.socket, near: socket.socket) -> None:
        """Pass on what the two send each other, until one of them ends."""
        splice(near, far, self._count)

    def _count(self, size: int) -> None:
        self.bytes += size

    def _summon(self, target: str) -> ssl.SSLSocket | None:
        """The connection with which a member takes a call; None if it does not."""
        with self._lock:
            lines = self._there.get(target)
            if lines is None:
                return None
            token, call = secrets.token_hex(16), _Call(target)
            self._calls[token] = call
        lines.send(f"call {token}")
        call.come.wait(tunnels.TIMEOUT + GREETING / 2)
        with self._lock:
            self._calls.pop(token, None)
            return call.far

    def _take(self, name: str, secured: ssl.SSLSocket, token: str, certificate: bytes) -> bool:
        with self._lock:
            call = self._calls.get(token)
            if call is None or call.target != name or call.far is not None:
                raise Refused(f"{name} takes a call that is not for it, or too late")
            call.far = secured
        call.come.set()
        return True
