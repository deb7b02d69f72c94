"""A network: graph, weights, and when the server is reached."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from pisco.errors import InputError, choose
from pisco.networks import graphs, spectral
from pisco.networks import weights as weighting
from pisco.networks.graphs import Graph
from pisco.networks.mixing import (
    Operator,
    average,
    choose_operator,
    outside_gossip,
    per_agent,
)
from pisco.networks.schedules import Schedule, as_schedule, never
from pisco.types import Mix

if TYPE_CHECKING:
    from scipy.sparse import csr_array

WeightRule = Callable[[Graph], Any]


class Links(NamedTuple):
    """What one exchange of a round uses: whether each kind of link is used, and how many messages it carries."""

    rounds: jax.Array  # 1; counts rounds where links are summed
    server: jax.Array  # 1 when anybody reaches the server
    gossip: jax.Array  # 1 when anybody gossips
    uplinks: jax.Array  # messages to the server
    downlinks: jax.Array  # messages from the server
    edges: jax.Array  # messages between agents: directed edges


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class Gossip:
    """The agents' own links, as traced data: the operator and who is linked to whom."""

    operator: Operator
    num_edges: jax.Array  # directed
    sources: jax.Array | None  # every directed edge; only for schedules that split a round
    targets: jax.Array | None


def draw_round(
    gossip: Gossip, server: Schedule, key: jax.Array, round_index: Any, num_agents: int
) -> tuple[Mix, Links]:
    """This round's communication, drawn once: the map every exchange applies, and the links it uses."""
    who = server.participants(key, round_index)
    if isinstance(who, bool | np.bool_):
        return (average if who else gossip.operator), _links(who, gossip, num_agents)
    if jnp.ndim(who) == 0:

        def mix(tree):
            return lax.cond(who, average, lambda t: gossip.operator(t), tree)

        return mix, _links(who, gossip, num_agents)
    return _split_round(gossip, who)


def _links(who: Any, gossip: Gossip, num_agents: int) -> Links:
    server = jnp.asarray(who, jnp.int32)
    agents = server * num_agents
    return Links(jnp.int32(1), server, 1 - server, agents, agents, (1 - server) * gossip.num_edges)


def _split_round(gossip: Gossip, mask: jax.Array) -> tuple[Mix, Links]:
    assert gossip.sources is not None and gossip.targets is not None
    operator, edges = outside_gossip(mask, gossip.sources, gossip.targets)
    count = mask.sum()

    def mix(tree):
        def leaf(x, gossiped):
            inside = per_agent(mask, x)
            mean = (inside * x).sum(axis=0, keepdims=True) / jnp.maximum(count, 1).astype(x.dtype)
            return jnp.where(inside.astype(bool), mean, gossiped)

        return jax.tree.map(leaf, tree, operator(tree))

    flags = [jnp.asarray(flag, jnp.int32) for flag in (1, count > 0, edges > 0, count, count, edges)]
    return mix, Links(*flags)


class Network:
    """Who talks to whom, with which weights, and when the server is reached.

    Args:
      graph: a `Graph`, anything networkx calls an undirected graph, or None to read it off the weights.
      weights: the name of a rule ("metropolis", "fdla", "max-degree", "best-constant"), a function of the graph,
        or your own doubly stochastic matrix (dense or scipy sparse; symmetric or not, negative entries allowed).
      server: a schedule (`bernoulli(p)`, `every(H)`, `always()`, `never()`, `per_agent(p_i)`) or a function of
        (key, round_index).

    >>> net = Network.ring(10, weights="fdla")
    >>> net
    Network(ring of 10, 10 edges, weights=fdla, server=never())
    >>> round(net.mixing_rate, 6)
    0.318278
    """

    def __init__(
        self,
        graph: Any = None,
        *,
        weights: str | WeightRule | Any = "metropolis",
        server: Schedule | Callable[[jax.Array, Any], Any] | None = None,
    ):
        self.server = never() if server is None else as_schedule(server)
        rule = choose("weights", weights, weighting.WEIGHTS) if isinstance(weights, str) else weights
        if graph is None and callable(rule):
            raise InputError(f"weights={weights!r} needs a graph; pass one, or pass the matrix itself")
        if graph is not None and not isinstance(graph, Graph):
            graph = graphs.from_networkx(graph)
        if callable(rule):
            assert graph is not None
            self.weights: csr_array = weighting.check(rule(graph), graph)
            self.weights_name = weights if isinstance(weights, str) else rule.__name__
        else:
            self.weights = weighting.check(rule, graph)
            self.weights_name = "given"
        self.graph: Graph = _graph_of(self.weights) if graph is None else graph
        self._check_schedule()

    # One line per family, so that editors complete them.

    @classmethod
    def ring(cls, agents: int, *, weights: Any = "metropolis", server: Any = None) -> Network:
        """Agents on a circle."""
        return cls(graphs.ring(agents), weights=weights, server=server)

    @classmethod
    def path(cls, agents: int, *, weights: Any = "metropolis", server: Any = None) -> Network:
        """Agents on a line."""
        return cls(graphs.path(agents), weights=weights, server=server)

    @classmethod
    def complete(cls, agents: int, *, weights: Any = "metropolis", server: Any = None) -> Network:
        """Everybody linked to everybody."""
        return cls(graphs.complete(agents), weights=weights, server=server)

    @classmethod
    def star(cls, agents: int, *, weights: Any = "metropolis", server: Any = None) -> Network:
        """Agent 0 linked to all others."""
        return cls(graphs.star(agents), weights=weights, server=server)

    @classmethod
    def grid(cls, rows: int, cols: int, *, weights: Any = "metropolis", server: Any = None) -> Network:
        """A rectangular lattice."""
        return cls(graphs.grid(rows, cols), weights=weights, server=server)

    @classmethod
    def torus(cls, rows: int, cols: int, *, weights: Any = "metropolis", server: Any = None) -> Network:
        """A lattice that wraps around."""
        return cls(graphs.torus(rows, cols), weights=weights, server=server)

    @classmethod
    def erdos_renyi(
        cls, agents: int, prob: float, *, seed: int = 0, weights: Any = "metropolis", server: Any = None
    ) -> Network:
        """Every pair linked with probability `prob`."""
        return cls(graphs.erdos_renyi(agents, prob, seed), weights=weights, server=server)

    @classmethod
    def named(
        cls, family: str, agents: int, *, weights: Any = "metropolis", server: Any = None, **options: Any
    ) -> Network:
        """Any family of `graphs.GRAPHS` by name, with its own options."""
        factory = choose("graph", family, graphs.GRAPHS)
        return cls(factory(agents=agents, **options), weights=weights, server=server)

    @property
    def num_agents(self) -> int:
        """n."""
        return self.graph.num_agents

    @cached_property
    def mixing_rate(self) -> float:
        """λ_w = 1 − ‖W − J‖₂²: 1 when one gossip round averages exactly, 0 when the graph is disconnected."""
        return spectral.mixing_rate(self.weights)

    def expected_mixing_rate(self, server_prob: float | None = None) -> float:
        """λ_p = λ_w + p(1 − λ_w), at this schedule's p unless another is given."""
        p = self.server.probability if server_prob is None else server_prob
        if p is None:
            raise InputError(f"server={self.server!r} has no single probability; pass server_prob")
        return spectral.expected_mixing_rate(self.mixing_rate, p)

    def with_server(self, server: Schedule | Callable[[jax.Array, Any], Any]) -> Network:
        """The same graph and weights on another server schedule."""
        other = object.__new__(Network)
        other.__dict__.update(self.__dict__, server=as_schedule(server))
        other.__dict__.pop("gossip", None)
        other._check_schedule()
        return other

    @cached_property
    def gossip(self) -> Gossip:
        """The agents' links as the engines use them."""
        sources = targets = None
        if self._splits_rounds:
            adjacency = self.graph.adjacency().tocsr()
            targets = jnp.asarray(np.repeat(np.arange(self.num_agents), np.diff(adjacency.indptr)), jnp.int32)
            sources = jnp.asarray(adjacency.indices, jnp.int32)
        off_diagonal = self.weights.nnz - np.count_nonzero(self.weights.diagonal())
        return Gossip(choose_operator(self.weights), jnp.asarray(off_diagonal, jnp.int32), sources, targets)

    @property
    def problem_with_reach(self) -> str | None:
        """A sentence when agents can never agree: several components and no server round."""
        if not self.server.never_reached or self.graph.is_connected:
            return None
        parts = len(np.unique(self.graph.components()))
        return (
            f"{self.graph.name} has {parts} components and the server is never reached, so the agents cannot agree; "
            "use a connected graph or a server schedule such as bernoulli(0.1)"
        )

    @cached_property
    def _splits_rounds(self) -> bool:
        shape = jax.eval_shape(
            lambda key: jnp.asarray(self.server.participants(key, jnp.int32(0))), jax.random.key(0)
        ).shape
        if shape not in ((), (self.num_agents,)):
            raise InputError(
                f"server={self.server!r} gives {shape} values, "
                f"expected one, or one for each of the {self.num_agents} agents"
            )
        return shape != ()

    def _check_schedule(self) -> None:
        self.__dict__.pop("_splits_rounds", None)
        _ = self._splits_rounds

    def __repr__(self) -> str:
        return (
            f"Network({self.graph.name}, {self.graph.num_edges} edges, "
            f"weights={self.weights_name}, server={self.server!r})"
        )


def _graph_of(weights: csr_array) -> Graph:
    """The undirected graph on which a matrix lives: linked when either direction carries a weight."""
    entries = weights.tocoo()
    off = (entries.row != entries.col) & (entries.data != 0)
    pairs = np.stack([entries.row[off], entries.col[off]], axis=1)
    return graphs.from_edges(pairs, num_agents=weights.shape[0])
