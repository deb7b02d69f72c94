"""`pisco.testing.check_algorithm` and `pisco check`: every kind of mistake is caught and named."""

import random
from dataclasses import dataclass
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from typer.testing import CliRunner

import pisco
from pisco import testing
from pisco.cli.main import app
from pisco.testing import check_algorithm
from pisco.tree import descend
from pisco.types import Needs, Pair


class State(NamedTuple):
    params: Any


class Tracking(NamedTuple):
    params: Any
    tracker: Any
    grads: Any


def rule(one_round, init=lambda params, key, grad, mix: State(params), needs=None):
    """An algorithm from its round, with a step size."""

    @pisco.algorithm
    def mistaken(*, local_lr: float) -> Pair:
        return Pair(init, lambda *args: one_round(local_lr, *args), needs or Needs())

    return mistaken(local_lr=0.1)


class Inner(NamedTuple):
    """A state with fields that are called as those of others."""

    params: Any
    inner: Any
    tracker: Any = None


@jax.tree_util.register_dataclass
@dataclass
class Plain:
    params: Any


def test_a_field_of_the_state_may_be_called_as_one_likes(tmp_path):
    import optax

    adam = optax.scale_by_adam()

    def one_round(lr, state, key, grad, mix):
        moves, inner = jax.vmap(adam.update)(grad(state.params, key), state.inner)
        return Inner(mix(descend(state.params, lr, moves)), inner)

    mine = rule(one_round, lambda params, key, grad, mix: Inner(params, jax.vmap(adam.init)(params)))
    assert check_algorithm(mine).passed
    problem = pisco.problems.quadratic([[[1.0]], [[2.0]], [[3.0]]], [[0.0], [2.0], [1.0]])
    results = [pisco.run(mine, problem, pisco.Network.ring(3), rounds=3, engine=e) for e in ("scan", "sharded")]
    assert np.allclose(*(result.history["loss"] for result in results))
    assert all("tracking_error" not in result.history for result in results)


def test_a_state_may_be_a_dataclass_with_buffers_too():
    def one_round(lr, state, key, grad, mix):
        return Plain(mix(descend(state.params, lr, grad(state.params, key))))

    def loss(params, batch, key):
        return (batch - params["x"]) ** 2, {"seen": batch.mean()}

    start, data = {"x": jnp.zeros(()), "seen": jnp.zeros(())}, np.arange(6.0).reshape(3, 2)
    problem = pisco.Problem(loss, start, data, parts={"buffers": "seen"})
    mine = rule(one_round, lambda params, key, grad, mix: Plain(params))
    for each in (mine, pisco.algorithms.compressed(inner=mine)):
        result = pisco.run(each, problem, pisco.Network.ring(3, server=pisco.always()), rounds=2, batch_size=2)
        assert np.ptp(result.params["seen"]) > 0  # each agent's own batch, after the last average


def clipped_over_the_stack(lr, state, key, grad, mix):
    """What optax.clip_by_global_norm(1.0) does with a stack of agents."""
    grads = grad(state.params, key)
    norm = jnp.sqrt(sum(jnp.sum(g**2) for g in jax.tree.leaves(grads)))
    return State(mix(descend(state.params, lr / jnp.maximum(norm, 1.0), grads)))


def clipped_far_below_its_size(lr, state, key, grad, mix):
    grads = grad(state.params, key)
    norm = jnp.sqrt(sum(jnp.sum(g**2) for g in jax.tree.leaves(grads)))
    return State(mix(descend(state.params, lr * 1e-3 / norm, grads)))


def first_agent_leads(lr, state, key, grad, mix):
    return State(mix(jax.tree.map(lambda x, g: x - lr * g[:1], state.params, grad(state.params, key))))


def mixes_in_a_loop(lr, state, key, grad, mix):
    step = descend(state.params, lr, grad(state.params, key))
    return State(lax.fori_loop(0, 3, lambda k, tree: mix(tree), step))


def branches_on_a_number(lr, state, key, grad, mix):
    return State(mix(descend(state.params, lr if lr > 0.5 else 0.5, grad(state.params, key))))


def loses_the_dtype(lr, state, key, grad, mix):
    steps = jax.tree.map(lambda x, g: x - jnp.float32(lr) * g, state.params, grad(state.params, key))
    return State(mix(steps))


def draws_by_itself(lr, state, key, grad, mix):
    return State(mix(descend(state.params, lr * random.random(), grad(state.params, key))))


def counts_rounds(lr, state, key, grad, mix):
    return Counting(state.params, state.count + 1)


class Counting(NamedTuple):
    params: Any
    count: Any


def forgets_the_tracker(lr, state, key, grad, mix):
    params = mix(descend(state.params, lr, state.tracker))
    grads = grad(params, key)
    return Tracking(params, mix(jax.tree.map(lambda y, g: y + g, state.tracker, grads)), grads)


def tracking_start(params, key, grad, mix):
    grads = grad(params, key)
    return Tracking(params, grads, grads)


@pytest.mark.parametrize(
    ("broken", "check", "words"),
    [
        (rule(clipped_over_the_stack), "one agent alone", "works on the whole stack"),
        (rule(first_agent_leads), "agents permuted", "depends on an agent's place"),
        (rule(mixes_in_a_loop), "costs counted", "calls `mix` inside scan; call it directly in `round`"),
        (rule(branches_on_a_number), "state", "use jnp.where"),
        (rule(loses_the_dtype), "state", "goes into a round as bfloat16[4, 2, 3] and comes out as float32"),
        (rule(draws_by_itself), "same seed, same bits", "with jax.random and the round's key"),
        (rule(counts_rounds, lambda p, *_: Counting(p, jnp.int32(0))), "state", "lead with the agents"),
        (rule(lambda lr, state, *_: state, lambda params, *_: params), "state", "without `params`"),
        (
            rule(forgets_the_tracker, tracking_start, Needs(doubly_stochastic=True)),
            "mean tracked",
            "mean(tracker) is not mean(grads)",
        ),
        (rule(forgets_the_tracker, tracking_start), "mean tracked", "Needs(doubly_stochastic=True)"),
    ],
)
def test_a_mistake_is_caught_and_named(broken, check, words):
    report = check_algorithm(broken)
    assert not report.passed
    said = {each.name: each.broken for each in report.checks}
    assert words in said[check], report
    assert "\n" not in said[check]


def test_steps_are_compared_by_their_own_size():
    assert "works on the whole stack" in testing._alone(testing._Trial(rule(clipped_far_below_its_size)))


@pytest.mark.parametrize(
    ("broken", "words"),
    [
        (rule(mixes_in_a_loop), "mistaken calls mix in a loop or a branch, where what is sent cannot be counted"),
        (rule(lambda lr, state, *_: state, lambda params, *_: {"x": params}), "returns a dict without `params`"),
        (rule(lambda lr, state, *_: State(state.params > 0)), "of mistaken makes bool.* of the state's .params, which"),
    ],
)
def test_a_run_refuses_what_it_cannot_run_or_count(broken, words):
    problem = pisco.problems.quadratic(jnp.ones((3, 1, 1)), jnp.zeros((3, 1)))
    with pytest.raises(pisco.InputError, match=words):
        pisco.run(broken, problem, pisco.Network.ring(3), rounds=2)


def test_a_factory_that_returns_no_pair_is_refused():
    @pisco.algorithm
    def forgetful(*, local_lr: float) -> Pair: ...  # pyright: ignore[reportReturnType]

    with pytest.raises(pisco.InputError, match=r"forgetful returns a NoneType, expected pisco\.Pair"):
        forgetful(local_lr=0.1)


def test_numbers_that_are_not_finite_prove_nothing():
    rule = pisco.algorithms.dsgd(local_lr=1e30)
    assert "`params` are not finite after 2 rounds" in str(check_algorithm(rule))


def test_a_number_that_compiles_again_is_named():
    @pisco.algorithm
    def odd(*, local_lr: float | None = None) -> Pair:
        return Pair(lambda params, *_: State(params), lambda state, key, grad, mix: State(mix(state.params)))

    said = {each.name: each.broken for each in check_algorithm(odd(local_lr=0.1)).checks}
    assert said["compiled once"].startswith("local_lr is a number whose type is not float")


def test_a_static_number_is_said_explicitly():
    @pisco.algorithm(static=("power",))
    def powered(*, local_lr: float, power: float) -> Pair:
        def one_round(state, key, grad, mix):
            scale = 2.0 if power > 1 else 1.0  # shapes the program
            return State(mix(descend(state.params, scale * local_lr, grad(state.params, key))))

        return Pair(lambda params, *_: State(params), one_round)

    made = powered(local_lr=0.1, power=2.0)
    assert jax.tree.leaves(made) == [0.1] and made.traced == ("local_lr",)
    assert check_algorithm(made).passed, check_algorithm(made)


def test_a_hyperparameter_without_a_type_is_refused():
    @pisco.algorithm
    def untyped(*, lr) -> Pair: ...

    with pytest.raises(pisco.InputError, match="gives lr no type; write lr: float"):
        untyped(lr=0.1)


def test_what_is_no_algorithm_is_refused():
    with pytest.raises(pisco.InputError, match="expected an algorithm, as in"):
        check_algorithm(pisco.algorithms.dsgd)


MINE = """
import jax, jax.numpy as jnp
from typing import Any, NamedTuple
import pisco
from pisco.tree import descend

class State(NamedTuple):
    params: Any

@pisco.algorithm
def fine(*, local_lr: float) -> pisco.Pair:
    def one_round(state, key, grad, mix):
        return State(mix(descend(state.params, local_lr, grad(state.params, key))))
    return pisco.Pair(lambda params, key, grad, mix: State(params), one_round)

@pisco.algorithm
def wrong(*, local_lr: float) -> pisco.Pair:
    def one_round(state, key, grad, mix):
        grads = grad(state.params, key)
        norm = sum(jnp.sum(g**2) for g in jax.tree.leaves(grads)) ** 0.5
        return State(mix(descend(state.params, local_lr / jnp.maximum(norm, 1.0), grads)))
    return pisco.Pair(lambda params, key, grad, mix: State(params), one_round)
"""


def test_the_command(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "mine.py").write_text(MINE)

    def check(*words):
        return CliRunner().invoke(app, ["check", *words], catch_exceptions=False)

    fine = check("mine.py:fine", "--set", "local_lr=0.1")
    assert fine.exit_code == 0 and "all checks pass" in fine.output
    wrong = check("mine.py:wrong", "--json")
    assert wrong.exit_code == 1 and "works on the whole stack" in wrong.output
    for words, sentence in (
        (["mine.py:wong"], "defines no algorithm 'wong'; did you mean 'wrong'"),
        (["mine.py:fine", "--set", "lr=1"], "has no option 'lr'"),
        (["mine.py:fine", "--set", "local_lr=x"], "local_lr is 'x', expected a number"),
        (["nowhere.py:fine"], "there is no file"),
    ):
        refused = check(*words)
        assert refused.exit_code == 2 and sentence in refused.output.replace("\n", " "), refused.output
