"""Lines: small messages are pushed, nobody asks for them, and a line that breaks or lies changes no bit."""

import threading
import time
import types

import numpy as np
import pytest

from pisco.federation.kits import Refused
from pisco.federation.runtime import calls, exchanges, peers, postbox, pushing, transport
from pisco.federation.runtime.codec import SMALL, MessageLayout, Where
from pisco.federation.runtime.member import BOUNDARY
from pisco.federation.runtime.outbox import Outbox
from pisco.federation.runtime.postbox import MOST, Postbox, PushedMessage
from pisco.federation.runtime.server import Server
from pisco.federation.runtime.wire_pb2 import Pushed

from federations import Running, make_kits, plan_for, quadratic_of
from waiting import wait_until

ROUNDS = 14


def run(folder, monkeypatch, hold=None, **settings):
    """A federation of three, which may be held up after a round; its parameters, and which rounds were asked for."""
    asked, ask, found = [], calls.Peer.ask, {}

    def counted(peer, where, *given, **named):
        asked.append(where.round)
        return ask(peer, where, *given, **named)

    def progress(done):
        wait_until(lambda: "ran" in found)
        if hold is not None:
            hold(done, found["ran"])

    plan = plan_for(3, rounds=ROUNDS, network={"graph": "complete", "server_prob": 0.5}, **settings)
    with monkeypatch.context() as patched:
        patched.setattr(calls.Peer, "ask", counted)
        patched.setattr(postbox, "EXPECTED", 60.0)  # on a busy machine too
        found["ran"] = Running(folder, plan, quadratic_of, progress=progress)
        found["ran"].join()
    return found["ran"].params(), asked


def boxes(ran):
    return {name: member.mailroom.postbox for name, member in ran.members.items()}


def all_lines_are_up(ran):
    names = [*ran.plan.names, "server"]
    return all(box.expects(other) for name, box in boxes(ran).items() for other in names if other != name)


@pytest.fixture(scope="module")
def asked_for(tmp_path_factory):
    """The parameters of a run in which every message is asked for."""
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(exchanges, "SMALL", 0)  # nobody dials
        patched.setattr(peers, "SMALL", 0)  # and nobody waits for that
        params, asked = run(tmp_path_factory.mktemp("asked"), patched)
    assert len([k for k in asked if k <= ROUNDS]) >= ROUNDS * 2 * 3
    return params


ROLLS = {"presence": "deadline", "deadline": 60.0, "quorum": 3}


@pytest.mark.parametrize(
    "presence", [pytest.param({}, id="all"), pytest.param(ROLLS, id="rolls", marks=pytest.mark.slow)]
)
def test_nobody_asks_for_what_is_pushed(tmp_path, monkeypatch, asked_for, presence):
    def hold(done, ran):
        reached = ran.members["server"].coins(0, ROUNDS).index(True) + 1
        if done == reached + 1:  # the line to the server is dialled in the first round that reaches it
            wait_until(lambda: all_lines_are_up(ran) or ran.errors)
            begun.append(done)

    begun = []
    params, asked = run(tmp_path, monkeypatch, hold, **presence)
    # One may be a round ahead of the others when the lines are up; after the last round everybody says goodbye.
    assert len(begun) == 3 and not [k for k in asked if begun[0] + 2 < k <= ROUNDS]
    np.testing.assert_array_equal(params, asked_for)


def test_a_line_that_breaks_changes_nothing(tmp_path, monkeypatch, asked_for):
    broken = []

    def hold(done, ran):
        for box in boxes(ran).values() if done % 3 == 0 else ():
            for line in list(box._lines.values()):
                line.close()
                broken.append(line)

    monkeypatch.setattr(pushing, "AGAIN", 0.0)
    params, _ = run(tmp_path, monkeypatch, hold)
    assert broken
    np.testing.assert_array_equal(params, asked_for)


def message(data=b"abcd"):
    return PushedMessage(b"plan", "float32[1]", data)


def test_a_box_holds_few_messages_and_none_of_the_past():
    box = Postbox()
    box.open("b", box)
    for round_ in range(100):
        box.put("b", (round_, 0), message())
    assert box.take("b", (99 - MOST, 0), seconds=0) is None
    assert box.take("b", (98, 0), seconds=0) == message()
    box.put("b", (97, 0), message())
    assert sorted(box._messages["b"]) == [(99, 0)]
    for round_ in range(1000, 1100):
        box.put("b", (round_, 0), message())
    box.open("b", box)  # whoever flooded it: the next line is as the first
    box.put("b", (99, 1), message())
    assert box.take("b", (99, 1), seconds=0) == message()
    late = threading.Timer(0.05, box.close, ("b", box))
    late.start()
    assert box.take("b", (200, 0), seconds=60) is None and not box.expects("b")  # it does not wait for a broken line


def test_a_first_line_is_waited_for_and_later_ones_are_not():
    """Who is dialled has no connection of its own to ask on, and should not open one."""
    box = Postbox()

    def dialled():
        box.open("b", box)
        box.put("b", (0, 0), message())

    threading.Timer(0.05, dialled).start()
    assert box.may_bring("b") and not box.in_use
    assert box.take("b", (0, 0), seconds=60) == message() and box.in_use
    box.close("b", box)
    assert not box.may_bring("b") and box.take("b", (0, 1), seconds=60) is None  # it broke: it is asked at once
    assert box.take("c", (0, 0), seconds=0) is None and not box.may_bring("c")  # it had its time


def test_the_outbox_pushes_each_message_once_and_nothing_that_was_asked_for():
    box, layout, always = Outbox({}), MessageLayout((("float32", (1,)),)), {"seconds": 0, "alive": lambda: True}

    def pushed(after=(-1, -1)):
        places = []
        while (found := box.pushed_to("b", after, **always)) is not None:
            after = found[0]
            places.append(after)
        return places

    far_ahead = threading.Thread(target=box.take, args=("b", 9, 0), kwargs={"seconds": 60})
    far_ahead.start()
    wait_until(lambda: box._asked["b"])
    for phase in range(3):
        box.publish(1, phase, layout, b"abcd", ["b", "c"], pushed=["b"])
    assert pushed() == [(1, 0), (1, 1), (1, 2)]  # a question for what is far ahead holds nothing up
    assert box.take("b", 1, 1, seconds=0).data == b"abcd"
    assert pushed() == [(1, 2)] and box.pushed_to("c", (-1, -1), **always) is None
    assert box.take("b", 1, 0, seconds=0).data == b"abcd"  # it has begun again
    assert pushed() == [(1, 1), (1, 2)]
    box.publish(2, 0, layout, bytes(SMALL + 4), ["b"], pushed=["b"])
    assert pushed((1, 2)) == []
    box.publish(3, BOUNDARY, layout, b"abcd", ["b"])  # of whom joins: asked for, and before the first exchange
    box.publish(3, 0, layout, b"abcd", ["b"], pushed=["b"])
    assert box.take("b", 3, BOUNDARY, seconds=0).data == b"abcd" and pushed() == [(3, 0)]
    box.publish(9, 0, layout, b"abcd", ["b"], pushed=["b"])
    far_ahead.join()
    assert pushed() == []  # it was asked for; and who has it needs nothing before
    box.publish(9, 1, layout, b"abcd", ["b", "c"], pushed=["b"])
    box.passed("b", 10)
    assert pushed() == [] and (9, 1) in box.kept()  # of a round that is over, kept for another


def test_one_line_to_a_member_is_dialled_at_a_time(monkeypatch):
    tried, go_on = [], threading.Event()

    def line(outgoing):
        tried.append(outgoing)
        go_on.wait()
        raise OSError("nobody there")

    monkeypatch.setattr(pushing, "AGAIN", 0.0)
    kit, stopping = types.SimpleNamespace(certificate=b""), threading.Event()
    mailroom = types.SimpleNamespace(postbox=Postbox(), asking="", knows=lambda peer: True, stopping=stopping)
    lines = pushing.Pushing(types.SimpleNamespace(mailroom=mailroom, outbox=Outbox({}), kit=kit))
    peer = types.SimpleNamespace(name="b", line=line, check=lambda: None, forget=lambda: None)
    for _ in range(5):
        lines.dial(peer)
    wait_until(lambda: tried)
    lines.dial(peer)
    assert len(tried) == 1
    go_on.set()
    wait_until(lambda: len(tried) > 3)  # it is tried again without an exchange
    stopping.set()
    wait_until(lambda: not lines._under_way)


def test_no_average_is_begun_of_a_round_that_its_asker_has_left_behind(tmp_path):
    """The others would refuse the server what is over, and it would stop."""
    plan = plan_for(3, rounds=9, network={"graph": "complete", "server_prob": 1.0})
    server = Server(make_kits(tmp_path, plan, ["server"])["server"], tmp_path / "state")
    begun = []
    server._average = lambda *at: begun.append(at)
    server.outbox.passed("agent-1", 5)
    for round_ in (4, 5):
        server.asked("agent-1", round_, 0)
        server.arrived("agent-1", server.where(round_, 1))
    wait_until(lambda: len(begun) == 2)
    assert sorted(begun) == [(5, 0), (5, 1)]
    server.close()


def test_a_line_that_is_just_opened_is_not_taken_for_an_old_one():
    """Our messages go out in another thread, which may look at any moment."""
    seen = []

    class Watched(Postbox):
        def open(self, name, line):
            seen.append(line._newest)
            super().open(name, line)
            seen.append(line._newest)

    mailroom = types.SimpleNamespace(postbox=Watched(), timing=None)
    kit = types.SimpleNamespace(certificate=b"")
    member = types.SimpleNamespace(mailroom=mailroom, outbox=Outbox({}), kit=kit)
    old, new = (pushing._End(member, "b", lambda: None, dialled=True) for _ in range(2))
    old.listen([Pushed(ping=1)])
    new.listen([Pushed(ping=1)])
    assert seen == [True] * 4 and new._newest and not old._newest


def test_who_lies_on_a_line_loses_it():
    complaints, taken, checks = [], [], []

    def member():
        door = types.SimpleNamespace(complain=lambda name, why: complaints.append((name, why)))
        mailroom = types.SimpleNamespace(postbox=Postbox(), timing=None)
        kit, arrived = types.SimpleNamespace(certificate=b""), lambda name, where: taken.append(where)
        leaves = lambda name, where: "too soon"  # noqa: E731
        return types.SimpleNamespace(
            door=door, mailroom=mailroom, outbox=Outbox({}), arrived=arrived, kit=kit, leaves=leaves
        )

    good = Pushed(federation=b"plan", round=3, layout="float32[1]", data=b"abcd")
    lies = (
        transport.MALFORMED,
        Pushed(round=4, data=bytes(SMALL + 1)),
        Pushed(layout="f" * 2 * SMALL, data=b"abcd"),
        Pushed(round=4, packed=bytes(100)),  # not of this layout
        Pushed(round=4, packed=bytes(100), layout="float32[1000000000000]"),
        Pushed(round=4, packed=bytes(100), layout="nothing"),
        Pushed(round=4, packed=bytes(100), data=b"abcd"),
    )
    for bad in lies:
        end = pushing._End(member(), "b", lambda: None, dialled=True)
        end.listen([good, bad, good])
        assert complaints.pop() == ("b", "what it pushes is not a message")
        assert len(taken) == 1 and taken.pop().round == 3
    end = pushing._End(member(), "b", lambda: None, dialled=True)
    end.listen([Pushed(round=3, data=b"abcd"), good])  # of which plan, or by which rolls?
    assert complaints.pop() == ("b", "what it pushes is of no exchange") and not taken

    end = pushing._End(member(), "b", lambda: None, dialled=True)
    end.listen([good, Pushed(federation=b"plan", round=9, ping=3), good])
    assert complaints.pop() == ("b", "too soon") and len(taken) == 1 and not end._pongs
    taken.clear()

    def check():
        checks.append(1)
        if len(checks) > 1:
            raise Refused("the certificate of 'b' is revoked")

    end = pushing._End(member(), "b", check, dialled=True)
    end.listen([good, good])
    assert len(taken) == 1 and "revoked" in complaints.pop()[1]
    end.member.outbox.publish(1, 0, MessageLayout((("float32", (1,)),)), b"abcd", ["b"], pushed=["b"])
    assert [each.data for each in end.outgoing()] == [b""] and "revoked" in complaints.pop()[1]  # a ping, and no vector

    def unseen():
        raise OSError("it does not answer")

    end = pushing._End(member(), "b", unseen, dialled=True)  # no lie: the line ends, and messages are asked for
    end.listen([good])
    assert not complaints and len(taken) == 1


def test_what_a_line_leaves_out_the_other_end_fills_in():
    taken, wide = [], MessageLayout((("float32", (1, 124)),))
    messages = {(0, 0): np.zeros(124), (0, 1): np.ones(124), (1, 0): np.arange(124), (1, 1): -np.ones(124)}
    messages |= {(2, 1): np.full(124, 0.1), (2, 2): np.logspace(-30, 30, 124), (40, 0): np.ones(124)}
    kit, box, out = types.SimpleNamespace(certificate=b""), Postbox(), Outbox({})
    for at, numbers in messages.items():
        out.publish(*at, wide, numbers.astype(np.float32).tobytes(), ["b"], pushed=["b"])
    sender = types.SimpleNamespace(
        outbox=out,
        kit=kit,
        mailroom=types.SimpleNamespace(postbox=Postbox()),
        where=lambda *at: Where(b"plan", *at),
        why_not=lambda *given: None,
        bytes_sent=0,
    )
    outgoing = pushing._End(sender, "b", lambda: None, dialled=True).outgoing()
    sent = [next(outgoing) for _ in range(1 + len(messages))]  # a ping, and the messages
    assert [(each.round, each.phase) for each in sent[1:]] == [(0, 0), (0, 0), (1, 0), (0, 0), (2, 1), (0, 0), (40, 0)]
    assert [bool(each.packed) for each in sent[1:]] == [True] * 5 + [False, True] and len(sent[1].packed) == 450
    mailroom = types.SimpleNamespace(postbox=box, timing=None)
    arrived = lambda name, where: taken.append(where)  # noqa: E731
    receiver = types.SimpleNamespace(outbox=Outbox({}), kit=kit, mailroom=mailroom, arrived=arrived)
    pushing._End(receiver, "a", lambda: None, dialled=False).listen(sent)
    assert taken == [Where(b"plan", *at) for at in messages]
    for at, numbers in messages.items():
        assert box.take("a", at, seconds=0).data == numbers.astype(np.float32).tobytes()


def test_goodbye_is_taken_over_a_line_as_it_is_when_asked(tmp_path):
    plan = plan_for(3, rounds=9, network={"graph": "complete", "server_prob": 1.0})
    server = Server(make_kits(tmp_path, plan, ["server"])["server"], tmp_path / "state")
    mark = server.federation_hash(9)
    for name, where, objection in (
        ("agent-1", Where(mark, 9, 0), "before its last"),
        ("agent-1", Where(mark, 12, 0), "no such round"),
        ("agent-1", Where(b"another", 10, 0), "another federation"),
        ("nobody", Where(mark, 10, 0), "not in the roster"),
    ):
        assert objection in server.leaves(name, where)
    assert not server.outbox.floors()
    assert server.leaves("agent-1", Where(mark, 10, 0)) is None
    assert server.outbox.floors() == {"agent-1": 10}
    server.close()


def test_a_goodbye_is_answered_even_by_who_ends_at_once():
    """Whom we tell may have waited for nothing else."""
    kit, heard = types.SimpleNamespace(certificate=b""), []
    mailroom = types.SimpleNamespace(postbox=Postbox(), timing=None)
    member = types.SimpleNamespace(mailroom=mailroom, outbox=Outbox({}), kit=kit)
    end = pushing._End(member, "b", lambda: None, dialled=True)

    def leaves(name, where):
        member.outbox.close()
        time.sleep(0.2)  # the other direction has seen that we end
        heard.append(where.round)

    member.leaves = leaves
    said = lambda: heard.extend(each.pong for each in end.outgoing())  # noqa: E731 (a ping first)
    sending = threading.Thread(target=said)
    sending.start()
    wait_until(lambda: heard)
    end.listen([Pushed(federation=b"plan", round=9, ping=7)])
    sending.join()
    assert heard == [0, 9, 7]
