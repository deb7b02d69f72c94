"""Semi-decentralized federated learning: PISCO and its relatives on one abstraction.

An *algorithm* trains a *problem* over a *network*, run by an *engine*:

    >>> import pisco
    >>> net = pisco.Network.ring(10, weights="fdla", server=pisco.bernoulli(0.1))
    >>> problem = pisco.problems.logistic(pisco.data.load("a9a"), agents=10, partition="sorted", rho=0.01)
    >>> result = pisco.run(pisco.algorithms.pisco(local_lr=0.03, local_steps=1), problem, net,
    ...                    rounds=20, batch_size=256, seed=0)
    >>> result
    Result(finished after 20 rounds, 1 seed, loss 0...)
"""

# ruff: noqa: E402
import gc

_collecting = gc.isenabled()
gc.disable()  # else a Ctrl-C meanwhile could be lost in the callback by which jax follows the collector

from pisco import algorithms, data, metrics, networks, problems, testing, theory
from pisco._version import __version__
from pisco.clock import Clock
from pisco.engines import run, sweep
from pisco.errors import InputError
from pisco.metrics import Metric
from pisco.networks.graph import Graph
from pisco.networks.guards import Guard, clip
from pisco.networks.network import Network
from pisco.networks.presence import Presence, churn, everybody, from_log, present
from pisco.networks.sampling import sample, sample_groups
from pisco.networks.schedules import Schedule, adaptive, always, bernoulli, every, never, per_agent
from pisco.networks.varying import edge_dropout, one_peer_exponential, random_matching
from pisco.privacy import Privacy
from pisco.problems import Problem
from pisco.results import Result, compare
from pisco.types import Algorithm, Grad, Mix, Pair, algorithm

if _collecting:
    gc.enable()

__all__ = [
    "Algorithm",
    "Clock",
    "Grad",
    "Graph",
    "Guard",
    "InputError",
    "Metric",
    "Mix",
    "Network",
    "Pair",
    "Presence",
    "Privacy",
    "Problem",
    "Result",
    "Schedule",
    "__version__",
    "adaptive",
    "algorithm",
    "algorithms",
    "always",
    "bernoulli",
    "churn",
    "clip",
    "compare",
    "data",
    "edge_dropout",
    "every",
    "everybody",
    "from_log",
    "metrics",
    "networks",
    "never",
    "one_peer_exponential",
    "per_agent",
    "present",
    "problems",
    "random_matching",
    "run",
    "sample",
    "sample_groups",
    "sweep",
    "testing",
    "theory",
]
