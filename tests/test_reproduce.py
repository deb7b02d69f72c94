"""`pisco reproduce`: every figure in its quick form through the real code, and what must hold at any size."""

import csv
import fcntl
import json
import math
import os
import signal
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path

import numpy as np
import pytest
from matplotlib.container import ErrorbarContainer
from typer.testing import CliRunner

import pisco as pisco_fl
from pisco.cli import reproduce as command
from pisco.cli.main import app
from pisco.data import load
from pisco.engines.run import run
from pisco.errors import InputError
from pisco.experiments import demo, tune
from pisco.experiments.paper import cifar
from pisco.experiments.paper.a9a import PAPERS_FORM, _like_every_round
from pisco.experiments.paper.figures import FIGURES
from pisco.experiments.paper.regression import _bars
from pisco.experiments.paper.speed_up import mean_gradient, noise_floor
from pisco.experiments.paper.study import ACCURACY, SPREAD, TRAINING, WORST, Cell, study
from pisco.experiments.paper.tables import Setup, complexities
from pisco.experiments.paper.verdict import ENOUGH, HOLDS, NOT_TESTED, Verdict
from pisco.experiments.paper.work import Work, quiet, uncut
from pisco.metrics import each_agent
from pisco.networks.network import Network
from pisco.networks.schedules import bernoulli
from pisco.problems.mlp import mlp
from pisco.report.panels import Panel
from pisco.report.picture import draw
from pisco.results import Result

DATA = bool(os.environ.get("PISCO_DATA"))
WITHOUT_DATA = [name for name, figure in FIGURES.items() if not figure.needs]
IMAGES = [name for name, figure in FIGURES.items() if figure.needs]


def pisco(*words):
    return CliRunner().invoke(app, list(words), catch_exceptions=False)


@pytest.fixture(autouse=True)
def no_cache(monkeypatch):
    monkeypatch.setattr(command, "use_compilation_cache", lambda: None)


def quick(name, folder):
    """Run the command, check its files, and give the verdicts."""
    done = pisco("reproduce", name, "--quick", "--out", str(folder))
    assert done.exit_code == 0, done.output
    verdicts = json.loads((folder / f"{name}-verdicts.json").read_text())
    assert verdicts
    for verdict in verdicts:
        assert verdict["claim"] and verdict["statistic"] and verdict["measured"]
        if verdict["seeds"]:
            assert verdict["outcome"] == NOT_TESTED and verdict["measured"].startswith("coarsely, ")
        else:
            assert verdict["outcome"] == HOLDS or name.startswith("table"), verdict
    settings = json.loads((folder / f"{name}-settings.json").read_text())
    assert settings["quick"] is True and settings["settings"]
    with (folder / f"{name}.csv").open() as file:
        assert list(csv.DictReader(file))
    if name.startswith("table"):
        assert (folder / f"{name}.md").read_text().startswith("| method |")
    else:
        assert (folder / f"{name}.png").read_bytes().startswith(b"\x89PNG")
        page = (folder / f"{name}.html").read_text()
        assert "plotly" in page and 'src="http' not in page
    return verdicts


LONG = {"different-p", "iter-p", "theory"}


@pytest.mark.parametrize("name", [pytest.param(n, marks=pytest.mark.slow) if n in LONG else n for n in WITHOUT_DATA])
def test_quick_form(name, tmp_path):
    quick(name, tmp_path)


@pytest.mark.slow
@pytest.mark.skipif(not DATA, reason="MNIST and CIFAR-10 are found through PISCO_DATA, which is not set")
@pytest.mark.parametrize("name", IMAGES)
def test_quick_form_with_images(name, tmp_path):
    quick(name, tmp_path)


def test_list_and_unknown_names():
    listed = pisco("reproduce", "--list")
    assert listed.exit_code == 0
    assert all(name in listed.stdout for name in FIGURES)
    wrong = pisco("reproduce", "iterp")
    assert wrong.exit_code == 2 and "iter-p" in wrong.stderr
    assert pisco("reproduce").exit_code == 2


def test_missing_data_is_said_before_anything_is_computed(tmp_path, monkeypatch):
    def missing(name):
        raise InputError(f"put {name} there")

    computed = []
    table = FIGURES["table-semi-ml"]
    table = table._replace(compute=lambda *args: computed.append(1))
    some = {"table-semi-ml": table, "different-topology": FIGURES["different-topology"]}
    monkeypatch.setattr("pisco.experiments.paper.figures.FIGURES", some)
    monkeypatch.setattr("pisco.data.load", missing)
    alone = pisco("reproduce", "different-topology", "--quick", "--out", str(tmp_path))
    assert alone.exit_code == 2 and "put mnist there" in alone.stderr
    monkeypatch.setattr(command, "note", lambda words: computed.append(words))
    everything = pisco("reproduce", "all", "--quick", "--out", str(tmp_path))
    assert everything.exit_code == 0
    assert computed[:2] == ["skipped different-topology: put mnist there", 1]
    assert (tmp_path / "table-semi-ml.csv").exists()


PROGRAM = """
import os, signal, sys
from functools import partial
from pathlib import Path
import numpy as np
import pisco
from pisco.experiments.paper import work
from pisco.experiments.paper.study import study

data = np.random.default_rng(0).normal(size=(4, 20, 3)).astype("float32")
problem = pisco.Problem(lambda x, a, key: (a @ x - 1) ** 2, np.zeros(3, "float32"), data, name="tiny")
done = []

def stage(words, rounds):
    done.append(words)
    if len(done) == int(sys.argv[2]):
        os.kill(os.getpid(), signal.SIGKILL)
    return work.quiet(words, rounds)

for name in ("one", "two"):
    found = study(name, partial(pisco.algorithms.pisco, local_steps=1), {"0": 0.0, "1": 1.0}, problem,
        pisco.Network.ring(4), targets={"grad_norm_sq_mean": 1.0}, grid=(0.01, 0.1), seeds=(0, 1), tuning_seeds=(100,),
        work=work.Work(stage, Path(sys.argv[1])), rounds=5)
    print(name, [cell.to_target("grad_norm_sq_mean", 1.0).values.tolist() for cell in found.tuned])
print(len(done))
"""


@pytest.mark.slow
def test_finished_studies_survive_a_kill(tmp_path):
    """kill -9 in the midst of the second study: the first is read back, the second computed, as if nothing had been."""

    def run(folder, kill):
        words = [sys.executable, "-c", PROGRAM, str(folder), str(kill)]
        return subprocess.run(words, capture_output=True, text=True, timeout=900)

    whole = run(tmp_path / "whole", 0)
    assert whole.returncode == 0 and whole.stdout.split()[-1] == "4", whole.stderr
    assert run(tmp_path / "cut", 4).returncode == -signal.SIGKILL
    again = run(tmp_path / "cut", 0)
    assert again.stdout.split()[-1] == "2" and again.stdout.splitlines()[:2] == whole.stdout.splitlines()[:2]
    assert run(tmp_path / "cut", 1).stdout.split()[-1] == "0", "nothing is left to compute"
    for part in (tmp_path / "cut").rglob("history.npz"):
        part.write_bytes(b"damaged")
    assert run(tmp_path / "cut", 0).stdout.split()[-1] == "4"


def test_a_study_in_pieces_is_the_same_and_several_processes_share_it(tmp_path, monkeypatch):
    """Cut short after a piece, then with a piece that another process has claimed: nothing is computed twice."""
    data = np.random.default_rng(0).normal(size=(4, 20, 3)).astype("float32")
    problem = pisco_fl.Problem(lambda x, a, key: (a @ x - 1) ** 2, np.zeros(3, "float32"), data, name="tiny")
    began, cuts = [], []

    def stage(words, rounds):
        began.append(words)
        if cuts and len(began) == cuts[-1]:
            cuts.clear()
            raise KeyboardInterrupt
        return quiet(words, rounds)

    def found(folder, at_once):
        rule, net = partial(pisco_fl.algorithms.pisco, local_steps=1), pisco_fl.Network.ring(4)
        seeds = {"seeds": (0, 1), "tuning_seeds": (100, 101), "grid": (0.05, 0.01, 0.1), "rounds": 5}
        how = {"targets": {"grad_norm_sq_mean": 1.0}, "work": Work(stage, folder), "at_once": at_once} | seeds
        made = study("tiny", rule, {"0": 0.0, "1": 1.0}, problem, net, **how)
        return made.trials, [cell.result.history["loss"].tolist() for cell in [*made.tuned, *made.common]]

    whole = found(None, None)
    began.clear()
    cuts.append(2)
    with pytest.raises(KeyboardInterrupt):
        found(tmp_path, 4)  # six cells of two seeds each: pieces of two cells
    (claimed,) = (each for each in tmp_path.rglob("piece-*") if not (each / "whole").exists())
    monkeypatch.setattr("pisco.experiments.paper.pieces.POLL", 0.01)
    with (claimed / "claim").open() as other, ThreadPoolExecutor(1) as pool:
        fcntl.flock(other, fcntl.LOCK_EX)
        ahead = pool.submit(found, tmp_path, 4)
        while len(began) < 3:
            time.sleep(0.01)
        assert not ahead.done() and len(list(tmp_path.rglob("whole"))) <= 2
        fcntl.flock(other, fcntl.LOCK_UN)
        assert ahead.result() == whole
    tuned = len({(label, each.local_lr) for label, each in whole[0].items()} | {("1", whole[0]["0"].local_lr)})
    assert len(began) == 1 + 3 + math.ceil(tuned / 2)  # the one that was cut, each piece once, what was picked
    assert found(tmp_path, 4) == whole and len(began) == 4 + math.ceil(tuned / 2)


def test_finished_figures_are_kept_and_ctrl_c_is_no_result(tmp_path, monkeypatch):
    computed = []
    figure = FIGURES["table-communication"]

    def compute(quick, work):
        computed.append(quick)
        return figure.compute(quick, work)

    some = {figure.name: figure._replace(compute=compute)}
    monkeypatch.setattr("pisco.experiments.paper.figures.FIGURES", some)
    words = ("reproduce", figure.name, "--out", str(tmp_path))
    first, second = pisco(*words, "--quick"), pisco(*words, "--quick")
    assert computed == [True] and "kept from before" in second.stdout
    assert first.stdout.replace("written", "") == second.stdout.replace("kept from before", "")
    pisco(*words)
    assert computed == [True, False], "quick is not the whole"
    with monkeypatch.context() as other:
        other.setattr("pisco.experiments.paper.figure.code", lambda: "another grid")
        pisco(*words)
    assert computed == [True, False, False], "what other code made is made anew"

    def interrupt(quick, work):
        raise KeyboardInterrupt

    some[figure.name] = figure._replace(compute=interrupt)
    cut = pisco("reproduce", figure.name, "--out", str(tmp_path / "other"))
    assert cut.exit_code == 130 and "type the command again" in cut.stderr
    stopped = made_up([[1.0, 1.0]])
    stopped.asked_to_stop = True
    with pytest.raises(KeyboardInterrupt):
        uncut([stopped])


# --------------------------------------------------------------------------------------- verdicts


def made_up(curves):
    """A result whose seeds have these running means, and only they."""
    means = np.array(curves, float)
    rounds = np.broadcast_to(np.arange(means.shape[1]), means.shape)
    history = {"round": rounds, "gossip_rounds": rounds, "server_rounds": 0 * rounds, TRAINING: means}
    return Result(None, history, tuple(range(len(means))), {})


def cell(*meets, label="1"):
    """A cell of 20 seeds over 100 rounds that meet the target in these rounds; None never."""
    rounds = np.arange(101)
    return Cell(label, 0.1, 0.1, made_up([np.where(rounds >= (at or 999), 0.01, 1.0) for at in (meets * 20)[:20]]))


def test_seeds_that_miss_are_censored_not_counted_with_all_their_rounds():
    mostly = cell(10, 10, 10, 10, None, label="0.1")
    found = mostly.to_target(TRAINING, 0.05)
    assert found.median.value == 10 and found.missed.sum() == 4 and np.mean(found.values) == 28
    few = _like_every_round("", mostly, cell(8), TRAINING, 0.05)
    assert few.measured.startswith("1.25") and few.outcome == HOLDS and few.seeds == 20
    assert "4 of 20 at p = 0.1" in few.why
    never = _like_every_round("", cell(None), cell(8), TRAINING, 0.05)
    assert never.measured == "more than 12.5" and never.outcome == "does not hold"


def test_a_capped_bar_is_drawn_as_capped_and_bars_have_intervals():
    bars = _bars([cell(None), cell(20, 30, 40)], TRAINING, 0.05)
    assert list(bars.capped) == [True, False] and np.sum(list(bars.parts.values()), axis=0).tolist() == [100, 30]
    low, high = bars.errors()
    assert low[0] == high[0] == 0 and low[1] > 0 and high[1] > 0
    figure = draw([[Panel("", bars=bars)]])
    (ax,) = figure.axes
    assert [bar.get_hatch() for bar in ax.containers[0]] == ["///", ""]
    assert any(line.get_marker() == "^" for line in ax.lines), "an arrow stands on it"
    assert any(isinstance(each, ErrorbarContainer) for each in ax.containers)


def test_fewer_than_twenty_seeds_judge_nothing():
    for seeds, quick in ((3, False), (20, True)):
        told = Verdict("c", "s", "3", HOLDS, seeds=seeds).at_this_size(quick)
        assert told.outcome == NOT_TESTED and told.measured == f"coarsely, {seeds} seeds: 3"
    assert Verdict("c", "s", "3", HOLDS, seeds=ENOUGH).at_this_size(quick=False).outcome == HOLDS
    assert Verdict("a formula", "s", "3", HOLDS).at_this_size(quick=True).outcome == HOLDS


@pytest.mark.slow
def test_studies_say_what_the_worst_agent_reaches(monkeypatch):
    problem = mlp(load("digits", test=0.2), agents=5, partition="by_label", hidden=4)
    monkeypatch.setattr(cifar, "_problem", lambda quick: problem)
    found = cifar.compute(quick=True)
    cell, watched = found.common[1], problem.with_metrics(*each_agent(problem.columns[ACCURACY]))
    network = Network.ring(5, weights="fdla", server=bernoulli(cell.server_prob))
    result = run(cifar.RULE(local_lr=cell.local_lr), watched, network, rounds=2, batch_size=20, seed=(0,), eval_every=2)
    for column in (WORST, SPREAD):
        np.testing.assert_allclose(cell.final(column).values, result.final(column), atol=1e-6)
    shown = cifar.present(found)
    assert "; worst agents " in shown.verdicts[0].measured and "tuned for every p" in shown.verdicts[-1].claim
    assert [bool(row[f"{WORST} median"]) for row in shown.records[:2]] == [False, True], "at the end only"


def test_the_speed_up_is_measured_in_every_round():
    """Its means leave out the first rounds by their number, and are NaN where rows are fewer."""
    assert np.isfinite(noise_floor(4, 1, 60, (0,), None)).all()
    assert np.isfinite(mean_gradient((0,), None, n=4, K=60)).all()


def test_complexities_at_the_ends():
    setup = Setup(10, 5, 0.3)
    assert complexities(setup, 0.0)["pisco"][0] == 0
    assert complexities(setup, 1.0)["pisco"][1] == 0
    n, steps, e = 10, 5, setup.epsilon
    expected = 1 / (n * steps * e**4) + 1 / (0.3**2 * e**3) + 1 / (n * e**2)
    assert np.isclose(complexities(setup, 0.0)["pisco"][1], expected)


def test_computing_and_planning_need_jax_and_numpy_alone():
    program = (
        "import sys, pisco.planning\n"
        "from pisco.experiments.paper import figures\n"
        "heavy = ('matplotlib', 'plotly', 'pydantic', 'rich', 'typer', 'cvxpy', 'networkx')\n"
        "print([m for m in heavy if m in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=900)
    assert done.stdout.strip() == "[]", done.stdout + done.stderr


def test_committed_results_are_small_and_of_these_figures():
    folder = Path(__file__).parents[1] / "docs" / "reproduction"
    if not folder.is_dir():
        pytest.skip("only a checkout has the documentation")
    for path in folder.iterdir():
        assert path.stat().st_size <= 200_000, path.name
    for name in FIGURES:
        for ending in (".csv", "-settings.json", "-verdicts.json"):
            assert (folder / f"{name}{ending}").is_file()
        assert f"pisco reproduce {name}" in (folder / "index.md").read_text()


@pytest.fixture
def page():
    """The documented results: the folder, and the lines of its page."""
    folder = Path(__file__).parents[1] / "docs" / "reproduction"
    if not folder.is_dir():
        pytest.skip("only a checkout has the documentation")
    return folder, (folder / "index.md").read_text().splitlines()


def test_verdicts_of_the_page_are_those_of_its_files(page):
    """Every row that starts with an outcome, the paper's form unnamed; and of each study with one form all of them."""
    folder, lines = page
    told, known = {line for line in lines if line.startswith(("| holds", "| does not hold", "| open"))}, set()
    for name in FIGURES:
        rows = {
            f"| {v['outcome']} | {v['claim'].replace(PAPERS_FORM + '; ', '')} | {v['measured']} | {v['why']} |"
            for v in json.loads((folder / f"{name}-verdicts.json").read_text())
        }
        assert rows <= told or name in ("iter-p", "different-p", "table-semi-ml"), (name, rows - told)
        known |= rows
    assert told <= known, told - known


def test_what_agents_reach_on_the_page_is_what_the_files_have(page):
    """x̄, the worst agent and the spread of CIFAR-10 and MNIST at the end, in per cent."""
    folder, lines = page
    ends = {"cnn": "1200", "different-topology": "600"}
    checked = 0
    for name, last in ends.items():
        with (folder / f"{name}.csv").open() as file:
            rows = [row for row in csv.DictReader(file) if row["round"] == last and row["protocol"] == "tuned"]
        for row in rows:
            if row["p"] == "1":
                continue
            found = [100 * float(row[f"{column} median"]) for column in (ACCURACY, WORST, SPREAD)]
            shown = [line.split(" | ") for line in lines if f"| {row['p']} | {row['local_lr']} | " in line]
            told = [[float(each.strip(" |")) for each in line[-3:]] for line in shown if len(line) == 6]
            assert any(np.allclose(each, found, atol=0.051) for each in told), (name, row["p"], found)
            checked += 1
    assert checked == 9


def test_the_demo_takes_the_steps_that_the_rule_picks(page):
    """One rule and one grid everywhere: those of `iter-p`."""
    folder, _ = page
    (papers,) = (
        each
        for name, each in json.loads((folder / "iter-p-settings.json").read_text())["settings"].items()
        if PAPERS_FORM in name
    )
    assert {point.label: point.local_lr for point in demo.POINTS}.items() <= papers["tuned local_lr"].items()
    assert set(papers["grid"]) == set(tune.GRID) and tuple(papers["tuning_seeds"]) == tune.TUNING_SEEDS
