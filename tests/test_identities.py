"""The identities of PISCO and DSGD as properties, in float64 with deterministic gradients."""

import itertools

import jax
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import pisco
from pisco.algorithms import dsgd
from pisco.algorithms import pisco as pisco_rule

from worlds import Quadratics, coins, doubly_stochastic, mixes, trajectory

TIGHT = {"rtol": 0, "atol": 1e-12}

# Few shapes, so that few programs are compiled.
worlds = st.builds(Quadratics, agents=st.sampled_from([2, 5]), dim=st.just(3), seed=st.integers(0, 99))
probabilities = st.sampled_from([0.0, 0.2, 0.7, 1.0])
steps = st.integers(0, 3)
rates = st.sampled_from([0.4, 1.0])


def network(world, server, seed=0, symmetric=False):
    agents = world.minimizers.shape[0]
    return pisco.Network(weights=doubly_stochastic(agents, seed, symmetric), server=server)


def final(states, field="params"):
    return getattr(states[-1], field)


@given(worlds, probabilities, steps, rates, st.booleans())
def test_tracker_mean_is_gradient_mean(world, p, local_steps, comm_lr, one_exchange):
    with jax.enable_x64(True):
        rule = pisco_rule(local_lr=0.02, comm_lr=comm_lr, local_steps=local_steps, one_exchange=one_exchange)
        for state in trajectory(rule, world.problem(), network(world, pisco.bernoulli(p)), 8):
            np.testing.assert_allclose(state.tracker.mean(0), state.grads.mean(0), **TIGHT)


@given(worlds, st.lists(st.floats(0, 1), min_size=5, max_size=5), st.booleans())
def test_tracker_mean_survives_per_agent_servers(world, probabilities, one_exchange):
    with jax.enable_x64(True):
        agents = world.minimizers.shape[0]
        net = pisco.Network.ring(max(agents, 3)) if agents >= 3 else pisco.Network.path(agents)
        net = net.with_server(pisco.per_agent(probabilities[:agents]))
        rule = pisco_rule(local_lr=0.02, local_steps=1, one_exchange=one_exchange)
        for state in trajectory(rule, world.problem(), net, 8):
            np.testing.assert_allclose(state.tracker.mean(0), state.grads.mean(0), **TIGHT)


@given(worlds, probabilities, steps, rates)
def test_mean_moves_by_the_mean_gradients_of_the_round(world, p, local_steps, comm_lr):
    """x̄ᵏ⁺¹ = x̄ᵏ − η_c·η_l·Σ_t ḡᵏ⁺¹ᵗ, the gradients at the local iterates (t = 0 is the round's start)."""
    with jax.enable_x64(True):
        lr = 0.02
        rule = pisco_rule(local_lr=lr, comm_lr=comm_lr, local_steps=local_steps)
        states = trajectory(rule, world.problem(), network(world, pisco.bernoulli(p)), 4)
        for before, after in itertools.pairwise(states):
            x, y, g = before.params.T, before.tracker.T, before.grads.T
            total = g.mean(1)
            for _ in range(local_steps):
                x = x - lr * y
                new = world.gradient(x)
                y, g = y + new - g, new
                total = total + g.mean(1)
            expected = before.params.mean(0) - comm_lr * lr * total
            np.testing.assert_allclose(after.params.mean(0), expected, **TIGHT)


@given(worlds, probabilities, steps, rates)
def test_three_forms_agree(world, p, local_steps, comm_lr):
    """(X, Y), telescoped Yᵏ⁺¹ = (Yᵏ + Gᵏ⁺¹ − Gᵏ)Wᵏ, and control variates C = Y − G."""
    with jax.enable_x64(True):
        lr, rounds = 0.02, 6
        server = pisco.bernoulli(p)
        net = network(world, server)
        states = trajectory(
            pisco_rule(local_lr=lr, comm_lr=comm_lr, local_steps=local_steps), world.problem(), net, rounds
        )
        W = net.weights.toarray()
        X = np.outer(world.x0, np.ones(len(W)))
        G = world.gradient(X)
        C = np.zeros_like(G)
        for k, mix in enumerate(mixes(W, server, rounds)):
            x = X - lr * (G + C)  # the first corrected step reuses G; T_o more follow
            for _ in range(local_steps):
                x = x - lr * (world.gradient(x) + C)
            new_X = ((1 - comm_lr) * X + comm_lr * x) @ mix
            new_G = world.gradient(new_X)
            telescoped = (states[k].tracker.T + new_G - G) @ mix
            C = C @ mix + new_G @ (mix - np.eye(len(W)))
            X, G = new_X, new_G
            np.testing.assert_allclose(states[k + 1].params.T, X, **TIGHT)
            np.testing.assert_allclose(states[k + 1].tracker.T, C + G, **TIGHT)
            np.testing.assert_allclose(states[k + 1].tracker.T, telescoped, **TIGHT)


@given(worlds)
def test_without_local_steps_it_is_full_atc_gradient_tracking(world):
    with jax.enable_x64(True):
        net = network(world, pisco.never())
        W = net.weights.toarray()
        X = np.outer(world.x0, np.ones(len(W)))
        G = world.gradient(X)
        Y = G
        states = trajectory(pisco_rule(local_lr=0.03, local_steps=0), world.problem(), net, 6)
        for state in states[1:]:
            X = (X - 0.03 * Y) @ W
            new = world.gradient(X)
            Y, G = (Y + new - G) @ W, new
            np.testing.assert_allclose(state.params.T, X, **TIGHT)
            np.testing.assert_allclose(state.tracker.T, Y, **TIGHT)


@given(worlds, steps)
def test_averaging_weights_are_the_server(world, local_steps):
    with jax.enable_x64(True):
        agents = world.minimizers.shape[0]
        rule = pisco_rule(local_lr=0.02, local_steps=local_steps)
        J = np.full((agents, agents), 1 / agents)
        gossip = trajectory(rule, world.problem(), pisco.Network(weights=J), 6)
        server = trajectory(rule, world.problem(), network(world, pisco.always()), 6)
        coin = trajectory(rule, world.problem(), network(world, pisco.bernoulli(1.0)), 6)
        np.testing.assert_allclose(final(gossip), final(server), **TIGHT)
        np.testing.assert_array_equal(final(coin), final(server))


@given(worlds, rates)
def test_one_server_step_is_parallel_gradient_descent(world, comm_lr):
    with jax.enable_x64(True):
        net = network(world, pisco.always())
        x = world.x0.copy()
        for _ in range(6):
            gradients = world.gradient(np.outer(x, np.ones(net.num_agents)))
            x = x - comm_lr * 0.05 * gradients.mean(axis=1)
        rule = pisco_rule(local_lr=0.05, comm_lr=comm_lr, local_steps=0)
        np.testing.assert_allclose(final(trajectory(rule, world.problem(), net, 6))[0], x, **TIGHT)
        if comm_lr == 1.0:
            plain = trajectory(dsgd(local_lr=0.05), world.problem(), net, 6)
            np.testing.assert_allclose(final(plain)[0], x, **TIGHT)


@given(worlds)
def test_periodic_averaging_beyond_the_run_is_plain_gossip(world):
    with jax.enable_x64(True):
        rule = dsgd(local_lr=0.05)
        often = trajectory(rule, world.problem(), network(world, pisco.every(7)), 6)
        never = trajectory(rule, world.problem(), network(world, pisco.never()), 6)
        np.testing.assert_array_equal(final(often), final(never))


def test_not_equal_whatever_intuition_says(x64):
    world = Quadratics()
    net = network(world, pisco.never())

    def end(rule):
        return final(trajectory(rule, world.problem(), net, 5))

    atc, cta = end(dsgd(local_lr=0.05)), end(dsgd(local_lr=0.05, combine_first=True))
    assert np.abs(atc - cta).max() > 1e-3
    two = end(pisco_rule(local_lr=0.05, local_steps=0))
    one = end(pisco_rule(local_lr=0.05, local_steps=0, one_exchange=True))
    assert np.abs(two - one).max() > 1e-3


@pytest.mark.parametrize("p", [0.0, 0.3, 1.0])
def test_expected_contraction_is_lambda_p(x64, p):
    """On the slowest eigenvector E‖Wᵏx − x̄‖²/‖x − x̄‖² = 1 − λ_p, from sampled coins."""
    net = pisco.Network.ring(10, weights="fdla", server=pisco.bernoulli(p))
    values, vectors = np.linalg.eigh(net.weights.toarray())
    slow = np.argmin(np.where(np.isclose(values, 1), np.inf, -np.abs(values)))
    x = vectors[:, slow]
    rounds = 4000
    share = np.mean(coins(pisco.bernoulli(p), rounds))
    kept = (1 - share) * np.sum((net.weights @ x - x.mean()) ** 2) / np.sum((x - x.mean()) ** 2)
    slack = 4 * np.sqrt(p * (1 - p) / rounds) + 1e-12
    assert abs(kept - (1 - net.expected_mixing_rate())) <= slack


@pytest.mark.parametrize("one_exchange", [False, True])
@pytest.mark.parametrize(
    "server", [pisco.never(), pisco.bernoulli(0.2), pisco.per_agent([0.3] * 6)], ids=repr
)
def test_pisco_finds_the_optimum_of_heterogeneous_quadratics(x64, server, one_exchange):
    world = Quadratics()
    rule = pisco_rule(local_lr=0.05, local_steps=1, one_exchange=one_exchange)
    net = pisco.Network.ring(6, weights="metropolis", server=server)
    result = pisco.run(rule, world.problem(), net, rounds=1500, eval_every=1500)
    np.testing.assert_allclose(result.params, np.tile(world.optimum, (6, 1)), atol=1e-8)


def test_dsgd_stalls_at_its_biased_fixed_point(x64):
    """X = (X − ηG(X))W: solved exactly, and not the optimum."""
    world, lr = Quadratics(), 0.05
    W = doubly_stochastic(6)
    n, d = world.minimizers.shape
    A = np.zeros((n * d, n * d))
    b = np.zeros(n * d)
    for i in range(n):
        for j in range(n):
            A[i * d : (i + 1) * d, j * d : (j + 1) * d] = W[j, i] * (np.eye(d) - lr * world.hessians[j])
            b[i * d : (i + 1) * d] += lr * W[j, i] * world.hessians[j] @ world.minimizers[j]
    fixed = np.linalg.solve(np.eye(n * d) - A, b).reshape(n, d)
    result = pisco.run(
        dsgd(local_lr=lr), world.problem(), pisco.Network(weights=W), rounds=2000, eval_every=2000
    )
    np.testing.assert_allclose(result.params, fixed, atol=1e-8)
    assert np.abs(fixed.mean(0) - world.optimum).max() > 1e-4
