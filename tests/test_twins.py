"""Every algorithm against its naive NumPy twin, in float64, state by state.

Of choices that have little to do with each other half of the combinations are taken, each choice at least once, and the
other half in the slow tests.
"""

import itertools

import jax
import numpy as np
import pytest

import pisco
from pisco.algorithms import beer, compressed, compressors, dsgd, kgt, scaffold
from pisco.algorithms import pisco as pisco_rule
from pisco.engines.job import seed_key, streams

import twins
from worlds import Quadratics, coins, doubly_stochastic, mixes, trajectory

ROUNDS = 25
COIN = pisco.bernoulli(0.3)


def paired(*choices):
    """All combinations; those whose places add up to an odd number in the slow tests."""
    out = []
    for places in itertools.product(*(range(len(each)) for each in choices)):
        values = [each[at] for each, at in zip(choices, places, strict=True)]
        marks = [pytest.mark.slow] if sum(places) % 2 else []
        out.append(pytest.param(*values, marks=marks, id="-".join(map(str, values))))
    return out


def assert_states(states, twin, tolerance=1e-12):
    twin = list(twin)
    assert len(twin) == len(states) - 1
    for field in twin[0]:
        found = [getattr(state, field).T for state in states[1:]]
        expected = [naive[field] for naive in twin]
        np.testing.assert_allclose(found, expected, rtol=0, atol=tolerance, err_msg=f"{field}, rounds lead")


def assert_twins_agree(name, hyperparameters, server, symmetric):
    world = Quadratics()
    W = doubly_stochastic(6, symmetric=symmetric)
    if not symmetric:
        assert np.abs(W - W.T).max() > 0.01
    algorithm = getattr(pisco.algorithms, name)(**hyperparameters)
    states = trajectory(algorithm, world.problem(), pisco.Network(weights=W, server=server), ROUNDS)
    twin = getattr(twins, name)(world.x0, world.gradient, mixes(W, server, ROUNDS), **hyperparameters)
    assert_states(states, twin)


@pytest.mark.parametrize("symmetric", [False, pytest.param(True, marks=pytest.mark.slow)])
@pytest.mark.parametrize("server_prob", [0.0, 0.3, 1.0])
@pytest.mark.parametrize(("one_exchange", "local_steps", "comm_lr"), paired([False, True], [0, 1, 3], [0.5, 1.0]))
def test_pisco(x64, one_exchange, local_steps, comm_lr, server_prob, symmetric):
    hyperparameters = {"local_lr": 0.02, "comm_lr": comm_lr, "local_steps": local_steps, "one_exchange": one_exchange}
    assert_twins_agree("pisco", hyperparameters, pisco.bernoulli(server_prob), symmetric)


@pytest.mark.parametrize("symmetric", [False, pytest.param(True, marks=pytest.mark.slow)])
@pytest.mark.parametrize(
    ("steps", "combine_first", "server"),
    paired([(1, 1.0), (3, 0.7)], [False, True], [pisco.never(), COIN, pisco.every(4), pisco.always()]),
)
def test_dsgd(x64, steps, combine_first, server, symmetric):
    changes = {"local_steps": steps[0], "comm_lr": steps[1], "combine_first": combine_first}
    assert_twins_agree("dsgd", {"local_lr": 0.05} | changes, server, symmetric)


@pytest.mark.parametrize("server", [pisco.never(), COIN], ids=repr)
@pytest.mark.parametrize("combine_first", [False, True])
def test_dsgt(x64, combine_first, server):
    assert_twins_agree("dsgt", {"local_lr": 0.05, "combine_first": combine_first}, server, symmetric=False)


@pytest.mark.parametrize("momentum", [0.0, 0.8])
def test_momentum(x64, momentum):
    assert_twins_agree("momentum_dsgd", {"local_lr": 0.02, "momentum": momentum}, pisco.every(5), symmetric=False)


@pytest.mark.parametrize(
    ("last_gradient", "case"),
    paired(
        [False, True],
        [  # every pair once: the start has nothing to do with the steps and the server
            (1, "zero", COIN),
            (4, "zero", pisco.never()),
            (4, "central", COIN),
            (1, "central", pisco.never()),
            (4, "gossip", pisco.never()),
            (1, "gossip", COIN),
        ],
    ),
)
def test_kgt(x64, last_gradient, case):
    local_steps, start, server = case
    world, W = Quadratics(), doubly_stochastic(6, symmetric=False)
    options = {"local_lr": 0.02, "comm_lr": 0.8, "local_steps": local_steps, "last_gradient": last_gradient}
    states = trajectory(kgt(start=start, **options), world.problem(), pisco.Network(weights=W, server=server), ROUNDS)
    assert_states(states, twins.kgt(world.x0, world.gradient, mixes(W, server, ROUNDS), start=start, W0=W, **options))


@pytest.mark.parametrize(("local_steps", "fresh_gradient", "reporters"), paired([1, 3], [False, True], [None, 2]))
def test_scaffold(x64, local_steps, fresh_gradient, reporters):
    world, W = Quadratics(), doubly_stochastic(6)
    sampling = None if reporters is None else pisco.sample(reporters, agents=6)
    network = pisco.Network(weights=W, server=pisco.always(), sampling=sampling)
    options = {"local_lr": 0.03, "comm_lr": 0.9, "local_steps": local_steps, "fresh_gradient": fresh_gradient}
    chosen = None if sampling is None else sampled_agents(sampling, ROUNDS)
    states = trajectory(scaffold(**options), world.problem(), network, ROUNDS)
    naive = twins.scaffold(world.x0, world.gradient, [W] * ROUNDS, reporters=chosen, **options)
    assert_states(states, naive)


def sampled_agents(sampling, rounds, seed=0):
    """Who reports in every round, by the network's own stream."""
    key = jax.random.fold_in(streams(seed_key(seed)).links, 2**31 - 1)
    weights = jax.jit(lambda k: sampling.weights(jax.random.fold_in(key, k)))
    return [np.flatnonzero(weights(k)).tolist() for k in range(rounds)]


def test_fedavg_with_sampling(x64):
    world = Quadratics()
    sampling = pisco.sample(3, agents=6)
    network = pisco.Network.ring(6, server=pisco.always())
    network = pisco.Network(network.graph, server=pisco.always(), sampling=sampling)
    states = trajectory(dsgd(local_lr=0.02, comm_lr=0.8, local_steps=3), world.problem(), network, 20)
    x = world.x0
    for state, chosen in zip(states[1:], sampled_agents(sampling, 20), strict=True):
        y = np.outer(x, np.ones(6))
        for _ in range(3):
            y = y - 0.02 * world.gradient(y)
        x = x + 0.8 * (y - x[:, None])[:, chosen].mean(axis=1)
        np.testing.assert_allclose(state.params, np.tile(x, (6, 1)), rtol=0, atol=1e-12)


@pytest.mark.parametrize(("gossip_steps", "reporters"), paired([0, 1, 3], [1, 2]))
def test_clusters_with_sampled_reports(x64, reporters, gossip_steps):
    """HL-SGD (one gossip step) and TT-HF (Γ steps): clusters gossip, and every third round a few of each report."""
    world = Quadratics()
    groups = [0, 0, 0, 1, 1, 1]
    sampling = pisco.sample_groups(reporters, groups=groups)
    graph = pisco.networks.graphs.clusters(2, 3, inner="path")
    network = pisco.Network(
        graph, server=pisco.every(3), sampling=sampling, gossip_steps=gossip_steps, gossip_before_server=True
    )
    W = network.weights.toarray()
    states = trajectory(dsgd(local_lr=0.05), world.problem(), network, 12)
    X = np.outer(world.x0, np.ones(6))
    for k, chosen in enumerate(sampled_agents(sampling, 12)):
        X = (X - 0.05 * world.gradient(X)) @ np.linalg.matrix_power(W, gossip_steps)
        if (k + 1) % 3 == 0:
            means = [X[:, [i for i in chosen if groups[i] == c]].mean(axis=1) for c in (0, 1)]
            X = np.outer((means[0] + means[1]) / 2, np.ones(6))
        np.testing.assert_allclose(states[k + 1].params.T, X, rtol=0, atol=1e-12)


@pytest.mark.parametrize("gossip_steps", [None, pytest.param(2, marks=pytest.mark.slow)])
@pytest.mark.parametrize("name", ["dsgd", "pisco"])
def test_sampled_to_sampled(x64, name, gossip_steps):
    """Only who reports hears the average: the round keeps the mean, so gradient tracking may use it."""
    world, sampling = Quadratics(), pisco.sample_groups(1, groups=[0, 0, 0, 1, 1, 1])
    more = {} if gossip_steps is None else {"gossip_steps": gossip_steps, "gossip_before_server": True}
    graph = pisco.networks.graphs.clusters(2, 3, inner="path")
    network = pisco.Network(graph, server=COIN, sampling=sampling, receivers="sampled", **more)
    W, reached = network.weights.toarray(), coins(COIN, ROUNDS)
    maps = [
        twins.among_sampled(W, chosen, gossip_steps) if coin else np.linalg.matrix_power(W, gossip_steps or 1)
        for coin, chosen in zip(reached, sampled_agents(sampling, ROUNDS), strict=True)
    ]
    options = {"local_lr": 0.05, "local_steps": 2}
    states = trajectory(getattr(pisco.algorithms, name)(**options), world.problem(), network, ROUNDS)
    assert_states(states, getattr(twins, name)(world.x0, world.gradient, maps, **options))


@pytest.mark.parametrize("count", [1, 4])
def test_choco(x64, count):
    world, W = Quadratics(), doubly_stochastic(6)
    rule = compressed(inner=dsgd(local_lr=0.03), consensus_lr=0.4, compressor=compressors.TopK(count=count))
    states = trajectory(rule, world.problem(), pisco.Network(weights=W), ROUNDS)
    naive = twins.choco(
        world.x0, world.gradient, [W] * ROUNDS, local_lr=0.03, consensus_lr=0.4, compress=twins.top_k(count)
    )
    assert_states(states, naive)


@pytest.mark.parametrize(("count", "momentum"), [(1, 1.0), (4, 1.0), (1, 0.2)])
def test_beer(x64, count, momentum):
    world, W = Quadratics(), doubly_stochastic(6)
    options = {"local_lr": 0.02, "consensus_lr": 0.4, "momentum": momentum}
    rule = beer(compressor=compressors.TopK(count=count), **options)
    states = trajectory(rule, world.problem(), pisco.Network(weights=W), ROUNDS)
    assert_states(states, twins.beer(world.x0, world.gradient, [W] * ROUNDS, compress=twins.top_k(count), **options))


SECOND_WAVE = {  # rule, network, hyperparameters; the twin has the rule's name
    "extra": ("never", {"local_lr": 0.05}),
    "led": ("coin", {"local_lr": 0.03, "local_steps": 3}),
    "proxskip": ("coin", {"local_lr": 0.05, "server_prob": 0.3}),
    "sd_gt": ("coin", {"local_lr": 0.05}),
    "quasi_global": ("coin", {"local_lr": 0.05, "momentum": 0.8, "memory": 0.6}),
    "fedprox": ("coin", {"local_lr": 0.05, "local_steps": 3, "prox": 0.7, "comm_lr": 0.8}),
    "feddyn": ("always", {"local_lr": 0.05, "local_steps": 3, "prox": 0.7}),
    "gt_hsgd": ("coin", {"local_lr": 0.05, "momentum": 0.3}),
    "noloco": ("coin", {"local_lr": 0.03, "local_steps": 2, "comm_lr": 0.7, "momentum": 0.4, "consensus_lr": 0.6}),
    "fedadam": (
        "always",
        {"local_lr": 0.05, "local_steps": 2, "comm_lr": 0.1, "first_decay": 0.8, "second_decay": 0.9, "floor": 0.01},
    ),
}


@pytest.mark.parametrize("name", SECOND_WAVE)
def test_second_wave(x64, name):
    server, hyperparameters = SECOND_WAVE[name]
    schedule = {"never": pisco.never(), "coin": COIN, "always": pisco.always()}[server]
    assert_twins_agree(name, hyperparameters, schedule, symmetric=name == "extra")


def test_proxskip_sends_nothing_between_averages(x64):
    """Without gossip a round is J or nothing, and only averages cost."""
    world, options = Quadratics(), {"local_lr": 0.1, "server_prob": 0.3}
    network = pisco.Network.ring(6, gossip_steps=0, server=COIN)
    states = trajectory(pisco.algorithms.proxskip(**options), world.problem(), network, ROUNDS)
    maps = mixes(np.eye(6), COIN, ROUNDS)
    assert_states(states, twins.proxskip(world.x0, world.gradient, maps, **options))
    result = pisco.run(pisco.algorithms.proxskip(**options), world.problem(), network, rounds=ROUNDS)
    assert result.history["bytes_gossip"][-1] == 0 < result.history["bytes_server"][-1]


def test_feddyn_with_sampling(x64):
    world, sampling = Quadratics(), pisco.sample(2, agents=6)
    network = pisco.Network(weights=doubly_stochastic(6), server=pisco.always(), sampling=sampling)
    options = {"local_lr": 0.05, "local_steps": 2, "prox": 0.5}
    states = trajectory(pisco.algorithms.feddyn(**options), world.problem(), network, ROUNDS)
    chosen = sampled_agents(sampling, ROUNDS)
    assert_states(states, twins.feddyn(world.x0, world.gradient, [np.eye(6)] * ROUNDS, reporters=chosen, **options))


def test_diloco_and_noloco_by_name(x64):
    """What the registry fixes: AdamW inside, Nesterov outside or pairs drawn anew."""
    world = Quadratics()
    rule = pisco.algorithms.build("diloco", local_lr=0.02, local_steps=3)
    states = trajectory(rule, world.problem(), pisco.Network.ring(6, server=pisco.always()), 20)
    adamw = twins.AdamW(weight=0.1)
    naive = twins.diloco(
        world.x0, world.gradient, [np.eye(6)] * 20, local_lr=0.02, local_steps=3, direction=adamw, decay=0.9
    )
    assert_states(states, naive, 1e-10)
    options = {"local_lr": 0.02, "local_steps": 3, "comm_lr": 0.7, "momentum": 0.5, "consensus_lr": 0.7}
    network = pisco.Network.complete(6, varying=pisco.random_matching())
    states = trajectory(pisco.algorithms.build("noloco", **options), world.problem(), network, 20)
    keys = streams(seed_key(0))
    pairs = [np.asarray(network.gossip.rule.draw(keys.links, k)[0](np.eye(6))).T for k in range(20)]
    assert all(set(np.unique(W)) <= {0, 0.5, 1} and (W != 0).sum(axis=0).max() == 2 for W in pairs)  # pairs
    assert_states(
        states, twins.noloco(world.x0, world.gradient, pairs, direction=twins.AdamW(weight=0.1), **options), 1e-10
    )


@pytest.mark.parametrize(("local_steps", "count"), paired([0, 2], [1, 4]))
def test_compressed_pisco(x64, local_steps, count):
    world, W = Quadratics(), doubly_stochastic(6)
    inner = pisco_rule(local_lr=0.02, local_steps=local_steps)
    rule = compressed(inner=inner, consensus_lr=0.4, compressor=compressors.TopK(count=count))
    states = trajectory(rule, world.problem(), pisco.Network(weights=W, server=COIN), ROUNDS)
    naive = twins.compressed_pisco(
        world.x0,
        world.gradient,
        mixes(W, COIN, ROUNDS),
        coins(COIN, ROUNDS),
        local_lr=0.02,
        local_steps=local_steps,
        consensus_lr=0.4,
        compress=twins.top_k(count),
    )
    assert_states([state.inner for state in states], naive)


def test_a_transposed_matrix_is_noticed(x64):
    """The orientation test has teeth: the twin on Wᵀ is far off."""
    world, W = Quadratics(), doubly_stochastic(6, symmetric=False)
    states = trajectory(dsgd(local_lr=0.05), world.problem(), pisco.Network(weights=W), rounds=5)
    wrong = list(twins.dsgd(world.x0, world.gradient, [W.T] * 5, local_lr=0.05))[-1]["params"]
    assert np.abs(states[-1].params.T - wrong).max() > 1e-3
