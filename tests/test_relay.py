"""Agents that nobody can dial: reached through relays, which see ciphertext only and can do nothing with it."""

import contextlib
import json
import signal
import socket
import ssl
import threading
import time
import urllib.request
from types import SimpleNamespace

import numpy as np
import pytest
from typer.testing import CliRunner

from pisco.cli.federation.loopback import free_ports
from pisco.cli.main import app
from pisco.errors import InputError
from pisco.federation import kits as kits_
from pisco.federation.authority import Authority
from pisco.federation.kits import Refused
from pisco.federation.plan import Federation
from pisco.federation.runtime import news, tunnels
from pisco.federation.runtime import relay as relays
from pisco.federation.runtime.exporter import RelayMetrics, serve_metrics
from pisco.federation.runtime.lines import hear, say
from pisco.federation.runtime.outbound import Outbound
from pisco.federation.runtime.peers import Peer
from pisco.federation.runtime.relay import Relay
from pisco.federation.runtime.transport import grpc
from pisco.federation.runtime.wire_pb2 import Report
from relays import Answering, HttpProxy, hidden_plan, relay_of, tls_records

import needs
from federations import Running, make_kits, plan_for, quadratic_of
from waiting import wait_until

SECRET = "as long as nobody else reads this"


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    plan = hidden_plan(3)
    return plan, make_kits(tmp_path_factory.mktemp("site"), plan, (*plan.names, *plan.helpers))


@pytest.fixture(autouse=True)
def _nothing_failed_before():
    tunnels._failed.clear()


@pytest.fixture
def relay(site):
    made = relay_of(*site, "relay-1")
    yield made
    made.close()


@pytest.fixture
def answering(site):
    with Answering(site[0], site[1]["agent-0"]) as made:
        yield made


def ask(kit, what=SECRET, timeout=10.0):
    """Ask agent-0 something, as another member."""
    peer = Peer(kit, "agent-0", "outbound")
    try:
        return peer.report(Report(trouble=what), timeout).missing
    finally:
        peer.close()


def connected(*them):
    wait_until(lambda: all("agent-0" in each.connected for each in them), quiet=60)


# What passes through


class Recording(Relay):
    """Keeps what it passes on, a list of bytes for every direction."""

    def __init__(self, *args):
        self.seen = []
        super().__init__(*args)

    def join(self, name, target, far, near):
        for each in (near, far):
            each.settimeout(None)

        def record(source, sink):
            kept = bytearray()
            self.seen.append(kept)
            with contextlib.suppress(OSError):
                while data := self.tamper(source.recv(65536), kept):
                    kept += data
                    sink.sendall(data)
            for each in (near, far):
                with contextlib.suppress(OSError):
                    each.shutdown(socket.SHUT_RDWR)

        back = threading.Thread(target=record, args=(far, near), daemon=True)
        back.start()
        record(near, far)
        back.join()

    def tamper(self, data, kept):
        return data


def test_a_member_without_a_port_is_reached_and_the_relay_sees_ciphertext_only(site, answering):
    plan, kits = site
    made = relay_of(plan, kits, "relay-1", Recording)
    try:
        connected(made)
        assert ask(kits["agent-1"]) == "agent-1" + SECRET
        assert ask(kits["server"]) == "server" + SECRET
        assert sum(map(len, made.seen)) > 2000
        for kept in made.seen:
            # Handshake in the open, then nothing but encrypted records: not even certificates, nor what is said.
            assert set(tls_records(kept)) <= {20, 21, 22, 23} and tls_records(kept).count(22) <= 2
            for word in (SECRET.encode(), b"agent-1", b"BEGIN CERTIFICATE", b"pisco.Federation"):
                assert word not in kept
    finally:
        made.close()


@pytest.mark.parametrize("how", ["flip", "truncate", "delay"])
def test_a_relay_that_meddles_is_noticed_and_the_next_try_is_clean(site, answering, how):
    plan, kits = site

    class Meddling(Recording):
        honest = False

        def tamper(self, data, kept):
            if self.honest or len(kept) + len(data) < 2500:
                return data
            if how == "delay":
                time.sleep(0.1)
                return data
            return data[:-1] + bytes([data[-1] ^ 1]) if how == "flip" and data else b""

    made = relay_of(plan, kits, "relay-1", Meddling)
    try:
        connected(made)
        if how == "delay":
            assert ask(kits["agent-1"]) == "agent-1" + SECRET
            return
        with pytest.raises((OSError, Refused, grpc.RpcError)):
            ask(kits["agent-1"], SECRET * 200, timeout=3.0)
        made.honest = True
        assert ask(kits["agent-1"]) == "agent-1" + SECRET
    finally:
        made.close()


def test_what_was_said_once_cannot_be_said_again(site, answering):
    plan, kits = site
    made = relay_of(plan, kits, "relay-1", Recording)
    try:
        connected(made)
        assert ask(kits["agent-1"]) == "agent-1" + SECRET
        old = max(made.seen, key=len)
        far = made._summon("agent-0")  # the relay connects on its own, and says what it has recorded
        say(far, "ok")
        raw = far.unwrap()
        raw.sendall(bytes(old))
        raw.settimeout(10)
        answer = b""
        try:
            while data := raw.recv(65536):
                answer += data
        except OSError:
            pass
        raw.close()
        # The agent's first message, and the alert that ends it: nothing was taken for a request.
        assert tls_records(answer).count(23) <= 5 and len(answer) < 2000
        assert ask(kits["agent-1"]) == "agent-1" + SECRET
    finally:
        made.close()


@pytest.mark.parametrize("poser", ["relay-1", "agent-2"])
def test_a_relay_that_ends_tls_itself_is_refused(site, answering, poser):
    """With its own key, and with that of another member."""
    plan, kits = site
    failed = []

    class Ending(Relay):
        def join(self, name, target, far, near):
            near.settimeout(5)
            try:
                tunnels.tls(kits[poser], server=True, alpn="h2").wrap_socket(near, server_side=True).recv(1)
            except OSError as error:
                failed.append(error)

    made = relay_of(plan, kits, "relay-1", Ending)
    try:
        connected(made)
        with pytest.raises(ssl.SSLCertVerificationError):
            ask(kits["agent-1"])
        wait_until(lambda: failed, quiet=30)
    finally:
        made.close()


def test_a_relays_key_opens_nothing(site, relay, answering):
    """It can connect to a member, as everybody on a network can to a port; there it is not in the roster."""
    connected(relay)
    far = relay._summon("agent-0")
    say(far, "ok")
    raw = far.unwrap()
    with pytest.raises((ssl.SSLError, Refused)):  # it cannot even speak for another member
        tunnels.introduce(site[1]["relay-1"], raw, "agent-1", "h2")
    with pytest.raises((OSError, grpc.RpcError), match="not in the roster"):
        ask(site[1]["relay-1"])


# Who is let in


def knock(kit, plan, *words):
    """What the relay answers."""
    point = next(each for each in plan.relays if each.name == "relay-1")
    with tunnels.knock(kit, point, *words) as secured:
        return hear(secured, 10)


def test_strangers_can_neither_register_nor_dial(site, relay, tmp_path):
    elsewhere = make_kits(tmp_path, site[0], ("agent-0",))["agent-0"]  # of another authority
    for context in (ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT), tunnels.tls(elsewhere, server=False, alpn=tunnels.ALPN)):
        context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
        for words in (b"register\n", b"dial agent-0\n", b"take 00\n"):
            raw = socket.create_connection(("127.0.0.1", int(relay.address.split(":")[1])), timeout=10)
            with context.wrap_socket(raw) as secured, pytest.raises((ssl.SSLError, ConnectionError)):
                exchange(secured, words)
    assert relay.connected == []
    assert not relay._streams


def exchange(secured, words):
    secured.sendall(words)
    assert secured.recv(10) == b"", "it was answered"
    raise ConnectionResetError


def test_members_are_who_their_certificates_say(site, relay, answering):
    plan, kits = site
    connected(relay)
    assert knock(kits["server"], plan, "register").startswith("no server is not outbound")
    assert knock(kits["relay-1"], plan, "dial", "agent-0").startswith("no relay-1 is not in the roster")
    assert knock(kits["agent-1"], plan, "dial", "agent-2") == "no agent-2 is not connected there"
    assert knock(kits["agent-1"], plan, "dial", "../../x y") == "no ../../x y is not connected there"
    assert knock(kits["agent-1"], plan, "nonsense").startswith("no agent-1 asks for something unknown")
    # Calls are for who is called: the token alone does not do.
    calls = []
    relay._there["agent-0"].send = calls.append  # it does not hear of it
    caller = threading.Thread(target=lambda: calls.append(knock(kits["agent-1"], plan, "dial", "agent-0")))
    caller.start()
    wait_until(lambda: calls, quiet=30)
    token = calls[0].split()[1]
    assert knock(kits["agent-2"], plan, "take", token).startswith("no agent-2 takes a call that is not for it")
    assert knock(kits["agent-0"], plan, "take", token) == "ok"


def test_a_relay_answers_prometheus(site, relay, answering):
    needs.module("prometheus_client", "metrics")
    plan, kits = site
    connected(relay)
    peer, (port,) = Peer(kits["agent-1"], "agent-0", "outbound"), free_ports(1)
    try:
        peer.report(Report(trouble=SECRET), 10.0)
        assert knock(kits["agent-1"], plan, "nonsense").startswith("no ")
        url, metrics = f"http://127.0.0.1:{port}/metrics", RelayMetrics(relay)
        with serve_metrics(metrics, f"127.0.0.1:{port}"), urllib.request.urlopen(url) as answer:
            lines = [line for line in answer.read().decode().splitlines() if not line.startswith("#")]
    finally:
        peer.close()
    numbers = {name: float(value) for name, value in (line.rsplit(" ", 1) for line in lines)}
    assert numbers["pisco_relay_bytes_total"] == relay.bytes > 1000 and numbers["pisco_refusals_total"] == 1
    assert numbers["pisco_relay_connections"] == 1  # the one to look at a certificate is over
    present = [numbers[f'pisco_relay_member_present{{member="agent-{i}"}}'] for i in range(3)]
    assert present == [1, 0, 0]


def test_a_member_cannot_take_all_connections(site, relay, answering, monkeypatch):
    plan, kits = site
    connected(relay)
    monkeypatch.setattr(relays, "streams_of", lambda plan: 2)
    held = [tunnels.through_relays(kits["agent-1"], "agent-0", plan.relays) for _ in range(2)]
    with pytest.raises(OSError, match="agent-1 has too many connections"):
        tunnels.through_relays(kits["agent-1"], "agent-0", plan.relays)
    assert ask(kits["agent-2"]) == "agent-2" + SECRET  # others have theirs
    for each in held:
        each.close()
    wait_until(lambda: not relay._streams["agent-1"], quiet=30)


def test_who_does_not_speak_is_hung_up_on(site, relay, monkeypatch):
    monkeypatch.setattr(relays, "GREETING", 0.5)
    monkeypatch.setattr(relays, "STRANGERS", 3)
    port = int(relay.address.split(":")[1])
    silent = [socket.create_connection(("127.0.0.1", port)) for _ in range(6)]
    for each in silent:
        each.settimeout(20)
        assert each.recv(1) == b""
        each.close()


def test_who_is_hung_up_on_before_the_greeting_is_let_go(relay):
    """The thread that greets may be late: what it finds is an end, no error, and nothing stays open."""
    near, far = socket.socketpair()
    with far:
        secured = relay._context.wrap_socket(near, server_side=True, do_handshake_on_connect=False)
        relay._end(secured)
        relay._greet(secured, "127.0.0.1")
        assert secured.fileno() == -1 and far.recv(1) == b""


def test_a_revoked_member_is_dropped(tmp_path, monkeypatch):
    monkeypatch.setattr(relays, "BEAT", 0.2)
    plan = hidden_plan(2, relays=("relay-1",))
    kits = make_kits(tmp_path, plan, (*plan.names, *plan.helpers))
    made = relay_of(plan, kits, "relay-1")
    try:
        with Answering(plan, kits["agent-0"]):
            connected(made)
            authority = Authority.open(tmp_path / "authority", plan.name)
            authority.revoke([each.serial_number for each in authority.issued("agent-0")])
            kits_.refresh(tmp_path, plan, tmp_path / "kits" / "relay-1")
            wait_until(lambda: made.connected == [], quiet=60)
            assert knock(kits["agent-0"], plan, "register").startswith(
                "no the certificate of 'agent-0' has been revoked"
            )
    finally:
        made.close()


# Relays that come and go


def test_a_connection_that_comes_while_we_hang_up_is_closed():
    """`OSError` is what the threads that made it expect."""
    way = Outbound(None, plan_for(2), "")
    ours, theirs = socket.socketpair()
    way.close()
    with theirs, pytest.raises(OSError, match="we hang up"), way._kept(ours):
        raise AssertionError("it is used")
    assert ours.fileno() == -1 and not way._open


def test_a_relay_that_calls_without_end_takes_no_more_than_its_seats(monkeypatch):
    """Every call is a thread and a connection back to the relay, which need never answer."""
    began, hold = [], threading.Event()

    def knock(kit, relay, *words):
        began.append(words)
        hold.wait(30)
        raise OSError("it hung up")

    monkeypatch.setattr(tunnels, "knock", knock)
    plan = plan_for(2)
    way, calls = Outbound(None, plan, ""), [[f"call {number}" for number in range(500)], []]

    class Calling:
        def turn(self, seconds):
            if not calls:
                raise OSError("it hung up")
            return calls.pop(0)

    try:
        with pytest.raises(OSError, match="hung up"):
            way._listen_to(SimpleNamespace(name="relay-1"), Calling())
        wait_until(lambda: len(began) == relays.streams_of(plan))
        hold.set()
        wait_until(lambda: way._seats._value == relays.streams_of(plan))  # and they are free again
        assert len(began) == relays.streams_of(plan)
    finally:
        hold.set()
        way.close()


def test_the_second_relay_takes_over_and_the_first_one_comes_back(site, answering):
    plan, kits = site
    first, second = relay_of(plan, kits, "server"), relay_of(plan, kits, "relay-1")
    connected(first, second)
    peer = Peer(kits["agent-1"], "agent-0", "outbound")

    def answers():
        try:
            return peer.report(Report(trouble=SECRET), 5.0).missing == "agent-1" + SECRET
        except (OSError, grpc.RpcError):
            peer.forget()
            return False

    try:
        assert answers() and first.bytes and not second.bytes
        first.close()
        wait_until(answers, quiet=60)
        assert second.bytes
        first = relay_of(plan, kits, "server")
        connected(first)
        tunnels._failed.clear()
        second.close()
        wait_until(answers, quiet=60)
        assert first.bytes
    finally:
        peer.close()
        first.close()
        second.close()
    with pytest.raises(OSError, match=r"server: .*; relay-1: "):
        tunnels.through_relays(kits["agent-1"], "agent-0", plan.relays)


# Through a proxy


def test_everything_goes_through_an_http_proxy(site, relay, monkeypatch):
    plan, kits = site
    point = next(each for each in plan.relays if each.name == "relay-1")
    with HttpProxy(password="us er:p@ss") as proxy:
        url = f"http://us%20er:p%40ss@127.0.0.1:{proxy.port}"
        for name in ("agent-0", "agent-1"):
            monkeypatch.setattr(kits[name], "proxy", tunnels.check_proxy(url))
        with Answering(plan, kits["agent-0"]):
            connected(relay)
            assert ask(kits["agent-1"]) == "agent-1" + SECRET
            assert proxy.asked.count(point.address) >= 5  # it stays, is called twice, and is dialled twice
            proxy.refuse = True
            with pytest.raises(OSError, match="answers HTTP/1.1 403 Forbidden"):
                ask(kits["agent-1"])
        monkeypatch.setattr(kits["agent-1"], "proxy", proxy.url)
        proxy.refuse = False
        with pytest.raises(OSError, match="407 Proxy Authentication Required"):
            ask(kits["agent-1"])


def test_which_proxy(site, monkeypatch):
    kit = site[1]["agent-1"]
    monkeypatch.setenv("https_proxy", "http://proxy.example.org:3128")
    monkeypatch.setenv("no_proxy", "inside.example.org")
    assert tunnels.proxy_for(kit, "c.example.org") == "http://proxy.example.org:3128"
    assert [tunnels.proxy_for(kit, host) for host in ("inside.example.org", "127.0.0.1", "localhost", "::1")] == [
        None
    ] * 4
    monkeypatch.setattr(kit, "proxy", "http://10.0.0.1:8080")
    assert tunnels.proxy_for(kit, "127.0.0.1") == "http://10.0.0.1:8080"
    for bad in ("socks5://a:1", "proxy:3128", "http://", "http://a:99999", "http://a:1/path"):
        with pytest.raises(InputError, match="write http://host:port"):
            tunnels.check_proxy(bad)
    for bad in ("http://user:pass@word@a:1/path", "socks5://user:pass@word@a:1", "user:pass@word@a:1"):
        with pytest.raises(InputError, match=r"the proxy '…@a:1") as refused:
            tunnels.check_proxy(bad)
        assert "pass" not in str(refused.value)


# Plans


def test_plans_with_outbound_agents(tmp_path):
    usual = {"rounds": 9, "algorithm": {"local_lr": 0.1, "local_steps": 1}}
    plan = Federation.create("t", agents={"a": "10.0.0.1:7401", "b": "outbound", "c": "outbound"}, **usual)
    assert [member.at for member in plan.roster] == ["10.0.0.1:7401", "outbound", "outbound"]
    assert [(each.name, each.address) for each in plan.relays] == [("server", "127.0.0.1:7399")]
    plan.save(tmp_path / "federation.toml")
    assert 'reach = "outbound"' in (tmp_path / "federation.toml").read_text()
    assert Federation.load(tmp_path / "federation.toml").hash == plan.hash
    moved = (
        plan.change(3, "move", "a", "outbound")
        .change(5, "move", "b", "10.0.0.2:7401")
        .change(6, "add", "d", "outbound")
    )
    assert [member.at for member in moved.epochs[-1].members] == ["outbound", "10.0.0.2:7401", "outbound", "outbound"]
    assert moved.hidden == {"a", "b", "c", "d"} and plan.hidden == {"b", "c"}
    straight = Federation.create("t", agents=3, **usual)
    assert straight.relays is None and "relay" not in straight.to_toml() and straight.helpers == ("server",)
    with pytest.raises(InputError, match="no relay"):
        straight.change(3, "move", "agent-0", "outbound")
    for relays_, complaint in (
        ({"a": "10.0.0.9:1"}, "a relay is called 'a'"),
        ({"authority": "10.0.0.9:1"}, "a relay is called 'authority'"),
        ({"r": "10.0.0.1:7401"}, "both have the address"),
        ({"r": "10.0.0.9:1", "q": "10.0.0.9:1"}, "both have the address"),
        ({"r": "nowhere"}, "write host:port"),
    ):
        with pytest.raises(InputError, match=complaint):
            Federation.create("t", agents={"a": "10.0.0.1:7401", "b": "outbound"}, relays=relays_, **usual)
    tables = plan._tables()
    tables["roster"][0]["reach"] = "outbound"
    with pytest.raises(ValueError, match="needs either an address"):
        Federation.model_validate(tables)


def test_the_commands_know_who_is_outbound(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)

    def command(*words):
        return CliRunner().invoke(app, list(words), env={"COLUMNS": "120"})

    made = ["federation", "init", "clinic", "--agent", "north=10.0.0.5:7401", "--outbound", "south", "--rounds", "9"]
    assert command(*made, "--relay", "relay-1=10.0.0.8:7410").exit_code == 0
    assert "relay-1: " in command("federation", "issue", "--all", "--dir", "clinic").stdout
    shown = command("federation", "show", "--dir", "clinic").stdout
    assert "south  outbound" in shown and "relay-1 at 10.0.0.8:7410" in shown
    moved = ["federation", "change", "move", "north", "--address", "outbound", "--round", "5", "--dir", "clinic"]
    assert command(*moved).exit_code == 0
    assert Federation.load("clinic/federation.toml").hidden == {"north", "south"}
    for words, complaint in (
        (["relay", "--kit", "clinic/kits/south"], "start it with `pisco agent"),
        (["relay", "--kit", "clinic/kits/server"], "start it with `pisco server"),
        (["relay", "--kit", "clinic/kits/relay-1"], "cannot listen at 10.0.0.8:7410"),
        (["relay", "--kit", "clinic/kits/relay-1", "--listen", "10.0.0.8"], "the address '10.0.0.8' cannot be used"),
        (["agent", "--kit", "clinic/kits/south", "--proxy", "socks5://a:1"], "write http://host:port"),
        (["federation", "init", "a", "--agent", "n=h:1", "--outbound", "n"], "'n' has an address and is outbound"),
        (["federation", "init", "b", "--agents", "3", "--outbound", "agent-9"], "no agent 'agent-9'"),
        (["federation", "init", "c", "--outbound", "x", "--relay", "r"], "write NAME=HOST:PORT"),
    ):
        done = command(*words)
        assert done.exit_code == 2 and complaint in done.stderr, done.stderr
    ended = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    end = SimpleNamespace(close=int)
    monkeypatch.setattr(news, "Newsreader", lambda *given: signal.raise_signal(signal.SIGTERM) or end)
    listen = f"127.0.0.1:{free_ports(1)[0]}"
    done = command("relay", "--kit", "clinic/kits/relay-1", "--listen", listen, "--log-json")
    for number, handler in ended.items():
        signal.signal(number, handler)
    told = [json.loads(line)["message"] for line in done.stderr.splitlines()]
    assert told == [f"relaying at {listen}", "relayed 0 bytes"]


# Whole federations


def relayed(tmp_path, plan, problem_of=quadratic_of, disturb=lambda ran, relay: relay, **options):
    """A federation with its own relay beside the server; `disturb` gives the relay that is left at the end."""
    kits = make_kits(tmp_path, plan, (*plan.names, *plan.helpers))
    relay = relay_of(plan, kits, "relay-1") if "relay-1" in plan.helpers else None
    ran = None
    try:
        ran = Running(tmp_path, plan, problem_of, kits_=kits, **options)
        relay = disturb(ran, relay)
        ran.join()
    finally:
        if relay:
            relay.close()
    return ran


@pytest.mark.parametrize("agents", [3, pytest.param(5, marks=pytest.mark.slow)])
def test_agents_without_a_port_learn_the_same_through_relays_that_die(tmp_path, agents):
    settings = {"rounds": 15, "eval_every": 15}
    calm = Running(tmp_path / "calm", plan_for(agents, **settings), quadratic_of).join()

    def disturb(ran, relay):
        ran.wait(lambda: ran.members["agent-1"].done >= 4 and relay.bytes)
        relay.close()
        done = max(ran.members[name].done for name in ran.plan.names)
        assert done < 12, "too late"
        ran.wait(lambda: ran.members["agent-1"].done >= 8)
        return relay_of(ran.plan, ran.kits, "relay-1")

    plan = hidden_plan(agents, relays=("relay-1", "server"), **settings)
    ran = relayed(tmp_path / "relayed", plan, disturb=disturb)
    np.testing.assert_array_equal(ran.params(), calm.params())


@pytest.mark.slow
def test_agents_without_a_port_may_come_and_go(tmp_path):
    """With a deadline, the server's own relay alone, and a member that can be dialled among those that cannot."""
    settings = {"rounds": 30, "eval_every": 30}
    calm = Running(tmp_path / "calm", plan_for(4, **settings), quadratic_of).join()
    plan = hidden_plan(
        4, hidden=["agent-0", "agent-2", "agent-3"], relays=("server",), presence="deadline", deadline=60.0, **settings
    )

    def disturb(ran, relay):
        ran.wait(lambda: ran.members["agent-2"].done >= 8)
        ran.stop("agent-2")
        ran.wait(lambda: not ran.threads["agent-2"].is_alive())
        assert ran.members["agent-2"].done < 30, "too late"
        ran.errors.clear()
        ran.start("agent-2")
        return relay

    ran = relayed(tmp_path / "relayed", plan, disturb=disturb)
    np.testing.assert_array_equal(ran.params(), calm.params())
