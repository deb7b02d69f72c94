"""Figures: what they draw, and that odd results do not break them."""

import numpy as np
import pytest

from pisco import InputError
from pisco.experiments import demo
from pisco.report import plot_demo, plot_results
from pisco.results import Result


def result(seeds=1, rows=30, *, label="", diverged_at=None, **columns):
    """A made-up result whose curves go down."""
    rounds = np.broadcast_to(np.arange(rows), (seeds, rows)).copy()
    falling = 1.0 / (1 + rounds) * (1 + np.arange(seeds))[:, None]
    history = {
        "round": rounds,
        "loss": falling,
        "grad_norm_sq_mean": falling,
        "test_accuracy": 1 - 0.5 * falling / seeds,
        "consensus_error": falling,
        "server_rounds": rounds // 10,
        "gossip_rounds": rounds - rounds // 10,
        "bytes_server": 10 * rounds,
        "bytes_gossip": 100 * rounds,
    } | columns
    kept = {
        name: values if seeds > 1 else values[0] for name, values in history.items() if values is not None
    }
    return Result(
        params=np.zeros(2),
        history=kept,
        seeds=tuple(range(seeds)),
        settings={},
        label=label,
        diverged_at=diverged_at,
    )


def test_usual_panels_with_bands_and_labels(tmp_path):
    figure = plot_results([result(3, label="one"), result(1, label="two")], tmp_path / "x.png")
    assert (tmp_path / "x.png").stat().st_size > 10_000
    shown = [ax for ax in figure.axes if ax.get_visible()]
    assert [ax.get_xlabel() for ax in shown].count("megabytes sent, all links") == 1
    assert all(len(ax.lines) == 2 and len(ax.collections) == 1 for ax in shown)  # a band for three seeds only
    assert [text.get_text() for text in figure.legends[0].get_texts()] == ["one", "two"]
    line = shown[0].lines[0]
    np.testing.assert_allclose(line.get_ydata(), 2.0 / (1 + np.arange(30)))
    assert shown[0].get_yscale() == "log" and shown[1].get_yscale() == "linear"


def test_same_labels_are_told_apart_and_divergence_is_marked():
    figure = plot_results([result(label="a"), result(label="a", diverged_at=5)])
    assert [t.get_text() for t in figure.legends[0].get_texts()] == ["a (1)", "a (2) — diverged"]


@pytest.mark.parametrize(
    "odd",
    [
        result(rows=1),
        result(2, loss=np.full((2, 30), np.nan), grad_norm_sq_mean=np.full((2, 30), np.inf)),
        result(2, loss=np.where(np.arange(30) > 20, np.nan, 1.0) * np.ones((2, 1))),
        result(loss=np.where(np.arange(30) > 20, 1e38, 1.0)[None]),
        result(consensus_error=np.zeros((1, 30))),
        result(test_accuracy=None, consensus_error=None, bytes_gossip=None),
    ],
    ids=["one row", "nothing finite", "ends in NaN", "overflows", "zero on a log scale", "missing columns"],
)
def test_odd_results_are_drawn_as_far_as_they_go(odd, tmp_path):
    plot_results([odd], tmp_path / "odd.png")
    plot_results([odd, result(label="fine")], tmp_path / "both.png")
    assert (tmp_path / "odd.png").exists() and (tmp_path / "both.png").exists()


def test_many_results_get_distinct_lines():
    figure = plot_results([result(label=f"run {i}") for i in range(12)], columns=["loss"])
    styles = {(line.get_color(), line.get_linestyle()) for line in figure.axes[0].lines}
    assert len(styles) == 12


def test_mistakes_are_sentences(tmp_path):
    with pytest.raises(InputError, match="did you mean 'loss'"):
        plot_results([result()], columns=["los"])
    with pytest.raises(InputError, match="no result to plot"):
        plot_results([])
    with pytest.raises(InputError, match="cannot write the picture"):
        plot_results([result()], tmp_path / "x.nonsense")
    (tmp_path / "file").write_text("")
    with pytest.raises(InputError, match="cannot write the picture"):
        plot_results([result()], tmp_path / "file" / "x.png")


def test_result_plots_itself(tmp_path):
    result(label="me").plot(tmp_path / "me.svg")
    assert (tmp_path / "me.svg").read_text().startswith("<?xml")


def test_demo_table_takes_the_median_seed_and_counts_arrivals():
    late = np.array([[1.0] * 30, [0.04] * 30, [1.0] * 10 + [0.04] * 20])
    results = [result(3, grad_norm_sq_mean=late) for _ in demo.POINTS]
    records = demo.table(results)
    assert records[0]["rounds"] == 10 and records[0]["seeds_arrived"] == 2
    assert records[0]["server_rounds"] == 1 and records[0]["gossip_rounds"] == 9
    assert records[1]["gossip_saved"] == 0
    assert "saves 0% of the gossip" in demo.point_of(records)


def test_demo_figure_with_and_without_arrivals(tmp_path):
    fine = [result(3, label="x") for _ in demo.POINTS]
    missed = [result(3, grad_norm_sq_mean=np.ones((3, 30))) for _ in demo.POINTS]
    for name, results in (("fine", fine), ("missed", missed)):
        records = demo.table(results)
        path = tmp_path / f"{name}.png"
        plot_demo(results, records, training_target=0.05, accuracy_target=0.8, path=path)
        assert path.stat().st_size > 10_000
    assert "missed the training target" in demo.point_of(demo.table(missed))
