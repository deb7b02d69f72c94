"""Figures: what they draw, and that odd results do not break them."""

import itertools

import numpy as np
import pytest

from pisco import InputError
from pisco.experiments import demo
from pisco.networks import graphs, weights
from pisco.report import plot_network, plot_results
from pisco.report.panels import Agents, Bars, Curve, Heat, Level, LinkLines, Panel
from pisco.report.picture import draw
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
    kept = {name: values if seeds > 1 else values[0] for name, values in history.items() if values is not None}
    return Result(
        params=np.zeros(2), history=kept, seeds=tuple(range(seeds)), settings={}, label=label, diverged_at=diverged_at
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


ODD = {
    "one row": result(rows=1),
    "nothing finite": result(2, loss=np.full((2, 30), np.nan), grad_norm_sq_mean=np.full((2, 30), np.inf)),
    "zero on a log scale": result(consensus_error=np.zeros((1, 30))),
    "ends in NaN": result(2, loss=np.where(np.arange(30) > 20, np.nan, 1.0) * np.ones((2, 1))),
    "overflows": result(loss=np.where(np.arange(30) > 20, 1e38, 1.0)[None]),
    "missing columns": result(test_accuracy=None, consensus_error=None, bytes_gossip=None),
}


@pytest.mark.parametrize("name", [*list(ODD)[:3], *(pytest.param(n, marks=pytest.mark.slow) for n in list(ODD)[3:])])
def test_odd_results_are_drawn_as_far_as_they_go(name, tmp_path):
    plot_results([ODD[name]], tmp_path / "odd.png")
    assert (tmp_path / "odd.png").exists()


def test_odd_results_are_drawn_beside_others(tmp_path):
    plot_results([*ODD.values(), result(label="fine")], tmp_path / "all.png")
    assert (tmp_path / "all.png").exists()


@pytest.mark.slow
@pytest.mark.parametrize("name", ODD)
def test_an_odd_result_is_drawn_beside_a_fine_one(name, tmp_path):
    plot_results([ODD[name], result(label="fine")], tmp_path / "both.png")
    assert (tmp_path / "both.png").exists()


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


def test_a_folder_is_no_picture(tmp_path):
    with pytest.raises(InputError, match="which is a folder; give the path of a file"):
        plot_results([result()], tmp_path)
    with pytest.raises(InputError, match="whose format is not said; name it .*curves.png"):
        plot_results([result()], tmp_path / "curves")
    assert not list(tmp_path.iterdir())


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
        path = demo.write(results, demo.table(results), tmp_path / name)
        assert path.stat().st_size > 10_000 and (tmp_path / name / "p-10-0.5" / "result.json").exists()
    assert "missed the training target" in demo.point_of(demo.table(missed))


def test_one_description_is_drawn_to_a_picture_and_to_a_page(tmp_path):
    """Every kind of panel, in both; powers of ten are set as such."""
    x = np.array([0.0, 1.0, 10.0])
    bars = Bars(["p = 0", "p = 10^-1.25"], {"gossip": x[1:], "server": x[1:]}, notes=[("−54%", "a\nb")] * 2)
    square = np.array([[0.0, 0.0], [1.0, 0.0], [1.0, 1.0], [0.0, 1.0]])
    links = LinkLines([square[:2], square[1:3]], np.array([1.0, 2.0]), "grey", True, "weight")
    panels = [
        Panel("curves", "x", "y", [Curve("p = 10^-1.25", x, np.array([x, 2 * x]))], log_x=True, percent=True),
        Panel("bars", bars=bars, levels=[Level("at", 3.0), Level("in the legend", 4.0, "red")]),
        Panel("flat", bars=bars._replace(notes=(), horizontal=True), legend="right"),
        Panel("heat", heat=Heat(["a", "b", "c"], np.eye(3), "samples")),
        Panel("graph", links=[links], agents=Agents(square, "blue", numbered=True), legend="below"),
        Panel("image", image=np.eye(4)),
    ]
    figure = draw([panels[:3], panels[3:]], tmp_path / "new" / "x.html", title="All of them")
    assert [ax.get_title() for ax in figure.axes[:6]] == ["curves", "bars", "flat", "heat", "graph", "image"]
    assert figure.axes[5].images[0].get_array().shape == (4, 4)
    assert figure.axes[0].lines[0].get_xdata().tolist() == [1.0, 10.0]  # 0 has no place on a log axis
    named = [text.get_text() for text in figure.legends[0].get_texts()]
    assert sorted(named) == ["gossip", "in the legend", "p = $10^{-1.25}$", "server"]
    page = (tmp_path / "new" / "x.html").read_text()
    assert 'src="http' not in page and "All of them" in page
    for words in ("10\\u003csup\\u003e-1.25", "heatmap", "weight", "in the legend", "u003cb\\u003e", '"rgb(0, 0, 0)"'):
        assert words in page


def boxes(figure, texts):
    """The rectangles that some words take."""
    figure.canvas.draw()
    return [text.get_window_extent() for text in texts]


@pytest.mark.parametrize("step", [4, 2, 1])
def test_labels_below_bars_do_not_run_into_one_another(step):
    labels = ["0", "10^-2", "10^-1.75", "10^-1.5", "10^-1.25", "0.1", "10^-0.75", "10^-0.5", "1"][::step]
    bars = Bars(labels, {"rounds": np.arange(1.0, len(labels) + 1)})
    figure = draw([[Panel("T_o = 1", "p", "λ_w", bars=bars)] * 4])
    assert figure.axes[0].get_title() == "T$_{o}$ = 1" and figure.axes[0].get_ylabel() == "λ$_{w}$"
    ticks = figure.axes[0].get_xticklabels()
    aslant = {tick.get_rotation() for tick in ticks} == {40.0}
    assert aslant == (step == 1)
    places = boxes(figure, ticks)
    assert aslant or all(a.x1 < b.x0 for a, b in itertools.pairwise(places))


def test_a_dense_network_is_no_blot(tmp_path):
    graph = graphs.complete(50)
    lines, agents = plot_network(graph, weights.metropolis(graph)).axes[0].collections
    assert max(lines.get_linewidths()) < 0.5 and len(agents.get_offsets()) == 50
    lines, _ = plot_network(graphs.ring(10), weights.metropolis(graphs.ring(10))).axes[0].collections
    assert max(lines.get_linewidths()) > 3


def test_a_page_writes_a_millionth_as_a_power(tmp_path):
    curve = Curve("λ_w = 0.1", np.arange(3.0), np.array([[1.0, 1e-6, 1e-9]]))
    draw([[Panel("small", "x", "λ_p", [curve], log_y=True)]], tmp_path / "x.html")
    page = (tmp_path / "x.html").read_text()
    assert '"exponentformat":"power"' in page and "\\u03bb\\u003csub\\u003ew" in page
