"""Every registered algorithm, no skips, no exceptions: a new registry row is picked up by itself.

The checks that users run on their own take all of them; what these cover too is thinned out for the slow tests.
"""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import pisco
from pisco.algorithms import ALGORITHMS, build
from pisco.testing import check_algorithm
from pisco.types import StartMix

from worlds import Quadratics, after, network_for, thinned, trajectory

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


@pytest.mark.parametrize("name", thinned(NAMES, 8))
def test_converges_on_heterogeneous_quadratics(name, x64):
    world = Quadratics()
    result = pisco.run(usual(name), world.problem(), home(name), rounds=600, eval_every=100)
    assert result.diverged_at is None
    # Adam on one's own gradients alone ends where the agents' signs, not their gradients, balance.
    least = 0.25 if name in ("diloco", "noloco") else 0.02
    assert result.history["grad_norm_sq"][-1] < least * result.history["grad_norm_sq"][0]
    assert result.history["consensus_error"][-1] < 0.15


TRACES = []


def tree_loss(params, batch, key):  # one function, so that methods share the programs that measure
    TRACES.append(1)
    out = batch["a"] @ params["layers"][0] + params["layers"][1]
    return jnp.mean((params["scale"] * out - 1) ** 2, axis=-1)


@pytest.mark.parametrize("name", thinned(NAMES, 13))
def test_any_pytree_any_seed_one_program(name):
    """Seeds decide every bit, numbers compile nothing anew, leaves keep their types, and the loss falls."""
    rng = np.random.default_rng(0)
    start = {"layers": [jnp.ones((2, 3)), jnp.zeros(3, jnp.bfloat16)], "scale": jnp.ones(())}
    data = [{"a": rng.normal(size=(m, 2)).astype(np.float32)} for m in (1, 2, 3, 4, 5, 6)]
    problem = pisco.Problem(tree_loss, start, data)

    def run(seed, p=0.5, **changes):
        network = home(name).with_server(pisco.bernoulli(p)) if takes_any_server(name) else home(name)
        return pisco.run(usual(name, **changes), problem, network, rounds=20, batch_size=1, seed=seed)

    one = run(5)
    compiled = len(TRACES)
    two, other, _ = run(5), run(6), run(7, p=0.1, local_lr=0.04)
    assert 0 < compiled == len(TRACES)
    for column in one.history:
        np.testing.assert_array_equal(one.history[column], two.history[column])
    jax.tree.map(np.testing.assert_array_equal, one.params, two.params)
    assert np.any(one.params["layers"][0] != other.params["layers"][0])
    kept = jax.tree.map(lambda leaf: (leaf.shape, leaf.dtype), one.params)
    f32, bf16 = jnp.dtype(jnp.float32), jnp.dtype(jnp.bfloat16)
    assert kept == {"layers": [((6, 2, 3), f32), ((6, 3), bf16)], "scale": ((6,), f32)}
    assert one.history["loss"][-1] < one.history["loss"][0]


REPORTS = {}  # the checks know no network: names that differ in theirs alone share a report


@pytest.mark.parametrize("name", NAMES)
def test_passes_the_checks_that_users_run_on_their_own(name):
    """Agents permuted, one agent alone, any pytree and dtype, costs, one compilation, in plain Python and compiled."""
    rule = usual(name)
    what = rule.factory, str(rule.hyperparameters)
    if what not in REPORTS:
        REPORTS[what] = check_algorithm(rule)
    assert REPORTS[what].passed, REPORTS[what]


@pytest.mark.parametrize("name", thinned(NAMES, 10))
def test_any_schedule_makes_sense(name, x64):
    """Every other schedule either runs to a finite result or is refused with a sentence."""
    problem, refusals, ran = Quadratics().problem(), [], 0
    for server in (pisco.adaptive(2), pisco.per_agent([0.5] * 6)):
        try:
            network = home(name).with_server(server)
            states = trajectory(usual(name), problem, network, 8)
        except pisco.InputError as refusal:
            refusals.append(str(refusal))
            continue
        assert np.isfinite(states[-1].params).all() and np.any(states[-1].params != states[0].params)
        ran += 1
    if not ran:
        states = trajectory(usual(name), problem, home(name).with_server(pisco.always()), 8)
        assert np.isfinite(states[-1].params).all() and np.any(states[-1].params != states[0].params)
    for sentence in refusals:
        assert any(word in sentence for word in ("use ", "combined", "drop")), sentence


def tracks(name):
    """Whether the method's state has a tracker, here or in what it stands around."""
    params, key = jnp.ones((2, 1)), jax.random.key(0)
    mix = StartMix(lambda t: t, lambda t: t)
    state = jax.eval_shape(lambda: usual(name).init(params, key, lambda p, k: p, mix))
    return hasattr(state, "tracker") or hasattr(getattr(state, "inner", None), "tracker")


TRACKING = [name for name in NAMES if tracks(name)]


@pytest.mark.parametrize("name", thinned(TRACKING, 2))
def test_per_agent_probabilities_for_every_gradient_tracking_method(name, x64):
    if usual(name).needs.steady_links:
        with pytest.raises(pisco.InputError, match="go stale"):
            pisco.run(
                usual(name), Quadratics().problem(), pisco.Network.ring(6, server=pisco.per_agent([0.4] * 6)), rounds=2
            )
        return
    world = Quadratics()
    network = pisco.Network.ring(6, server=pisco.per_agent(np.linspace(0, 0.8, 6)))
    found = after(usual(name), world.problem(), network, 3000)
    np.testing.assert_allclose(found, np.tile(world.optimum, (6, 1)), atol=1e-8)
