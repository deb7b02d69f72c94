"""`pisco attack`: finds samples and members in a run without protection, and fails with it."""

import json

import numpy as np
import pytest
from typer.testing import CliRunner

from pisco.attacks import inversion, membership
from pisco.attacks.observed import observe
from pisco.cli.main import app
from pisco.experiments import load
from pisco.experiments.folders import CONFIG_FILE

PROTECTED = ["privacy.clip=0.5", "privacy.noise=2.0", "privacy.delta=1e-3"]


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    """A network on a few samples with labels at random, which it learns by heart; plain and private."""
    home, random = tmp_path_factory.mktemp("runs"), np.random.default_rng(0)
    arrays = {"features": random.uniform(size=(60, 16)), "test_features": random.uniform(size=(200, 16))}
    arrays |= {"labels": np.arange(60) % 3, "test_labels": random.integers(0, 3, 200)}
    np.savez(home / "few.npz", **arrays)
    settings = ["problem.name=mlp", f"problem.dataset={home / 'few.npz'}", "problem.partition=iid", "problem.hidden=24"]
    settings += ["network.agents=2", "network.graph=complete", "run.batch_size=6", "run.rounds=600"]
    settings += ["run.chunk_rounds=600", "run.eval_every=600", "algorithm.local_lr=1.5", "algorithm.local_steps=1"]
    for name, more in (("plain", []), ("private", PROTECTED)):
        config = load("mnist", [*settings, *more])
        config.execute().save(home / name)
        (home / name / CONFIG_FILE).write_text(config.to_toml())
    return home


def test_a_gradient_of_one_sample_is_the_sample_unless_noise_hides_it(runs):
    found = inversion.attack(observe(runs / "plain", batch_size=1))
    assert found.recovered == 1 and found.errors[0] < 1e-3
    hidden = inversion.attack(observe(runs / "private", batch_size=1))
    assert hidden.recovered == 0 and hidden.errors[0] > 0.3


def test_logistic_regression_gives_its_sample_away(tmp_path):
    config = load("quick", ["run.rounds=2", "run.batch_size=8"])
    config.execute().save(tmp_path)
    (tmp_path / CONFIG_FILE).write_text(config.to_toml())
    assert inversion.attack(observe(tmp_path, agent=2, batch_size=1)).errors[0] < 1e-4


def test_members_are_told_apart_unless_noise_hides_them(runs):
    plain, private = observe(runs / "plain"), observe(runs / "private")
    assert membership.from_message(plain).auc > 0.99
    assert membership.from_message(private).auc < 0.7
    by_heart, hidden = membership.from_model(plain).auc, membership.from_model(private).auc
    assert by_heart > 0.65 and hidden < by_heart - 0.05, (by_heart, hidden)


@pytest.mark.slow
def test_what_is_attacked_is_what_the_run_did(runs):
    """The gradient that the attack takes again is the tracker that PISCO starts with."""
    seen = observe(runs / "private", agent=1)
    config = load(runs / "private" / CONFIG_FILE)
    rule, problem, network = config.build()
    from pisco.engines.job import Run, seed_key, streams
    from pisco.engines.round import Rounds

    run = Run(rule, network.server, streams(seed_key(0)))
    rounds = Rounds(run, problem, network.gossip, num_agents=2, batch_size=6)
    grads = rounds.start(2).state.grads
    for name, leaf in seen.gradient.items():
        np.testing.assert_allclose(leaf, grads[name][1], atol=1e-6)
    assert len(seen.rows) == 6 and seen.rows.min() >= 30


def test_the_command(runs, tmp_path):
    figure = tmp_path / "found.png"
    done = CliRunner().invoke(
        app, ["attack", str(runs / "plain"), "--batch-size", "1", "--figure", str(figure), "--json"]
    )
    told = json.loads(done.stdout)
    assert told["inversion"]["recovered"] == 1 and told["membership_from_message"]["auc"] > 0.99
    assert figure.stat().st_size > 1000
    shown = CliRunner().invoke(app, ["attack", str(runs / "private")])
    assert "of 6 recovered" in shown.stdout and "AUC" in shown.stdout
    for arguments, words in (
        ([str(tmp_path)], "holds no run"),
        ([str(runs / "plain"), "--agent", "7"], "agent is 7, expected a number at least 0 and at most 1"),
        ([str(runs / "plain"), "--batch-size", "99"], "batch size is 99"),
    ):
        refused = CliRunner().invoke(app, ["attack", *arguments])
        assert refused.exit_code == 2 and words in refused.stderr.replace("\n", " ")


def test_ranks():
    assert membership.rank([1, 1], [1, 1]).auc == 0.5
    assert membership.rank([0, 0], [1, 1]) == (0.0, 0.0, 2, 2)
