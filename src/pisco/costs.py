"""What a run sends, exactly: counted from the structure of a round and the links its coins chose."""

from __future__ import annotations

from typing import Any

import jax
import numpy as np

from pisco.networks.network import Links
from pisco.tree import num_bytes
from pisco.types import Algorithm, Key, Params, State

DESCRIPTIONS = {
    "server": "rounds since the previous row that reached the server",
    "server_rounds": "rounds so far in which anybody reached the server",
    "gossip_rounds": "rounds so far in which anybody gossiped",
    "exchanges": "sequential exchanges so far (PISCO has two a round)",
    "messages_gossip": "messages between agents so far, one per directed edge and exchange",
    "messages_server": "messages to and from the server so far",
    "bytes_gossip": "bytes between agents so far",
    "bytes_server": "bytes to and from the server so far",
}


def exchange_bytes(algorithm: Algorithm, state: State, num_agents: int) -> tuple[int, ...]:
    """Bytes that one agent sends over one link in every exchange of a round, in order.

    The round is traced, not run: every call of `mix` is one exchange that carries its whole tree. A gradient has
    the shapes of its parameters, so the loss is not even traced.
    """
    sent: list[int] = []

    def record(tree: Any) -> Any:
        sent.append(num_bytes(tree) // num_agents)
        return tree

    def gradient(params: Params, key: Key) -> Params:
        return params

    jax.eval_shape(lambda s, key: algorithm.round(s, key, gradient, record), state, jax.random.key(0))
    return tuple(sent)


def cumulative_costs(links: Links, message_bytes: tuple[int, ...]) -> dict[str, np.ndarray]:
    """Columns of the history from links summed between rows, rows on the last axis."""
    total = {name: np.cumsum(np.asarray(value, np.int64), axis=-1) for name, value in links._asdict().items()}
    exchanges, size = len(message_bytes), sum(message_bytes)
    # A round counts its exchanges once, whichever links it uses; a split round uses both kinds.
    rounds = np.asarray(links.rounds, np.int64)
    server_messages = total["uplinks"] + total["downlinks"]
    return {
        "server": np.asarray(links.server, np.int64),
        "server_rounds": total["server"],
        "gossip_rounds": total["gossip"],
        "exchanges": np.cumsum(rounds, axis=-1) * exchanges,
        "messages_gossip": total["edges"] * exchanges,
        "messages_server": server_messages * exchanges,
        "bytes_gossip": total["edges"] * size,
        "bytes_server": server_messages * size,
    }
