"""The identities of PISCO and DSGD as properties, in float64 with deterministic gradients."""

import itertools

import jax
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import pisco
from pisco.algorithms import beer, build, compressed, compressors, dsgd, dsgt, kgt, momentum_dsgd, scaffold, sd_gt
from pisco.algorithms import pisco as pisco_rule

import twins
from worlds import Quadratics, after, coins, doubly_stochastic, mixes, thinned, trajectory

TIGHT = {"rtol": 0, "atol": 1e-12}
SLOW = pytest.mark.slow

# One shape, so that few programs are compiled.
worlds = st.builds(Quadratics, agents=st.just(6), dim=st.just(4), seed=st.integers(0, 99))
probabilities = st.sampled_from([0.0, 0.2, 0.7, 1.0])
steps = st.sampled_from([0, 1, 3])
rates = st.sampled_from([0.4, 1.0])

# How many local steps and how large the step of a round: each pair is a program, so all of them are for the slow tests.
some_steps = pytest.mark.parametrize(
    "sizes",
    [
        pytest.param(st.sampled_from([(0, 1.0), (3, 0.4)]), id="two"),
        pytest.param(st.tuples(steps, rates), id="all", marks=SLOW),
    ],
)


def network(world, server, seed=0, symmetric=False):
    agents = world.minimizers.shape[0]
    return pisco.Network(weights=doubly_stochastic(agents, seed, symmetric), server=server)


def final(states, field="params"):
    return getattr(states[-1], field)


@some_steps
@given(data=st.data(), world=worlds, p=probabilities, one_exchange=st.booleans())
def test_tracker_mean_is_gradient_mean(sizes, data, world, p, one_exchange):
    local_steps, comm_lr = data.draw(sizes)
    with jax.enable_x64(True):
        rule = pisco_rule(local_lr=0.02, comm_lr=comm_lr, local_steps=local_steps, one_exchange=one_exchange)
        for state in trajectory(rule, world.problem(), network(world, pisco.bernoulli(p)), 8):
            np.testing.assert_allclose(state.tracker.mean(0), state.grads.mean(0), **TIGHT)


@pytest.mark.parametrize("one_exchange", [False, pytest.param(True, marks=SLOW)])
@given(world=worlds, probabilities=st.lists(st.floats(0, 1), min_size=6, max_size=6))
def test_tracker_mean_survives_per_agent_servers(one_exchange, world, probabilities):
    with jax.enable_x64(True):
        net = pisco.Network.ring(6, server=pisco.per_agent(probabilities))
        rule = pisco_rule(local_lr=0.02, local_steps=1, one_exchange=one_exchange)
        for state in trajectory(rule, world.problem(), net, 8):
            np.testing.assert_allclose(state.tracker.mean(0), state.grads.mean(0), **TIGHT)


@some_steps
@given(data=st.data(), world=worlds, p=probabilities)
def test_mean_moves_by_the_mean_gradients_of_the_round(sizes, data, world, p):
    """x̄ᵏ⁺¹ = x̄ᵏ − η_c·η_l·Σ_t ḡᵏ⁺¹ᵗ, the gradients at the local iterates (t = 0 is the round's start)."""
    local_steps, comm_lr = data.draw(sizes)
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


@some_steps
@given(data=st.data(), world=worlds, p=probabilities)
def test_three_forms_agree(sizes, data, world, p):
    """(X, Y), telescoped Yᵏ⁺¹ = (Yᵏ + Gᵏ⁺¹ − Gᵏ)Wᵏ, and control variates C = Y − G."""
    local_steps, comm_lr = data.draw(sizes)
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


@some_steps
@given(data=st.data(), world=worlds)
def test_averaging_weights_are_the_server(sizes, data, world):
    local_steps, comm_lr = data.draw(sizes)
    with jax.enable_x64(True):
        agents = world.minimizers.shape[0]
        rule = pisco_rule(local_lr=0.02, comm_lr=comm_lr, local_steps=local_steps)
        J = np.full((agents, agents), 1 / agents)
        gossip = trajectory(rule, world.problem(), pisco.Network(weights=J), 6)
        server = trajectory(rule, world.problem(), network(world, pisco.always()), 6)
        coin = trajectory(rule, world.problem(), network(world, pisco.bernoulli(1.0)), 6)
        for other in (gossip, coin):  # other programs: the compiler may round each in its own way
            np.testing.assert_allclose(final(other), final(server), **TIGHT)


@pytest.mark.parametrize("comm_lr", [1.0, pytest.param(0.4, marks=SLOW)])
@given(world=worlds)
def test_one_server_step_is_parallel_gradient_descent(comm_lr, world):
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


@pytest.mark.parametrize(
    ("server", "one_exchange"),
    [
        (pisco.never(), True),
        (pisco.bernoulli(0.2), False),
        (pisco.per_agent([0.3] * 6), True),
        pytest.param(pisco.never(), False, marks=SLOW),
        pytest.param(pisco.bernoulli(0.2), True, marks=SLOW),
        pytest.param(pisco.per_agent([0.3] * 6), False, marks=SLOW),
    ],
    ids=repr,
)
def test_pisco_finds_the_optimum_of_heterogeneous_quadratics(x64, server, one_exchange):
    world = Quadratics()
    rule = pisco_rule(local_lr=0.05, local_steps=1, one_exchange=one_exchange)
    net = pisco.Network.ring(6, weights="metropolis", server=server)
    np.testing.assert_allclose(after(rule, world.problem(), net, 1500), np.tile(world.optimum, (6, 1)), atol=1e-8)


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
    found = after(dsgd(local_lr=lr), world.problem(), pisco.Network(weights=W), 2000)
    np.testing.assert_allclose(found, fixed, atol=1e-8)
    assert np.abs(fixed.mean(0) - world.optimum).max() > 1e-4


EXACT = {
    "dsgt": dsgt(local_lr=0.03),
    "dsgt-cta": dsgt(local_lr=0.03, combine_first=True),
    "kgt": kgt(local_lr=0.02, local_steps=3),
    "kgt-central": kgt(local_lr=0.02, local_steps=3, start="central"),
    "periodical-gt": kgt(local_lr=0.02, local_steps=3, last_gradient=True),
    "lsgt": build("lsgt", local_lr=0.02, local_steps=3),
    "pisco-compressed": build("pisco-compressed", local_lr=0.02, local_steps=1, consensus_lr=0.3),
    "beer": build("beer", local_lr=0.02, consensus_lr=0.3),
    "motef": build("motef", local_lr=0.02, consensus_lr=0.3, momentum=0.5),
    "extra": build("extra", local_lr=0.03),
    "nids": build("nids", local_lr=0.03),
    "led": build("led", local_lr=0.02, local_steps=3),
    "gt-hsgd": build("gt-hsgd", local_lr=0.03),
}


@pytest.mark.parametrize("name", thinned(EXACT, 2))
def test_exact_methods_find_the_optimum(name, x64):
    world = Quadratics()
    found = after(EXACT[name], world.problem(), pisco.Network.ring(6), 4000)
    np.testing.assert_allclose(found, np.tile(world.optimum, (6, 1)), atol=1e-8)


def two_paths(server=None, **given):
    graph = pisco.networks.graphs.clusters(2, 3, inner="path")
    return pisco.Network(graph, server=server or pisco.bernoulli(0.3), **given)


def one_of_each(**given):
    return two_paths(sampling=pisco.sample_groups(1, groups=[0, 0, 0, 1, 1, 1]), receivers="sampled", **given)


SUBNETS = {
    "clusters": lambda: two_paths(server=pisco.every(5)),
    "clusters, coin": two_paths,
    "ring, coin": lambda: pisco.Network.ring(6, server=pisco.bernoulli(0.3)),
    "no links, coin": lambda: pisco.Network(weights=np.eye(6), server=pisco.bernoulli(0.3)),
    "absent": lambda: two_paths(presence=pisco.churn(0.1, 0.3)),
    "agent by agent": lambda: two_paths(server=pisco.per_agent([0.2, 0.3, 0.5, 0.5, 0.9, 1.0])),
    "sampled": one_of_each,
    "sampled, after gossip": lambda: one_of_each(gossip_before_server=True),
}


@pytest.mark.parametrize("name", [pytest.param(n, marks=SLOW if n in ("absent", "sampled") else []) for n in SUBNETS])
def test_sd_gt_finds_the_optimum(x64, name):
    """Also where C moves for some agents alone, as it still sums to zero."""
    world = Quadratics()
    found = after(sd_gt(local_lr=0.02), world.problem(), SUBNETS[name](), 8000)
    np.testing.assert_allclose(found, np.tile(world.optimum, (6, 1)), rtol=0, atol=1e-10)


def test_pisco_finds_the_optimum_where_few_hear_the_average(x64):
    world = Quadratics()
    found = after(pisco_rule(local_lr=0.01, local_steps=1), world.problem(), one_of_each(), 6000)
    np.testing.assert_allclose(found, np.tile(world.optimum, (6, 1)), atol=1e-8)


@pytest.mark.parametrize("server", [pisco.never(), pisco.always()], ids=repr)
def test_sd_gt_in_one_layer(x64, server):
    """DSGD where no server round ends a period, K-GT where every round does."""
    world = Quadratics()
    net = pisco.Network(weights=doubly_stochastic(6, symmetric=False), server=server)
    known = dsgd(local_lr=0.04) if server.never_reached else kgt(local_lr=0.04, local_steps=1)
    one, two = (after(rule, world.problem(), net, 40) for rule in (sd_gt(local_lr=0.04), known))
    np.testing.assert_allclose(one, two, rtol=0, atol=1e-12)


@pytest.mark.parametrize("case", ["subnets of one", "agents alike", "subnets that average", "any, but for two things"])
def test_sd_gt_beside_its_authors_code(x64, case):
    """The same in three cases; elsewhere two differences, told in the docs, are all."""
    world, W, groups = Quadratics(), two_paths().weights.toarray(), np.repeat([0, 1], 3)
    if case == "subnets of one":
        W, groups = np.eye(6), np.arange(6)
    if case == "subnets that average":
        W = np.kron(np.eye(2), np.full((3, 3), 1 / 3))
    if case == "agents alike":
        world.hessians, world.minimizers = world.hessians[3 * groups], world.minimizers[3 * groups]
    network = pisco.Network(weights=W, server=pisco.every(4))
    states = trajectory(sd_gt(local_lr=0.05), world.problem(), network, 80)
    options = {"local_lr": 0.05, "period": 4, "periods": 20}
    theirs = twins.sd_gt_of_its_authors(world.x0, world.gradient, W, groups, **options, ours=case.startswith("any"))
    np.testing.assert_allclose([state.params.T for state in states[1:]], list(theirs), rtol=0, atol=1e-12)


def test_with_a_coin_and_without_gossip_too(x64):
    """LED and ProxSkip on rounds that differ; FedDyn at the server."""
    world, quiet = Quadratics(), pisco.Network.ring(6, gossip_steps=0, server=pisco.bernoulli(0.3))
    optimum = np.tile(world.optimum, (6, 1))
    for rule, network in (
        (build("led", local_lr=0.02, local_steps=3), pisco.Network.ring(6, server=pisco.bernoulli(0.3))),
        (build("proxskip", local_lr=0.05, server_prob=0.3), quiet),
        (build("feddyn", local_lr=0.05, local_steps=5, prox=1.0), quiet.with_server(pisco.always())),
    ):
        np.testing.assert_allclose(after(rule, world.problem(), network, 4000), optimum, atol=1e-8, err_msg=rule.name)


def test_exact_diffusion_and_nids_in_their_published_form(x64):
    """LED with one step is X(k+2) = (2X(k+1) − X(k) − η(G(k+1) − G(k)))·W; NIDS the same with (I + W)/2."""
    world, W = Quadratics(), pisco.Network.ring(6).weights.toarray()
    for name, matrix in (("exact-diffusion", W), ("nids", (np.eye(6) + W) / 2)):
        states = trajectory(build(name, local_lr=0.05), world.problem(), pisco.Network.ring(6), 40)
        naive = twins.exact_diffusion(world.x0, world.gradient, [matrix] * 40, local_lr=0.05)
        for state, expected in zip(states[1:], naive, strict=True):
            np.testing.assert_allclose(state.params.T, expected["params"], rtol=0, atol=1e-12)
            np.testing.assert_allclose(state.correction.sum(axis=0), 0, atol=1e-12)


def test_second_wave_at_its_edges_is_something_known(x64):
    """GT-HSGD with β = 1 is full-ATC gradient tracking, FedProx with μ = 0 is FedAvg, MoTEF with λ = 1 is BEER."""
    world, network = Quadratics(), pisco.Network.ring(6)
    steps = {"local_lr": 0.05, "local_steps": 3}
    for edge, known, options in (
        (build("gt-hsgd", local_lr=0.05, momentum=1.0), build("dsgt-full-atc", local_lr=0.05), {}),
        (build("fedprox", prox=0.0, **steps), build("fedavg", **steps), {"server": pisco.always()}),
        (build("motef", local_lr=0.05, momentum=1.0), build("beer", local_lr=0.05), {}),
    ):
        at = network.with_server(options["server"]) if options else network
        both = [trajectory(rule, world.problem(), at, 30)[-1].params for rule in (edge, known)]
        np.testing.assert_allclose(*both, rtol=0, atol=1e-12, err_msg=edge.name)


@pytest.mark.parametrize(
    ("fresh_gradient", "reporters"),
    [(True, None), (False, 2), pytest.param(False, None, marks=SLOW), pytest.param(True, 2, marks=SLOW)],
)
def test_scaffold_finds_the_optimum(fresh_gradient, reporters, x64):
    world = Quadratics()
    sampling = None if reporters is None else pisco.sample(reporters, agents=6)
    net = pisco.Network(pisco.networks.graphs.ring(6), server=pisco.always(), sampling=sampling)
    rule = scaffold(local_lr=0.02, local_steps=3, fresh_gradient=fresh_gradient)
    np.testing.assert_allclose(after(rule, world.problem(), net, 3000), np.tile(world.optimum, (6, 1)), atol=1e-8)


def test_fedavg_stalls_at_its_biased_fixed_point(x64):
    """x = mean of (I − (I − ηAᵢ)ᵀ)bᵢ + (I − ηAᵢ)ᵀx: solved exactly, and not the optimum."""
    world, lr, steps = Quadratics(), 0.05, 4
    shrink = [np.linalg.matrix_power(np.eye(4) - lr * A, steps) for A in world.hessians]
    pull = np.mean([(np.eye(4) - M) @ b for M, b in zip(shrink, world.minimizers, strict=True)], axis=0)
    fixed = np.linalg.solve(np.eye(4) - np.mean(shrink, axis=0), pull)
    net = pisco.Network.ring(6, server=pisco.always())
    found = after(dsgd(local_lr=lr, local_steps=steps), world.problem(), net, 2000)
    np.testing.assert_allclose(found, np.tile(fixed, (6, 1)), atol=1e-8)
    assert np.abs(fixed - world.optimum).max() > 1e-3


@pytest.mark.parametrize(
    ("last_gradient", "start"),
    [(False, "central"), (True, "gossip")]
    + [
        pytest.param(*case, marks=SLOW)
        for case in ((False, "gossip"), (True, "central"), (False, "zero"), (True, "zero"))
    ],
)
@given(world=worlds, p=probabilities)
def test_corrections_sum_to_zero(last_gradient, start, world, p):
    with jax.enable_x64(True):
        rule = kgt(local_lr=0.02, local_steps=2, last_gradient=last_gradient, start=start)
        for state in trajectory(rule, world.problem(), network(world, pisco.bernoulli(p)), 6):
            np.testing.assert_allclose(state.correction.sum(0), 0, **TIGHT)


@pytest.mark.parametrize(
    "compressor",
    [
        compressors.TopK(count=1),
        pytest.param(compressors.RandomK(count=1), marks=SLOW),
        pytest.param(compressors.Quantize(4), marks=SLOW),
    ],
    ids=repr,
)
@given(world=worlds, p=probabilities)
def test_compression_keeps_the_mean_of_the_tracker(compressor, world, p):
    with jax.enable_x64(True):
        inner = pisco_rule(local_lr=0.02, local_steps=1)
        rule = compressed(inner=inner, consensus_lr=0.4, compressor=compressor)
        for state in trajectory(rule, world.problem(), network(world, pisco.bernoulli(p)), 4):
            np.testing.assert_allclose(state.inner.tracker.mean(0), state.inner.grads.mean(0), **TIGHT)
        rule = beer(local_lr=0.02, compressor=compressor)
        for state in trajectory(rule, world.problem(), network(world, pisco.never()), 4):
            np.testing.assert_allclose(state.tracker.mean(0), state.grads.mean(0), **TIGHT)


@SLOW
@given(worlds, probabilities, steps, st.booleans())
def test_identity_compression_is_no_compression(world, p, local_steps, one_exchange):
    with jax.enable_x64(True):
        net = network(world, pisco.bernoulli(p))
        inner = pisco_rule(local_lr=0.02, local_steps=local_steps, one_exchange=one_exchange)
        plain = trajectory(inner, world.problem(), net, 5)
        wrapped_states = trajectory(compressed(inner=inner), world.problem(), net, 5)
        np.testing.assert_allclose(final(wrapped_states), final(plain), **TIGHT)
        choco = trajectory(compressed(inner=dsgd(local_lr=0.05)), world.problem(), net, 5)
        np.testing.assert_allclose(
            final(choco), final(trajectory(dsgd(local_lr=0.05), world.problem(), net, 5)), **TIGHT
        )


def test_beer_with_identity_and_full_consensus_is_cta_gradient_tracking_from_the_second_round(x64):
    """With Q = I and γ = 1, H = X and Ĝ = V: X⁺ = XW − ηV, V⁺ = VW + G⁺ − G, which is DSGT in CTA form."""
    world = Quadratics()
    net = network(world, pisco.never())
    states = trajectory(beer(local_lr=0.03, consensus_lr=1.0), world.problem(), net, 6)
    W = net.weights.toarray()
    X, V, G = (getattr(states[1], f).T for f in ("params", "tracker", "grads"))
    for state in states[2:]:
        X = X @ W - 0.03 * V
        new = world.gradient(X)
        V, G = V @ W + new - G, new
        np.testing.assert_allclose(state.params.T, X, **TIGHT)
        np.testing.assert_allclose(state.tracker.T, V, **TIGHT)


@pytest.mark.parametrize("comm_lr", [0.4, pytest.param(1.0, marks=SLOW)])
@given(world=worlds)
def test_kgt_with_one_step_is_dsgt(comm_lr, world):
    """K-GT(T=1, C⁰=0) = DSGT with η = η_s·η_c, where C⁰ = 0 corresponds to Y⁰ = G⁰."""
    with jax.enable_x64(True):
        net = network(world, pisco.never())
        one = trajectory(kgt(local_lr=0.04, comm_lr=comm_lr, local_steps=1), world.problem(), net, 6)
        two = trajectory(dsgt(local_lr=0.04 * comm_lr), world.problem(), net, 6)
        np.testing.assert_allclose(final(one), final(two), **TIGHT)


@given(worlds)
def test_rows_that_are_pisco_in_disguise(world):
    with jax.enable_x64(True):
        net = network(world, pisco.never())

        def end(rule):
            return final(trajectory(rule, world.problem(), net, 5))

        semi = pisco_rule(local_lr=0.03, local_steps=0, one_exchange=True)
        np.testing.assert_allclose(end(dsgt(local_lr=0.03)), end(semi), **TIGHT)
        np.testing.assert_allclose(end(build("lsgt", local_lr=0.03, local_steps=1)), end(semi), **TIGHT)


@pytest.mark.parametrize("comm_lr", [0.4, pytest.param(1.0, marks=SLOW)])
@given(world=worlds)
def test_one_local_step_at_the_server_is_parallel_gradient_descent(comm_lr, world):
    """FedAvg(τ=1) = SCAFFOLD(T=1) = Gossip-PGA(H=1) = parallel gradient descent with step η_g·η_l."""
    with jax.enable_x64(True):
        x = world.x0.copy()
        agents = world.minimizers.shape[0]
        for _ in range(6):
            x = x - comm_lr * 0.05 * world.gradient(np.outer(x, np.ones(agents))).mean(axis=1)
        server = network(world, pisco.always())
        for rule in (
            dsgd(local_lr=0.05, comm_lr=comm_lr),
            scaffold(local_lr=0.05, comm_lr=comm_lr, local_steps=1),
            scaffold(local_lr=0.05, comm_lr=comm_lr, local_steps=1, fresh_gradient=True),
        ):
            np.testing.assert_allclose(final(trajectory(rule, world.problem(), server, 6))[0], x, **TIGHT)
        periodic = network(world, pisco.every(1))
        np.testing.assert_allclose(
            final(trajectory(dsgd(local_lr=0.05, comm_lr=comm_lr), world.problem(), periodic, 6))[0], x, **TIGHT
        )


def test_more_that_is_not_equal(x64):
    world = Quadratics()
    server, gossip = network(world, pisco.always()), network(world, pisco.never())

    def end(rule, net):
        return final(trajectory(rule, world.problem(), net, 5))

    assert (
        np.abs(
            end(pisco_rule(local_lr=0.03, local_steps=2), server) - end(scaffold(local_lr=0.03, local_steps=3), server)
        ).max()
        > 1e-4
    )
    assert (
        np.abs(
            end(pisco_rule(local_lr=0.03, local_steps=2), gossip) - end(kgt(local_lr=0.03, local_steps=3), gossip)
        ).max()
        > 1e-4
    )
    assert np.abs(end(pisco_rule(local_lr=0.03, local_steps=0), gossip) - end(dsgt(local_lr=0.03), gossip)).max() > 1e-4


def test_momentum_zero_is_plain_gossip(x64):
    world = Quadratics()
    net = network(world, pisco.every(2))
    heavy = trajectory(momentum_dsgd(local_lr=0.03, momentum=0.0), world.problem(), net, 5)
    np.testing.assert_allclose(final(heavy), final(trajectory(dsgd(local_lr=0.03), world.problem(), net, 5)), **TIGHT)
