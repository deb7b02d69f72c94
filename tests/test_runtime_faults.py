"""Kills, silence and lost state: the run continues to the same bits, or stops with a sentence."""

import random
import re
import shutil
import time

import numpy as np
import pytest

from pisco.federation.rolls import Roll
from pisco.federation.runtime.codec import Where
from pisco.federation.runtime.ledger import Ledger
from pisco.federation.runtime.peers import Mailroom, Stopped, Waited
from pisco.federation.runtime.wire_pb2 import Column, Report, Row

from federations import Processes, Running, make_kits, plan_for, quadratic_of


def undisturbed(tmp_path, plan):
    """The same plan on other ports, left alone."""
    return Running(tmp_path / "calm", plan, quadratic_of).join().params()


def test_killed_members_continue_to_the_same_bits(tmp_path):
    plan = plan_for(3, rounds=40, eval_every=20)
    calm = undisturbed(tmp_path, plan)
    storm = Processes(tmp_path / "storm", plan, quadratic_of)
    try:
        storm.start()
        for victim, at in (("agent-1", 10), ("server", 12)):
            storm.wait_for_round(victim, at)
            storm.kill(victim)
            storm.start(victim)
        storm.join()
    finally:
        storm.stop()
    np.testing.assert_array_equal(storm.params(), calm)


@pytest.mark.slow
def test_two_hundred_kills_change_nothing(tmp_path):
    plan = plan_for(5, rounds=3000, eval_every=100)
    calm = undisturbed(tmp_path, plan)
    storm, dice = Processes(tmp_path / "storm", plan, quadratic_of), random.Random(0)
    try:
        storm.start()
        for kills in range(200):
            if dice.random() < 0.7:  # in the middle of things, wherever this machine has come to
                at = min(storm.done(name) for name in plan.names) + dice.randint(1, 20)
                storm.wait(lambda at=at: min(storm.done(name) for name in plan.names) >= at)
            else:  # while the last victim is on its way back
                time.sleep(dice.uniform(0, 0.5))
            victim = dice.choice(["server", *plan.names])
            assert storm.processes[victim].exitcode in (None, 0), storm.log(victim)[-2000:]
            assert min(storm.done(name) for name in plan.names) < plan.rounds, f"over after {kills} kills"
            storm.kill(victim)
            storm.start(victim)
        storm.join()
    finally:
        storm.stop()
    np.testing.assert_array_equal(storm.params(), calm)


@pytest.mark.slow
def test_patience_ends_with_the_state_kept_and_the_run_goes_on_later(tmp_path):
    plan = plan_for(2, rounds=6, patience=10.0, network={"graph": "path"})
    ran = Running(tmp_path, plan, quadratic_of, only=["agent-0"], server=False)
    ran.join(fine=False)
    assert isinstance(ran.errors["agent-0"], Waited)
    assert "waited 10 s for agent-1" in str(ran.errors["agent-0"]) and "state is kept" in str(ran.errors["agent-0"])
    again = Running(tmp_path, plan, quadratic_of, kits_=ran.kits, server=False).join()
    assert again.results["agent-0"].rounds == 6


def test_a_lost_state_cannot_start_over(tmp_path):
    plan = plan_for(2, rounds=4000, network={"graph": "path"})
    ran = Running(tmp_path, plan, quadratic_of, server=False)
    ran.wait(lambda: ran.members["agent-1"].done >= 5)
    ran.stop("agent-1")
    ran.join("agent-1", fine=False)
    assert isinstance(ran.errors.pop("agent-1"), Stopped)
    shutil.rmtree(tmp_path / "state" / "agent-1")
    ran.start("agent-1")
    ran.join("agent-1", fine=False)
    error = ran.errors["agent-1"]
    assert isinstance(error, Stopped) and not isinstance(error, Waited)
    assert "cannot start over" in str(error)
    ran.stop()
    ran.join(fine=False)


def test_a_server_that_lost_rows_with_a_kill_asks_for_them_again(tmp_path):
    book = Ledger(plan_for(2, rounds=60), tmp_path)

    def told(*rounds, first):
        return book.note("agent-0", Report(rows=[Row(round=r, values={"loss": 1.0}) for r in rounds], first=first))

    assert told(20, first=1) == 0
    assert told(0, 20, first=0) == 2
    assert told(20, 40, first=1) == told(40, first=2) == 3


def test_rows_of_who_is_gone_for_good_may_be_lost(tmp_path):
    """The server was killed before it kept them: the others' history is there all the same."""
    book = Ledger(plan_for(2, rounds=3), tmp_path)
    book.note("agent-0", Report(rows=[Row(round=k, values={"loss": 2.0}) for k in range(4)]))
    assert "loss" not in book.result().history  # where nobody may miss a round, all are waited for
    book.attend(lambda: [Roll(k, 0, book.plan.hash, (0,)) for k in range(3)], lambda: (0,))
    np.testing.assert_array_equal(book.result().history["loss"], [2.0] * 4)


def test_rows_of_who_is_left_off_are_none_of_the_federation(tmp_path):
    book = Ledger(plan_for(3, rounds=3), tmp_path)
    for name, loss in (("agent-0", 1.0), ("agent-1", 3.0), ("agent-2", 1000.0)):
        book.note(name, Report(rows=[Row(round=k, values={"loss": loss}) for k in range(4)], round=3))
    rolls = [Roll(0, 0, "", (0, 1, 2)), Roll(1, 0, "", (0, 1), (2,)), Roll(2, 0, "", (0, 1), (2,))]
    book.attend(lambda: rolls, lambda: (0, 1), lambda: (2,))
    np.testing.assert_array_equal(book.result().history["loss"], [1004 / 3, 1004 / 3, 2.0, 2.0])
    told = [each.trouble for each in book.overview().agents]
    assert told[:2] == ["", ""] and told[2].startswith("left off every further roll")


def test_nobody_holds_up_what_is_over(tmp_path):
    """The last roll, that of the round after the last, calls nobody; before the first one everybody is waited for."""
    book = Ledger(plan_for(2, rounds=3), tmp_path)
    book.note("agent-0", Report(round=3))
    for called, held in ((None, "agent-1"), ((), "")):
        book.attend(list, lambda called=called: called)
        assert book.holdup().name == held


def test_the_names_of_arrays_are_those_that_most_tell(tmp_path):
    """The first to report could swap two arrays of one shape in the model that the server ends with."""
    book = Ledger(plan_for(3, rounds=3), tmp_path)
    for name, leaves in (("agent-0", ["b", "a"]), ("agent-1", ["a", "b"]), ("agent-2", ["a", "b"])):
        book.note(name, Report(leaves=leaves, whole_bytes=[8], round_bytes=[8]))
    book.save()
    assert book.leaves == Ledger(book.plan, tmp_path).leaves == ["a", "b"]
    for number in range(40):
        book.note("agent-0", Report(columns=[Column(name=f"m{number}-{each}") for each in range(40)]))
    book.note("agent-1", Report(columns=[Column(name="auc")]))
    assert len(book.result().metrics) == 51 and "test_auc" in book.result().metrics


def test_a_member_cannot_fill_the_log_with_its_troubles(tmp_path, caplog):
    book = Ledger(plan_for(3, rounds=3), tmp_path)
    for number in range(50):
        book.trouble("agent-0", f"has {number} features" + "!" * number)
        book.note("agent-1", Report(named={"agent-2": 9.0} if number % 2 else {}))
    assert [record.message[:20] for record in caplog.records] == ["agent-0: has 0 featu", "agent-1 names agent-"]
    assert book.troubles()["agent-0"].startswith("has 49")


def test_what_agents_say_of_their_metrics_is_kept_and_is_safe_to_print(tmp_path):
    book = Ledger(plan_for(2, rounds=60), tmp_path)
    own = Column(name="auc", rising=True, title="test AUC", unit="%")
    wild = [Column(name="\x1b[2J", rising=True), Column(name="gain", title="\x1b[2J", unit="\x1b[2J")]
    book.note("agent-0", Report(columns=[own, *wild]))
    book.note("agent-1", Report(columns=[Column(name="auc", rising=False)]))  # the first one counts
    book.save()
    for each in (book, Ledger(book.plan, tmp_path)):
        metrics = each.result().metrics
        assert list(metrics) == ["test_auc", "test_gain"]
        assert metrics["test_auc"].rising is True and metrics["test_auc"].unit == "%"
        assert metrics["test_gain"].rising is None and metrics["test_gain"].title == "test gain"
        assert metrics["test_gain"].unit == ""


def test_a_lie_about_sizes_does_not_reach_the_history(tmp_path):
    book = Ledger(plan_for(3, rounds=2), tmp_path)
    for name, size, loss in (("agent-0", 2**40, np.nan), ("agent-1", 8, 1.0), ("agent-2", 8, 3.0)):
        rows = [Row(round=r, values={"loss": loss, "round": 9.0}) for r in range(3)]
        book.note(name, Report(round=2, rows=rows, round_bytes=[size, size]))
    history = book.result().history
    assert history["round"].tolist() == [0, 1, 2] and history["loss"].tolist() == [2.0, 2.0, 2.0]
    assert 0 < history["bytes_server"][-1] + history["bytes_gossip"][-1] < 2000
    book.save()
    again = Ledger(book.plan, tmp_path).result().history
    assert {name: column.tolist() for name, column in again.items()} == {n: c.tolist() for n, c in history.items()}


def test_who_stops_while_it_averages_stops_without_a_trace(tmp_path):
    plan = plan_for(2)
    kit = make_kits(tmp_path, plan, ["server"])["server"]
    room = Mailroom(kit, patience=5.0)
    peer = room.peer("agent-0", plan.epochs[0].members[0].address)
    peer._checked_against = kit.revoked  # as after a first exchange
    room.close()
    with pytest.raises(Stopped, match="asked to stop"):  # grpc says ValueError: the channel is closed
        room.pull({0: peer}, Where(b"", 1, 0), layout=None, limit=1000)


class Larger:
    """A member's reports with ten million numbers more than the model has, from a round on."""

    def __init__(self, inner, since=0):
        self.inner, self.since = inner, since

    def __getattr__(self, name):
        return getattr(self.inner, name)

    def message(self, part, arrays):
        if part.k < self.since:
            return self.inner.message(part, arrays)
        return self.inner.message(part, [np.zeros((1, 10_000_000), np.float32)])


@pytest.mark.parametrize("since", [0, 1])
def test_a_server_takes_nothing_of_a_message_that_is_not_as_those_of_most(tmp_path, since, caplog):
    """At the first exchange all are asked what they would send; later ones must be like it, past restarts too."""
    plan = plan_for(3, rounds=2, network={"graph": "ring", "server_prob": 1.0})
    run = Running(tmp_path, plan, quadratic_of, server=False, only=plan.names[:2])
    run.prepare("agent-2")
    run.members["agent-2"].sums = Larger(run.members["agent-2"].sums, since)
    run._launch("agent-2")
    run.start("server")
    run.wait(lambda: "server" in run.errors or "refused a message of agent-2" in caplog.text)
    if since == 0:
        words = "agent-2 sends .*10000000.* and most send .*their models differ"
        assert re.search(words, str(run.errors["server"]))
    run.stop()
    run.join(fine=False)
    server = run.members["server"]
    assert server.mailroom.bytes_received < 5_000_000
    again = run.build("server")
    assert again._layouts == server._layouts and bool(again._layouts) == bool(since)
    again.close()


@pytest.mark.slow
def test_who_sends_something_else_than_most_is_left_behind_where_nobody_waits(tmp_path):
    plan = plan_for(
        4, rounds=2, presence="deadline", deadline=1.0, patience=20.0, network={"graph": "ring", "server_prob": 1.0}
    )
    run = Running(tmp_path, plan, quadratic_of, server=False, only=plan.names[:3])
    run.prepare("agent-3")
    run.members["agent-3"].sums = Larger(run.members["agent-3"].sums)
    run._launch("agent-3")
    run.start("server")
    run.join(*plan.names[:3])
    assert all(run.results[name].rounds == 2 for name in plan.names[:3])
    assert run.members["server"].mailroom.bytes_received < 5_000_000
    run.stop()
    run.join(fine=False)


def test_an_unexpected_fault_while_averaging_ends_the_server(tmp_path):
    """It is told at once; else everybody would wait for the average until patience ends."""

    def broken(*_):
        raise ZeroDivisionError("of nobody's making")

    plan = plan_for(2, rounds=2, network={"graph": "path", "server_prob": 1.0})
    run = Running(tmp_path, plan, quadratic_of, server=False)
    run.prepare("server")
    run.members["server"].sums.combine = broken
    run._launch("server")
    with pytest.raises(ZeroDivisionError, match="nobody's making"):
        run.join()
