"""Optimizers in place of plain steps: against NumPy, per agent, in every engine, and refused in a sentence."""

import copy
import pickle
import subprocess
import sys

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import pisco
import pisco.experiments
from pisco.algorithms import build, dsgd, kgt
from pisco.algorithms import pisco as pisco_rule
from pisco.algorithms.lasting import Lasting
from pisco.algorithms.optimizers import Optimizer
from test_twins import assert_states

import twins
from worlds import Quadratics, doubly_stochastic, mixes, trajectory

COIN = pisco.bernoulli(0.3)
RING = pisco.Network.ring(6, server=COIN)

CHOICES = {
    "adamw": (
        [{"name": "adam", "b2": 0.99}, {"name": "weight-decay", "weight": 0.1}],
        lambda: twins.AdamW(b2=0.99, weight=0.1),
    ),
    "shared, cosine": (
        ["shared-adam", {"name": "cosine", "steps": 100, "warmup": 5, "end": 0.1}],
        lambda: twins.Cosine(twins.AdamW(shared=True), 100, 5, 0.1),
    ),
    "momentum": (optax.trace(0.8), lambda: twins.Momentum(0.8)),
    "clip": ({"name": "clip", "max_norm": 0.3}, lambda: twins.Clip(0.3)),
}


RULES = [
    ("pisco", {"local_steps": 2, "comm_lr": 0.7}),
    ("pisco", {"local_steps": 1, "one_exchange": True}),
    ("dsgd", {"local_steps": 2}),
    ("dsgd", {"combine_first": True}),
    ("kgt", {"local_steps": 3}),
    ("kgt", {"local_steps": 3, "lasting": True}),
]


def pairs():
    """Every rule with one choice and every choice with some rule; all others in the slow tests."""
    for at, (name, given) in enumerate(RULES):
        for turn, choice in enumerate(CHOICES):
            slow = at % len(CHOICES) != turn
            yield pytest.param(name, given, choice, marks=[pytest.mark.slow] * slow)


@pytest.mark.parametrize(("name", "given", "choice"), list(pairs()))
def test_the_twins_agree(x64, name, given, choice):
    ours, theirs = CHOICES[choice]
    world, W = Quadratics(), doubly_stochastic(6, symmetric=False)
    rule = getattr(pisco.algorithms, name)(local_lr=0.02, **given, direction=ours, outer="momentum")
    states = trajectory(rule, world.problem(), pisco.Network(weights=W, server=COIN), 20)
    optimizers = {"direction": theirs(), "outer": twins.Momentum(0.9)}
    twin = getattr(twins, name)(world.x0, world.gradient, mixes(W, COIN, 20), local_lr=0.02, **given, **optimizers)
    assert_states(states, twin)
    if name == "pisco":
        np.testing.assert_allclose(states[-1].tracker.mean(0), states[-1].grads.mean(0), atol=1e-12)
    if name == "kgt":
        np.testing.assert_allclose(states[-1].correction.sum(0), 0, atol=1e-12)


def test_the_averaged_correction_reaches_the_optimum_through_adam(x64):
    """Local Adam stalls where agents differ; with the correction it does not."""
    world = Quadratics()
    network = pisco.Network.ring(6, server=pisco.bernoulli(0.5))

    def ended(rule):
        once = {"rounds": 400, "eval_every": 400, "chunk_rounds": 400}
        return pisco.run(rule, world.problem(), network, **once).history["grad_norm_sq"][-1]

    assert ended(dsgd(local_lr=0.05, local_steps=3, direction="adam")) > 1e-6
    for lasting in (False, True):
        assert ended(build("pisco-adam", local_lr=0.05, local_steps=3, lasting=lasting)) < 1e-20


def test_nothing_lasts_of_corrections_that_are_none():
    """Of an agent whose neighbours were all absent so far."""
    none = jnp.zeros((2, 3))
    known = Lasting.start(none)
    for _ in range(4):
        known = known.seen(none)
    np.testing.assert_array_equal(known.part(none), none)


def test_only_what_lasts_is_corrected():
    """Agents alike, but for the noise of their batches: hardly anything; unlike ones: nearly all of it."""
    rng = np.random.default_rng(0)
    noise = rng.normal(size=(6, 40, 50)).astype(np.float32)
    noise -= noise.mean(axis=1, keepdims=True)

    def loss(x, at, key):
        return 0.5 * jnp.sum((x - at) ** 2, -1)

    def share(apart):
        centres = apart * rng.normal(size=(6, 1, 50)).astype(np.float32)
        problem = pisco.Problem(loss, jnp.zeros(50), noise + centres)
        rule = build("pisco-adam", local_lr=1e-3, local_steps=4, lasting=True)
        ring = pisco.Network.ring(6, server=COIN)  # of its own: a network keeps its weights in one precision
        state = trajectory(rule, problem, ring, 60, batch_size=2)[-1]
        return np.linalg.norm(state.steady.part(state.correction)) / np.linalg.norm(state.correction)

    assert share(0.0) < 0.25 and share(3.0) > 0.9


def test_what_is_shared_is_sent_and_agreed_on(x64):
    """One vector more in every exchange; at the server all agents get the same second moment, and no first one."""
    problem, served = Quadratics().problem(), pisco.Network.ring(6, server=pisco.always())

    def end(name):
        rule = dsgd(local_lr=0.05, direction=[name, {"name": "weight-decay", "weight": 0.1}])
        return trajectory(rule, problem, served, 3)[-1].local_memory[0], pisco.run(rule, problem, served, rounds=3)

    (own, apart), (common, shared) = end("adam"), end("shared-adam")
    assert np.ptp(own.nu, axis=0).min() > 1e-6 and np.ptp(common.mu, axis=0).min() > 1e-6
    np.testing.assert_allclose(np.ptp(common.nu, axis=0), 0, atol=1e-15)
    assert shared.history["bytes_server"][-1] == 2 * apart.history["bytes_server"][-1]


def test_pisco_adam_takes_a_schedule():
    rule = build("pisco-adam", local_lr=0.05, local_steps=2, direction=["adam", {"name": "cosine", "steps": 4}])
    problem = Quadratics().problem()
    ends = [state.params for state in trajectory(rule, problem, pisco.Network.ring(6, server=pisco.always()), 4)]
    assert not np.allclose(ends[1], ends[0])
    np.testing.assert_allclose(ends[3], ends[2], atol=1e-6)  # its four steps are over


@pytest.mark.slow
def test_every_engine_and_a_resumed_run_agree(tmp_path, x64):
    problem = Quadratics().problem()
    rule = kgt(local_lr=0.02, local_steps=2, direction=["clip", "adam"], outer="momentum")
    options = {"rounds": 4, "batch_size": 1, "eval_every": 4}
    scan, sharded = (pisco.run(rule, problem, RING, engine=engine, **options).params for engine in ("scan", "sharded"))
    np.testing.assert_allclose(sharded, scan, atol=1e-12)
    half = options | {"rounds": 2, "checkpoint": tmp_path, "chunk_rounds": 1}
    pisco.run(rule, problem, RING, **half)
    again = kgt(local_lr=0.02, local_steps=2, direction=["clip", "adam"], outer="momentum")
    done = pisco.run(again, problem, RING, **(half | {"rounds": 4, "resume": True}))
    np.testing.assert_array_equal(done.params, scan)


def test_compressed_pisco_takes_optimizers_too(x64):
    rule = build("pisco-compressed", local_lr=0.02, local_steps=1, direction="momentum")
    state = trajectory(rule, Quadratics().problem(), RING, 5)[-1].inner
    assert np.any(state.local_memory.trace)
    np.testing.assert_allclose(state.tracker.mean(0), state.grads.mean(0), atol=1e-12)


def test_types_of_leaves_stay_and_nothing_compiles_again():
    start = {"a": jnp.ones((3,), jnp.bfloat16), "b": jnp.ones(())}
    data = np.ones((4, 6, 3), np.float32)
    traces = []

    def loss(params, batch, key):
        traces.append(1)
        return (batch @ params["a"].astype(jnp.float32) + params["b"]) ** 2

    problem = pisco.Problem(loss, start, data)
    network = pisco.Network.ring(4)

    def run(local_lr):
        rule = dsgd(local_lr=local_lr, direction=["adam", "weight-decay"])
        return pisco.run(rule, problem, network, rounds=3, batch_size=2)

    first = run(0.01)
    assert first.params["a"].dtype == jnp.bfloat16 and first.params["b"].dtype == jnp.float32
    compiled = len(traces)
    run(0.02)
    assert len(traces) == compiled


def test_noise_through_adam_is_warned_of_once_and_only_where_it_is():
    problem = Quadratics().problem()
    rule = pisco_rule(local_lr=0.01, local_steps=1, direction=optax.scale_by_adam())
    with pytest.warns(UserWarning, match="pisco-adam") as said:
        pisco.run(rule, problem, RING, rounds=2, batch_size=1)
    assert len(said) == 1
    pisco.run(rule, problem, RING, rounds=2)  # full batches carry no noise
    for quiet in ("momentum", "clip", None):
        assert not pisco_rule(local_lr=0.01, local_steps=1, direction=quiet).caution
    assert not build("pisco-adam", local_lr=0.01, local_steps=1).caution


def grows():
    return optax.GradientTransformation(
        lambda params: jnp.zeros(()), lambda updates, state, params=None: (updates, jnp.zeros((2,)))
    )


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ("adm", "unknown optimizer 'adm'; did you mean 'adam'?"),
        ({"name": "adam", "beta": 1}, "optimizer 'adam' has no option 'beta'"),
        (3, "the optimizer is 3, expected one of optax"),
        (["clip", 3], "the optimizer is 3"),
        ({"name": "cosine"}, "steps"),
        ({"name": "cosine", "steps": 8, "warmup": 8}, "warmup is 8, expected a number at least 0 and at most 7"),
        ([], "the optimizer is an empty list; name some"),
    ],
)
def test_nonsense_is_refused_in_a_sentence(given, said):
    with pytest.raises(pisco.InputError, match=said):
        dsgd(local_lr=0.1, direction=given)


def turns_into(made):
    return optax.GradientTransformation(lambda params: (), lambda updates, state, params=None: (made(updates), state))


@pytest.mark.parametrize(
    ("given", "said"),
    [
        (grows(), "changes its shapes"),
        (optax.adam(0.1), "holds a step size; set that with local_lr"),
        (optax.MultiSteps(optax.sgd(0.1), 9), "holds a step size; set that with local_lr"),
        (optax.masked(optax.sgd(0.1), lambda model: jax.tree.map(lambda x: x.ndim == 1, model)), "holds a step size"),
        (optax.GradientTransformation(lambda _: jax.random.key(0), lambda up, key, _=None: (up, key)), "a random key"),
        (turns_into(lambda updates: {"other": updates}), "changes the leaves or shapes of the direction"),
        (turns_into(lambda updates: 1 / 0), r"fails on this model \(ZeroDivisionError"),
        (optax.scale_by_backtracking_linesearch(5), r"fails on this model \(TypeError: .*value"),
    ],
)
def test_what_does_not_fit_is_refused_before_a_run(given, said):
    with pytest.raises(pisco.InputError, match=said):
        pisco.run(dsgd(local_lr=0.1, direction=given), Quadratics().problem(), RING, rounds=2)


def test_naming_an_optimizer_computes_nothing():
    """Processes of a cluster must meet before jax does anything."""
    code = "import jax, pisco.algorithms as a; a.build('pisco', local_lr=1, local_steps=1, direction='adam')"
    code += "; from jax._src import xla_bridge; assert not xla_bridge._backends"
    subprocess.run([sys.executable, "-c", code], check=True)


def test_what_is_told_of_an_optimizer_is_the_same_in_every_process():
    assert repr(dsgd(local_lr=0.1)) == "dsgd(local_lr=0.1, comm_lr=1.0, local_steps=1, combine_first=False)"
    assert "direction=Optimizer(trace(None, 0.8, False))" in repr(dsgd(local_lr=0.1, direction=optax.trace(0.8)))
    assert Optimizer.read(["clip", "adam"]) is Optimizer.read(["clip", "adam"])

    def of_parts(decay):
        return Optimizer.read(optax.multi_transform({"a": optax.trace(decay), "b": optax.identity()}, "a")).text

    assert of_parts(0.8) == of_parts(0.8) != of_parts(0.9)

    def schedule(count):
        return 1.0 if count is None else schedule(None)

    assert "(…)" in Optimizer.read(optax.scale_by_schedule(schedule)).text


def test_an_experiment_file_names_optimizers(tmp_path):
    text = (
        '[algorithm]\nname = "dsgd"\nlocal_lr = 0.1\ndirection = [{ name = "clip", max_norm = 0.5 }, "momentum"]\n'
        'outer = "momentum"\n[problem]\ndataset = "a9a"\n[network]\nagents = 4\n[run]\nrounds = 3\n'
    )
    (tmp_path / "own.toml").write_text(text)
    config = pisco.experiments.load(tmp_path / "own.toml")
    (tmp_path / "again.toml").write_text(config.to_toml())
    assert pisco.experiments.load(tmp_path / "again.toml") == config
    assert "clip(max_norm=0.5), momentum" in repr(config.algorithm.build())


@pytest.mark.parametrize(
    "made",
    [
        pisco.algorithms.pisco(local_lr=0.1, local_steps=1),
        pisco.algorithms.build("choco", local_lr=0.1),
        pisco.algorithms.build("diloco", local_lr=0.1, local_steps=2),
        pisco.algorithms.dsgd(local_lr=0.1, direction=[{"name": "momentum", "decay": 0.8}, "adam"]),
    ],
    ids=lambda made: made.name,
)
@pytest.mark.parametrize("again", [copy.deepcopy, lambda made: pickle.loads(pickle.dumps(made))])
def test_a_rule_survives_a_copy_and_another_process(made, again):
    other = again(made)
    assert repr(other) == repr(made) and jax.tree.structure(other) == jax.tree.structure(made)


def test_a_rule_with_an_optimizer_of_optax_can_be_copied():
    """No other process can take its local functions; a copy shares them."""
    rule = dsgd(local_lr=0.1, direction=optax.trace(0.8))
    assert jax.tree.structure(copy.deepcopy(rule)) == jax.tree.structure(rule)
    with pytest.raises((AttributeError, pickle.PicklingError), match="local"):
        pickle.dumps(rule)
