"""Sites that differ: what their data must look like, how much they count, and the model that they end with."""

import json
import logging
import re
import stat
import subprocess
import sys
import threading
import types
import urllib.request
from pathlib import Path

import numpy as np
import pytest
from typer.testing import CliRunner

import pisco
from pisco import InputError
from pisco.cli.federation.loopback import free_ports
from pisco.cli.main import app
from pisco.data import Dataset
from pisco.federation import models
from pisco.federation.contract import BadData, Contract, Feature
from pisco.federation.plan import Federation
from pisco.federation.runtime import peers, transport, weighing
from pisco.federation.runtime.asking import tell_trouble
from pisco.federation.runtime.ending import EndModel
from pisco.federation.runtime.exporter import MemberMetrics, serve_metrics
from pisco.federation.runtime.holdup import holdup
from pisco.federation.runtime.ledger import Ledger
from pisco.federation.runtime.replay import replay
from pisco.federation.runtime.wire_pb2 import Report

import needs
from federations import Running, make_kits, plan_for

NAMES = ("age", "bmi", "smokes")


def samples(count=40, seed=0):
    drawn = np.random.default_rng(seed)
    columns = [drawn.normal(60, 12, count), drawn.normal(26, 4, count), drawn.integers(0, 2, count)]
    return np.stack(columns, axis=1).astype(np.float32), drawn.choice([-1, 1], count)


def save(path, features, labels, names=NAMES):
    named = {} if names is None else {"feature_names": names}
    np.savez(path, features=features, labels=labels, **named)
    return path


def invoke(*words, code=0):
    done = CliRunner().invoke(app, [str(word) for word in words])
    assert done.exit_code == code, done.output
    return " ".join(done.output.split())


@pytest.fixture(scope="module")
def clinic(tmp_path_factory):
    """A plan with a contract after an example, as the command line makes it, and everybody's kits."""
    folder = tmp_path_factory.mktemp("clinic")
    like = save(folder / "like.npz", *samples(400))
    home = folder / "clinic"
    invoke("federation", "init", home, "--agents", 2, "--graph", "path", "--batch-size", 8, "--like", like)
    invoke("federation", "issue", "--all", "--dir", home)
    return home


# ------------------------------------------------------------------------------------------------ the contract


def test_a_contract_after_an_example(clinic):
    plan = Federation.load(clinic / "federation.toml")
    assert [feature.name for feature in plan.data.features] == list(NAMES)
    assert plan.data.shape == [3] and plan.data.dtype == "float32"
    age, _, smokes = plan.data.features
    assert 55 < age.mean < 65 and 10 < age.spread < 14 and (smokes.low, smokes.high) == (0, 1)


def wrong(change):
    features, labels = samples()
    names = list(NAMES)
    if change == "order":
        features, names = features[:, [1, 0, 2]], ["bmi", "age", "smokes"]
    elif change == "more":
        features, names = np.concatenate([features, features[:, :1]], axis=1), [*names, "weight"]
    elif change == "scale":
        features = features * np.array([1, 1000, 1], np.float32)
    elif change == "small":
        features = features * np.array([0.001, 1, 1], np.float32)
    elif change == "range":
        features = features * np.array([1, 1, 2], np.float32)
    elif change == "nameless":
        names = None
    elif change == "other":
        names = ["age", "weight", "smokes"]
    elif change == "label":
        labels = labels + 1
    return features, labels, names


SAYS = {
    "order": "column 1 is 'bmi', expected 'age'",
    "more": "expects 3 features, has 4; 'weight' is not in the plan",
    "scale": "column 2 ('bmi') has a mean of 2",
    "small": "column 1 ('age') has a spread of 0.0",
    "range": "column 3 ('smokes') holds 2, expected 0 to 1",
    "nameless": "feature_names",
    "other": "lacks the feature 'bmi'",
    "label": "has the label 0",
}


@pytest.mark.parametrize("change", SAYS)
def test_what_is_not_as_agreed_is_refused_by_column(clinic, tmp_path, change):
    file = save(tmp_path / "mine.npz", *wrong(change))
    check = ("federation", "check", "--kit", clinic / "kits" / "agent-0", "--data", file)
    assert SAYS[change] in invoke(*check, code=2)


def test_what_is_as_agreed_fits(clinic, tmp_path):
    features, labels = samples(seed=5)
    features[:, 2] = 0  # a site without smokers is a site
    file = save(tmp_path / "mine.npz", features.astype(np.float64), labels)
    check = ("federation", "check", "--kit", clinic / "kits" / "agent-0", "--data", file)
    assert "fits: 40 samples" in invoke(*check)
    lines = [",".join((*NAMES, "label"))] + [
        ",".join(f"{v:g}" for v in (*x, y)) for x, y in zip(features, labels, strict=True)
    ]
    (tmp_path / "mine.csv").write_text("\n".join(lines))
    assert "fits: 40 samples" in invoke(*check[:-1], tmp_path / "mine.csv")
    few = save(tmp_path / "few.npz", features[:4], labels[:4])
    assert "only 4 samples" in invoke(*check[:-1], few, code=2)


def test_what_others_hear_holds_no_values():
    agreed = Contract(shape=[2], features=[Feature(name="age", low=0, high=120), Feature(name="bmi")])
    with pytest.raises(BadData, match="holds 777") as raised:
        agreed.check("mine", np.array([[777.0, 1.0]]), ("age", "bmi"))
    assert raised.value.told == "column 1 ('age') is not in its agreed range"
    labelled, mine = Contract(shape=[1], labels=[0, 1]), Dataset("mine", np.zeros((2, 1)), np.array([0, 7]))
    for check in (
        lambda: labelled.check("mine", mine.features, None, mine.labels),
        lambda: plan_for(2, problem={"name": "logistic", "classes": [0, 1]}).build_problem(mine),
    ):
        with pytest.raises(BadData, match="has the label 7") as raised:
            check()
        assert raised.value.told == "has a label that is not in the plan"


@pytest.mark.parametrize(
    ("given", "says"),
    [
        ({"shape": [3], "features": [{"name": "a"}, {"name": "b"}]}, "2 rows and data.shape is"),
        ({"shape": [2], "features": [{"name": "a"}, {}]}, "has no name"),
        ({"shape": [2], "features": [{"name": "a"}, {"name": "a"}]}, "'a' twice"),
        ({"shape": [1], "features": [{"mean": 1.0}]}, "mean together with spread"),
        ({"shape": [1], "features": [{"low": 2.0, "high": 1.0}]}, "swap them"),
        ({"shape": [1], "tolerance": 0.5}, "more than 1"),
        ({"shape": [1], "dtype": "text"}, "dtype"),
    ],
)
def test_contracts_that_make_no_sense(given, says):
    with pytest.raises(InputError, match=says):
        plan_for(2, data=given)


def test_one_row_is_for_all_values_of_an_image():
    agreed = Contract(shape=[2, 2], dtype="uint8", features=[Feature(low=0, high=16)])
    agreed.check("mine", np.full((3, 2, 2), 16, np.uint8), None)
    with pytest.raises(BadData, match="a sample holds 17"):
        agreed.check("mine", np.full((3, 2, 2), 17, np.uint8), None)
    with pytest.raises(BadData, match="dtype uint8, has float32"):
        agreed.check("mine", np.zeros((3, 2, 2), np.float32), None)
    with pytest.raises(BadData, match="shape"):
        agreed.check("mine", np.zeros((3, 4), np.uint8), None)


def test_a_module_agents_file_is_checked_too(tmp_path):
    agreed = Contract(shape=[1], features=[Feature(name="age", high=120)])
    np.savez(tmp_path / "mine.npz", features=[[200.0]], feature_names=["age"], targets=[0.5])
    with pytest.raises(BadData, match="holds 200"):
        agreed.check_file(tmp_path / "mine.npz")
    with pytest.raises(InputError, match="--data"):
        agreed.check_file(None)


def test_a_plan_without_a_contract_keeps_its_hash():
    plan = plan_for(2)
    assert "data" not in plan.to_toml()


def test_the_others_hear_whose_mistake_it_is(tmp_path, caplog):
    caplog.set_level(logging.INFO, "pisco.federation")
    plan = plan_for(2, rounds=3, network={"graph": "path", "server_prob": 0.3}, data={"shape": [30]})
    np.savez(tmp_path / "mine.npz", features=np.ones((4, 31)), labels=[1, -1, 1, -1])
    ran = Running(tmp_path, plan, squares_of, only=["agent-0"])
    try:
        ran.wait(lambda: ran.errors or ran.members["server"].ledger._contact)
        own = ("--data", tmp_path / "mine.npz", "--module", "never-read.py")
        said = invoke("agent", "--kit", tmp_path / "kits" / "agent-1", *own, code=2)
        assert "told the others: expects 30 features, has 31" in said
        lines = invoke("agent", "--kit", tmp_path / "kits" / "agent-1", *own, "--log-json", code=2)
        assert [told["level"] for told in json.loads(f"[{lines.replace('} {', '}, {')}]")] == ["info", "error"]
        ran.wait(lambda: ran.errors or "agent-1 says that it cannot take part: expects 30" in caplog.text)
        assert tell_trouble(ran.kits["agent-1"], "expects 30 features, has 31\x1b[2J")
        wanted = "agent-1 says that it cannot take part: expects 30 features, has 31 [2J"
        ran.wait(lambda: ran.errors or wanted in caplog.text)
        shown = invoke("federation", "status", "--kit", tmp_path / "kits" / "server", "--json")
        assert '"trouble": "expects 30 features, has 31 [2J"' in shown
        ran.start("agent-1")  # mended: nobody had to start again
        ran.join()
    finally:
        ran.stop()
    assert not ran.members["server"].ledger.troubles()


# ------------------------------------------------------------------------------------------------ unequal sites

SIZES = (24, 8, 24)  # two are the same, and so are their programs


def loss(params, batch, key):
    return (batch["x"] @ params - batch["y"]) ** 2


def all_data():
    drawn = np.random.default_rng(1)
    return [
        {"x": drawn.normal(size=(n, 2)).astype(np.float32), "y": drawn.normal(i, 1, n).astype(np.float32)}
        for i, n in enumerate(SIZES)
    ]


def squares_of(agent):
    return pisco.Problem(loss, np.zeros(2, np.float32), [all_data()[agent]])


def shows(folder, option="--dir"):
    shown = json.loads(CliRunner().invoke(app, ["federation", "show", option, str(folder), "--json"]).output)
    return shown["epochs"][-1]["counts"]


@pytest.mark.parametrize("presence", ["all", pytest.param("deadline", marks=pytest.mark.slow)])
def test_counts_that_members_tell_weigh_them(tmp_path, presence):
    more = {} if presence == "all" else {"presence": "deadline", "deadline": 60.0}
    plan = plan_for(3, rounds=12, batch_size=None, weigh_by="samples", **more)
    plan.save(tmp_path / "federation.toml")
    ran = Running(tmp_path, plan, squares_of, only=["agent-0", "agent-2"])
    try:
        ran.wait(lambda: ran.errors or len(ran.members["server"].ledger._samples) == 2)
        assert shows(tmp_path) == {}  # one is missing
        ran.start("agent-1")
        ran.join()
    finally:
        ran.stop()
    (tmp_path / "kits" / "server" / "state").symlink_to(tmp_path / "state" / "server")  # where `pisco server` has it
    assert shows(tmp_path) == {f"agent-{i}": n / sum(SIZES) for i, n in enumerate(SIZES)}
    assert shows(tmp_path / "kits" / "server", "--kit") == shows(tmp_path)
    problem = pisco.Problem(loss, np.zeros(2, np.float32), all_data(), weights="samples")
    network = pisco.Network.ring(3, server=pisco.bernoulli(0.3))
    rule = pisco.algorithms.pisco(local_lr=0.05, local_steps=1)
    alone = pisco.run(rule, problem, network, rounds=12, batch_size=None)
    np.testing.assert_allclose(ran.params(), alone.params, rtol=0, atol=1e-6)
    equal = pisco.run(rule, problem.weighted([1 / 3] * 3), network, rounds=12, batch_size=None)
    assert np.abs(ran.params() - equal.params).max() > 1e-2
    for name in plan.names:  # whoever comes back knows it still, without the server
        again = ran.build(name)
        again.close()
        assert again.mean_samples == sum(SIZES) / 3
    ran.problem_of = lambda agent: squares_of(1 - agent)
    with pytest.raises(InputError, match="begun with 24 samples, which give our weight, and now there are 8"):
        ran.build("agent-0")
    ran.problem_of = squares_of
    if presence == "deadline":
        problems = {name: squares_of(i) for i, name in enumerate(plan.names)}
        again = replay(plan, problems, ran.members["server"].file.rolls)
        for name in plan.names:
            np.testing.assert_array_equal(again[name].params, ran.results[name].params)


def test_who_lost_its_state_is_told_the_same_mean(tmp_path):
    plan = plan_for(2, weigh_by="samples")
    book = Ledger(plan, tmp_path)
    book.trouble("agent-0", "has 31")
    assert book.count("agent-0", 10) == (0.0, ["agent-1"]) and not book.troubles()
    assert book.count("agent-0", 20) == (0.0, ["agent-1"])  # nobody has heard of it yet
    assert book.count("agent-1", 40) == (30.0, [])
    assert book.count("agent-1", 999) == (30.0, [])
    assert Ledger(plan, tmp_path).count("agent-0", 20) == (30.0, [])


def test_who_comes_back_with_other_data_is_refused_where_they_count(tmp_path, caplog):
    """The others count by the mean that its first number is in: with another one the weights would not add up."""
    plan = plan_for(2, rounds=3, weigh_by="samples")
    book = Ledger(plan, tmp_path)
    for name, samples in (("agent-0", 10), ("agent-0", 20), ("agent-1", 40)):
        assert book.told_before(name, samples) is None  # nobody has heard of a mean yet
        book.count(name, samples)
    assert book.told_before("agent-1", 40) is None
    assert "reported 40 samples" in book.told_before("agent-1", 999)
    plain = types.SimpleNamespace(
        num_samples=40, found=types.SimpleNamespace(job={"samples": 8}), plan=plan_for(2), store=None
    )
    weighing.check_samples(plain)  # where all count the same it is but said
    assert "there are 40 samples, where there were 8" in caplog.text


@pytest.mark.parametrize("more", [{"now": True}, {}])
def test_who_is_removed_need_not_tell_its_samples(tmp_path, more):
    deadline = {} if more else {"presence": "deadline", "deadline": 2.0}
    plan = plan_for(3, weigh_by="samples", **deadline)
    book = Ledger(plan, tmp_path)
    book.count("agent-0", 10)
    assert book.count("agent-1", 30) == (0.0, ["agent-2"])
    later = plan.change(3, "remove", "agent-2", **more)
    book.adopt(later)
    assert book.count("agent-1", 30) == (20.0, [])
    assert book.count("agent-2", 500) == (20.0, [])  # the others have heard of the mean
    assert Ledger(later, tmp_path).count("agent-0", 10) == (20.0, [])
    book.trouble("agent-2", "has 31")
    assert book.troubles() == {"agent-2": "has 31"}
    for name in ("agent-0", "agent-1"):
        book.note(name, Report(round=4))
    assert not book.troubles()  # it is not in any more


def test_weights_are_told_or_planned(tmp_path):
    with pytest.raises(InputError, match="do not go together"):
        plan_for(2, weigh_by="samples", agent_weights={"agent-0": 1, "agent-1": 2})
    with pytest.raises(InputError, match="weigh_by"):
        plan_for(2, weigh_by="size")
    assert "weigh_by" not in plan_for(2).to_toml()
    invoke("federation", "init", tmp_path / "f", "--agents", 2, "--weight", "agent-0=3", "--weight", "agent-1=1")
    assert shows(tmp_path / "f") == {"agent-0": 0.75, "agent-1": 0.25}
    assert "75%" in invoke("federation", "show", "--dir", tmp_path / "f")
    invoke("federation", "init", tmp_path / "g", "--agents", 2, "--by-samples")
    assert "by samples" in invoke("federation", "show", "--dir", tmp_path / "g")
    invoke("federation", "init", tmp_path / "h", "--agents", 2)
    assert shows(tmp_path / "h") == {"agent-0": 0.5, "agent-1": 0.5}


# ------------------------------------------------------------------------------------------------ the finished model


def layers_of(agent):
    start = {"first": {"w": np.zeros((2, 3), np.float32)}, "b": np.zeros(3, np.float32)}

    def squares(params, batch, key):
        return ((batch["x"] @ params["first"]["w"] + params["b"] - batch["y"][:, None]) ** 2).sum(axis=1)

    return pisco.Problem(squares, start, [all_data()[agent]])


@pytest.mark.parametrize(
    "server", [pytest.param("never", marks=pytest.mark.slow), "always"]
)  # whether the last round reaches the server
def test_a_plan_may_close_with_the_mean_model(tmp_path, server):
    plan = plan_for(3, rounds=3, closing=True, network={"graph": "path", "server": server})
    ran = Running(tmp_path, plan, layers_of).join()
    found = ran.results["server"].params
    assert set(found) == {"first/w", "b"}
    own = [ran.results[name].params for name in plan.names]
    mean = (own[0]["first"]["w"] + own[1]["first"]["w"] + own[2]["first"]["w"]) / np.float32(3)
    np.testing.assert_array_equal(found["first/w"], mean)
    assert (server == "always") == np.array_equal(own[0]["b"], own[1]["b"])
    kept = EndModel(tmp_path / "state" / "server").load(0, [], Ledger(plan, tmp_path / "state" / "server").leaves)
    np.testing.assert_array_equal(kept["b"], found["b"])
    for damage in (b"", b"\xff\n", b"0 float32[1,3]\nabc"):
        (tmp_path / "model").write_bytes(damage)
        with pytest.raises(InputError, match="model is damaged"):
            EndModel(tmp_path).load(0, [], ["b"])
    # And the same from everybody's results, without a closing average.
    folders = [ran.results[name].save(tmp_path / "results" / name) for name in plan.names]
    words = ("--kit", tmp_path / "kits" / "server", "--out", tmp_path / "collected")
    invoke("federation", "collect", *folders, *words)
    invoke("federation", "export", tmp_path / "collected", "--out", tmp_path / "model.npz")
    with np.load(tmp_path / "model.npz") as stored:
        assert stored["first.w"].shape == (2, 3) and set(stored.files) == {"first.w", "b"}
        np.testing.assert_allclose(stored["first.w"], mean[0], rtol=1e-6)
    written = [tmp_path / "model.npz", *(tmp_path / "collected").iterdir()]
    assert {stat.S_IMODE(file.stat().st_mode) for file in written} == {0o600}
    for given, says in (
        (folders[:2], "result of agent-2 is missing"),
        ([*folders, folders[0]], "'agent-0' is given twice"),
        ([ran.results["server"].save(tmp_path / "s")], "not the result of an agent"),
    ):
        assert says in invoke("federation", "collect", *given, *words, code=2)
    other = make_kits(tmp_path / "other", plan_for(2, rounds=3))["server"].folder
    assert "another plan" in invoke("federation", "collect", *folders, "--kit", other, code=2)


def model(**params):
    return pisco.Result(params, {"round": np.array([1])}, (0,), {}, label="ours")


def test_models_in_other_formats(tmp_path, monkeypatch):
    own = model(w=np.arange(6, dtype=np.float32).reshape(1, 2, 3))
    # As the package's own writer is called; where it is installed, the next test reads a real file.
    seen = {}
    made = types.SimpleNamespace(save=lambda arrays: seen.update(arrays) or b"whole")
    monkeypatch.setitem(sys.modules, "safetensors", types.SimpleNamespace(numpy=made))
    monkeypatch.setitem(sys.modules, "safetensors.numpy", made)
    models.export(own, tmp_path / "m.safetensors")
    assert seen["w"].shape == (2, 3) and (tmp_path / "m.safetensors").read_bytes() == b"whole"
    models.export(model(file=np.ones((1, 2))), tmp_path / "m.npz")  # a name that np.savez takes itself
    with np.load(tmp_path / "m.npz") as stored:
        assert stored["file"].shape == (2,)
    for suffix, package in ((".safetensors", "safetensors.numpy"), (".pt", "torch")):
        monkeypatch.setitem(sys.modules, package, None)
        with pytest.raises(InputError, match="needs"):
            models.export(own, tmp_path / f"n{suffix}")
    with pytest.raises(InputError, match="unknown kind of file '.onnx'"):
        models.export(own, tmp_path / "m.onnx")
    with pytest.raises(InputError, match="holds no parameters"):
        models.export(model(), tmp_path / "m.npz")


def test_a_torch_state_dict_is_loaded_by_its_module(tmp_path):
    torch = needs.module("torch", "torch")
    models.export(model(weight=np.ones((2, 1, 3), np.float32), bias=np.ones((2, 1))), tmp_path / "m.pt")
    net = torch.nn.Linear(3, 1)
    net.load_state_dict(torch.load(tmp_path / "m.pt"))
    assert float(net(torch.ones(3)).detach()) == 4.0


def test_safetensors_are_read_back(tmp_path):
    numpy = pytest.importorskip("safetensors.numpy")
    models.export(model(w=np.ones((1, 3), np.float32)), tmp_path / "m.safetensors")
    assert numpy.load_file(tmp_path / "m.safetensors")["w"].shape == (3,)


def test_closing_under_masks_needs_everybody():
    with pytest.raises(InputError, match='does not go with presence = "deadline"'):
        plan_for(3, closing=True, presence="deadline", deadline=5.0, server_sum="masked")
    assert "closing" not in plan_for(2).to_toml()


# ------------------------------------------------------------------------------------------------ who holds it up


def said(round_=5, waiting_for="", **more):
    return {"round": round_, "waiting_for": waiting_for} | more


HEARD = dict.fromkeys("abc", 0.5)


@pytest.mark.parametrize(
    ("standing", "silence", "name", "why"),
    [
        # a waits for b, who waits for c, who computes: not b.
        ({"a": said(7, "b"), "b": said(6, "c"), "c": said(5)}, HEARD, "c", "at work in round 5"),
        ({"a": said(7, "b"), "b": said(6, "c"), "c": said(5)}, HEARD | {"c": 30.0}, "c", "not heard for 30 s"),
        # The last words of who is gone do not count.
        ({"a": said(7, "b"), "b": said(6, "a"), "c": said(5)}, HEARD | {"b": 30.0}, "b", "not heard for 30 s"),
        ({"a": said(0, "b"), "b": said(0, "c")}, {"a": 0.1, "b": 0.1}, "c", "has not been heard yet"),
        # The server waits for everybody.
        ({"a": said(7, "server"), "b": said(7, "server"), "c": said(6)}, HEARD, "c", "at work in round 6"),
        (dict.fromkeys("abc", said(7, "server")), HEARD, "server", "all wait for it"),
        ({"a": said(7, "b"), "b": said(7, "a"), "c": said(7, "a")}, HEARD, "", ""),
        # Nobody waits long: times tell.
        (
            {n: said(times={"compute": t, "latency x": 0.001}) for n, t in zip("abc", (0.01, 0.1, 0.012), strict=True)},
            HEARD,
            "b",
            "slowest: 100 ms a gradient and 2 ms a message, others 13 in all",
        ),
        (
            {n: said(times={"compute": 0.01, "latency x": t}) for n, t in zip("abc", (0.2, 0.001, 0.002), strict=True)},
            HEARD,
            "a",
            "slowest: 10 ms a gradient and 400 ms a message, others 13 in all",
        ),
        ({n: said(times={"compute": 0.01}) for n in "abc"}, HEARD, "", ""),
        ({"a": said(0, "b"), "c": {"round": 0, "trouble": "has 31"}}, HEARD, "c", "cannot take part: has 31"),
    ],
)
def test_who_really_holds_the_run_up(standing, silence, name, why):
    assert holdup("abc", standing, silence) == (name, why)


def test_status_and_logs_name_who_is_behind(tmp_path, caplog, monkeypatch):
    caplog.set_level(logging.INFO, "pisco.federation")
    for module, name, seconds in ((peers, "FIRST_WORD", 1.5), (peers, "A_WHILE", 0.2), (transport, "POLL", 1.0)):
        monkeypatch.setattr(module, name, seconds)
    plan = plan_for(3, rounds=100_000, network={"graph": "path", "server": "never"})
    ran = Running(tmp_path, plan, squares_of)
    try:
        ledger = ran.members["server"].ledger
        ran.wait(lambda: ran.errors or (ledger.front() >= 3 and not list(ledger.silent(plan.names, unknown=True))))
        ran.stop("agent-2")
        # agent-0 knows agent-1 alone.
        ran.wait(lambda: any("waiting for agent-1" in m and "behind it is agent-2" in m for m in caplog.messages))
        ran.wait(lambda: "not heard" in ran.members["server"].ledger.holdup().why)
        kit = tmp_path / "kits" / "server"
        told = json.loads(CliRunner().invoke(app, ["federation", "status", "--kit", str(kit), "--json"]).output)
        assert told["held_up_by"]["name"] == "agent-2" and "loss" in told["reported_by_members"]
        shown = invoke("federation", "status", "--kit", kit, "--once")
        assert "agent-2 holds the others up: not heard for" in shown and "members report about themselves" in shown
        assert "agent-2 holds the others up" in ran.members["server"].ledger.line()
    finally:
        ran.stop()
        ran.join(fine=False)


# ------------------------------------------------------------------------------------------------ operations


def test_prometheus_is_answered(tmp_path):
    needs.module("prometheus_client", "metrics")
    ports = free_ports(2)
    plan, over = plan_for(2, rounds=100_000, network={"graph": "path", "server_prob": 0.1}), threading.Event()
    ran = Running(tmp_path, plan, squares_of, progress=lambda done: done >= 3 and over.wait(600))
    members = [ran.members["server"], ran.members["agent-0"]]
    try:
        ran.wait(lambda: ran.errors or ran.members["server"].ledger.front() >= 3)
        for member, port in zip(members, ports, strict=True):
            with serve_metrics(MemberMetrics(member), f"127.0.0.1:{port}"):
                with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics") as answer:
                    text = answer.read().decode()
                with (
                    pytest.raises(InputError, match="free port"),
                    serve_metrics(MemberMetrics(member), f"127.0.0.1:{port}"),
                ):
                    pass
            numbers = dict(line.rsplit(" ", 1) for line in text.splitlines() if not line.startswith("#"))
            assert float(numbers["pisco_rounds"]) == 100_000 and float(numbers["pisco_round"]) >= 3
            assert "pisco_refusals_total" in numbers
            if member.name == "server":
                assert numbers['pisco_member_present{member="agent-1"}'] == "1.0"
                assert float(numbers['pisco_member_round{member="agent-1"}']) >= 1
            else:
                assert float(numbers['pisco_bytes_total{direction="sent"}']) > 0
                assert float(numbers['pisco_seconds_total{phase="compute"}']) > 0
                assert float(numbers['pisco_seconds_total{phase="exchange"}']) > 0
        with pytest.raises(InputError, match="cannot be used"), serve_metrics(MemberMetrics(members[0]), "9400"):
            pass
    finally:
        over.set()
        ran.stop()
        ran.join(fine=False)


def test_a_terminated_process_keeps_its_state_and_logs_json(tmp_path):
    plan = plan_for(2, rounds=5, problem={"name": "logistic", "classes": [-1, 1]}, batch_size=8)
    make_kits(tmp_path, plan)
    command = [sys.executable, "-m", "pisco.cli.main", "agent", "--log-json", "--kit", tmp_path / "kits" / "agent-0"]
    data = save(tmp_path / "mine.npz", *samples(), None)
    started = subprocess.Popen([*map(str, command), "--data", str(data)], stderr=subprocess.PIPE, text=True)
    line = started.stderr.readline()  # it waits for the others, and says so
    started.terminate()
    rest = started.communicate(timeout=60)[1]
    told, end = json.loads(line), json.loads(rest.splitlines()[-1])
    assert told["member"] == "agent-0" and told["level"] == "info" and "waiting for" in told["message"]
    assert started.returncode == 143 and "the state is kept" in end["message"]


@pytest.mark.parametrize(
    "file", ["pisco-server.service", "pisco-agent@.service", "pisco-relay.service", "compose.yaml"]
)
def test_deployed_commands_are_commands(file):
    """The options that the examples give are ones that the commands know."""
    text = (Path(__file__).parents[1] / "examples" / "deploy" / file).read_text()
    calls = re.findall(r"bin/pisco (.+)", text) + re.findall(r"command: \[(.+)\]", text)
    assert calls
    for call in calls:
        words = call.replace(",", " ").replace('"', "").split()
        known = CliRunner().invoke(app, [words[0], "--help"], env={"COLUMNS": "200"}).output
        assert all(word in known for word in words if word.startswith("--")), call


def test_no_key_gets_into_the_image():
    """A layer keeps what it copies: the sources, and nothing that `pisco federation init` may have made beside them."""
    root = Path(__file__).parents[1]
    text = (root / "examples" / "deploy" / "Containerfile").read_text()
    copied = [word for line in re.findall(r"^(?:COPY|ADD) (.+)$", text, re.MULTILINE) for word in line.split()[:-1]]
    assert copied == ["pyproject.toml", "README.md", "LICENSE", "src"]
    assert all((root / word).exists() for word in copied)
