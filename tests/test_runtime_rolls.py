"""Federations that go on without the absent: who is gone, slow, cut off or back, and what the log says of it."""

import numpy as np

import pisco
from pisco.federation.rolls import counted, read
from pisco.federation.runtime.replay import replay, scan

from federations import Processes, Running, plan_for, quadratic_of, shared_programs  # noqa: F401
from worlds import Quadratics

WORLD = Quadratics(agents=8)


def problem_of(agent):
    """One agent's quadratic in double precision; at the top of a module, since processes are sent it."""
    return quadratic_of(agent, WORLD, "float64")


def rolled(agents=4, **given):
    settings = {"presence": "deadline", "deadline": 2.0, "quorum": 2, "dtype": "float64", "eval_every": 10}
    return plan_for(agents, **settings | given)


def rolls_of(home, plan, server="state/server"):
    return list(read(home / server / "rolls.jsonl", plan, (home / "authority" / "cert.pem").read_bytes()))


def again(home, plan, names=None):
    """Everybody's parameters by the log alone, and the largest |mean(Y) − mean(G)| on the way."""
    rolls, gaps = rolls_of(home, plan), []

    def watch(k, states):
        tracker, grads = (np.mean([getattr(s, f) for s in states.values()], axis=0) for f in ("tracker", "grads"))
        gaps.append(np.abs(tracker - grads).max())

    problems = {name: problem_of(i) for i, name in enumerate(plan.names)}
    states = replay(plan, problems, rolls, watch)
    assert [roll.round for roll in counted(rolls)] == list(range(plan.rounds))
    own = {name: np.asarray(states[name].params) for name in names or plan.names}
    return own, max(gaps), scan(plan, problems, rolls) if len(plan.epochs) == 1 else None


def test_with_everybody_there_it_is_the_run_that_waits_for_all(tmp_path, x64):
    plan = rolled(3, rounds=12, deadline=60.0)
    ran = Running(tmp_path, plan, problem_of).join()
    whole = plan_for(3, rounds=12, dtype="float64", eval_every=10)
    calm = Running(tmp_path / "calm", whole, problem_of).join()
    np.testing.assert_array_equal(ran.params(), calm.params())
    assert all(roll.present == (0, 1, 2) for roll in counted(rolls_of(tmp_path, plan)))
    history = ran.results["server"].history
    for column in ("round", "loss", "messages_gossip", "bytes_server"):
        np.testing.assert_array_equal(history[column], calm.results["server"].history[column])


def test_one_gone_for_good_and_one_that_returns(tmp_path, x64):
    plan = rolled(4, rounds=60, patience=10.0, deadline=1.0)
    storm = Processes(tmp_path, plan, problem_of)
    stay = ["agent-0", "agent-1", "agent-3"]
    try:
        storm.start()
        storm.wait_for_round("agent-0", 10)
        storm.kill("agent-2")
        del storm.processes["agent-2"]
        storm.wait_for_round("agent-0", 20)
        storm.kill("agent-1")
        storm.wait_for_round("agent-0", 30)
        storm.start("agent-1")
        storm.wait_for_round("agent-3", 35)
        storm.kill("server")
        storm.start("server")
        storm.join()
    finally:
        storm.stop()
    own, gap, simulated = again(tmp_path, plan)
    for name in stay:
        found = pisco.Result.load(storm.state(name) / "result")
        assert found.rounds == 60
        np.testing.assert_array_equal(found.params, own[name])
    assert gap <= 1e-12
    np.testing.assert_allclose(simulated.params, np.concatenate(list(own.values())), rtol=0, atol=1e-12)
    present = [roll.present for roll in counted(rolls_of(tmp_path, plan))]
    assert present[-1] in ((0, 1, 3), (0, 3)) and any(1 not in each for each in present)
    assert len(pisco.Result.load(storm.state("server") / "result").history["loss"]) == 7
