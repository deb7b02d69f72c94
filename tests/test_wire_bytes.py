"""What a small federation sends beyond its vectors: counted, not timed."""

import contextlib
import types

import numpy as np
import pytest

from pisco.cli.federation.loopback import free_ports
from pisco.federation.plan import Federation
from pisco.federation.runtime import holdup, news, postbox
from pisco.federation.runtime.codec import MessageLayout
from pisco.federation.runtime.ledger import Ledger
from pisco.federation.runtime.packing import KINDS, pack, unpack
from pisco.federation.runtime.reports import Reporter
from pisco.federation.runtime.rolled_agent import AGENTS
from pisco.federation.runtime.rolled_server import SERVERS
from pisco.federation.runtime.wire_pb2 import Report

from federations import Running, make_kits, plan_for, quadratic_of
from proxy import Proxy
from worlds import Quadratics

DIM, ROUNDS, AGENTS_ = 124, 60, 3


class Counted(Running):
    """Members who reach each other through proxies that count."""

    def __init__(self, home, plan, problem_of, own, **options):
        self.own = own
        super().__init__(home, plan, problem_of, **options)

    def build(self, name):
        folder = self.home / "state" / name
        if name == "server":
            return SERVERS[self.plan.presence](self.kits[name], folder, listen=self.own[name])
        problem = self.problem_of(self.plan.names.index(name))
        return AGENTS[self.plan.presence](self.kits[name], problem, folder, listen=self.own[name])


def test_a_small_federation_sends_little_more_than_its_vectors(tmp_path, monkeypatch):
    monkeypatch.setattr(Reporter, "EVERY", 1000.0)  # what comes by time is counted below
    monkeypatch.setattr(news, "EVERY", 1000.0)
    monkeypatch.setattr(postbox, "EXPECTED", 60.0)  # on a busy machine too
    world = Quadratics(agents=AGENTS_, dim=DIM)
    names = ["server", *(f"agent-{i}" for i in range(AGENTS_))]
    own = dict(zip(names, (f"127.0.0.1:{port}" for port in free_ports(len(names))), strict=True))
    with contextlib.ExitStack() as stack:
        ways = {name: stack.enter_context(Proxy(at)) for name, at in own.items()}
        plan = Federation.create(
            "counted",
            rounds=ROUNDS,
            agents={name: ways[name].address for name in names[1:]},
            server_address=ways["server"].address,
            algorithm={"name": "pisco", "local_lr": 0.05, "local_steps": 1},
            network={"graph": "complete", "server_prob": 0.3},
            patience=300.0,
            eval_every=ROUNDS,
        )
        ran = Counted(tmp_path, plan, lambda agent: quadratic_of(agent, world), own).join()
        passed = sum(way.passed for way in ways.values())
        connections = sum(way.connections for way in ways.values())
    history = ran.results["server"].history
    vectors = 4 * DIM * int(history["messages_gossip"][-1] + history["messages_server"][-1])
    # Of every pair one dials: it looks at the certificate, and then connects for good. Nobody opens another.
    pairs = AGENTS_ * (AGENTS_ - 1) // 2 + AGENTS_
    assert connections <= 2 * pairs + 1
    # 450 bytes of 496, 4 round and phase, 14 gRPC, 22 TLS, and up to 26 for windows: 1.04; handshakes are 0.1 more.
    assert passed < 1.25 * vectors, passed / vectors


@pytest.mark.parametrize("dtype", ["float32", "float64", "float16"])
@pytest.mark.parametrize("count", [124, 125])
def test_packing_loses_nothing(dtype, count):
    rng = np.random.default_rng(0)
    special = np.array([0.0, -0.0, np.finfo(dtype).tiny, np.finfo(dtype).max], dtype)
    x = np.concatenate([rng.choice([-1.5, 0.25, 3.0], size=count - 4).astype(dtype), special])
    layout = MessageLayout.of([x])
    data, packed = x.tobytes(), pack(x.tobytes(), layout)
    assert packed is not None and len(packed) == len(data) - count // 2 + KINDS
    assert unpack(packed, layout) == data
    # Not a byte more or less, and nothing of another layout.
    assert (
        unpack(packed + b"\0", layout) is None and unpack(packed[:-1], layout) is None and unpack(b"", layout) is None
    )
    assert unpack(packed, MessageLayout(((dtype, (count + 2,)),))) is None
    assert unpack(packed, MessageLayout(((dtype, (10**12,)),))) is None


def test_what_cannot_be_packed_is_not():
    rng = np.random.default_rng(0)
    wide = rng.integers(0, 256, size=4 * 124, dtype=np.uint8).tobytes()  # masked numbers are like that
    assert pack(wide, MessageLayout((("float32", (124,)),))) is None
    assert pack(np.ones(32, np.float32).tobytes(), MessageLayout((("float32", (32,)),))) is None
    mixed = MessageLayout((("float32", (100,)), ("float64", (100,))))
    assert pack(bytes(mixed.size), mixed) is None and unpack(bytes(mixed.size), mixed) is None


def reporter_of(book, name="agent-0"):
    """A reporter without its thread, a ledger to report to, and what travels."""
    sent, plan = [], book.plan

    def report(told, timeout):
        sent.append(told)
        rows = book.note(name, told)
        return types.SimpleNamespace(
            rows=rows, lacks=book.lacks(name), news=False, troubles={}, held_by="", held_why=""
        )

    sizes = types.SimpleNamespace(sent=[496, 496], whole=[496, 496], start_server=[], start_gossip=[496], gradients=2)
    programs = types.SimpleNamespace(params_like={"w": np.zeros(124)}, codecs=(), model_part=[0, 1])
    agent = types.SimpleNamespace(
        done=3,
        plan=plan,
        programs=programs,
        metrics={},
        bytes_sent=10**6,
        hides=False,
        news=None,
        federation_hash=lambda round_: bytes(32),
        history=types.SimpleNamespace(since=lambda held, only: [], rounds=[]),
        watcher=types.SimpleNamespace(named={}),
        timing=types.SimpleNamespace(told=lambda gradients: dict(agent.times), answered=lambda *given: None),
        mailroom=types.SimpleNamespace(bytes_received=10**6, waiting_for="", hear=lambda *given: None),
        peer=lambda *given: types.SimpleNamespace(report=report),
        times={"compute": 0.004, "latency agent-1": 0.002, "pushed": 1.0},
    )
    made = Reporter.__new__(Reporter)
    made.agent, made.held, made.sizes, made._lacks, made._times, made._met = agent, 0, sizes, True, {}, False
    made._lock = contextlib.nullcontext()
    return made, agent, sent


def test_a_report_tells_once_what_stays_the_same_and_times_when_they_move(tmp_path):
    book = Ledger(plan_for(2, rounds=60), tmp_path)
    reporter, agent, sent = reporter_of(book)

    def told():
        assert reporter._send(1.0)
        return sent[-1]

    assert told().leaves == ["w"] and book.leaves == ["w"] and not book.lacks("agent-0")
    agent.done = 4
    short = told()
    assert short.round == 4 and short.ByteSize() <= 50 and not short.leaves and not short.times
    assert book._standing["agent-0"]["round"] == 4 and book._standing["agent-0"]["times"] == agent.times
    assert book.model_part == [0, 1]
    agent.times["compute"] *= 1.1
    assert not told().times
    agent.times["compute"] *= 1.2
    assert told().times["compute"] == agent.times["compute"] == book._standing["agent-0"]["times"]["compute"]
    book.save()
    # A server that starts again asks for all of it, whatever it had kept.
    again = Ledger(book.plan, tmp_path)
    agent.peer = reporter_of(again)[1].peer
    assert again.lacks("agent-0") and reporter._send(1.0) and again.lacks("agent-0")  # its receipt says so
    assert reporter._send(1.0) and not again.lacks("agent-0")


def test_who_is_told_of_no_news_asks_seldom(tmp_path, monkeypatch):
    """And within seconds where there is some, or where the server does not answer."""
    clock = types.SimpleNamespace(now=1000.0)
    monkeypatch.setattr(news.time, "monotonic", lambda: clock.now)
    monkeypatch.setattr(news.threading.Thread, "start", lambda self: None)
    reader = news.Newsreader(types.SimpleNamespace(), lambda have: have, lambda: "plan")

    def due(after, *, heard=None):
        clock.now = reader._asked + after
        if heard is not None:
            reader.heard(new=heard)
        return reader._due()

    assert not due(4.0) and due(news.EVERY)  # nothing was said yet
    reader._said = "plan"
    assert not due(50.0, heard=False) and due(news.SELDOM, heard=False)
    assert due(6.0, heard=True) and not due(4.0, heard=True)
    due(4.0, heard=False)
    clock.now += news.EVERY
    assert reader._due()  # the server has gone silent
    reader._said = "another plan"
    assert due(6.0, heard=False)  # the server should know by which plan we act
    reader.every = 0.1
    assert due(0.2, heard=False)


def test_the_server_says_whether_there_is_news(tmp_path):
    plan = plan_for(2, rounds=9)
    kit = make_kits(tmp_path, plan, ["server"])["server"]
    stand = news.Newsstand(kit)
    assert stand.new_for("agent-0", plan.hash) and not stand.holds("agent-0", plan.hash)
    current = news.replace(news.have(kit), holds=plan.hash)
    stand.tell("agent-0", current, plan.hash, list)
    assert not stand.new_for("agent-0", plan.hash) and stand.holds("agent-0", plan.hash)
    assert stand.new_for("agent-1", plan.hash) and stand.new_for("agent-0", "a later plan")
    stand.tell("agent-0", news.replace(current, version=0), plan.hash, list)
    assert stand.new_for("agent-0", plan.hash)  # it lost what it had, or never took it


def test_times_told_once_still_name_who_is_slow(tmp_path):
    book = Ledger(plan_for(3, rounds=60), tmp_path)
    for name, seconds in (("agent-0", 0.01), ("agent-1", 0.01), ("agent-2", 0.1)):
        book.note(name, Report(round=1, leaves=["w"], times={"compute": seconds}))
        book.note(name, Report(round=2))
    assert book.holdup().name == "agent-2" and isinstance(book.holdup(), holdup.Holdup)
    book.note("agent-2", Report(round=2, leaves=["w"]))  # it has started again, and timed nothing yet
    assert book.holdup().name == ""
