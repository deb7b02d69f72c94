"""Schedules, mixing operators and the network that ties them together."""

from dataclasses import dataclass
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import pisco
from pisco.networks import graphs, mixing, weights
from pisco.networks.rounds import draw_round

from worlds import Quadratics, coins, doubly_stochastic

KEY = jax.random.key(7)


def dense_round(network, round_index=0, key=KEY):
    """The matrix that a round applies to agents on the leading axis."""
    return jax.tree.map(np.asarray, _dense(network.gossip, network.server, key, round_index, network.num_agents))


@partial(jax.jit, static_argnames="agents")
def _dense(gossip, server, key, k, agents):
    mix, links = draw_round(gossip, server.participants(key, k), key, k, agents)
    return mix(jnp.eye(agents)), links


@pytest.mark.parametrize("network", [pisco.Network.ring(6), pisco.Network.ring(70), pisco.Network.star(70)])
def test_a_network_mixes_in_the_precision_of_the_moment(network):
    def precisions():
        leaves = jax.tree.leaves(network.gossip)
        return {leaf.dtype.name for leaf in leaves if jnp.issubdtype(leaf.dtype, jnp.floating)}

    assert precisions() == {"float32"}
    with jax.enable_x64(True):
        assert precisions() == {"float64"}
        assert network.gossip is network.gossip
    assert precisions() == {"float32"}


@given(st.floats(0, 1), st.floats(0, 1), st.integers(0, 50))
def test_server_rounds_nest_as_p_grows(a, b, seed):
    low, high = sorted([a, b])
    rare, often = coins(pisco.bernoulli(low), 20, seed), coins(pisco.bernoulli(high), 20, seed)
    assert all(o for r, o in zip(rare, often, strict=True) if r)


def test_bernoulli_frequency():
    share = np.mean(coins(pisco.bernoulli(0.3), 3000))
    assert abs(share - 0.3) < 4 * np.sqrt(0.3 * 0.7 / 3000)


@pytest.mark.parametrize("p", [-0.1, 1.5, float("nan"), "often"])
def test_probabilities_outside_the_unit_interval_are_refused(p):
    with pytest.raises(pisco.InputError, match="server_prob is"):
        pisco.bernoulli(p)


def test_bad_schedules_are_refused():
    with pytest.raises(pisco.InputError, match="period is 0"):
        pisco.every(0)
    with pytest.raises(pisco.InputError, match=r"server_probs\[1\] is .*2.0"):
        pisco.per_agent([0.5, 2.0])
    with pytest.raises(pisco.InputError, match="gives .* values, expected one"):
        pisco.Network.ring(5, server=pisco.per_agent([0.5] * 4))
    with pytest.raises(pisco.InputError, match="expected a schedule"):
        pisco.Network.ring(5, server=0.1)


class Doubling(pisco.Schedule):
    """A user's own, with a memory: the gap between two server rounds doubles."""

    def start(self):
        return jnp.int32(1), jnp.int32(0)

    def decide(self, memory, key, round_index, observe):
        gap, waited = memory
        reached = waited + 1 == gap
        return reached, (jnp.where(reached, 2 * gap, gap), jnp.where(reached, 0, waited + 1))


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class After:
    """A user's own with the members of a schedule and a traced number."""

    first: float
    probability = None
    never_reached = False

    def start(self):
        return ()

    def decide(self, memory, key, round_index, observe):
        return round_index >= self.first, memory


def server_rounds(engine, *servers, **options):
    world = Quadratics(agents=4)
    problem = pisco.problems.quadratic(world.hessians, world.minimizers)
    points = [(pisco.algorithms.dsgd(local_lr=0.01), server) for server in servers]
    results = pisco.sweep(points, problem, pisco.Network.ring(4), rounds=20, engine=engine, **options)
    return [np.flatnonzero(result.history["server"][0]).tolist() for result in results]


def test_a_schedule_of_ones_own_class_works():
    assert server_rounds("scan", Doubling()) == [[1, 3, 7, 15]]
    assert server_rounds("scan", After(17.0), After(18.0)) == [[18, 19, 20], [19, 20]]  # one program


def test_a_run_on_ones_own_schedule_can_go_on(tmp_path):
    world = Quadratics(agents=4)
    problem = pisco.problems.quadratic(world.hessians, world.minimizers)
    rule, folder = pisco.algorithms.dsgd(local_lr=0.01), tmp_path / "kept"
    pisco.run(rule, problem, pisco.Network.ring(4, server=Doubling()), rounds=10, checkpoint=folder)
    # Another object, as another process would have: what it is called must not tell them apart.
    network = pisco.Network.ring(4, server=Doubling())
    on = pisco.run(rule, problem, network, rounds=20, checkpoint=folder, resume=True)
    assert np.flatnonzero(on.history["server"]).tolist() == [1, 3, 7, 15]


def test_half_a_schedule_is_refused():
    class Half:
        def decide(self, memory, key, round_index, observe):
            return True, memory

    with pytest.raises(pisco.InputError, match="has no `start`; subclass pisco.Schedule"):
        pisco.Network.ring(4, server=Half())

    @dataclass
    class Changeable(Doubling):
        gap: int = 2

    with pytest.raises(pisco.InputError, match="has no hash"):
        pisco.Network.ring(4, server=Changeable())
    with pytest.raises(pisco.InputError, match=r"decides float32\[\], expected a boolean"):
        pisco.Network.ring(4, server=lambda key, k: 0.5 * k)
    with pytest.raises(pisco.InputError, match="gossip_steps is -1"):
        pisco.Network.ring(4, gossip_steps=-1)


def test_user_schedules_of_key_and_round():
    network = pisco.Network.ring(5, server=lambda key, k: k % 2 == 0)
    assert [bool(c) for c in coins(network.server, 4)] == [True, False, True, False]
    masked = pisco.Network.ring(5, server=lambda key, k: jnp.arange(5) < 2)
    matrix, links = dense_round(masked)
    np.testing.assert_allclose(matrix[:2, :2], 0.5)
    assert int(links.uplinks) == int(links.downlinks) == 2


@given(st.integers(0, 1000), st.floats(0, 1))
def test_per_agent_rounds_are_doubly_stochastic(seed, p):
    graph = graphs.erdos_renyi(8, 0.4, seed % 7)
    network = pisco.Network(graph, server=pisco.per_agent([p] * 8))
    key = jax.random.key(seed)
    matrix, links = dense_round(network, 3, key)
    np.testing.assert_allclose(matrix.sum(0), 1, atol=1e-6)
    np.testing.assert_allclose(matrix.sum(1), 1, atol=1e-6)
    assert matrix.min() >= -1e-7
    inside = np.asarray(network.server.participants(key, 3))
    members = np.flatnonzero(inside)
    if len(members):
        np.testing.assert_allclose(matrix[np.ix_(members, members)], 1 / len(members), atol=1e-6)
    # Outside: Metropolis weights on the induced subgraph, built the slow way.
    outside = np.flatnonzero(~inside)
    adjacency = graph.adjacency().toarray()[np.ix_(outside, outside)].astype(bool)
    degree = adjacency.sum(1)
    expected = np.where(adjacency, 1 / (1 + np.maximum.outer(degree, degree)), 0)
    expected += np.diag(1 - expected.sum(1))
    np.testing.assert_allclose(matrix[np.ix_(outside, outside)], expected, atol=1e-6)
    assert int(links.edges) == adjacency.sum()
    assert int(links.uplinks) == len(members)


OPERATOR_GRAPHS = {
    "Dense": graphs.erdos_renyi(12, 0.4, 3),
    "Circulant": graphs.ring(200),
    "Gather": graphs.random_regular(200, 4, seed=1),
    "Edges": graphs.star(200),
}


@pytest.mark.parametrize("kind", OPERATOR_GRAPHS)
def test_operators_equal_the_transposed_matrix(kind, x64):
    graph = OPERATOR_GRAPHS[kind]
    W = weights.metropolis(graph)
    operator = mixing.choose_operator(W)
    assert type(operator).__name__ == kind
    x = np.random.default_rng(0).normal(size=(graph.num_agents, 3, 2))
    tree = {"a": jnp.asarray(x), "b": jnp.asarray(x[:, 0, 0])}
    out = operator(tree)
    np.testing.assert_allclose(out["a"], np.tensordot(W.toarray().T, x, axes=1), atol=1e-12)
    np.testing.assert_allclose(out["b"], W.toarray().T @ x[:, 0, 0], atol=1e-12)


@pytest.mark.parametrize("n", [6, 100])
def test_orientation_with_a_directed_cycle(n, x64):
    """W moves everything one step along a directed cycle; X·W means agent i receives from agent i − 1."""
    W = np.roll(np.eye(n), 1, axis=1)
    W = 0.25 * np.eye(n) + 0.75 * W
    network = pisco.Network(weights=W)
    matrix, links = dense_round(network)
    np.testing.assert_allclose(matrix, W.T, atol=1e-15)
    assert int(links.edges) == n  # directed: one message per agent


def test_mixed_rounds_choose_between_server_and_gossip():
    network = pisco.Network.ring(6, server=pisco.every(2))
    gossip, first = dense_round(network, 0)
    server, second = dense_round(network, 1)
    np.testing.assert_allclose(gossip, network.weights.toarray().T, atol=1e-7)
    np.testing.assert_allclose(server, 1 / 6, atol=1e-7)
    assert (int(first.edges), int(first.uplinks), int(second.edges), int(second.downlinks)) == (12, 0, 0, 6)


def test_a_disconnected_graph_without_server_warns_but_runs():
    problem = pisco.problems.quadratic(np.ones((4, 1, 1)), np.arange(4.0)[:, None])
    network = pisco.Network.named("clusters", 4, clusters=2)
    with pytest.warns(UserWarning, match="2 components and the server is never reached"):
        pisco.run(pisco.algorithms.dsgd(local_lr=0.1), problem, network, rounds=2)
    pisco.run(pisco.algorithms.dsgd(local_lr=0.1), problem, network.with_server(pisco.bernoulli(0.1)), rounds=2)


def test_bad_weights_are_refused_in_one_sentence():
    graph = graphs.ring(5)
    skew = doubly_stochastic(5) * 1.0
    skew[0, 0] += 0.1
    with pytest.raises(pisco.InputError, match="sums to 1.1"):
        pisco.Network(weights=skew)
    with pytest.raises(pisco.InputError, match="off|not linked|no edge|edge"):
        pisco.Network(graph, weights=np.full((5, 5), 0.2))
    with pytest.raises(pisco.InputError, match="unknown weights 'fdal'; did you mean 'fdla'"):
        pisco.Network(graph, weights="fdal")
    with pytest.raises(pisco.InputError, match="needs a graph"):
        pisco.Network(weights="fdla")
    with pytest.raises(pisco.InputError, match="unknown graph 'rnig'; did you mean 'ring'"):
        pisco.Network.named("rnig", 5)


def test_karate_club():
    networkx = pytest.importorskip("networkx")
    network = pisco.Network(networkx.karate_club_graph(), weights="metropolis", server=pisco.bernoulli(0.05))
    assert network.num_agents == 34 and network.graph.num_edges == 78
    assert 0 < network.mixing_rate < network.expected_mixing_rate() < 1


@pytest.mark.slow
def test_a_hundred_thousand_agents_never_meet_a_square_matrix():
    """λ_w, operator and one split round of a star and a random regular graph, all within O(edges) memory."""
    import tracemalloc

    tracemalloc.start()
    for graph in (graphs.star(100_000), graphs.random_regular(100_000, 4, seed=0)):
        network = pisco.Network(graph, server=pisco.per_agent(np.full(100_000, 0.1)))
        who = network.server.participants(KEY, 0)
        mix, links = draw_round(network.gossip, who, KEY, 0, network.num_agents)
        out = mix(jnp.ones((100_000, 2)))
        np.testing.assert_allclose(out, 1, atol=1e-4)
        assert int(links.uplinks) > 9000
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 400e6


def test_links_first_read_inside_a_program_serve_others():
    """They are kept, so they hold values, not what stood for these while the first program was traced."""
    network = pisco.Network.ring(5, varying=pisco.edge_dropout(0.4), server=pisco.never())
    jax.jit(lambda x: x * len(jax.tree.leaves(network.gossip)))(1.0)
    assert all(
        isinstance(leaf, jax.Array) and not isinstance(leaf, jax.core.Tracer)
        for leaf in jax.tree.leaves(network.gossip)
    )
