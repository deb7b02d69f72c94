"""Networks that vary: time-varying gossip, sampled reports, several gossip steps, adaptive servers."""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import pisco
from pisco.networks import graphs
from pisco.networks.mixing import Dense
from pisco.networks.rounds import draw_round
from pisco.networks.varying import cycle, function_of_round

from worlds import Quadratics, doubly_stochastic, thinned

KEY = jax.random.key(3)


def matrix(network, k, key=KEY, who=False):
    return jax.tree.map(np.asarray, _matrix(network.gossip, key, k, who, network.num_agents))


@partial(jax.jit, static_argnames=("who", "agents"))
def _matrix(gossip, key, k, who, agents):
    mix, links = draw_round(gossip, who, key, k, agents)
    return mix(jnp.eye(agents)), links


VARYING = {
    "dropout": lambda n: pisco.edge_dropout(0.4),
    "matching": lambda n: pisco.random_matching(),
    "one-peer": lambda n: pisco.one_peer_exponential(),
    "cycle": lambda n: cycle([doubly_stochastic(n, seed, symmetric=False) for seed in range(3)]),
    "function": lambda n: function_of_round(
        lambda key, k: jnp.eye(n) * (k % 2) + jnp.full((n, n), 1 / n) * (1 - k % 2)
    ),
}


@pytest.mark.parametrize("kind", VARYING)
@pytest.mark.parametrize("n", thinned([8, 5]))
def test_every_round_is_doubly_stochastic_and_counted(kind, n):
    network = pisco.Network(graphs.erdos_renyi(n, 0.6, 1), varying=VARYING[kind](n))
    seen = []
    for k in range(6):
        W, links = matrix(network, k)
        np.testing.assert_allclose(W.sum(0), 1, atol=1e-5)
        np.testing.assert_allclose(W.sum(1), 1, atol=1e-5)
        off = np.abs(W - np.diag(np.diag(W))) > 1e-7
        assert int(links.edges) == off.sum()
        seen.append(W)
    assert any(np.abs(seen[0] - other).max() > 1e-3 for other in seen[1:])


def test_dropout_probability_and_extremes():
    ring = graphs.ring(200)
    used = [int(matrix(pisco.Network(ring, varying=pisco.edge_dropout(0.25)), k)[1].edges) for k in range(10)]
    assert abs(np.mean(used) / 400 - 0.75) < 0.05
    assert int(matrix(pisco.Network(ring, varying=pisco.edge_dropout(1.0)), 0)[1].edges) == 0
    whole = pisco.Network(ring, varying=pisco.edge_dropout(0.0))
    np.testing.assert_allclose(matrix(whole, 0)[0], whole.weights.toarray(), atol=1e-6)


@given(st.integers(0, 200))
def test_matchings_are_matchings(seed):
    network = pisco.Network(graphs.erdos_renyi(9, 0.5, 2), varying=pisco.random_matching())
    W, links = matrix(network, 0, jax.random.key(seed))
    partners = (np.abs(W) > 0).sum(axis=1)
    assert set(partners.tolist()) <= {1, 2} and int(links.edges) >= 2
    np.testing.assert_allclose(W, W.T)


def test_one_peer_exponential_averages_exactly_in_log2_rounds():
    network = pisco.Network.ring(8, varying=pisco.one_peer_exponential())
    product = np.eye(8)
    for k in range(3):
        W, links = matrix(network, k)
        assert int(links.edges) == 8
        product = W @ product
    np.testing.assert_allclose(product, 1 / 8, atol=1e-6)


@pytest.mark.parametrize("kind", thinned(VARYING, 3))
def test_gradient_tracking_is_exact_on_varying_graphs(kind, x64):
    world = Quadratics()
    network = pisco.Network(graphs.ring(6), varying=VARYING[kind](6), server=pisco.bernoulli(0.05))
    rule = pisco.algorithms.pisco(local_lr=0.02, local_steps=1)
    result = pisco.run(rule, world.problem(), network, rounds=3000, eval_every=3000, chunk_rounds=3000)
    np.testing.assert_allclose(result.params, np.tile(world.optimum, (6, 1)), atol=1e-8)


def test_bad_varying_networks_are_refused():
    with pytest.raises(pisco.InputError, match="drop_prob is 1.5"):
        pisco.edge_dropout(1.5)
    for matrices in ([], iter([]), 3):
        with pytest.raises(pisco.InputError, match="expected a list of at least one matrix"):
            cycle(matrices)
    for rule, sentence in (
        (lambda key, k: jnp.eye(6), r"varying=<lambda> makes no links; wrap a function of \(key, round\) in"),
        (pisco.edge_dropout, "varying=edge_dropout fails .*; give links that vary, as in"),
        (function_of_round(3), "function_of_round.* fails .TypeError: 'int' object is not callable"),
        (function_of_round(lambda key, k: jnp.float32(k)), r"has shape \(\), expected n × n"),
        (
            lambda graph, weights: np.linalg.inv(np.zeros((6, 6))),
            r"<lambda> fails on the graph .*LinAlgError: Singular",
        ),
    ):
        with pytest.raises(pisco.InputError, match=sentence):
            _ = pisco.Network.ring(6, varying=rule).gossip
    with pytest.raises(pisco.InputError, match="matrix 0 is for 5 agents, the network has 6"):
        _ = pisco.Network.ring(6, varying=cycle([doubly_stochastic(5)])).gossip
    with pytest.raises(pisco.InputError, match="needs symmetric weights"):
        _ = pisco.Network(weights=doubly_stochastic(5, symmetric=False), varying=pisco.edge_dropout(0.1)).gossip
    with pytest.raises(pisco.InputError, match="sums to"):
        _ = pisco.Network.ring(5, varying=function_of_round(lambda key, k: jnp.ones((5, 5)))).gossip
    with pytest.raises(pisco.InputError, match="cannot be combined"):
        pisco.Network.ring(5, server=pisco.per_agent([0.5] * 5), varying=pisco.random_matching())


class Steady:
    """Links of one's own that are no pytree."""

    def __init__(self, weights):
        self.weights = weights.toarray()

    def draw(self, key, round_index):
        return Dense(jnp.asarray(self.weights.T)), jnp.int32(12)


def test_links_of_ones_own_need_not_be_a_pytree():
    (plain, own) = (pisco.Network.ring(6, varying=v) for v in (None, lambda graph, weights: Steady(weights)))
    problem, rule = pisco.problems.quadratic(np.ones((6, 1, 1)), np.arange(6.0)[:, None]), pisco.algorithms.dsgd
    ended = [pisco.run(rule(local_lr=0.1), problem, network, rounds=3).params for network in (plain, own)]
    np.testing.assert_allclose(*ended, rtol=1e-6)


def test_no_link_can_fail_where_there_is_none():
    network = pisco.Network(pisco.networks.graphs.from_edges([], 3), varying=pisco.edge_dropout(0.3))
    operator, edges = network.gossip.rule.draw(jax.random.key(0), 0)
    assert edges == 0 and (operator.weights[:3] == 1).all()


@given(st.integers(0, 300), st.integers(1, 3))
def test_sampled_reports_are_weighted_by_their_cluster(seed, reporters):
    groups = [0, 0, 0, 1, 1, 1, 1, 1]
    weights = np.asarray(pisco.sample_groups(reporters, groups=groups).weights(jax.random.key(seed)))
    assert np.isclose(weights.sum(), 1)
    for group, share in ((0, 3 / 8), (1, 5 / 8)):
        own = weights[np.array(groups) == group]
        assert np.count_nonzero(own) == reporters
        np.testing.assert_allclose(own[own > 0], share / reporters, rtol=1e-6)


@pytest.mark.slow
def test_sampling_is_uniform_and_goes_to_everybody():
    network = pisco.Network(graphs.ring(5), server=pisco.always(), sampling=pisco.sample(2, agents=5))
    counts = np.zeros(5)
    for k in range(400):
        W, links = matrix(network, k, who=True)
        assert np.ptp(W, axis=0).max() < 1e-7 and int(links.uplinks) == 2 and int(links.downlinks) == 5
        counts += W[0] > 0
    assert counts.min() > 110 and counts.max() < 210


def test_a_sample_may_keep_its_average_to_itself():
    sampling = pisco.sample(2, agents=5)
    network = pisco.Network(graphs.ring(5), server=pisco.always(), sampling=sampling, receivers="sampled")
    assert network.keeps_mean and "receivers=sampled" in repr(network)
    for k in range(20):
        W, links = matrix(network, k, who=True)
        chosen = np.flatnonzero(np.diag(W) < 0.9)
        assert len(chosen) == 2 and (int(links.uplinks), int(links.downlinks)) == (2, 2)
        expected = np.eye(5)
        expected[np.ix_(chosen, chosen)] = 0.5
        np.testing.assert_allclose(W, expected, atol=1e-7)
    uneven = pisco.sample_groups(1, groups=[0, 0, 1, 1, 1])
    network = pisco.Network(graphs.ring(5), server=pisco.every(2), sampling=uneven, receivers="sampled")
    assert not network.keeps_mean
    problem = Quadratics(5).problem()
    with pytest.raises(pisco.InputError, match="sample of equal shares"):
        pisco.run(pisco.algorithms.dsgt(local_lr=0.1), problem, network, rounds=1)
    with pytest.raises(pisco.InputError, match="needs everybody to hear the server's average"):
        pisco.run(
            pisco.algorithms.scaffold(local_lr=0.1, local_steps=1),
            problem,
            network.with_server(pisco.always()),
            rounds=1,
        )


@pytest.mark.parametrize(
    ("call", "sentence"),
    [
        (lambda: pisco.Network(graphs.ring(4), receivers="sampled"), "nobody is sampled"),
        (lambda: pisco.Network(graphs.ring(4), receivers="some"), "unknown receivers 'some'"),
        (lambda: pisco.sample(6, agents=5), "reporters is 6, but a group has only 5 agents"),
        (lambda: pisco.sample_groups(1, groups=[0, 2]), "do not number the clusters"),
        (lambda: pisco.sample_groups(0, groups=[0, 1]), "reporters is 0"),
        (
            lambda: pisco.Network.ring(4).__class__(graphs.ring(4), sampling=pisco.sample(1, agents=5)),
            "sampling is for 5",
        ),
        (lambda: pisco.Network(graphs.ring(4), gossip_steps=-1), "gossip_steps is -1"),
        (lambda: pisco.adaptive(0), "period is 0"),
        (lambda: pisco.adaptive(4, power=-1), "power is -1"),
    ],
)
def test_bad_samples_and_periods_are_refused(call, sentence):
    with pytest.raises(pisco.InputError, match=sentence):
        call()


def test_sampled_reports_are_refused_where_the_mean_must_survive():
    network = pisco.Network(graphs.ring(6), server=pisco.every(3), sampling=pisco.sample(2, agents=6))
    problem = Quadratics().problem()
    with pytest.raises(pisco.InputError, match="needs rounds that keep the agents' mean"):
        pisco.run(pisco.algorithms.pisco(local_lr=0.1, local_steps=1), problem, network, rounds=1)
    with pytest.raises(pisco.InputError, match="needs the server in every round"):
        pisco.run(pisco.algorithms.scaffold(local_lr=0.1, local_steps=1), problem, network, rounds=1)
    with pytest.raises(pisco.InputError, match="needs the same map in every round"):
        pisco.run(pisco.algorithms.beer(local_lr=0.1), problem, pisco.Network.ring(6, server=pisco.every(2)), rounds=1)


def naive_periods(losses, period, power, warmup):
    """Gossip-AGA's counter, one round at a time, from the loss before every round."""
    count, current, first, reached = 0, period, None, []
    for k, loss in enumerate(losses):
        count += 1
        reached.append(count >= current)
        if reached[-1]:
            count = 0
            if first is None:
                first = loss
            elif k < warmup:
                first = 0.5 * (first + loss)
            if k >= warmup:
                current = int(np.ceil((first / loss) ** power * period))
    return reached


@pytest.mark.parametrize("warmup", [0, 10])
def test_adaptive_periods_follow_the_loss(warmup, x64):
    """Full batches, so the observed loss is the mean of the agents' losses at their own parameters."""
    world = Quadratics()
    hessians, minimizers = world.hessians, np.zeros_like(world.minimizers)
    problem = pisco.problems.quadratic(hessians, minimizers, init=world.x0)
    network = pisco.Network.ring(6, server=pisco.adaptive(2, power=0.5, warmup=warmup))
    result = pisco.run(pisco.algorithms.dsgd(local_lr=0.05), problem, network, rounds=60)
    reached = result.history["server"][1:].astype(bool)

    W, X, losses = network.weights.toarray(), np.outer(world.x0, np.ones(6)), []
    for server in reached:
        losses.append(np.mean([0.5 * x @ A @ x for x, A in zip(X.T, hessians, strict=True)]))
        X = X - 0.05 * np.stack([A @ x for x, A in zip(X.T, hessians, strict=True)], axis=1)
        X = np.outer(X.mean(axis=1), np.ones(6)) if server else X @ W
    assert naive_periods(losses, 2, 0.5, warmup) == reached.tolist()
    gaps = np.diff(np.flatnonzero(reached))
    assert gaps[-1] > gaps[0]


def test_adaptive_memory_survives_a_checkpoint(tmp_path):
    problem = pisco.problems.quadratic(Quadratics().hessians, np.zeros((6, 4)), init=np.ones(4))
    network = pisco.Network.ring(6, server=pisco.adaptive(2, power=0.5))
    rule = pisco.algorithms.dsgd(local_lr=0.05)
    whole = pisco.run(rule, problem, network, rounds=40, chunk_rounds=10)
    pisco.run(rule, problem, network, rounds=20, chunk_rounds=10, checkpoint=tmp_path)
    resumed = pisco.run(rule, problem, network, rounds=40, chunk_rounds=10, checkpoint=tmp_path, resume=True)
    np.testing.assert_array_equal(resumed.history["server"], whole.history["server"])
    np.testing.assert_array_equal(resumed.params, whole.params)
