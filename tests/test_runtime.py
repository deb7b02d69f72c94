"""Engine `remote` gives what `scan` gives: real certificates and gRPC, agents as threads."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import pisco
from pisco.algorithms import ALGORITHMS
from pisco.engines.job import seed_key, streams
from pisco.federation.runtime.routes import Routes
from pisco.networks.rounds import draw_round
from pisco.results import Result
from test_networks import Doubling

from federations import Running, make_kits, plan_for, quadratic_of
from worlds import Quadratics

AGENTS, ROUNDS = 5, 6
TOLERANCE = {"float32": 1e-6, "float64": 1e-12}
USUAL = {"local_lr": 0.02, "local_steps": 2}


def home_of(name):
    """The settings of a method and of the network it is published on."""
    method = ALGORITHMS[name]
    algorithm = {"name": name} | {k: v for k, v in USUAL.items() if k in method.hyperparameters}
    if name == "kgt":
        algorithm["start"] = "gossip"
    network = {"graph": "ring"} | dict(method.network)
    if "server" not in network:
        network["server_prob"] = 0.4
    if "clusters" in network:
        network |= {"clusters": 1}  # five agents
    return algorithm, network


@pytest.mark.parametrize("receivers", [pytest.param("all", marks=pytest.mark.slow), "sampled"])
def test_routes_are_what_the_rounds_draw(receivers):
    keys, first, end = streams(seed_key(3)), 505, 520  # across a block of coins
    network = pisco.Network.ring(
        5, server=Doubling(), varying=pisco.edge_dropout(0.4), sampling=pisco.sample(2, agents=5), receivers=receivers
    )
    routes, gossip = Routes(network, keys), network.gossip

    @jax.jit
    def decide(memory, k):
        return network.server.decide(memory, keys.coins, k, None)

    @jax.jit
    def draw(who, k):
        mix, links = draw_round(gossip, who, keys.links, k, 5)
        return mix(jnp.eye(5)), mix.participates, mix.share, jax.tree.leaves(links)

    memory, drawn = network.server.start(), []
    for k in range(end):
        who, memory = decide(memory, np.int32(k))
        if k >= first:
            drawn.append((bool(who), *jax.device_get(draw(who, np.int32(k)))))
    assert sum(who for who, *_ in drawn) == 1  # round 510
    found = np.stack(routes.links(first, end), axis=1)
    np.testing.assert_array_equal(found, [links for *_, links in drawn])
    for k, (who, W, participates, share, _) in enumerate(drawn, first):
        for place in range(5):
            told = routes.told(k, place)
            assert told.participates == participates[place] and told.share == share
            (hop,) = routes.hops(k, place)
            pulled = hop.weights if who else hop.incoming
            if who and place not in hop.receivers:
                pulled = {place: 1.0}
            np.testing.assert_allclose(W[place], [pulled.get(j, 0) for j in range(5)], atol=1e-7)


def agree(tmp_path, name, dtype, network=None, rounds=ROUNDS):
    algorithm, home = home_of(name)
    plan = plan_for(AGENTS, rounds=rounds, algorithm=algorithm, network=network or home, dtype=dtype, eval_every=3)
    world = Quadratics(agents=AGENTS)
    with jax.enable_x64(dtype == "float64"):
        ran = Running(tmp_path, plan, lambda i: quadratic_of(i, world, dtype)).join()
        problem = pisco.problems.quadratic(world.hessians, world.minimizers, init=world.x0.astype(dtype))
        alone = pisco.run(plan.build_algorithm(), problem, plan.network_of(plan.epochs[0]), rounds=rounds, eval_every=3)
    found = ran.params()
    assert found.dtype == dtype
    np.testing.assert_allclose(found, alone.params, rtol=0, atol=TOLERANCE[dtype])
    history = ran.results["server"].history
    for column in ("round", "server_rounds", "gossip_rounds", "exchanges", "messages_gossip", "messages_server"):
        np.testing.assert_array_equal(history[column], alone.history[column])
    return ran, alone


@pytest.mark.slow
def test_unequal_agents_agree_with_scan(tmp_path):
    samples = {f"agent-{i}": 10.0**i for i in range(AGENTS)}
    plan = plan_for(AGENTS, rounds=4, dtype="float64", eval_every=2, agent_weights=samples)
    world, q = Quadratics(agents=AGENTS), np.array(list(samples.values())) / sum(samples.values())
    with jax.enable_x64(True):
        ran = Running(tmp_path, plan, lambda i: quadratic_of(i, world, "float64")).join()
        problem = pisco.problems.quadratic(world.hessians, world.minimizers, init=world.x0).weighted(q)
        alone = pisco.run(plan.build_algorithm(), problem, plan.network_of(plan.epochs[0]), rounds=4)
    np.testing.assert_allclose(ran.params(), alone.params, rtol=0, atol=1e-12)


def test_agrees_with_scan(tmp_path):
    """Gossip twice, and then a server that samples reporters; two exchanges a round are below."""
    agree(tmp_path, "tt-hf", "float64")


@pytest.mark.slow
def test_agrees_with_scan_in_single_precision(tmp_path):
    ran, alone = agree(tmp_path, "pisco", "float32")
    # What the server learns is the mean of what agents measured; at the start, where all agree, that is f itself.
    np.testing.assert_allclose(ran.results["server"].history["loss"][0], alone.history["loss"][0], rtol=1e-6)
    for name, result in ran.results.items():
        again = Result.load(result.save(tmp_path / "out" / name))
        np.testing.assert_array_equal(again.history["loss"], result.history["loss"])
        assert again.rounds == ROUNDS and f"finished after {ROUNDS} rounds" in repr(again)


def test_what_is_known_of_agents_own_metrics_reaches_the_server(tmp_path):
    def own(index):
        scores = pisco.metrics.auc(lambda x, batch: (batch @ x, batch[:, 0]))
        test = np.random.default_rng(index).normal(size=(9, 2)).astype(np.float32)
        data = np.ones((1, 3, 2), np.float32)
        return pisco.Problem(
            lambda x, batch, key: (batch @ x - 1) ** 2, np.zeros(2, np.float32), data, test=test, metrics=[scores]
        )

    ran = Running(tmp_path, plan_for(2, rounds=2, network={"graph": "path"}), own).join()
    for name in ("server", "agent-0"):
        again = Result.load(ran.results[name].save(tmp_path / "out" / name))
        assert again.metric("test_auc").rising and again.metric("test_auc").title == "test AUC"
        assert 0 <= again.at_target("test_auc", bound=0.5)[0] <= 2


NAMES = sorted(set(ALGORITHMS) - {"gossip-aga"})


@pytest.mark.slow
@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("name", NAMES)
def test_every_algorithm_agrees_with_scan(tmp_path, name, dtype):
    agree(tmp_path, name, dtype)


@pytest.mark.parametrize(
    "network",
    [
        {"graph": "ring", "varying": "one_peer_exponential"},  # its links are not those of the graph
        *[
            pytest.param(network, marks=pytest.mark.slow)
            for network in [
                {"graph": "ring", "server": "per_agent", "server_probs": [0.1, 0.3, 0.5, 0.7, 0.9]},
                {"graph": "ring", "varying": "edge_dropout", "drop_prob": 0.3, "server_prob": 0.2},
                {"graph": "complete", "varying": "random_matching"},
                {"graph": "star", "server": "every", "period": 2},
            ]
        ],
    ],
    ids=lambda network: network.get("varying", network.get("server", "")),
)
def test_every_network_agrees_with_scan(tmp_path, network):
    agree(tmp_path, "pisco", "float64", network, rounds=12)


def test_an_adaptive_schedule_is_refused(tmp_path):
    plan = plan_for(
        2, network={"graph": "path", "server": "adaptive", "period": 2}, algorithm={"name": "dsgd", "local_lr": 0.1}
    )
    kits = make_kits(tmp_path, plan)
    with pytest.raises(pisco.InputError, match="everybody's loss"):
        Running(tmp_path, plan, quadratic_of, kits_=kits, only=["agent-0"], server=False).join()
