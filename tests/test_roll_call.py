"""The roll: one decision per attempt, whoever dies, stops, returns or lies; and what counts is what everybody did."""

import errno
import json
import random
import threading
from types import SimpleNamespace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pisco import InputError
from pisco.federation.plan import Federation
from pisco.federation.rolls import BadRoll, Chain, OtherPlan, Roll, RollFile, counted, plan_mark, read, sign
from pisco.federation.runtime.attendance import Attendance
from pisco.federation.runtime.peers import Stopped
from pisco.federation.runtime.roll_call import RollCall, Word
from pisco.federation.runtime.transport import grpc
from pisco.federation.runtime.wire_pb2 import Ready

from federations import make_kits

RULE = {"name": "pisco", "local_lr": 0.1, "local_steps": 1}


def plan_of(agents=5, **given):
    given = {"rounds": 8, "presence": "deadline", "deadline": 2.0, "quorum": 2} | given
    return Federation.create("demo", agents=agents, algorithm=RULE, network={"graph": "ring"}, **given)


# ------------------------------------------------------------------------------------------- all of it, in one process


class Member:
    """What an agent keeps and does, as `rolled_agent` has it: states are numbers, an exchange is a mean."""

    def __init__(self, index, plan, value):
        self.index, self.plan = index, plan
        self.disk = {"base": (value, -1), "trial": None, "chain": Chain(plan).facts(), "done": 0}
        self.up = False

    def start(self):
        self.chain = Chain(self.plan, self.disk["chain"] if self.disk["chain"]["count"] else None)
        self.base, self.trial, self.done = self.disk["base"], self.disk["trial"], self.disk["done"]
        self.up = True

    def kill(self):
        self.up = False

    def hear(self, rolls):
        for roll in rolls:
            place = self.chain.count - 1
            counts = self.chain.add(roll, self.plan)
            if self.trial is not None and self.trial[2] == place:
                self.base = self.trial[:2] if counts else self.base
                self.trial = None
            else:
                assert not (counts and self.index in self.before and self.done <= place)
            self.before = roll.present

    before = ()

    def called(self):
        """The attempt that it is called to and has not done."""
        head = self.chain.head
        return head if self.index in head.present and self.done < self.chain.count else None

    def finish(self, value):
        self.trial = (value, self.chain.head.round, self.chain.count - 1)
        self.done = self.chain.count
        self.disk = {"base": self.base, "trial": self.trial, "chain": self.chain.facts(), "done": self.done}

    def word(self, waits_for=None):
        mark = plan_mark(self.plan, self.chain.head.round + 1)
        return Word(self.chain.count, self.done, True, mark, 0.1, waits_for)


class World:
    """A server and members who exchange in memory; `events` decide who is killed, who returns, who gets on."""

    def __init__(self, plan):
        self.plan, self.now, self.log = plan, 0.0, []
        self.call = RollCall(plan, [], 0.0)
        self.members = [Member(i, plan, float(2**i)) for i in range(len(plan.roster))]
        self.sent = {}  # (place, phase, sender): value
        for member in self.members:
            member.start()

    def tick(self, seconds=0.02):
        self.now += seconds
        for member in self.members:
            if member.up:
                member.hear(self.log[member.chain.count :])
                waits = self.missing(member)
                self.call.hear(member.index, member.word(waits), self.now)
        roll = self.call.decide(self.now)
        if roll is not None:
            assert (roll.round, roll.attempt) not in {each[:2] for each in self.log}  # one decision for an attempt
            self.log.append(roll)
            self.call.add(roll, self.now)
            assert len(roll.present) >= self.plan.quorum_at(roll.round) or roll.round == self.plan.rounds

    def restart_server(self):
        self.call = RollCall(self.plan, self.log, self.now)  # words are lost, decisions are not

    def missing(self, member):
        """Whom a member waits for in its exchange of two phases, once it has sent; None while it has not."""
        place = member.chain.count - 1
        if member.called() is None or (place, 0, member.index) not in self.sent:
            return None
        phase = int((place, 1, member.index) in self.sent)
        return next((i for i in member.chain.head.present if (place, phase, i) not in self.sent), None)

    def work(self, member):
        """One step of an attempt: send the first message, then the second, then finish."""
        if not member.up or member.called() is None:
            return
        place, roll = member.chain.count - 1, member.chain.head
        for phase in (0, 1):
            if (place, phase, member.index) not in self.sent:
                if phase == 0 or all((place, 0, i) in self.sent for i in roll.present):
                    self.sent[place, phase, member.index] = member.base[0]
                return
        if all((place, 1, i) in self.sent for i in roll.present):
            member.finish(np.mean([self.sent[place, 1, i] for i in roll.present]))


KINDS = ["kill", "back", "work", "work", "work", "work", "server", "late"]
EVENTS = st.lists(st.tuples(st.sampled_from(KINDS), st.integers(0, 4)), min_size=20, max_size=150)


def live_through(events):
    plan = plan_of()
    world = World(plan)
    for what, who in events:
        member = world.members[who]
        if what == "kill":
            member.kill()
        elif what == "back" and not member.up:
            member.start()
        elif what == "work":
            world.work(member)
        elif what == "server":
            world.restart_server()
        world.tick(1.0 if what == "late" else 0.02)
    for member in world.members:  # everybody returns: the run ends
        if not member.up:
            member.start()
    dice = random.Random(len(events))
    for _ in range(20_000):
        world.tick()
        world.work(dice.choice(world.members))
        if world.log and world.log[-1].round == plan.rounds:
            break
    world.tick()
    assert world.log[-1].round == plan.rounds
    states = [float(2**i) for i in range(5)]
    for roll in counted(world.log):  # the same by the log alone
        mean = np.mean([states[i] for i in roll.present])
        states = [mean if i in roll.present else value for i, value in enumerate(states)]
    assert [roll.round for roll in counted(world.log)] == list(range(plan.rounds))
    assert [member.base[0] for member in world.members] == states
    np.testing.assert_allclose(sum(states), 31.0)  # a mean among those present keeps the mean of all
    assert len({member.chain.hash for member in world.members}) == 1


@settings(max_examples=20, deadline=None)
@given(EVENTS)
def test_whatever_dies_and_returns_what_counts_is_what_everybody_did(events):
    live_through(events)


@pytest.mark.slow
@settings(max_examples=200, deadline=None)
@given(EVENTS)
def test_whatever_dies_and_returns_again_and_again(events):
    live_through(events)


# ------------------------------------------------------------------------------------------------- single decisions


def words(call, now, *who, done=None, waits_for=None, seconds=0.1):
    for index in who:
        mark = plan_mark(call.plan, call.chain.head.round + 1)
        done_ = call.chain.count if done is None else done
        call.hear(index, Word(call.chain.count, done_, True, mark, seconds, waits_for), now)


def begun(plan, agents, now=0.0):
    call = RollCall(plan, [], now)
    words(call, now, *range(agents))
    call.add(call.decide(now), now)
    return call


def test_a_round_waits_for_its_deadline_and_then_goes_on_without_the_missing():
    call = begun(plan_of(4), 4)
    words(call, 1.9, 0, done=call.chain.count)
    words(call, 1.9, 1, 2, done=0, waits_for=3)
    assert call.decide(1.9) is None
    roll = call.decide(2.1)
    assert roll[:2] == (0, 1) and roll.present == (0, 1, 2)
    call.add(roll, 2.1)
    words(call, 2.2, 0, 1, 2)
    assert call.decide(2.2)[:2] == (1, 0)  # who is absent is not waited for


def test_who_died_is_not_waited_for_till_the_deadline():
    call = begun(plan_of(4), 4)
    call.lose(3, now=0.2)
    words(call, 0.6, 0, done=0)  # still computes
    words(call, 0.6, 1, 2, done=0, waits_for=3)
    assert call.decide(0.6) is None and call.decide(0.8).present == (0, 1, 2)
    words(call, 0.6, 3, done=0)  # back in time
    assert call.decide(0.8) is None


def test_a_quorum_is_needed_and_the_missing_may_still_come():
    call = begun(plan_of(4, quorum=3), 4)
    words(call, 2.5, 0, 1, done=0, waits_for=3)
    assert call.decide(3.0) is None
    words(call, 3.0, 2, done=0, waits_for=3)
    assert call.decide(3.0).present == (0, 1, 2)


def test_the_server_says_which_round_waits_and_for_what():
    call = begun(plan_of(4, quorum=3), 4)
    words(call, 2.5, 0, 1, done=0, waits_for=3)
    assert call.decide(3.0) is None
    assert call.lacks == "round 0 waits: it needs 3 members ready in time, and has 2"
    plan = plan_of(3, quorum=3, server_sum="masked").change(1, "add", "agent-3", "127.0.0.1:9")
    call = begun(plan, 3)
    words(call, 0.1, 0, 1, 2)
    call.lose(2, now=0.2)
    words(call, 9.0, 0, 1, 3)
    assert call.decide(9.0) is None
    assert call.lacks == "round 1 waits: it needs 3 members that took part before, and has 2"


def test_who_comes_back_is_called_to_the_next_roll_and_rests_if_it_made_others_wait():
    call = begun(plan_of(4), 4)
    words(call, 2.1, 0, 1, 2, done=0, waits_for=3)
    call.add(call.decide(2.1), 2.1)
    words(call, 2.2, 3, done=0)  # at once there again, and ready
    words(call, 2.2, 0, 1, 2)
    assert call.decide(2.2).present == (0, 1, 2)
    words(call, 9.0, 0, 1, 2)
    words(call, 9.0, 3, done=0)
    assert call.decide(9.0).present == (0, 1, 2, 3)


def test_who_makes_attempts_fail_again_and_again_is_called_ever_more_rarely():
    call, now, failed = begun(plan_of(4, rounds=5000), 4), 0.0, 0
    while now < 300.0:
        bad = 3 in call.chain.head.present
        now += 2.0 if bad else 0.1
        failed += bad
        words(call, now, 0, 1, 2, **({"done": 0, "waits_for": 3} if bad else {}))
        words(call, now, 3, done=0, waits_for=0)
        call.add(call.decide(now), now)
    assert 4 <= failed <= 7  # 150 deadlines long


def test_waiting_for_one_who_is_slow_takes_at_most_a_quarter_of_the_time():
    call, now, waited = begun(plan_of(4, rounds=400), 4), 0.0, 0.0
    there = 0
    while call.chain.head.round < 400:
        slow = 3 in call.chain.head.present
        there += slow
        now += 1.0 if slow else 0.1
        waited += 0.9 if slow else 0.0
        words(call, now, 0, 1, 2)
        words(call, now, 3, seconds=1.0)
        call.add(call.decide(now), now)
    assert waited < 0.29 * now and there > 8  # three rounds to notice


def test_a_cut_link_costs_the_one_most_waited_for():
    call = begun(plan_of(4), 4)
    words(call, 2.0, 0, 2, done=0, waits_for=1)
    words(call, 2.0, 1, done=0, waits_for=-1)
    words(call, 2.0, 3)
    assert call.decide(2.1).present == (0, 2, 3)
    words(call, 2.0, 0, 1, 2, done=0, waits_for=-1)  # all wait for the server, and the server for one of them
    assert call.decide(2.1, server_waits_for=2).present == (0, 1, 3)


@pytest.mark.parametrize("blames", [lambda others: others[0], lambda others: -1])
@pytest.mark.parametrize("liars", [[7], [6, 7]])
def test_who_blames_one_after_the_other_is_left_out_itself(blames, liars):
    call, now, failed, honest = begun(plan_of(8, rounds=5000, quorum=5), 8), 0.0, 0, range(8 - len(liars))
    while now < 300.0:
        called = call.chain.head.present
        bad = not {*liars}.isdisjoint(called)
        now += 2.0 if bad else 0.1
        failed += bad
        words(call, now, *honest)
        words(call, now, *liars, done=0, waits_for=blames([i for i in called if i in honest]))
        call.add(call.decide(now), now)
    assert failed <= 14 and call.chain.head.round > 2000  # 150 deadlines long
    assert {*honest} <= {*call.chain.head.present}


def test_one_that_says_it_is_done_and_is_blamed_by_a_second_member_goes_too():
    call = begun(plan_of(6, quorum=3), 6)
    for waiting, on, left in (({1}, 0, {0}), ({1}, 5, {1}), ({1, 2}, 5, {1, 5})):
        words(call, 2.1, *({*range(6)} - waiting))
        words(call, 2.1, *waiting, done=0, waits_for=on)
        assert {*call.chain.head.present} - {*call.decide(2.1).present} == left
    call.plan = call.plan.model_copy(update={"quorum": 5})  # not both where they would not leave a quorum
    assert call.decide(2.1).present == (0, 2, 3, 4, 5)


def test_who_alone_does_not_get_the_average_is_left_out():
    call = begun(plan_of(4), 4)
    words(call, 2.1, 0, 1, 2)
    words(call, 2.1, 3, done=0, waits_for=-1)
    assert call.decide(2.1).present == (0, 1, 2)
    words(call, 2.1, 1, 2, done=0, waits_for=-1)
    assert call.decide(2.1).present == (0, 1, 2, 3)  # without them it would be none: once more


def test_who_has_another_plan_is_not_called():
    call = begun(plan_of(4), 4)
    words(call, 0.1, 0, 1, 2, 3)
    call.hear(3, Word(1, 1, True, "an older one", 0.1), 0.1)
    assert call.decide(0.1).present == (0, 1, 2)


# ---------------------------------------------------------------------------------------------------- the log


def test_rolls_that_cannot_be_are_refused():
    plan = plan_of(4, quorum=2)
    mark = plan_mark(plan, 0)
    chain = Chain(plan)
    chain.add(Roll(0, 0, mark, (0, 1, 2, 3)), plan)
    for roll, why in [
        (Roll(2, 0, mark, (0, 1)), "does not follow"),
        (Roll(0, 0, mark, (0, 1)), "does not follow"),
        (Roll(1, 1, mark, (0, 1)), "does not follow"),
        (Roll(1, 0, mark, (0, 7)), "calls"),
        (Roll(1, 0, mark, (1, 0)), "calls"),
        (Roll(1, 0, mark, (1,)), "below the quorum"),
        (Roll(1, 0, "another", (0, 1)), "another plan"),
    ]:
        with pytest.raises(BadRoll, match=why):
            chain.add(roll, plan)
    assert chain.count == 1 and issubclass(OtherPlan, BadRoll)


@pytest.fixture(scope="module")
def home(tmp_path_factory):
    folder, plan = tmp_path_factory.mktemp("log"), plan_of(3, rounds=4)
    return SimpleNamespace(folder=folder, plan=plan, kits=make_kits(folder, plan, ["server", "agent-0"]))


def written(home, folder):
    folder.mkdir()
    file, chain = RollFile(folder, home.kits["server"]), Chain(home.plan)
    for k in range(3):
        roll = Roll(k, 0, plan_mark(home.plan, k), (0, 1, 2)[: 3 - k % 2])
        chain.add(roll, home.plan)
        file.add(roll, sign(home.kits["server"], chain.hash))
    file.close()
    return folder / "rolls.jsonl"


def test_the_log_survives_a_kill_in_the_middle_of_a_line(home, tmp_path):
    path = written(home, tmp_path / "a")
    with path.open("a") as file:
        file.write('{"round": 3, "att')
    again = RollFile(path.parent, home.kits["server"])
    assert [roll.round for roll in again.rolls] == [0, 1, 2]
    again.close()
    assert path.read_text().endswith("}\n")


class FullDisk:
    """A file whose disk has room for so many bytes more."""

    def __init__(self, file, room):
        self.file, self.room = file, room

    def write(self, content):
        fits, self.room = content[: self.room], max(0, self.room - len(content))
        if not fits:
            raise OSError(errno.ENOSPC, "No space left on device")
        return self.file.write(fits)

    def __getattr__(self, name):
        return getattr(self.file, name)


def test_the_log_survives_a_full_disk(home, tmp_path):
    """A roll that the disk refused is not in the log: not in part, and not later on, before the one in its place."""
    path = written(home, tmp_path / "a")
    before = path.read_bytes()
    file, chain = RollFile(path.parent, home.kits["server"]), Chain(home.plan)
    for roll in file.rolls:
        chain.add(roll, home.plan)
    disk = file._file = FullDisk(file._file, 40)
    for present in ((0, 1, 2), (0, 1)):  # refused in the middle of the line, then at its beginning
        roll = Roll(3, 0, plan_mark(home.plan, 3), present)
        with pytest.raises(OSError, match="No space"):
            file.add(roll, sign(home.kits["server"], roll.hash(chain.hash)))
        assert path.read_bytes() == before and len(file.rolls) == 3
    disk.room = 1 << 20
    file.add(roll, sign(home.kits["server"], roll.hash(chain.hash)))
    file.close()
    assert read(path, home.plan)[3] == roll


@pytest.mark.parametrize("how", ["another roll", "another signer", "a line left out", "nonsense", "no text"])
def test_a_log_that_was_changed_is_refused(home, tmp_path, how):
    path = written(home, tmp_path / "a")
    lines = path.read_text().splitlines()
    if how == "another roll":
        lines[2] = json.dumps(json.loads(lines[2]) | {"present": [1, 2]})
    elif how == "another signer":
        lines[0] = json.dumps(json.loads(lines[0]) | {"certificate": home.kits["agent-0"].certificate.decode()})
    elif how == "a line left out":
        del lines[2]
    else:
        lines[2] = "[]" if how == "nonsense" else "\xa5"
    path.write_bytes(("\n".join(lines) + "\n").encode("latin-1"))
    with pytest.raises(InputError, match="line . of"):
        read(path, home.plan, home.kits["server"].authority)


def test_a_log_of_another_authority_is_refused(home, tmp_path):
    path = written(home, tmp_path / "a")
    other = make_kits(tmp_path / "other", home.plan, ["server"])["server"]
    assert len(read(path, home.plan, home.kits["server"].authority)) == 3
    with pytest.raises(InputError, match="not the server's"):
        read(path, home.plan, other.authority)


def test_what_a_rogue_server_says_is_fit_for_a_terminal():
    class Refusal(grpc.RpcError):
        def code(self):
            return grpc.StatusCode.FAILED_PRECONDITION

        def details(self):
            return "\x1b[2Jgo away\n\x1b]0;owned\x07"

    def result():
        raise Refusal

    call = SimpleNamespace(result=result, cancel=lambda: None)
    peer = SimpleNamespace(roll=lambda request, seconds: call)
    asking = object.__new__(Attendance)
    asking.agent, asking._changed = SimpleNamespace(plan=plan_of(2), peer=lambda *_: peer), threading.Condition()
    asking.done, asking.leaving = 0, False
    with pytest.raises(Stopped, match="refuses us") as stopped:
        asking._ask(Ready())
    assert str(stopped.value).isprintable()
