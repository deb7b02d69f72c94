"""Metrics: of the state, of test samples and of the whole test set, ours and users' own, in every engine."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import pisco
from pisco import InputError, Metric
from pisco.algorithms.dsgd import DsgdState
from pisco.engines.evaluate import measure_test, round_metrics
from pisco.experiments.loading import load
from pisco.metrics import METRICS, auc, each_agent, f1
from pisco.problems.subsample import subsample
from pisco.tree import squared_norm

RNG = np.random.default_rng(0)
POINTS = RNG.normal(size=(4, 6, 3)).astype(np.float32)
# Scores of a few values only, so that many are tied.
TEST = {"a": RNG.integers(-1, 2, size=(17, 3)).astype(np.float32), "y": RNG.integers(0, 2, size=17)}
NET = pisco.Network.ring(4, server=pisco.bernoulli(0.5))


def scores(x, batch):
    return batch["a"] @ x, batch["y"]


def size(state, here):
    return here.mean(jax.vmap(squared_norm)(state.params))


def lag(state, here):
    """Only methods with a tracker have one."""
    return here.mean(jax.vmap(squared_norm)(state.tracker)) if hasattr(state, "tracker") else None


def problem(metrics, test=TEST, **options):
    return pisco.Problem(
        lambda x, batch, key: (batch @ x - 1) ** 2, jnp.zeros(3), POINTS, test=test, metrics=metrics, **options
    )


def naive_auc(score, label):
    pairs = [(s > t) + 0.5 * (s == t) for s in score[label > 0] for t in score[label <= 0]]
    return np.mean(pairs)


def naive_f1(score, label):
    hits = sum((s > 0) and (y > 0) for s, y in zip(score, label, strict=True))
    wrong = sum((s > 0) != (y > 0) for s, y in zip(score, label, strict=True))
    return 2 * hits / (2 * hits + wrong)


AREA, F1 = jax.jit(auc(scores).reduce), jax.jit(f1(scores).reduce)


@pytest.mark.parametrize("seed", range(4))
def test_areas_and_f1_are_those_of_a_naive_count(seed):
    rng = np.random.default_rng(seed)
    score = rng.integers(-3, 4, size=60).astype(np.float32)  # ties in plenty
    for label in (rng.integers(0, 2, size=60), 2 * rng.integers(0, 2, size=60) - 1):
        np.testing.assert_allclose(AREA((score, label)), naive_auc(score, label), rtol=1e-6)
        np.testing.assert_allclose(F1((score, label)), naive_f1(score, label), rtol=1e-6)
    if seed:
        return
    assert AREA((np.ones(5), np.array([0, 1, 1, 0, 1]))) == 0.5
    assert np.isnan(AREA((np.array([np.nan, 1.0]), np.array([0, 1]))))
    assert np.isnan(AREA((np.arange(3.0), np.ones(3))))


@pytest.mark.parametrize("eval_batch", [1, 5, 17, 100, *(pytest.param(n, marks=pytest.mark.slow) for n in (4, 16))])
def test_the_whole_test_set_is_the_same_in_blocks_of_any_size(eval_batch):
    x = jnp.array([1.0, -2.0, 0.5])
    whole = {"accuracy": lambda x, batch: (batch["a"] @ x > 0) == (batch["y"] > 0)}
    measured = [*problem(whole).metrics, auc(scores), f1(scores)]
    blocks = problem(measured, eval_batch=eval_batch)
    found = jax.jit(lambda x: measure_test(blocks, x))(x)
    score = TEST["a"] @ np.asarray(x)
    np.testing.assert_allclose(found["test_auc"], naive_auc(score, TEST["y"]), rtol=1e-6)
    np.testing.assert_allclose(found["test_f1"], naive_f1(score, TEST["y"]), rtol=1e-6)
    assert found["test_accuracy"] == np.float32(np.sum((score > 0) == (TEST["y"] > 0))) / np.float32(17)


ERROR = Metric("error", lambda x, batch: abs(batch["a"] @ x - batch["y"]), rising=False, log=True)
OWN = [ERROR, auc(scores), Metric("size", size, of="state"), Metric("lag", lag, rising=False, of="state")]


@functools.cache
def measured(engine):
    """A run with metrics of every kind."""
    given = problem([*OWN, *each_agent(ERROR), *each_agent(auc(scores))], eval_batch=5)
    rule = pisco.algorithms.pisco(local_lr=0.05, local_steps=1)
    return pisco.run(rule, given, NET, rounds=2, eval_every=2, batch_size=2, engine=engine)


def test_users_metrics_are_measured_alike_in_every_engine():
    scan, sharded = measured("scan"), measured("sharded")
    assert scan.history["size"][-1] == pytest.approx((scan.params**2).sum(axis=1).mean(), rel=1e-6)
    ended = naive_auc(TEST["a"] @ scan.params.mean(axis=0), TEST["y"])
    assert scan.history["test_auc"][-1] == pytest.approx(ended, rel=1e-6)
    assert len(scan.history["lag"]) == 2
    for name in ("test_auc", "size", "lag", "loss", "consensus_error"):
        np.testing.assert_allclose(sharded.history[name], scan.history[name], rtol=1e-4, atol=1e-7, err_msg=name)
    untracked = DsgdState(jnp.ones((4, 3)))
    assert set(round_metrics(problem(OWN), untracked)) == {"mean_params", "consensus_error", "size"}
    # Every column of ours has its row, and the user's own say what the metric says.
    tested = {f"test_{name}{what}" for name in ("auc", "error") for what in ("", "_worst", "_spread")}
    assert {name for name in scan.history if name not in METRICS} == {*tested, "size", "lag"}
    assert scan.metric("test_auc").rising is True and scan.metric("size").rising is None
    assert scan.metric("lag").rising is False and scan.metric("lag").title == "lag"


def test_metrics_can_be_added_to_a_problem_that_is_made():
    data = pisco.data.Dataset(
        "few", RNG.normal(size=(40, 2)), np.arange(40) % 2, RNG.normal(size=(9, 2)), np.arange(9) % 2
    )
    made = pisco.problems.logistic(data, agents=4)
    more = made.with_metrics(auc(lambda x, batch: (batch["features"] @ x, batch["labels"])))
    assert list(more.columns)[-2:] == ["test_accuracy", "test_auc"] and "test_auc" not in made.columns
    assert more.columns["test_accuracy"].rising and more.columns["test_accuracy"].unit == "%"
    assert set(measure_test(more, jnp.ones(3))) == {"test_accuracy", "test_auc"}
    assert subsample(more, 5).num_test == 5
    fewer = subsample(more.with_metrics(Metric("size", size, of="state")), test=False)
    assert [metric.column for metric in fewer.metrics] == ["size"]
    untested = pisco.problems.logistic(pisco.data.Dataset("few", data.features, data.labels), agents=4)
    assert not untested.metrics and "test_accuracy" not in untested.columns


@pytest.mark.parametrize(
    ("metrics", "options", "sentence"),
    [
        ({"error": lambda x, batch: batch["y"]}, {"test": None}, "'error' has no test data to look at; give"),
        ([auc(scores)], {"test": None}, "'auc' has no test data"),
        ([Metric("auc")], {}, "metrics is "),
        ([lambda x, batch: batch["y"]], {}, "expected functions by name or metrics"),
        (3, {}, "metrics is "),
        ([auc(scores), auc(scores)], {}, "two metrics are called 'test_auc'"),
        ([Metric("loss", size, of="state")], {}, "two metrics are called 'loss'"),
        ([Metric("m", size, of="cost")], {}, "metrics is "),
        (
            [Metric("m", lambda x, batch: (batch["a"], batch["y"].sum()), reduce=lambda v: v[1])],
            {},
            "one value a sample",
        ),
        ([Metric("m", scores, reduce=lambda v: v[0])], {}, "one number from its reduce"),
        ([Metric("m,n", size, of="state")], {}, "a metric is called 'm,n'; leave out commas"),
        ([Metric("m", lambda x, b: b["a"] @ x, of="agents", across=lambda v: v)], {}, "one number from its across"),
        ([Metric("m", scores, reduce=lambda v: v[2])], {}, "the metric 'm' fails on 7 test samples"),
    ],
)
def test_metrics_that_cannot_be_used_are_refused(metrics, options, sentence):
    with pytest.raises(InputError, match=sentence):
        problem(metrics, **options)


def test_metrics_of_the_state_need_no_test_data_but_must_give_a_number():
    rule = pisco.algorithms.dsgd(local_lr=0.05)
    two = problem([Metric("size", size, of="state"), Metric("two", lambda state, here: 2.0, of="state")], test=None)
    assert pisco.run(rule, two, NET, rounds=1).history["two"].tolist() == [2, 2]
    for function, sentence in (
        (lambda state, here: state.params, r"the metric 'bad' of the state gives .*, not one number"),
        (lambda state, here: state.params[0, 0] + 1j, "complex64.*, not one number"),
        (lambda state, here: state.tracker, "the metric 'bad' of the state fails"),
    ):
        with pytest.raises(InputError, match=sentence):
            pisco.run(rule, problem([Metric("bad", function, of="state")], test=None), NET, rounds=1)


@pytest.mark.parametrize("engine", ["scan", pytest.param("debug", marks=pytest.mark.slow), "sharded"])
def test_the_worst_agent_and_the_spread_are_those_of_a_loop_over_agents(engine):
    result = measured(engine)
    errors = [np.mean(abs(TEST["a"] @ x - TEST["y"])) for x in np.asarray(result.params)]
    areas = [naive_auc(TEST["a"] @ x, TEST["y"]) for x in np.asarray(result.params)]
    assert len(set(np.round(errors, 5))) > 1
    np.testing.assert_allclose(result.final("test_error_worst"), max(errors), rtol=1e-5)
    np.testing.assert_allclose(result.final("test_error_spread"), np.ptp(errors), rtol=1e-4)
    np.testing.assert_allclose(result.final("test_auc_worst"), min(areas), rtol=1e-5)
    assert result.metric("test_error_worst").title == "test error, worst agent"
    assert not result.metric("test_error_worst").rising and result.metric("test_auc_worst").rising


def test_agents_are_not_measured_unless_asked_for():
    def program(metrics):
        state, told = DsgdState(jnp.zeros((4, 3))), problem(metrics)
        return str(jax.make_jaxpr(lambda s: round_metrics(told, s))(state))

    assert program([ERROR]) == program([])
    assert program([ERROR, *each_agent(ERROR)]).count("scan[") == 1, "the worst and the spread share one pass"
    assert problem([ERROR]).num_measured == 24 + 17
    assert problem([ERROR, *each_agent(ERROR)]).num_measured == 24 + 17 + 4 * 17
    assert not subsample(problem([ERROR, *each_agent(ERROR)]), test=False).metrics
    for other in (Metric("size", size, of="state"), Metric("score", lambda x, batch: batch["a"] @ x)):
        with pytest.raises(InputError, match="has no worst agent"):
            each_agent(other)


@pytest.mark.slow
def test_an_experiment_asks_for_every_agent():
    config = load("quick", ["run.rounds=2", "run.eval_every=2", "problem.each_agent=true"])
    assert {"test_accuracy_worst", "test_accuracy_spread"} <= config.execute().history.keys()
    assert "each_agent" not in load("quick").to_toml()
