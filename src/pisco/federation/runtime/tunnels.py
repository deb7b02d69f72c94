"""Ways to others: straight, through an HTTP proxy, or through a relay; and bytes that are passed on unread.

A relay is told in a TLS connection of its own who wants whom. That connection is then taken down to plain TCP, in which
the two members make theirs: the relay passes on what they send each other and has no key for it.
"""

from __future__ import annotations

import base64
import contextlib
import errno
import functools
import itertools
import re
import socket
import ssl
import tempfile
import threading
import time
import urllib.request
from collections.abc import Callable, Iterable, Iterator
from urllib.parse import unquote, urlsplit

from pisco.errors import InputError
from pisco.federation import authority as ca
from pisco.federation.kits import Kit, Refused
from pisco.federation.roster import OUTBOUND, RelayPoint, host_of, is_loopback
from pisco.federation.runtime.lines import hear, printable, say
from pisco.federation.runtime.splicing import hang_up, splice

ALPN = "pisco-relay"
"""What a relay speaks: nobody takes its port for a member's, or the other way round."""

TIMEOUT = 5.0
"""Seconds to connect, for every step of it."""

_UNIX = "unix:"
_AVOID = 60.0


def tls(kit: Kit, *, server: bool, alpn: str) -> ssl.SSLContext:
    """TLS 1.3 with certificates of the federation in both directions."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER if server else ssl.PROTOCOL_TLS_CLIENT)
    context.minimum_version = ssl.TLSVersion.TLSv1_3
    context.verify_mode = ssl.CERT_REQUIRED
    context.load_verify_locations(cadata=kit.authority.decode())
    context.verify_flags |= ssl.VERIFY_X509_PARTIAL_CHAIN  # as in gRPC: ca.pem may begin below a root
    context.load_cert_chain(kit.folder / ca.CERTIFICATE, kit.folder / ca.KEY)
    context.set_alpn_protocols([alpn])
    if server:
        context.num_tickets = 0  # nothing is under way when the connection is taken down to TCP
    return context


def presented(secured: ssl.SSLSocket | ssl.SSLObject) -> bytes:
    """The certificate of the other end, as `Kit.identify` reads it."""
    return ssl.DER_cert_to_PEM_cert(secured.getpeercert(True) or b"").encode()


@contextlib.contextmanager
def _closed_on_error(raw: socket.socket) -> Iterator[None]:
    """A connection is closed where something goes wrong with it."""
    try:
        yield
    except BaseException:
        raw.close()
        raise


def introduce(kit: Kit, raw: socket.socket, name: str, alpn: str) -> ssl.SSLSocket:
    """TLS over a connection, if the other end is the member of that name and not revoked."""
    with _closed_on_error(raw):
        secured = tls(kit, server=False, alpn=alpn).wrap_socket(raw, server_hostname=kit.server_name(name))
    with _closed_on_error(secured):
        if secured.selected_alpn_protocol() != alpn or kit.identify(presented(secured)) != name:
            raise Refused(f"something that is not {name} answers there")
    return secured


def look(kit: Kit, raw: socket.socket, name: str, alpn: str) -> bytes:
    """The certificate with which a connection is answered, if it is that of the member of that name and not revoked.

    The other end has proved by then that it has the key. Ours is not shown: the connection ends there, and carries
    nothing that has to be kept from anybody, so keys for it may be short.
    """
    context, came, goes = tls(kit, server=False, alpn=alpn), ssl.MemoryBIO(), ssl.MemoryBIO()
    context.set_ecdh_curve("prime256v1")  # older gRPC knows no other
    secured = context.wrap_bio(came, goes, server_hostname=kit.server_name(name))
    with raw:
        while True:
            try:
                secured.do_handshake()
                break
            except ssl.SSLWantReadError:
                raw.sendall(goes.read())
                piece = raw.recv(1 << 14)
                if not piece:
                    raise ConnectionResetError("it hung up") from None
                came.write(piece)
    if secured.selected_alpn_protocol() != alpn or kit.identify(presented(secured)) != name:
        raise Refused(f"something that is not {name} answers there")
    return presented(secured)


# Connecting


def check_proxy(proxy: str) -> str:
    """An HTTP proxy, as in http://proxy.example.org:3128, with user:password@ if it wants them."""
    with contextlib.suppress(ValueError):
        parts = urlsplit(proxy)
        if parts.scheme == "http" and parts.hostname and (parts.port or 1) > 0 and parts.path in ("", "/"):
            return proxy
    shown = re.sub(r".*@", "…@", proxy, flags=re.DOTALL)  # this goes into logs, and a password may be in it
    raise InputError(f"the proxy {shown!r} cannot be used; write http://host:port, as in http://10.0.0.1:3128")


def proxy_for(kit: Kit, host: str) -> str | None:
    """The proxy through which a host is dialled: the one given, else that of the environment (https_proxy)."""
    if kit.proxy is not None:
        return kit.proxy
    found = urllib.request.getproxies_environment()
    if "https" not in found or is_loopback(host) or urllib.request.proxy_bypass(host):
        return None
    return check_proxy(found["https"])


def connect(kit: Kit, address: str) -> socket.socket:
    """TCP to host:port, through a proxy where there is one."""
    host, port = host_of(address), int(address.rpartition(":")[2])
    proxy = proxy_for(kit, host)
    if proxy is None:
        return tuned(socket.create_connection((host, port), timeout=TIMEOUT))
    parts = urlsplit(proxy)
    assert parts.hostname is not None  # `check_proxy` has seen it
    raw = tuned(socket.create_connection((parts.hostname, parts.port or 80), timeout=TIMEOUT))
    with _closed_on_error(raw):
        asked = f"CONNECT {address} HTTP/1.1\r\nHost: {address}\r\n"
        if parts.username is not None:
            who = f"{unquote(parts.username)}:{unquote(parts.password or '')}"
            asked += f"Proxy-Authorization: Basic {base64.b64encode(who.encode()).decode()}\r\n"
        raw.sendall(f"{asked}\r\n".encode())
        head = b""
        while not head.endswith(b"\r\n\r\n") and len(head) < 16384:
            piece = raw.recv(1)  # one by one: what follows is not ours
            if not piece:
                break
            head += piece
        status = head.split(b"\r\n")[0].decode("ascii", "replace")
        if not status.startswith("HTTP/1.") or status.split(" ")[1:2] != ["200"]:
            raise OSError(errno.ECONNREFUSED, f"the proxy {parts.hostname} answers {printable(status) or 'nothing'}")
    return raw


def tuned(raw: socket.socket) -> socket.socket:
    """No waiting for more to send, and a word now and then: who is gone is noticed, and firewalls keep the way open."""
    if raw.family != socket.AF_UNIX:
        raw.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        raw.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        for option, value in (("TCP_KEEPIDLE", 15), ("TCP_KEEPINTVL", 10), ("TCP_KEEPCNT", 3)):
            if hasattr(socket, option):
                raw.setsockopt(socket.IPPROTO_TCP, getattr(socket, option), value)
    return raw


@functools.cache
def _folder() -> tempfile.TemporaryDirectory[str]:
    return tempfile.TemporaryDirectory(prefix="pisco-")  # mode 700; gone when the process ends


_numbers = itertools.count()


def private_address() -> str:
    """An address that only this user's processes on this machine can connect to, and no network."""
    return f"{_UNIX}{_folder().name}/{next(_numbers)}"


def is_private(address: str) -> bool:
    """Whether an address is such a one."""
    return address.startswith(_UNIX)


def here(address: str) -> socket.socket:
    """A connection to a listener of this machine's own: a private address, or host:port."""
    if is_private(address):
        raw = socket.socket(socket.AF_UNIX)
        with _closed_on_error(raw):
            raw.settimeout(TIMEOUT)
            raw.connect(address.removeprefix(_UNIX))
        return raw
    host = {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(host_of(address), host_of(address))
    return tuned(socket.create_connection((host, int(address.rpartition(":")[2])), timeout=TIMEOUT))


class Forwarder:
    """A private address of this machine whose connections are passed on to wherever `dial` connects."""

    def __init__(self, dial: Callable[[], socket.socket]):
        self.target, self._dial = private_address(), dial
        self._listener = socket.socket(socket.AF_UNIX)
        self._listener.bind(self.target.removeprefix(_UNIX))
        self._listener.listen(16)
        self._open: set[socket.socket] = set()
        threading.Thread(target=self._accept, daemon=True, name="forward").start()

    def _accept(self) -> None:
        while True:
            try:
                near, _ = self._listener.accept()
            except OSError:
                return
            threading.Thread(target=self._forward, args=(near,), daemon=True, name="forward").start()

    def _forward(self, near: socket.socket) -> None:
        self._open.add(near)
        try:
            far = self._dial()
        except (OSError, Refused, InputError):
            near.close()  # grpc sees a connection that ended, and the next look says why
        else:
            splice(near, far)
        finally:
            self._open.discard(near)

    def close(self) -> None:
        hang_up(self._listener)
        for near in list(self._open):
            with contextlib.suppress(OSError):
                near.shutdown(socket.SHUT_RDWR)


# Through relays


def knock(kit: Kit, relay: RelayPoint, *words: str) -> ssl.SSLSocket:
    """Ask a relay for something; what it answers is for the caller to hear."""
    own = kit.own_relay if relay.name == kit.name else None
    secured = introduce(kit, connect(kit, relay.address) if own is None else here(own), relay.name, ALPN)
    with _closed_on_error(secured):
        say(secured, *words)
    return secured


def agreed(secured: ssl.SSLSocket) -> socket.socket:
    """The plain connection that is left once the relay says that somebody is at its other end."""
    with _closed_on_error(secured):
        answer = hear(secured)
        if answer != "ok":
            raise OSError(errno.EHOSTUNREACH, printable(answer.removeprefix("no ")))
        secured.settimeout(TIMEOUT)
        return secured.unwrap()


_failed: dict[str, float] = {}


def through_relays(kit: Kit, name: str, relays: Iterable[RelayPoint]) -> socket.socket:
    """A connection to an outbound member through the first relay that has it; one that failed just now comes last."""
    now, troubles = time.monotonic(), []
    for relay in sorted(relays, key=lambda each: now - _failed.get(each.address, -_AVOID) < _AVOID):
        try:
            secured = knock(kit, relay, "dial", name)
            _failed.pop(relay.address, None)
        except (OSError, Refused) as error:
            _failed[relay.address] = time.monotonic()
            troubles.append(f"{relay.name}: {said(error)}")
            continue
        try:
            return agreed(secured)
        except OSError as error:
            troubles.append(f"{relay.name}: {said(error)}")
    raise OSError(errno.EHOSTUNREACH, "; ".join(troubles))


def said(error: Exception) -> str:
    """What went wrong, in a few words."""
    return (isinstance(error, OSError) and error.strerror) or str(error) or type(error).__name__


class Way:
    """How one member is reached. `target` is what grpc dials; `dial` is a connection of our own."""

    def __init__(self, kit: Kit, name: str, address: str):
        self.kit, self.name, self.address = kit, name, address
        bent = address == OUTBOUND or proxy_for(kit, host_of(address)) is not None
        self._forwarder = Forwarder(self.dial) if bent else None
        self.target = self._forwarder.target if self._forwarder else address

    def __str__(self) -> str:
        return f"{self.name} through a relay" if self.address == OUTBOUND else self.address

    def dial(self) -> socket.socket:
        """A connection to where the member listens; it may be anybody until it proves otherwise."""
        if self.address == OUTBOUND:
            return through_relays(self.kit, self.name, self.kit.federation.relays or [])
        return connect(self.kit, self.address)

    def close(self) -> None:
        if self._forwarder is not None:
            self._forwarder.close()
