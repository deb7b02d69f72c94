"""Attackers for experiments: agents that compute like everybody else and send something else."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from pisco.errors import InputError, choose
from pisco.networks.guards import Guard
from pisco.networks.network import Network
from pisco.tree import where_agents

Attack = Callable[[Any, jax.Array, Any], Any]
"""`attack(message, key, round_index)`: what is sent instead, leaf by leaf, agents leading."""


def times(factor: float) -> Attack:
    """The message, so many times."""
    return lambda x, key, k: factor * x


def noise(size: float = 1.0) -> Attack:
    """Gaussian noise on every entry of the message."""
    return lambda x, key, k: x + size * jax.random.normal(key, x.shape, x.dtype)


def drift(step: float = 0.01) -> Attack:
    """Every entry of the message, farther off by one step in every round."""
    return lambda x, key, k: x + step * (k + 1)


def constant(value: float = 1.0) -> Attack:
    """The same number in every entry, always."""
    return lambda x, key, k: jnp.full_like(x, value)


ATTACKS: dict[str, Attack] = {
    "times-1000": times(1000.0),
    "sign-flip": times(-1.0),
    "noise": noise(),
    "drift": drift(),
    "constant": constant(),
}


@jax.tree_util.register_dataclass
@dataclass(frozen=True, repr=False)
class Poisoned(Guard):
    """A network's guard, if any, and what some agents send."""

    guard: Guard | None
    who: Any  # (n,) a mask
    attack: Attack = field(metadata={"static": True})
    poisons = True

    @property
    def strikes(self) -> int:  # pyright: ignore[reportIncompatibleVariableOverride]
        return 1 if self.guard is None else self.guard.strikes

    @property
    def reports(self) -> int:  # pyright: ignore[reportIncompatibleVariableOverride]
        return 0 if self.guard is None else self.guard.reports

    @property
    def guard_server(self) -> bool:  # pyright: ignore[reportIncompatibleVariableOverride]
        return self.guard is not None and self.guard.guard_server

    def keep(self, factors: Any, xp: Any = jnp) -> Any:
        return xp.ones_like(factors) if self.guard is None else self.guard.keep(factors, xp)

    def sent(self, tree: Any, key: jax.Array, round_index: Any) -> Any:
        leaves, structure = jax.tree.flatten(tree)
        keys = jax.random.split(key, len(leaves))
        made = [
            self.attack(leaf, each, round_index).astype(leaf.dtype) for leaf, each in zip(leaves, keys, strict=True)
        ]
        return where_agents(self.who, jax.tree.unflatten(structure, made), tree)

    def __repr__(self) -> str:
        return f"{self.guard!r} and {int(np.sum(self.who))} attacker(s)"


def poisoned(network: Network, agents: Sequence[int], attack: str | Attack) -> Network:
    """The same network, where some agents send poison: an experiment for a guard.

    Attackers compute like everybody else; only their messages differ, in every exchange.

    Args:
      network: with a guard or without.
      agents: the attackers.
      attack: "times-1000", "sign-flip", "noise", "drift", "constant", or a traceable function of a leaf of the
        message (agents leading), a key and the round, that returns what is sent instead.

    >>> poisoned(Network.complete(8), [7], "sign-flip")
    Network(complete graph of 8, 28 edges, weights=metropolis, guard=None and 1 attacker(s), server=never())
    """
    bad = [agent for agent in agents if not 0 <= agent < network.num_agents]
    if bad or not len(agents):
        raise InputError(f"agents={list(agents)} are no attackers among 0 to {network.num_agents - 1}; name some")
    who = np.isin(np.arange(network.num_agents), list(agents))
    sends = choose("attack", attack, ATTACKS) if isinstance(attack, str) else attack
    return network.with_guard(Poisoned(network.guard, who, sends))
