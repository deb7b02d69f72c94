"""Lines: small messages are pushed, nobody asks for them, and a line that breaks or lies changes no bit."""

import threading
import types

import numpy as np
import pytest

from pisco.federation.kits import Refused
from pisco.federation.runtime import agent, calls, postbox, pushing, transport
from pisco.federation.runtime.codec import SMALL, MessageLayout
from pisco.federation.runtime.outbox import Outbox
from pisco.federation.runtime.postbox import MOST, Postbox, PushedMessage
from pisco.federation.runtime.wire_pb2 import Pushed

from federations import Running, plan_for, quadratic_of, shared_programs  # noqa: F401 (a fixture)
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
        patched.setattr(agent, "SMALL", 0)  # nobody dials
        params, asked = run(tmp_path_factory.mktemp("asked"), patched)
    assert len([k for k in asked if k <= ROUNDS]) >= ROUNDS * 2 * 3
    return params


@pytest.mark.parametrize(
    "presence", [{}, {"presence": "deadline", "deadline": 60.0, "quorum": 3}], ids=["all", "rolls"]
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
    late = threading.Timer(0.05, box.close, ("b", box))
    late.start()
    assert box.take("b", (200, 0), seconds=60) is None and not box.expects("b")  # it does not wait for a broken line


def test_the_outbox_pushes_each_message_once_and_nothing_up_to_what_is_asked_for():
    box, layout, always = Outbox({}), MessageLayout((("float32", (1,)),)), {"seconds": 0, "alive": lambda: True}
    for phase in range(3):
        box.publish(1, phase, layout, b"abcd", ["b", "c"], pushed=["b"])
    assert box.take("b", 1, 1, seconds=0).data == b"abcd"
    after, places = (-1, -1), []
    while (found := box.pushed_to("b", after, **always)) is not None:
        after = found[0]
        places.append(after)
    assert places == [(1, 2)] and box.pushed_to("c", (-1, -1), **always) is None
    box.publish(2, 0, layout, bytes(SMALL + 4), ["b"], pushed=["b"])
    assert box.pushed_to("b", after, **always) is None


def test_who_lies_on_a_line_loses_it():
    complaints, taken, checks = [], [], []

    def member():
        door = types.SimpleNamespace(complain=lambda name, why: complaints.append((name, why)))
        mailroom = types.SimpleNamespace(postbox=Postbox(), timing=None)
        return types.SimpleNamespace(
            door=door, mailroom=mailroom, outbox=Outbox({}), arrived=lambda name, where: taken.append(where)
        )

    good = Pushed(federation=b"plan", round=3, layout="float32[1]", data=b"abcd")
    for bad in (transport.MALFORMED, Pushed(round=4, data=bytes(SMALL + 1))):
        end = pushing._End(member(), "b", lambda: None)
        end.listen([good, bad, good])
        assert complaints.pop() == ("b", "what it pushes is not a message")
        assert len(taken) == 1 and taken.pop().round == 3
    end = pushing._End(member(), "b", lambda: None)
    end.listen([Pushed(round=3, data=b"abcd"), good])  # of which plan, or by which rolls?
    assert complaints.pop() == ("b", "what it pushes is of no exchange") and not taken

    def check():
        checks.append(1)
        if len(checks) > 1:
            raise Refused("the certificate of 'b' is revoked")

    end = pushing._End(member(), "b", check)
    end.listen([good, good])
    assert len(taken) == 1 and "revoked" in complaints.pop()[1]
    end.member.outbox.publish(1, 0, MessageLayout((("float32", (1,)),)), b"abcd", ["b"], pushed=["b"])
    assert [each.data for each in end.outgoing()] == [b""] and "revoked" in complaints.pop()[1]  # a ping, and no vector
