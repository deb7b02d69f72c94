"""One test over every registered algorithm: no skips, no exceptions. A new registry row is picked up by itself."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import pisco
from pisco.algorithms import ALGORITHMS, build
from pisco.engines.debug import DebugEngine
from pisco.testing import check_algorithm
from pisco.types import StartMix

from worlds import Quadratics, network_for, thinned, trajectory

USUAL = {"local_lr": 0.02, "local_steps": 2}
NAMES = sorted(ALGORITHMS)


def usual(name, **changes):
    """The method with the usual values of the hyperparameters it has."""
    wanted = {k: v for k, v in (USUAL | changes).items() if k in ALGORITHMS[name].hyperparameters}
    return build(name, **wanted)


def home(name):
    """The network that the method is published on."""
    return network_for(ALGORITHMS[name])


def takes_any_server(name):
    needs = usual(name).needs
    return not (needs.server_every_round or needs.constant_map)


@pytest.mark.parametrize("name", NAMES)
def test_converges_on_heterogeneous_quadratics(name, x64):
    world = Quadratics()
    result = pisco.run(usual(name), world.problem(), home(name), rounds=600, eval_every=100)
    assert result.diverged_at is None
    assert result.history["grad_norm_sq"][-1] < 0.02 * result.history["grad_norm_sq"][0]
    assert result.history["consensus_error"][-1] < 0.15


@pytest.mark.parametrize("name", thinned(NAMES))
def test_same_seed_same_bits_other_seed_other_bits(name):
    world = Quadratics()
    hessians, minimizers = (
        np.stack([world.hessians] * 3, 1),
        world.minimizers[:, None] + np.arange(3)[:, None],
    )
    problem = pisco.problems.quadratic(hessians, minimizers)

    def run(seed):
        return pisco.run(usual(name), problem, home(name), rounds=20, batch_size=1, seed=seed)

    one, two, other = run(5), run(5), run(6)
    for column in one.history:
        np.testing.assert_array_equal(one.history[column], two.history[column])
    np.testing.assert_array_equal(one.params, two.params)
    assert np.any(one.params != other.params)


@pytest.mark.parametrize("name", thinned(NAMES))
def test_numbers_do_not_compile_again(name):
    traces = []
    data = Quadratics()

    def loss(params, batch, key):
        traces.append(1)
        return 0.5 * jnp.sum((params - batch["b"]) ** 2, axis=-1)

    problem = pisco.Problem(loss, jnp.zeros(4), {"b": data.minimizers[:, None].astype(np.float32)})
    networks = [home(name)] * 2
    if takes_any_server(name):
        networks = [networks[0].with_server(pisco.bernoulli(p)) for p in (0.5, 0.1)]
    pisco.run(usual(name), problem, networks[0], rounds=20, seed=0)
    before = len(traces)
    pisco.run(usual(name, local_lr=0.04), problem, networks[1], rounds=20, seed=9)
    assert before > 0 and len(traces) == before


@pytest.mark.parametrize("name", NAMES)
def test_passes_the_checks_that_users_run_on_their_own(name):
    """Agents permuted, one agent alone, any pytree and dtype, costs, one compilation, in plain Python and compiled."""
    report = check_algorithm(usual(name))
    assert report.passed, report


@pytest.mark.parametrize("name", thinned(NAMES))
def test_engines_agree(name, x64):
    world = Quadratics()
    network = home(name).with_server(pisco.bernoulli(0.4)) if takes_any_server(name) else home(name)
    fast = trajectory(usual(name), world.problem(), network, 2)
    slow = trajectory(usual(name), world.problem(), network, 2, engine=DebugEngine())
    for a, b in zip(jax.tree.leaves(fast), jax.tree.leaves(slow), strict=True):
        np.testing.assert_allclose(a, b, rtol=0, atol=1e-12)


@pytest.mark.parametrize("name", thinned(NAMES))
def test_any_server_schedule_that_makes_sense(name, x64):
    """Every schedule either runs to a finite result or is refused with a sentence."""
    world = Quadratics()
    schedules = [pisco.always(), pisco.bernoulli(0.3), pisco.adaptive(2), pisco.per_agent([0.5] * 6)]
    refusals, ran = [], 0
    for server in schedules:
        try:
            network = home(name).with_server(server)
            states = trajectory(usual(name), world.problem(), network, 8)
        except pisco.InputError as refusal:
            refusals.append(str(refusal))
            continue
        assert np.isfinite(states[-1].params).all() and np.any(states[-1].params != states[0].params)
        ran += 1
    assert ran >= 1
    for sentence in refusals:
        assert any(word in sentence for word in ("use ", "combined", "drop")), sentence


TRACKING = [
    n
    for n in NAMES
    if "tracker"
    in type(
        usual(n).init(jnp.ones((2, 1)), jax.random.key(0), lambda p, k: p, StartMix(lambda t: t, lambda t: t))
    )._fields
]


@pytest.mark.parametrize("name", TRACKING)
def test_per_agent_probabilities_for_every_gradient_tracking_method(name, x64):
    if usual(name).needs.steady_links:
        with pytest.raises(pisco.InputError, match="go stale"):
            pisco.run(
                usual(name),
                Quadratics().problem(),
                pisco.Network.ring(6, server=pisco.per_agent([0.4] * 6)),
                rounds=2,
            )
        return
    world = Quadratics()
    network = pisco.Network.ring(6, server=pisco.per_agent(np.linspace(0, 0.8, 6)))
    result = pisco.run(usual(name), world.problem(), network, rounds=3000, eval_every=3000)
    np.testing.assert_allclose(result.params, np.tile(world.optimum, (6, 1)), atol=1e-8)
