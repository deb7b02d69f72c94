"""Mixing rates: dense truth for small n, closed forms in relative terms for large n, and no n × n array."""

import math
import tracemalloc

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.sparse import csr_array, kron

from pisco.errors import InputError
from pisco.networks import graphs, spectral, weights

LARGE = 100_000
SIDE = 316


def constant(graph, alpha):
    diagonal = csr_array((1 - alpha * graph.degrees, (range(graph.num_agents), range(graph.num_agents))))
    return alpha * graph.adjacency() + diagonal


def rate_of_gap(gap):
    return gap * (2 - gap)


SMALL = [
    graphs.ring(40),
    graphs.path(40),
    graphs.star(40),
    graphs.grid(5, 9),
    graphs.torus(6, 7),
    graphs.complete(20),
    graphs.hypercube(5),
    graphs.exponential(40),
    graphs.clusters(4, 10, bridges=1),
    graphs.clusters(4, 10, inner="ring", bridges=2),
    graphs.erdos_renyi(60, 0.15, seed=3, connected=True),
    graphs.small_world(80, 4, 0.05, seed=1),
    graphs.random_regular(60, 3, seed=1),
]


@pytest.mark.parametrize("rule", [weights.metropolis, weights.max_degree, weights.best_constant])
@pytest.mark.parametrize("graph", SMALL, ids=lambda graph: graph.name)
def test_the_sparse_machinery_agrees_with_the_dense(monkeypatch, graph, rule):
    matrix = rule(graph)
    rate, ends = spectral.mixing_rate(matrix), spectral.eigenvalue_extremes(matrix)
    monkeypatch.setattr(spectral, "DENSE_UP_TO", 1)
    assert spectral.mixing_rate(matrix) == pytest.approx(rate, rel=1e-9)
    assert spectral.eigenvalue_extremes(matrix) == pytest.approx(ends, abs=1e-9)


@pytest.mark.parametrize("graph", SMALL, ids=lambda graph: graph.name)
def test_not_symmetric(monkeypatch, graph):
    random = np.random.default_rng(0)
    shuffled = weights.metropolis(graph)[random.permutation(graph.num_agents)]
    n = graph.num_agents
    rate = spectral.mixing_rate(shuffled)
    assert rate == pytest.approx(1 - np.linalg.norm(shuffled.toarray() - 1 / n, 2) ** 2, abs=1e-12)
    monkeypatch.setattr(spectral, "DENSE_UP_TO", 1)
    assert spectral.mixing_rate(shuffled) == pytest.approx(rate, rel=1e-8)


def test_directed_ring_by_its_fourier_sums():
    n = 2000
    shift = csr_array((np.full(n, 0.5), (np.arange(n), (np.arange(n) + 1) % n)), shape=(n, n))
    matrix = shift + csr_array((np.full(n, 0.5), (np.arange(n), np.arange(n))), shape=(n, n))
    assert spectral.mixing_rate(matrix) == pytest.approx(math.sin(math.pi / n) ** 2, rel=1e-9)


def test_a_permutation_does_not_mix(monkeypatch):
    monkeypatch.setattr(spectral, "DENSE_UP_TO", 1)
    assert spectral.mixing_rate(np.roll(np.eye(50), 1, axis=1)) == pytest.approx(0, abs=1e-12)
    block = csr_array(np.roll(np.eye(6), 1, axis=1))
    assert spectral.mixing_rate(kron(block, np.array([[0.5, 0.5], [0.5, 0.5]]))) == pytest.approx(0, abs=1e-9)


def test_corner_cases():
    assert spectral.mixing_rate([[1.0]]) == 1.0
    assert spectral.eigenvalue_extremes([[1.0]]) == (1.0, 1.0)
    assert spectral.mixing_rate(np.eye(4)) == 0.0
    assert spectral.mixing_rate(np.full((4, 4), 0.25)) == pytest.approx(1.0)
    assert spectral.mixing_rate([[0.0, 1.0], [1.0, 0.0]]) == pytest.approx(0.0)
    apart = weights.metropolis(graphs.clusters(2, 501, inner="path"))
    assert spectral.mixing_rate(apart) == 0.0
    low, second = spectral.eigenvalue_extremes(apart)
    assert second == 1.0 and low == pytest.approx(spectral.eigenvalue_extremes(weights.metropolis(graphs.path(501)))[0])
    with pytest.raises(InputError, match="not symmetric"):
        spectral.eigenvalue_extremes(np.roll(np.eye(3), 1, axis=1))
    with pytest.raises(InputError, match="n × n"):
        spectral.mixing_rate(np.ones((2, 3)))


@given(st.floats(0, 1), st.floats(0, 1))
@settings(max_examples=30, deadline=None)
def test_expected_mixing_rate_is_that_of_the_mean_square(rate, prob):
    assert spectral.expected_mixing_rate(rate, prob) == pytest.approx(1 - (1 - prob) * (1 - rate), abs=1e-15)
    assert spectral.expected_mixing_rate(rate, 1) == pytest.approx(1)


def test_expected_mixing_rate_refuses_a_bad_probability():
    with pytest.raises(InputError, match="server_prob is 2"):
        spectral.expected_mixing_rate(0.5, 2)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("graph", "alpha", "rate"),
    [
        (graphs.ring(LARGE), 1 / 3, rate_of_gap(4 / 3 * math.sin(math.pi / LARGE) ** 2)),
        (graphs.path(LARGE), 1 / 2, math.sin(math.pi / LARGE) ** 2),
        (graphs.path(LARGE), 1 / 3, rate_of_gap(4 / 3 * math.sin(math.pi / 2 / LARGE) ** 2)),
        (graphs.grid(SIDE, SIDE), 1 / 5, rate_of_gap(4 / 5 * math.sin(math.pi / 2 / SIDE) ** 2)),
        (graphs.torus(SIDE, SIDE), 1 / 5, rate_of_gap(4 / 5 * math.sin(math.pi / SIDE) ** 2)),
        (graphs.star(LARGE), 1 / LARGE, rate_of_gap(1 / LARGE)),
    ],
    ids=["ring", "path-1/2", "path-1/3", "grid", "torus", "star"],
)
def test_large_graphs_in_relative_terms(graph, alpha, rate):
    assert spectral.mixing_rate(constant(graph, alpha)) == pytest.approx(rate, rel=1e-7)


@pytest.mark.parametrize(
    "build",
    [
        pytest.param(lambda: graphs.ring(LARGE), id="ring"),
        pytest.param(lambda: graphs.grid(SIDE, SIDE), id="grid", marks=pytest.mark.slow),
        pytest.param(lambda: graphs.random_regular(LARGE, 4, seed=1), id="random-regular", marks=pytest.mark.slow),
    ],
)
def test_large_graphs_stay_sparse(build):
    graph = build()
    tracemalloc.start()
    try:
        matrix = weights.check(weights.metropolis(graph), graph)
        assert 0 < spectral.mixing_rate(matrix) < 1
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak < 200e6  # n × n float64 would be 80 GB


@pytest.mark.slow
def test_random_regular_is_an_expander():
    low, second = spectral.eigenvalue_extremes(weights.max_degree(graphs.random_regular(LARGE, 4, seed=1)))
    edge = 2 * math.sqrt(3)  # where the bulk of the adjacency spectrum ends
    assert second == pytest.approx((1 + edge) / 5, abs=2e-3)
    assert low == pytest.approx((1 - edge) / 5, abs=2e-3)
