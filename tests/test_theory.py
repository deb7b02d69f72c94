"""Theory against simulation: stability limits on quadratics, the paper's step sizes, curvature estimates."""

import jax.numpy as jnp
import numpy as np
import pytest

import pisco
from pisco import theory
from pisco.algorithms import pisco as pisco_rule
from pisco.engines.job import Carry, Job, Run, Segment
from pisco.engines.scan import ScanEngine


def measured_growth(network, local_lr, rounds=3000, **options):
    """How the squared norm of all agents' parameters changes, on identical quadratics with every curvature up to 1."""
    n, d = network.num_agents, theory.CURVATURES
    hessian = np.diag(np.arange(1, d + 1) / d)
    problem = pisco.problems.quadratic(np.stack([hessian] * n), np.zeros((n, d)))
    rule = pisco_rule(local_lr=local_lr, **options)
    engine, job = ScanEngine(), Job(problem, network, (Run(rule, network.server, 0),))
    (carry,) = engine.start(job)
    x = jnp.asarray(np.random.default_rng(0).normal(size=(n, d)))
    state = carry.state._replace(params=x + 0, tracker=x @ hessian, grads=x @ hessian)
    states, _, _ = engine.advance(job, [Carry(state, carry.memory)], 0, Segment(1, rounds, measured=False))
    with np.errstate(over="ignore", invalid="ignore"):
        ratio = np.sum(np.asarray(states[0].state.params) ** 2) / np.sum(x**2)
    return float(np.nan_to_num(ratio, nan=np.inf))


@pytest.mark.parametrize("weights", ["fdla", "metropolis"])
@pytest.mark.parametrize("one_exchange", [False, True])
@pytest.mark.parametrize("local_steps", [0, 1, 4])
def test_stability_limit_without_server(weights, one_exchange, local_steps, x64):
    """5% below the predicted limit everything dies out, 5% above something grows."""
    network = pisco.Network.ring(10, weights=weights)
    options = {"local_steps": local_steps, "one_exchange": one_exchange}
    limit = theory.largest_stable_step(np.linalg.eigvalsh(network.weights.toarray()), 1.0, **options)
    assert measured_growth(network, 0.95 * limit, **options) < 1
    assert measured_growth(network, 1.05 * limit, **options) > 1e3


def test_the_closed_form_without_local_steps(x64):
    for mode in (-0.826, -0.5, 0.3, 0.9):
        predicted = (1 + mode) ** 2 / (2 * mode**2)
        found = theory.largest_stable_step([mode], 1.0, local_steps=0)
        assert abs(found - min(predicted, 2.0)) < 0.01 * predicted


@pytest.mark.parametrize("server_prob", [0.1, 0.4])
def test_mean_square_stability_with_a_server(server_prob, x64):
    """The mean over many coins of the squared deviation in one mode, exactly, by the transfer of second moments."""
    mode = -0.826
    limit = theory.largest_stable_step([mode], 1.0, local_steps=1, server_prob=server_prob)
    assert limit > theory.largest_stable_step([mode], 1.0, local_steps=1)
    for factor, stable in ((0.95, True), (1.05, False)):
        M = theory.round_matrix(
            mode, 1.0, local_lr=factor * limit, comm_lr=1.0, local_steps=1, one_exchange=False
        )
        moments = np.eye(2)
        for _ in range(4000):
            moments = (1 - server_prob) * M @ moments @ M.T
        assert (np.trace(moments) < 1) == stable


def test_the_curvature_of_a9a():
    problem = pisco.problems.logistic(pisco.data.load("a9a"), agents=10)
    assert abs(theory.smoothness(problem) - 1.82) < 0.02


def test_metropolis_allows_far_larger_steps_than_fdla():
    steps = {
        name: theory.largest_stable_step(
            theory.network_modes(pisco.Network.ring(10, weights=name)), 1.0, local_steps=1
        )
        for name in ("fdla", "metropolis")
    }
    assert steps["metropolis"] > 20 * steps["fdla"]
    one = theory.largest_stable_step(
        theory.network_modes(pisco.Network.ring(10, weights="fdla")), 1.0, local_steps=1, one_exchange=True
    )
    assert one > 20 * steps["fdla"]


def test_corollary_1_shrinks_with_the_horizon():
    facts = {"smoothness": 1.8, "noise": 2.0, "gap": 0.4, "agents": 10, "batch_size": 256}
    facts |= {"mixing_rate": 0.3, "server_prob": 0.1, "local_steps": 2}
    steps = [theory.corollary_1(rounds=k, **facts).local_lr for k in (100, 10_000)]
    assert steps[0] > steps[1] > 0


def test_bad_input_is_one_sentence():
    with pytest.raises(pisco.InputError, match="not symmetric"):
        theory.network_modes(pisco.Network(weights=0.5 * np.eye(4) + 0.5 * np.roll(np.eye(4), 1, axis=1)))
    with pytest.raises(pisco.InputError, match="alpha is 0.01"):
        theory.theorem_1(smoothness=1, mixing_rate=0.5, server_prob=0.1, local_steps=1, alpha=0.01)
