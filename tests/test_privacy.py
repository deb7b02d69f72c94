"""Private gradients: clipped sample by sample, noised, counted; the same in every engine."""

import json
import math
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import pisco
from pisco.costs import message_sizes
from pisco.engines.job import seed_key, streams
from pisco.experiments import load
from pisco.privacy import accounting
from pisco.privacy.gradients import NOISE_STREAM
from pisco.problems import gradient as seam
from pisco.problems.sampling import batch_indices

import twins

SIZES = (9, 5, 7)


def samples(sizes=SIZES, seed=0):
    rng = np.random.default_rng(seed)
    return [
        {"a": rng.normal(size=(m, 4)) * rng.uniform(0.1, 3, (m, 1)), "y": rng.choice([-1.0, 1.0], m)} for m in sizes
    ]


def loss(x, batch, key):
    return jnp.logaddexp(0, -batch["y"] * (batch["a"] @ x)) + 0.05 * x @ x


def own_gradient(x, sample):
    """By hand: ∇ log(1 + e^(−y·aᵀx)) + 0.1x."""
    y, a = sample["y"], sample["a"]
    return -y * a / (1 + np.exp(y * (a @ x))) + 0.1 * x


def private(privacy, sizes=SIZES, **more):
    return pisco.Problem(loss, np.zeros(4), samples(sizes), privacy=privacy, **more)


@pytest.mark.parametrize(
    ("batch_size", "smooth", "block"),
    [
        (3, False, 64 << 20),
        (None, True, 2 * 32),
        pytest.param(None, False, 64 << 20, marks=pytest.mark.slow),
        pytest.param(3, True, 2 * 32, marks=pytest.mark.slow),
    ],
)
def test_gradients_are_those_of_a_plain_loop(x64, monkeypatch, batch_size, smooth, block):
    monkeypatch.setattr(seam, "SAMPLES_BYTES", block)  # the second: two samples at a time
    clip, noise, weights = (0.5, 1.0, 0.2), (0.7, 0.0, 3.0), [0.5, 0.2, 0.3]
    problem = private(pisco.Privacy(clip=clip, noise=noise, smooth=smooth), weights=weights)
    x = np.random.default_rng(3).normal(size=(3, 4))
    key = streams(seed_key(5)).batch_key(7)
    found = np.asarray(jax.jit(seam.gradient(problem, batch_size))(jnp.asarray(x), key))
    for agent, data in enumerate(samples()):
        rows = range(SIZES[agent])
        if batch_size is not None:
            rows = np.asarray(jax.jit(batch_indices, static_argnums=3)(key, agent, SIZES[agent], batch_size))
        own = [{name: leaf[row] for name, leaf in data.items()} for row in rows]
        noise_key = jax.random.fold_in(jax.random.fold_in(key, agent), NOISE_STREAM)
        normals = np.asarray(jax.random.normal(jax.random.split(noise_key, 1)[0], (4,)))
        expected = twins.private_gradient(
            own, lambda s, x=x[agent]: own_gradient(x, s), clip[agent], noise[agent], normals, smooth
        )
        np.testing.assert_allclose(found[agent], 3 * weights[agent] * expected, rtol=0, atol=1e-14)


@partial(jax.jit, static_argnames="batch_size")
def compiled(problem, x, key, batch_size):
    return seam.gradient(problem, batch_size)(x, key)


def slopes(problem, x, key, batch_size=None):
    """Every agent's gradient; other data of the same shapes compile nothing anew."""
    return jax.tree.map(np.asarray, compiled(problem, x, key, batch_size))


def test_one_sample_moves_a_gradient_by_twice_the_clip_at_most(x64):
    privacy = pisco.Privacy(clip=0.5, noise=1.0)
    key, x = jax.random.key(1), jnp.ones((1, 4))
    plain = private(privacy, sizes=(6,))
    wild = samples((6,))
    for value in (1e6, 1e200):  # the square of the second is not finite
        wild[0]["a"][2] = value
        other = pisco.Problem(loss, np.zeros(4), wild, privacy=privacy)
        moved = 6 * (slopes(other, x, key) - slopes(plain, x, key))
        assert 0.1 < np.linalg.norm(moved) <= 1.0 + 1e-9


def test_rounding_does_not_move_a_sum_by_more(monkeypatch):
    """In bfloat16 the sums of 259 and of 257 ones are 260 and 256; noise is added before anything is rounded."""
    sums, add = [], seam.with_noise

    def noting(total, deviation, key):
        jax.debug.callback(lambda total: sums.append(float(total[0])), total)
        return add(total, deviation, key)

    monkeypatch.setattr(seam, "with_noise", noting)
    for own in (1, -1):
        data = [{"a": jnp.ones(259, jnp.bfloat16).at[0].set(own)}]
        privacy = pisco.Privacy(clip=1.0, noise=1.0)
        problem = pisco.Problem(
            lambda x, batch, key: batch["a"] * x[0], np.zeros(1, jnp.bfloat16), data, privacy=privacy
        )
        assert seam.gradient(problem, None)(jnp.zeros((1, 1), jnp.bfloat16), jax.random.key(0)).dtype == jnp.bfloat16
    jax.effects_barrier()
    assert sums == [259, 257]


def test_a_clip_that_never_binds_without_noise_changes_nothing_but_rounding(x64):
    x, key = jnp.asarray(np.random.default_rng(0).normal(size=(3, 4))), jax.random.key(2)
    for batch_size in (None, 3):
        free = slopes(private(pisco.Privacy(clip=1e9, noise=0)), x, key, batch_size)
        np.testing.assert_allclose(free, slopes(private(None), x, key, batch_size), atol=1e-14)


def test_parts_that_stay_with_an_agent_are_clipped_together_with_those_it_sends(x64):
    """And what is frozen has no gradient: it neither takes room under the clip nor gets noise."""

    def parted(model, batch, key):
        return model["scale"] * (batch["a"] @ model["w"]) * 10 + model["own"] * batch["y"] * 10

    start, parts = (
        {"w": np.zeros(4), "own": np.zeros(()), "scale": np.full((), 2.0)},
        {"local": "own", "frozen": "scale"},
    )
    data, key = samples((1,)), jax.random.key(0)
    free, clipped, noisy = (
        pisco.Problem(parted, start, data, parts=parts, privacy=privacy)
        for privacy in (None, pisco.Privacy(clip=0.5, noise=0), pisco.Privacy(clip=0.5, noise=2.0))
    )
    params = jax.tree.map(lambda leaf: jnp.asarray(leaf)[None], free.init(key))
    found, short, hidden = (slopes(each, params, key) for each in (free, clipped, noisy))
    whole, leaves = np.concatenate([np.ravel(leaf) for leaf in jax.tree.leaves(found)]), jax.tree.leaves(short)
    assert len(whole) == 5 and np.linalg.norm(whole) > 0.5
    np.testing.assert_allclose(np.concatenate([np.ravel(leaf) for leaf in leaves]), whole * 0.5 / np.linalg.norm(whole))
    assert all(np.abs(a - b).min() > 1e-3 for a, b in zip(jax.tree.leaves(hidden), leaves, strict=True))
    rule, network = pisco.algorithms.dsgd(local_lr=0.1), pisco.Network.complete(1, server=pisco.always())
    ran = pisco.run(rule, noisy, network, rounds=2, eval_every=2)
    assert ran.params["scale"] is None and np.abs(ran.params["own"]).min() > 1e-3  # frozen: no agent holds it


RULE = pisco.algorithms.pisco(local_lr=0.1, local_steps=1)
RING = pisco.Network.ring(3, server=pisco.bernoulli(0.3))


@pytest.mark.slow
def test_engines_agree_and_runs_replay(x64):
    problem = private(pisco.Privacy(clip=0.5, noise=1.0, delta=1e-3))
    options = {"rounds": 3, "batch_size": 2, "eval_every": 3}
    scan = pisco.run(RULE, problem, RING, **options)
    again = pisco.run(RULE, problem, RING, **options)
    np.testing.assert_array_equal(scan.params, again.params)
    other = pisco.run(RULE, problem, RING, engine="debug", **options)  # tests/sharded_cases.py has the third
    np.testing.assert_allclose(other.params, scan.params, atol=1e-13)
    np.testing.assert_array_equal(other.history["epsilon"], scan.history["epsilon"])
    clipped = pisco.run(RULE, private(pisco.Privacy(clip=0.5, noise=0)), RING, **options)
    assert np.abs(clipped.params - scan.params).max() > 0.01
    assert "epsilon" not in clipped.history


@pytest.fixture
def coarse(monkeypatch):
    """Privacy loss on a grid of few points: ε a little too large, in whatever is compared."""
    accounting._once.cache_clear()
    monkeypatch.setattr(accounting, "GRID", 500)
    yield
    accounting._once.cache_clear()


TWO_SIZES = (9, 5, 9)


def test_every_gradient_of_a_run_is_counted(coarse):
    problem = private(pisco.Privacy(clip=0.5, noise=4.0, delta=1e-3), TWO_SIZES)
    result = pisco.run(RULE, problem, RING, rounds=4, batch_size=2, eval_every=2)
    # Before the first round one gradient, in every round one local step and one at the communication.
    expected = [accounting.spent(4.0, 5, 2, count, 1e-3) for count in (1, 5, 9)]
    np.testing.assert_allclose(result.history["epsilon"], expected, rtol=1e-12)


def test_the_absent_spend_nothing(coarse):
    log = np.ones((4, 3), bool)
    log[1:, 1:] = False
    log[2:, 0] = False
    network = pisco.Network.ring(3, presence=pisco.present(lambda key, k: jnp.asarray(log)[k]))
    problem = private(pisco.Privacy(clip=0.5, noise=4.0, delta=1e-3), sizes=(9, 9, 9))
    result = pisco.run(RULE, problem, network, rounds=4, batch_size=2, eval_every=2)
    expected = [accounting.spent(4.0, 9, 2, count, 1e-3) for count in (1, 5, 5)]
    np.testing.assert_allclose(result.history["epsilon"], expected, rtol=1e-12)


@pytest.mark.parametrize("batch_size", [None, pytest.param(2, marks=pytest.mark.slow)])
def test_an_epsilon_alone_finds_the_noise_and_with_noise_ends_the_run(coarse, batch_size):
    wish, how = {"clip": 0.5, "epsilon": 3.0, "delta": 1e-3}, {"batch_size": batch_size, "eval_every": 5}
    found = pisco.run(RULE, private(pisco.Privacy(**wish), TWO_SIZES), RING, rounds=5, **how)
    assert 2.98 < found.history["epsilon"][-1] <= 3.0
    noise = np.max(found.settings["privacy"]["noise"])  # agent 1's: it has the fewest samples
    expected = accounting.spent(noise, 5, batch_size, 11, 1e-3)  # a gradient at the start and two in every round
    np.testing.assert_allclose(found.history["epsilon"][-1], expected, rtol=1e-12)
    # With that noise given, and more to the others, a longer run ends where the budget of agent 1 does.
    problem = private(pisco.Privacy(**wish, noise=(2 * noise, noise, 2 * noise)), TWO_SIZES)
    with pytest.warns(UserWarning, match="epsilon = 3 of agent 1 is spent after round 5, so this is the last"):
        ended = pisco.run(RULE, problem, RING, rounds=50, **how)
    assert ended.rounds == 5 and not ended.interrupted
    with pytest.raises(pisco.InputError, match="the first round spends more than epsilon = 0.1"):
        pisco.run(RULE, private(pisco.Privacy(clip=1, noise=1, epsilon=0.1)), RING, rounds=5, batch_size=batch_size)


def test_what_cannot_be_private_is_refused():
    noisy = private(pisco.Privacy(clip=0.5, noise=1.0))
    with pytest.raises(pisco.InputError, match="gt_hsgd takes two gradients of one batch"):
        pisco.run(pisco.algorithms.build("gt-hsgd", local_lr=0.1, momentum=0.1), noisy, RING, rounds=2, batch_size=2)
    with pytest.raises(pisco.InputError, match="looks at the agents' losses"):
        pisco.run(RULE, noisy, pisco.Network.ring(3, server=pisco.adaptive(2)), rounds=2, batch_size=2)
    with pytest.raises(pisco.InputError, match="delta is 0.3, and agent 0 has 9 samples"):
        pisco.run(RULE, private(pisco.Privacy(clip=1, noise=1, delta=0.3)), RING, rounds=2)
    with pytest.raises(pisco.InputError, match="clip has 2 numbers, expected one for each of the 3 agents"):
        private(pisco.Privacy(clip=[1, 2], noise=1))
    for wrong, words in (
        ({"clip": 1}, "needs clip, and noise or epsilon"),
        ({"clip": 0, "noise": 1}, "clip is 0, expected a number greater than 0"),
        ({"clip": 1, "noise": -1}, "noise is -1, expected a number at least 0"),
        ({"clip": 1, "noise": 0, "epsilon": 3}, "without noise no epsilon can be kept"),
        ({"clip": "1", "noise": 1}, "clip is '1', expected a number"),
        ({"clip": [1, "a"], "noise": 1}, "clip is 'a', expected a number"),
    ):
        with pytest.raises(pisco.InputError, match=words):
            pisco.Privacy(**wrong)
    with pytest.raises(pisco.InputError, match="expected pisco.Privacy"):
        private({"clip": 1})


@pytest.mark.parametrize("array", [np.array, jnp.array])
def test_numbers_of_every_agent_may_be_an_array(array):
    assert pisco.Privacy(clip=array([1.0, 2.0]), noise=array(1.0)) == pisco.Privacy(clip=[1.0, 2.0], noise=1.0)
    assert json.dumps(pisco.Privacy(clip=np.float32(1), noise=1.0).facts())  # as a site's state holds them


def test_all_methods_but_one_give_every_gradient_a_key_of_its_own():
    shared = []
    for name in pisco.algorithms.registry.ALGORITHMS.rows:
        method = pisco.algorithms.registry.ALGORITHMS[name]
        wants = {"local_lr": 0.1, "local_steps": 2, "momentum": 0.1, "server_prob": 0.3, "prox": 0.1}
        known = {key: value for key, value in wants.items() if key in method.hyperparameters}
        rule = pisco.algorithms.build(name, **known)
        if message_sizes(rule, jnp.zeros((3, 4)), 3).shares_key:
            shared.append(name)
    assert shared == ["gt-hsgd"]


def test_a_loop_that_uses_one_key_again_is_seen():
    @pisco.algorithm
    def careless(*, local_lr: float) -> pisco.Pair:
        inner = pisco.algorithms.dsgd(local_lr=local_lr)

        def one_round(state, key, grad, mix):
            def body(x, _):
                return x - local_lr * grad(x, key), None

            return state._replace(params=mix(jax.lax.scan(body, state.params, None, length=3)[0]))

        return pisco.Pair(inner.init, one_round, inner.needs)

    assert message_sizes(careless(local_lr=0.1), jnp.zeros((3, 4)), 3).shares_key


# What ε is


@pytest.mark.parametrize(
    ("noise", "times", "delta"), [(20.0, 400, 1e-5), pytest.param(3.0, 10, 1e-6, marks=pytest.mark.slow)]
)
def test_full_batches_spend_what_the_library_says(noise, times, delta):
    import dp_accounting as dp
    from dp_accounting import pld

    library = pld.PLDAccountant(dp.NeighboringRelation.REPLACE_ONE)
    library.compose(dp.SelfComposedDpEvent(dp.GaussianDpEvent(noise), times))
    expected = library.get_epsilon(delta)
    np.testing.assert_allclose(accounting.spent(noise, 50, None, times, delta), expected, rtol=0.01)
    # A batch of the only sample is the same event, and goes through the distribution of losses.
    np.testing.assert_allclose(accounting.spent(noise, 1, 1, times, delta), expected, rtol=0.01)


@pytest.mark.parametrize(
    ("noise", "n", "b", "times", "delta"),
    [(8.0, 400, 20, 60, 1e-5), pytest.param(2.0, 200, 1, 100, 1e-5, marks=pytest.mark.slow)],
)
def test_batches_spend_a_little_more_than_the_librarys_own_mixture(noise, n, b, times, delta):
    """The mixture is what one pair of data sets attains, so a lower bound; one draw is the sampled Gaussian."""
    from dp_accounting.pld import privacy_loss_distribution as library
    from scipy.stats import binom

    k = np.arange(7)
    chances = binom.pmf(k, b, 1 / n)
    k, chances = 2.0 * k[chances > 0], chances[chances > 0] / chances.sum()
    once = library.from_mixture_gaussian_mechanism(noise, k, chances, value_discretization_interval=2e-3)
    least = once.self_compose(times).get_epsilon_for_delta(delta)
    found = accounting.spent(noise, n, b, times, delta)
    assert least <= found * 1.01 and found <= 1.12 * least, (least, found)


def test_one_evaluation_has_the_divergence_that_it_says():
    """By brute force on a line: the sums of all batches of two from three samples, one of them replaced."""
    from itertools import product

    from scipy.stats import norm

    noise, grid = 1.5, np.linspace(-25, 25, 40_001)
    bound = accounting._Profile(noise, 3, 2, 1e-12)
    for others in ((-1.0, -1.0), (1.0, 1.0), (0.0, 0.5), (-1.0, 1.0)):
        for here, there in ((1.0, -1.0), (-1.0, 1.0), (1.0, 0.0)):

            def density(own, others=others):
                return np.mean([norm.pdf(grid, a + b, noise) for a, b in product((own, *others), repeat=2)], axis=0)

            p, q = density(here), density(there)
            for epsilon in (0.0, 0.3, 1.0, 2.0):
                truth = np.trapezoid(np.maximum(p - np.exp(epsilon) * q, 0), grid)
                assert truth <= bound.at(np.asarray([epsilon]))[0] + 1e-9


@pytest.mark.slow
def test_noise_for_an_epsilon_and_curves_of_it():
    noise = accounting.noise_for(2.0, 500, 20, 300, 1e-5)
    assert 1.99 < accounting.spent(noise, 500, 20, 300, 1e-5) <= 2.0
    counts = np.arange(0, 301, 3)
    found = accounting.curve(noise, 500, 20, counts, 1e-5)
    assert found[0] == 0 and (np.diff(found) > 0).all()
    for at in (1, 17, 60, 100):
        np.testing.assert_allclose(found[at], accounting.spent(noise, 500, 20, int(counts[at]), 1e-5), rtol=3e-3)
    assert accounting.spent(0.0, 500, 20, 1, 1e-5) == math.inf


# From a file


def test_a_table_makes_a_run_private(coarse):
    settings = ["run.rounds=6", "run.eval_every=3", "network.agents=4", "privacy.clip=1.0", "privacy.noise=2.0"]
    config = load("quick", settings)
    result = config.execute()
    assert result.settings["privacy"] == {"clip": 1.0, "noise": 2.0, "delta": 1e-5, "smooth": False}
    assert (np.diff(result.history["epsilon"]) > 0).all()
    assert load("quick", settings).to_toml() == config.to_toml() and "[privacy]" in config.to_toml()
    with pytest.raises(pisco.InputError, match="clip is -1"):
        load("quick", ["privacy.clip=-1", "privacy.noise=1"])
    with pytest.raises(pisco.InputError, match="lacks privacy.clip"):
        load("quick", ["privacy.noise=1"])
    with pytest.raises(pisco.InputError, match="spend privacy that is not counted"):
        load("quick", [*settings, "algorithm.local_lr=auto"]).execute()


# What tracking does with noise


def test_a_tracker_carries_the_noise_that_the_eigenvalues_say(x64):
    """Noise alone: mode λ of W holds 2λ²/(1 + λ) times a gradient's variance, the mean just that of the newest one."""
    agents, size = 8, 4000
    network = pisco.Network.ring(agents, weights="metropolis")
    noise = pisco.Privacy(clip=1.0, noise=1.0, delta=0.1)
    data = np.ones((agents, 1))
    problem = pisco.Problem(lambda x, batch, key: 0.0 * x[0] * batch, np.zeros(size), data, privacy=noise)
    rule = pisco.algorithms.pisco(local_lr=0.1, local_steps=0)
    result = pisco.run(rule, problem, network, rounds=40, eval_every=40)
    modes = np.linalg.eigvalsh(network.weights.toarray())[:-1]
    expected = size * np.sum(2 * modes**2 / (1 + modes)) / agents
    np.testing.assert_allclose(result.history["tracking_error"][-1], expected, rtol=0.05)
