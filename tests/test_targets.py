"""Targets: the direction comes from the metric and travels with a result, wherever one is asked for."""

import json
from dataclasses import replace

import jax.numpy as jnp
import numpy as np
import pytest
from typer.testing import CliRunner

import pisco
from pisco import InputError, Metric, Result
from pisco.cli.main import app
from pisco.costs import Prices
from pisco.experiments import tune
from pisco.experiments.compare import Entry, panels
from pisco.metrics import METRICS, auc, by_column
from pisco.planning.planner import plan
from pisco.report.curves import page_numbers
from pisco.report.panels import Curve
from pisco.report.plots import column_panel
from pisco.report.summary import paragraphs
from pisco.report.tables import targets_table
from pisco.results import measured
from pisco.targets import Target, parse_targets, reached

AUC = auc(lambda x, batch: (batch, batch))


def made_up(*rows, metrics=(AUC,), **columns):
    """A result whose area under the curve rises like that, a row for every seed."""
    count = len(rows[0])
    history = {"round": np.tile(np.arange(count), (len(rows), 1)), "test_auc": np.asarray(rows, float)}
    history |= {
        name: np.tile(np.arange(count) * 10, (len(rows), 1))
        for name in METRICS
        if METRICS[name].of == "cost" and name != "round"
    }
    history |= {"loss": 1 / (1.0 + history["round"]), "grad_norm_sq_mean": 1 / (1.0 + history["round"])}
    history |= {name: np.tile(values, (len(rows), 1)) for name, values in columns.items()}
    return Result(
        np.zeros(2),
        history,
        tuple(range(len(rows))),
        {},
        rounds=count - 1,
        metrics=by_column(metrics),
        diverged_at=[None] * len(rows),
    )


def test_an_area_is_reached_from_below():
    rising = made_up([0.5, 0.9, 0.995, 1.0], [0.5, 0.99, 0.98, 0.97], test_error=[3.0, 2.0, 1.0, 0.0])
    (record,) = pisco.compare([rising], {"test_auc": 0.99})
    assert record["rounds to test_auc"] == 1.5 and record["bytes_server to test_auc"] == 15
    missed = made_up([0.5, 0.9])
    assert pisco.compare([missed], {"test_auc": 0.99})[0]["rounds to test_auc"] is None
    (record,) = pisco.compare([rising], {"test_auc": 0.99, "test_accuracy": 0.8}, Prices(2, 1))
    assert record["price to test_auc"] == 45 and record["rounds to test_accuracy"] is None
    with pytest.raises(InputError, match="unknown target 'tst_auc'; did you mean 'test_auc'"):
        pisco.compare([rising], {"tst_auc": 0.99})
    np.testing.assert_array_equal(rising.at_target("test_auc", bound=0.99), [2, 1])
    np.testing.assert_array_equal(rising.at_target("test_auc", at_most=0.5), [0, 0])
    np.testing.assert_array_equal(rising.at_target("loss", "server_rounds", bound=0.4), [20, 20])
    ((found,),) = reached([rising], {"test_auc": 0.996, "test_accuracy": 0.5})
    assert not found.by_all and found.rounds.tolist() == [3] and found.best == 1.0
    assert found.price(Prices(2, 1)).tolist() == [90] and found.bytes.tolist() == [60]
    with pytest.raises(InputError, match="needs one bound"):
        rising.at_target("test_auc")
    # A column nobody has said anything of.
    np.testing.assert_array_equal(rising.at_target("test_error", at_most=1), [2, 2])
    for ask in (lambda: rising.at_target("test_error", bound=1), lambda: pisco.compare([rising], {"test_error": 1})):
        with pytest.raises(
            InputError, match=r"test_error=1 does not say which way is better; measure it as Metric\('error'"
        ):
            ask()


def test_seeds_that_miss_are_censored_in_comparisons_and_reports():
    mostly = made_up([0.5, 0.99, 1.0], [0.5, 0.99, 1.0], [0.5, 0.6, 0.7])
    (record,) = pisco.compare([mostly], {"test_auc": 0.99})
    assert record["rounds to test_auc"] == 1 and record["seeds to test_auc"] == 2
    assert record["rounds to test_auc, low"] == 1 and record["rounds to test_auc, high"] is None
    ((found,),) = reached([mostly], {"test_auc": 0.99})
    assert str(found.paid(Prices(2, 1))["price"]) == "30 (30 to more than 60)"
    table = targets_table([mostly], {"test_auc": 0.99}, Prices(2, 1))
    assert "1 (1 to more than 2)" in table and 'data-missed="0,0,1">30</td>' in table
    table = targets_table([made_up([0.5, 0.99], [0.5, 0.6], [0.5, 0.6])], {"test_auc": 0.99}, Prices(2, 1))
    assert "more than 1" in table and ">more than 30</td>" in table


def test_the_direction_travels_with_a_result(tmp_path):
    saved = made_up(
        [0.5, 0.9, 0.995], metrics=[AUC, Metric("lag", rising=False, of="state", log=True)], lag=[3.0, 2.0, 1.0]
    )
    folder = saved.save(tmp_path / "r")
    loaded = Result.load(folder)
    assert loaded.metric("test_auc") == saved.metric("test_auc") and loaded.metric("test_auc").title == "test AUC"
    assert loaded.metric("lag").log and loaded.at_target("lag", bound=2.0) == [1]
    assert pisco.compare([loaded], {"test_auc": 0.99}) == pisco.compare([saved], {"test_auc": 0.99})
    # An older result has no columns: ours are known, others ask for a direction.
    summary = json.loads((folder / "result.json").read_text())
    del summary["columns"]
    (folder / "result.json").write_text(json.dumps(summary))
    older = Result.load(folder)
    assert older.at_target("loss", bound=0.4) == [2]
    with pytest.raises(InputError, match="does not say which way is better"):
        older.at_target("test_auc", bound=0.9)


def test_reports_and_plots_know_users_metrics():
    result = made_up([0.5, 0.9, 0.98], [0.5, 0.9, 0.97])
    (words,) = paragraphs([result], {"test_auc": 0.99}, Prices())
    assert "never reached a test AUC of at least 0.99 (the best was 0.98)" in words
    assert "The test AUC ended at 0.975 (0.97 to 0.98)." in words
    (words,) = paragraphs([result], {"test_auc": 0.9}, Prices())
    assert "first reached a test AUC of at least 0.9 after 1 round " in words
    drawn = {measure["name"]: measure for measure in page_numbers([result])["measures"]}
    assert drawn["test_auc"] == {"name": "test_auc", "title": "test AUC", "log": False, "percent": False}
    assert list(measured([result])) == ["grad_norm_sq_mean", "loss", "test_auc"]
    assert [ax.get_title() for ax in result.plot().axes[:3]] == ["running mean of ‖∇f(x̄)‖²", "loss f(x̄)", "test AUC"]


def test_pictures_take_seeds_that_blew_up_as_worse_than_any():
    values = np.array([[0.5], [0.6], [0.9], [np.nan], [np.nan]])
    for metric, middle in ((AUC, 0.5), (replace(AUC, rising=False, unit="%"), 0.9)):
        panel = column_panel(metric, [Curve("", np.zeros(1), values)], "rounds")
        assert panel.curves[0].median_and_band(panel)[1].tolist() == [middle]


def test_a_comparison_draws_what_it_aims_at():
    entry = Entry("dsgd", None, None, made_up([0.5, 0.9], [0.5, 0.7]))
    drawn = panels([entry], {"test_auc": 0.8, "test_error": 1.0}, Prices())
    assert [row[0].title for row in drawn] == ["running mean of ‖∇f(x̄)‖²", "test AUC"]


def test_a_report_says_how_many_seeds_met_a_target_from_the_start():
    (words,) = paragraphs([made_up([0.9, 0.9], [0.5, 0.6], [0.5, 0.7])], {"test_auc": 0.8}, Prices())
    assert "from the start" not in words and "with 1 of its 3 seeds only" in words


def test_commands_take_the_columns_that_results_hold(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    made_up([0.5, 0.9, 0.995], test_error=[3.0, 2.0, 1.0]).save("a")
    made_up([0.5, 0.6, 0.7]).save("b")

    def pisco_(*words):
        return CliRunner().invoke(app, words)

    done = pisco_("show", "a", "b", "--targets", "test_auc=0.99", "--json")
    assert done.exit_code == 0, done.output
    assert [record["rounds to test_auc"] for record in json.loads(done.stdout)] == [2.0, None]
    done = pisco_("report", "a", "b", "--targets", "test_auc=0.99", "-o", "page.html")
    assert done.exit_code == 0, done.output
    page = (tmp_path / "page.html").read_text(encoding="utf-8")
    assert "Only a reached a test AUC of at least 0.99 with every seed" in page
    for command in ("show", "report"):
        for target, sentence in (
            ("test_ac=0.9", "unknown target 'test_ac'; did you mean 'test_auc'?"),
            ("test_error=1", "test_error=1 does not say which way is better"),
            ("server_rounds=5", "the target 'server_rounds' is no measure of training"),
            ("test_accuracy=80", "test_accuracy=80 is no share"),
        ):
            done = pisco_(command, "a", "--targets", target)
            assert done.exit_code == 2 and sentence in " ".join(done.stderr.split()), done.output


def test_tuning_and_planning_ask_the_metric():
    results = [made_up([0.5, 0.9, 0.99]), made_up([0.5, 0.99, 0.9])]
    assert tune.pick((0.1, 0.2), results, {"test_auc": 0.99}).local_lr == 0.2
    given = {"metrics": {"error": lambda x, batch: batch @ x}, "test": np.ones((3, 2), np.float32)}
    problem = pisco.Problem(lambda x, batch, key: (batch @ x) ** 2, jnp.zeros(2), np.ones((3, 1, 2)), **given)
    for column, sentence in (
        ("test_error", "does not say which way is better"),
        ("test_accuracy", "the problem does not measure test_accuracy"),
        ("los", "unknown target 'los'; did you mean 'loss'"),
    ):
        with pytest.raises(InputError, match=sentence):
            plan(problem, pisco.Network.ring(3), rounds=5, target=(column, 0.5))


def test_targets_are_read_and_said():
    assert parse_targets("loss=0.5, test_auc = 0.9") == {"loss": 0.5, "test_auc": 0.9}
    assert parse_targets(None) == {"grad_norm_sq_mean": 0.05, "test_accuracy": 0.8}
    for text, sentence in (
        ("loss", "no bound"),
        ("loss=1,loss=2", "given twice"),
        ("loss=nan", "is nan"),
        ("", "no bound"),
    ):
        with pytest.raises(InputError, match=sentence):
            parse_targets(text)
    assert str(Target.of("loss", 0.5)) == "a loss f(x̄) of at most 0.5"
    for column, bound, sentence in (
        ("test_accuracy", 1.5, "is no share"),
        ("grad_norm_sq", 0.0, "is never reached"),
        ("loss", np.inf, "the target's bound of loss is inf"),
    ):
        with pytest.raises(InputError, match=sentence):
            Target.of(column, bound)
