"""The benchmark: cells are files that can be had again to the bit, refusals are recorded, and views agree with them."""

import functools
import json
import re
from pathlib import Path

import numpy as np
import pytest
from matplotlib.image import imread
from typer.testing import CliRunner

import pisco
from pisco.algorithms.registry import ALGORITHMS
from pisco.cli.main import app
from pisco.data.shakespeare import speeches
from pisco.errors import InputError
from pisco.experiments.bench import learned, map, scores, store
from pisco.experiments.bench.page import write_page
from pisco.experiments.bench.runner import CELLS, run_suite
from pisco.experiments.bench.suite import load, parse_part, suites
from pisco.experiments.bench.tasks import graph_of, least_squares, problem_of, reduced, variants

TINY = """
methods = ["pisco", "dsgt", "fedavg"]
server_probs = [0.0, 0.5]
gradient_steps = 2
seeds = 3
tuning_seeds = 1
grid = [0.05, 0.4]

[tasks.small]
problem = "least-squares"
options = { features = 3, samples = 5, condition = 3.0, spread = 0.5 }
target = { gap = 0.2 }
rounds = 24

[networks.ring-4]
graph = "ring"
agents = 4

[networks.split-4]
graph = "clusters"
agents = 4
clusters = 2
"""
OWN = """
from pisco.types import Pair, algorithm

@algorithm
def own(*, local_lr: float):
    "Descent without talking to anybody, then one exchange."
    def init(params, key, grad, mix):
        return State(params)
    def one_round(state, key, grad, mix):
        import jax
        return State(mix(jax.tree.map(lambda x, g: x - local_lr * g, state.params, grad(state.params, key))))
    return Pair(init, one_round)

from typing import Any, NamedTuple
class State(NamedTuple):
    params: Any
"""


@pytest.fixture(scope="module")
def measured(tmp_path_factory):
    """A tiny suite, and the folder where it was measured."""
    folder = tmp_path_factory.mktemp("bench")
    (folder / "tiny.toml").write_text(TINY)
    done = run_suite(load(folder / "tiny.toml"), folder)
    assert len(done.measured) == 5 and list(done.refused) == ["small/split-4/dsgt"] and not done.skipped
    return folder


def texts(folder):
    return {path.name: path.read_bytes() for path in sorted((folder / CELLS).glob("*.json"))}


def test_a_second_run_gives_the_same_bits_and_only_what_is_missing(measured, tmp_path):
    suite = load(measured / "tiny.toml")
    again = run_suite(suite, tmp_path, part=(1, 3))
    again.measured.extend(run_suite(suite, tmp_path, only="*/*/dsgt,*/*/fedavg").measured)  # the other parts
    assert texts(tmp_path) == texts(measured) and len(again.measured) == 5
    (tmp_path / CELLS / "small--ring-4--dsgt.json").write_text("{")  # as a kill would not leave it
    done = run_suite(suite, tmp_path)
    assert done.measured == ["small/ring-4/dsgt"] and len(done.kept) == 5
    assert texts(tmp_path) == texts(measured)
    (tmp_path / "other.toml").write_text(TINY.replace("rounds = 24", "rounds = 23"))
    assert not run_suite(load(tmp_path / "other.toml"), tmp_path, only="*/split-4/dsgt").kept


MINE = """
import numpy as np, jax.numpy as jnp, pisco

def points():
    features = np.eye(8, 2, dtype=np.float32)
    return pisco.data.Dataset("points", features, np.arange(8) % 2)

def pulled(*, agents: int):
    return pisco.problems.quadratic(np.ones((agents, 1, 1)), np.arange(float(agents))[:, None])
"""


def test_files_beside_the_suite_are_found_from_anywhere_and_count_with_what_they_hold(tmp_path, monkeypatch):
    work = tmp_path / "work"
    work.mkdir()
    (work / "mine.py").write_text(MINE)
    (work / "links.edgelist").write_text("0 1\n1 2\n2 3\n")
    text = TINY.replace('"least-squares"', '"mine.py:pulled"').replace("options = ", "# ").replace("gap", "loss")
    (work / "own.toml").write_text(text.replace('graph = "ring"\nagents = 4', 'graph = "links.edgelist"'))
    monkeypatch.chdir(tmp_path)
    run = {"folder": tmp_path, "only": "small/ring-4/dsgt"}
    assert run_suite(load("work/own.toml"), **run).measured == ["small/ring-4/dsgt"]
    there = work.rename(tmp_path / "elsewhere")  # cells travel
    assert run_suite(load(there / "own.toml"), **run).kept == ["small/ring-4/dsgt"]
    (there / "links.edgelist").write_text("0 1\n1 2\n2 3\n3 0\n")
    assert run_suite(load(there / "own.toml"), **run).measured == ["small/ring-4/dsgt"]
    (there / "mine.py").write_text(MINE.replace("np.ones", "2 * np.ones"))
    assert run_suite(load(there / "own.toml"), **run).measured == ["small/ring-4/dsgt"]


def test_a_method_keeps_what_it_says_about_the_server():
    suite = load("full")
    for method, sampled, silent in (("sampled-to-sampled", True, False), ("proxskip", False, True)):
        (place,) = suite.places(f"least-squares/ring-10/{method}")
        found, _ = variants(place, graph_of(place.table), least_squares(agents=10))
        assert found and all(world.network.to_sampled == sampled for world in found)
        assert all((world.network.gossip_steps == 0) == silent for world in found)


def test_refusals_are_cells_with_their_sentence(measured):
    cell = json.loads((measured / CELLS / "small--split-4--dsgt.json").read_text())
    assert not cell["entries"] and "2 components and the server is never reached" in cell["refused"][0]
    coin = json.loads((measured / CELLS / "small--split-4--pisco.json").read_text())
    assert [entry["server_prob"] for entry in coin["entries"]] == [0.5] and len(coin["refused"]) == 1


def test_what_a_cell_holds_is_what_a_run_sends(measured):
    (score,) = (s for s in scores.by_setting(store.read(measured))["small", "ring-4"] if s.server_prob == 0.5)
    task = load(measured / "tiny.toml").tasks["small"]
    network = pisco.Network.ring(4, server=pisco.bernoulli(0.5))
    rule = pisco.algorithms.pisco(local_lr=score.local_lr, local_steps=1)  # two gradients a round
    result = pisco.run(rule, problem_of(task, 4), network, rounds=24, seed=range(3), eval_every=1, clock="campus")
    assert not score.missed.all()
    for name, values in score.spent.items():
        there = result.at_target("gap", name, bound=0.2)
        assert np.allclose(values[~score.missed], there[~np.isnan(there)], rtol=1e-3 if name == "seconds" else 0), name


def test_a_method_that_watches_the_loss_has_its_seconds_by_hand(tmp_path):
    """Gossip-AGA's server rounds follow from losses, so they are the run's; the maxima over them are done by hand."""
    work = [1.0, 2.0, 4.0, 16.0]
    clock = f"clock = {{ compute = {work}, latency_gossip = 0.5, latency_server = 3.0 }}"
    (tmp_path / "s.toml").write_text(clock + TINY.replace("rounds = 24", "rounds = 24\neval_every = 2"))
    suite = load(tmp_path / "s.toml").with_methods(["gossip-aga"])
    run_suite(suite, tmp_path, only="*/ring-4/*")
    (score,) = scores.by_setting(store.read(tmp_path))["small", "ring-4"]
    network = pisco.Network.ring(4, server=pisco.adaptive(4))
    rule = pisco.algorithms.dsgd(local_lr=score.local_lr)
    seen = pisco.run(rule, problem_of(suite.tasks["small"], 4), network, rounds=24, seed=range(3), eval_every=1)
    counts = seen.history["server_rounds"]
    assert len(set(np.diff(np.flatnonzero(np.diff(counts[0]))))) > 1, "the period has to change"
    for seed, end in enumerate(score.spent["round"].astype(int)):
        times = np.zeros(4)
        for reached in np.diff(counts[seed])[:end]:
            times = times + work
            heard = np.maximum(np.roll(times, 1), np.roll(times, -1)) + 0.5
            times = np.full(4, times.max() + 6.0) if reached else np.maximum(times, heard)
        assert score.spent["seconds"][seed] == pytest.approx(times.max(), rel=1e-3)


def test_parts_share_the_cells_and_keep_networks_together():
    suite = load("quick")
    parts = [suite.places(part=(k, 4)) for k in (1, 2, 3, 4)]
    names = [place.name for part in parts for place in part]
    assert sorted(names) == sorted(place.name for place in suite.places()) and len(set(names)) == len(names)
    groups = [{(place.task.name, place.method) for place in part} for part in parts]
    assert all(not a & b for i, a in enumerate(groups) for b in groups[:i])
    ordered = [place.name for place in suite.places("*/split-10/dsgt,a9a/ring-10/pisco")]
    assert ordered[-1] == "a9a/ring-10/pisco" and len(ordered) == 3


def test_the_suites_name_every_method_and_a_task_without_data_is_skipped(tmp_path, monkeypatch):
    assert set(suites()) == {"quick", "full"}
    for name in suites():
        assert set(load(name).methods) == set(ALGORITHMS)
    full = load("full")
    assert len(full.tasks) >= 6 and len(full.networks) >= 9
    monkeypatch.setenv("PISCO_DATA", str(tmp_path))
    monkeypatch.setattr("pisco.data.shakespeare.find", lambda *names: None)
    speeches.cache_clear()  # another test may have read them
    done = run_suite(full, tmp_path, only="shakespeare/ring-10/*")
    assert "shakespeare is not on this machine" in done.skipped["shakespeare"] and not done.measured


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        (("seeds = 3", "seeds = 0"), "seeds is 0, expected a number at least 1"),
        (("grid = [0.05, 0.4]", "grid = [0.05, 0.05]"), "expected a list of different numbers"),
        (("rounds = 24", "rouns = 24"), "did you mean 'rounds'?"),
        (('"dsgt"', '"dsgtt"'), "did you mean 'dsgt'"),
        (("gap = 0.2", "gap = 0.2, loss = 2"), "expected one column and its bound"),
        (("[networks.ring-4]", "[networks]\nx = 1\n[networks.ring-4]"), "lacks the tables [networks.…]"),
        (("seeds = 3", "clock = 'camps'\nseeds = 3"), "unknown clock 'camps'; did you mean 'campus'?"),
        (("seeds = 3", "clock = { compute = [1, 2] }\nseeds = 3"), "compute has 2 numbers, expected one"),
        (('graph = "ring"', 'graph = "rnig"'), "networks.ring-4: unknown graph 'rnig'; did you mean 'ring'?"),
        (('"least-squares"', '"logstic"'), "tasks.small: unknown problem 'logstic'; did you mean 'logistic'?"),
        (("gap = 0.2", "gapp = 0.2"), "tasks.small: unknown target 'gapp'; did you mean 'gap'?"),
    ],
)
def test_mistakes_in_a_suite_are_one_sentence(tmp_path, change, sentence):
    (tmp_path / "s.toml").write_text(TINY.replace(*change))
    with pytest.raises(InputError, match=re.escape(sentence)):
        run_suite(load(tmp_path / "s.toml"), tmp_path, only="small/ring-4/fedavg")


def test_parts_and_patterns_that_are_none(tmp_path):
    for text in ("0/4", "5/4", "x", "1"):
        with pytest.raises(InputError, match="as in 1/4"):
            parse_part(text)
    with pytest.raises(InputError, match="no cell of quick is named 'nothing'"):
        load("quick").places("nothing")
    with pytest.raises(InputError, match="holds no cells"):
        store.read(tmp_path)


def test_your_own_method_is_one_file_and_one_command_and_its_row_appears(measured, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("pisco.cli.bench.use_compilation_cache", lambda: None)
    Path("my.py").write_text(OWN)
    for path in (measured / CELLS).iterdir():
        (tmp_path / "mine" / CELLS).mkdir(parents=True, exist_ok=True)
        (tmp_path / "mine" / CELLS / path.name).write_bytes(path.read_bytes())
    command = ["bench", str(measured / "tiny.toml"), "--methods", "my.py:own", "--only", "*/ring-4/*", "--out", "mine"]
    done = CliRunner().invoke(app, command)
    assert done.exit_code == 0 and done.stdout.startswith("1 measured, 0 kept from before"), done.output
    shown = json.loads(CliRunner().invoke(app, ["bench", "show", "mine", "--json"]).stdout)
    row = next(row for row in shown["leaderboard"] if row["method"] == "my.py:own")
    assert row["ran"] == 1 and row["reached"] == 1
    names = {each["method"] for each in shown["cells"] if each["network"] == "ring-4"}
    assert names == {"my.py:own", "pisco", "dsgt", "fedavg"}
    Path("my.py").write_text(OWN.replace("local_lr * g", "2 * local_lr * g"))
    again = CliRunner().invoke(app, command)
    assert again.stdout.startswith("1 measured"), "another text is another method"


def test_what_cannot_be_measured_or_shown_says_why(measured, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("pisco.cli.bench.use_compilation_cache", lambda: None)
    suite = str(measured / "tiny.toml")
    Path("my.py").write_text(OWN.replace("local_lr", "rate"))
    refused = CliRunner().invoke(app, ["bench", suite, "--only", "*/split-4/dsgt", "--out", "apart"])
    why = "2 components and the server is never reached"
    assert refused.exit_code == 0 and re.search(f"refused small/split-4/dsgt: .*{why}", refused.stderr)
    for line, sentence in {
        f"{suite} --methods my.py:own --out mine": "algorithm 'my.py:own' has no `local_lr` to tune",
        "show apart": "every cell there was refused: 4 agents in 2 clusters has " + why,
        f"show {measured} --ratio inf": "--ratio is inf, expected a finite number at least 0",
        "show my.py": "my.py is no file of `pisco bench pack`",
        f"check {measured} --methods pisco,dsgt": "cells of one network alone propose nothing for another",
        f"page {measured} -o page.txt": "give it a name that ends in .html",
    }.items():
        done = CliRunner().invoke(app, ["bench", *line.split()])
        assert done.exit_code == 2 and sentence in done.stderr, done.output


def test_a_table_of_all_that_was_spent(measured, tmp_path):
    shown = CliRunner().invoke(app, ["bench", "show", str(measured), "--json", "-o", str(tmp_path / "t.csv")])
    row = next(row for row in json.loads(shown.stdout)["cells"] if row["network"] == "ring-4")
    for name in ("bytes_server", "bytes_gossip", "messages_server", "messages_gossip", "gradients"):
        assert row[name]["low"] <= row[name]["value"] <= row[name]["high"]
        assert f",{name}" in (tmp_path / "t.csv").read_text().splitlines()[0]


def test_packing_loses_nothing_and_says_less(measured, tmp_path):
    cells = store.read(measured)
    store.write_packed(cells, tmp_path / "cells.json")
    back = store.unpack(json.loads((tmp_path / "cells.json").read_text()))
    before, after = scores.by_setting(cells), scores.by_setting(back)
    assert before.keys() == after.keys()
    for at, some in before.items():
        for ratio in (0.1, 10.0):
            assert [s.price(ratio) for s in some] == [s.price(ratio) for s in after[at]]
    assert (tmp_path / "cells.json").stat().st_size < sum(len(text) for text in texts(measured).values())
    assert store.read(tmp_path / "cells.json") == back


def test_least_squares_knows_its_optimum():
    problem = least_squares(agents=3, samples=6, features=4, condition=2.0)
    network = pisco.Network.complete(3)
    result = pisco.run(
        pisco.algorithms.dsgt(local_lr=0.5), problem, network, rounds=400, eval_every=400, chunk_rounds=400
    )
    assert result.history["gap"][0] == pytest.approx(1, rel=1e-5) and result.history["gap"][-1] < 1e-6
    assert result.history["grad_norm_sq"][-1] < 1e-6


def test_reduced_data_keeps_labels_that_can_be_learnt():
    labels = np.arange(40) % 10
    data = pisco.data.Dataset("t", np.zeros((40, 4, 4)), labels, np.zeros((20, 4, 4)), labels[:20], groups=labels)
    few = reduced(data, 8, pixels=2)
    assert few.features.shape == (8, 2, 2) and len(few.groups) == 8
    assert set(few.test_labels) <= set(few.labels)


# ------------------------------------------------------------------------------- what comes with the package


@pytest.fixture(scope="module")
def ours():
    return scores.whole(scores.by_setting(store.bundled()))


LATER = ()
"""Methods that came after the bundled cells."""
FEW = ("pisco", "pisco-compressed", "proxskip", "led", "exact-diffusion")


def test_bundled_cells_are_compact_and_of_the_suite(ours):
    assert store.MEASURED.stat().st_size < 380 * len(store.bundled())
    full = load("full")
    rows = {}
    for cell in store.bundled():
        rows.setdefault((cell["task"], cell["network"]), set()).add(cell["method"])
    from pisco.experiments.bench.cells import setting_key

    keys = {(place.task.name, place.network): setting_key(place) for place in full.places("*/*/dsgd")}
    for at, methods in rows.items():
        assert methods <= set(ALGORITHMS) and {"proxskip", "led", "exact-diffusion"} <= methods, at
        assert at not in ours or set(ALGORITHMS) - methods <= set(LATER), at
        assert {cell["setting"] for cell in store.bundled() if (cell["task"], cell["network"]) == at} == {keys[at]}
    assert set(rows) == set(keys) and len(ours) >= 33


@pytest.mark.slow
def test_a_few_methods_are_compared_by_themselves(monkeypatch):
    """Where few methods were measured, the map leaves a network out, and `--methods` compares those that were."""
    scarce = [cell for cell in store.bundled() if cell["task"] != "a9a" or cell["method"] in FEW]
    scarce = [cell for cell in scarce if cell["network"] == "ring-10"]
    monkeypatch.setattr(store, "bundled", lambda: scarce)
    every = scores.by_setting(scarce)
    most, some = scores.whole(every), scores.few(every, FEW)
    assert ("a9a", "ring-10") in set(some) - set(most) and ("least-squares", "ring-10") in most
    assert {score.method for each in some.values() for score in each} == set(FEW)
    done = CliRunner().invoke(app, ["bench", "map"])
    assert done.exit_code == 0 and "are left out: fewer than two fifths" in done.stderr
    done = CliRunner().invoke(app, ["bench", "map", "--methods", ",".join(FEW), "--json"])
    assert ("a9a", "ring-10") in {(square["task"], square["network"]) for square in json.loads(done.stdout)["squares"]}
    done = CliRunner().invoke(app, ["bench", "map", "--methods", "pisco"])
    assert done.exit_code == 2 and "no two of pisco were measured" in done.stderr


def test_a_cheap_server_wins_where_it_is_free_and_none_where_it_is_dear(ours):
    squares = scores.chart(ours, (1e-4, 1e4))
    for at, (cheap, dear) in squares.items():
        assert cheap.first.score.kind != scores.GOSSIP, at
        if ours[at][0].cell["mixing_rate"] > 0.05:
            assert dear.first.score.kind != scores.SERVER, at
        if "split" in at[1]:
            assert dear.first.score.spent["messages_server"].any()


def test_the_map_is_a_picture_and_words(ours, tmp_path):
    some = {at: ours[at] for at in list(ours)[:2]}
    path = map.write_map(some, tmp_path / "map.png", (1.0, 100.0))
    height, width = imread(path).shape[:2]
    assert width >= 1400 and height >= 100 * len(some)  # so that the words in the squares can be read
    told = map.sentences(some, (1.0, 100.0))
    assert told[0].startswith("4 squares") and any(word.startswith("what the cheapest method uses") for word in told)
    firsts = [square for each in scores.chart(some, (1.0, 100.0)).values() for square in each]
    until = [max([s.ratio for s in firsts if s.setting == at and s.first.score.kind == scores.SERVER]) for at in some]
    assert until == [1.0, 1.0]  # complete-10 and random-10 of least squares
    assert told[-1].endswith("up to a price of 1 on 2 of the 2 tasks and networks that are connected")
    squares = scores.chart(some, (1.0, 100.0))
    words = map.stretches(next(iter(squares.values())))
    assert "at every price" in words or "from 100 on" in words


def test_theory_is_compared_on_what_was_measured(ours):
    found = map.predictions(ours)
    assert all(each.loss >= 1 for each in found) and len(found) > 50
    quick = {at for at, some in ours.items() if some[0].cell["agents"] == 10 and some[0].cell["mixing_rate"] > 0}
    dear = [each for each in found if each.ratio == 1000 and each.setting in quick]
    assert {each.theory for each in dear} == {0.0}


def test_proposals_on_cells_that_were_left_out(ours):
    found = learned.leave_one_out(ours, (0.1, 10.0))
    assert found.first.min() >= 1 and found.new_piloted.min() >= 1
    assert np.median(found.piloted) <= 1.15 and np.median(found.new_piloted) <= 1.15
    assert np.mean(found.new_piloted <= 1.15) > np.mean(found.new_first <= 1.15) + 0.2  # that is what pilots are for


def test_a_list_complements_itself_and_knows_what_the_server_costs(ours):
    place = learned.Spot(0.24, 10, 10)
    cheap, dear = (learned.shortlist(place, ratio) for ratio in (0.1, 1000.0))
    assert len(set(cheap)) == len(set(dear)) == 5 and set(cheap) <= set(ALGORITHMS)
    assert "proxskip" in cheap and "proxskip" not in dear
    # Twice the links at half the price: a round costs as much, so the same cells speak.
    assert learned.Spot(0.24, 10, 20).ratio_at(place, 10.0) == 5.0
    half = learned.rank(learned.tables_of({at: ours[at] for at in list(ours)[:3]}), place, 10.0, count=2)
    assert half.first[0] == half.methods[0] and len(set(half.methods)) == 2


def test_plan_takes_all_methods(monkeypatch):
    seen = {}

    def stop(config, **given):
        seen.update(given)
        raise InputError("enough")

    monkeypatch.setattr("pisco.experiments.planned.plan_config", stop)
    monkeypatch.setattr("pisco.cli.plan.use_compilation_cache", lambda: None)
    done = CliRunner().invoke(app, ["plan", "quick", "--algorithms", "all"])
    assert done.exit_code == 2 and "enough" in done.stderr
    assert len(seen["methods"]) == 5 and "measured cells" in done.stderr
    # Where only some report, only what can run so is proposed; clusters let in what is published on them.
    sampled = ["--set", "network.graph=clusters", "--set", "network.clusters=2", "--set", "network.reporters=2"]
    CliRunner().invoke(app, ["plan", "quick", "--algorithms", "all", *sampled])
    assert seen["methods"] and not {"pisco", "pisco-vr", "dsgt", "kgt"} & set(seen["methods"])
    graph = pisco.networks.graphs.clusters(2, 5)
    assert learned.fits("hl-sgd", graph) and not learned.fits("hl-sgd") and learned.fits("gossip-pga")


def test_methods_that_cost_the_same_share_the_first_place(ours):
    """LED and exact diffusion take 19 rounds each; counting the first by name alone would favour names."""
    ring = {at: some for at, some in ours.items() if at == ("a9a", "ring-10")}
    first = {row["method"]: row["cheapest"] for row in map.leaderboard(ring, 10.0) if row["cheapest"]}
    assert first == {"exact-diffusion": 1, "led": 1}
    assert "in 1 both cost the same" in map.sentences(ring, ratios=(10.0,))[0]


@pytest.mark.parametrize("currency", ["bytes", pytest.param("messages", marks=pytest.mark.slow)])
def test_the_page_of_the_docs_says_what_the_commands_print(ours, monkeypatch, currency):
    drawn = functools.cache(lambda ratios, currency: scores.chart(ours, ratios, currency))  # seconds each
    monkeypatch.setattr(map, "chart", lambda _, *given: drawn(*given))
    page = Path(__file__).parent.parent / "docs" / "benchmark.md"
    if not page.is_file():
        pytest.skip("the documentation is not here")
    text = page.read_text()
    for row in map.leaderboard(ours, 10.0)[:8]:
        line = f"| `{row['method']}` | {row['cheapest']} | {row['reached']} of {row['ran']} |"
        assert line in text, line
    for sentence in [*map.sentences(ours, currency=currency), *map.theory_sentences(ours)]:
        assert f"- {sentence}" in text, sentence
    for (task, network), squares in drawn(scores.RATIOS, "bytes").items() if currency == "bytes" else ():
        assert f"| {task} | {network} |" in text and map.stretches(squares) in text


def test_the_page_to_explore_is_that_of_todays_cells(tmp_path):
    page = Path(__file__).parent.parent / "docs" / "benchmark" / "explore.html"
    if not page.is_file():
        pytest.skip("the documentation is not here")
    written = write_page(store.bundled(), tmp_path / "bench.html").read_text()
    assert page.read_text() == written, "write it again: python tools/benchmark_page.py"
