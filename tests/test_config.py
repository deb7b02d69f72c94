"""Experiment files: what they accept, what they refuse and in which words, and that they come back unchanged."""

import tomllib
from pathlib import Path

import numpy as np
import pytest

import pisco
from pisco import InputError
from pisco.experiments import Config, load, presets
from pisco.settings import toml

TINY = """
[algorithm]
name = "dsgd"
local_lr = 0.1

[problem]
dataset = "points.npz"
partition = "iid"

[network]
agents = 4
server_prob = 0.5

[run]
rounds = 6
batch_size = 2
"""


@pytest.fixture
def tiny(tmp_path: Path) -> Path:
    """An experiment file beside the data it names."""
    generator = np.random.default_rng(0)
    features = generator.normal(size=(40, 3)).astype(np.float32)
    np.savez(tmp_path / "points.npz", features=features, labels=(features[:, 0] > 0).astype(int))
    path = tmp_path / "tiny.toml"
    path.write_text(TINY)
    return path


@pytest.mark.parametrize("name", presets())
def test_presets_are_valid_described_and_round_trip(name):
    config = load(name)
    assert config.name == name and config.description
    assert Config.from_dict(tomllib.loads(config.to_toml())) == config
    assert Config.from_dict(config.to_dict()) == config


def test_a_file_runs_from_any_folder_and_round_trips(tiny, tmp_path):
    config = load(tiny)
    result = config.execute()
    assert result.rounds == 6 and result.label == "tiny"
    copy = tmp_path / "elsewhere" / "config.toml"
    copy.parent.mkdir()
    copy.write_text(config.to_toml())
    again = load(copy)
    assert again == config
    np.testing.assert_array_equal(again.execute().history["loss"], result.history["loss"])


def test_it_says_the_same_as_python(tiny):
    data = pisco.data.load(tiny.with_name("points.npz"))
    problem = pisco.problems.logistic(data, agents=4, partition="iid")
    net = pisco.Network.ring(4, server=pisco.bernoulli(0.5))
    result = pisco.run(pisco.algorithms.dsgd(local_lr=0.1), problem, net, rounds=6, batch_size=2, seed=[3, 4])
    from_file = load(tiny, ["run.seed=3", "run.seeds=2"]).execute()
    np.testing.assert_array_equal(from_file.history["loss"], result.history["loss"])


@pytest.mark.parametrize(
    ("overrides", "sentence"),
    [
        (["network.server_prob=-0.1"], "server_prob is -0.1, expected a number at least 0 and at most 1"),
        (["network.server_prob=1.5"], "server_prob is 1.5, expected a number at least 0 and at most 1"),
        (["network.sever_prob=0.2"], "network.sever_prob is not a setting; did you mean 'server_prob'?"),
        (["netwrk.agents=4"], "netwrk is not a table; did you mean 'network'?"),
        (["problem.agents=4"], "problem.agents is not a setting; give network.agents"),
        (['problem.metrics=["nope"]'], "unknown metric 'nope'; name one of your own, as in \"my.py:nope\""),
        (["algorithm.local_lr=inf"], "local_lr is inf, expected a finite number greater than 0"),
        (["run.round=4"], "run.round is not a setting; did you mean 'rounds'?"),
        (["run.rounds=0"], "run.rounds is 0, expected a whole number at least 1"),
        (["run.rounds=nan"], "run.rounds is nan, expected a finite number"),
        (["run.rounds=many"], "run.rounds is 'many', expected a whole number"),
        (["run.seeds=[1, -1]"], "run.seeds is [1, -1], expected how many seeds"),
        (["run.seed=-1"], "run.seed is -1, expected a whole number from 0 to 4294967295"),
        (["run.dtype=float16"], "run.dtype is 'float16', expected 'float32' or 'float64'"),
        (["run.engine=scna"], "unknown engine 'scna'; did you mean 'scan'?"),
        (["run=3"], "run is 3, expected a table [run]"),
        (["algorithm.name=picso"], "unknown algorithm 'picso'; did you mean 'pisco'?"),
        (["algorithm.local_lr=0"], "local_lr is 0.0, expected a number greater than 0"),
        (["algorithm.locl_lr=1"], "algorithm.locl_lr is not a setting; did you mean 'local_lr'?"),
        (["algorithm.name=pisco"], "algorithm.local_steps is missing"),
        (["algorithm.name=pisco", "algorithm.local_steps=1.5"], "local_steps is 1.5, expected a whole number"),
        (["network.graph=rnig"], "unknown graph 'rnig'; did you mean 'ring'?"),
        (["network.weights=fdal"], "unknown weights 'fdal'; did you mean 'fdla'?"),
        (["network.server=sometimes"], "unknown server 'sometimes'; known: adaptive, always"),
        (["network.server=every"], "network.period is missing"),
        (["network.rows=2"], "network.rows does not go with graph = 'ring' (it is a setting of grid, torus)"),
        (["problem.partition=srted"], "unknown partition 'srted'; did you mean 'sorted'?"),
        (["problem.name=logstic"], "unknown problem 'logstic'; did you mean 'logistic'?"),
        (["rounds"], "'rounds' sets nothing; write table.key=value"),
        (["rounds=9"], "rounds is not a setting; did you mean 'run.rounds'?"),
        (["local_lr=0.2"], "local_lr is not a setting; did you mean 'algorithm.local_lr'?"),
        (["weights=fdla"], "weights is not a setting; did you mean 'problem.weights' or 'network.weights'?"),
        (["run.batch_size=all"], "run.batch_size is 'all', expected a whole number or \"full\""),
        (["run.rounds.x=1"], "rounds is a value, not a table"),
    ],
)
def test_mistakes_are_one_sentence(tiny, overrides, sentence):
    with pytest.raises(InputError) as caught:
        load(tiny, overrides)
    assert sentence in str(caught.value)
    assert "\n" not in str(caught.value)


def test_the_mark_that_some_editors_put_first_is_no_mistake(tiny):
    marked = tiny.with_name("marked.toml")
    marked.write_bytes(b"\xef\xbb\xbf" + tiny.read_bytes())
    assert load(marked).run == load(tiny).run


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("", "is empty"),
        ("[run\nrounds = 3", "is not valid TOML: "),
        ("[run]\nrounds = 3", "lacks the table [algorithm]"),
        (TINY.replace("rounds = 6", ""), "lacks run.rounds"),
        (TINY + "\n[extra]\nx = 1", "extra is not a table"),
    ],
)
def test_broken_files_are_one_sentence(tmp_path, text, sentence):
    path = tmp_path / "broken.toml"
    path.write_text(text)
    with pytest.raises(InputError, match=".*") as caught:
        load(path)
    assert sentence in str(caught.value)


def test_malformed_toml_names_file_and_line(tmp_path):
    path = tmp_path / "broken.toml"
    path.write_text("[run]\nrounds = = 3\n")
    with pytest.raises(InputError, match=r"broken\.toml is not valid TOML: .*line 2"):
        load(path)


def test_missing_files_and_names(tmp_path):
    with pytest.raises(InputError, match="there is no file nowhere.toml"):
        load("nowhere.toml")
    with pytest.raises(InputError, match="unknown experiment 'quik'.*did you mean 'quick'"):
        load("quik")
    with pytest.raises(InputError, match="is a folder"):
        load(tmp_path)
    binary = tmp_path / "x.toml"
    binary.write_bytes(b"\xff\xfe")
    with pytest.raises(InputError, match="not a text file"):
        load(binary)


def test_another_choice_drops_what_only_the_old_one_took():
    config = load("mnist", ["network.graph=ring", "algorithm.name=dsgd", "network.server=always"])
    network = {"graph", "agents", "weights", "server", "varying", "presence", "gossip_steps"}
    network |= {"gossip_before_server", "guard", "receivers"}
    assert set(config.to_dict()["network"]) == network
    assert set(config.to_dict()["algorithm"]) == {"name", "local_lr"}
    kept = load("quick", ["network.graph=torus", "network.rows=2"])
    assert kept.network.schedule().probability == 0.1
    with pytest.raises(InputError, match="does not go with"):
        load("quick", ["network.graph=ring", "network.rows=2"])


def test_every_graph_weight_and_schedule_can_be_configured():
    network = load(
        "quick",
        [
            *("network.graph=clusters", "network.clusters=2", "network.bridges=1"),
            *("network.weights=fdla", "network.lazy=true"),
            *("network.server=per_agent", f"network.server_probs={[0.1] * 10}"),
        ],
    ).network.build()
    assert "2 clusters" in repr(network) and "fdla(lazy)" in repr(network) and "per_agent" in repr(network)
    assert np.linalg.eigvalsh(network.weights.toarray()).min() >= -1e-9
    assert load("quick", ["network.server=every", "network.period=4"]).network.schedule().probability == 0.25


def test_full_batch_and_partition_options(tiny):
    assert load("a9a", ['run.batch_size="32"']).run.batch_size == 32  # as other numbers in quotes
    for full in ("full", "0"):
        assert load(tiny, [f"run.batch_size={full}"]).run.batch_size is None
    split = ["problem.partition=dirichlet", "problem.partition_options.alpha=0.5"]
    config = load(tiny, [*split, "run.batch_size=1"])
    assert config.build()[1].num_agents == 4
    with pytest.raises(InputError, match="did you mean 'alpha'"):
        load(tiny, ["problem.partition=dirichlet", "problem.partition_options.alfa=0.5"]).build()


def test_bad_data_is_refused_when_built(tiny):
    with pytest.raises(InputError, match="batch_size is 50, but an agent has only 10 samples"):
        load(tiny, ["run.batch_size=50"]).execute()
    with pytest.raises(InputError, match="41 agents cannot share 40 samples"):
        load(tiny, ["network.agents=41"]).build()
    with pytest.raises(InputError, match="unknown dataset 'mnits'.*did you mean 'mnist'"):
        load(tiny, ["problem.dataset=mnits"]).build()


def test_double_precision(tiny, x64):
    result = load(tiny, ["run.dtype=float64"]).execute()
    assert result.params.dtype == np.float64


@pytest.mark.parametrize(
    "tables",
    [
        {"name": 'quoted "x" \\ \n \x7f é', "run": {"a": 1e-5, "b": [1, 2.5, "x"], "c": True, "d": {"e": -0.0}}},
        {"t": {"empty": {}, "list": [], "inf": float("inf"), "dotted.key": 1}},
    ],
)
def test_toml_writes_what_it_reads(tables):
    assert tomllib.loads(toml.write(tables)) == tables


def test_parts_of_a_model_in_a_file(tiny):
    """The same leaves stay at home as in Python, and what matches nothing is named."""
    mine = ['problem.name="mlp"', "problem.hidden=3", 'problem.parts={local=["w2", "c2"], frozen="c1"}']
    config = load(tiny, mine)
    assert Config.from_dict(tomllib.loads(config.to_toml())) == config
    _, problem, _ = config.build()
    assert problem.kinds is not None and problem.kinds.of("local") == ["c2", "w2"]
    result = config.execute()
    assert result.params["c1"] is None and not np.allclose(result.params["w2"][0], result.params["w2"][1])
    assert result.history["bytes_gossip"][-1] % (4 * 3 * 3) == 0  # w1 alone
    with pytest.raises(InputError, match="no leaf is matched by local='head'; the model has c1, c2, w1, w2"):
        load(tiny, [*mine[:2], "problem.parts={local='head'}"]).build()
    with pytest.raises(InputError, match="frozn"):
        load(tiny, [*mine[:2], "problem.parts={frozn='c1'}"]).build()
    with pytest.raises(InputError, match="says itself which parts"):
        problem.parted({"local": "w1"})
