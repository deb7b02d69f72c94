"""What will pay, measured and foretold, against runs that show it."""

import json

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from typer.testing import CliRunner

import pisco
from pisco.algorithms import build
from pisco.cli.main import app
from pisco.costs import uncounted
from pisco.errors import InputError
from pisco.interop import host
from pisco.planning import diagnose
from pisco.planning.steps import check_step
from pisco.theory import adam_scale, estimate, gradient_spread

from worlds import TINY_EXPERIMENT

AGENTS, ROUNDS, BATCH, STEPS = 10, 100, 64, 4


def loss(x, batch, key):
    logits = batch["features"].astype(jnp.float32) @ x
    return jnp.logaddexp(0, -batch["labels"] * logits) + 0.005 * (x @ x)


def a9a(partition):
    """A tenth of a9a, dealt out sorted by label or shuffled; one loss, so that programs are compiled once."""
    whole = pisco.data.load("a9a")
    features, labels = whole.features[:3000], whole.labels[:3000].astype(np.float32)
    order = np.argsort(labels, kind="stable") if partition == "sorted" else np.arange(len(labels))
    deal = lambda values: values[order].reshape(AGENTS, -1, *values.shape[1:])  # noqa: E731
    return pisco.Problem(loss, np.zeros(123, np.float32), {"features": deal(features), "labels": deal(labels)})


def error(method, problem, p=0.1, steps=STEPS, batch_size=BATCH, rounds=ROUNDS, **options):
    """The mean of ‖∇f‖² over a run, its start aside, at the best of several step sizes."""
    network = pisco.Network.ring(AGENTS)
    reaches = (0.06, 0.2, 0.6, 2.0, 6.0)
    rules = [build(method, local_lr=reach / steps, local_steps=steps, **options) for reach in reaches]
    points = [(rule, pisco.bernoulli(p)) for rule in rules]
    found = pisco.sweep(points, problem, network, rounds=rounds, batch_size=batch_size, eval_every=4)
    return min(float(np.nan_to_num(each.history["grad_norm_sq"][..., 1:], nan=np.inf).mean()) for each in found)


def verdicts(problem, p=0.1, batch_size=BATCH):
    network = pisco.Network.ring(AGENTS, server=pisco.bernoulli(p))
    return diagnose(problem, network, rounds=ROUNDS, batch_size=batch_size, local_steps=STEPS, samples=2000)


@pytest.mark.slow
@pytest.mark.parametrize("partition", ["sorted", "shuffled"])
def test_tracking_pays_where_it_is_said_to(partition):
    problem = a9a(partition)
    said = verdicts(problem)
    ratio = error("pisco-vr", problem) / error("local-dsgd", problem)
    assert said.pays["tracking"] == (partition == "sorted")
    assert ratio < 0.7 if said.pays["tracking"] else 0.9 < ratio < 1.2
    assert said.method == ("pisco-vr" if partition == "sorted" else "local-dsgd")


@pytest.mark.slow
def test_the_other_verdicts_agree_with_runs():
    """Local steps, more server rounds, compression: each pays, or does not, as was said."""
    for partition, noisy in (("sorted", False), ("shuffled", False), ("shuffled", True)):
        problem, size = a9a(partition), 2 if noisy else BATCH
        said = verdicts(problem, batch_size=size)
        pays = said.pays
        now = error(said.method, problem, batch_size=size)
        assert pays["local steps"] == (
            error(said.method, problem, steps=8, batch_size=size)
            < 0.8 * error(said.method, problem, steps=1, batch_size=size)
        ), (partition, noisy)
        assert pays["more server rounds"] == (error(said.method, problem, p=1.0, batch_size=size) < 0.8 * now)
    compressed = {"compressor": {"name": "top-k", "fraction": 0.1}, "one_exchange": True}
    for partition, expected in (("sorted", False), ("shuffled", True)):
        problem = a9a(partition)
        worse = error("pisco-compressed", problem, **compressed) / error("pisco-one-exchange", problem)
        assert verdicts(problem).pays["compression"] == expected == (worse < 1.25), (partition, worse)


def test_what_is_measured_is_what_a_small_problem_has():
    """Least squares with a target of its own in every sample: every number by hand."""
    rng = np.random.default_rng(0)
    roots, centres = rng.normal(size=(3, 2, 2)), rng.normal(size=(3, 2))
    hessians = roots @ roots.transpose(0, 2, 1)
    noise = rng.normal(size=(3, 400, 2))
    noise -= noise.mean(axis=1, keepdims=True)
    data = {"h": np.repeat(hessians[:, None], 400, 1), "at": centres[:, None] + noise}
    problem = pisco.Problem(
        lambda x, batch, key: 0.5 * jnp.einsum("bi,bij,bj->b", x - batch["at"], batch["h"], x - batch["at"]),
        np.zeros(2),
        data,
    )
    point = jnp.array([0.3, -0.2])
    grads = np.einsum("nij,nj->ni", hessians, np.asarray(point) - centres)
    unlike = grads - grads.mean(0)
    drift = np.mean(np.einsum("nij,nj->ni", hessians, unlike), axis=0)
    whole = gradient_spread(problem, point)
    assert whole.noise == whole.noise_drift == whole.noise_energy == 0
    assert whole.heterogeneity == pytest.approx((unlike**2).sum(1).mean(), rel=1e-4)
    assert whole.drift == pytest.approx((drift**2).sum(), rel=1e-4)
    drawn = gradient_spread(problem, point, batch_size=5, batches=400)
    xi = np.einsum("nij,nsj->nsi", hessians, noise)
    mean = hessians.mean(0)
    assert drawn.noise == pytest.approx((xi**2).sum(2).mean() / 5, rel=0.1)
    assert drawn.heterogeneity == pytest.approx(whole.heterogeneity, rel=0.3)
    # Few batches, much noise: it is taken off, else it would be in there.
    few = [gradient_spread(problem, point, batch_size=5, batches=2, seed=seed) for seed in range(40)]
    assert np.mean([each.heterogeneity for each in few]) == pytest.approx(whole.heterogeneity, rel=0.4)
    assert drawn.noise / 2 * 2 / 3 > 0.4 * whole.heterogeneity
    assert 0 < drawn.noise_energy < np.linalg.norm(mean, 2) * 3 * drawn.noise
    # Noise that hides samples is noise: (σC/b)² for each of two entries, also where batches are all samples.
    for size, count in ((5, 5), (None, 400)):
        private = problem.private(pisco.Privacy(clip=100, noise=0.01 * count))
        hidden = gradient_spread(private, point, batch_size=size, batches=400)
        assert hidden.noise == pytest.approx(2 + (drawn.noise if size else 0), rel=0.15)


def test_through_adam_all_is_measured_in_its_scale():
    """Entries of unlike sizes: Adam's scale makes them alike, and everything follows from the scaled Hessians."""
    hessians = np.array([np.diag([100.0, 1.0]), np.diag([300.0, 3.0])])
    problem = pisco.problems.quadratic(hessians, [[0.0, 0.0], [1.0, 1.0]])
    point = jnp.array([0.3, -0.2])
    grads = np.einsum("nij,nj->ni", hessians, np.asarray(point) - np.array([[0, 0], [1, 1]]))
    scale = np.asarray(adam_scale(problem, point))
    np.testing.assert_allclose(scale, (grads**2).mean(0) ** -0.25, rtol=0.05)
    unlike = (grads - grads.mean(0)) * scale
    scaled = scale[:, None] * hessians * scale
    found = diagnose(problem, pisco.Network.ring(2), rounds=100, params=point, direction=["clip", "adam"])
    assert found.through == "clip, adam" and found.facts.curvature == pytest.approx(scaled.max(), rel=1e-3)
    assert found.facts.spread.heterogeneity == pytest.approx((unlike**2).sum(1).mean(), rel=1e-3)
    drift = np.einsum("nij,nj->ni", scaled, unlike).mean(0)
    assert found.facts.spread.drift == pytest.approx((drift**2).sum(), rel=1e-3)
    plain = diagnose(problem, pisco.Network.ring(2), rounds=100, params=point, direction="momentum")
    assert not plain.through and plain.facts.curvature == pytest.approx(300, rel=1e-3)


def lines(local):
    """Every agent a line through points of its own; with `local`, its height is its own."""
    rng = np.random.default_rng(0)
    x = rng.normal(size=(AGENTS, 40)) + np.linspace(-2, 2, AGENTS)[:, None]
    y = 2 * x + 5 * rng.normal(size=(AGENTS, 1)) + 0.05 * rng.normal(size=x.shape)
    data = {"x": x.astype(np.float32), "y": y.astype(np.float32)}

    def loss(params, batch, key):
        return (batch["x"] * params["slope"] + params["height"] - batch["y"]) ** 2 / 2

    problem = pisco.Problem(loss, {"slope": np.zeros(1, np.float32), "height": np.zeros(1, np.float32)}, data)
    return problem.parted({"local": "height"}) if local else problem


@pytest.mark.slow
def test_leaves_of_ones_own_are_no_unlikeness_of_what_is_sent():
    """Heights differ: tracking pays where they are shared, and hardly where they are not; as runs show."""
    for local in (False, True):
        problem = lines(local)
        network, how = pisco.Network.ring(AGENTS, server=pisco.bernoulli(0.1)), {"batch_size": None, "rounds": 400}
        said = diagnose(problem, network, local_steps=STEPS, **how)
        ratio = error("pisco", problem, **how) / error("local-dsgd", problem, **how)
        assert said.pays["tracking"] == (not local) == (ratio < 0.8), (local, ratio, said)
        assert said.kept == ("height" if local else "")


@pytest.mark.parametrize("through", [False, True])
def test_beside_leaves_of_ones_own_what_is_sent_is_measured(through):
    """ζ² and drift of the shared entries, and the curvature of all of an agent's, against matrices."""
    rng = np.random.default_rng(3)
    with jax.enable_x64(True):
        roots, shifts = rng.normal(size=(3, 5, 5)), rng.normal(size=(3, 5))
        curves = np.einsum("aij,akj->aik", roots, roots)
        data = {"a": curves[:, None], "b": shifts[:, None]}

        def loss(params, batch, key):
            x = jnp.concatenate([params["h"], params["w"]])  # in another order than that of parts
            return jnp.einsum("bij,i,j->b", batch["a"], x, x) / 2 - batch["b"] @ x

        problem = pisco.Problem(loss, {"w": np.zeros(3), "h": np.zeros(2)}, data, parts={"local": "h"})
        run = {"w": rng.normal(size=(3, 3)), "h": rng.normal(size=(3, 2))}
        network = pisco.Network.complete(3, server=pisco.bernoulli(0.5))
        found = diagnose(problem, network, rounds=10, params=run, direction="adam" if through else None)

        x = np.concatenate([run["h"], np.tile(run["w"].mean(0), (3, 1))], axis=1)
        slopes = np.einsum("aij,aj->ai", curves, x) - shifts
        value = np.mean(np.einsum("aij,ai,aj->a", curves, x, x) / 2 - np.sum(shifts * x, axis=1))
        if through:  # entries as they lie in z: shared ones first
            squares = np.roll(np.mean(slopes**2, axis=0), 3)
            scale = np.roll((np.sqrt(squares) + 1e-3 * np.sqrt(squares.mean())) ** -0.5, -3)
            slopes, curves = slopes * scale, curves * scale[:, None] * scale
        unlike = slopes[:, 2:] - slopes[:, 2:].mean(0)
        drift = np.mean(np.einsum("aij,aj->ai", curves[:, 2:, 2:], unlike), axis=0)
        spread = found.facts.spread
        assert found.facts.gap == pytest.approx(value, rel=1e-9)
        assert spread.heterogeneity == pytest.approx(np.mean(np.sum(unlike**2, axis=1)), rel=1e-6)
        assert spread.drift == pytest.approx(np.sum(drift**2), rel=1e-6)
        assert spread.top_tenth < 1 and spread.noise == 0
        largest = max(np.linalg.eigvalsh(each).max() for each in curves)
        assert found.facts.curvature == pytest.approx(largest, rel=0.05)


def test_the_command_says_it_in_words_and_json(tmp_path):
    rng = np.random.default_rng(0)
    np.savez(tmp_path / "points.npz", features=rng.normal(size=(40, 3)), labels=np.arange(40) % 2)
    file = tmp_path / "tiny.toml"
    file.write_text(TINY_EXPERIMENT)
    runner = CliRunner()
    shown = runner.invoke(app, ["diagnose", str(file), "--json"])
    assert shown.exit_code == 0, shown.output
    told = json.loads(shown.stdout)
    assert {verdict["question"] for verdict in told["verdicts"]} == {
        *("tracking", "local steps", "more server rounds", "compression")
    }
    assert told["facts"]["spread"]["heterogeneity"] >= 0 and told["local_steps"] >= 1 and not told["through"]
    named = ["--set", "algorithm.name=pisco-adam", "--set", "algorithm.local_steps=2"]
    shown = runner.invoke(app, ["diagnose", str(file), *named])
    assert shown.exit_code == 0 and "in the scale of adam" in shown.output and "through adam, the least" in shown.output


def test_what_cannot_be_judged_is_refused():
    problem = pisco.problems.quadratic([[[1.0]], [[3.0]]], [[0.0], [1.0]])
    with pytest.raises(InputError, match="no single probability"):
        diagnose(problem, pisco.Network.ring(2, server=pisco.per_agent([0.1, 0.2])), rounds=10)
    with pytest.raises(InputError, match="the problem has 2 agents and the network 3"):
        diagnose(problem, pisco.Network.ring(3), rounds=10)
    apart = pisco.Network(pisco.networks.graphs.from_edges([], 2), server=pisco.never())
    with pytest.raises(InputError, match="components and the server is never reached"):
        diagnose(problem, apart, rounds=10)
    with pytest.raises(InputError, match="not finite"):
        diagnose(problem, pisco.Network.ring(2), rounds=10, params=jnp.array([jnp.nan]))
    outside = host.Local(lambda seed: np.zeros(2, np.float32), lambda x, rows, seed: (0.0, x), lambda x, rows: 0.0, 3)
    with pytest.raises(InputError, match="cannot be differentiated twice"):
        diagnose(host.problem(outside, outside), pisco.Network.ring(2), rounds=10)
    with pytest.raises(InputError, match="cannot be differentiated twice"):
        estimate(host.problem(outside, outside))
    rule = pisco.algorithms.pisco(local_lr=0.1, local_steps=1)
    assert check_step(rule, host.problem(outside, outside), pisco.Network.ring(2), rounds=10) is None
    heads = pisco.Problem(lambda x, b, key: (b - x["w"] - x["h"]) ** 2, {"w": 0.0, "h": 0.0}, np.ones((2, 3)))
    heads, pair = heads.parted({"local": "h"}), pisco.Network.ring(2)
    with pytest.raises(InputError, match=r"w of params has shape \(\), expected \(2,\); .* give the params of a run"):
        diagnose(heads, pair, rounds=10, params={"w": 0.0, "h": 0.0})
    with pytest.raises(InputError, match=r"h of params is missing, expected \(2,\)"):
        diagnose(heads, pair, rounds=10, params={"w": np.zeros(2)})
    with pytest.raises(InputError, match="rounds is 0"):
        diagnose(problem, pisco.Network.ring(2), rounds=0)


@pytest.mark.parametrize(
    ("method", "given", "extra"),
    [
        ("dsgt-full-atc", {}, 0),
        ("pisco-compressed", {"local_steps": 1}, 1),
        ("pisco-compressed", {"local_steps": 1, "compressor": {"name": "top-k", "count": 10}}, 1),  # of enough entries
    ],
)
def test_gradients_between_exchanges_are_counted_in_a_round(method, given, extra):
    assert uncounted(build(method, local_lr=0.1, **given), np.zeros(20), 1) == extra
