"""Small worlds the tests share: quadratics, doubly stochastic matrices, and trajectories state by state."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import pisco
from pisco.engines.job import Job, Run, Segment, seed_key, streams
from pisco.engines.scan import ScanEngine
from pisco.networks.varying import VARYING

UNMEASURED = Segment(1, 1, measured=False)

TINY_EXPERIMENT = """
[algorithm]
name = "pisco"
local_lr = 0.1
local_steps = 1

[problem]
dataset = "points.npz"
partition = "iid"

[network]
agents = 4
server_prob = 0.5

[run]
rounds = 20
batch_size = 2
chunk_rounds = 5
"""
"""An experiment file beside a data file `points.npz`."""


class Quadratics:
    """Heterogeneous strongly convex quadratics with their matrices at hand."""

    def __init__(self, agents=6, dim=4, seed=0):
        rng = np.random.default_rng(seed)
        roots = rng.normal(size=(agents, dim, dim))
        self.hessians = roots @ roots.transpose(0, 2, 1) / dim + 0.5 * np.eye(dim)
        self.minimizers = rng.normal(size=(agents, dim))
        self.x0 = rng.normal(size=dim)
        total = self.hessians.sum(axis=0)
        self.optimum = np.linalg.solve(total, np.einsum("nij,nj->i", self.hessians, self.minimizers))

    def problem(self):
        return pisco.problems.quadratic(self.hessians, self.minimizers, init=self.x0)

    def gradient(self, X):
        """Column by column, as the paper stacks agents."""
        return np.stack([A @ (x - b) for A, b, x in zip(self.hessians, self.minimizers, X.T, strict=True)], axis=1)


def doubly_stochastic(n, seed=0, symmetric=True):
    """A random convex combination of permutations; plus its transpose when it should be symmetric."""
    rng = np.random.default_rng(seed)
    shares = rng.dirichlet(np.ones(4))
    W = sum(share * np.eye(n)[rng.permutation(n)] for share in shares)
    W = 0.5 * np.eye(n) + 0.5 * W
    return (W + W.T) / 2 if symmetric else W


def coins(server, rounds, seed=0):
    """What the server schedule decides in every round."""
    key = streams(seed_key(seed)).coins
    return list(np.asarray(jax.vmap(lambda k: server.participants(key, k))(jnp.arange(rounds))))


def mixes(W, server, rounds, seed=0):
    """The matrices W⁰, W¹, … of a schedule that decides for everybody at once."""
    n = W.shape[0]
    return [np.full((n, n), 1 / n) if coin else W for coin in coins(server, rounds, seed)]


def trajectory(algorithm, problem, network, rounds, seed=0, engine=None, batch_size=None):
    """The state after every round, as NumPy arrays with agents leading."""
    engine = engine or ScanEngine()
    job = Job(problem, network, (Run(algorithm, network.server, seed),), batch_size)
    states = engine.start(job)
    out = [jax.tree.map(lambda x: np.array(x[0]), engine.pack(states).state)]
    for k in range(rounds):
        states, _, _ = engine.advance(job, states, k, UNMEASURED)
        out.append(jax.tree.map(lambda x: np.array(x[0]), engine.pack(states).state))
    return out


def after(algorithm, problem, network, rounds):
    """Everybody's parameters after so many rounds: one program that measures nothing."""
    engine, job = ScanEngine(), Job(problem, network, (Run(algorithm, network.server, 0),), None)
    states, _, _ = engine.advance(job, engine.start(job), 0, Segment(1, rounds, measured=False))
    return np.array(engine.pack(states).state.params[0])


def network_for(method, agents=6, server=None):
    """The network that a published method is defined on, small."""
    wanted = dict(method.network)
    graph = pisco.networks.graphs.ring(agents)
    groups = None
    if wanted.get("graph") == "clusters":
        size = agents // wanted["clusters"]
        graph = pisco.networks.graphs.clusters(wanted["clusters"], size, inner=wanted["inner"])
        groups = graph.components().tolist()
    if wanted.get("graph") == "complete":
        graph = pisco.networks.graphs.complete(agents)
    if wanted.get("graph") == "random-digraph":
        graph = pisco.networks.graphs.random_digraph(agents, wanted["prob"])
    schedules = {
        "never": pisco.never,
        "always": pisco.always,
        "every": lambda: pisco.every(wanted["period"]),
        "adaptive": lambda: pisco.adaptive(wanted["period"]),
    }
    chosen = schedules[wanted["server"]]() if "server" in wanted else pisco.bernoulli(0.3)
    sampling = pisco.sample_groups(wanted["reporters"], groups=groups) if "reporters" in wanted else None
    return pisco.Network(
        graph,
        server=server or chosen,
        sampling=sampling,
        receivers=wanted.get("receivers", "all"),
        gossip_steps=wanted.get("gossip_steps", 1),
        varying=VARYING[wanted.get("varying", "none")](),
        gossip_before_server=wanted.get("gossip_before_server", False),
    )


def thinned(names, keep=4):
    """Every fourth name now and the others in the slow tests: for checks that cost seconds a name."""
    names = list(names)
    return [name if at % keep == 0 else pytest.param(name, marks=pytest.mark.slow) for at, name in enumerate(names)]
