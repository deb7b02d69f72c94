"""Runs on many devices or processes against `scan`, as a program: jax must learn of its devices before it starts.

`python sharded_cases.py '{"cases": ["pisco"], "devices": [1, 2]}'` prints for every case and number of devices the
largest difference, in parameters and history, as JSON.
"""

import json
import sys

import jax
import jax.numpy as jnp
import numpy as np

import pisco
from pisco.algorithms import ALGORITHMS
from pisco.engines.cluster.processes import Rank, join
from pisco.engines.sharded import ShardedEngine
from pisco.networks import graphs
from pisco.networks.varying import cycle
from pisco.tree import squared_norm

from worlds import Quadratics, doubly_stochastic, network_for

PISCO = {"local_lr": 0.02, "local_steps": 1}
COIN = pisco.bernoulli(0.3)
CHURN = pisco.churn(0.3, 0.3)


def batches(agents=6):
    """Quadratics with three samples an agent, so that batches are drawn."""
    world = Quadratics(agents=agents)
    hessians = np.stack([world.hessians] * 3, axis=1)
    return pisco.problems.quadratic(hessians, world.minimizers[:, None] + np.arange(3)[:, None], init=world.x0)


def uneven(agents, **options):
    """Least squares with agents of unequal sizes, a tree of parameters and test samples."""
    rng = np.random.default_rng(0)
    data = [{"a": rng.normal(size=(2 + i % 4, 3)), "y": rng.normal(size=2 + i % 4)} for i in range(agents)]
    test = {"a": rng.normal(size=(11, 3)), "y": rng.normal(size=11)}
    return pisco.Problem(
        lambda x, batch, key: (batch["a"] @ x["w"] - batch["y"] + x["c"]) ** 2,
        {"w": jnp.zeros(3), "c": jnp.zeros(())},
        data,
        test=test,
        metrics=[
            pisco.Metric("accuracy", lambda x, batch: batch["a"] @ x["w"] > batch["y"], rising=True),
            pisco.metrics.auc(lambda x, batch: (batch["a"] @ x["w"], batch["y"])),
            pisco.Metric("size", lambda state, here: here.mean(jax.vmap(squared_norm)(state.params)), of="state"),
        ],
        **options,
    )


class Items:
    """Samples that are handed out one by one."""

    def __init__(self, rows):
        self.rows = rows

    def __len__(self):
        return len(self.rows["y"])

    def __getitem__(self, index):
        return {name: values[index] for name, values in self.rows.items()}


def streamed(agents):
    """The same as `uneven` with samples that stay where they are."""
    plain = uneven(agents)
    ends = np.cumsum(plain.sizes)
    own = [slice(end - size, end) for end, size in zip(ends, np.asarray(plain.sizes), strict=True)]
    data = [Items({name: np.asarray(values)[rows] for name, values in plain.data.items()}) for rows in own]
    return pisco.Problem(plain.loss, plain.start, data, test=plain.test, metrics=plain.metrics)


def personal(agents):
    """The same with a leaf of every agent's own, one that is frozen, and a buffer."""

    def loss(x, batch, key):
        return (batch["a"] @ x["w"] * x["s"] - batch["y"] + x["c"]) ** 2, {"m": 0.5 * x["m"] + batch["y"].mean()}

    plain, zero = uneven(agents), jnp.zeros(())
    sizes = np.cumsum(plain.sizes)[:-1]
    parts = (np.split(np.asarray(plain.data[name]), sizes) for name in ("a", "y"))
    return pisco.Problem(
        loss,
        {"w": jnp.zeros(3), "s": zero + 2, "c": zero, "m": zero},
        [{"a": a, "y": y} for a, y in zip(*parts, strict=True)],
        test=plain.test,
        metrics={"error": lambda x, batch: (batch["a"] @ x["w"] + x["c"] + x["m"] - batch["y"]) ** 2},
        parts={"local": "c", "frozen": "s", "buffers": "m"},
        eval_samples=3,
    )


def published(name):
    """A row of the registry on the network that it is published on."""

    def build():
        method = ALGORITHMS[name]
        usual = {"local_lr": 0.02, "local_steps": 2}
        wanted = {k: v for k, v in usual.items() if k in method.hyperparameters}
        rule = pisco.algorithms.build(name, **wanted)
        return rule, batches(), network_for(method), 1

    return build


def on(network, algorithm="pisco", batch_size=2, problem=None, **options):
    """A network that asks something of the exchange."""

    def build():
        net = network()
        rule = getattr(pisco.algorithms, algorithm)(**(PISCO | options))
        return rule, (problem or uneven)(net.num_agents), net, batch_size

    return build


def ring(agents, **options):
    return lambda: pisco.Network(graphs.ring(agents), **options)


def random_graph(**options):
    return lambda: pisco.Network(graphs.erdos_renyi(13, 0.3, seed=1), **options)


def poisoned_ring(**options):
    guarded = pisco.Network(graphs.ring(9), guard=pisco.clip(strikes=1), **options)
    return lambda: pisco.testing.poisoned(guarded, [4], "times-1000")


ROWS = {name: published(name) for name in sorted(ALGORITHMS)}
NETWORKS = {
    "ring": on(ring(10, server=COIN)),
    "full batch": on(ring(10, server=COIN), batch_size=None),
    "few measured": on(ring(10, server=COIN), problem=lambda n: uneven(n, eval_samples=4)),  # some have fewer
    "measured in blocks": on(ring(10, server=COIN), problem=lambda n: uneven(n, eval_batch=4)),
    "random graph": on(random_graph(server=pisco.every(3))),
    "large ring": on(ring(1200, server=COIN)),
    "star": on(lambda: pisco.Network.star(200, server=COIN)),
    "grid": on(lambda: pisco.Network(graphs.grid(10, 20), server=COIN)),
    "complete": on(lambda: pisco.Network.complete(9, server=COIN)),
    "not symmetric": on(lambda: pisco.Network(weights=doubly_stochastic(9, symmetric=False), server=COIN)),
    "per agent": on(random_graph(server=pisco.per_agent(np.linspace(0, 1, 13)))),
    "dropout": on(ring(9, server=COIN, varying=pisco.edge_dropout(0.3))),
    "matching": on(random_graph(server=COIN, varying=pisco.random_matching())),
    "one peer": on(ring(9, server=COIN, varying=pisco.one_peer_exponential())),
    "cycle": on(ring(9, varying=cycle([doubly_stochastic(9, seed) for seed in range(3)]))),
    "absent": on(random_graph(server=COIN, presence=CHURN)),
    "absent, per agent": on(random_graph(server=pisco.per_agent(np.linspace(0, 1, 13)), presence=CHURN)),
    "absent, dropout": on(ring(9, server=COIN, varying=pisco.edge_dropout(0.3), presence=CHURN)),
    "absent, large ring": on(ring(1200, server=COIN, presence=CHURN)),
    "no gossip": on(ring(9, gossip_steps=0, server=pisco.every(3))),
    "gossip before server": on(ring(9, gossip_steps=3, gossip_before_server=True, server=pisco.every(3)), "dsgd"),
    "sampled": on(lambda: pisco.Network(graphs.ring(9), sampling=pisco.sample(4, agents=9), server=COIN), "dsgd"),
    "adaptive": on(ring(9, server=pisco.adaptive(2))),
    "custom": on(ring(9, server=lambda key, k: k % 4 == 1)),
    "personal": on(ring(10, server=COIN), problem=personal),
    "streamed": on(ring(10, server=COIN), problem=streamed),
    "streamed, absent": on(random_graph(server=COIN, presence=CHURN), problem=streamed),
    "poisoned": on(poisoned_ring(server=COIN)),
    "poisoned, per agent": on(poisoned_ring(server=pisco.per_agent(np.linspace(0, 1, 9)))),
    "private": on(ring(10, server=COIN), problem=lambda n: uneven(n, privacy=pisco.Privacy(clip=0.5, noise=1.0))),
    "masked": on(ring(9, server=COIN, server_sum="masked")),
    "masked, absent": on(ring(9, server=COIN, server_sum="masked", presence=CHURN)),
    "gossip start": on(ring(9, server=COIN), "kgt", start="gossip"),
    "central start": on(ring(9, server=COIN), "kgt", start="central"),
}
CASES = ROWS | NETWORKS


def difference(one, two):
    """The largest absolute difference of two results; coins and counts must agree exactly."""
    for name in ("server", "bytes_gossip", "bytes_server", "messages_gossip"):
        np.testing.assert_array_equal(one.history[name], two.history[name], err_msg=name)
    assert one.history.keys() == two.history.keys()
    apart = jax.tree.leaves(
        jax.tree.map(lambda a, b: float(np.abs(a - b).max()), (one.params, one.history), (two.params, two.history))
    )
    return max(apart) if np.isfinite(apart).all() else float("inf")


def compare(case, devices):
    """Every number of devices against `scan`."""
    rule, problem, network, batch_size = CASES[case]()
    options = {"rounds": 8, "eval_every": 2, "batch_size": batch_size, "seed": [0, 3]}
    expected = pisco.run(rule, problem, network, **options)
    apart = [
        difference(expected, pisco.run(rule, problem, network, engine=ShardedEngine(count), **options))
        for count in devices
    ]
    jax.clear_caches()  # the programs of all cases are more pieces of memory than Linux lets a process map
    return apart


def main(told):
    place = told.get("place")
    jax.config.update("jax_num_cpu_devices", max(told["devices"]))
    jax.config.update("jax_enable_x64", True)
    if place:
        join(Rank(*place))
    found = {case: compare(case, told["devices"]) for case in told["cases"]}
    if not place or place[2] == 0:
        print(json.dumps(found), flush=True)


if __name__ == "__main__":
    main(json.loads(sys.argv[1]))
