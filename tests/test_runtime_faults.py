"""Kills, silence and lost state: the run continues to the same bits, or stops with a sentence."""

import random
import shutil
import time

import numpy as np
import pytest

from pisco.federation.runtime.codec import Where
from pisco.federation.runtime.ledger import Ledger
from pisco.federation.runtime.peers import Mailroom, Stopped, Waited
from pisco.federation.runtime.wire_pb2 import Report, Row

from federations import Processes, Running, make_kits, plan_for, quadratic_of, shared_programs  # noqa: F401


def undisturbed(tmp_path, plan):
    """The same plan on other ports, left alone."""
    other = plan.model_copy(update={"patience": 60.0})
    ran = Running(tmp_path / "calm", other, quadratic_of)
    return ran.join(120).params()


def test_killed_members_continue_to_the_same_bits(tmp_path):
    plan = plan_for(3, rounds=60, patience=60.0, eval_every=20)
    calm = undisturbed(tmp_path, plan)
    storm = Processes(tmp_path / "storm", plan, quadratic_of)
    try:
        storm.start()
        for victim, at in (("agent-1", 10), ("server", 8), ("agent-0", 35)):
            storm.wait_for_round(victim, at)
            storm.kill(victim)
            storm.start(victim)
        storm.join()
    finally:
        storm.stop()
    np.testing.assert_array_equal(storm.params(), calm)


@pytest.mark.slow
def test_two_hundred_kills_change_nothing(tmp_path):
    plan = plan_for(5, rounds=3000, patience=120.0, eval_every=100)
    calm = undisturbed(tmp_path, plan)
    storm, dice = Processes(tmp_path / "storm", plan, quadratic_of), random.Random(0)
    kills = 0
    try:
        storm.start()
        while kills < 200:
            time.sleep(dice.expovariate(2.0))
            victim = dice.choice(["server", *plan.names])
            assert storm.processes[victim].exitcode in (None, 0), storm.log(victim)[-2000:]
            assert min(storm.done(name) for name in plan.names) < plan.rounds, f"over after {kills} kills"
            storm.kill(victim)
            storm.start(victim)
            kills += 1
        storm.join(600)
    finally:
        storm.stop()
    np.testing.assert_array_equal(storm.params(), calm)


@pytest.mark.slow
def test_patience_ends_with_the_state_kept_and_the_run_goes_on_later(tmp_path):
    plan = plan_for(2, rounds=6, patience=4.0, network={"graph": "path"})
    ran = Running(tmp_path, plan, quadratic_of, only=["agent-0"], server=False)
    ran.join(fine=False)
    assert isinstance(ran.errors["agent-0"], Waited)
    assert "waited 4 s for agent-1" in str(ran.errors["agent-0"]) and "state is kept" in str(
        ran.errors["agent-0"]
    )
    again = Running(tmp_path, plan, quadratic_of, kits_=ran.kits, server=False).join()
    assert again.results["agent-0"].rounds == 6


def test_a_lost_state_cannot_start_over(tmp_path):
    plan = plan_for(2, rounds=4000, patience=60.0, network={"graph": "path"})
    ran = Running(tmp_path, plan, quadratic_of, server=False)
    while ran.members.get("agent-1") is None or ran.members["agent-1"].done < 5:
        time.sleep(0.01)
    ran.stop("agent-1")
    ran.threads["agent-1"].join(60)
    assert isinstance(ran.errors.pop("agent-1"), Stopped)
    shutil.rmtree(tmp_path / "state" / "agent-1")
    ran.start("agent-1")
    ran.threads["agent-1"].join(60)
    error = ran.errors["agent-1"]
    assert isinstance(error, Stopped) and not isinstance(error, Waited)
    assert "cannot start over" in str(error)
    ran.stop()
    ran.join(fine=False)


def test_a_server_that_lost_rows_with_a_kill_asks_for_them_again(tmp_path):
    book = Ledger(plan_for(2, rounds=60), tmp_path)

    def told(*rounds, first):
        return book.note(
            "agent-0", Report(rows=[Row(round=r, values={"loss": 1.0}) for r in rounds], first=first)
        )

    assert told(20, first=1) == 0
    assert told(0, 20, first=0) == 2
    assert told(20, 40, first=1) == told(40, first=2) == 3


def test_who_stops_while_it_averages_stops_without_a_trace(tmp_path):
    plan = plan_for(2)
    kit = make_kits(tmp_path, plan, ["server"])["server"]
    room = Mailroom(kit, patience=5.0)
    peer = room.peer("agent-0", plan.epochs[0].members[0].address)
    peer._checked_against = kit.revoked  # as after a first exchange
    room.close()
    with pytest.raises(Stopped, match="asked to stop"):  # grpc says ValueError: the channel is closed
        room.pull({0: peer}, Where(b"", 1, 0), layout=None, limit=1000)
