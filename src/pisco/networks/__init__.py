"""Graphs, weights, how fast they mix, and when the server is reached."""

from pisco.networks import graphs, mixing, schedules, spectral, weights
from pisco.networks.graphs import GRAPHS, Graph
from pisco.networks.network import Links, Network, draw_round
from pisco.networks.schedules import SCHEDULES, Schedule, always, bernoulli, custom, every, never, per_agent
from pisco.networks.weights import WEIGHTS

__all__ = [
    "GRAPHS",
    "SCHEDULES",
    "WEIGHTS",
    "Graph",
    "Links",
    "Network",
    "Schedule",
    "always",
    "bernoulli",
    "custom",
    "draw_round",
    "every",
    "graphs",
    "mixing",
    "never",
    "per_agent",
    "schedules",
    "spectral",
    "weights",
]
