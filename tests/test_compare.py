"""Comparing methods: the rule that picks step sizes, what is kept between calls, what a price is, and who stalls."""

import inspect
import json
import math
import os
import re
import signal
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from typer.testing import CliRunner

from pisco import InputError, Result
from pisco.algorithms import ALGORITHMS
from pisco.cli import compare as command
from pisco.cli.main import app
from pisco.experiments import compare as comparing
from pisco.experiments import load, planned, presets
from pisco.experiments import tune as tuning
from pisco.experiments.paper import study
from pisco.report import picture

from worlds import TINY_EXPERIMENT, thinned

TINY = TINY_EXPERIMENT.replace('partition = "iid"', 'partition = "iid"\neach_agent = true')  # all share their programs

TARGETS = {"grad_norm_sq_mean": 0.2, "test_accuracy": 0.6}
UNTESTED = ["problem.dataset=untested.npz", "problem.each_agent=false"]
SMALL = {"targets": TARGETS, "grid": (0.1, 0.3), "seeds": (0, 1), "tuning_seeds": (100,)}


@pytest.fixture
def tiny(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A small experiment in an empty current folder."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(command, "use_compilation_cache", lambda: None)
    generator = np.random.default_rng(0)
    features = generator.normal(size=(40, 3)).astype(np.float32)
    labels = (features[:, 0] > 0).astype(int)
    np.savez("points.npz", features=features, labels=labels, test_features=features, test_labels=labels)
    np.savez("untested.npz", features=features, labels=labels)
    Path("tiny.toml").write_text(TINY)
    return tmp_path


def pisco_(*words: str):
    return CliRunner().invoke(app, list(words), catch_exceptions=False)


# ------------------------------------------------------------------------------------------ the rule


def made_up(*curves: list[float]) -> Result:
    """A result whose seeds have these running means."""
    means = np.array(curves, float)
    rounds = np.broadcast_to(np.arange(means.shape[1]), means.shape)
    return Result(None, {"round": rounds, "grad_norm_sq_mean": means}, tuple(range(len(means))), {})


@pytest.mark.parametrize(
    ("results", "chosen", "rounds"),
    [
        # The fewest rounds on average over the seeds, not the lowest end.
        ([made_up([9, 1, 0.5], [9, 1, 0.5]), made_up([9, 5, 0.1], [9, 5, 0.1])], 0.1, [1, 2]),
        ([made_up([9, 1, 1, 1], [9, 9, 9, 1]), made_up([9, 9, 1, 1], [9, 1, 1, 1])], 0.2, [2, 1.5]),
        # A step size that one seed does not get there with is out, however quick the others are.
        ([made_up([1, 1, 1], [9, 9, 9]), made_up([9, 9, 1], [9, 9, 1])], 0.2, [math.inf, 2]),
        # Nobody gets there: the lowest end, and what blew up is out.
        ([made_up([9, 9, 3]), made_up([9, 9, 2])], 0.2, [math.inf, math.inf]),
        ([made_up([9, 9, 3]), made_up([9, 9, math.nan])], 0.1, [math.inf, math.inf]),
        # All fail somewhere: the fewest failures, before the lowest end.
        ([made_up([9, 9, 0.9], [9, 9, 3]), made_up([9, 9, 2], [9, 9, 1.5])], 0.1, [math.inf, math.inf]),
        # A tie: the lower end.
        ([made_up([9, 1, 0.5]), made_up([9, 1, 0.1])], 0.2, [1, 1]),
    ],
)
def test_the_rule_picks_what_it_says(results, chosen, rounds):
    tuned = tuning.pick((0.1, 0.2), results, {"grad_norm_sq_mean": 1.0})
    assert tuned.local_lr == chosen
    assert [trial.rounds for trial in tuned.trials] == rounds


def test_a_step_that_fails_on_one_tuning_seed_is_rejected():
    """Also where it gets to the target, or ends lower in the mean."""
    calm, wild = made_up([9, 9, 1], [9, 9, 1]), made_up([9, 1, 0.1], [9, 1, 0.1])
    for harm in ({"diverged_at": [None, 2]}, {"history": wild.history | {"loss": np.array([[1, 0, 0], [1, 0, 2.0]])}}):
        tuned = tuning.pick((0.1, 0.2), [calm, replace(wild, **harm)], {"grad_norm_sq_mean": 1.0})
        assert tuned.local_lr == 0.1 and tuned.failed == 0
        assert [trial.failed for trial in tuned.trials] == [0, 1] and tuned.trials[1].rounds == math.inf
    # Without a target the loss at the end decides, and it alone.
    low, lower = ({"loss": np.array([[1, 0.5], [1, end]])} for end in (0.4, 1.5))
    results = [
        replace(made_up([1, 1], [1, 1]), history=made_up([1, 1], [1, 1]).history | loss) for loss in (low, lower)
    ]
    assert tuning.pick((0.1, 0.2), results, {}).local_lr == 0.1


def test_one_grid_and_one_set_of_tuning_seeds_everywhere():
    """The paper's studies, `pisco tune` and `pisco compare`; and nothing is judged on a seed that it was tuned on."""
    studied = inspect.signature(study.study).parameters
    compared = inspect.signature(comparing.compare_methods).parameters
    tuned = inspect.signature(tuning.tune).parameters
    assert studied["grid"].default == compared["grid"].default == tuned["grid"].default == tuning.GRID
    for found in (studied["tuning_seeds"], compared["tuning_seeds"], tuned["seeds"]):
        assert found.default == tuning.TUNING_SEEDS
    for found in (studied["seeds"], compared["seeds"]):
        assert len(found.default) >= 20 and not set(found.default) & set(tuning.TUNING_SEEDS)
    defaults = {name: option.default for name, option in inspect.signature(command.compare).parameters.items()}
    assert (defaults["seeds"], defaults["tuning_seeds"]) == (20, len(tuning.TUNING_SEEDS))
    assert inspect.signature(command.tune).parameters["seeds"].default == len(tuning.TUNING_SEEDS)
    ratios = np.array(tuning.GRID[1:]) / tuning.GRID[:-1]
    assert ratios.max() <= 1.61 and ratios.min() >= 1.55


def test_tuning_tries_the_whole_grid_and_refuses_what_is_none(tiny):
    tuned = tuning.tune(load("tiny.toml"), grid=(0.01, 0.3), targets=TARGETS, seeds=(100,))
    assert [trial.local_lr for trial in tuned.trials] == [0.01, 0.3]
    assert tuned.local_lr == 0.3 and math.isfinite(tuned.trials[1].rounds)
    for grid in ((), (0.1, -1.0)):
        with pytest.raises(InputError, match="is not a list of step sizes"):
            tuning.tune(load("tiny.toml"), grid=grid)
    config = load("tiny.toml", UNTESTED)
    with pytest.raises(InputError, match="test_accuracy cannot tune"):
        tuning.tune(config, targets={"test_accuracy": 0.8})


# ------------------------------------------------------------------------------- one method's settings


def test_methods_take_their_published_network_or_stay():
    base = load("quick")
    assert comparing.method_config(base, "gossip-pga").network.schedule().probability == 0.1
    assert repr(comparing.method_config(base, "gossip-pga").network.schedule()) == "every(10)"
    assert comparing.method_config(base, "pisco-vr").network == base.network
    stays = comparing.method_config(base, "gossip-pga", own_network=False)
    assert stays.network == base.network
    clustered = comparing.method_config(base, "tt-hf").network
    assert clustered.graph == "clusters" and clustered.reporters == 1 and clustered.gossip_steps == 2


@pytest.mark.parametrize("base", ["quick", pytest.param("a9a-kgt", marks=pytest.mark.slow)])
def test_all_methods_with_local_steps_take_as_many_gradients(base):
    """PISCO's T_o leaves out the communication step; two gradients a round for everybody here."""
    counts = {
        method: comparing.method_config(load(base), method).to_dict()["algorithm"].get("local_steps")
        for method in ALGORITHMS
    }
    for method in ("pisco", "pisco-one-exchange", "pisco-compressed"):
        assert counts[method] == 1
    for method in ("pisco-vr", "kgt", "periodical-gt", "lsgt", "scaffold", "fedavg", "local-dsgd"):
        assert counts[method] == 2
    assert counts["dsgt"] is None


def test_gradients_are_counted_before_weights_are_solved_for(monkeypatch):
    """FDLA of 120 agents took ten seconds for every method with local steps, finished ones too."""
    monkeypatch.delattr(comparing.Config, "problem_and_network")
    assert comparing.method_config(load("quick"), "kgt").algorithm.taken_by("name")["local_steps"] == 2


def test_an_experiment_whose_own_step_is_called_otherwise_can_be_compared_with(tmp_path):
    (tmp_path / "mine.py").write_text(
        "import pisco\n"
        "from pisco.algorithms import dsgd\n"
        "@pisco.algorithm\n"
        "def mine(*, lr: float, local_steps: int):\n"
        "    rule = dsgd(local_lr=lr, local_steps=local_steps)\n"
        "    return pisco.Pair(rule.init, rule.round)\n"
    )
    (tmp_path / "mine.toml").write_text(
        'base = "quick"\n[algorithm]\nname = "mine.py:mine"\nlr = 0.1\nlocal_steps = 3\n'
    )
    config = comparing.method_config(load(tmp_path / "mine.toml"), "pisco")
    assert config.algorithm.taken_by("name")["local_steps"] == 2


def test_an_optimizer_that_fits_one_model_alone_can_be_compared_with(tiny):
    Path("mine.py").write_text(
        "import optax\n"
        "def masked():\n"
        "    return optax.masked(optax.scale_by_adam(), {'c1': True, 'c2': True, 'w1': True, 'w2': False})\n"
    )
    base = load("tiny.toml", ["problem.name=mlp", "algorithm.direction=mine.py:masked"])
    for method, steps in (("pisco", 1), ("kgt", 2)):
        assert comparing.method_config(base, method).algorithm.taken_by("name")["local_steps"] == steps
    assert planned.diagnose_config(base).local_steps == 2


# ------------------------------------------------------------------------------------- what is kept


def stages(folder, methods=("pisco", "dsgd"), overrides=(), **changed):
    """Compare, and tell which work was done."""
    done = []
    entries = comparing.compare_methods(
        load("tiny.toml", overrides),
        methods,
        folder=Path(folder),
        started=lambda method, stage: done.append((method, stage)),
        **(SMALL | changed),
    )
    return entries, done


def test_finished_methods_are_kept_and_only_they(tiny):
    entries, done = stages("here")
    worked = [(method, stage) for method in ("pisco", "dsgd") for stage in ("tuning", "running")]
    assert done == worked
    assert [entry.method for entry in entries] == ["pisco", "dsgd"]

    again, done = stages("here")
    assert done == [("pisco", "kept"), ("dsgd", "kept")]
    for old, new in zip(entries, again, strict=True):
        assert old.tuned == new.tuned and old.config == new.config
        assert old.record(TARGETS, comparing.Prices()) == new.record(TARGETS, comparing.Prices())

    assert stages("here", ("dsgd", "fedavg"))[1] == [("dsgd", "kept"), ("fedavg", "tuning"), ("fedavg", "running")]
    for changed in ({"grid": (0.1,)}, {"tuning_seeds": (7,)}, {"seeds": (0,)}):
        assert ("dsgd", "kept") not in stages("here", ("dsgd",), **changed)[1]
    assert ("dsgd", "kept") not in stages("here", ("dsgd",), ["run.rounds=10"])[1]
    assert ("dsgd", "kept") in stages("here", ("dsgd",), ["run.rounds=10", "algorithm.local_lr=0.7"])[1]


@pytest.mark.parametrize("file", ["tuning.json", "result.json", "history.npz", "params.npz"])
def test_damaged_entries_are_computed_again(tiny, file):
    stages("here", ("dsgd",))
    path = Path("here/dsgd") / file
    for content in (b"damaged", b""):
        path.write_bytes(content)
        assert stages("here", ("dsgd",))[1] == [("dsgd", "tuning"), ("dsgd", "running")]
    path.unlink()
    assert stages("here", ("dsgd",))[1] == [("dsgd", "tuning"), ("dsgd", "running")]
    assert stages("here", ("dsgd",))[1] == [("dsgd", "kept")]


@pytest.mark.parametrize("stage", ["tuning", "running"])
def test_ctrl_c_keeps_finished_methods_and_nothing_half_done(tiny, stage):
    now = []

    def interrupt(progress):
        if now == ["dsgd", stage]:
            os.kill(os.getpid(), signal.SIGINT)

    def started(*what):
        now[:] = what

    entries = comparing.compare_methods(
        load("tiny.toml"), ("pisco", "dsgd"), folder=Path("here"), started=started, progress=interrupt, **SMALL
    )
    assert [entry.method for entry in entries] == ["pisco"]
    assert stages("here")[1] == [("pisco", "kept"), ("dsgd", "tuning"), ("dsgd", "running")]


# ------------------------------------------------------------------------------------- the command


COMPARE = ("compare", "tiny.toml", "--grid", "0.1,0.3", "--targets", "grad_norm_sq_mean=0.2", "--seeds", "2")


def test_the_command_writes_a_table_a_picture_and_applies_prices(tiny, monkeypatch):
    words = (*COMPARE, "--algorithms", "pisco,dsgd,fedavg", "--out", "here", "--json", "--set", "clock.compute=1.5")
    words += ("--tuning-seeds", "1")
    done = pisco_(*words, "--price-server", "7", "--price-gossip", "2")
    assert done.exit_code == 0, done.output
    said = json.loads(done.stdout)
    assert said["prices"] == {"server": 7, "gossip": 2, "gradient": 0} and said["rule"] == tuning.RULE
    assert Path(said["plot"]).exists() and Path("here/compare.csv").read_text().count("\n") == 4
    monkeypatch.setattr(picture, "save", lambda *_: None)  # the same with other prices: seconds each
    pisco_row, dsgd_row, fedavg_row = said["methods"]
    assert 0 <= dsgd_row["final test_accuracy_spread"] <= 1 - dsgd_row["final test_accuracy_worst"] <= 1
    kept = pisco_(*(word for word in words if word != "--json"))
    assert "worst agent" in " ".join(kept.stdout.split()), kept.output
    edges, agents = 8, 4
    assert dsgd_row["price to grad_norm_sq_mean"] == 2 * edges * dsgd_row["rounds to grad_norm_sq_mean"]
    paid = 7 * 2 * agents * fedavg_row["rounds to grad_norm_sq_mean"]
    assert fedavg_row["price to grad_norm_sq_mean"] == paid
    # Two sequential exchanges: the same 16 messages of one vector by gossip and by the server.
    sent = pisco_row["bytes to grad_norm_sq_mean"] / pisco_row["rounds to grad_norm_sq_mean"]
    assert sent == 2 * 8 * 4 * 4

    cheaper = json.loads(pisco_(*words, "--price-server", "0", "--price-gossip", "1").stdout)["methods"]
    assert cheaper[2]["price to grad_norm_sq_mean"] == 0
    # By a clock that counts gradients alone, and with a price for gradients alone.
    assert dsgd_row["seconds to grad_norm_sq_mean"] == 1.5 * dsgd_row["rounds to grad_norm_sq_mean"]
    free = ("--price-server", "0", "--price-gossip", "0", "--price-gradient", "3")
    worked = json.loads(pisco_(*words, *free).stdout)["methods"][1]
    assert worked["price to grad_norm_sq_mean"] == 3 * agents * dsgd_row["rounds to grad_norm_sq_mean"]
    assert cheaper[1]["bytes to grad_norm_sq_mean"] == dsgd_row["bytes to grad_norm_sq_mean"]


def test_the_command_says_which_rule_and_shows_misses(tiny):
    done = pisco_(
        *("compare", "tiny.toml", "--grid", "0.1", "--targets", "grad_norm_sq_mean=1e-9,test_accuracy=0.6"),
        *("--algorithms", "dsgd,gossip-pga", "--seeds", "10", "--rounds", "5", "--same-network"),  # as many as tune
        *(word for setting in UNTESTED for word in ("--set", setting)),
    )
    assert done.exit_code == 0, done.output
    assert "–" in done.stdout and tuning.RULE in done.stdout
    assert re.search(r"dsgd +0.1 +more", done.stdout), "a seed that missed is no number of rounds"
    assert "dsgd: no step size works on every tuning seed; this one fails on 10" in done.stderr
    assert Path("compare-tiny/compare.png").exists()
    networks = {Result.load(f"compare-tiny/{m}").settings["network"] for m in ("dsgd", "gossip-pga")}
    assert len(networks) == 1 and "bernoulli(0.5)" in networks.pop()


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (("--algorithms", "pisco,dsdg"), "unknown algorithm 'dsdg'; did you mean"),
        (("--algorithms", "pisco,dsgd,pisco"), "pisco is named more than once; name every algorithm once"),
        (("--algorithms", ""), "unknown algorithm ''; known: beer"),
        (("--grid", ""), "the grid '' is not a list of numbers"),
        (("--targets", "grad_norm=1"), "unknown target 'grad_norm'"),
        (("--targets", "loss"), "the target 'loss' has no bound"),
        (("--grid", "a,b"), "the grid 'a,b' is not a list of numbers"),
        (("--grid", "0.1,-1"), "is not a list of step sizes"),
        (("--set", "network.sever=never"), "network.sever is not a setting"),
        (("--algorithms", "pisco,scaffold", "--same-network"), "scaffold needs the server in every round"),
        (("--algorithms", "pisco,beer", "--same-network"), "beer needs the same map in every round"),
        (("--algorithms", "hl-sgd", "--set", "network.agents=3"), "clusters"),
    ],
)
def test_mistakes_are_one_sentence_before_anything_is_computed(tiny, words, sentence, monkeypatch):
    monkeypatch.setattr(tuning, "sweep", lambda *args, **kwargs: pytest.fail("computed something"))
    done = pisco_("compare", "tiny.toml", *words)
    assert done.exit_code == 2, done.output
    last = done.stderr.strip().splitlines()[-1]
    assert last.startswith("error: ") and sentence in last, done.stderr
    assert not done.stdout


def test_tune_as_a_command(tiny):
    words = ("tune", "tiny.toml", "--grid", "0.05,0.3", "--seeds", "1", "--targets", "grad_norm_sq_mean=0.2")
    said = json.loads(pisco_(*words, "--json").stdout)
    assert said["local_lr"] in (0.05, 0.3) and len(said["trials"]) == 2
    shown = pisco_(*words)
    assert shown.exit_code == 0
    step = f"--set algorithm.local_lr={said['local_lr']:g}"
    assert f"next: pisco run tiny.toml {step}" in shown.stdout
    other = pisco_(*words, "--set", "network.server_prob=0.5", "--rounds", "20").stdout
    hint = "next: pisco run tiny.toml --set network.server_prob=0.5 --set run.rounds=20 --set algorithm.local_lr="
    assert hint in " ".join(other.split())  # a step is for the p that it was tuned at
    assert pisco_("tune", "tiny.toml", "--grid", "x").exit_code == 2


# ------------------------------------------------------------------------- files built on another one


def test_a_base_holds_what_the_file_does_not_say(tiny):
    Path("more.toml").write_text('base = "tiny.toml"\n[network]\nserver = "every"\nperiod = 3\n')
    Path("most.toml").write_text('base = "more.toml"\n[algorithm]\nname = "dsgd"\n')
    config = load("most.toml")
    assert config.name == "most" and config.run.rounds == 20 and config.execute().rounds == 20
    assert repr(config.network.schedule()) == "every(3)" and "server_prob" not in config.to_dict()["network"]
    assert config.to_dict()["algorithm"] == {"name": "dsgd", "local_lr": 0.1}


@pytest.mark.parametrize(
    ("one", "two", "sentence"),
    [
        ("one.toml", "", "is its own base"),
        ("./one.toml", "", "is its own base"),
        ("two.toml", 'base = "one.toml"', "is its own base"),
        ("there.toml", "", "there is no file there.toml"),
    ],
)
def test_a_base_that_is_none_is_one_sentence(tiny, one, two, sentence):
    Path("one.toml").write_text(f'base = "{one}"\n')
    Path("two.toml").write_text(two)
    with pytest.raises(InputError, match=sentence):
        load("one.toml")


# -------------------------------------------------------------------------------------- presets


def preset(method: str) -> str:
    """The preset of a row: PISCO's own is the experiment itself."""
    return "a9a" if method == "pisco" else f"a9a-{method}"


@pytest.mark.parametrize("method", thinned(ALGORITHMS, 18))
def test_every_method_has_a_preset_that_runs_on_its_network(method):
    name = preset(method)
    assert name in presets()
    config = load(
        name, ["run.rounds=2", "run.eval_every=2", "run.batch_size=8", "problem.partition=iid", "network.agents=10"]
    )
    assert config.algorithm.name == method
    published = comparing.method_config(load("a9a"), method)
    assert config.network == published.network
    steps = [each.to_dict()["algorithm"].get("local_steps") for each in (config, published)]
    assert steps[0] == steps[1]
    result = config.execute()
    assert result.rounds == 2 and np.isfinite(result.final("loss")).all()


# ------------------------------------------------------------------------------------ who stalls


def full_batch(name: str, rounds: int, *overrides: str) -> np.ndarray:
    """‖∇f(x̄)‖² of a preset with all samples and a constant step, at the start, half way and at the end."""
    whole = ["run.batch_size=full", f"run.rounds={rounds}", f"run.eval_every={rounds // 2}"]
    return load(name, [*whole, *overrides]).execute().history["grad_norm_sq"]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "rounds", "overrides"),
    [
        ("a9a", 800, ["algorithm.local_lr=0.5", "network.weights=metropolis"]),
        ("a9a-scaffold", 400, ["algorithm.local_lr=1"]),
        ("a9a-pisco-one-exchange", 700, ["algorithm.local_lr=0.5"]),
        ("a9a-pisco-vr", 400, ["algorithm.local_lr=1"]),
        ("a9a-pisco-compressed", 500, ["algorithm.local_lr=1"]),
        ("a9a-kgt", 450, ["algorithm.local_lr=1"]),
        ("a9a-dsgt", 1400, []),
    ],
)
def test_exact_methods_reach_the_optimum_of_sorted_a9a_with_constant_steps(name, rounds, overrides):
    assert full_batch(name, rounds, *overrides)[-1] <= 1e-6


@pytest.mark.slow
@pytest.mark.parametrize("lr", [0.1, 0.5])
@pytest.mark.parametrize("name", ["a9a-dsgd", "a9a-fedavg", "a9a-gossip-pga"])
def test_biased_methods_stall_there(name, lr):
    _, half, end = full_batch(name, 1400, f"algorithm.local_lr={lr}")
    assert end > 1e-4, "it went on"
    assert end > 0.8 * half, "it has not stalled yet"
