"""Communication costs: exact, and counted from what a round really sends."""

import math

import jax.numpy as jnp
import numpy as np
import pytest

import pisco
from pisco.algorithms import ALGORITHMS, build

from worlds import network_for

FLOAT = 4
DIM = 5


def loss(x, batch, key):  # one function, so that programs are shared
    return jnp.sum((x - batch) ** 2, axis=-1)


def run(rule, network, rounds=10):
    problem = pisco.Problem(loss, jnp.zeros(DIM), np.zeros((network.num_agents, 1, DIM), np.float32))
    return pisco.run(rule, problem, network, rounds=rounds, eval_every=1)


@pytest.mark.parametrize(
    ("rule", "exchanges", "vectors"),
    [
        (pisco.algorithms.pisco(local_lr=0.1, local_steps=3), 2, 2),
        pytest.param(pisco.algorithms.pisco(local_lr=0.1, local_steps=0), 2, 2, marks=pytest.mark.slow),
        (pisco.algorithms.pisco(local_lr=0.1, local_steps=1, one_exchange=True), 1, 2),
        (pisco.algorithms.dsgd(local_lr=0.1), 1, 1),
    ],
    ids=repr,
)
def test_every_round_is_accounted_for(rule, exchanges, vectors):
    agents, rounds = 6, 10
    history = run(rule, pisco.Network.ring(agents, server=pisco.every(5)), rounds).history
    assert history["server_rounds"][-1] == 2 and history["gossip_rounds"][-1] == 8
    assert history["exchanges"][-1] == exchanges * rounds
    assert history["messages_gossip"][-1] == exchanges * 8 * 2 * agents
    assert history["messages_server"][-1] == exchanges * 2 * 2 * agents
    assert history["bytes_gossip"][-1] == vectors * DIM * FLOAT * 8 * 2 * agents
    assert history["bytes_server"][-1] == vectors * DIM * FLOAT * 2 * 2 * agents
    np.testing.assert_array_equal(np.cumsum(history["server"]), history["server_rounds"])


def test_split_rounds_count_both_kinds():
    """Agents 0 and 1 of a ring of 5 always report: 2 up and down, and the path 2–3–4 gossips on 4 directed edges."""
    rule = pisco.algorithms.dsgd(local_lr=0.1)
    history = run(rule, pisco.Network.ring(5, server=pisco.per_agent([1, 1, 0, 0, 0])), 3).history
    assert history["server_rounds"][-1] == history["gossip_rounds"][-1] == history["exchanges"][-1] == 3
    assert history["messages_server"][-1] == 3 * 4 and history["messages_gossip"][-1] == 3 * 4


def test_mixed_dtypes_are_counted_in_their_own_bytes():
    start = {"w": jnp.zeros(3, jnp.bfloat16), "b": jnp.zeros(1)}
    data = np.ones((4, 1, 3), np.float32)
    problem = pisco.Problem(lambda p, x, key: (x @ p["w"] + p["b"][0]) ** 2, start, data)
    result = pisco.run(pisco.algorithms.dsgd(local_lr=0.1), problem, pisco.Network.ring(4), rounds=1)
    assert result.history["bytes_gossip"][-1] == 8 * (3 * 2 + 4)


TABLE = [  # method, hyperparameters, exchanges, vectors a round between agents or up, vectors down
    ("dsgd", {}, 1, 1, 1),
    ("fedavg", {"local_steps": 3}, 1, 1, 1),
    ("gossip-pga", {}, 1, 1, 1),
    ("scaffold", {"local_steps": 3}, 1, 2, 2),
    ("dsgt", {}, 1, 2, 2),
    ("kgt", {"local_steps": 3}, 1, 2, 2),
    ("periodical-gt", {"local_steps": 3}, 1, 2, 2),
    ("lsgt", {"local_steps": 3}, 1, 2, 2),
    ("pisco", {"local_steps": 3}, 2, 2, 2),
    ("pisco-one-exchange", {"local_steps": 3}, 1, 2, 2),
    ("pisco-vr", {"local_steps": 3}, 1, 2, 2),
    ("extra", {}, 1, 1, 1),
    ("led", {"local_steps": 3}, 1, 1, 1),
    ("gt-hsgd", {}, 2, 2, 2),
    ("feddyn", {"local_steps": 3}, 1, 1, 1),
]


SAME = {"fedavg", "gossip-pga", "lsgt", "periodical-gt", "pisco-vr"}
"""Of the table: rules that are those of other rows, with another choice or network."""


@pytest.mark.parametrize(
    ("name", "options", "exchanges", "up", "down"),
    [pytest.param(*row, marks=[pytest.mark.slow] if row[0] in SAME else []) for row in TABLE],
)
def test_the_table_of_vectors_and_exchanges(name, options, exchanges, up, down):
    agents, rounds = 6, 4
    rule = build(name, local_lr=0.01, **options)
    home = network_for(ALGORITHMS[name], agents)
    both = [home.with_server(pisco.every(2))]  # rounds of either kind
    if rule.needs.constant_map:
        both = [home, home.with_server(pisco.always())]
    for network in [home] if rule.needs.server_every_round else both:
        history = run(rule, network, rounds).history
        server, gossip = history["server_rounds"][-1], history["gossip_rounds"][-1]
        assert history["exchanges"][-1] == exchanges * rounds
        assert history["bytes_gossip"][-1] == up * DIM * FLOAT * 2 * agents * gossip
        assert history["bytes_server"][-1] == (up + down) * DIM * FLOAT * agents * server


def test_clustered_methods_count_reports_and_gossip_steps():
    """TT-HF: two clusters of 3 (complete: 6 directed edges each), Γ = 2, one report per cluster every 5 rounds."""
    history = run(build("tt-hf", local_lr=0.01), network_for(ALGORITHMS["tt-hf"]), 10).history
    assert history["messages_gossip"][-1] == 10 * 2 * 12
    assert history["messages_server"][-1] == 2 * (2 + 6)


def test_a_central_start_is_paid_for():
    network = pisco.Network.ring(6)
    for start, column in (("central", "bytes_server"), ("gossip", "bytes_gossip")):
        history = run(build("kgt", local_lr=0.01, local_steps=2, start=start), network, 2).history
        assert history[column][0] == 12 * DIM * FLOAT and history["exchanges"][0] == 1
    assert run(build("kgt", local_lr=0.01, local_steps=2), network, 2).history["exchanges"][0] == 0


SIZES = {
    "identity": ({}, DIM * FLOAT),
    "top-k": ({"count": 2}, math.ceil(2 * (32 + 3) / 8)),
    "random-k": ({"count": 2}, 2 * FLOAT),
    "quantize": ({"bits": 4}, math.ceil((DIM * (1 + 4) + 32) / 8)),
}


@pytest.mark.parametrize("name", [pytest.param("identity", marks=pytest.mark.slow), "top-k", "random-k", "quantize"])
def test_compressed_messages_cost_their_own_size(name):
    (options, size), agents, rounds = SIZES[name], 6, 4
    rule = build("choco", local_lr=0.01, compressor={"name": name} | options)
    assert run(rule, pisco.Network.ring(agents), rounds).history["bytes_gossip"][-1] == size * 2 * agents * rounds


@pytest.mark.parametrize("name", ["top-k", *(pytest.param(n, marks=pytest.mark.slow) for n in SIZES if n != "top-k")])
def test_two_compressed_vectors_cost_twice_their_size(name):
    (options, size), agents, rounds = SIZES[name], 6, 4
    network, compressor = pisco.Network.ring(agents), {"name": name} | options
    beer = run(build("beer", local_lr=0.01, compressor=compressor), network, rounds).history
    assert beer["bytes_gossip"][-1] == 2 * size * 2 * agents * rounds and beer["exchanges"][-1] == rounds
    mixed = network.with_server(pisco.every(4))
    both = run(build("pisco-compressed", local_lr=0.01, local_steps=1, compressor=compressor), mixed, rounds).history
    assert both["bytes_gossip"][-1] == 2 * size * 2 * agents * 3
    assert both["bytes_server"][-1] == 2 * agents * (size + DIM * FLOAT)  # up compressed, down an average, whole
