"""Sizes that cannot fit are refused before anything is built, and measuring costs no more than training."""

import time

import jax.numpy as jnp
import numpy as np
import pytest
from typer.testing import CliRunner

import pisco
from pisco import memory
from pisco.cli.main import app
from pisco.engines import sizes
from pisco.engines.sizes import usual_eval_every
from pisco.errors import InputError
from pisco.federation.plan import Federation
from pisco.networks import graphs

RULE = pisco.algorithms.dsgd(local_lr=0.1)
WORLD = pisco.problems.quadratic(np.ones((4, 1, 1)), np.arange(4.0)[:, None])


def at_once(call, sentence):
    """The call is refused by that sentence, and so fast that nothing large can have been built."""
    began = time.monotonic()
    with pytest.raises(InputError, match=sentence):
        call()
    assert time.monotonic() - began < 5


@pytest.mark.parametrize(
    "call",
    [
        lambda: pisco.Network.ring(10**10),
        lambda: pisco.Network.complete(10**7),
        lambda: pisco.Network.torus(10**5, 10**5),
        lambda: pisco.Network.star(10**12),
        lambda: graphs.clusters(10**9, 100, inner="ring"),
        lambda: graphs.exponential(10**10),
        lambda: graphs.small_world(10**10),
        lambda: graphs.random_regular(10**10),
        lambda: pisco.Network.erdos_renyi(10**7, 0.5),
    ],
)
def test_graphs_that_cannot_fit(call):
    at_once(call, r"a network of [\d,]+ agents and [\d,]+ edges needs about [\d,]+ GB of memory and there are \d")


def test_a_random_graph_draws_for_so_many_pairs_and_no_more():
    at_once(lambda: pisco.Network.erdos_renyi(10**6, 1e-9), "n is 1000000, expected a number at most 300000")


def run(**options):
    return pisco.run(RULE, WORLD, pisco.Network.ring(4), **({"rounds": 10} | options))


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({"rounds": 99999999999}, r"rounds is 99999999999, expected a number at most 2147483647"),
        ({"rounds": 2**31 - 1, "seed": range(99)}, "a history of 2,147,483,647 measured rounds needs about .* say"),
        ({"seed": range(10**12)}, "1,000,000,000,000 seeds are too many for one call; give at most 100,000"),
        ({"batch_size": 10**12}, "batch_size is 1000000000000, but an agent has only 1 sample"),
        (
            {"rounds": 2**31 - 1, "eval_every": 2**31 - 1, "chunk_rounds": 10**12},
            r"2,147,483,647 rounds in one go .* make chunk_rounds at most 268,435,455",
        ),
    ],
)
def test_runs_that_cannot_fit(options, sentence):
    at_once(lambda: run(**options), sentence)


@pytest.mark.parametrize("steps", [10**10, 10**13])
def test_local_steps_that_cannot_fit(steps):
    rule = pisco.algorithms.pisco(local_lr=0.1, local_steps=steps)
    sentence = r"a round of [\d,]+ gradients needs about [\d,]+ GB of memory .* take fewer local steps"
    at_once(lambda: pisco.run(rule, WORLD, pisco.Network.ring(4), rounds=1, eval_every=1), sentence)


def test_a_model_that_cannot_fit_is_refused_from_its_shapes():
    def start(key):
        return {"w": jnp.zeros((10**7, 10**5))}

    problem = pisco.Problem(lambda p, b, k: b * p["w"][0, 0], start, np.ones((4, 3), np.float32))
    sentence = r"2 × 4 agents with 4,000,000,000,000 bytes of parameters each needs about 48,000 GB"
    at_once(lambda: pisco.run(RULE, problem, pisco.Network.ring(4), rounds=1, seed=[0, 1]), sentence)


def test_a_chunk_that_cannot_fit_and_a_long_one_that_can(monkeypatch):
    assert run(chunk_rounds=10**15).rounds == 10
    monkeypatch.setattr(sizes, "host_memory", lambda: 1e6)
    sentence = "a chunk of 300,000 measured rounds needs about .*; make chunk_rounds smaller"
    at_once(lambda: run(rounds=300_000, eval_every=1, chunk_rounds=300_000), sentence)


def test_the_memory_is_that_of_the_container(tmp_path, monkeypatch):
    (tmp_path / "memory.max").write_text("123456\n")
    assert memory.host_memory() > 1e8
    monkeypatch.setattr(memory, "_LIMITS", (str(tmp_path / "none"), str(tmp_path / "memory.max")))
    assert memory.host_memory() == 123456
    (tmp_path / "memory.max").write_text("max\n")
    assert memory.host_memory() > 1e8


@pytest.mark.parametrize(
    ("settings", "sentence"),
    [
        (["network.agents=99999999"], "99999999 agents cannot share 32561 samples"),
        (["run.rounds=99999999999"], "run.rounds is 99999999999, expected at most 2147483647"),
        (["run.rounds=2147483647", "run.eval_every=1"], "a history of 2,147,483,647 measured rounds"),
        (["run.batch_size=99999999999"], "batch_size is 99999999999, but an agent has only"),
        (["run.seeds=99999999"], "run.seeds is 99999999, expected at most 100,000 seeds"),
        (["network.gossip_steps=99999999"], "gossip_steps is 99999999, expected"),
    ],
)
def test_as_a_command(settings, sentence, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    words = [word for setting in settings for word in ("--set", setting)]
    done = CliRunner().invoke(app, ["run", "a9a", "--no-check", "--out", "x", *words])
    assert done.exit_code == 2 and sentence in done.stderr, done.output
    assert "Traceback" not in done.stderr and not (tmp_path / "x").exists()


# ---------------------------------------------------------------------------------- how often to measure


def regression(samples, test=0, agents=4, **options):
    some = np.ones((agents, samples, 2), np.float32)
    metrics = {"error": lambda p, b: (b @ p - 1) ** 2}
    tests = {"test": np.ones((test, 2), np.float32), "metrics": metrics} if test else {}
    return pisco.Problem(lambda p, b, k: (b @ p - 1) ** 2, jnp.zeros(2), some, **tests, **options)


PISCO = pisco.algorithms.pisco(local_lr=0.1, local_steps=4)  # five gradients a round
COMPRESSED = pisco.algorithms.build("pisco-compressed", local_lr=0.1, local_steps=2)


@pytest.mark.parametrize(
    ("rule", "problem", "batch", "every"),
    [
        (RULE, regression(50), None, 1),
        (RULE, regression(50, test=1), None, 2),
        (RULE, regression(50), 1, 50),
        (RULE, regression(51), 1, 100),
        (PISCO, regression(50), 1, 10),
        (PISCO, regression(50, eval_samples=5), 1, 1),
        (PISCO, regression(100, test=400), 10, 5),  # 800 / (4 · 10 · 5) = 4
        (COMPRESSED, regression(30), 1, 10),  # three gradients
    ],
)
def test_measuring_looks_at_no_more_samples_than_training(rule, problem, batch, every):
    network = pisco.Network.ring(4)
    assert usual_eval_every(rule, problem, network, batch) == every


def test_the_default_follows_the_rule_and_does_not_depend_on_the_rounds(tmp_path):
    problem, network = regression(50), pisco.Network.ring(4)
    result = pisco.run(RULE, problem, network, rounds=120, batch_size=1, checkpoint=tmp_path)
    assert result.history["round"].tolist() == [0, 50, 100, 120]
    assert result.settings["run"]["eval_every"] == 50
    longer = pisco.run(RULE, problem, network, rounds=160, batch_size=1, checkpoint=tmp_path, resume=True)
    assert longer.history["round"].tolist() == [0, 50, 100, 150, 160]
    often = pisco.run(RULE, problem, network, rounds=120, batch_size=1, eval_every=1)
    np.testing.assert_array_equal(often.params, result.params)


def test_every_published_method_says_how_many_gradients_it_takes():
    from pisco.algorithms.registry import ALGORITHMS
    from pisco.costs import message_sizes
    from pisco.engines.job import Job, Run, carry_shapes
    from pisco.experiments import load, presets

    found = {}
    for name in presets():
        config = load(name)
        rule, network = config.algorithm.build(), config.network.build()
        problem = regression(3, agents=network.num_agents)
        job = Job(problem, network, (Run(rule, network.server, 0),), None)
        found[config.algorithm.name] = message_sizes(rule, carry_shapes(job).state.params, network.num_agents).gradients
    assert set(found) <= set(ALGORITHMS) and len(found) > 15
    assert all(count >= 1 for count in found.values()) and found["pisco"] == 2 and found["dsgd"] == 1


def test_sweeps_and_plans_measure_as_seldom_as_runs():
    problem = pisco.problems.logistic(pisco.data.load("a9a"), agents=10)
    network, how = pisco.Network.ring(10), {"rounds": 30, "batch_size": 256}
    (swept,) = pisco.sweep([(RULE, network.server)], problem, network, **how)
    assert swept.history["round"].tolist() == [pisco.run(RULE, problem, network, **how).history["round"].tolist()]
    plan = Federation.create("c", rounds=500, algorithm={"name": "dsgd", "local_lr": 0.1})
    assert plan.eval_every == 5
