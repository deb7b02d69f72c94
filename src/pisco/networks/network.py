"""A network: graph, weights, when the server is reached, and who takes part."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import cached_property
from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp
import numpy as np

from pisco.display import card, span
from pisco.errors import InputError, check_number, choose
from pisco.networks import directed, graphs, spectral
from pisco.networks import weights as weighting
from pisco.networks.graph import Graph, as_graph
from pisco.networks.guards import AT_ONCE, Guard
from pisco.networks.presence import Presence, as_presence
from pisco.networks.rounds import Gossip
from pisco.networks.sampling import Sampling, sample_groups
from pisco.networks.schedules import Schedule, as_schedule, as_structure, decided_shape, never
from pisco.networks.varying import VARYING, Varying, fixed, gossiping
from pisco.privacy import summing
from pisco.registry import checked
from pisco.registry import options as known_options

if TYPE_CHECKING:
    from scipy.sparse import csr_array

WeightRule = Callable[[Graph], Any]


class Network:
    """Who talks to whom, with which weights, and when the server is reached.

    Args:
      graph: a `Graph`, a graph of networkx, or None to read it off the weights.
      weights: the name of a rule ("metropolis", "fdla", "max-degree", "best-constant"), a function of the graph,
        or your own doubly stochastic matrix (dense or scipy sparse; symmetric or not, negative entries allowed). With
        one-way links a pair of matrices, to pull and to push with (`directed.check_pair`), or nothing for a usual one.
      server: a schedule (`bernoulli(p)`, `every(H)`, `always()`, `never()`, `per_agent(p_i)`) or a function of
        (key, round_index).
      varying: gossip that changes from round to round, such as `edge_dropout(0.2)`; `weights` are its base.
      presence: who takes part in round k, such as `churn(0.1, 0.3)`, a mask, or a function of (key, round_index).
      sampling: who reports in a server round (everybody unless given), such as `sample(3, agents=10)`.
      receivers: who hears the server's average: "all", or only the "sampled", while the others keep what they have.
      gossip_steps: how many times to apply the gossip weights in every exchange (0 is no gossip at all).
      gossip_before_server: in a server round gossip first, then average (HL-SGD, TT-HF).
      guard: what is done with messages that lie too far away, such as `clip()`; None takes all as they are.
      server_sum: "masked" adds up at the server as a federation does whose server sees no vector: fixed-point numbers.

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
        varying: Varying | None = None,
        presence: Presence | Any = None,
        sampling: Sampling | None = None,
        receivers: str = "all",
        gossip_steps: int = 1,
        gossip_before_server: bool = False,
        guard: Guard | None = None,
        server_sum: str | None = None,
    ):
        self.masked = server_sum is not None and choose("server_sum", server_sum, {"masked": True})
        check_number("gossip_steps", gossip_steps, low=0, high=1000, integer=True)
        if varying is not None and not callable(varying):
            raise InputError(f"varying is {varying!r}, expected links that vary, as in pisco.edge_dropout(0.2)")
        if sampling is not None and not isinstance(sampling, Sampling):
            raise InputError(f"sampling is {sampling!r}, expected who reports, as in pisco.sample(2, agents=10)")
        if not isinstance(gossip_before_server, bool):
            raise InputError(f"gossip_before_server is {gossip_before_server!r}, expected True or False")
        self.varying, self.sampling, self.guard = varying, sampling, guard
        self.to_sampled = choose("receivers", receivers, {"all": False, "sampled": True})
        self.gossip_steps, self.gossip_before_server = int(gossip_steps), gossip_before_server
        self.server = never() if server is None else as_schedule(server)
        rule: Any = weighting.WEIGHTS[weights] if isinstance(weights, str) else weights
        if graph is None and callable(rule):
            raise InputError(f"weights={weights!r} needs a graph; pass one, or pass the matrix itself")
        graph = None if graph is None else as_graph(graph)
        self.push: csr_array | None = None  # for what is pushed; None: the same weights do for everything
        self.weights_name = weights if isinstance(weights, str) else getattr(rule, "__name__", "given")
        if graph is not None and graph.one_way and not directed.is_pair(rule):
            if self.weights_name != "metropolis":  # the default, which stands for nothing given
                raise InputError(
                    f"weights={self.weights_name} weigh links both ways, and {graph.name} has one-way links; leave "
                    'them out (in files "metropolis"), or give a pair of matrices (pull, push)'
                )
            rule, self.weights_name = directed.in_out(graph), "in-out"
        self.weights: csr_array
        if directed.is_pair(rule):
            self.weights, self.push = directed.check_pair(rule, graph)
            self.graph: Graph = graph or directed.one_way_graph(self.weights, self.push)
        else:
            self.weights = weighting.check(rule(graph) if callable(rule) else rule, graph)
            self.graph = graph or graphs.from_adjacency(abs(self.weights) + abs(self.weights).T)
        self.presence = as_presence(presence, self.num_agents)
        self._made: dict[Any, Gossip] = {}
        self._check()

    # The families in short, so that editors complete them; `options` are the keywords above.

    @classmethod
    def ring(cls, agents: int, **options: Any) -> Network:
        """Agents on a circle."""
        return cls._on(graphs.ring(agents), options)

    @classmethod
    def path(cls, agents: int, **options: Any) -> Network:
        """Agents on a line."""
        return cls._on(graphs.path(agents), options)

    @classmethod
    def complete(cls, agents: int, **options: Any) -> Network:
        """Everybody linked to everybody."""
        return cls._on(graphs.complete(agents), options)

    @classmethod
    def star(cls, agents: int, **options: Any) -> Network:
        """Agent 0 linked to all others."""
        return cls._on(graphs.star(agents), options)

    @classmethod
    def grid(cls, rows: int, cols: int, **options: Any) -> Network:
        """A rectangular lattice."""
        return cls._on(graphs.grid(rows, cols), options)

    @classmethod
    def torus(cls, rows: int, cols: int, **options: Any) -> Network:
        """A lattice that wraps around."""
        return cls._on(graphs.torus(rows, cols), options)

    @classmethod
    def erdos_renyi(cls, agents: int, prob: float, *, seed: int = 0, **options: Any) -> Network:
        """Every pair linked with probability `prob`."""
        return cls._on(graphs.erdos_renyi(agents, prob, seed), options)

    @classmethod
    def named(cls, graph: str, agents: int | None = None, **options: Any) -> Network:
        """A family by name, a file such as "roads.graphml", or "my_graphs.py:tree", with the options that each has."""
        own = known_options(cls)
        given = {name: value for name, value in options.items() if name not in own}
        given |= {} if agents is None else {"agents": agents}
        return cls._on(graphs.by_name(graph, **given), {name: value for name, value in options.items() if name in own})

    @classmethod
    def _on(cls, graph: Graph, options: dict[str, Any]) -> Network:
        return checked("a network", cls)(graph, **options)

    @property
    def num_agents(self) -> int:
        """n."""
        return self.graph.num_agents

    @cached_property
    def mixing_rate(self) -> float:
        """λ_w = 1 − ‖W − J‖₂²: 1 when one gossip round averages exactly, 0 when the graph is disconnected.

        With one-way links 1 − |μ|², μ the second eigenvalue of the slower of the two matrices.
        """
        if self.push is not None:
            return min(spectral.one_way_rate(self.weights), spectral.one_way_rate(self.push))
        return spectral.mixing_rate(self.weights)

    def expected_mixing_rate(self, server_prob: float | None = None) -> float:
        """λ_p = λ_w + p(1 − λ_w), at this schedule's p unless another is given."""
        p = self.server.probability if server_prob is None else server_prob
        if p is None:
            raise InputError(f"server={self.server!r} has no single probability; pass server_prob")
        return spectral.expected_mixing_rate(self.mixing_rate, p)

    def with_server(self, server: Schedule | Callable[[jax.Array, Any], Any]) -> Network:
        """The same graph and weights on another server schedule."""
        return self._with(server=as_schedule(server))

    def with_guard(self, guard: Guard | None) -> Network:
        """The same network with another guard, or none."""
        return self._with(guard=guard)

    def with_weights(self, weights: str) -> Network:
        """The same network with the weights of another rule."""
        other = Network(self.graph, weights=weights)
        made = self._with(weights=other.weights, push=other.push, weights_name=other.weights_name)
        made.__dict__.pop("mixing_rate", None)
        return made

    def used_as(self, published: Mapping[str, Any]) -> Network:
        """The same network used as a method is published (`Method.network`), where it says nothing of its own.

        That is who reports and who hears the average, how often agents gossip, and links that vary.
        """
        changes: dict[str, Any] = {}
        if "gossip_steps" in published and self.gossip_steps == 1:
            changes["gossip_steps"] = int(published["gossip_steps"])
        if "varying" in published and self.varying is None:
            changes["varying"] = VARYING[published["varying"]]()
        if "reporters" in published and self.sampling is None:
            changes["sampling"] = sample_groups(
                published["reporters"], groups=self.graph.groups or [0] * self.num_agents
            )
            changes["to_sampled"] = published.get("receivers") == "sampled"
        if published.get("gossip_before_server") and self.gossip_steps:
            changes["gossip_before_server"] = True
        return self._with(**changes) if changes else self

    def _with(self, **changes: Any) -> Network:
        other = object.__new__(Network)
        other.__dict__.update(self.__dict__, **changes)
        other._made = {}
        other._check()
        return other

    @property
    def gossip(self) -> Gossip:
        """The agents' links as the engines use them, in the precision of the moment."""
        precision = jax.dtypes.canonicalize_dtype(float)
        if precision not in self._made:
            with jax.ensure_compile_time_eval():  # it is kept: what is made while a program is traced would not last
                self._made[precision] = self._gossip()
        return self._made[precision]

    def _gossip(self) -> Gossip:
        sources = targets = None
        if self.splits_rounds or self.presence is not None or self.guard is not None:
            links = self.graph.adjacency() if self.splits_rounds else self.weights
            ends = np.stack(links.tocoo().coords)
            targets, sources = jnp.asarray(ends[:, ends[0] != ends[1]], jnp.int32)
        rule = fixed(self.weights) if self.varying is None else gossiping(self.varying, self.graph, self.weights)
        steps = (self.gossip_steps, self.gossip_before_server)
        push = None if self.push is None else fixed(self.push)
        return Gossip(
            rule, push, self.sampling, sources, targets, self.presence, *steps, self.to_sampled, self.guard, self.masked
        )

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

    @property
    def keeps_mean(self) -> bool:
        """Whether every round's map keeps the agents' mean: a sample must share its average alone, and weigh alike."""
        if self.sampling is None:
            return True
        shares = np.asarray(self.sampling.sizes) / np.asarray(self.sampling.quotas)
        return self.to_sampled and bool((shares == shares[0]).all())

    @cached_property
    def splits_rounds(self) -> bool:
        """Whether some agents reach the server in a round while others gossip."""
        shape = decided_shape(self.server)
        if shape not in ((), (self.num_agents,)):
            raise InputError(
                f"server={self.server!r} gives {shape} values, "
                f"expected one, or one for each of the {self.num_agents} agents"
            )
        return shape != ()

    def _check(self) -> None:
        self.__dict__.pop("splits_rounds", None)
        special = self.varying or self.sampling or self.gossip_before_server or self.gossip_steps != 1
        if self.splits_rounds and special:
            raise InputError(
                f"server={self.server!r} splits a round between server and gossip and weighs the gossip itself; "
                "it cannot be combined with varying, sampling, gossip_steps or gossip_before_server"
            )
        if self.sampling is not None and self.sampling.groups.shape[0] != self.num_agents:
            raise InputError(
                f"sampling is for {self.sampling.groups.shape[0]} agents, the network has {self.num_agents}"
            )
        if self.push is not None and (self.splits_rounds or self.varying or self.presence is not None or self.guard):
            raise InputError(
                f"{self.graph.name} has one-way links, whose weights are a steady pair; they cannot be combined with "
                "varying, presence, a guard or a schedule that splits rounds"
            )
        if self.to_sampled and self.sampling is None:
            raise InputError('receivers is "sampled", but nobody is sampled; give `sampling` (in files `reporters`)')
        if self.guard is not None and not hasattr(self.guard, "keep"):
            raise InputError(f"guard={self.guard!r} is no guard; give one such as pisco.clip(), or leave it out")
        if self.guard is not None:
            as_structure("guard", self.guard)
        if self.guard is not None and self.num_agents > AT_ONCE:
            raise InputError(f"a guard compares every pair, at most {AT_ONCE} agents, not {self.num_agents}; drop it")
        if self.masked:
            summing.check(self)
        for what in ("presence", "guard"):
            if getattr(self, what) is not None:
                self._check_presence(f"{what}={getattr(self, what)!r}")

    def _check_presence(self, what: str) -> None:
        """Absences, and who is left off, keep the agents' mean only where a link weighs the same both ways."""
        even = getattr(self.varying, "symmetric", False) if self.varying else spectral.is_symmetric(self.weights)
        if not even:
            links = self._varying_name if self.varying else "W"
            raise InputError(
                f"{what} needs links that weigh the same both ways, as {links} need not; "
                "use symmetric weights, alone or with edge_dropout or random_matching"
            )
        if self.sampling is not None:
            raise InputError(f"{what} says who reports to the server; drop `sampling` (in files `reporters`)")

        def unknown() -> Any:
            raise InputError(
                f"server={self.server!r} looks at everybody's loss, which the absent do not send; use another schedule"
            )

        decided_shape(self.server, unknown)

    @property
    def _varying_name(self) -> str:
        return getattr(self.varying, "__name__", repr(self.varying))

    def _repr_html_(self) -> str:
        graph = self.graph
        facts: dict[str, Any] = {"agents": self.num_agents}
        if graph.arcs is None:
            facts |= {"edges": graph.num_edges, "degrees": span(graph.degrees.min(), graph.degrees.max())}
        else:
            facts |= {"one-way links": len(graph.arcs)}
            facts |= {"out-degrees": span(graph.out_degrees.min(), graph.out_degrees.max())}
            facts |= {"in-degrees": span(graph.in_degrees.min(), graph.in_degrees.max())}
        facts |= {"weights": self.weights_name, "server": self.server, **self._unusual}
        if self.num_agents <= 500:  # a large graph's takes a while
            facts["mixing rate λ_w"] = f"{self.mixing_rate:.4g}"
        return card(f"Network: {self.graph.name}", facts)

    @property
    def _unusual(self) -> dict[str, str]:
        """What was asked for beyond graph, weights and server, by its keyword."""
        told = {
            "varying": self.varying and self._varying_name,
            "presence": self.presence is not None and repr(self.presence),
            "gossip_steps": self.gossip_steps != 1 and str(self.gossip_steps),
            "gossip_before_server": self.gossip_before_server and "True",
            "receivers": self.to_sampled and "sampled",
            "guard": self.guard is not None and repr(self.guard),
            "server_sum": self.masked and "masked",
        }
        return {name: text for name, text in told.items() if text}

    def __repr__(self) -> str:
        unusual = "".join(f"{name}={text}, " for name, text in self._unusual.items())
        return (
            f"Network({self.graph.name}, {self.graph.links}, "
            f"weights={self.weights_name}, {unusual}server={self.server!r})"
        )
