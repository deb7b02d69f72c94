"""Partitions: what every one of them promises, and what each is for."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import pisco
from pisco import data
from pisco.data import PARTITIONS, by_label, dirichlet, iid, label_counts, shards, sorted_even
from pisco.errors import InputError
from pisco.report import plot_labels


@pytest.fixture(scope="module")
def a9a_labels():
    return data.load("a9a").labels


@st.composite
def problems(draw):
    labels = draw(st.lists(st.integers(-3, 6), min_size=1, max_size=80))
    return np.array(labels), draw(st.integers(1, len(labels))), draw(st.integers(0, 2**32))


def too_few_of_a_label(labels, agents):
    sizes = np.unique(labels, return_counts=True)[1]
    holders = np.bincount([agent * len(sizes) // agents for agent in range(agents)], minlength=len(sizes))
    return agents > len(sizes) and (sizes < holders).any()


@pytest.mark.parametrize("name", sorted(PARTITIONS))
@given(problem=problems())
@settings(max_examples=60, deadline=None)
def test_every_partition_keeps_its_promises(name, problem):
    labels, agents, seed = problem
    options = {"shards_per_agent": 1} if name == "shards" else {}
    options |= {} if name in ("sorted", "by_label", "by_group") else {"seed": seed}
    if name == "by_group":
        options["groups"] = np.random.default_rng(seed).permutation(np.arange(len(labels)) % agents)
    if name == "by_label" and too_few_of_a_label(labels, agents):
        with pytest.raises(InputError, match="use fewer agents"):
            by_label(labels, agents)
        return
    parts = PARTITIONS[name](labels, agents=agents, **options)
    everyone = np.concatenate(parts)
    assert len(parts) == agents and min(map(len, parts)) >= 1
    assert len(set(everyone.tolist())) == len(everyone)
    assert everyone.min() >= 0 and everyone.max() < len(labels)
    dropped = len(labels) - len(everyone)
    assert dropped < agents if name in ("sorted", "shards") else dropped == 0
    again = PARTITIONS[name](labels.copy(), agents=agents, **options)
    assert all(np.array_equal(a, b) for a, b in zip(parts, again, strict=True))
    counts = label_counts(labels, parts)
    assert counts.shape == (agents, len(np.unique(labels)))
    assert counts.sum(axis=1).tolist() == [len(part) for part in parts]


@given(problem=problems())
@settings(max_examples=60, deadline=None)
def test_sorted_even_is_an_even_cut_of_the_stable_order(problem):
    labels, agents, _ = problem
    parts = sorted_even(labels, agents)
    assert {len(part) for part in parts} == {len(labels) // agents}
    order = np.concatenate(parts)
    assert order.tolist() == sorted(range(len(labels)), key=lambda i: (labels[i], i))[: len(order)]


@given(problem=problems(), alpha=st.floats(1e-12, 1e6), share=st.floats(0, 1))
@settings(max_examples=100, deadline=None)
def test_dirichlet_leaves_nobody_short(problem, alpha, share):
    labels, agents, seed = problem
    least = max(1, int(share * (len(labels) // agents)))
    parts = dirichlet(labels, agents, alpha=alpha, seed=seed, min_samples=least)
    assert min(map(len, parts)) >= least
    assert sorted(np.concatenate(parts).tolist()) == list(range(len(labels)))


def test_a9a_sorted_as_in_the_paper(a9a_labels):
    parts = PARTITIONS["sorted"](a9a_labels, agents=10)
    assert {len(part) for part in parts} == {3256}
    counts = label_counts(a9a_labels, parts)
    assert counts.tolist() == [[3256, 0]] * 7 + [[1928, 1328]] + [[0, 3256]] * 2


def test_a9a_by_label_gives_five_agents_each_class(a9a_labels):
    counts = label_counts(a9a_labels, by_label(a9a_labels, 10))
    assert counts.tolist() == [[4944, 0]] * 5 + [[0, 1569]] + [[0, 1568]] * 4


def test_by_label_wraps_and_spreads():
    labels = np.tile(np.arange(10), 3)
    assert [sorted(set(labels[part])) for part in by_label(labels, 5)] == [[i, i + 5] for i in range(5)]
    assert [sorted(set(labels[part])) for part in by_label(labels, 10)] == [[i] for i in range(10)]
    thirds = by_label([0] * 9 + [5] * 9 + [9] * 9, 7)
    assert [len(part) for part in thirds] == [3, 3, 3, 5, 4, 5, 4]


def test_seeds_change_the_draw():
    labels = np.repeat(np.arange(4), 25)
    for split in (iid, dirichlet, shards):
        first, second = (split(labels, 5, seed=seed) for seed in (0, 1))
        assert any(not np.array_equal(a, b) for a, b in zip(first, second, strict=True))


def test_iid_is_even_and_dirichlet_follows_alpha():
    labels = np.repeat(np.arange(10), 600)
    assert {len(part) for part in iid(labels, 10, seed=3)} == {600}

    def unevenness(parts):
        counts = label_counts(labels, parts)
        return float((counts.max(axis=0) / 600).mean())

    small, middle, large = (unevenness(dirichlet(labels, 10, alpha=alpha)) for alpha in (0.05, 1.0, 1000.0))
    assert small > middle > large and large < 0.15 and small > 0.6


def test_shards_hold_few_labels():
    labels = np.repeat(np.arange(10), 100)
    counts = label_counts(labels, shards(labels, 50, shards_per_agent=2, seed=1))
    assert (counts.sum(axis=1) == 20).all() and ((counts > 0).sum(axis=1) <= 2).all()


@pytest.mark.parametrize(
    ("name", "options", "words"),
    [
        ("iid", {"agents": 5}, "5 agents cannot share 4 samples; use at most 4"),
        ("sorted", {"agents": 0}, "agents is 0"),
        ("iid", {"agents": 2.5}, "whole number"),
        ("iid", {"agents": "two"}, "expected a whole number"),
        ("iid", {"agents": 2, "seed": -1}, "seed is -1"),
        ("dirichlet", {"agents": 2, "alpha": 0}, "alpha is 0"),
        ("dirichlet", {"agents": 2, "alpha": float("nan")}, "alpha is nan"),
        ("dirichlet", {"agents": 2, "min_samples": 3}, "min_samples at most 2"),
        ("shards", {"agents": 2, "shards_per_agent": 3}, "shards_per_agent at most 2"),
        ("shards", {"agents": 2, "shards_per_agent": 0}, "shards_per_agent is 0"),
        ("by_label", {"agents": 4}, "label 1 has 1 sample for its 2 agents"),
        ("by_group", {"agents": 2}, "needs a dataset that knows groups"),
        ("by_group", {"agents": 3, "groups": [1, 1, 2, 2]}, "3 agents cannot have one of 2 groups each"),
        ("by_group", {"agents": 1, "groups": [1, 1]}, "4 labels and 2 groups"),
        ("dirichlet", {"agents": 2, "alhpa": 1}, "no option 'alhpa'; did you mean 'alpha'"),
        ("sorted", {"agents": 2, "alpha": 1}, "partition 'sorted' has no option 'alpha'; known: agents"),
    ],
)
def test_bad_input_is_named(name, options, words):
    with pytest.raises(InputError, match=words):
        PARTITIONS[name]([0, 0, 0, 1], **options)


@pytest.mark.parametrize("labels", [[], [[0, 1]], [0.5, 1.0], ["a", "b"]])
def test_bad_labels_are_named(labels):
    with pytest.raises(InputError, match="labels"):
        iid(labels, 1)


def test_label_counts_of_nobody_and_of_an_empty_hand():
    assert label_counts([0, 1], []).shape == (0, 2)
    assert label_counts([0, 1], [[], [1]]).tolist() == [[0, 0], [0, 1]]


@pytest.mark.parametrize(("classes", "agents"), [(2, 10), pytest.param(10, 100, marks=pytest.mark.slow), (26, 30)])
def test_picture_is_written(tmp_path, classes, agents):
    labels = np.arange(3000) % classes
    path = tmp_path / "labels.png"
    figure = plot_labels(labels, iid(labels, agents), path)
    assert path.stat().st_size > 5000 and path.read_bytes().startswith(b"\x89PNG")
    assert f"{agents} agents" in figure.axes[0].get_title()


def test_picture_draws_into_given_axes_with_names():
    from matplotlib.figure import Figure

    mine = Figure()
    ax = mine.subplots()
    assert plot_labels([-1, 1, 1], [[0], [1, 2]], ax=ax, classes=("low", "high"), title="mine") is mine
    assert [text.get_text() for text in ax.get_legend().get_texts()] == ["low", "high"]
    plot_labels([-1, 1, 1], [[0], [1, 2]], ax=(signed := Figure().subplots()))
    assert [text.get_text() for text in signed.get_legend().get_texts()] == ["-1", "+1"]


def test_picture_refuses_wrong_names_and_places(tmp_path):
    with pytest.raises(InputError, match="3 class names"):
        plot_labels([0, 1], [[0], [1]], classes=("a", "b", "c"))
    (tmp_path / "file").write_text("")
    with pytest.raises(InputError, match="cannot write"):
        plot_labels([0, 1], [[0], [1]], tmp_path / "file" / "x.png")
    with pytest.raises(InputError, match="cannot write"):
        plot_labels([0, 1], [[0], [1]], tmp_path / "x.nonsense")


def test_groups_of_a_dataset_reach_a_partition_that_asks_for_them():
    dataset = pisco.data.Dataset("d", np.arange(6.0)[:, None], [0, 1] * 3, groups=[4, 9, 9, 5, 9, 5])
    problem = pisco.problems.logistic(dataset, agents=2, partition="by_group", bias=False)
    assert problem.data["features"][:, 0].tolist() == [1, 2, 4, 3, 5]  # the largest group first
    assert problem.sizes.tolist() == [3, 2]

    def backwards(labels, agents, groups):
        return [np.flatnonzero(groups == group) for group in (5, 9)]

    own = pisco.problems.logistic(dataset, agents=2, partition=backwards, bias=False)
    assert own.data["features"][:, 0].tolist() == [3, 5, 1, 2, 4]
    with pytest.raises(InputError, match="needs a dataset that knows groups"):
        pisco.problems.logistic(pisco.data.load("a9a"), agents=2, partition="by_group")
