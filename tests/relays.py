"""Federations whose agents cannot be dialled, for the tests; relays that misbehave, and a small HTTP proxy."""

import base64
import contextlib
import socket
import threading

from pisco.cli.federation.loopback import free_ports
from pisco.federation.plan import Federation
from pisco.federation.runtime import transport, tunnels
from pisco.federation.runtime.outbound import ways_in
from pisco.federation.runtime.relay import Relay
from pisco.federation.runtime.splicing import hang_up, splice
from pisco.federation.runtime.transport import Door
from pisco.federation.runtime.wire_pb2 import Receipt, Report


def hidden_plan(agents=5, *, hidden=None, relays=("server", "relay-1"), rounds=5, patience=300.0, **settings):
    """A plan whose agents are all outbound, unless `hidden` names some of them."""
    first, *ports = free_ports(agents + 1 + len(relays))
    names = [f"agent-{i}" for i in range(agents)]
    dial = {name: f"127.0.0.1:{port}" for name, port in zip(names, ports, strict=False)}
    settings = {"algorithm": {"name": "pisco", "local_lr": 0.05, "local_steps": 1}} | settings
    return Federation.create(
        "tests",
        rounds=rounds,
        agents=dial | dict.fromkeys(names if hidden is None else hidden, "outbound"),
        server_address=f"127.0.0.1:{first}",
        relays={name: f"127.0.0.1:{port}" for name, port in zip(relays, ports[agents:], strict=True)},
        network={"graph": "ring", "server_prob": 0.3},
        patience=patience,
        **settings,
    )


def relay_of(plan, kits, name, kind=Relay):
    """A relay of the plan."""
    point = next(each for each in plan.relays if each.name == name)
    return kind(kits[name], point.address, lambda: plan)


class Answering(contextlib.AbstractContextManager):
    """A member that answers reports with the name of who asks, and listens nowhere else."""

    def __init__(self, plan, kit):
        listen, self.kit = tunnels.private_address(), kit
        handlers = {transport.REPORT: (lambda name, request, context: Receipt(missing=name + request.trouble), Report)}
        self.served = transport.serve(Door(kit), listen, handlers, peers=5)
        self._close = ways_in(kit, lambda: plan, "outbound", listen, None)

    def __exit__(self, *_):
        self._close()
        self.served.stop(grace=0).wait()


class HttpProxy(contextlib.AbstractContextManager):
    """Answers CONNECT, as those of firms and hospitals do."""

    def __init__(self, password=None):
        self.password, self.asked, self.refuse = password, [], False
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port = self._listener.getsockname()[1]
        self.url = f"http://127.0.0.1:{self.port}"
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self):
        while True:
            try:
                near, _ = self._listener.accept()
            except OSError:
                return
            threading.Thread(target=self._serve, args=(near,), daemon=True).start()

    def _serve(self, near):
        head = b""
        while not head.endswith(b"\r\n\r\n"):
            piece = near.recv(1)
            if not piece:
                return
            head += piece
        verb, target, _ = head.split(b"\r\n")[0].decode().split(" ")
        wanted = f"Basic {base64.b64encode(self.password.encode()).decode()}" if self.password else ""
        if verb != "CONNECT" or self.refuse:
            near.sendall(b"HTTP/1.1 403 Forbidden\r\n\r\n")
            near.close()
        elif wanted and f"Proxy-Authorization: {wanted}".encode() not in head:
            near.sendall(b"HTTP/1.1 407 Proxy Authentication Required\r\n\r\n")
            near.close()
        else:
            self.asked.append(target)
            host, _, port = target.rpartition(":")
            try:
                far = socket.create_connection((host, int(port)), timeout=5)
            except OSError:
                near.sendall(b"HTTP/1.1 502 Bad Gateway\r\n\r\n")
                near.close()
                return
            near.sendall(b"HTTP/1.1 200 Connection established\r\nVia: tests\r\n\r\n")
            splice(near, far)

    def __exit__(self, *_):
        hang_up(self._listener)


def tls_records(data):
    """The types of the TLS records that bytes consist of; the last one may be cut."""
    types, at = [], 0
    while at + 5 <= len(data):
        kind, major, size = data[at], data[at + 1], int.from_bytes(data[at + 3 : at + 5], "big")
        assert kind in (20, 21, 22, 23) and major == 3 and size <= 16640, data[at : at + 5]
        types.append(kind)
        at += 5 + size
    return types
