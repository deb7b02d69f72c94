"""Agents that are absent: what they keep, what the others do without them, what is counted, what is refused."""

from functools import partial
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import pisco
from pisco.algorithms import ALGORITHMS, build
from pisco.algorithms import pisco as pisco_rule
from pisco.engines import attendance
from pisco.engines.scan import ScanEngine
from pisco.experiments import load
from pisco.networks.rounds import draw_round
from pisco.networks.varying import cycle
from pisco.registry import options

import twins
from worlds import Quadratics, after, coins, doubly_stochastic, thinned, trajectory

COIN, CHURN = pisco.bernoulli(0.3), pisco.churn(0.1, 0.3)
OFTEN = pisco.churn(0.4, 0.4)
PER_AGENT = pisco.per_agent([0.0, 0.2, 0.5, 0.5, 0.9, 1.0])
RULE = pisco.algorithms.dsgt(local_lr=0.05)


def ring(agents=6, **given):
    return pisco.Network.ring(agents, **({"server": COIN, "presence": OFTEN} | given))


# ------------------------------------------------------------------------------------------ one round

NETWORKS = {
    "dense": lambda: pisco.Network(weights=doubly_stochastic(9)),
    "no weight of one's own": lambda: pisco.Network(weights=np.eye(4)[[1, 0, 3, 2]]),
    "circulant": lambda: pisco.Network.ring(70),
    "gather": lambda: pisco.Network.grid(7, 10),
    "edges": lambda: pisco.Network.star(70),
    "per agent": lambda: pisco.Network.ring(6, server=PER_AGENT),
    "dropout": lambda: pisco.Network.ring(9, varying=pisco.edge_dropout(0.3)),
    "matching": lambda: pisco.Network.complete(9, varying=pisco.random_matching()),
}


@pytest.mark.parametrize("name", thinned(NETWORKS, 2))
def test_a_round_is_that_of_all_with_the_weight_of_the_absent_on_the_diagonal(x64, name):
    everybody, key = NETWORKS[name](), jax.random.key(1)
    n, rng = everybody.num_agents, np.random.default_rng(0)
    who = jnp.asarray(rng.random(n) < 0.4) if everybody.splits_rounds else jnp.asarray(False)
    network = pisco.Network(
        everybody.graph, weights=everybody.weights, server=everybody.server, varying=everybody.varying, presence=[1] * n
    )
    for k, share in enumerate((0.7, 0.3, 0.0)):
        present = rng.random(n) < share
        found, links, participates = map_of(network.gossip, who, key, k, present)
        found[~present] = np.eye(n)[~present]  # whatever they are told, they keep what they have
        W = map_of(everybody.gossip, who, key, k, agents=n)[0]
        reached = np.asarray(who) & present if everybody.splits_rounds else np.zeros(n, bool)
        expected = twins.among_present(W, present & ~reached, server=False)
        expected[reached] = reached / max(reached.sum(), 1)
        np.testing.assert_allclose(found, expected, rtol=0, atol=1e-15)
        np.testing.assert_allclose(found.sum(axis=0), 1, atol=1e-14)
        gossiped = expected[np.ix_(~reached, ~reached)]
        assert links.edges == np.count_nonzero(gossiped) - np.count_nonzero(np.diag(gossiped))
        assert (links.uplinks, links.downlinks, links.present) == (reached.sum(), reached.sum(), present.sum())
        np.testing.assert_array_equal(participates, present)


def map_of(gossip, who, key, k, present=None, agents=None):
    """The matrix of a round, its links, and who takes part."""
    found = compiled_map(gossip, who, key, k, present, len(present) if agents is None else agents)
    return jax.tree.map(np.array, found)


@partial(jax.jit, static_argnames="agents")
def compiled_map(gossip, who, key, k, present, agents):
    mix, links = draw_round(gossip, who, key, k, agents, present=present)
    return mix(jnp.eye(agents)), links, mix.participates


def test_the_server_averages_those_present_and_what_the_absent_hold_reaches_nobody(x64):
    present, values = jnp.asarray([True, False, True, True]), jnp.asarray([1.0, jnp.nan, 2.0, 6.0])
    network = pisco.Network.ring(4, presence=[1] * 4)
    mix, links = draw_round(network.gossip, True, jax.random.key(0), 0, 4, present=present)
    np.testing.assert_allclose(mix(values)[present], 3)
    assert (links.server, links.gossip, links.uplinks, links.downlinks, links.edges) == (1, 0, 3, 3, 0)
    mix, links = draw_round(network.gossip, False, jax.random.key(0), 0, 4, present=present)
    np.testing.assert_allclose(mix(values)[present], [2 / 3 + 6 / 3, 4 / 3 + 6 / 3, 3], rtol=1e-15)
    assert (links.server, links.gossip, links.uplinks, links.downlinks, links.edges) == (0, 1, 0, 0, 4)
    _, links = draw_round(network.gossip, True, jax.random.key(0), 0, 4, present=jnp.zeros(4, bool))
    assert [int(count) for count in links] == [1, 0, 0, 0, 0, 0, 0]


# ------------------------------------------------------------------------------------------ identities


@pytest.mark.parametrize(
    ("one_exchange", "local_steps"), [(False, 3), (True, 1), pytest.param(False, 0, marks=pytest.mark.slow)]
)
def test_pisco_with_absent_agents_is_its_naive_twin(x64, one_exchange, local_steps):
    world, W, rounds = Quadratics(), doubly_stochastic(6), 25
    network = pisco.Network(weights=W, server=COIN, presence=OFTEN)
    present = attendance(network, rounds=rounds)
    assert present.any(axis=0).all() and not present.all(axis=1).all()
    options = {"local_lr": 0.02, "comm_lr": 0.8, "local_steps": local_steps, "one_exchange": one_exchange}
    mixes = [twins.among_present(W, *drawn) for drawn in zip(present, coins(COIN, rounds), strict=True)]
    naive = twins.pisco(world.x0, world.gradient, mixes, present=present, **options)
    states = trajectory(pisco_rule(**options), world.problem(), network, rounds)
    for state, expected in zip(states[1:], naive, strict=True):
        for field, values in expected.items():
            np.testing.assert_allclose(getattr(state, field).T, values, rtol=0, atol=1e-12, err_msg=field)


def rule_named(name):
    usual = {"local_lr": 0.02, "local_steps": 2}
    return build(name, **{key: usual[key] for key in usual.keys() & ALGORITHMS[name].hyperparameters})


TRACKING = ["pisco", "pisco-one-exchange", "pisco-vr", "dsgt", "dsgt-cta", "dsgt-full-atc", "kgt", "lsgt"]
TRACKING += ["periodical-gt", "pisco-adam", "gt-hsgd", "led", "exact-diffusion", "nids", "proxskip", "sd-gt"]
TRACKING += ["push-pull", "pisco-compressed"]
NEEDS_ALL = {"scaffold", "beer", "motef", "extra", "feddyn", "fedadam"}


@pytest.mark.parametrize("name", thinned(TRACKING, 3))
def test_gradient_tracking_survives_absences(x64, name):
    """mean(Y) = mean(G) over all agents in every round; corrections, where a method has those, add up to zero."""
    server = PER_AGENT if name in ("pisco", "dsgt") else COIN
    for state in trajectory(rule_named(name), Quadratics().problem(), ring(server=server), 15):
        state = getattr(state, "inner", state)
        if hasattr(state, "tracker"):
            tracked = state.estimate if hasattr(state, "estimate") else state.grads
            np.testing.assert_allclose(state.tracker.mean(0), tracked.mean(0), rtol=0, atol=1e-12)
        else:
            for own in ("control", "correction"):
                np.testing.assert_allclose(np.mean(getattr(state, own, np.zeros(1)), axis=0), 0, rtol=0, atol=1e-12)


@pytest.mark.parametrize("one_exchange", [False, pytest.param(True, marks=pytest.mark.slow)])
@pytest.mark.parametrize("local_steps", thinned([1, 0, 3], 3))
def test_the_optimum_is_exact_whatever_the_absences(x64, one_exchange, local_steps):
    world = Quadratics()
    rule = pisco_rule(local_lr=0.05, local_steps=local_steps, one_exchange=one_exchange)
    params = after(rule, world.problem(), ring(presence=CHURN), 1500)
    np.testing.assert_allclose(params, np.tile(world.optimum, (6, 1)), rtol=0, atol=1e-10)


def test_the_absent_keep_their_whole_state_and_what_all_hold_together_goes_on():
    @pisco.algorithm
    def counting(*, local_lr: float):
        inner = pisco.algorithms.dsgd(local_lr=local_lr, direction="adam")

        def init(params, key, grad, mix):
            return Counted(params, inner.init(params, key, grad, mix), jnp.int32(0))

        def one_round(state, key, grad, mix):
            new = inner.round(state.inner, key, grad, mix)
            return Counted(new.params, new, state.rounds + 1)

        return pisco.Pair(init, one_round)

    network, rounds = ring(), 12
    states = trajectory(counting(local_lr=0.05), Quadratics().problem(), network, rounds)
    for k, present in enumerate(attendance(network, rounds=rounds)):
        before, now = states[k], states[k + 1]
        assert now.rounds == k + 1
        for old, new in zip(jax.tree.leaves(before.inner), jax.tree.leaves(now.inner), strict=True):
            np.testing.assert_array_equal(new[~present], old[~present])
            assert (new[present] != old[present]).reshape(present.sum(), -1).any(axis=1).all()


class Counted(NamedTuple):
    """A state with something in it that no single agent has."""

    params: object
    inner: object
    rounds: object


# -------------------------------------------------------------------------------------------- everybody


@pytest.mark.parametrize(
    "given",
    [
        pytest.param({}, id="coin"),
        pytest.param({"server": PER_AGENT}, id="per agent"),
        pytest.param({"agents": 70}, id="circulant", marks=pytest.mark.slow),
    ],
)
def test_everybody_present_is_bit_identical_to_no_presence(given):
    assert repr(ring(presence=pisco.everybody())) == repr(pisco.Network.ring(6, server=COIN))
    agents = given.get("agents", 6)
    world, options = Quadratics(agents=agents), {"rounds": 30, "seed": 4}
    plain = pisco.run(RULE, world.problem(), ring(presence=None, **given), **options)
    masked = pisco.run(RULE, world.problem(), ring(presence=[True] * agents, **given), **options)
    apart = 1e-6 if jax.__version_info__ < (0, 10, 2) else 0  # jax 0.10.0 rounds in another order where there is a mask
    np.testing.assert_allclose(masked.params, plain.params, rtol=apart, atol=apart)
    assert set(masked.history) == {*plain.history, "present"}
    for name, values in plain.history.items():  # another program may add up a measurement in another order
        counted = np.issubdtype(values.dtype, np.integer)
        near: dict = {"rtol": 0 if counted else 1e-5, "atol": apart}
        np.testing.assert_allclose(masked.history[name], values, **near, err_msg=name)
    np.testing.assert_array_equal(masked.history["present"], agents)


# -------------------------------------------------------------------------------------- runs and engines


def test_costs_are_those_of_the_present():
    network, rounds = ring(presence=CHURN), 30
    result = pisco.run(RULE, Quadratics().problem(), network, rounds=rounds)
    present, server = attendance(network, rounds=rounds), np.asarray(coins(COIN, rounds))
    both = 2 * (present & np.roll(present, 1, axis=1)).sum(axis=1)
    history = result.history
    np.testing.assert_array_equal(history["present"][1:], present.sum(axis=1))
    np.testing.assert_array_equal(history["messages_gossip"][1:], np.cumsum(both * ~server))
    np.testing.assert_array_equal(history["messages_server"][1:], np.cumsum(2 * present.sum(axis=1) * server))
    np.testing.assert_array_equal(history["bytes_gossip"], 32 * history["messages_gossip"])
    seldom = pisco.run(RULE, Quadratics().problem(), network, rounds=rounds, eval_every=15).history["present"]
    np.testing.assert_allclose(seldom, [6, present[:15].sum() / 15, present[15:].sum() / 15])


def test_a_log_replays_the_run_that_drew_it(tmp_path):
    network, problem = ring(), Quadratics().problem()
    drawn = pisco.run(RULE, problem, network, rounds=30, seed=5)
    masks = attendance(network, rounds=30, seed=5)
    np.savetxt(tmp_path / "log.csv", masks, fmt="%d", delimiter=",")
    np.save(tmp_path / "log.npy", masks)
    for file in ("log.csv", "log.npy"):
        replayed = pisco.run(RULE, problem, ring(presence=pisco.from_log(tmp_path / file)), rounds=30, seed=5)
        np.testing.assert_array_equal(replayed.params, drawn.params)
        for name, values in drawn.history.items():
            np.testing.assert_array_equal(replayed.history[name], values, err_msg=name)
    longer = attendance(ring(presence=pisco.from_log(masks)), rounds=33)
    np.testing.assert_array_equal(longer[29:], np.tile(masks[29], (4, 1)))


@pytest.mark.slow
def test_every_engine_agrees_and_seeds_differ(x64):
    problem, options = Quadratics().problem(), {"rounds": 3, "seed": [0, 1]}
    scan = pisco.run(RULE, problem, ring(), **options)
    assert (scan.history["present"][0] != scan.history["present"][1]).any()
    for engine, own in (("debug", 0), ("sharded", slice(2)), (ScanEngine(batched=True), slice(2))):
        given = options | {"seed": options["seed"][own]}
        other = pisco.run(RULE, problem, ring(), engine=engine, **given)
        np.testing.assert_allclose(other.params, scan.params[own], rtol=0, atol=1e-13)
        for name in ("present", "messages_gossip", "messages_server"):
            np.testing.assert_array_equal(other.history[name], scan.history[name][own])


def test_who_is_absent_survives_a_checkpoint(tmp_path):
    problem, options = Quadratics().problem(), {"chunk_rounds": 5}
    whole = pisco.run(RULE, problem, ring(), rounds=20, **options)
    pisco.run(RULE, problem, ring(), rounds=10, checkpoint=tmp_path, **options)
    resumed = pisco.run(RULE, problem, ring(), rounds=20, checkpoint=tmp_path, resume=True, **options)
    np.testing.assert_array_equal(resumed.params, whole.params)
    np.testing.assert_array_equal(resumed.history["present"], whole.history["present"])
    with pytest.raises(pisco.InputError, match="another"):
        pisco.run(RULE, problem, ring(presence=CHURN), rounds=20, checkpoint=tmp_path, resume=True, **options)


def test_churn_leaves_and_comes_back_as_often_as_it_says():
    present = attendance(pisco.Network.ring(200, presence=pisco.churn(0.1, 0.3)), rounds=400)
    there, away = present[:-1], ~present[:-1]
    assert abs((there & ~present[1:]).sum() / there.sum() - 0.1) < 0.01
    assert abs((away & present[1:]).sum() / away.sum() - 0.3) < 0.02
    assert abs(present[50:].mean() - 0.75) < 0.02


class Shifts(pisco.Presence):
    """One agent after the other is away; it remembers whose turn it is."""

    def start(self, agents):
        return jnp.arange(agents) != 0

    def decide(self, memory, key, round_index):
        return memory, jnp.roll(memory, 1)


def test_functions_and_objects_of_ones_own():
    odd = ring(presence=lambda key, k: jnp.arange(6) % 2 == k % 2)
    np.testing.assert_array_equal(attendance(odd, rounds=2), [[1, 0] * 3, [0, 1] * 3])
    np.testing.assert_array_equal(attendance(ring(presence=Shifts()), rounds=6), ~np.eye(6, dtype=bool))
    result = pisco.run(RULE, Quadratics().problem(), ring(presence=Shifts()), rounds=6)
    np.testing.assert_array_equal(result.history["present"], [6, 5, 5, 5, 5, 5, 5])


# ------------------------------------------------------------------------------------- files and refusals


def test_files_of_settings(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    np.savetxt("log.csv", np.eye(10), fmt="%d")
    code = ["import jax.numpy as jnp", "def half(size):", "    return jnp.arange(10) < size"]
    (tmp_path / "mine.py").write_text("\n".join(code))
    churned = load("quick", ["network.presence=churn", "network.leave=0.2", "network.back=0.5"])
    assert "presence=churn(0.2, 0.5)" in repr(churned.network.build())
    logged = load("quick", ["network.presence=log.csv"]).network.build()
    np.testing.assert_array_equal(attendance(logged, rounds=10), np.eye(10, dtype=bool))
    mine = load("quick", ["network.presence=mine.py:half", "network.size=3"]).network.build()
    np.testing.assert_array_equal(attendance(mine, rounds=1)[0], np.arange(10) < 3)
    with pytest.raises(pisco.InputError, match="network.back is missing"):
        load("quick", ["network.presence=churn", "network.leave=0.2"])
    with pytest.raises(pisco.InputError, match="does not go with presence"):
        load("quick", ["network.leave=0.2"])


LOPSIDED = doubly_stochastic(6, symmetric=False)


@pytest.mark.parametrize(
    ("build", "words"),
    [
        (lambda: pisco.Network(weights=LOPSIDED, presence=CHURN), "weigh the same both ways, as W need not"),
        (lambda: ring(varying=pisco.one_peer_exponential()), "as one_peer_exponential.. need not"),
        (lambda: ring(varying=cycle([np.eye(6)])), "as cycle of 1 matrices need not"),
        (lambda: ring(sampling=pisco.sample(2, agents=6)), "drop `sampling`"),
        (lambda: ring(server=pisco.adaptive(3)), "which the absent do not send"),
        (lambda: ring(presence=None).with_server(COIN) and ring().with_server(pisco.adaptive(3)), "absent do not send"),
        (lambda: ring(presence=[True] * 5), r"bool\[5\], expected a boolean for each of the 6 agents"),
        (lambda: ring(presence=[2] * 6), "presence \\[2, 2, .* is no mask"),
        (lambda: ring(presence=lambda key, k: jnp.ones(6)), r"float32\[6\], expected a boolean"),
        (lambda: ring(presence=lambda key, k: [True] * 6 if k > 3 else [False] * 6), "use jnp.where"),
        (lambda: pisco.churn(1.2, 0.3), "leave is 1.2"),
        (lambda: pisco.from_log("nowhere.csv"), "there is no file nowhere.csv"),
        (lambda: pisco.from_log([[1, 2]]), "the log is no mask"),
    ],
)
def test_what_cannot_be_is_refused_in_a_sentence(build, words):
    with pytest.raises(pisco.InputError, match=words):
        build()


@pytest.mark.parametrize("name", sorted(NEEDS_ALL))
def test_methods_that_need_everybody_refuse(name):
    server = {"scaffold": pisco.always(), "beer": pisco.never()}.get(name, COIN)
    with pytest.raises(pisco.InputError, match="needs everybody in every round"):
        pisco.run(rule_named(name), Quadratics().problem(), ring(server=server), rounds=1)


def test_federations_refuse_for_now():
    from pisco.federation.plan import Federation

    network = {"graph": "ring", "server_prob": 0.3, "presence": "churn", "leave": 0.1, "back": 0.3}
    rule = {"name": "pisco", "local_lr": 0.1, "local_steps": 1}
    problem = {"name": "logistic", "classes": [-1, 1], "rho": 0.02}
    with pytest.raises(pisco.InputError, match="network.presence = 'churn' is for simulations"):
        Federation.create("clinic", agents=4, network=network, rounds=20, problem=problem, algorithm=rule)


def test_every_published_method_is_allowed_or_refused_on_purpose():
    """A new row of the registry is tried with absences, or stands in one of the lists above."""
    first_order = {"dsgd", "dsgd-cta", "local-dsgd", "fedavg", "gossip-pga", "gossip-aga", "hl-sgd", "ha-fed", "tt-hf"}
    first_order |= {"sampled-to-sampled", "fedprox", "qg-dsgdm", "diloco", "noloco", "choco"}
    assert set(ALGORITHMS) == first_order | set(TRACKING) | NEEDS_ALL
    assert options(pisco.churn).keys() == {"leave", "back"}
