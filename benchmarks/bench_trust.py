"""What protections cost in time, each against the same round without it.

    python benchmarks/bench_trust.py

In simulation: a round of PISCO (T_o = 1, p = 0.1) of eight agents, all linked, with a guard, with masked sums, with
private gradients. In a federation: what a receiver and the server do with eight vectors of 1,000,000 numbers; what
masks cost there is `bench_masks.py`'s to tell.
"""

import numpy as np
from common import a9a, engine_rounds, mnist_shaped, report, row, shortest

import pisco
from pisco.federation.runtime import routes
from pisco.federation.runtime.guarding import Watcher
from pisco.federation.runtime.routes import GossipHop, ServerHop

AGENTS = 8


def simulated():
    for name, problem, batch_size, rounds in (
        ("a9a, b=64", a9a(AGENTS), 64, 500),
        ("MNIST network, b=32", mnist_shaped(AGENTS), 32, 30),
    ):

        def linked(**more):
            return pisco.Network.complete(AGENTS, server=pisco.bernoulli(0.1), **more)

        private = problem.private(pisco.Privacy(clip=1.0, noise=1.0))
        kinds = {
            "plain": (problem, linked()),
            "guard": (problem, linked(guard=pisco.clip())),
            "masked sums": (problem, linked(server_sum="masked")),
            "private gradients": (private, linked()),
        }
        calls = {kind: engine_rounds(own, batch_size, rounds, 1, net) for kind, (own, net) in kinds.items()}
        times = {kind: 1e6 * found / rounds for kind, found in shortest(calls, repeats=7).items()}
        for kind in list(kinds)[1:]:
            yield row(f"{kind}: {name}", times[kind], times["plain"], "µs/round", "none set")


def between_machines(dim=1_000_000):
    rng, names, everybody = np.random.default_rng(0), [f"agent-{i}" for i in range(AGENTS)], tuple(range(AGENTS))
    arrays = {place: [rng.normal(size=(1, dim)).astype(np.float32)] for place in everybody}
    start = [rng.normal(size=(1, dim)).astype(np.float32)]
    server, gossip = ServerHop(None, everybody, everybody), GossipHop(dict.fromkeys(everybody, 1 / AGENTS), everybody)
    watcher = Watcher(pisco.clip())
    moved = {place: watcher.up(each, start) for place, each in arrays.items()}
    calls = {
        "server": lambda: routes.average(arrays, server),
        "guarded server": lambda: watcher.mean(1, names, moved, server, True),
        "gossip": lambda: routes.gossip(arrays, gossip, 0),
        "guarded gossip": lambda: watcher.gossip(1, names, arrays, gossip, 0, start),
    }
    times = {kind: 1e3 * found for kind, found in shortest(calls, repeats=7).items()}
    for kind in ("server", "gossip"):
        yield row(f"guard: an exchange of {kind}", times[f"guarded {kind}"], times[kind], "ms", "none set")


def rows():
    yield from simulated()
    yield from between_machines()


if __name__ == "__main__":
    report(rows())
