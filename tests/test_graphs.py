"""Graphs: shapes of the families, the checks at the edge, and the registry."""

import networkx as nx
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.sparse import csr_array

from pisco.errors import InputError
from pisco.networks import graphs
from pisco.networks.graphs import GRAPHS, Graph
from pisco.report import plot_network


def same_edges(graph, reference):
    reference = nx.convert_node_labels_to_integers(reference, ordering="sorted")
    return graph.edges.tolist() == sorted(sorted(edge) for edge in reference.edges)


@pytest.mark.parametrize(
    ("graph", "reference"),
    [
        (graphs.ring(7), nx.cycle_graph(7)),
        (graphs.path(7), nx.path_graph(7)),
        (graphs.complete(6), nx.complete_graph(6)),
        (graphs.star(6), nx.star_graph(5)),
        (graphs.grid(3, 4), nx.grid_2d_graph(3, 4)),
        (graphs.torus(3, 5), nx.grid_2d_graph(3, 5, periodic=True)),
        (graphs.hypercube(3), nx.hypercube_graph(3)),
        (graphs.exponential(9), nx.circulant_graph(9, [1, 2, 4, 8])),
        (graphs.small_world(20, 4, 0.3, seed=5), nx.watts_strogatz_graph(20, 4, 0.3, seed=5)),
    ],
)
def test_families_are_those_of_networkx(graph, reference):
    assert same_edges(graph, reference)


@pytest.mark.parametrize(("n", "prob", "seed"), [(10, 0.3, 12), (10, 0.1, 3), (40, 0.2, 7), (5, 0, 0), (5, 1, 0)])
def test_erdos_renyi_is_that_of_networkx(n, prob, seed):
    assert same_edges(graphs.erdos_renyi(n, prob, seed), nx.erdos_renyi_graph(n, prob, seed=seed))


def test_connected_erdos_renyi_takes_the_next_seed():
    graph = graphs.erdos_renyi(10, 0.1, seed=0, connected=True)
    assert graph.is_connected and "seed" in graph.name
    with pytest.raises(InputError, match="raise prob"):
        graphs.erdos_renyi(10, 0.0, connected=True)


@pytest.mark.parametrize("build", [graphs.ring, graphs.path, graphs.complete, graphs.star, graphs.exponential])
@pytest.mark.parametrize("n", [1, 2, 3])
def test_smallest_graphs(build, n):
    graph = build(n)
    assert graph.num_agents == n and graph.is_connected


def test_wrapping_around_a_short_side_makes_no_loop_or_double_edge():
    assert same_edges(graphs.torus(1, 5), nx.cycle_graph(5))
    assert graphs.torus(2, 2).num_edges == 4
    assert graphs.torus(1, 1).num_edges == 0


def test_clusters():
    apart = graphs.clusters([3, 4, 5])
    assert np.bincount(apart.components()).tolist() == [3, 4, 5] and apart.num_edges == 3 + 6 + 10
    joined = graphs.clusters(3, 5, inner="ring", bridges=2)
    assert joined.is_connected and joined.num_edges == 3 * 5 + 3 * 2
    assert graphs.clusters(2, 5, bridges=1).num_edges == 2 * 10 + 1


def test_random_regular_degrees():
    assert (graphs.random_regular(30, 4, seed=1).degrees == 4).all()


@st.composite
def agents_and_pairs(draw):
    n = draw(st.integers(1, 12))
    agent = st.integers(0, n - 1)
    return n, [(i, j) for i, j in draw(st.lists(st.tuples(agent, agent))) if i != j]


@given(agents_and_pairs())
@settings(max_examples=50, deadline=None)
def test_edges_are_normalised(sample):
    n, pairs = sample
    graph = Graph(n, pairs)
    assert [tuple(edge) for edge in graph.edges.tolist()] == sorted({(min(e), max(e)) for e in pairs})
    adjacency = graph.adjacency()
    assert (adjacency != adjacency.T).nnz == 0 and adjacency.sum() == 2 * graph.num_edges
    assert (adjacency.sum(axis=1) == graph.degrees).all()
    reference = nx.empty_graph(n)
    reference.add_edges_from(pairs)
    assert graph.is_connected == nx.is_connected(reference)
    assert graphs.from_adjacency(adjacency).edges.tolist() == graph.edges.tolist()
    assert graphs.from_networkx(reference).edges.tolist() == graph.edges.tolist()


def test_from_networkx_keeps_the_order_of_any_labels():
    reference = nx.Graph([("c", "a"), ("a", "b"), ("b", "b")])
    assert graphs.from_networkx(reference).edges.tolist() == [[0, 1], [1, 2]]


def test_from_edges_and_adjacency():
    assert graphs.from_edges([(0, 3)]).num_agents == 4
    assert graphs.from_edges([], num_agents=2).num_edges == 0
    assert graphs.from_adjacency([[1, 2], [2, 0]]).edges.tolist() == [[0, 1]]
    assert graphs.from_adjacency(csr_array((3, 3))).num_edges == 0


@pytest.mark.parametrize(
    ("build", "message"),
    [
        (lambda: graphs.ring(0), "agents is 0"),
        (lambda: graphs.ring(2.5), "whole number"),
        (lambda: graphs.ring(float("inf")), "whole number"),
        (lambda: graphs.ring("ten"), "expected a whole number"),
        (lambda: graphs.grid(0, 3), "rows is 0"),
        (lambda: graphs.hypercube(40), "dim is 40"),
        (lambda: Graph(3, [(0, 3)]), r"edge \(0, 3\) is outside"),
        (lambda: Graph(3, [(0, -1)]), r"edge \(0, -1\) is outside"),
        (lambda: Graph(3, [(1, 1)]), "self loop"),
        (lambda: Graph(3, [(0.5, 1)]), "expected integers"),
        (lambda: Graph(3, [0, 1]), "one pair"),
        (lambda: Graph(3, [(0, 1), (1,)]), "pairs of agents"),
        (lambda: Graph(3, [], positions=np.zeros((2, 2))), "positions"),
        (lambda: graphs.erdos_renyi(5, 1.5), "prob is 1.5"),
        (lambda: graphs.small_world(10, 3), "even number"),
        (lambda: graphs.random_regular(5, 3), "must be even"),
        (lambda: graphs.random_regular(4, 4), "at most"),
        (lambda: graphs.clusters([]), "empty"),
        (lambda: graphs.clusters(3), "lacks the size"),
        (lambda: graphs.clusters(2, 3, bridges=4), "bridges is 4"),
        (lambda: graphs.clusters(2, 3, inner="rign"), "did you mean 'ring'"),
        (lambda: graphs.from_edges([]), "num_agents"),
        (lambda: graphs.from_adjacency([[0, 1], [0, 0]]), "one way only"),
        (lambda: graphs.from_adjacency([[0, 1, 0]]), "n × n"),
        (lambda: graphs.from_networkx(7), "the graph is 7"),
        (lambda: GRAPHS["ring"](agents=3, seed=1), "no option 'seed'; known: agents"),
        (lambda: GRAPHS["erdos-renyi"](agents=3), "prob is missing; graph 'erdos-renyi' needs it, as in prob = 0.1"),
        (lambda: GRAPHS["grid"](agents=7), "a prime"),
        (lambda: GRAPHS["grid"](agents=12, rows=5), "divisor"),
        (lambda: GRAPHS["hypercube"](agents=6), "4 or 8"),
        (lambda: GRAPHS["clusters"](agents=10, clusters=3), "divisor"),
    ],
)
def test_bad_input_is_one_clear_sentence(build, message):
    with pytest.raises(InputError, match=message):
        build()


@pytest.mark.parametrize("name", sorted(GRAPHS))
def test_every_family_by_name(name):
    options = {"erdos-renyi": {"prob": 0.5}, "random-digraph": {"prob": 0.1}, "clusters": {"clusters": 4}}.get(name, {})
    assert GRAPHS[name](agents=16, **options).num_agents == 16


def test_lattices_by_name_are_as_square_as_can_be():
    assert GRAPHS["grid"](agents=12).name == "3×4 grid"
    assert GRAPHS["torus"](agents=12, rows=2).name == "2×6 torus"
    assert GRAPHS["grid"](agents=7, rows=1).num_edges == 6


def test_edges_cannot_be_changed():
    with pytest.raises(ValueError, match="read-only"):
        graphs.ring(4).edges[0] = 0


@pytest.mark.parametrize("graph", [graphs.ring(5), graphs.torus(3, 3), graphs.erdos_renyi(60, 0.1), graphs.path(1)])
def test_draw(graph, tmp_path):
    plot_network(graph, path=tmp_path / "graph.png")
    assert (tmp_path / "graph.png").stat().st_size > 1000


def test_draw_marks_negative_weights():
    matrix = [[0.6, 0.6, -0.2], [0.6, 0.2, 0.2], [-0.2, 0.2, 1.0]]
    axes = plot_network(graphs.ring(3), matrix, agent_colours=["red", "green", "blue"]).axes[0]
    assert [text.get_text() for text in axes.get_legend().get_texts()] == [
        "largest weight 0.600",
        "most negative weight −0.200",
    ]


def test_draw_refuses_what_no_one_could_read():
    with pytest.raises(InputError, match="501 agents"):
        plot_network(graphs.ring(501))
    with pytest.raises(InputError, match="agent_colours"):
        plot_network(graphs.ring(3), agent_colours=["red"])
