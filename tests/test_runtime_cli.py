"""`pisco agent`, `pisco server`, `pisco federation try` and `status`, as users type them."""

import json
import secrets
import subprocess
import sys
import threading

import numpy as np
import pytest
from typer.testing import CliRunner

import pisco
from pisco.cli.federation import loopback
from pisco.cli.main import app

from federations import Running, make_kits, plan_for, quadratic_of
from waiting import outcome


def pisco_(*words, works_in):
    """The command in a process of its own: what it prints, and its errors."""
    command = [sys.executable, "-m", "pisco.cli.main", *map(str, words)]
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    code, out, err = outcome(subprocess.Popen(command, text=True, **pipes), works_in)
    assert code == 0, out + err
    return out


def refused(*words):
    done = CliRunner().invoke(app, [str(word) for word in words])
    assert done.exit_code == 2, done.output
    return done.output


def test_a_whole_federation_on_this_machine(tmp_path):
    """The command runs in this process and starts the members as processes of their own."""
    size = ["--agents", "2", "--rounds", "6", "--graph", "path", "--set", "eval_every=6"]
    tried = CliRunner().invoke(app, ["federation", "try", *size, "--out", str(tmp_path / "f"), "--json"])
    assert tried.exit_code == 0, tried.output
    said = json.loads(tried.stdout)
    assert said["rounds"] == 6
    result = pisco.Result.load(said["folder"])
    assert result.params.shape == (2, 124)
    # The same as one machine with everybody's data.
    plan = pisco.Result.load(tmp_path / "f" / "kits" / "agent-0" / "result").settings["federation"]
    assert plan["name"] == "try"
    problem = pisco.problems.logistic(pisco.data.load("a9a"), agents=2, partition="sorted")
    network = pisco.Network.path(2, server=pisco.bernoulli(0.1))
    rule = pisco.algorithms.pisco(local_lr=0.05, local_steps=1)
    alone = pisco.run(rule, problem, network, rounds=6, batch_size=64, eval_every=6)
    np.testing.assert_allclose(result.params, alone.params, rtol=0, atol=1e-6)
    for column in ("server_rounds", "messages_gossip", "bytes_gossip", "bytes_server"):
        assert said["final"][column] == alone.history[column][-1]
    # What is finished stays finished.
    kit, data = tmp_path / "f" / "kits" / "agent-0", tmp_path / "f" / "data" / "agent-0.npz"
    again = CliRunner().invoke(app, ["agent", "--kit", str(kit), "--data", str(data)])
    assert again.exit_code == 0 and "done: 6 rounds" in again.output, again.output


OWN = """
from typing import Any, NamedTuple
import jax
from pisco.types import Pair, algorithm

class State(NamedTuple):
    params: Any

@algorithm
def own(*, local_lr: float, shrink: float = 1.0):
    def one_round(state, key, grad, mix):
        step = jax.tree.map(lambda x, g: shrink * x - local_lr * g, state.params, grad(state.params, key))
        return State(mix(step))
    return Pair(lambda params, key, grad, mix: State(params), one_round)
"""


@pytest.mark.slow
def test_a_method_of_ones_own_is_tried_in_a_federation(tmp_path):
    """Its file lies in every kit, and what is set reaches it."""
    (tmp_path / "mine.py").write_text(OWN)
    own = ("--algorithm", f"{tmp_path / 'mine.py'}:own", "--set", "algorithm.shrink=0.9", "--set", "batch_size=0")
    size = ("--agents", 2, "--rounds", 3, "--graph", "path", "--server-prob", 0.5)
    said = json.loads(pisco_("federation", "try", *size, *own, "--out", tmp_path / "f", "--json", works_in=tmp_path))
    assert all((tmp_path / "f" / "kits" / name / "mine.py").is_file() for name in ("server", "agent-0", "agent-1"))
    problem = pisco.problems.logistic(pisco.data.load("a9a"), agents=2, partition="sorted")
    rule = pisco.algorithms.build(f"{tmp_path / 'mine.py'}:own", local_lr=0.05, shrink=0.9)
    network = pisco.Network.path(2, server=pisco.bernoulli(0.5))
    alone = pisco.run(rule, problem, network, rounds=3)
    np.testing.assert_allclose(pisco.Result.load(said["folder"]).params, alone.params, rtol=0, atol=1e-6)


def test_what_cannot_be_tried_is_refused_before_anything_is_written(tmp_path):
    assert "shrink is not a setting" in refused(
        "federation", "try", "--set", "algorithm.shrink=2", "--out", tmp_path / "g"
    )
    told = refused("federation", "try", "--algorithm", "scaffold", "--out", tmp_path / "g")
    assert "needs the server in every round" in told and not (tmp_path / "g").exists()
    other = ("--set", "network.server=every", "--set", "network.period=2")
    told = refused("federation", "try", "--algorithm", "scaffold", *other, "--out", tmp_path / "g")
    assert "not every(2)" in told  # the chance that it has unless told does not stand in the way
    told = refused("federation", "try", "--server-prob", 0.3, *other, "--out", tmp_path / "g")
    assert "network.server_prob does not go with server = 'every'" in told


def test_mistakes_are_one_sentence(tmp_path):
    plan = plan_for(2, problem={"name": "logistic", "classes": [-1, 1]}, batch_size=64)
    make_kits(tmp_path, plan)
    agent, server = tmp_path / "kits" / "agent-0", tmp_path / "kits" / "server"
    assert "needs its data" in refused("agent", "--kit", agent)
    assert "there is no kit" in refused("agent", "--kit", tmp_path / "nowhere", "--data", "x.npz")
    assert "there is no file" in refused("agent", "--kit", agent, "--data", tmp_path / "x.npz")
    assert "is the kit of 'agent-0'" in refused("server", "--kit", agent)
    assert "does not answer" in refused("federation", "status", "--kit", agent)
    np.savez(tmp_path / "few.npz", features=np.ones((3, 2), np.int8), labels=[1, -1, 1])
    assert "server's kit" in refused("agent", "--kit", server, "--data", tmp_path / "few.npz")
    assert "only 3 samples" in refused("agent", "--kit", agent, "--data", tmp_path / "few.npz")
    for address in ("127.0.0.1", "127.0.0.1:99999"):  # gRPC would listen, at another port
        assert f"the address '{address}' cannot be used" in refused("server", "--kit", server, "--listen", address)


def test_status_shows_where_everybody_stands(tmp_path):
    plan, over = plan_for(2, rounds=100_000, network={"graph": "path", "server_prob": 0.5}), threading.Event()
    ran = Running(tmp_path, plan, quadratic_of, progress=lambda done: done >= 20 and over.wait(600))
    try:
        agents = ran.members["server"].ledger.overview
        timed = lambda: [agent.name for agent in agents().agents if "latency server" in agent.times]  # noqa: E731
        ran.wait(lambda: ran.errors or (ran.members["server"].ledger.front() >= 5 and len(timed()) == 2))
        done = CliRunner().invoke(app, ["federation", "status", "--kit", str(tmp_path / "kits" / "agent-1"), "--json"])
        table = CliRunner().invoke(app, ["federation", "status", "--kit", str(tmp_path / "kits" / "server")])
        told = [
            "federation",
            "measure",
            "--kit",
            str(tmp_path / "kits" / "agent-1"),
            "-o",
            str(tmp_path / "clock.toml"),
        ]
        clocks = [CliRunner().invoke(app, told), CliRunner().invoke(app, [*told[:-1], "/nowhere/clock.toml"])]
    finally:
        over.set()
        ran.stop()
        ran.join(fine=False)
    said = json.loads(done.output)
    assert {agent["name"] for agent in said["agents"]} == set(plan.names)
    assert max(agent["round"] for agent in said["agents"]) >= 5
    assert all(agent["last_contact"] < 60 for agent in said["agents"])
    assert "last contact" in table.output and "agent-1" in table.output
    # The clock that agents told of is one that a simulation takes.
    assert clocks[0].exit_code == 0 and "to the server" in clocks[0].output, clocks[0].output
    assert clocks[1].exit_code == 2 and "there is no folder" in clocks[1].output
    clock = pisco.Clock.of(tmp_path / "clock.toml")
    clock.check(2)
    assert not clock.asked and 0 < clock.compute.median.max() < 60 and clock.latency_gossip.median.shape == (2, 2)
    assert 0 < clock.latency_gossip.median[0, 1] < 60 and (clock.latency_server.median > 0).all()


@pytest.mark.slow
def test_fifty_agents_complete_a_hundred_rounds_of_a9a(tmp_path):
    size = ("--agents", 50, "--rounds", 100)
    said = json.loads(pisco_("federation", "try", *size, "--out", tmp_path / "f", "--json", works_in=tmp_path))
    assert said["rounds"] == 100 and said["final"]["test_accuracy"] > 0.8


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="ports are claimed on Linux alone")
def test_a_port_stays_ours_while_nobody_listens(monkeypatch):
    """A member that restarts must not find somebody else's there."""
    (port,) = loopback.free_ports(1)
    wanted, drawn = iter([port - 10_000]), secrets.randbelow
    monkeypatch.setattr(secrets, "randbelow", lambda count: next(wanted, None) or drawn(count))
    assert loopback.free_ports(1) != [port]
