"""A member that is gone, where everybody waits for everybody: it is removed, or moved, while the others wait."""

import io
import logging
from types import SimpleNamespace

import numpy as np
import pytest
from rich.console import Console
from typer.testing import CliRunner

import pisco
from pisco.cli.federation.follow import _live
from pisco.cli.main import app
from pisco.federation import kits
from pisco.federation.authority import Authority
from pisco.federation.runtime import news, peers, timely
from pisco.federation.runtime.agent import Agent
from pisco.federation.runtime.holdup import furthest
from pisco.federation.runtime.ledger import LEFT_OFF
from pisco.federation.runtime.peers import Stopped
from pisco.federation.runtime.wire_pb2 import Overview, Standing
from test_runtime_membership import WORLD, stacked_round

from federations import Running, free_ports, plan_for, quadratic_of
from worlds import coins


def problem_of(agent):
    return quadratic_of(agent, WORLD, "float64")


def recorded(monkeypatch):
    """Every agent's state by (name, rounds done)."""
    states, save = {}, Agent._save

    def keep(self, **options):
        states[self.name, self.done] = self.state
        save(self, **options)

    monkeypatch.setattr(Agent, "_save", keep)
    monkeypatch.setattr(news, "EVERY", 0.1)
    return states


def dies_in_between(tmp_path, monkeypatch, **settings):
    """Five on a ring; in round 6 agent-2 dies, and one of its neighbours has its last messages, the other has not."""
    honest = Agent.why_not

    def why_not(self, name, round_, phase):
        cut = (self.name, name) == ("agent-2", "agent-3") and round_ == 7
        return "nothing for you" if cut else honest(self, name, round_, phase)

    monkeypatch.setattr(Agent, "why_not", why_not)
    plan = plan_for(5, rounds=22, dtype="float64", eval_every=11, patience=120.0, **settings)
    ran = Running(tmp_path, plan, problem_of)
    ran.wait(lambda: ran.members["agent-1"].done == 7)
    ran.stop("agent-2")
    ran.join("agent-2", fine=False)
    assert isinstance(ran.errors.pop("agent-2"), Stopped)
    assert ran.members["agent-3"].done == 6
    monkeypatch.setattr(Agent, "why_not", honest)
    return ran, plan


def gap(states, names, k):
    tracker, grads = (np.mean([getattr(states[n, k], f) for n in names], axis=0) for f in ("tracker", "grads"))
    return np.abs(tracker - grads).max()


def by_hand(plan, states, first):
    """From everybody's state before round `first` to the end, stacked; trackers begin anew if it is not the start."""
    epoch = plan.epochs[-1]
    own, network = [states[name, first] for name in epoch.names], plan.network_of(epoch)
    params, grads, tracker = (
        np.concatenate([getattr(each, field) for each in own]) for field in ("params", "grads", "tracker")
    )
    state = SimpleNamespace(params=params, grads=grads, tracker=grads if first else tracker)
    rows, reached = [member.index for member in epoch.members], coins(network.server, plan.rounds, plan.seed)
    for server in reached[first:]:
        state = stacked_round(state, network, rows, server)
    return state.params


def test_one_who_is_gone_is_removed_and_everybody_agrees_when(tmp_path, x64, monkeypatch):
    states = recorded(monkeypatch)
    every = {"graph": "ring", "server": "every", "period": 5}  # rounds 9, 14, 19: some with it on the roster, and gone
    ran, plan = dies_in_between(tmp_path, monkeypatch, network=every)
    later = plan.change(12, "remove", "agent-2", now=True)
    kits.refresh(tmp_path, later, tmp_path / "kits" / "server")  # the others hear of it
    stay = later.epochs[-1].names
    ran.wait(lambda: ran.members["agent-3"].done >= 9)
    ran.start("agent-2")  # it was not gone for good after all
    ran.join("agent-2", fine=False)
    assert "went on without it" in str(ran.errors.pop("agent-2"))
    ran.join()
    assert {ran.results[name].rounds for name in stay} == {22}
    assert max(gap(states, plan.names, k) for k in range(7) if k != 6) <= 1e-12
    assert max(gap(states, stay, k) for k in range(13, 23)) <= 1e-12
    found = np.concatenate([ran.results[name].params for name in stay])
    np.testing.assert_allclose(found, by_hand(later, states, 12), rtol=0, atol=1e-12)
    assert ran.results["server"].history["round"].tolist() == [0, 11, 22]
    assert tuple(agent.name for agent in ran.members["server"].ledger.overview().agents) == stay


@pytest.mark.slow
@pytest.mark.parametrize("server", ["never", "always"])
def test_two_are_gone_one_after_the_other(tmp_path, x64, monkeypatch, caplog, server):
    states = recorded(monkeypatch)
    monkeypatch.setattr(peers, "FIRST_WORD", 1.0)
    plan = plan_for(5, rounds=120, dtype="float64", patience=120.0, network={"graph": "ring", "server": server})
    ran = Running(tmp_path, plan, problem_of)
    ran.wait(lambda: ran.members["agent-2"].done >= 5)
    ran.stop("agent-2", "agent-4")
    ran.join("agent-2", "agent-4", fine=False)
    ran.errors.clear()
    front = max(member.done for member in ran.members.values() if hasattr(member, "done"))
    first = front + 9
    later = plan.change(first, "remove", "agent-2", now=True)
    with caplog.at_level(logging.INFO, "pisco.federation"):
        kits.refresh(tmp_path, later, tmp_path / "kits" / "server")
        ran.wait(lambda: "waiting for agent-4 to take the new plan" in caplog.text)
    assert max(ran.members[name].done for name in plan.names) <= front + 5  # not without who lacks the plan
    later = later.change(first, "remove", "agent-4", now=True)
    kits.refresh(tmp_path, later, tmp_path / "kits" / "server")
    ran.join()
    stay = later.epochs[-1].names
    assert stay == ("agent-0", "agent-1", "agent-3")
    assert max(gap(states, stay, k) for k in range(first + 1, 121)) <= 1e-12
    found = np.concatenate([ran.results[name].params for name in stay])
    np.testing.assert_allclose(found, by_hand(later, states, first), rtol=0, atol=1e-12)


@pytest.mark.slow
def test_gone_in_the_last_rounds(tmp_path, x64, monkeypatch):
    states = recorded(monkeypatch)
    ran, plan = dies_in_between(tmp_path, monkeypatch, network={"graph": "ring", "server": "never"}, closing=True)
    later = plan.change(22, "remove", "agent-2", now=True)  # no round is left to remove it from
    kits.refresh(tmp_path, later, tmp_path / "kits" / "server")
    ran.join()
    stay = later.epochs[-1].names
    assert {ran.results[name].rounds for name in stay} == {22}
    (model,) = ran.results["server"].params.values()
    np.testing.assert_allclose(model[0], np.mean([states[n, 22].params for n in stay], axis=0)[0], atol=1e-12)


@pytest.mark.slow
def test_one_who_is_gone_comes_back_elsewhere(tmp_path, x64, monkeypatch):
    states = recorded(monkeypatch)
    network = {"graph": "ring", "server_prob": 0.3}
    ran, plan = dies_in_between(tmp_path, monkeypatch, network=network)
    later = plan.change(20, "move", "agent-2", f"127.0.0.1:{free_ports(1)[0]}", now=True)
    for name in ("server", "agent-2"):
        kits.refresh(tmp_path, later, tmp_path / "kits" / name)
    ran.kits["agent-2"] = kits.Kit.load(tmp_path / "kits" / "agent-2")
    ran.start("agent-2")
    ran.join()
    np.testing.assert_allclose(ran.params(), by_hand(later, states, 0), rtol=0, atol=1e-12)


def test_changes_at_once_that_cannot_be_are_refused():
    plan, words = plan_for(4, rounds=9), {"network": {"graph": "ring", "server_prob": 0.5, "reporters": 2}}
    for case, why in [
        (lambda: plan.change(3, "add", "x", "10.0.0.1:7401", now=True), "takes time"),
        (lambda: plan.change(10, "remove", "agent-1", now=True), "cannot be planned"),
        (lambda: plan.change(3, "remove", "agent-1", now=True).cancel("agent-1"), "cannot be cancelled"),
        (lambda: plan_for(4, presence="deadline", deadline=2.0).change(3, "remove", "agent-1", now=True), "there is a"),
        (lambda: plan_for(4, server_sum="masked").change(3, "remove", "agent-1", now=True), "would reveal its vector"),
        (lambda: plan_for(4, **words).change(3, "remove", "agent-1", now=True), "drop `sampling`"),
    ]:
        with pytest.raises(pisco.InputError, match=why):
            case()
    later = plan.change(5, "move", "agent-1", "10.0.0.1:7401", now=True)
    assert later.epoch_at(0).member("agent-1").at == "10.0.0.1:7401" and later.hash_at(4) == plan.hash_at(4)


def test_the_command_takes_nobody_for_gone_who_is_there(tmp_path, monkeypatch):
    plan = plan_for(4, rounds=60)
    Authority.create(tmp_path / "authority", plan.name)
    plan.save(tmp_path / "federation.toml")
    kits.issue(tmp_path, plan, "server", tmp_path / "kits" / "server")
    heard, rounds, pace = {"agent-0": 1.0, "agent-1": 3.0, "agent-2": 40.0, "agent-3": 0.5}, [20], [0]

    def overview(kit, timeout):
        rounds[0] += pace[0]
        return Overview(agents=[Standing(name=n, round=rounds[0], last_contact=s) for n, s in heard.items()])

    monkeypatch.setattr(timely, "overview", overview)
    monkeypatch.setattr(timely, "LOOK", 0.1)

    def remove(name, *words):
        found = CliRunner().invoke(app, ["federation", "change", "remove", name, *words, "--dir", str(tmp_path)])
        return found.exit_code, " ".join(found.output.split())

    code, said = remove("agent-1", "--now")
    assert code == 2 and "it is not gone" in said
    code, said = remove("agent-1", "--round", "50")
    assert code == 0 and "agent-2: not heard" in said and "with --now" in said
    CliRunner().invoke(app, ["federation", "change", "cancel", "agent-1", "--dir", str(tmp_path)])
    pace[0] = 1  # ten rounds a second
    code, said = remove("agent-1", "--round", "50")
    assert code == 2 and "comes before everybody has the new plan" in said
    pace[0], rounds[0] = 0, 20
    code, said = remove("agent-2", "--now")
    assert code == 0 and "from round 30 on: 3 agents" in said


def test_below_the_quorum_a_change_is_said_to_wait(tmp_path, monkeypatch):
    plan = plan_for(4, rounds=60, presence="deadline", deadline=2.0, quorum=3)
    heard = {"agent-0": 1.0, "agent-1": 0.5, "agent-2": 40.0, "agent-3": -1.0}
    monkeypatch.setattr(
        timely,
        "standing",
        lambda kit: Overview(agents=[Standing(name=n, round=20, last_contact=s) for n, s in heard.items()]),
    )
    said = timely.check_round(tmp_path, plan, 30)
    assert said is not None and said.startswith("agent-2, agent-3: not heard")
    assert "round 20 waits for a quorum of 3 and has 2; no later" in said
    heard["agent-2"] = 2.0
    assert timely.check_round(tmp_path, plan, 30) is None


def test_who_is_gone_does_not_hold_the_front_back():
    plan = plan_for(2, rounds=120).change(80, "remove", "agent-1", now=True)
    assert furthest(plan, {"agent-0": 90, "agent-1": 79}) == 90


@pytest.mark.parametrize("width", [60, 80])
def test_the_live_table_keeps_its_numbers_in_a_narrow_terminal(width):
    usual = {"loss": 0.12345, "bytes_sent": 123_000_000, "bytes_received": 123_000_000, "times": {"epsilon": 1.25}}
    found = Overview(rounds=200, federation_name="clinics")
    found.agents.append(Standing(name="hospital-of-the-north-west", round=112, trouble=LEFT_OFF, **usual))
    found.agents.append(Standing(name="b", round=113, waiting_for="hospital-of-the-north-west", **usual))
    shown = Console(file=io.StringIO(), width=width, color_system=None)
    shown.print(_live(found, width))
    words = shown.file.getvalue().split()
    assert {"112", "113", "lag", "received"} <= set(words) and words.count("0.1235") == words.count("1.25") == 2
    assert "clinics:" in words and words.count("MB") == 4
