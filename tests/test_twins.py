"""Every algorithm against its naive NumPy twin, in float64, state by state."""

import numpy as np
import pytest

import pisco

from twins import TWINS
from worlds import Quadratics, doubly_stochastic, mixes, trajectory

ROUNDS = 50


def assert_twins_agree(name, hyperparameters, server, symmetric, tolerance=1e-12):
    world = Quadratics()
    W = doubly_stochastic(6, symmetric=symmetric)
    if not symmetric:
        assert np.abs(W - W.T).max() > 0.01
    algorithm = getattr(pisco.algorithms, name)(**hyperparameters)
    states = trajectory(algorithm, world.problem(), pisco.Network(weights=W, server=server), ROUNDS)
    twin = TWINS[name](world.x0, world.gradient, mixes(W, server, ROUNDS), **hyperparameters)
    for k, (state, naive) in enumerate(zip(states[1:], twin, strict=True)):
        for field, expected in naive.items():
            np.testing.assert_allclose(
                getattr(state, field).T, expected, rtol=0, atol=tolerance, err_msg=f"{field}, round {k}"
            )


@pytest.mark.parametrize("symmetric", [True, False])
@pytest.mark.parametrize("server_prob", [0.0, 0.3, 1.0])
@pytest.mark.parametrize("comm_lr", [0.5, 1.0])
@pytest.mark.parametrize("local_steps", [0, 1, 3])
@pytest.mark.parametrize("one_exchange", [False, True])
def test_pisco(x64, one_exchange, local_steps, comm_lr, server_prob, symmetric):
    hyperparameters = {
        "local_lr": 0.02,
        "comm_lr": comm_lr,
        "local_steps": local_steps,
        "one_exchange": one_exchange,
    }
    assert_twins_agree("pisco", hyperparameters, pisco.bernoulli(server_prob), symmetric)


@pytest.mark.parametrize("symmetric", [True, False])
@pytest.mark.parametrize(
    "server", [pisco.never(), pisco.bernoulli(0.3), pisco.every(4), pisco.always()], ids=repr
)
@pytest.mark.parametrize("combine_first", [False, True])
def test_dsgd(x64, combine_first, server, symmetric):
    assert_twins_agree("dsgd", {"local_lr": 0.05, "combine_first": combine_first}, server, symmetric)


def test_a_transposed_matrix_is_noticed(x64):
    """The orientation test has teeth: the twin on Wᵀ is far off."""
    world, W = Quadratics(), doubly_stochastic(6, symmetric=False)
    states = trajectory(
        pisco.algorithms.dsgd(local_lr=0.05), world.problem(), pisco.Network(weights=W), rounds=5
    )
    wrong = list(TWINS["dsgd"](world.x0, world.gradient, [W.T] * 5, local_lr=0.05))[-1]["params"]
    assert np.abs(states[-1].params.T - wrong).max() > 1e-3
