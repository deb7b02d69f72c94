"""Where agents are held: all on one device, or some here and the others elsewhere.

Rounds and metrics are written once, in these few operations. Those over all agents are collectives where agents are
spread over devices.
"""

from __future__ import annotations

from typing import Any, Protocol

import jax
import jax.numpy as jnp

from pisco.networks.mixing import Operator, average
from pisco.tree import mean_over_agents, spread


class Placement(Protocol):
    """The stacked agents that are here, and what concerns all of them; as it stands, all agents are."""

    def numbers(self, count: int) -> jax.Array:
        """The numbers of the `count` agents stacked here."""
        return jnp.arange(count)

    def own(self, values: jax.Array) -> jax.Array:
        """Of one value per agent, those of the agents here."""
        return values

    def average(self, tree: Any) -> Any:
        """The server's J: every agent here receives the mean of all."""
        return average(tree)

    def total(self, tree: Any) -> Any:
        """The sum over all agents; the agent axis stays, with length one."""
        return jax.tree.map(lambda x: x.sum(axis=0, keepdims=True), tree)

    def mean(self, tree: Any) -> Any:
        """The mean over all agents, without the agent axis."""
        return mean_over_agents(tree)

    def spread(self, tree: Any) -> jax.Array:
        """(1/n)·Σᵢ‖xᵢ − x̄‖²."""
        return spread(tree)

    def add(self, tree: Any) -> Any:
        """The sum of what every device has found for the agents, or the samples, that it holds."""
        return tree

    def gather(self, tree: Any, count: int) -> Any:
        """All `count` rows of what is split evenly over the devices, in order."""
        return tree

    def everyone(self, tree: Any) -> Any:
        """All agents' rows, on every device: only for what must look at each of them."""
        return tree

    def apply(self, operator: Operator, tree: Any) -> Any:
        """One gossip exchange: the agents here receive what `operator`, a map on all agents, gives them."""
        return operator(tree)


class Everybody(Placement):
    """All agents are here."""


EVERYBODY = Everybody()
