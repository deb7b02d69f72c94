"""Agents join, leave and move by plan: weights and trackers are those of the new roster from the stated round on."""

from types import SimpleNamespace

import numpy as np
import pytest

import pisco
from pisco.engines import checkpoint
from pisco.engines.job import Job, Run, Segment
from pisco.engines.scan import ScanEngine
from pisco.federation import kits
from pisco.federation.runtime.ledger import Ledger
from pisco.federation.runtime.peers import Stopped
from pisco.federation.runtime.wire_pb2 import Report

from federations import Running, free_ports, make_kits, plan_for, quadratic_of
from worlds import Quadratics, coins

WORLD = Quadratics(agents=5)


def changed_plan(**settings):
    """Three agents; agent-3 joins at round 4, agent-1 leaves at round 8."""
    plan = plan_for(3, rounds=12, dtype="float64", eval_every=3, **settings)
    plan = plan.change(4, "add", "agent-3", f"127.0.0.1:{free_ports(1)[0]}")
    return plan.change(8, "remove", "agent-1")


def stacked_round(state, network, rows, server, local_lr=0.05):
    """A round of PISCO with one local step by NumPy: one agent of the world a row."""

    def gradient(at):
        return np.einsum("nij,nj->ni", WORLD.hessians[rows], at - WORLD.minimizers[rows])

    W = np.full((len(rows), len(rows)), 1 / len(rows)) if server else network.weights.toarray()
    x = state.params - local_lr * state.tracker
    g = gradient(x)
    y = state.tracker + g - state.grads
    params = W @ (x - local_lr * y)
    grads = gradient(params)
    return SimpleNamespace(params=params, grads=grads, tracker=W @ (y + grads - g))


def by_hand(plan):
    """The same with stacked states: where the roster changes, trackers are reset and who joins starts from the mean."""
    states, epoch, own = [], None, dict.fromkeys(plan.epochs[0].names, WORLD.x0)
    for k, server in enumerate(coins(plan.network_of(plan.epochs[0]).server, plan.rounds, plan.seed)):
        new = plan.epoch_at(k)
        rows = [member.index for member in new.members]
        if new is not epoch:
            mean = np.mean([own[name] for name in new.names if name in own], axis=0)
            params = np.stack([own.get(name, mean) for name in new.names])
            grads = np.einsum("nij,nj->ni", WORLD.hessians[rows], params - WORLD.minimizers[rows])
            state, epoch = SimpleNamespace(params=params, grads=grads, tracker=grads), new
        state = stacked_round(state, plan.network_of(new), rows, server)
        own = dict(zip(new.names, state.params, strict=True))
        states.append(state)
    return states


def test_agents_join_and_leave_by_plan(tmp_path, x64, caplog):
    plan = changed_plan()
    ran = Running(tmp_path, plan, lambda i: quadratic_of(i, WORLD, "float64")).join()
    assert "did not say that they are done" not in caplog.text  # nobody waits for who stops being a neighbour
    expected = by_hand(plan)
    last = plan.epochs[-1].names
    found = np.concatenate([ran.results[name].params for name in last])
    np.testing.assert_allclose(found, expected[-1].params, rtol=0, atol=1e-12)
    left = ran.results["agent-1"]
    assert left.rounds == 8
    np.testing.assert_allclose(left.params[0], expected[7].params[1], rtol=0, atol=1e-12)
    # mean(Y) = mean(G) over the new roster, as the stores of its members have them.
    kept = [checkpoint.latest(tmp_path / "state" / name).leaves for name in last]
    tracker, grads = (np.mean([leaves[f] for leaves in kept], axis=0) for f in (".tracker", ".grads"))
    np.testing.assert_allclose(tracker, grads, rtol=0, atol=1e-12)
    assert ran.results["server"].history["round"].tolist() == [0, 3, 6, 9, 12]


@pytest.mark.slow
def test_a_plan_that_comes_while_the_federation_runs(tmp_path, x64):
    plan = plan_for(3, rounds=400, dtype="float64", eval_every=100)
    made = make_kits(tmp_path, plan)
    ran = Running(tmp_path, plan, lambda i: quadratic_of(i, WORLD, "float64"), kits_=made)
    ran.wait(lambda: min(ran.members[name].done for name in plan.names) >= 3)
    now = max(ran.members[name].done for name in plan.names)
    later = plan.change(min(now + 150, 399), "remove", "agent-2")
    for name in (*plan.names, "server"):
        kits.refresh(tmp_path, later, tmp_path / "kits" / name)
    ran.join()
    assert ran.results["agent-2"].rounds == later.changes[0].round
    assert {ran.results[name].rounds for name in ("agent-0", "agent-1")} == {400}


@pytest.mark.slow
def test_a_move_stops_the_old_process_and_the_new_one_continues(tmp_path, x64):
    plan = plan_for(2, rounds=12, dtype="float64", network={"graph": "path", "server_prob": 0.3})
    plan = plan.change(6, "move", "agent-1", f"127.0.0.1:{free_ports(1)[0]}")
    ran = Running(tmp_path, plan, lambda i: quadratic_of(i, WORLD, "float64"))
    ran.join("agent-1", fine=False)
    assert isinstance(ran.errors.pop("agent-1"), Stopped)
    ran.start("agent-1")
    ran.join()
    calm = plan_for(2, rounds=12, dtype="float64", network={"graph": "path", "server_prob": 0.3})
    other = Running(tmp_path / "calm", calm, lambda i: quadratic_of(i, WORLD, "float64")).join()
    np.testing.assert_array_equal(ran.params(), other.params())


def problem_of(agent):
    return quadratic_of(agent, WORLD, "float64")


def waiting_to_join(tmp_path, **settings):
    """A member that joins three others at round 4 and was started before them; the server is there."""
    plan = plan_for(3, rounds=12, dtype="float64", eval_every=3, **settings)
    plan = plan.change(4, "add", "agent-3", f"127.0.0.1:{free_ports(1)[0]}")
    ran = Running(tmp_path, plan, problem_of, only=["agent-3"])
    ran.wait(lambda: ran.members["agent-3"].mailroom.asking == "server")
    return ran, plan


def refresh(tmp_path, plan, *names):
    for name in names:
        kits.refresh(tmp_path, plan, tmp_path / "kits" / name)


def test_the_plan_changes_again_at_the_round_for_which_a_member_waits(tmp_path, x64):
    ran, plan = waiting_to_join(tmp_path)
    later = plan.change(4, "remove", "agent-1").change(8, "remove", "agent-0")
    refresh(tmp_path, later, "server", *later.names)
    ran.wait(lambda: ran.members["agent-3"].plan.hash == later.hash)
    for name in plan.names[:3]:
        ran.kits[name] = kits.Kit.load(tmp_path / "kits" / name)
        ran.start(name)
    ran.join()
    found = np.concatenate([ran.results[name].params for name in later.epochs[-1].names])
    np.testing.assert_allclose(found, by_hand(later)[-1].params, rtol=0, atol=1e-12)
    assert [ran.results[name].rounds for name in later.names] == [8, 4, 12, 12]


@pytest.mark.parametrize(
    ("told", "later", "words"),
    [
        ("agent-3", lambda plan: plan.cancel("agent-3"), "without agent-3: it was to join, and that was cancelled"),
        ("server", lambda plan: plan.cancel("agent-3"), "refuses us: it was to join, and that was cancelled"),
        (
            "agent-3",
            lambda plan: plan.cancel("agent-3").change(6, "add", "agent-3", "127.0.0.1:9"),
            "adds agent-3 at round 6, at 127.0.0.1:9; type the command again",
        ),
    ],
)
def test_who_waits_to_join_stops_when_that_is_cancelled_or_changed(tmp_path, x64, told, later, words):
    ran, plan = waiting_to_join(tmp_path)
    reports = ran.members["server"].ledger
    ran.wait(lambda: reports.overview().agents[3].last_contact >= 0)
    refresh(tmp_path, later(plan), told)
    ran.join("agent-3", fine=False)
    assert isinstance(ran.errors["agent-3"], Stopped) and words in str(ran.errors["agent-3"])
    ran.stop()


def told(ledger, **rounds):
    for name, round_ in rounds.items():
        ledger.note(name.replace("_", "-"), Report(round=round_))


def test_nobody_has_got_as_far_as_who_waits_to_join(tmp_path):
    plan = plan_for(3, rounds=40)
    for i in (3, 4):
        plan = plan.change(30, "add", f"agent-{i}", f"127.0.0.1:{i + 9}")
    ledger = Ledger(plan, tmp_path)
    told(ledger, agent_0=8, agent_1=8, agent_2=9, agent_3=30, agent_4=30)
    assert ledger.front() == 9 and ledger.line() == "5 of 5 agents, rounds 8 to 9 of 40"
    told(ledger, agent_0=31, agent_1=31, agent_2=30)
    assert ledger.front() == 31
    alone = plan_for(1, rounds=40).change(30, "add", "agent-1", "127.0.0.1:9")
    ledger = Ledger(alone, tmp_path / "alone")
    told(ledger, agent_0=8, agent_1=30)
    assert ledger.front() == 8 and not ledger.cancelled("agent-1")
    ledger.adopt(alone.cancel("agent-1"))
    assert ledger.cancelled("agent-1") and not ledger.cancelled("agent-0")


def test_a_server_does_not_miss_who_joins_later(tmp_path, x64):
    ran, _ = waiting_to_join(tmp_path, patience=1.5)
    server = ran.members["server"]
    ran.wait(lambda: server.ledger.overview().agents[3].last_contact >= 0)
    ran.stop("agent-3")
    ran.join("agent-3", fine=False)
    ran.wait(lambda: server.ledger.silent(["agent-3"]))
    assert not server.over(["agent-3"]) and ran.alive() == ["server"]
    told(server.ledger, agent_0=5, agent_1=5, agent_2=5)
    with pytest.raises(Stopped, match="heard nothing from agent-3"):
        server.over(["agent-3"])
    ran.stop()


@pytest.mark.parametrize("name", ["pisco", "dsgt", "kgt"])
def test_whoever_stays_the_means_agree(name):
    rule = getattr(pisco.algorithms, name)(local_lr=0.02, **({} if name == "dsgt" else {"local_steps": 2}))
    problem = pisco.problems.quadratic(WORLD.hessians, WORLD.minimizers)
    network = pisco.Network.ring(problem.num_agents)
    engine = ScanEngine()
    job = Job(problem, network, (Run(rule, network.server, 0),))
    states, _, _ = engine.advance(job, engine.start(job), 0, Segment(1, 5, measured=False))
    state = rule.rebase(states[0].state)
    some = slice(0, 2)  # those who stay
    if name == "kgt":
        assert not np.asarray(state.correction).any()
    else:
        np.testing.assert_array_equal(state.tracker[some].mean(axis=0), state.grads[some].mean(axis=0))
        assert np.abs(states[0].state.tracker[some].mean(0) - state.grads[some].mean(0)).max() > 1e-3


def test_a_method_whose_state_cannot_follow_is_refused(tmp_path):
    algorithm = {"name": "beer", "local_lr": 0.05}
    plan = plan_for(3, rounds=20, algorithm=algorithm, network={"graph": "ring"}).change(8, "remove", "agent-1")
    with pytest.raises(pisco.InputError, match="cannot change its roster"):
        Running(tmp_path, plan, quadratic_of, only=["agent-0"], server=False).join()
