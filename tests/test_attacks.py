"""`pisco attack`: finds samples and members in a run without protection, and fails with it."""

import json
import re

import numpy as np
import pytest
from typer.testing import CliRunner

from pisco.attacks import inversion, membership
from pisco.attacks.observed import observe
from pisco.cli.main import app
from pisco.experiments import load
from pisco.experiments.folders import CONFIG_FILE
from pisco.privacy import accounting

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
    settings += ["run.chunk_rounds=600", "run.eval_every=600", "algorithm.local_lr=1.5", "algorithm.local_steps=2"]
    settings += ["algorithm.name=local-dsgd"]
    for name, more in (("plain", []), ("private", PROTECTED)):
        config = load("mnist", [*settings, *more])
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(accounting, "GRID", 500)  # what is spent is not looked at here
            config.execute().save(home / name)
        (home / name / CONFIG_FILE).write_text(config.to_toml())
    return home


@pytest.fixture(scope="module")
def told(runs):
    """What the command says of one sample of the plain run, and draws of it."""
    figure = ["--figure", str(runs / "found.png")]
    done = CliRunner().invoke(app, ["attack", str(runs / "plain"), "--batch-size", "1", *figure, "--json"])
    return json.loads(done.stdout)


@pytest.fixture(scope="module")
def shown(runs):
    """What the command shows of a batch of the private run."""
    return CliRunner().invoke(app, ["attack", str(runs / "private"), "--steps", "20"]).stdout


def test_a_gradient_of_one_sample_is_the_sample_unless_noise_hides_it(runs, told):
    assert told["inversion"]["recovered"] == 1 and told["inversion"]["errors"][0] < 1e-3
    hidden = inversion.attack(observe(runs / "private", batch_size=1))
    assert hidden.recovered == 0 and hidden.errors[0] > 0.3


@pytest.mark.slow
def test_logistic_regression_gives_its_sample_away(tmp_path):
    config = load("quick", ["run.rounds=2", "run.batch_size=8"])
    config.execute().save(tmp_path)
    (tmp_path / CONFIG_FILE).write_text(config.to_toml())
    assert inversion.attack(observe(tmp_path, agent=2, batch_size=1)).errors[0] < 1e-4


def test_members_are_told_apart_unless_noise_hides_them(runs, told, shown):
    assert membership.from_message(observe(runs / "plain")).auc > 0.99
    message, hidden = map(float, re.findall(r"AUC (\d\.\d+)", shown))
    assert message < 0.7
    by_heart = told["membership_from_model"]["auc"]
    assert by_heart > 0.65 and hidden < by_heart - 0.05, (by_heart, hidden)


@pytest.mark.slow
def test_what_is_attacked_is_what_the_run_did(runs, tmp_path):
    """The gradient that the attack takes again is the tracker that PISCO starts with."""
    config = load(runs / "private" / CONFIG_FILE, ["algorithm.name=pisco", "run.rounds=2"])
    config.execute().save(tmp_path)
    (tmp_path / CONFIG_FILE).write_text(config.to_toml())
    seen = observe(tmp_path, agent=1)
    rule, problem, network = config.build()
    from pisco.engines.job import Run, seed_key, streams
    from pisco.engines.round import Rounds

    run = Run(rule, network.server, streams(seed_key(0)))
    rounds = Rounds(run, problem, network.gossip, num_agents=2, batch_size=6)
    grads = rounds.start(2).state.grads
    for name, leaf in seen.gradient.items():
        np.testing.assert_allclose(leaf, grads[name][1], atol=1e-6)
    assert len(seen.rows) == 6 and seen.rows.min() >= 30


def test_the_command(runs, told, shown, tmp_path):
    assert told["inversion"]["recovered"] == 1 and told["membership_from_message"]["auc"] > 0.99
    assert (runs / "found.png").stat().st_size > 1000
    assert "of 6 recovered" in shown and shown.count("AUC") == 2
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
