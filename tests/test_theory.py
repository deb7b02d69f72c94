"""Theory against simulation: stability limits on quadratics, the paper's step sizes, curvature estimates."""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import pisco
from pisco import theory
from pisco.algorithms import pisco as pisco_rule
from pisco.algorithms.pisco import PiscoState
from pisco.engines.job import Carry, Job, Run, Segment
from pisco.engines.scan import ScanEngine
from pisco.networks.spectral import inner_modes
from pisco.theory.stability import largest_stable_step, round_matrix


def measured_growth(network, local_lr, rounds=3000, **options):
    """How the squared norm of all agents' parameters changes, on identical quadratics with every curvature up to 1."""
    n, d = network.num_agents, theory.CURVATURES
    hessian = np.diag(np.arange(1, d + 1) / d)
    problem = pisco.problems.quadratic(np.stack([hessian] * n), np.zeros((n, d)))
    rule = pisco_rule(local_lr=local_lr, **options)
    engine, job = ScanEngine(), Job(problem, network, (Run(rule, network.server, 0),))
    (carry,) = engine.start(job)
    x = jnp.asarray(np.random.default_rng(0).normal(size=(n, d)))
    state = carry.state._replace(params=x + 0, tracker=x @ hessian, grads=x @ hessian)
    states, _, _ = engine.advance(job, [Carry(state, carry.memory)], 0, Segment(1, rounds, measured=False))
    with np.errstate(over="ignore", invalid="ignore"):
        ratio = np.sum(np.asarray(states[0].state.params) ** 2) / np.sum(x**2)
    return float(np.nan_to_num(ratio, nan=np.inf))


@pytest.mark.slow
@pytest.mark.parametrize("weights", ["fdla", "metropolis"])
@pytest.mark.parametrize("one_exchange", [False, True])
@pytest.mark.parametrize("local_steps", [0, 1, 4])
def test_stability_limit_without_server(weights, one_exchange, local_steps, x64):
    """5% below the predicted limit everything dies out, 5% above something grows."""
    network = pisco.Network.ring(10, weights=weights)
    options = {"local_steps": local_steps, "one_exchange": one_exchange}
    limit = theory.largest_stable_step(theory.weight_modes(network.weights), 1.0, **options)
    assert measured_growth(network, 0.95 * limit, **options) < 1
    assert measured_growth(network, 1.05 * limit, **options) > 1e3


def test_the_closed_form_without_local_steps(x64):
    for mode in (-0.826, -0.5, 0.3, 0.9):
        predicted = (1 + mode) ** 2 / (2 * mode**2)
        found = theory.largest_stable_step([mode], 1.0, local_steps=0)
        assert abs(found - min(predicted, 2.0)) < 0.01 * predicted


@pytest.mark.parametrize("server_prob", [0.1, 0.4])
def test_mean_square_stability_with_a_server(server_prob, x64):
    """The mean over many coins of the squared deviation in one mode, exactly, by the transfer of second moments."""
    mode = -0.826
    limit = theory.largest_stable_step([mode], 1.0, local_steps=1, server_prob=server_prob)
    assert limit > theory.largest_stable_step([mode], 1.0, local_steps=1)
    for factor, stable in ((0.95, True), (1.05, False)):
        M = theory.round_matrix(mode, 1.0, local_lr=factor * limit, comm_lr=1.0, local_steps=1, one_exchange=False)
        moments = np.eye(2)
        for _ in range(4000):
            moments = (1 - server_prob) * M @ moments @ M.T
        assert (np.trace(moments) < 1) == stable


def test_the_curvature_of_a9a():
    problem = pisco.problems.logistic(pisco.data.load("a9a"), agents=10)
    assert abs(theory.smoothness(problem) - 1.82) < 0.02


def test_metropolis_allows_far_larger_steps_than_fdla():
    steps = {
        name: theory.largest_stable_step(inner_modes(pisco.Network.ring(10, weights=name).weights), 1.0, local_steps=1)
        for name in ("fdla", "metropolis")
    }
    assert steps["metropolis"] > 20 * steps["fdla"]
    one = theory.largest_stable_step(
        inner_modes(pisco.Network.ring(10, weights="fdla").weights), 1.0, local_steps=1, one_exchange=True
    )
    assert one > 20 * steps["fdla"]


def test_corollary_1_shrinks_with_the_horizon():
    facts = {"smoothness": 1.8, "noise": 2.0, "gap": 0.4, "agents": 10, "batch_size": 256}
    facts |= {"mixing_rate": 0.3, "server_prob": 0.1, "local_steps": 2}
    steps = [theory.corollary_1(rounds=k, **facts).local_lr for k in (100, 10_000)]
    assert steps[0] > steps[1] > 0


FACTS = {"smoothness": 1.8, "noise": 2.0, "gap": 0.4, "agents": 10, "batch_size": 8}
WHERE = {"mixing_rate": 0.3, "server_prob": 0.1, "local_steps": 2}


def test_corollary_1_says_from_which_round_on_it_applies():
    needed = theory.corollary_1(rounds=1, **FACTS, **WHERE).rounds_needed
    for share, applies in ((0.99, False), (1.01, True)):
        found = theory.corollary_1(rounds=int(share * needed), **FACTS, **WHERE)
        assert (found.local_lr <= found.allowed) == applies
        assert found.allowed == theory.theorem_1(smoothness=1.8, **WHERE).local_lr
    # The proof's own condition is the larger of two such K, with T_o for T_o + 1, so this one is never far above it.
    rate = 0.3 + 0.1 * 0.7
    proof = max(360**2 * 10 * 2 * 8 * 1.8 * 0.4 / (1.1**2 * rate**4 * 2), 360**3 * 8 * 1.8 * 0.4 / (1.1 * rate**2 * 2))
    assert needed < 1.5**3 * proof


def test_theorem_1_bound_has_all_terms_and_names_what_is_broken():
    steps = theory.theorem_1(smoothness=1.8, **WHERE)
    bound = theory.theorem_1_bound(**FACTS, **WHERE, heterogeneity=3.0, rounds=1000, **steps._asdict())
    eta, rate = steps.comm_lr * steps.local_lr, 0.37
    assert bound.broken == ()
    assert bound.descent == pytest.approx(0.4 / (eta * 2 * 1000))
    assert bound.local_noise == pytest.approx(1.8**2 * 4 * steps.local_lr**2 * 0.25)
    assert bound.shared_noise == pytest.approx(1.8 * eta / 10 * 0.25)
    assert bound.network_noise == pytest.approx(0.9 * 1.8**2 * 4 * eta**2 / (1.1**2 * rate**4) * 0.25)
    assert bound.start == pytest.approx((3 + 0.9 * 0.25) / 1000)
    assert bound.total == pytest.approx(sum(bound[:5]))
    exact = theory.theorem_1_bound(
        **FACTS | {"batch_size": None}, **WHERE, heterogeneity=3.0, rounds=1000, **steps._asdict()
    )
    assert exact[1:4] == (0, 0, 0) and exact.start == pytest.approx(0.003)
    wild = theory.theorem_1_bound(**FACTS, **WHERE, heterogeneity=3.0, rounds=1000, local_lr=1.0, comm_lr=0.01)
    assert len(wild.broken) == 2 and "α" in wild.broken[0] and "η_l is 1" in wild.broken[1]
    with pytest.raises(pisco.InputError, match="local_steps is 0"):
        theory.theorem_1_bound(**FACTS, **WHERE | {"local_steps": 0}, heterogeneity=3.0, rounds=1, **steps._asdict())


def test_theorem_1_bounds_a_run(x64):
    """At the theorem's own steps; the proof's constant of the first term is 8, and the others are far smaller here."""
    rng = np.random.default_rng(0)
    hessians = np.stack([np.diag(rng.uniform(0.5, 1.5, 3)) for _ in range(6)])
    problem = pisco.problems.quadratic(hessians, rng.normal(size=(6, 3)), init=np.full(3, 2.0))
    network = pisco.Network.ring(6, server=pisco.bernoulli(0.3))
    found = theory.estimate(problem)
    where = {"mixing_rate": network.mixing_rate, "server_prob": 0.3, "local_steps": 2}
    said = theory.guarantees(found, agents=6, batch_size=None, rounds=2000, epsilon=0.1, **where)
    result = pisco.run(pisco_rule(local_steps=2, **said["theorem_1"]), problem, network, rounds=2000, eval_every=10)
    measured = result.history["grad_norm_sq_mean"][-1]
    assert 0.01 * said["bound"]["total"] < measured < 8 * said["bound"]["total"]
    assert said["corollary_1"] is None and said["corollary_2"]["rounds"] > 100 and said["note"] == ""


def test_corollary_2_for_large_and_full_batches():
    facts = {"smoothness": 2.0, "noise": 1.0, "epsilon": 0.1, "agents": 10} | WHERE
    large = theory.corollary_2(batch_size=200, **facts)
    full = theory.corollary_2(batch_size=None, **facts)
    assert large.rounds == pytest.approx(2 / (1.1 * 0.37**2 * 0.01) + 100)
    assert full.rounds == pytest.approx(2 / (1.1 * 0.37**2 * 0.01) + 10)
    assert (large.batch_needed, full.batch_needed) == (pytest.approx(100), 0)
    assert large[:2] == theory.theorem_1(smoothness=2.0, **WHERE)


def test_without_mixing_there_is_one_sentence_and_no_step():
    apart = {"mixing_rate": 0.0, "server_prob": 0.0, "local_steps": 1}
    for rule, facts in (
        (theory.theorem_1, {"smoothness": 1.0}),
        (theory.corollary_1, FACTS | {"rounds": 10}),
        (theory.corollary_2, {"smoothness": 1.0, "noise": 0.0, "epsilon": 0.1, "agents": 2, "batch_size": None}),
    ):
        with pytest.raises(pisco.InputError, match="λ_p is 0: the graph is disconnected"):
            rule(**facts, **apart)
    found = theory.Estimates(1.0, 1.0, 1.0, 1.0, 1.0, 1.0, 1.0, (1.0,))
    said = theory.guarantees(found, agents=2, batch_size=1, rounds=10, epsilon=0.1, **apart)
    assert said["theorem_1"] is said["bound"] is said["corollary_1"] is said["corollary_2"] is None
    assert said["note"].startswith("λ_p is 0")
    said = theory.guarantees(found, agents=2, batch_size=1, rounds=10, epsilon=0.1, **WHERE)
    assert said["corollary_2"] is None and "Corollary 1 needs" in said["note"]


def test_bad_input_is_one_sentence():
    with pytest.raises(pisco.InputError, match="not symmetric"):
        inner_modes(0.5 * np.eye(4) + 0.5 * np.roll(np.eye(4), 1, axis=1))
    with pytest.raises(pisco.InputError, match="alpha is 0.01"):
        theory.theorem_1(smoothness=1, mixing_rate=0.5, server_prob=0.1, local_steps=1, alpha=0.01)


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"rounds": 0}, "rounds is 0"),
        ({"agents": 0}, "agents is 0"),
        ({"batch_size": -1}, "batch_size is -1"),
        ({"local_steps": -1}, "local_steps is -1"),
    ],
)
def test_what_the_formulas_divide_by_is_looked_at(given, words):
    """Each was a ZeroDivisionError, or a number that means nothing."""
    facts = {"smoothness": 1.0, "noise": 1.0, "gap": 1.0, "agents": 10, "batch_size": 1, "rounds": 100}
    facts = facts | WHERE | given
    bound = facts | {"heterogeneity": 1.0, "local_lr": 0.1, "comm_lr": 1.0}
    for said in (partial(theory.corollary_1, **facts), partial(theory.theorem_1_bound, **bound)):
        with pytest.raises(pisco.InputError, match=words):
            said()


def test_nonsense_is_no_order_and_no_bound():
    facts = {"smoothness": 1.0, "noise": 1.0, "gap": 1.0, "agents": 10, "batch_size": 1, "rounds": 100}
    facts = facts | WHERE | {"heterogeneity": 1.0, "local_lr": 0.1, "comm_lr": 1.0}
    for name in ("local_lr", "comm_lr"):
        with pytest.raises(pisco.InputError, match=f"{name} is 0"):
            theory.theorem_1_bound(**facts | {name: 0.0})
    with pytest.raises(pisco.InputError, match="local_steps is -1"):
        theory.theorem_1(smoothness=1, mixing_rate=0.5, server_prob=0.1, local_steps=-1)
    for agents, p, words in ((10, 1.5, "p is 1.5"), (10, np.nan, "p is nan"), (0, 0.1, "agents is 0")):
        with pytest.raises(pisco.InputError, match=words):
            theory.complexities(theory.Setup(agents, 1, 0.3), p)


@partial(jax.jit, static_argnames=("local_steps", "one_exchange"))
def one_round_maps(mixing, curvatures, local_lr, *, local_steps, one_exchange):
    """The linear maps of one round on (x, y) with g = a·x, from the algorithm itself, one for each curvature."""
    n = mixing.shape[0]
    rule = pisco_rule(local_lr=local_lr, local_steps=local_steps, one_exchange=one_exchange)

    def one(a):
        def apply(state):
            before = PiscoState(state[:n], state[n:], a * state[:n])
            after = rule.round(
                before,
                jax.random.key(0),
                lambda x, key: a * x,
                lambda tree: jax.tree.map(lambda leaf: mixing @ leaf, tree),
            )
            return jnp.concatenate([after.params, after.tracker])

        return jax.jacfwd(apply)(jnp.zeros(2 * n))

    return jax.vmap(one)(curvatures)


def mean_square_radius(network, p, local_lr, **options):
    """ρ of E[M ⊗ M] over coins on identical quadratics with curvatures up to 1, by no theory."""
    n = network.num_agents
    curvatures = np.arange(1, theory.CURVATURES + 1) / theory.CURVATURES
    both = [network.weights.toarray(), np.full((n, n), 1 / n)]
    maps = [np.asarray(one_round_maps(jnp.asarray(W), curvatures, local_lr, **options)) for W in both]
    worst = 0.0
    for a, gossip, server in zip(curvatures, *maps, strict=True):
        normal = np.concatenate([np.full(n, -a), np.ones(n)])[:, None]
        basis = np.linalg.svd(normal)[0][:, 1:]  # the states that a run can be in
        gossip, server = (basis.T @ each @ basis for each in (gossip, server))
        moments = (1 - p) * np.kron(gossip, gossip) + p * np.kron(server, server)
        worst = max(worst, np.abs(np.linalg.eigvals(moments)).max())
    return worst


def check_limit(network, p, **options):
    """Below 0.95 of the predicted limit second moments die out, above 1.05 of it they grow."""
    limit = theory.largest_stable_step(theory.weight_modes(network.weights), 1.0, server_prob=p, **options)
    assert mean_square_radius(network, p, 0.95 * limit, **options) < 1
    assert mean_square_radius(network, p, 1.05 * limit, **options) > 1


@pytest.mark.parametrize(("one_exchange", "local_steps"), [(False, 2), (True, 5)])
def test_mean_square_limits_of_the_whole_network(one_exchange, local_steps, x64):
    network = pisco.Network.path(4, weights="fdla")
    check_limit(network, 0.2, local_steps=local_steps, one_exchange=one_exchange)


WIDE = {
    "ring, FDLA": lambda: pisco.Network.ring(5, weights="fdla"),
    "path, pisco-step": lambda: pisco.Network.path(4, weights="pisco-step"),
    "path, Metropolis": lambda: pisco.Network.path(4),
    "star, FDLA": lambda: pisco.Network.star(4, weights="fdla"),
    "Erdős–Rényi, FDLA": lambda: pisco.Network.erdos_renyi(5, 0.5, seed=3, weights="fdla"),
}


@pytest.mark.slow
@pytest.mark.parametrize("graph", WIDE)
@pytest.mark.parametrize("one_exchange", [False, True])
@pytest.mark.parametrize("local_steps", [1, 2, 5])
def test_mean_square_limits_widely(graph, one_exchange, local_steps, x64):
    for p in (0.05, 0.1, 0.3, 0.7):
        check_limit(WIDE[graph](), p, local_steps=local_steps, one_exchange=one_exchange)


def test_curvatures_that_are_unlike_in_their_worst_direction(x64):
    """δ² is the largest eigenvalue of the mean of (H_i − H)²; samples that differ by chance alone hardly count."""
    rng = np.random.default_rng(3)
    roots = rng.normal(size=(5, 3, 3))
    hessians = roots @ roots.transpose(0, 2, 1)
    apart = hessians - hessians.mean(0)
    exact = np.linalg.eigvalsh(np.mean(apart @ apart, axis=0))[-1] ** 0.5
    problem = pisco.problems.quadratic(hessians, np.zeros((5, 3)))
    assert theory.unlike_curvature(problem, iterations=60) == pytest.approx(exact, rel=1e-6)
    a, scales = rng.normal(size=(6, 2000, 3)), np.array([1.0, 1, 1, 1, 1, 3])
    alike = {"a": a, "y": rng.normal(size=(6, 2000))}
    unlike = alike | {"a": a * scales[:, None, None] ** 0.5}

    def found(data, eval_batch):
        told = pisco.Problem(squared, np.ones(3), data, eval_batch=eval_batch)
        return theory.unlike_curvature(told, samples=600)

    chance, real = (found(data, 1000) for data in (alike, unlike))
    assert chance < 0.15 and real == pytest.approx(2 * np.std(scales), rel=0.3)  # H_i = 2·scale·I, but for chance
    assert found(unlike, 30) == pytest.approx(real, rel=1e-9)  # in blocks


def squared(x, batch, key):
    return (batch["a"] @ x - batch["y"]) ** 2


def test_unlikeness_is_the_same_in_blocks(x64):
    """Agents of unequal size and weight, whose samples do not fit into one block."""
    rng = np.random.default_rng(1)
    data = [{"a": rng.normal(size=(m, 3)), "y": rng.normal(size=m)} for m in (30, 41, 17)]

    def found(eval_batch):
        told = pisco.Problem(squared, np.ones(3), data, weights="samples", eval_batch=eval_batch)
        return theory.estimate(told, batches=2)

    np.testing.assert_allclose(found(7).heterogeneity, found(100).heterogeneity, rtol=1e-12)


def test_estimates_of_a_quadratic(x64):
    """Everything is known in closed form there."""
    rng = np.random.default_rng(0)
    n, m, d = 4, 400, 3
    hessians = np.stack([np.diag([1.0, 2.0, 3.0]) * scale for scale in (0.5, 1.0, 1.5, 2.0)])
    centres = rng.normal(size=(n, d))
    samples = centres[:, None] + rng.normal(size=(n, m, d))
    problem = pisco.problems.quadratic(np.repeat(hessians[:, None], m, axis=1), samples)
    found = theory.estimate(problem, batch_size=8, batches=200)
    means = samples.mean(axis=1)
    gradients = -np.einsum("nij,nj->ni", hessians, means)
    noise = np.mean([np.sum(np.var(s @ h, axis=0)) for s, h in zip(samples, hessians, strict=True)])
    mean_hessian = hessians.mean(axis=0)
    lowest = np.linalg.solve(mean_hessian, -gradients.mean(axis=0))
    gap = float(problem.objective(jnp.zeros(d)) - problem.objective(jnp.asarray(lowest)))
    assert found.smoothness == pytest.approx(3.75, rel=1e-3)
    assert found.agent_smoothness == pytest.approx(6.0, rel=1e-2)
    assert found.end_smoothness == pytest.approx(3.75, rel=1e-3)
    assert found.noise == pytest.approx(noise, rel=0.1)
    assert found.heterogeneity == pytest.approx(np.sum((gradients - gradients.mean(0)) ** 2) / n, rel=1e-6)
    assert found.gap == pytest.approx(gap, rel=1e-4)


def test_complexities_of_the_second_table():
    setup = theory.Setup(agents=10, local_steps=1, mixing_rate=0.3)
    alone, helped = theory.complexities(setup, 0.0), theory.complexities(setup, 0.1)
    assert set(alone) == {"scaffold", "lsgt", "periodical-gt", "kgt", "pisco"}
    assert alone["pisco"][0] == 0 and sum(helped["pisco"]) < sum(alone["pisco"])
    assert alone["scaffold"] == helped["scaffold"]
    apart = theory.complexities(setup._replace(mixing_rate=0.0), 0.0)
    assert np.isinf(apart["kgt"][1]) and np.isinf(apart["pisco"][1]) and np.isfinite(apart["scaffold"][0])
    assert np.isfinite(theory.complexities(setup._replace(mixing_rate=0.0), 0.1)["pisco"]).all()


def test_complexities_without_noise_are_those_of_corollary_2():
    """They depend on λ_w and p, grow without bound as λ_w falls, and are never NaN."""
    exact = theory.Setup(agents=10, local_steps=1, mixing_rate=0.3, sigma=0.0, epsilon=0.1)
    rounds = [sum(theory.complexities(exact, p)["pisco"]) for p in (0.0, 0.1, 1.0)]
    assert rounds == pytest.approx([100 / 0.09 + 10, 100 / (1.1 * 0.37**2) + 10, 100 / 2 + 10])
    assert sum(theory.complexities(exact._replace(mixing_rate=0.01), 0.0)["pisco"]) > 100 * rounds[0]
    apart = theory.complexities(exact._replace(mixing_rate=0.0), 0.0)
    assert {name: sum(both) for name, both in apart.items()} == {
        "scaffold": pytest.approx(100),
        **dict.fromkeys(("lsgt", "periodical-gt", "kgt", "pisco"), np.inf),
    }
    assert [exact._replace(sigma=sigma).corollary for sigma in (0.0, 0.1, 0.11)] == [2, 2, 1]


def test_where_pisco_is_below_depends_on_the_noise():
    setup = theory.Setup(agents=10, local_steps=1, mixing_rate=0.318278)
    ((low, high),) = theory.where_below(setup, "lsgt", p=0.0)
    assert 0.1 < low < 0.2 and high == np.inf
    for sigma, below in ((0.9 * low, False), (1.1 * low, True)):
        found = theory.complexities(setup._replace(sigma=sigma), 0.0)
        assert (sum(found["pisco"]) < sum(found["lsgt"])) == below
    ((low, high),) = theory.where_below(setup, "periodical-gt", p=0.0)
    assert 0 < low < 0.05 and high == np.inf
    assert theory.where_below(setup._replace(local_steps=10), "kgt", p=0.0) != [(0.0, np.inf)]


@pytest.mark.parametrize("family", ["ring", "path", "grid", "erdos-renyi"])
def test_step_weights_are_predicted_to_beat_both_others(family):
    options = {"prob": 0.4, "seed": 1} if family == "erdos-renyi" else {}
    shrink = {}
    for rule in ("fdla", "metropolis", "pisco-step"):
        modes = inner_modes(pisco.Network.named(family, 12, weights=rule, **options).weights)
        shrink[rule] = theory.best_step(modes, 1.0, condition=10, local_steps=1)[1]
    assert shrink["pisco-step"] < min(shrink["fdla"], shrink["metropolis"])


def test_a_mode_of_minus_one_is_never_stable_and_tiny_limits_are_found():
    assert largest_stable_step([-1.0, 0.8], 1.0, local_steps=1) == 0
    limit = largest_stable_step([-1 + 1e-5, 0.8], 1.0, local_steps=0)
    assert 0 < limit == pytest.approx((1e-5) ** 2 / 2, rel=0.1)  # (1+μ)²/(2μ²)


def test_many_local_steps_are_summed_in_closed_form():
    options = {"local_lr": np.array([1e-6, 0.1, 0.5]), "comm_lr": 1.0, "one_exchange": False}
    many = round_matrix(0.5, 1.0, local_steps=150, **options)
    lr = options["local_lr"]
    wanted = -0.5 * lr * sum((1 - lr) ** t for t in range(151))
    np.testing.assert_allclose(many[:, 0, 1], wanted, rtol=1e-8)
