"""gRPC with mutual TLS: channels, servers, and who is at the other end."""

from __future__ import annotations

import logging
import os
import re
import ssl
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from operator import methodcaller
from typing import Any, NoReturn

from google.protobuf.message import DecodeError

from pisco.errors import InputError
from pisco.federation.kits import Kit, Refused, require_tls13
from pisco.federation.runtime import tunnels
from pisco.federation.runtime.codec import CHUNK

require_tls13()  # so others import grpc from here
# Its lines are one for every failed handshake, and any stranger can make thousands of those in a second.
os.environ.setdefault("GRPC_VERBOSITY", "NONE")

import grpc  # noqa: E402
import grpc.experimental  # noqa: E402

log = logging.getLogger("pisco.federation")

PULL, TAKE, REPORT, OVERVIEW, ROLL, KEYS, NEWS = "Pull", "Take", "Report", "Overview", "Roll", "Keys", "News"
LINE = "Line"
STREAMED = (PULL, LINE)
SERVICE = "pisco.Federation"
POLL = 10.0
"""Seconds that a request waits for a message before it is told: not yet."""
PER_PEER = 5
"""Requests of one peer that may wait at the same time; its own restart leaves old ones behind for a moment."""

IDLE = 300
"""Seconds after which a connection without a call is closed; the next call opens another."""

_KEEP_ALIVE = [
    # Else it measures with pings how much may be under way, and they are most of what a small federation sends.
    ("grpc.http2.bdp_probe", 0),
    ("grpc.keepalive_time_ms", 10_000),
    ("grpc.keepalive_timeout_ms", 10_000),
    ("grpc.keepalive_permit_without_calls", 1),
    ("grpc.http2.max_pings_without_data", 0),
]


def channel(kit: Kit, peer: str, address: str, certificate: bytes) -> grpc.Channel:
    """A connection to a peer, who must have the key of exactly this certificate, which must name it."""
    credentials = grpc.ssl_channel_credentials(certificate, kit.key, kit.certificate)
    options = [
        # How long an attempt may take (not how long after one the next begins): a busy machine needs more than a moment
        # for a handshake, and behind a private address of ours are several round trips to relays and proxies.
        ("grpc.min_reconnect_backoff_ms", 20_000 if tunnels.is_private(address) else 5_000),
        ("grpc.ssl_target_name_override", kit.server_name(peer)),
        ("grpc.default_authority", kit.server_name(peer)),
        ("grpc.max_receive_message_length", 2 * CHUNK),
        # So much may be under way to us, as it does not find out itself: 1 Gbit/s at 130 ms there and back.
        ("grpc.http2.lookahead_bytes", 16 * CHUNK),
        ("grpc.http2.max_frame_size", CHUNK),
        ("grpc.initial_reconnect_backoff_ms", 100),
        ("grpc.max_reconnect_backoff_ms", 1000),
        ("grpc.enable_retries", 0),
        ("grpc.use_local_subchannel_pool", 1),
        ("grpc.enable_http_proxy", 0),  # `tunnels` goes through proxies
        (grpc.experimental.ChannelOptions.SingleThreadedUnaryStream, 1),
        *_KEEP_ALIVE,
    ]
    return grpc.secure_channel(address, credentials, options)


def method(channel: grpc.Channel, name: str, request: Any, response: Any) -> Any:
    """A method of the peer's service; `Pull` streams its answer, and on a `Line` both stream."""
    made = {PULL: channel.unary_stream, LINE: channel.stream_stream}
    return made.get(name, channel.unary_unary)(
        f"/{SERVICE}/{name}", request_serializer=request.SerializeToString, response_deserializer=response.FromString
    )


class Door:
    """Who may come in: every request is checked against the certificate it came with."""

    def __init__(self, kit: Kit, note: Callable[[str], None] = lambda line: None):
        self.kit, self.note = kit, note
        self._lock = threading.Lock()
        self._inside: Counter[str] = Counter()
        self._said: dict[str, float] = {}
        self.refusals = 0

    def identify(self, context: grpc.ServicerContext) -> str:
        """The name in the certificate that a call came with."""
        presented: Any = context.auth_context().get("x509_pem_cert", [b""])
        try:
            return self.kit.identify(presented[0])
        except Refused as error:
            self.refuse(context, context.peer(), str(error))

    @contextmanager
    def seat(self, context: grpc.ServicerContext) -> Iterator[str]:
        """A place for a call whose request has not been read yet: every peer has a few, not those of others."""
        name = self.identify(context)
        with self._lock:
            crowded = self._inside[name] >= PER_PEER
            self._inside[name] += not crowded
        if crowded:
            self.refuse(context, name, "too many requests at once", grpc.StatusCode.RESOURCE_EXHAUSTED)
        try:
            yield name
        finally:
            with self._lock:
                self._inside[name] -= 1

    def refuse(
        self,
        context: grpc.ServicerContext,
        who: str,
        reason: str,
        code: grpc.StatusCode = grpc.StatusCode.PERMISSION_DENIED,
    ) -> NoReturn:
        """Log one line and end the request."""
        self.complain(who, reason)
        context.abort(code, reason)
        raise AssertionError("abort raises")

    def complain(self, who: str, reason: str) -> None:
        """Log one line, and count it."""
        line = f"refused {who}: {reason}"
        kind, now = re.sub(r"\d+", "#", line), time.monotonic()
        with self._lock:
            self.refusals += 1
            # Who keeps asking must not fill the disk with lines that differ in a number only: a round, a port.
            new = now - self._said.get(kind, -60.0) > 5.0
            if new:
                if len(self._said) > 1000:
                    self._said.clear()
                self._said[kind] = now
        if new:
            log.warning("%s", line)
            self.note(line)


def more_files() -> None:
    """Raise the number of open files as far as we may: idle connections must not keep a round from being saved."""
    try:
        import resource

        _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
        resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
    except (ImportError, ValueError, OSError):  # no such limits here, or none that we may change
        return


MALFORMED = object()
"""What a request that is not our message becomes."""


def _parse(message: Any) -> Callable[[bytes], Any]:
    # grpc would report an exception here in many lines, without the peer's name.
    def parse(data: bytes) -> Any:
        try:
            return message.FromString(data)
        except DecodeError:
            return MALFORMED

    return parse


def serve(door: Door, address: str, methods: dict[str, tuple[Callable[..., Any], Any]], peers: int) -> Any:
    """Start to listen; `methods` maps a name to its handler and the type of its request."""
    kit = door.kit
    more_files()

    def read(requests: Iterator[Any], context: grpc.ServicerContext, name: str) -> Any:
        request = next(requests, MALFORMED)
        if request is MALFORMED:
            door.refuse(context, name, "what it sends is not a message", grpc.StatusCode.INVALID_ARGUMENT)
        return request

    def streaming(handler: Callable[..., Any], *, many: bool) -> Callable[..., Any]:
        def answer(requests: Iterator[Any], context: grpc.ServicerContext) -> Iterator[Any]:
            with door.seat(context) as name:
                yield from handler(name, requests if many else read(requests, context, name), context)

        return answer

    def single(handler: Callable[..., Any]) -> Callable[..., Any]:
        def answer(requests: Iterator[Any], context: grpc.ServicerContext) -> Any:
            with door.seat(context) as name:
                return handler(name, read(requests, context, name), context)

        return answer

    # As streams of requests, though each has one: grpc would read a single request before we know who sends it, and a
    # call that never sends it would hold a thread.
    handlers = {}
    for name, (handler, request) in methods.items():
        make = grpc.stream_stream_rpc_method_handler if name in STREAMED else grpc.stream_unary_rpc_method_handler
        answer = streaming(handler, many=name == LINE) if name in STREAMED else single(handler)
        handlers[name] = make(
            answer, request_deserializer=_parse(request), response_serializer=methodcaller("SerializeToString")
        )
    waiting = PER_PEER * peers + 4
    server = grpc.server(
        ThreadPoolExecutor(waiting, thread_name_prefix="answer"),
        handlers=[grpc.method_handlers_generic_handler(SERVICE, handlers)],
        maximum_concurrent_rpcs=waiting,
        options=[
            ("grpc.so_reuseport", 0),
            ("grpc.max_receive_message_length", CHUNK),
            ("grpc.max_metadata_size", 16 * 1024),
            ("grpc.max_concurrent_streams", 2 * PER_PEER),
            ("grpc.server_handshake_timeout_ms", 10_000),
            ("grpc.max_connection_idle_ms", IDLE * 1000),
            ("grpc.http2.min_recv_ping_interval_without_data_ms", 5_000),
            ("grpc.http2.max_ping_strikes", 0),  # a long poll under load looks like too many pings
            *_KEEP_ALIVE,
        ],
    )
    shown = [kit.certificate]

    def certificates() -> Any:
        return grpc.ssl_server_certificate_configuration([(kit.key, shown[0])], root_certificates=kit.authority)

    def renewed() -> Any:
        if shown[0] == kit.certificate:
            return None
        shown[0] = kit.certificate
        return certificates()

    credentials = grpc.dynamic_ssl_server_credentials(certificates(), renewed, require_client_authentication=True)
    try:
        port = server.add_secure_port(address, credentials)
    except RuntimeError:
        port = 0
    if not port:
        raise InputError(f"cannot listen at {address}; is the port taken, or the host another machine's?")
    server.start()
    if _speaks_tls12(kit, address, port):
        server.stop(grace=0).wait()
        raise InputError(
            "gRPC was used in this process before pisco, and would speak TLS 1.2 too; start the member in a process of "
            "its own, or import pisco.federation.runtime.transport first"
        )
    return server


def _speaks_tls12(kit: Kit, address: str, port: int) -> bool:
    """Whether a handshake below TLS 1.3 succeeds here: gRPC reads what rules it out once, at its first use."""
    at = address if tunnels.is_private(address) else f"{address.rpartition(':')[0]}:{port}"
    context = tunnels.tls(kit, server=False, alpn="h2")
    context.minimum_version, context.maximum_version = ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_2
    try:
        with tunnels.here(at) as raw, context.wrap_socket(raw, server_hostname=kit.server_name(kit.name)):
            return True
    except OSError:
        return False
