"""Weights: doubly stochastic on the graph, the published mixing rates, closed forms against the solver."""

import dataclasses

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.sparse import csr_array

from pisco.errors import InputError
from pisco.networks import graphs, weights
from pisco.networks.spectral import mixing_rate
from pisco.networks.weights import WEIGHTS

CLOSED_FORMS = [
    *(graphs.ring(n) for n in (3, 4, 5, 8)),
    *(graphs.path(n) for n in (2, 3, 6, 7)),
    *(graphs.star(n) for n in (3, 4, 7)),
    *(graphs.torus(m, m) for m in (3, 4, 5)),
    graphs.complete(5),
    graphs.hypercube(1),
    graphs.hypercube(3),
    graphs.hypercube(4),
]


def solved(graph):
    return dataclasses.replace(graph, laplacian_extremes=None)


@st.composite
def some_graph(draw):
    n = draw(st.integers(1, 9))
    pairs = [(i, j) for i in range(n) for j in range(i)]
    chosen = draw(st.lists(st.sampled_from(pairs), unique=True)) if pairs else []
    return graphs.Graph(n, chosen)


@given(some_graph(), st.sampled_from(sorted(WEIGHTS)), st.booleans())
@settings(max_examples=60, deadline=None)
def test_symmetric_doubly_stochastic_on_the_graph(graph, rule, lazy):
    matrix = WEIGHTS[rule](graph, lazy=lazy)
    dense = matrix.toarray()
    assert (dense == dense.T).all()
    assert np.abs(dense.sum(axis=0) - 1).max() < 2e-15
    assert not dense[(graph.adjacency().toarray() == 0) & ~np.eye(graph.num_agents, dtype=bool)].any()
    assert np.abs(np.linalg.eigvalsh(dense)).max() < 1 + 1e-12
    assert (weights.check(matrix, graph) != matrix).nnz == 0


def by_another_solver(graph, nonnegative):
    """The optimum of the same semidefinite program, by cvxpy."""
    cp = pytest.importorskip("cvxpy")
    n, incidence = graph.num_agents, np.zeros((graph.num_agents, graph.num_edges))
    incidence[graph.edges[:, 0], np.arange(graph.num_edges)] = 1
    incidence[graph.edges[:, 1], np.arange(graph.num_edges)] = -1
    w, s, identity = cp.Variable(graph.num_edges), cp.Variable(), np.eye(n)
    deviation = identity - 1 / n - incidence @ cp.diag(w) @ incidence.T
    limits = [s * identity - deviation >> 0, s * identity + deviation >> 0]
    if nonnegative:
        limits += [w >= 0, np.abs(incidence) @ w <= 1]
    return cp.Problem(cp.Minimize(s), limits).solve(solver=cp.CLARABEL)


@pytest.mark.parametrize("nonnegative", [False, True])
@pytest.mark.parametrize("graph", [graphs.grid(3, 4), graphs.erdos_renyi(16, 0.3, seed=0)], ids=lambda g: g.name)
def test_fdla_is_the_optimum_another_solver_finds(graph, nonnegative):
    found = weights.fdla(graph, nonnegative=nonnegative)
    deviation = np.linalg.norm(found.toarray() - 1 / graph.num_agents, 2)
    assert deviation == pytest.approx(by_another_solver(graph, nonnegative), abs=1e-6)


def test_fdla_by_conjugate_gradients_agrees_with_factoring(monkeypatch):
    graph = graphs.erdos_renyi(40, 0.3, seed=1)
    precise = 1 - mixing_rate(weights.fdla(graph))
    monkeypatch.setattr("pisco.networks.fastest.FACTOR_UP_TO", 0)
    assert precise <= 1 - mixing_rate(weights.fdla(graph)) <= 1.01 * precise


@pytest.mark.slow
@pytest.mark.parametrize("probability", [0.03, 0.1, 0.3])
def test_fdla_of_200_agents_is_within_a_percent(probability, monkeypatch):
    graph = graphs.erdos_renyi(200, probability, seed=1)
    rough = np.sqrt(1 - mixing_rate(weights.fdla(graph)))
    monkeypatch.setattr("pisco.networks.fastest.ROUGH", 1e-5)
    precise = np.sqrt(1 - mixing_rate(weights.fdla(graph)))
    assert precise - 1e-9 <= rough <= 1.01 * precise


@given(some_graph())
@settings(max_examples=20, deadline=None)
def test_nonnegative_fdla(graph):
    free, clipped = weights.fdla(graph), weights.fdla(graph, nonnegative=True)
    assert clipped.toarray().min() >= 0
    assert mixing_rate(clipped) <= mixing_rate(free) + 1e-6
    assert mixing_rate(clipped) >= mixing_rate(weights.metropolis(graph)) - 1e-6


@pytest.mark.parametrize(
    ("graph", "fastest", "metropolis"),
    [
        (graphs.ring(10), 0.318278, 0.238433),
        (graphs.ring(5), 0.8, 0.709107),
        (graphs.path(10), np.sin(np.pi / 10) ** 2, 0.064193),
        (graphs.star(10), 0.330579, 0.19),
        (graphs.torus(4, 4), 0.64, 0.64),
        (graphs.hypercube(3), 0.75, 0.75),
    ],
)
def test_published_rates(graph, fastest, metropolis):
    assert mixing_rate(weights.fdla(graph)) == pytest.approx(fastest, abs=1e-6)
    assert mixing_rate(weights.fdla(solved(graph))) == pytest.approx(fastest, abs=1e-6)
    assert mixing_rate(weights.metropolis(graph)) == pytest.approx(metropolis, abs=1e-6)


def test_nonnegative_star():
    assert mixing_rate(weights.fdla(graphs.star(10), nonnegative=True)) == pytest.approx(0.209877, abs=1e-6)


@pytest.mark.parametrize(("seed", "rate"), [(12, 0.3810), (14, 0.3807), (23, 0.3813)])
def test_the_papers_connected_graph(seed, rate):
    assert mixing_rate(weights.fdla(graphs.erdos_renyi(10, 0.3, seed))) == pytest.approx(rate, abs=5e-5)


@pytest.mark.parametrize("graph", CLOSED_FORMS, ids=lambda graph: graph.name)
@pytest.mark.parametrize("nonnegative", [False, True])
def test_closed_forms_are_what_the_solver_finds(graph, nonnegative):
    closed, numeric = (weights.fdla(g, nonnegative=nonnegative) for g in (graph, solved(graph)))
    assert mixing_rate(closed) == pytest.approx(mixing_rate(numeric), abs=1e-6)
    laplacian = np.diag(graph.degrees) - graph.adjacency().toarray()
    assert graph.laplacian_extremes == pytest.approx(np.linalg.eigvalsh(laplacian)[[1, -1]], rel=1e-9)
    constant = weights.best_constant(graph)
    assert np.allclose(constant.toarray(), weights.best_constant(solved(graph)).toarray(), atol=1e-12)


@pytest.mark.parametrize("graph", [graphs.torus(3, 6), graphs.grid(3, 4), graphs.clusters(2, 4, bridges=1)])
def test_no_closed_form_where_the_solver_does_better(graph):
    assert graph.laplacian_extremes is None
    assert mixing_rate(weights.fdla(graph)) > mixing_rate(weights.best_constant(graph)) + 1e-3


def test_each_component_gets_its_own_fastest_weights():
    graph = graphs.Graph(9, [(0, 2), (2, 4), (1, 3), (3, 5), (5, 7), (7, 1)])  # a path, a ring, two alone
    for rule in (weights.fdla, weights.best_constant):
        dense = rule(graph).toarray()
        assert dense[[[0], [2], [4]], [0, 2, 4]] == pytest.approx(weights.fdla(graphs.path(3)).toarray(), abs=1e-6)
        ring = [[1], [3], [5], [7]], [1, 3, 5, 7]
        assert dense[ring] == pytest.approx(weights.fdla(graphs.ring(4)).toarray(), abs=1e-6)
        assert dense[6, 6] == dense[8, 8] == 1


def test_lazy_is_halfway_to_the_identity():
    graph = graphs.erdos_renyi(8, 0.5, seed=1)
    for rule in WEIGHTS.values():
        assert rule(graph, lazy=True).toarray() == pytest.approx((rule(graph).toarray() + np.eye(8)) / 2, abs=1e-9)


def test_large_graphs_without_a_closed_form_say_what_they_get():
    graph = graphs.grid(15, 14)
    with pytest.warns(UserWarning, match="15×14 grid .210 agents. take long"):
        matrix = weights.fdla(graph)
    assert (matrix != weights.best_constant(graph)).nnz == 0


def test_best_constant_of_a_large_grid_balances_both_ends():
    m = 60
    low, high = 4 * np.sin(np.pi / 2 / m) ** 2, 8 * np.cos(np.pi / 2 / m) ** 2
    matrix = weights.best_constant(graphs.grid(m, m))
    assert matrix[0, 1] == pytest.approx(2 / (low + high), rel=1e-12)


def test_check_takes_what_users_have():
    shift = np.roll(np.eye(4), 1, axis=1)  # doubly stochastic, not symmetric
    for given_as in (shift, shift.tolist(), csr_array(shift)):
        assert (weights.check(given_as, graphs.ring(4)).toarray() == shift).all()


@pytest.mark.parametrize(
    ("matrix", "message"),
    [
        ([[0.5, 0.5], [0.5, 0.48]], r"row 1 of `weights` sums to 0.98, expected 1; `weights.metropolis\(graph\)`"),
        (np.eye(2) + 0j, r"`weights` holds complex numbers; pass real ones, as in weights\.real"),
        ([[0.4, 0.6], [0.3, 0.7]], "column 0 of `weights` sums to 0.7"),
        ([[1.0, 0.0]], "n × n"),
        ([[1.0], [1.0, 2.0]], "matrix of numbers"),
        ([["a"]], "matrix of numbers"),
        ([], "n × n"),
        ([[np.nan, 1.0], [1.0, 0.0]], r"`weights`\[0, 0\] is nan"),
        (np.full((4, 4), 0.25), r"`weights`\[0, 2\] is 0.25 but agents 0 and 2 are not linked in ring of 4"),
        (np.eye(3), "ring of 4 has 4 agents"),
    ],
)
def test_check_names_what_is_wrong(matrix, message):
    with pytest.raises(InputError, match=message):
        weights.check(matrix, graphs.ring(4))


def test_unknown_option_by_name():
    with pytest.raises(InputError, match="no option 'nonnegative'; known: lazy"):
        WEIGHTS["metropolis"](graphs.ring(4), nonnegative=True)


def test_step_weights_average_exactly_where_that_is_as_fast():
    assert WEIGHTS["pisco-step"](graphs.complete(5)).toarray() == pytest.approx(np.full((5, 5), 0.2))
