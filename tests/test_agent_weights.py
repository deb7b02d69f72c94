"""Agents that count unequally: exact methods reach the weighted optimum, in every engine and in a federation."""

import jax
import numpy as np
import pytest

import pisco
from pisco import theory
from pisco.algorithms import build
from pisco.experiments import load
from pisco.federation.plan import Federation
from pisco.problems.subsample import subsample

from worlds import Quadratics, after

Q = np.array([0.52, 0.006, 0.2, 0.1, 0.1, 0.074])
RING = pisco.Network.ring(6, server=pisco.bernoulli(0.3))


def weighted_optimum(world):
    total = np.einsum("n,nij->ij", Q, world.hessians)
    return np.linalg.solve(total, np.einsum("n,nij,nj->i", Q, world.hessians, world.minimizers))


@pytest.mark.parametrize("name", ["pisco", "pisco-one-exchange", "pisco-vr", "scaffold"])
def test_exact_methods_reach_the_weighted_optimum_of_quadratics(x64, name):
    world = Quadratics()
    network = pisco.Network.ring(6, server=pisco.always()) if name == "scaffold" else RING
    found = after(build(name, local_lr=0.03, local_steps=2), world.problem().weighted(Q), network, 3000)
    np.testing.assert_allclose(found, np.tile(weighted_optimum(world), (6, 1)), atol=1e-10)


def uneven():
    """Logistic regression with a ridge on agents of 4 to 40 samples."""
    rng = np.random.default_rng(1)
    sizes = [40, 4, 15, 8, 8, 5]
    data = [{"a": rng.normal(size=(m, 3)) + i / 3, "y": rng.choice([-1.0, 1.0], m)} for i, m in enumerate(sizes)]

    def loss(x, batch, key):
        return jax.numpy.logaddexp(0, -batch["y"] * (batch["a"] @ x)) + 0.05 * x @ x

    return pisco.Problem(loss, np.zeros(3), data, weights="samples"), data, loss


def test_weights_by_samples_train_the_pooled_logistic_regression(x64):
    problem, data, loss = uneven()
    pooled = {name: np.concatenate([part[name] for part in data]) for name in ("a", "y")}
    gradient = jax.grad(lambda x: loss(x, pooled, None).mean())
    x, both = np.zeros(3), jax.jit(lambda x: (jax.jacfwd(gradient)(x), gradient(x)))
    for _ in range(50):  # Newton's method
        x = x - np.linalg.solve(*both(x))
    found = after(pisco.algorithms.pisco(local_lr=0.1, local_steps=1), problem, RING, 3000)
    np.testing.assert_allclose(found, np.tile(x, (6, 1)), atol=1e-10)
    np.testing.assert_allclose(problem.objective(x), loss(x, pooled, None).mean(), atol=1e-12)


@pytest.mark.parametrize("few", [None, pytest.param(3, marks=pytest.mark.slow)])
def test_engines_and_blocks_agree(x64, few):
    problem, _, _ = uneven()
    problem.eval_samples, problem.eval_batch = few, 16
    rule = pisco.algorithms.pisco(local_lr=0.1, local_steps=1)
    scan, sharded = (
        pisco.run(rule, problem, RING, rounds=4, batch_size=2, eval_every=2, engine=engine)
        for engine in ("scan", "sharded")
    )
    for name in ("loss", "grad_norm_sq"):
        np.testing.assert_allclose(sharded.history[name], scan.history[name], rtol=1e-10)
    np.testing.assert_allclose(sharded.params, scan.params, atol=1e-12)


def test_equal_weights_are_none_and_theory_sees_the_others(x64):
    world = Quadratics()
    rule = pisco.algorithms.pisco(local_lr=0.03, local_steps=1)
    plain, equal = (after(rule, world.problem().weighted(w), RING, 20) for w in (None, [1 / 6] * 6))
    np.testing.assert_allclose(plain, equal, atol=1e-13)
    found = theory.estimate(subsample(world.problem().weighted(Q), 10_000))
    curvatures = [6 * q * np.linalg.eigvalsh(A)[-1] for q, A in zip(Q, world.hessians, strict=True)]
    assert found.agent_smoothness == pytest.approx(max(curvatures), rel=1e-3)
    total = np.einsum("n,nij->ij", Q, world.hessians)
    assert found.smoothness == pytest.approx(np.linalg.eigvalsh(total)[-1], rel=1e-3)


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ([0.5] * 3, r"shape \(3,\), expected a number for each of the 6 agents"),
        ([0.5, 0.6, -0.1, 0, 0, 0], r"weights\[2\] is -0.1, expected a number that is not negative"),
        ([1.0] * 6, "weights add up to 6, expected 1"),
        ([np.nan] * 6, r"weights\[0\] is nan"),
        ("sample", "did you mean 'samples'"),
        ({"a": 1}, "expected a number for every agent"),
    ],
)
def test_nonsense_is_refused_in_a_sentence(given, said):
    with pytest.raises(pisco.InputError, match=said):
        Quadratics().problem().weighted(given)


def test_an_experiment_file_weighs_agents():
    some = load("a9a", ["problem.weights=samples", "problem.partition=dirichlet", "problem.partition_options.alpha=1"])
    problem = some.problem.build(10, "float32")
    np.testing.assert_allclose(problem.scales, 10 * problem.sizes / problem.num_samples, rtol=1e-6)
    assert "weights" not in load("a9a").to_toml().split("[problem]")[1].split("[network]")[0]


def test_a_plan_weighs_members_and_keeps_its_hash_without_weights():
    given = {"rounds": 9, "algorithm": {"local_lr": 0.1, "local_steps": 1}, "agents": 3}
    plan = Federation.create("demo", **given)
    assert plan.scale_of("agent-0") is None and "weight =" not in plan.to_toml()
    samples = {"agent-0": 1000, "agent-1": 200, "agent-2": 300}
    weighed = Federation.create("demo", **given, agent_weights=samples)
    assert [weighed.scale_of(name) for name in samples] == [2.0, 0.4, 0.6]
    later = weighed.change(3, "add", "west", "127.0.0.1:7999", 250)
    assert later.scale_of("west") == 0.5 and later.scale_of("agent-0") == 2.0
    assert weighed.hash_at(2) == later.hash_at(2) != later.hash_at(3)
    with pytest.raises(pisco.InputError, match="'west' has no weight, but others have"):
        weighed.change(3, "add", "west", "127.0.0.1:7999")
    with pytest.raises(pisco.InputError, match="keeps the one that it came with"):
        weighed.change(3, "remove", "agent-1", weight=3.0)
    with pytest.raises(pisco.InputError, match="the weight of 'agent-9' has no agent"):
        Federation.create("demo", **given, agent_weights={"agent-9": 1})
    with pytest.raises(pisco.InputError, match="greater than 0"):
        Federation.create("demo", **given, agent_weights=samples | {"agent-1": -1})
