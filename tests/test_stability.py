"""Stability limits for agents that differ, on any doubly stochastic W, against the naive algorithm itself."""

import numpy as np
import pytest
from scipy.sparse import csr_array

import pisco
from pisco import theory
from pisco.theory.stability import weight_modes

import stability_cases
import twins
from stability_cases import random_hessians, round_map


def check_limits(seeds, **sizes):
    """Never 5% above the step at which second moments begin to grow; at least half of it in nine cases of ten."""
    exact, safe, *_ = stability_cases.ratios(seeds, **sizes).T
    for found in (exact, safe):
        assert found.max() < 1.05, seeds[int(np.argmax(found))]
        assert np.mean(found >= 0.5) >= 0.9
    assert exact.min() > 0.9, seeds[int(np.argmin(exact))]


def test_limits_of_random_cases():
    check_limits(range(1000, 1010), agents=4, dimensions=3, start=0.7)


@pytest.mark.slow
def test_limits_of_two_hundred_random_cases():
    check_limits(range(200))


@pytest.mark.parametrize("steep", [range(0, 8, 2), range(4)])
def test_agents_that_are_as_steep_as_others_but_in_directions_of_their_own(steep):
    weights, first = pisco.Network.ring(8).weights, np.isin(np.arange(8), steep)
    hessians = np.stack([np.diag([one, 1.0 - one]) for one in first])
    for rule in ({"local_steps": 1}, {"local_steps": 4, "one_exchange": True, "server_prob": 1.0}):
        exact, safe = (theory.largest_safe_step(known, weights, **rule) for known in (hessians, np.ones(8)))
        assert safe <= 1.01 * exact


def test_mean_square_growth_is_that_of_drawn_coins():
    """Many runs of the naive algorithm, each with coins of its own, against the growth that the theory gives."""
    rng = np.random.default_rng(3)
    hessians = random_hessians(rng, 4, 2)
    weights = 0.5 * np.eye(4) + 0.5 * np.roll(np.eye(4), 1, axis=1)
    p, average = 0.3, np.full((4, 4), 0.25)
    rule = {"local_steps": 2, "one_exchange": True}
    lr = 0.8 * theory.largest_safe_step(hessians, weights, server_prob=p, **rule)
    maps = [round_map(hessians, W, [np.arange(4)], local_lr=lr, **rule) for W in (weights, average)]
    states = rng.normal(size=(len(maps[0]), 20_000))
    sizes = []
    for _ in range(40):
        served = rng.random(states.shape[1]) < p
        states = np.where(served, maps[1] @ states, maps[0] @ states)
        sizes.append(np.mean(np.sum(states**2, axis=0)))
    seen = (sizes[-1] / sizes[9]) ** (1 / 30)
    assert theory.agents_growth(hessians, weights, local_lr=lr, server_prob=p, **rule) == pytest.approx(seen, rel=0.02)


@pytest.mark.parametrize("one_exchange", [False, True])
def test_unlike_agents_diverge_above_the_limit_and_converge_below(one_exchange):
    """Whole runs of the twin, on weights that are not symmetric; f's own curvature would allow twice as much."""
    hessians = np.array([0.1, 0.1, 0.1, 5.0])[:, None, None] * np.eye(2)
    weights = 0.7 * np.eye(4) + 0.3 * np.roll(np.eye(4), 1, axis=1)
    rule = {"local_steps": 3, "one_exchange": one_exchange}
    limit = theory.largest_safe_step(hessians, weights, **rule)
    alike = theory.largest_stable_step(weight_modes(weights), hessians.mean(0).max(), **rule)
    assert alike > 2 * limit
    minimizers = np.arange(8.0).reshape(2, 4)

    def gradient(X):
        return np.einsum("nij,jn->in", hessians, X - minimizers)

    def away(share):
        for state in twins.pisco(np.zeros(2), gradient, [weights] * 3000, local_lr=share * limit, **rule):
            size = np.abs(state["params"] - state["params"].mean(axis=1, keepdims=True)).max()
            if not size < 1e6:
                break
        return size

    assert away(0.95) < 1e-2 and away(1.05) > 1e5


@pytest.mark.parametrize("one_exchange", [False, True])
@pytest.mark.parametrize("p", [0.0, 0.1, 0.5])
def test_modes_of_like_agents_agree_with_all_agents_together(one_exchange, p):
    """Complex modes, and the modes 1 of a disconnected graph: within 5%, as for symmetric and connected ones."""
    turn = np.roll(np.eye(3), 1, axis=1)
    apart = np.zeros((5, 5))
    apart[:3, :3], apart[3:, 3:] = 0.5 * np.eye(3) + 0.5 * turn, [[0.4, 0.6], [0.6, 0.4]]
    hessian = np.diag(np.linspace(0.25, 1, 4))
    for weights in (0.2 * np.eye(3) + 0.8 * turn, apart, pisco.Network.ring(4, weights="fdla").weights.toarray()):
        options = {"local_steps": 2, "server_prob": p, "one_exchange": one_exchange}
        together = theory.largest_safe_step(np.stack([hessian] * len(weights)), weights, **options)
        modes = theory.largest_stable_step(weight_modes(weights), 1.0, **options)
        assert 0.9 * together <= modes <= 1.05 * together


def test_the_modes_that_are_kept():
    assert weight_modes(np.eye(1)) == ()
    assert weight_modes(np.kron(np.eye(2), np.full((2, 2), 0.5))) == pytest.approx((0, 0, 1))
    modes = weight_modes(0.5 * np.eye(4) + 0.5 * np.roll(np.eye(4), 1, axis=1))
    assert sorted(np.round(modes, 9), key=abs) == [0, 0.5 + 0.5j]
    ring = csr_array(np.eye(1001)[:, np.roll(np.arange(1001), 1)] * 0.5 + 0.5 * np.eye(1001))
    with pytest.raises(pisco.InputError, match="not symmetric, and the eigenvalues of 1001 agents"):
        weight_modes(ring)


def test_many_agents_fall_back_on_modes_and_flat_ones_bear_any_step():
    ring = pisco.Network.ring(30)
    options = {"local_steps": 1, "server_prob": 0.2}
    alike = theory.largest_stable_step(theory.weight_modes(ring.weights), 2.0, **options)
    assert theory.largest_safe_step(np.linspace(1, 2, 30), ring.weights, **options) == alike
    assert theory.agents_growth(np.linspace(1, 2, 30), ring.weights, local_lr=0.9 * alike, **options) < 1
    assert theory.largest_safe_step(np.zeros(4), pisco.Network.ring(4).weights, local_steps=1) == np.inf


def test_the_simplest_cases_and_absurd_steps():
    """One agent and all-to-all averaging are gradient descent, p or no p; steps far beyond are infinitely bad."""
    average, same = np.full((6, 6), 1 / 6), np.ones((6, 1, 1))
    for p in (0.0, 0.5, 1.0):
        options = {"local_steps": 0, "server_prob": p}
        assert theory.largest_safe_step(np.ones((1, 1, 1)), np.eye(1), **options) == pytest.approx(2, rel=0.01)
        assert theory.largest_safe_step(same, average, **options) == pytest.approx(2, rel=0.01)
        assert theory.agents_growth(same, average, local_lr=1.0, **options) == pytest.approx(0, abs=1e-6)
        assert theory.agents_growth(same, average, local_lr=1e9, local_steps=40, server_prob=p) == np.inf


def test_curvatures_from_the_problem_itself():
    hessians = random_hessians(np.random.default_rng(5), 5, 3)
    problem = pisco.problems.quadratic(hessians, np.zeros((5, 3)))
    found = theory.agent_curvatures(problem)
    assert found == pytest.approx(np.linalg.eigvalsh(hessians).max(axis=-1), rel=0.02)
    assert theory.estimate(problem).agent_curvatures == pytest.approx(tuple(found), rel=0.02)


def test_wrong_shapes_and_sums_are_one_sentence():
    with pytest.raises(pisco.InputError, match="expected \\(n, d, d\\) and \\(n, n\\)"):
        theory.largest_safe_step(np.ones((3, 2, 2)), np.eye(2), local_steps=0)
    with pytest.raises(pisco.InputError, match="not doubly stochastic"):
        theory.largest_safe_step(np.ones(2), np.array([[0.9, 0.1], [0.2, 0.8]]), local_steps=0)
    with pytest.raises(pisco.InputError, match="server_prob is 2"):
        theory.agents_growth(np.ones(2), np.eye(2), local_lr=0.1, local_steps=0, server_prob=2)


def test_errors_that_grow_slowly_still_grow():
    """One agent has no links, and the errors grow by a few millionths a round from η_l = 0.192 on."""
    weights = np.array(
        [
            [1.0, 0.0, 0.0, 0.0, 0.0],
            [0.0, 0.4787, 0.0, 0.2918, 0.2295],
            [0.0, 0.0, 0.698, 0.1417, 0.1603],
            [0.0, 0.2918, 0.1417, 0.3869, 0.1796],
            [0.0, 0.2295, 0.1603, 0.1796, 0.4306],
        ]
    )
    curvatures = np.array([3.6691, 3.9206, 7.8603, 9.1303, 0.1243])[:, None, None]
    rule = {"local_steps": 8, "comm_lr": 0.3, "server_prob": 0.05, "one_exchange": True}
    limit = theory.largest_safe_step(curvatures, weights, **rule)
    assert 0.95 * 0.192 < limit < 1.05 * 0.192
    assert theory.agents_growth(curvatures, weights, local_lr=0.2, **rule) > 1
