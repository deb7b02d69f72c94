"""One-way links: parameters are pulled and trackers pushed, and the optimum is reached where one matrix cannot."""

import jax.numpy as jnp
import networkx as nx
import numpy as np
import pytest

import pisco
from pisco.algorithms import build
from pisco.algorithms import pisco as pisco_rule
from pisco.costs import Prices
from pisco.engines.job import seed_key, streams
from pisco.federation.runtime import membership
from pisco.federation.runtime.replay import everybody, replay, scan
from pisco.networks import graphs, spectral
from pisco.networks.directed import in_out
from pisco.networks.facts import facts
from pisco.networks.graph import circle
from pisco.networks.rounds import draw_round
from pisco.planning import check_step
from pisco.report import plot_network
from pisco.report.curves import page_numbers
from pisco.report.drawing import heads, places_of, segments
from pisco.report.summary import paragraphs
from pisco.theory import agents_growth, largest_safe_step
from pisco.types import Pushed

import twins
from federations import Running, free_ports, plan_for, quadratic_of
from worlds import Quadratics, after, coins, doubly_stochastic, trajectory

COIN = pisco.bernoulli(0.3)
DIGRAPHS = {
    "ring": graphs.directed_ring(6),
    "exponential": graphs.directed_exponential(6),
    "random": graphs.random_digraph(6, 0.2, seed=3),
}
PUSH_PULL = {"local_steps": 0, "one_exchange": True}


def slow(case):
    return pytest.param(case, marks=pytest.mark.slow)


def one_round(network, tree, who=False):
    mix, links = draw_round(network.gossip, who, streams(seed_key(0)).links, jnp.int32(0), network.num_agents)
    return mix(tree), links


def test_families():
    assert graphs.directed_ring(3).arcs.tolist() == [[0, 1], [1, 2], [2, 0]]
    assert graphs.directed_exponential(5).arcs[:3].tolist() == [[0, 1], [0, 2], [0, 4]]
    assert graphs.random_digraph(9, 0.2, seed=1).is_connected
    assert graphs.directed_ring(1).arcs.tolist() == [] and graphs.ring(4).arcs is None
    given = pisco.Network(nx.DiGraph([(0, 1), (1, 2), (2, 0), (0, 2)]))
    assert given.graph.arcs.tolist() == [[0, 1], [0, 2], [1, 2], [2, 0]] and given.weights_name == "in-out"
    alone = graphs.from_networkx(nx.DiGraph([(0, 1), (1, 2)]))
    assert alone.components().max() == 2  # nobody hears of agent 2
    assert "has 3 components" in pisco.Network(alone).problem_with_reach


def test_eigenvalues_of_many_agents(monkeypatch):
    """They crowd on a directed ring, which no iteration tells apart; beyond some agents nothing is dense."""
    few = [graphs.directed_ring(60), graphs.directed_exponential(70), graphs.random_digraph(90, 0.2)]
    for n, step in ((300, 10), (400, 40)):  # rings with some links across
        across = [(i, 7 * i % n) for i in range(1, n, step)]
        few.append(pisco.Graph(n, [*((i, (i + 1) % n) for i in range(n)), *across], one_way=True))
    exact = [facts(pisco.Network(graph)) for graph in few]
    monkeypatch.setattr(spectral, "DENSE_UP_TO", 50)
    for graph, known in zip(few, exact, strict=True):
        found = facts(pisco.Network(graph))
        for name in ("mixing_rate", "smallest_eigenvalue"):
            assert found[name] == pytest.approx(known[name], rel=1e-9, abs=1e-12), graph
    around = pisco.Graph(1000, [*((i, (i + 1) % 1000) for i in range(1000)), (0, 5)], one_way=True)
    with pytest.raises(pisco.InputError, match="eigenvalues of 1000 agents with one-way links lie too close"):
        _ = pisco.Network(around).mixing_rate


@pytest.mark.parametrize("name", ["random", slow("ring"), slow("exponential")])
def test_pulls_and_pushes(name, x64):
    graph = DIGRAPHS[name]
    network = pisco.Network(graph, server=COIN)
    eye = jnp.eye(6)
    (R, (C,)), links = one_round(network, (eye, Pushed(eye)))
    np.testing.assert_allclose(R.sum(axis=1), 1)
    np.testing.assert_allclose(C.sum(axis=0), 1)
    linked = np.eye(6, dtype=bool)
    linked[graph.arcs[:, 1], graph.arcs[:, 0]] = True
    assert ((R > 0) == linked).all() and ((C > 0) == linked).all()
    assert int(links.edges) == len(graph.arcs)
    both, _ = one_round(network, (eye, Pushed(eye)), who=True)
    for matrix in (both[0], both[1].tree):
        np.testing.assert_allclose(matrix, 1 / 6)
    assert 0 < network.mixing_rate < 1


@pytest.mark.parametrize("options", [PUSH_PULL, slow({"local_steps": 2}), {"local_steps": 1, "comm_lr": 0.7}], ids=str)
def test_twins(x64, options):
    world, rounds = Quadratics(), 40
    network = pisco.Network(DIGRAPHS["random"], server=COIN)
    J = np.full((6, 6), 1 / 6)
    pairs = [(J, J) if coin else (network.weights.toarray(), network.push.toarray()) for coin in coins(COIN, rounds)]
    states = trajectory(pisco_rule(local_lr=0.03, **options), world.problem(), network, rounds)
    twin = twins.push_pull(world.x0, world.gradient, pairs, local_lr=0.03, **options)
    for state, naive in zip(states[1:], twin, strict=True):
        for field, expected in naive.items():
            np.testing.assert_allclose(getattr(state, field).T, expected, rtol=0, atol=1e-12)
        np.testing.assert_allclose(state.tracker.mean(0), state.grads.mean(0), rtol=0, atol=1e-12)


@pytest.mark.parametrize("server", [pisco.never(), slow(COIN)], ids=repr)
@pytest.mark.parametrize("options", [PUSH_PULL, {"local_steps": 2}], ids=str)
def test_the_optimum_where_one_matrix_does_not_get_there(x64, options, server):
    world, network = Quadratics(), pisco.Network(DIGRAPHS["random"], server=server)
    found = after(pisco_rule(local_lr=0.02, **options), world.problem(), network, 3000)
    np.testing.assert_allclose(found, np.tile(world.optimum, (6, 1)), rtol=0, atol=1e-10)
    # DSGT, and PISCO, with the pulled matrix for both: it settles, and elsewhere.
    pull = network.weights.toarray()
    *_, stuck = twins.push_pull(world.x0, world.gradient, [(pull, pull)] * 3000, local_lr=0.02, **options)
    assert np.ptp(stuck["params"], axis=1).max() < 1e-8
    assert np.abs(stuck["params"].T - world.optimum).max() > 0.01


@pytest.mark.parametrize("p", [0.0, 0.3])
@pytest.mark.parametrize("options", [PUSH_PULL, {"local_steps": 1}], ids=str)
def test_limits_of_steps_are_where_runs_diverge(x64, options, p):
    """Just below the limit errors shrink, in the mean over coins; just above they grow."""
    world, network = Quadratics(dim=2), pisco.Network(DIGRAPHS["random"])
    pair, rule = (network.weights, network.push), {"server_prob": p} | options
    limit = largest_safe_step(world.hessians, pair, **rule)
    assert agents_growth(world.hessians, pair, local_lr=0.97 * limit, **rule) < 1
    assert agents_growth(world.hessians, pair, local_lr=1.03 * limit, **rule) > 1
    if p:
        return
    problem, ends = world.problem(), []
    for share in (0.97, 1.03):
        found = after(pisco_rule(local_lr=share * limit, **options), problem, network, 3000)
        ends.append(np.abs(found - world.optimum).max())
    assert ends[0] < 1e-3 and not ends[1] < 10
    # With J for both, p does not matter; a pair of one matrix is that matrix.
    W = doubly_stochastic(6, symmetric=False)
    one, two = (largest_safe_step(world.hessians, each, **options) for each in (W, (W, W)))
    assert one == pytest.approx(two)


def test_a_step_beyond_the_limit_is_told_before_the_run():
    network = pisco.Network(DIGRAPHS["random"])
    problem = pisco.problems.quadratic(np.stack([np.eye(2)] * 6), np.arange(12.0).reshape(6, 2))
    said = check_step(pisco_rule(local_lr=2.2, local_steps=2), problem, network, rounds=300)
    assert said is not None and "network.weights" not in str(said)
    assert check_step(pisco_rule(local_lr=0.05, local_steps=2), problem, network, rounds=300) is None


def test_a_pair_of_one_matrix_is_that_matrix(x64):
    world, W = Quadratics(), doubly_stochastic(6, symmetric=False)
    rule = pisco_rule(local_lr=0.03, local_steps=1)
    one, two = (after(rule, world.problem(), pisco.Network(weights=each), 50) for each in (W, (W, W)))
    np.testing.assert_allclose(one, two, rtol=0, atol=1e-13)


def test_a_digraph_in_numbers_and_as_a_picture(tmp_path):
    network = pisco.Network(DIGRAPHS["random"])
    found = facts(network)
    assert found["edges"] == len(network.graph.arcs) and found["components"] == 1
    assert -1 < found["smallest_eigenvalue"] < found["mixing_rate"] < 1
    assert found["out_degree_mean"] == found["in_degree_mean"] == found["edges"] / 6 and "degree_mean" not in found
    plot_network(network.graph, network.weights, tmp_path / "digraph.png")
    plot_network(network.graph, network.weights, tmp_path / "digraph.html")
    assert "in-out" in repr(network) and "mixing rate" in network._repr_html_()


def test_pictures_and_reports_say_which_way_links_go():
    graph = pisco.Graph(4, [(0, 1), (2, 1), (2, 3), (3, 2)], positions=circle(4), one_way=True)
    assert "4 one-way links" in repr(graph)
    places = places_of(graph)
    triangles = [head for each in heads(graph, places, segments(graph, places)) for head in each]
    assert len(triangles) == 4 and triangles[0].shape == (4, 2)
    for tip, tail, *_ in heads(graph, places, segments(graph, places))[0]:  # from 0 to 1
        assert np.hypot(*(tip - places[1])) < np.hypot(*(tail - places[1]))
    assert len(plot_network(graph, graph.adjacency()).axes[0].collections) == 3  # lines, heads, agents

    world = Quadratics(agents=4)
    result = pisco.run(
        pisco_rule(local_lr=0.01, local_steps=1), world.problem(), pisco.Network(graph, server=COIN), rounds=2
    )
    (drawn,) = page_numbers([result])["results"]
    assert "one way" in drawn["network"]["note"] and drawn["network"]["degrees"] == [[1, 0, 2, 1], [0, 2, 1, 1]]
    assert drawn["network"]["heads"][0].count(None) == 4
    assert "a network with one-way links" in paragraphs([result], {}, Prices())[0]


SEVERAL = {"graph": "random-digraph", "prob": 0.4, "seed": 1, "server_prob": 0.3}


def test_a_federation_with_one_way_links(tmp_path, x64):
    world, given = Quadratics(agents=4), {"name": "pisco", "local_lr": 0.02, "local_steps": 1}
    founded = plan_for(3, rounds=8, dtype="float64", network=SEVERAL, algorithm=given, eval_every=4)
    plan = founded.change(5, "add", "agent-3", f"127.0.0.1:{free_ports(1)[0]}")
    problems = {name: quadratic_of(i, world, "float64") for i, name in enumerate(plan.names)}
    ran = Running(tmp_path, plan, lambda i: problems[f"agent-{i}"]).join()
    states = replay(plan, problems, everybody(plan))
    np.testing.assert_array_equal(ran.params(), np.concatenate([states[name].params for name in plan.names]))
    # The same without the fourth, and in the engine that simulates: what is pushed has other weights than the rest.
    few = {name: problems[name] for name in founded.names}
    states, told = replay(founded, few, everybody(founded)), scan(founded, few, everybody(founded))
    again = np.concatenate([states[name].params for name in founded.names])
    np.testing.assert_allclose(told.params, again, rtol=0, atol=1e-12)
    assert np.abs(again - world.x0).max() > 1e-3 and founded.epochs[0].push != founded.epochs[0].weights


def test_costs_count_arcs(x64):
    network = pisco.Network(DIGRAPHS["random"])
    result = pisco.run(build("push-pull", local_lr=0.02), Quadratics().problem(), network, rounds=10)
    assert result.history["messages_gossip"][-1] == 10 * len(network.graph.arcs)
    assert result.history["bytes_gossip"][-1] == 10 * len(network.graph.arcs) * 2 * 4 * 8


@pytest.mark.parametrize(
    ("call", "sentence"),
    [
        (lambda g: pisco.Network(g, weights="fdla"), "weigh links both ways"),
        (lambda g: pisco.Network(g, server=pisco.per_agent([0.5] * 6)), "has one-way links"),
        (lambda g: pisco.Network(g, varying=pisco.edge_dropout(0.1)), "has one-way links"),
        (lambda g: pisco.Network(g, presence=pisco.churn(0.1, 0.2)), "one-way links|both ways"),
        (lambda g: pisco.Network(g, weights=in_out(g)[::-1]), "of the weights to pull sums to"),
        (lambda g: pisco.Network(g, weights=tuple(-w for w in in_out(g))), "not negative"),
        (lambda g: pisco.Network(g, weights=in_out(graphs.directed_exponential(6))), "not linked so"),
        (lambda g: pisco.Network(g, weights=in_out(graphs.directed_ring(5))), "make all the same size"),
        (
            lambda g: pisco.run(
                pisco.algorithms.dsgt(local_lr=0.1), Quadratics().problem(), pisco.Network(g), rounds=1
            ),
            "which one-way links do not have",
        ),
        (lambda g: graphs.random_digraph(5, 1.5), "prob is 1.5"),
        (
            lambda g: plan_for(4, presence="deadline", deadline=2.0, network={"graph": "directed-ring"}),
            "one-way links|both ways",
        ),
        (
            lambda g: membership.check(plan_for(4, algorithm={"name": "dsgt", "local_lr": 0.1}, network=SEVERAL)),
            "which one-way links do not have",
        ),
    ],
)
def test_what_cannot_be_done_is_refused(call, sentence):
    with pytest.raises(pisco.InputError, match=sentence):
        call(DIGRAPHS["random"])
