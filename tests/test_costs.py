"""Communication costs: exact, and counted from what a round really sends."""

import jax.numpy as jnp
import numpy as np
import pytest

import pisco

FLOAT = 4
DIM = 5


def run(rule, network, rounds=10):
    data = np.zeros((network.num_agents, 1, DIM), np.float32)
    problem = pisco.Problem(lambda x, batch, key: jnp.sum((x - batch) ** 2, axis=-1), jnp.zeros(DIM), data)
    return pisco.run(rule, problem, network, rounds=rounds)


@pytest.mark.parametrize(
    ("rule", "exchanges", "vectors"),
    [
        (pisco.algorithms.pisco(local_lr=0.1, local_steps=3), 2, 2),
        (pisco.algorithms.pisco(local_lr=0.1, local_steps=0), 2, 2),
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
