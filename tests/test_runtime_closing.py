"""The mean model at the end: of those who are there, and asked for when all is over."""

import numpy as np
import pytest
from typer.testing import CliRunner

from pisco.cli.main import app
from pisco.federation import kits, signed
from pisco.federation.plan import Federation

from federations import Running, make_kits, plan_for, quadratic_of, shared_programs  # noqa: F401

PRESENCE = {"all": {}, "deadline": {"presence": "deadline", "deadline": 2.0, "quorum": 2}}


def mean_of(ran, names):
    first, *others = (ran.results[name].params for name in names)
    return sum(others, start=first) / first.dtype.type(1 + len(others))


def test_with_a_deadline_it_is_the_mean_of_those_in_the_last_round(tmp_path):
    plan = plan_for(3, rounds=4, closing=True, patience=4.0, **PRESENCE["deadline"])
    there = ["agent-0", "agent-2"]
    ran = Running(tmp_path, plan, quadratic_of, only=there)
    ran.join(*there)
    ran.join()  # the server ends when it has not heard of the third for long
    (found,) = ran.results["server"].params.values()
    np.testing.assert_array_equal(found, mean_of(ran, there))


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


def test_asking_for_it_changes_no_round():
    plan = plan_for(3, rounds=4)
    assert plan.closed().hash != plan.hash and plan.closed().hash_at(3) == plan.hash_at(3)
