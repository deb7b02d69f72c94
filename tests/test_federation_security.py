"""An attacker at a running federation: everything is refused or bounded, said in one line, and the run goes on.

Four agents on a ring with real certificates. Agent 3 is held back, so that the others stand in their first round and
wait; then the attacks; then agent 3 starts, and everybody must end where an undisturbed run ends.
"""

import contextlib
import datetime as dt
import itertools
import logging
import os
import socket
import ssl
import stat
import subprocess
import sys
import threading
import time
import tracemalloc
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

import pisco
from pisco.cli.federation.loopback import free_ports
from pisco.federation import authority as ca
from pisco.federation import keyfiles, kits

from federations import Running, make_kits, plan_for, quadratic_of
from waiting import wait_until
from worlds import Quadratics, coins

grpc = pytest.importorskip("grpc")
from pisco.cli.federation import follow  # noqa: E402
from pisco.federation.runtime import calls, transport  # noqa: E402
from pisco.federation.runtime.codec import CHUNK, SMALL, BadMessage, MessageLayout, Where, decode, encode  # noqa: E402
from pisco.federation.runtime.peers import Peer  # noqa: E402
from pisco.federation.runtime.postbox import MOST  # noqa: E402
from pisco.federation.runtime.wire_pb2 import Chunk, Header, Overview, Piece, Pushed, Report, Request  # noqa: E402

WORLD = Quadratics(agents=4)
ROUNDS, P = 6, 0.4
# The first round gossips and two later ones reach the server.
SEED = next(s for s in range(99) if (c := coins(pisco.bernoulli(P), ROUNDS, s))[0] == 0 and sum(c) == 2)
PULL, REPORT, LINE = (f"/pisco.Federation/{name}" for name in ("Pull", "Report", "Line"))


class Log(logging.Handler):
    """Every line that members write."""

    def __init__(self):
        super().__init__()
        self.lines = []

    def emit(self, record):
        self.lines.append(record.getMessage())


class Siege:
    """The federation under attack."""

    def __init__(self, home):
        self.log = Log()
        logger = logging.getLogger("pisco.federation")
        logger.addHandler(self.log)
        logger.setLevel(logging.INFO)
        self.plan = plan_for(4, rounds=ROUNDS, seed=SEED, network={"graph": "ring", "server_prob": P})
        self.home, self.kits = home, make_kits(home, self.plan)
        self.running = Running(
            home, self.plan, lambda i: quadratic_of(i, WORLD), kits_=self.kits, only=["agent-0", "agent-1", "agent-2"]
        )
        wait_until(lambda: all(listens(self.address(n)) for n in ("agent-0", "agent-1", "agent-2", "server")))

    def address(self, name):
        return self.plan.server_address if name == "server" else self.plan.epochs[0].member(name).address

    def hash(self, round_=0):
        return bytes.fromhex(self.plan.hash_at(round_))

    def ask(self, folder, target="agent-0", message=None, path=PULL, seconds=60):
        """What somebody with the files of a kit hears when they send a message; and the new lines of the log."""
        self.running.members[target].door._said.clear()  # a line said a moment ago is not said again
        before = len(self.log.lines)
        credentials = grpc.ssl_channel_credentials(*(read(folder, f) for f in ("ca.pem", "key.pem", "cert.pem")))
        name = ca.tls_name(self.plan.name, target)
        options = [("grpc.ssl_target_name_override", name), ("grpc.default_authority", name)]
        with grpc.secure_channel(self.address(target), credentials, options) as channel:
            make = channel.unary_stream if path == PULL else channel.unary_unary
            content = message if isinstance(message, bytes) else message.SerializeToString()
            try:
                answer = make(path)(content, timeout=seconds)
                heard = list(answer) if path == PULL else answer
            except grpc.RpcError as error:
                heard = error.code(), error.details()
        time.sleep(0.05)
        return heard, [line for line in self.log.lines[before:] if line.startswith("refused")]

    def request(self, round_=1, phase=0, federation=None):
        return Request(federation=federation or self.hash(), round=round_, phase=phase)

    def finish(self):
        """Let agent 3 in; everybody's parameters must be those of an undisturbed run."""
        self.running.start("agent-3")
        self.running.join()
        expected = pisco.run(
            self.plan.build_algorithm(),
            WORLD.problem(),
            self.plan.network_of(self.plan.epochs[0]),
            rounds=ROUNDS,
            seed=SEED,
        )
        np.testing.assert_allclose(self.running.params(), expected.params, atol=1e-5)


def read(folder, file):
    return (folder / file).read_bytes()


def listens(address):
    host, _, port = address.rpartition(":")
    with contextlib.suppress(OSError), socket.create_connection((host, int(port)), timeout=1):
        return True
    return False


@pytest.fixture(scope="module")
def siege(tmp_path_factory):
    """One federation for all attacks; it must still end well when they are over."""
    made = Siege(tmp_path_factory.mktemp("siege"))
    yield made
    try:
        made.finish()
    finally:
        made.running.stop()


def refused(heard, lines, who, why, code=grpc.StatusCode.PERMISSION_DENIED):
    assert heard[0] is code, heard
    assert why in heard[1], heard
    assert len(lines) == 1 and lines[0].startswith(f"refused {who}: ") and why in lines[0], lines


# ------------------------------------------------------------------------------------------- who may ask


def test_a_certificate_that_has_ended(siege, tmp_path):
    kits.issue(
        siege.home,
        siege.plan,
        "agent-1",
        tmp_path / "old",
        days=1,
        start=dt.datetime.now(dt.UTC) - dt.timedelta(days=2),
    )
    heard, _ = siege.ask(tmp_path / "old", message=siege.request())
    assert heard[0] is grpc.StatusCode.UNAVAILABLE  # TLS itself refuses: not a word of ours is exchanged


def test_a_certificate_of_another_authority(siege, tmp_path):
    ca.Authority.create(tmp_path / "authority", siege.plan.name)
    kits.issue(tmp_path, siege.plan, "agent-1", tmp_path / "kit")
    (tmp_path / "kit/ca.pem").write_bytes(read(siege.home / "kits/agent-1", "ca.pem"))
    heard, _ = siege.ask(tmp_path / "kit", message=siege.request())
    assert heard[0] is grpc.StatusCode.UNAVAILABLE


def test_no_certificate_at_all(siege):
    trusted = read(siege.home / "kits/agent-1", "ca.pem")
    name = [("grpc.ssl_target_name_override", ca.tls_name(siege.plan.name, "agent-0"))]
    with grpc.secure_channel(siege.address("agent-0"), grpc.ssl_channel_credentials(trusted), name) as channel:
        with pytest.raises(grpc.RpcError) as caught:
            list(channel.unary_stream(PULL)(siege.request().SerializeToString(), timeout=60))
        assert caught.value.code() is grpc.StatusCode.UNAVAILABLE


def test_a_revoked_certificate(siege, tmp_path):
    made = kits.issue(siege.home, siege.plan, "agent-1", tmp_path / "stolen")
    heard, lines = siege.ask(tmp_path / "stolen", message=siege.request(federation=b"x"))
    refused(heard, lines, "agent-1", "another federation")  # valid so far: only the question is wrong
    ca.Authority.open(siege.home / "authority", siege.plan.name).revoke([made.serial_number])
    for name in (*siege.plan.names, "server"):
        kits.refresh(siege.home, siege.plan, siege.home / "kits" / name)
    heard, lines = siege.ask(tmp_path / "stolen", message=siege.request())
    assert heard[0] is grpc.StatusCode.PERMISSION_DENIED
    assert len(lines) == 1 and "'agent-1' has been revoked" in lines[0]


def test_somebody_who_is_not_a_neighbour(siege):
    heard, lines = siege.ask(siege.home / "kits/agent-2", message=siege.request())
    refused(heard, lines, "agent-2", "not a neighbour")


def test_a_member_of_another_federation_under_the_same_authority(siege, tmp_path):
    other = ca.Authority(siege.home / "authority", "others")
    signed = other.sign("agent-1", ca.new_key(tmp_path / "key.pem").public_key(), "127.0.0.1", 5)
    (tmp_path / "cert.pem").write_bytes(ca.pem(signed))
    (tmp_path / "ca.pem").write_bytes(read(siege.home / "kits/agent-1", "ca.pem"))
    heard, lines = siege.ask(tmp_path, message=siege.request())
    assert heard[0] is grpc.StatusCode.PERMISSION_DENIED
    assert len(lines) == 1 and "of another federation, 'others'" in lines[0]


def test_a_signed_stranger_who_is_not_in_the_roster(siege, tmp_path):
    authority = ca.Authority.open(siege.home / "authority", siege.plan.name)
    signed = authority.sign("mallory", ca.new_key(tmp_path / "key.pem").public_key(), "127.0.0.1", 5)
    (tmp_path / "cert.pem").write_bytes(ca.pem(signed))
    (tmp_path / "ca.pem").write_bytes(read(siege.home / "kits/agent-1", "ca.pem"))
    refused(*siege.ask(tmp_path, message=siege.request()), "mallory", "not in the roster")
    heard, lines = siege.ask(tmp_path, "server", Report(federation=siege.hash(), round=3), path=REPORT)
    refused(heard, lines, "mallory", "not in the roster")


def test_only_tls_1_3_is_spoken(siege):
    kit = siege.home / "kits/agent-1"
    for version, fine in ((ssl.TLSVersion.TLSv1_2, False), (ssl.TLSVersion.TLSv1_3, True)):
        context = ssl.create_default_context(cafile=kit / "ca.pem")
        context.minimum_version = context.maximum_version = version
        context.load_cert_chain(kit / "cert.pem", kit / "key.pem")
        context.set_alpn_protocols(["h2"])
        host, _, port = siege.address("agent-0").rpartition(":")
        outcome = contextlib.nullcontext() if fine else pytest.raises(OSError)  # noqa: PT011
        with socket.create_connection((host, int(port))) as raw, outcome:
            name = ca.tls_name(siege.plan.name, "agent-0")
            context.wrap_socket(raw, server_hostname=name).close()


# ------------------------------------------------------------------------------------------- what is asked


def test_the_hash_of_another_plan(siege):
    heard, lines = siege.ask(siege.home / "kits/agent-1", message=siege.request(federation=bytes(32)))
    refused(heard, lines, "agent-1", "another federation")


def test_a_round_that_was_left_behind(siege):
    """Agent 1 itself has asked for round 1, so a request of it for round 0 is a replay."""
    wait_until(lambda: siege.running.members["agent-0"].outbox.floors().get("agent-1", 0) >= 1)
    heard, lines = siege.ask(siege.home / "kits/agent-1", message=siege.request(round_=0))
    refused(heard, lines, "agent-1", "already left behind", grpc.StatusCode.FAILED_PRECONDITION)


def test_refusals_do_not_fill_the_disk(siege):
    kit = siege.home / "kits/agent-1"
    siege.ask(kit, message=siege.request(round_=3, federation=bytes(32)))
    before = len(siege.log.lines)
    credentials = grpc.ssl_channel_credentials(*(read(kit, f) for f in ("ca.pem", "key.pem", "cert.pem")))
    options = [("grpc.ssl_target_name_override", ca.tls_name(siege.plan.name, "agent-0"))]
    with grpc.secure_channel(siege.address("agent-0"), credentials, options) as channel:
        for round_ in range(100):
            request = siege.request(round_=round_, federation=bytes(32)).SerializeToString()
            with pytest.raises(grpc.RpcError, match="another federation"):
                list(channel.unary_stream(PULL)(request, timeout=60))
    assert sum("refused agent-1" in line for line in siege.log.lines[before:]) <= 10


@pytest.mark.parametrize("target", ["agent-0", "server"])
def test_rounds_and_phases_that_do_not_exist(siege, target):
    for round_, phase in ((ROUNDS + 7, 0), (2**63, 2**31)):
        heard, lines = siege.ask(siege.home / "kits/agent-1", target, siege.request(round_=round_, phase=phase))
        assert heard[0] is grpc.StatusCode.PERMISSION_DENIED and len(lines) == 1


def test_a_future_round_harms_nobody_but_the_one_who_asks(siege):
    """The server must not be talked into asking everybody for a round that is far ahead."""
    server = siege.running.members["server"]
    ahead = [round_ for round_ in range(2, ROUNDS + 1) if server.hop(round_, 0) is not None]
    assert len(ahead) >= 2, "the test needs server rounds"
    before = {n: dict(siege.running.members[n].outbox.floors()) for n in ("agent-0", "agent-2")}
    siege.ask(siege.home / "kits/agent-3", "server", siege.request(round_=ahead[-1]), seconds=1.5)
    after = {n: dict(siege.running.members[n].outbox.floors()) for n in ("agent-0", "agent-2")}
    for name in before:
        assert after[name].get("server", 0) == before[name].get("server", 0)


def push(siege, folder, contents, target="agent-0"):
    """What somebody with the files of a kit hears who opens a line and pushes these bytes; and the new lines."""
    siege.running.members[target].door._said.clear()
    before, name = len(siege.log.lines), ca.tls_name(siege.plan.name, target)
    credentials = grpc.ssl_channel_credentials(*(read(folder, f) for f in ("ca.pem", "key.pem", "cert.pem")))
    options = [("grpc.ssl_target_name_override", name), ("grpc.default_authority", name)]
    with grpc.secure_channel(siege.address(target), credentials, options) as channel:
        try:
            heard = list(channel.stream_stream(LINE)(iter(contents), timeout=60))
        except grpc.RpcError as error:
            heard = error.code(), error.details()
    return heard, [line for line in siege.log.lines[before:] if line.startswith("refused")]


def test_a_line_is_for_members_and_holds_little(siege, tmp_path):
    box, kit = siege.running.members["agent-0"].mailroom.postbox, siege.home / "kits/agent-3"
    authority = ca.Authority.open(siege.home / "authority", siege.plan.name)
    signed = authority.sign("mallory", ca.new_key(tmp_path / "key.pem").public_key(), "127.0.0.1", 5)
    (tmp_path / "cert.pem").write_bytes(ca.pem(signed))
    (tmp_path / "ca.pem").write_bytes(read(kit, "ca.pem"))
    refused(*push(siege, tmp_path, [Pushed(ping=1).SerializeToString()]), "mallory", "not in the roster")
    good = {"federation": bytes(32), "layout": "float32[1,4]", "data": bytes(16)}
    flood = [Pushed(round=round_ + 1000, **good, ping=7).SerializeToString() for round_ in range(200)]
    for wrong in (b"\xff" * 40, Pushed(data=bytes(SMALL + 1)).SerializeToString(), bytes(2 * CHUNK)):
        heard, lines = push(siege, kit, [*flood, wrong, *flood])
        assert len(lines) <= 1 and (not lines or "refused agent-3: what it pushes is not a message" in lines[0])
        wait_until(lambda: not box.expects("agent-3"))
        assert len(box._messages.get("agent-3", ())) <= MOST and len(heard) <= 4 + 200
    assert siege.running.members["agent-0"].done == 0  # nor is anything taken that is of another plan or round


@pytest.mark.parametrize("content", [b"\xff" * 40, b"\x0a\xff\xff\xff\xff\x0f", b"\x0a\x20short", bytes(900_000)])
def test_requests_that_are_no_messages(siege, content):
    heard, lines = siege.ask(siege.home / "kits/agent-1", message=content)
    assert isinstance(heard, tuple), heard
    assert heard[0] in (grpc.StatusCode.INVALID_ARGUMENT, grpc.StatusCode.PERMISSION_DENIED), heard
    assert len(lines) == 1


def test_a_request_that_is_far_too_large(siege):
    heard, _ = siege.ask(siege.home / "kits/agent-1", message=bytes(8 << 20))
    assert heard[0] is grpc.StatusCode.RESOURCE_EXHAUSTED


def test_reports_cannot_grow_or_colour_the_book(siege):
    server = siege.running.members["server"]
    report = Report(federation=siege.hash(), round=0, waiting_for="\x1b[2Jeverybody")
    for round_ in range(1000):
        report.rows.add(round=round_, values={f"\x1b[31m{i}": 1.0 for i in range(20)} | {"loss": float("nan")})
    siege.ask(siege.home / "kits/agent-3", "server", report, path=REPORT)
    book = server.ledger.overview()
    standing = next(each for each in book.agents if each.name == "agent-3")
    assert "\x1b" not in standing.waiting_for
    rows = server.ledger._rows["agent-3"]
    assert len(rows) <= ROUNDS + 1
    assert all("\x1b" not in key for _, values in rows for key in values)
    server.ledger._rows["agent-3"].clear()  # what agent 3 itself will report


def test_one_report_cannot_spoil_the_result_or_hold_up_a_removal(siege):
    """Rounds and sizes beyond the plan are refused; columns that the server counts itself are not anybody's to fill."""
    server, kit = siege.running.members["server"], siege.home / "kits/agent-3"
    last = {"federation": siege.hash(ROUNDS)}
    for wrong in ({"round": 2**64 - 1}, {"round_bytes": [2**64 - 1]}, {"bytes_sent": 2**64 - 1}):
        heard, lines = siege.ask(kit, "server", Report(**last | wrong), path=REPORT)
        refused(heard, lines, "agent-3", "it reports")
    before = server.reached
    claim = Report(**last, round=ROUNDS, round_bytes=[7, 7])  # finite nonsense of the right kind
    values = {"round": -5.0, "bytes_server": 1.0, "loss": float("inf"), "test_x": 1.0}
    for round_ in range(ROUNDS + 1):
        claim.rows.add(round=round_, values=values)
    siege.ask(kit, "server", claim, path=REPORT)
    assert server.reached <= before + 1, "the others stand in the first round"
    assert max(each.round for each in server.ledger.overview().agents) <= before + 1
    assert all(values == {"test_x": 1.0} for _, values in server.ledger._rows["agent-3"])
    server.ledger.save()
    server.ledger.result()
    server.ledger._rows["agent-3"].clear()  # what agent 3 itself will report


def test_calls_beyond_number_are_turned_away(siege):
    """One member cannot take all places: its own calls are refused, the others' are answered."""
    kit = siege.home / "kits/agent-3"
    credentials = grpc.ssl_channel_credentials(*(read(kit, f) for f in ("ca.pem", "key.pem", "cert.pem")))
    name = ca.tls_name(siege.plan.name, "agent-0")
    options = [("grpc.ssl_target_name_override", name), ("grpc.use_local_subchannel_pool", 1)]
    with contextlib.ExitStack() as stack:
        channels = [
            stack.enter_context(grpc.secure_channel(siege.address("agent-0"), credentials, options)) for _ in range(4)
        ]
        content = siege.request(round_=2).SerializeToString()
        calls = [channel.unary_stream(PULL)(content, timeout=60) for channel in channels for _ in range(8)]
        time.sleep(1.0)
        heard, lines = siege.ask(siege.home / "kits/agent-2", message=siege.request())
        refused(heard, [line for line in lines if "agent-2" in line], "agent-2", "not a neighbour")
        for call in calls:
            call.cancel()


def test_calls_that_never_ask_hold_nobodys_place(siege):
    """Agent 2 is no neighbour of agent 0, and sends nothing at all on ten times the calls it may have."""
    kit, asking = siege.home / "kits/agent-2", threading.Event()
    credentials = grpc.ssl_channel_credentials(*(read(kit, f) for f in ("ca.pem", "key.pem", "cert.pem")))
    options = [("grpc.ssl_target_name_override", ca.tls_name(siege.plan.name, "agent-0"))]
    options += [("grpc.use_local_subchannel_pool", 1)]

    def never():
        asking.wait(120)
        yield b""

    with contextlib.ExitStack() as stack:
        address = siege.address("agent-0")
        channels = [stack.enter_context(grpc.secure_channel(address, credentials, options)) for _ in range(5)]
        calls = [channel.stream_stream(PULL)(never(), timeout=120) for channel in channels for _ in range(8)]
        wait_until(lambda: sum(not call.is_active() for call in calls) >= len(calls) - transport.PER_PEER)
        refusals = [call.code() for call in calls if not call.is_active()]
        assert set(refusals) == {grpc.StatusCode.RESOURCE_EXHAUSTED}
        heard, lines = siege.ask(siege.home / "kits/agent-1", message=siege.request(federation=b"x"))
        refused(heard, [line for line in lines if "agent-1" in line], "agent-1", "another federation")
        asking.set()
        for call in calls:
            call.cancel()


# ------------------------------------------------------------------------------------------- what is answered


def answers(siege):
    """What a bad neighbour may send for round 1, by a word that the refusal must hold."""
    sound = np.ones((1, WORLD.x0.size), np.float32)

    def header(**changes):
        fields = {
            "federation": siege.hash(),
            "round": 1,
            "phase": 0,
            "sender": "agent-3",
            "layout": f"float32[1,{sound.size}]",
            "size": sound.nbytes,
        }
        return Header(**fields | changes)

    def one(data=None, **changes):
        return [Chunk(header=header(**changes), data=sound.tobytes() if data is None else data)]

    longer = np.ones((1, sound.size + 1), np.float32)
    return {
        "another federation": one(federation=b"other"),
        "but round 1, phase": one(round=7),
        "comes from 'agent-1'": one(sender="agent-1"),
        "expected float32": one(longer.tobytes(), layout=f"float32[1,{longer.size}]", size=longer.nbytes),
        "holds float64": one(
            sound.astype(np.float64).tobytes(), layout=f"float64[1,{sound.size}]", size=2 * sound.nbytes
        ),
        "cannot be read": one(layout="complex[1e9]"),
        "layout is empty": one(layout=""),
        "asked for the whole": one(layout="", pieces=[Piece(codec=1, leaves=1, key=bytes(8))]),
        "announces": one(size=2**62),
        "NaN": one(np.full_like(sound, np.nan).tobytes()),
        "infinity": one(np.full_like(sound, np.inf).tobytes()),
        "ends after 8 of": one(sound.tobytes()[:8]),
        "does not end": itertools.chain(one(), itertools.repeat(Chunk(data=b"more"), 10_000)),
        "does not end after": itertools.chain(one(), itertools.repeat(Chunk(), 10_000)),
    }


SOME = ("expected float32", "asked for the whole", "NaN", "does not end")
TAKEN = ("holds float64", "asked for the whole", "NaN", "ends after 8 of")


@pytest.mark.parametrize(
    ("words", "small"),
    [(SOME, 0), (TAKEN, 1000), pytest.param(None, 0, marks=pytest.mark.slow)],
    ids=["some", "taken", "all"],
)
def test_a_neighbour_that_answers_nonsense(siege, monkeypatch, words, small):
    """The attacker is agent 3, with its own good certificate, at its own address."""
    monkeypatch.setattr(calls, "SMALL", small)  # larger messages come in chunks, as many as the other one sends
    kit, words = siege.kits["agent-3"], words or tuple(answers(siege))
    turn = itertools.cycle((*words, None))

    def serve(request, context):
        word = next(turn)
        if word is None:
            yield b"\xff\x00 no protobuf at all"
            return
        for chunk in answers(siege)[word]:
            yield chunk.SerializeToString()

    server = grpc.server(ThreadPoolExecutor(8), options=[("grpc.http2.min_recv_ping_interval_without_data_ms", 5000)])
    take = grpc.unary_unary_rpc_method_handler(lambda request, context: next(serve(request, context)))
    handlers = {"Take": take} if small else {"Pull": grpc.unary_stream_rpc_method_handler(serve)}
    server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler("pisco.Federation", handlers),))
    credentials = grpc.ssl_server_credentials([(kit.key, kit.certificate)], kit.authority, require_client_auth=True)
    server.add_secure_port(siege.address("agent-3"), credentials)
    before = len(siege.log.lines)
    server.start()

    def said(word):
        return any(word in line for line in siege.log.lines[before:])

    try:
        wait_until(lambda: all(said(word) for word in words))
    finally:
        server.stop(0).wait()
    assert not siege.running.errors
    for line in siege.log.lines[before:]:
        assert "\n" not in line and len(line) < 600


# ------------------------------------------------------------------------------------------- too many


def test_a_thousand_idle_connections(siege):
    """Silent sockets, and half as many that did shake hands; agent 0 still answers and lets go of the silent ones."""
    host, _, port = siege.address("agent-0").rpartition(":")
    kit = siege.home / "kits/agent-3"
    context = ssl.create_default_context(cafile=kit / "ca.pem")
    context.load_cert_chain(kit / "cert.pem", kit / "key.pem")
    context.set_alpn_protocols(["h2"])
    with contextlib.ExitStack() as stack:
        for _ in range(1000):
            with contextlib.suppress(OSError):
                stack.enter_context(socket.create_connection((host, int(port)), timeout=60))
        for _ in range(20):
            raw = stack.enter_context(socket.create_connection((host, int(port)), timeout=60))
            name = ca.tls_name(siege.plan.name, "agent-0")
            stack.enter_context(context.wrap_socket(raw, server_hostname=name))
        heard, lines = siege.ask(siege.home / "kits/agent-2", message=siege.request())
        refused(heard, lines, "agent-2", "not a neighbour")
    assert not siege.running.errors


def test_what_is_only_announced_takes_no_memory():
    """The server does not know the size of a model beforehand; a header alone must not cost it a gigabyte."""
    header = Header(federation=b"f", round=1, sender="a", layout="float32[1,250000000]", size=10**9)
    chunks = [Chunk(header=header, data=bytes(1000)), Chunk(data=bytes(1000))]
    tracemalloc.start()
    try:
        with pytest.raises(BadMessage, match="ends after 2000 of 1000000000 bytes"):
            decode(chunks, Where(b"f", 1, 0), "a", limit=2 << 30)
        assert tracemalloc.get_traced_memory()[1] < 1_000_000
    finally:
        tracemalloc.stop()


def test_exchanges_that_the_method_does_not_make_are_refused(siege):
    """PISCO makes two in a round and none before the first that reach the server; nobody is asked for a third."""
    server = siege.running.members["server"]
    reaches = next(round_ for round_ in range(1, ROUNDS + 1) if server.hop(round_, 0) is not None)
    assert [server.hop(reaches, phase) is not None for phase in range(4)] == [True, True, False, False]
    for round_, phase in ((reaches, 2), (reaches, 63), (0, 0), (0, 63)):
        heard, lines = siege.ask(siege.home / "kits/agent-1", "server", siege.request(round_=round_, phase=phase))
        refused(heard, lines, "agent-1", "does not reach the server")
    assert not {at for at in server._averaging if at[1] > 1}


def test_a_model_of_many_leaves_travels():
    arrays = [np.full((1, 100 + i), i, np.float32) for i in range(2000)]
    layout = MessageLayout.of(arrays)
    chunks = list(encode(Where(b"f", 1, 0), "a", layout, layout.join(arrays)))
    assert max(len(chunk.SerializeToString()) for chunk in chunks) < 2 * CHUNK
    found, received = decode(chunks, Where(b"f", 1, 0), "a", limit=layout.size)
    assert found == layout and all(np.array_equal(*pair) for pair in zip(arrays, received, strict=True))


def test_a_rogue_server_cannot_write_on_the_terminal_of_who_asks_where_everybody_stands(siege, monkeypatch, capsys):
    wild = Overview(federation_name="\x1b[2Jx", rounds=3)
    wild.agents.add(name="\x1b]0;owned\x07[red]agent-0[/red]", waiting_for="[link=http://x]\x1b[31m", loss=1.0)
    wild.agents.add(name="agent-1", waiting_for="server", round=3)
    monkeypatch.setattr(Peer, "overview", lambda *_: wild)
    follow.status(siege.home / "kits/server", once=True)
    shown = capsys.readouterr().out
    assert "\x1b" not in shown and "owned" not in shown and "link" not in shown
    assert "agent-1" in shown and "server" in shown and siege.plan.name in shown


LISTEN = """
import sys
{first}
from pisco.federation.kits import Kit
from pisco.federation.runtime import transport
kit = Kit.load(sys.argv[1])
transport.serve(transport.Door(kit), sys.argv[2], {{}}, 2)
print("listens", flush=True)
sys.stdin.read()
"""


def listening(siege, address, first=""):
    """A process that listens with the server's kit, after `first`."""
    words = [sys.executable, "-c", LISTEN.format(first=first), str(siege.home / "kits/server"), address]
    pipes = dict.fromkeys(("stdin", "stdout", "stderr"), subprocess.PIPE)
    env = {name: value for name, value in os.environ.items() if not name.startswith("GRPC_")}
    return subprocess.Popen(words, **pipes, text=True, env=env)


def test_where_grpc_was_started_before_us_and_speaks_tls_1_2_nobody_listens(siege):
    """gRPC reads the ciphers that rule TLS 1.2 out once, when it first makes a secure connection."""
    first = "import grpc; grpc.secure_channel('localhost:1', grpc.ssl_channel_credentials()).close()"
    out, err = listening(siege, f"127.0.0.1:{free_ports(1)[0]}", first).communicate(timeout=60)
    assert "listens" not in out and "would speak TLS 1.2" in err


def test_strangers_do_not_fill_the_disk_with_failed_handshakes(siege):
    port = free_ports(1)[0]
    process = listening(siege, f"127.0.0.1:{port}")
    assert process.stdout.readline() == "listens\n"
    for _ in range(100):
        with socket.create_connection(("127.0.0.1", port), timeout=60) as raw:
            raw.sendall(b"no handshake at all, whatever it may look like\n")
            with contextlib.suppress(OSError):
                raw.recv(100)  # until it was refused
    _, err = process.communicate(timeout=60)
    assert len(err.splitlines()) < 10, err[:1000]


@contextlib.contextmanager
def forward(targets):
    """A proxy that sends its first connection to the first target, and all others to the last; its address."""
    targets, door, opened = iter(targets), socket.create_server(("127.0.0.1", 0)), []

    def copy(one, other):
        with contextlib.suppress(OSError):
            while data := one.recv(1 << 16):
                other.sendall(data)
        with contextlib.suppress(OSError):
            other.shutdown(socket.SHUT_RDWR)

    def accept():
        target = None
        while True:
            try:
                one, _ = door.accept()
            except OSError:
                return
            target = next(targets, target)
            other = socket.create_connection(target)
            opened.extend((one, other))
            for pair in ((one, other), (other, one)):
                threading.Thread(target=copy, args=pair, daemon=True).start()

    threading.Thread(target=accept, daemon=True).start()
    yield "{}:{}".format(*door.getsockname())
    door.shutdown(socket.SHUT_RDWR)
    for each in (door, *opened):
        each.close()


def test_a_proxy_cannot_hand_the_channel_to_the_holder_of_a_revoked_key(tmp_path):
    """What looks at certificates is sent to the genuine member, gRPC to somebody with its stolen, revoked key."""
    genuine, thief = (("127.0.0.1", port) for port in free_ports(2))
    plan = plan_for(2)
    made = make_kits(tmp_path, plan)
    kits.issue(tmp_path, plan, "agent-1", tmp_path / "new")
    signer = ca.Authority.open(tmp_path / "authority", plan.name)
    signer.revoke([each.serial_number for each in signer.issued("agent-1")][:1])
    kits.refresh(tmp_path, plan, tmp_path / "kits/agent-0")
    own, heard, where = kits.Kit.load(tmp_path / "kits/agent-0"), [], Where(b"f", 1, 0)

    def serve(at, kit, word):
        def answer(name, request, context):
            heard.append(word)
            yield Chunk(data=word)

        return transport.serve(transport.Door(kit), "{}:{}".format(*at), {transport.PULL: (answer, Request)}, 2)

    servers = [serve(genuine, kits.Kit.load(tmp_path / "new"), b"genuine"), serve(thief, made["agent-1"], b"thief")]
    try:
        for targets, expected in (([genuine, thief], []), ([genuine], [b"genuine"]), ([thief], [])):
            heard.clear()
            with forward(targets) as address:
                peer = Peer(own, "agent-1", address)
                call = peer.ask(where).call
                assert (call is None) == (targets == [thief])  # who shows the revoked one is not even asked
                with contextlib.suppress(grpc.RpcError):
                    assert [chunk.data for chunk in call or ()] == expected
                peer.close()
            assert heard == expected
    finally:
        for server in servers:
            server.stop(0).wait()


def test_a_certificate_that_ends_under_an_open_channel_is_looked_at_again(tmp_path, monkeypatch):
    made, looks = make_kits(tmp_path, plan_for(2)), []
    peer = Peer(made["agent-0"], "agent-1", "127.0.0.1:9")
    monkeypatch.setattr(peer, "_look", lambda: looks.append(1) or made["agent-1"].certificate)
    peer.check()
    peer.check()
    assert len(looks) == 1
    monkeypatch.setattr(keyfiles, "now", lambda: made["agent-1"].not_after + dt.timedelta(seconds=1))
    peer.check()  # TLS refuses it now, or shows a new one
    assert len(looks) == 2
    peer.close()


def test_states_are_for_their_owner_alone(siege):
    for name in ("agent-0", "server"):
        assert stat.S_IMODE((siege.home / "state" / name).stat().st_mode) == 0o700
