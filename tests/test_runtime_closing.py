"""The mean model at the end: of those who are there, and asked for when all is over."""

import time

import numpy as np
import pytest
from typer.testing import CliRunner

import pisco
from pisco.cli.main import app
from pisco.engines.job import seed_key, streams
from pisco.federation import kits, signed
from pisco.federation.plan import Federation
from pisco.federation.runtime.programs import Programs
from pisco.federation.runtime.server import Server

from federations import Running, make_kits, plan_for, quadratic_of

PRESENCE = {"all": {}, "deadline": {"presence": "deadline", "deadline": 2.0, "quorum": 2}}


def mean_of(ran, names):
    first, *others = (ran.results[name].params for name in names)
    return sum(others, start=first) / first.dtype.type(1 + len(others))


def test_with_a_deadline_it_is_the_mean_of_those_in_the_last_round(tmp_path):
    plan = plan_for(3, rounds=4, closing=True, patience=12.0, **PRESENCE["deadline"])
    there = ["agent-0", "agent-2"]
    ran = Running(tmp_path, plan, quadratic_of, only=there)
    ran.join(*there)
    ran.join()  # the server ends when it has not heard of the third for long
    (found,) = ran.results["server"].params.values()
    np.testing.assert_array_equal(found, mean_of(ran, there))


@pytest.mark.parametrize("presence", ["all", "deadline"])
def test_a_server_does_not_end_before_its_last_answers(tmp_path, monkeypatch, presence):
    """Agents whose goodbye was cut off went on asking a server that had ended, for as long as they have patience."""
    plan = plan_for(2, rounds=4, patience=60.0, network={"graph": "path", "server_prob": 0.3}, **PRESENCE[presence])
    real = Server.farewell

    def slow(self, name, round_):
        real(self, name, round_)
        time.sleep(3.0)

    monkeypatch.setattr(Server, "farewell", slow)
    ran = Running(tmp_path, plan, quadratic_of)
    ran.join("server")
    ended = time.monotonic()
    ran.join()
    assert time.monotonic() - ended < plan.patience / 2


@pytest.mark.parametrize("presence", ["all", pytest.param("deadline", marks=pytest.mark.slow)])
def test_a_closing_average_is_asked_for_when_all_is_over(tmp_path, presence):
    plan = plan_for(2, rounds=4, patience=60.0, network={"graph": "path", "server_prob": 0.3}, **PRESENCE[presence])
    made = make_kits(tmp_path, plan)
    signed.save(tmp_path, plan, tmp_path / "federation.toml")
    ran = Running(tmp_path, plan, quadratic_of, kits_=made).join()
    assert not ran.results["server"].params
    said = CliRunner().invoke(app, ["federation", "collect", "--dir", str(tmp_path)])
    assert said.exit_code == 0 and "3 kits here renewed" in said.output
    again = CliRunner().invoke(app, ["federation", "collect", "--dir", str(tmp_path)])
    assert again.exit_code == 2 and "already" in again.output
    later = Federation.load(tmp_path / "federation.toml")
    before = {name: ran.results[name].params for name in plan.names}
    ran = Running(tmp_path, later, quadratic_of, kits_={n: kits.Kit.load(tmp_path / "kits" / n) for n in ran.kits})
    ran.join()
    (found,) = ran.results["server"].params.values()
    np.testing.assert_array_equal(found, mean_of(ran, plan.names))
    for name, params in before.items():
        np.testing.assert_array_equal(ran.results[name].params, params)
    assert ran.results["server"].history["round"].tolist() == [0, 1, 2, 3, 4]


MASKED = {"server_sum": "masked"}
SLOW = pytest.mark.slow
ONE_EXCHANGE = {"name": "pisco", "local_lr": 0.05, "local_steps": 1, "one_exchange": True}
ENDS = [
    pytest.param("all", {}, id="plain"),
    pytest.param("deadline", MASKED | {"quorum": 3}, id="deadline-masked", marks=SLOW),
    pytest.param("all", MASKED, id="masked", marks=SLOW),
    pytest.param("deadline", {}, id="deadline", marks=SLOW),
    pytest.param("all", {"algorithm": ONE_EXCHANGE}, id="one-exchange", marks=SLOW),
]


@pytest.mark.parametrize(("presence", "settings"), ENDS)
def test_where_the_last_round_reaches_the_server_it_has_the_model(tmp_path, presence, settings):
    plan = plan_for(3, rounds=3, network={"graph": "complete", "server_prob": 1.0}, **PRESENCE[presence] | settings)
    ran = Running(tmp_path, plan, quadratic_of).join()
    (found,) = ran.results["server"].params.values()
    for name in plan.names:
        np.testing.assert_array_equal(found, ran.results[name].params)
    again = ran.build("server")  # of the folder alone
    np.testing.assert_array_equal(next(iter(again.result(0.0).params.values())), found)
    again.close()


def test_the_model_is_part_of_an_average_or_it_is_not():
    def part(rule, **settings):
        start = {"w": np.zeros(3, np.float32), "b": np.zeros(2, np.float32)}
        own = pisco.Problem(lambda x, batch, key: (x["w"] ** 2).sum() + (x["b"] ** 2).sum(), start, np.ones((1, 1, 1)))
        rule = plan_for(3, algorithm=rule, network={"graph": "complete"}, **settings).build_algorithm()
        return Programs(rule, own, None, streams(seed_key(0)), 0).model_part

    usual = {"name": "pisco", "local_lr": 0.1, "local_steps": 1}
    assert part(usual) == part(ONE_EXCHANGE) == [0, 0, 1]
    assert part(usual, wire="bfloat16") == []  # what is averaged then are the copies that others hold


@pytest.mark.slow
@pytest.mark.parametrize("closing", [None, True])
def test_copies_that_the_server_averages_are_not_the_model(tmp_path, closing):
    """With a codec nobody ends with the average that it is handed: the plan has to ask for the mean."""
    settings = {"wire": "bfloat16"} | ({"closing": True} if closing else {})
    plan = plan_for(3, rounds=3, network={"graph": "complete", "server_prob": 1.0}, **settings)
    ran = Running(tmp_path, plan, quadratic_of).join()
    found = list(ran.results["server"].params.values())
    assert len(found) == bool(closing)
    if closing:
        np.testing.assert_array_equal(found[0], mean_of(ran, plan.names))


def test_asking_for_it_changes_no_round():
    plan = plan_for(3, rounds=4)
    assert plan.closed().hash != plan.hash and plan.closed().hash_at(3) == plan.hash_at(3)
