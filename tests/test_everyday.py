"""Small comforts: progress, how things look in a notebook, the tab key, and the demo's report."""

import io
import sys
import types

import numpy as np
import pytest
from typer.testing import CliRunner

import pisco
from pisco.cli.main import app
from pisco.engines import progress
from pisco.errors import InputError

WORLD = pisco.problems.quadratic(np.ones((4, 1, 1)), np.arange(4.0)[:, None])
RULE, RING = pisco.algorithms.dsgd(local_lr=0.1), pisco.Network.ring(4)


def run(**options):
    return pisco.run(RULE, WORLD, RING, rounds=20, chunk_rounds=1, **options)


class Terminal(io.StringIO):
    encoding = "utf-8"

    def isatty(self):
        return True


def test_progress_is_a_few_lines_in_a_file(capsys):
    run(progress=True)
    told = capsys.readouterr()
    lines = told.err.splitlines()
    assert len(lines) == 10 and lines[-1].startswith("quadratic: round 20 of 20, loss 0.6") and not told.out


def test_progress_is_a_bar_in_a_terminal(monkeypatch):
    monkeypatch.setattr(sys, "stderr", Terminal())
    monkeypatch.delitem(sys.modules, "ipykernel", raising=False)
    run(progress=True)
    assert "quadratic" in sys.stderr.getvalue() and "20/20" in sys.stderr.getvalue()
    monkeypatch.setattr(progress, "find_spec", lambda name: None)  # not installed
    monkeypatch.setattr(sys, "stderr", Terminal())
    run(progress=True)
    assert sys.stderr.getvalue().count("\n") == 10


def test_progress_says_of_which_round_its_numbers_are(capsys):
    error = pisco.Metric("error", lambda params, batch: abs(batch["minimizer"][:, 0] - params[0]), rising=False)
    test = {"minimizer": np.ones((2, 1), np.float32)}
    world = pisco.Problem(WORLD.loss, WORLD.start, [WORLD.data] * 4, test=test, metrics=[error])
    pisco.run(RULE, world, RING, rounds=20, eval_every=10, chunk_rounds=5, progress=True)
    told = [line.partition(", ")[2] for line in capsys.readouterr().err.splitlines()]
    assert [line.endswith(at) for line, at in zip(told, ("(round 0)", "", "(round 10)", ""), strict=True)]
    assert all("error 0." in line or "error 1" in line for line in told) and "(" not in told[1] + told[3]


def test_progress_is_one_line_in_a_notebook(capsys, monkeypatch):
    monkeypatch.setitem(sys.modules, "ipykernel", types.ModuleType("ipykernel"))
    pisco.sweep([(RULE, pisco.never())], WORLD, RING, rounds=20, chunk_rounds=5, eval_every=1, progress=True)
    told = capsys.readouterr()
    assert told.out.count("\r") == 4 and told.out.count("\n") == 1 and not told.err


def test_progress_may_be_nothing_or_a_function_of_ones_own(capsys):
    for nothing in (None, False):
        run(progress=nothing)
    seen = []
    run(progress=lambda news: seen.append(news.done))
    assert seen == list(range(1, 21)) and capsys.readouterr() == ("", "")
    with pytest.raises(InputError, match="progress is 'yes', expected True, False or a function"):
        run(progress="yes")


def test_notebooks_show_small_tables_in_which_text_stays_text():
    evil = "<script>alert(1)</script>"
    problem = pisco.Problem(
        WORLD.loss, WORLD.start, [{"hessian": np.ones((1, 1, 1)), "minimizer": np.ones((1, 1))}], name=evil
    )
    network = pisco.Network(pisco.networks.graphs.Graph(1, [], evil))
    result = pisco.run(RULE, problem, network, rounds=2)
    for thing in (problem, network, result):
        shown = thing._repr_html_()
        assert shown.startswith("<table>") and "<script>" not in shown and "&lt;script&gt;" in shown
        assert "http" not in shown and len(shown) < 3000
    assert "mixing rate" in RING._repr_html_() and "<th>loss f(x̄)</th>" in result._repr_html_()
    several = run(seed=[0, 1])._repr_html_()
    assert "2 seeds, loss" in several and "<td>0, 1</td>" in several and "dsgd(local_lr=0.1, " in several
    assert "gossip rounds</th><td>20</td>" in several  # medians, written as everywhere
    assert "<th>degrees</th><td>2</td>" in RING._repr_html_()


def completed(words):
    """What bash is offered for the last word of a line."""
    line = ["pisco", *words.split(" ")]
    environment = {"_PISCO_COMPLETE": "complete_bash", "COMP_WORDS": " ".join(line)}
    done = CliRunner().invoke(app, [], env=environment | {"COMP_CWORD": str(len(line) - 1)}, prog_name="pisco")
    return done.stdout.split()


def test_the_tab_key(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "quirks.toml").write_text("")
    assert completed("run qui") == ["quick", "quirks.toml"]
    assert completed("run ./q") == ["./quirks.toml"] and completed("run nowhere/q") == []
    assert {"a9a", "mnist", "cifar10"} <= set(completed("tune "))
    assert completed("run quick --engine s") == ["scan", "sharded"]
    assert completed("compare a9a --algorithms pisco,scaf") == ["pisco,scaffold"]
    assert completed("network er") == ["erdos-renyi"] and completed("network ring --weights fd") == ["fdla"]
    assert completed("list alg") == ["algorithms"]
    assert completed("launch r") == ["run"] and completed("launch --proc") == ["--processes"]
    assert completed("launch --processes 2 run qui") == completed("launch run qui") == ["quick", "quirks.toml"]
    assert completed("launch run quick --engine sh") == ["sharded"] and completed("launch run a9a --see") == ["--seeds"]
    assert completed("bench qu") == ["quick", "quirks.toml"] and completed("bench ma") == ["map"]
    assert completed("bench show --methods pisco,scaf") == ["pisco,scaffold"]
    assert completed("check scaf") == completed("federation init x --algorithm scaf") == ["scaffold"]
    assert completed("federation try --graph er") == ["erdos-renyi"]


def test_a_sweep_tells_of_its_agents_so_that_a_report_can_draw_them(tmp_path):
    from pisco.report.curves import page_numbers

    points = [(pisco.algorithms.dsgd(local_lr=lr), pisco.bernoulli(p)) for lr, p in ((0.1, 0.0), (0.3, 0.5))]
    swept = pisco.sweep(points, WORLD, RING, rounds=8, seeds=[3, 4])
    for (rule, server), result in zip(points, swept, strict=True):
        alone = pisco.run(rule, WORLD, RING.with_server(server), rounds=8, seed=[3, 4])
        assert alone.agents.keys() == result.agents.keys()
        for name, values in alone.agents.items():
            np.testing.assert_array_equal(result.agents[name], values)
    kept = pisco.Result.load(swept[1].save(tmp_path / "x"))
    (shown,) = page_numbers([kept])["results"]
    assert shown["network"]["frames"]["round"] == list(range(9))
