"""Graphs, weights, how fast they mix, and when the server is reached."""

from pisco.networks import graphs, schedules, spectral, weights
from pisco.networks.graphs import GRAPHS, Graph
from pisco.networks.network import Network
from pisco.networks.sampling import Sampling, sample, sample_groups
from pisco.networks.schedules import SCHEDULES, Schedule, adaptive, always, bernoulli, custom, every, never, per_agent
from pisco.networks.varying import (
    VARYING,
    cycle,
    edge_dropout,
    function_of_round,
    one_peer_exponential,
    random_matching,
)
from pisco.networks.weights import WEIGHTS

__all__ = [
    "GRAPHS",
    "SCHEDULES",
    "VARYING",
    "WEIGHTS",
    "Graph",
    "Network",
    "Sampling",
    "Schedule",
    "adaptive",
    "always",
    "bernoulli",
    "custom",
    "cycle",
    "edge_dropout",
    "every",
    "function_of_round",
    "graphs",
    "never",
    "one_peer_exponential",
    "per_agent",
    "random_matching",
    "sample",
    "sample_groups",
    "schedules",
    "spectral",
    "weights",
]
