"""Models from elsewhere: gradients and trajectories agree with our own, and what cannot work is refused."""

import textwrap
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import pisco
from pisco import InputError
from pisco.interop import host
from pisco.interop import torch as interop
from pisco.interop.modules import load_problem
from pisco.problems.gradient import agent_loss

import needs

torch: Any = None

RNG = np.random.default_rng(0)
FEATURES = RNG.normal(size=(24, 5)).astype(np.float32)
CLASSES = RNG.integers(0, 3, 24)


@pytest.fixture(autouse=True, scope="module")
def with_torch():
    """Imported for the first test here: it takes seconds, and every worker imports every file of tests."""
    global torch
    torch = needs.module("torch", "torch")


def mlp():
    return torch.nn.Sequential(torch.nn.Linear(5, 4), torch.nn.Tanh(), torch.nn.Linear(4, 3))


def samples(rows=slice(None)):
    return torch.utils.data.TensorDataset(torch.tensor(FEATURES[rows]), torch.tensor(CLASSES[rows]))


def doubles():
    return torch.utils.data.TensorDataset(torch.tensor(FEATURES).double(), torch.tensor(CLASSES))


def jax_loss(params, batch, key):
    hidden = jnp.tanh(batch["features"] @ params["0.weight"].T + params["0.bias"])
    logits = hidden @ params["2.weight"].T + params["2.bias"]
    chosen = jnp.take_along_axis(logits, batch["labels"][:, None], axis=1)[:, 0]
    return jax.nn.logsumexp(logits, axis=1) - chosen


def one_gradient(problem, params, seed, batch_size):
    return jax.jit(jax.grad(agent_loss(problem, batch_size)))(params, jax.random.key(seed), 0)


def test_the_gradient_is_that_of_the_same_network_in_jax():
    ours = interop.problem(mlp, torch.nn.functional.cross_entropy, samples())
    params = ours.init(jax.random.key(3))
    twin = pisco.Problem(jax_loss, params, [{"features": FEATURES, "labels": CLASSES.astype(np.int32)}])
    for batch_size in (None, 7):
        got = one_gradient(ours, params, 1, batch_size)
        expected = one_gradient(twin, params, 1, batch_size)
        for name, leaf in expected.items():
            np.testing.assert_allclose(got[name], leaf, atol=1e-6, err_msg=name)
    losses = [float(jax.jit(each.objective)(params)) for each in (ours, twin)]
    assert losses[0] == pytest.approx(losses[1], abs=1e-6)


def logistic(width):
    """Scores of a linear model from zero, as `problems.logistic` has them."""

    class Logistic(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.x = torch.nn.Parameter(torch.zeros(width))

        def forward(self, features):
            return features @ self.x, self.x

    return Logistic()


def logistic_loss(outputs, labels):
    scores, x = outputs
    return torch.nn.functional.softplus(-labels * scores) + 0.01 * (x * x / (1 + x * x)).sum()


@pytest.mark.slow
@pytest.mark.parametrize("engine", ["scan", "debug"])
def test_a_logistic_model_follows_the_trajectory_of_ours(engine):
    data = pisco.data.load("a9a")
    parts = [np.arange(i * 50, (i + 1) * 50) for i in range(4)]
    ours = pisco.problems.logistic(data, agents=4, partition=parts)
    bias = np.concatenate([data.features, np.ones((len(data.features), 1))], axis=1).astype(np.float32)
    theirs = host.problem(
        *(
            interop.local(
                lambda: logistic(124),
                logistic_loss,
                torch.utils.data.TensorDataset(
                    torch.tensor(bias[part]), torch.tensor(data.labels[part].astype(np.float32))
                ),
            )
            for part in parts
        )
    )
    rule = pisco.algorithms.pisco(local_lr=0.3, local_steps=2)
    net = pisco.Network.ring(4, server=pisco.bernoulli(0.3))
    rounds = 30 if engine == "scan" else 2
    settings = {"rounds": rounds, "batch_size": 8, "eval_every": rounds, "seed": 5}
    one = pisco.run(rule, ours, net, **settings)
    two = pisco.run(rule, theirs, net, engine=engine, **settings)
    np.testing.assert_allclose(two.params["x"], one.params, atol=1e-5)
    np.testing.assert_allclose(two.history["loss"], one.history["loss"], atol=1e-5)
    assert np.abs(one.params).max() > 0.1


def test_agents_of_unequal_sizes_and_large_parameters():
    """Large arrays through callbacks have been seen to hang on machines with few cores."""

    def wide():
        return torch.nn.Linear(5, 100_000, bias=False)

    def loss(outputs, labels):
        return (outputs.mean(dim=1) - labels) ** 2

    agents = [interop.local(wide, loss, samples(slice(a, b))) for a, b in ((0, 3), (3, 10))]
    problem = host.problem(*agents)
    result = pisco.run(pisco.algorithms.dsgd(local_lr=0.1), problem, pisco.Network.path(2), rounds=3, batch_size=2)
    assert result.params["weight"].shape == (2, 100_000, 5)
    each = [
        np.mean([agent.loss({"weight": result.params["weight"].mean(0)}, np.array([row])) for row in range(agent.size)])
        for agent in agents
    ]
    assert result.history["loss"][-1] == pytest.approx(np.mean(each), rel=1e-4)


def test_starts_and_dropout_depend_on_the_seed_alone():
    def dropping():
        return torch.nn.Sequential(torch.nn.Linear(5, 16), torch.nn.Dropout(0.5), torch.nn.Linear(16, 3))

    def build():
        torch.manual_seed(RNG.integers(1000))  # what happened before must not matter
        return interop.problem(dropping, torch.nn.functional.cross_entropy, samples())

    first, second = build(), build()
    params = first.init(jax.random.key(0))
    for name, leaf in second.init(jax.random.key(0)).items():
        np.testing.assert_array_equal(leaf, params[name])
    drawn = [one_gradient(p, params, 4, 6)["2.weight"] for p in (first, second)]
    np.testing.assert_array_equal(*drawn)
    other = one_gradient(first, params, 5, 6)["2.weight"]
    assert not np.array_equal(drawn[0], other)
    assert not np.array_equal(first.init(jax.random.key(1))["0.weight"], params["0.weight"])
    # What is measured is without dropout, with its gradient or alone.
    value, slope = jax.value_and_grad(first.objective)(params)
    assert value == pytest.approx(float(first.objective(params)), 1e-6)
    net = dropping().eval()
    net.load_state_dict({name: torch.tensor(np.asarray(leaf)) for name, leaf in params.items()})
    torch.nn.functional.cross_entropy(net(torch.tensor(FEATURES)), torch.tensor(CLASSES)).backward()
    np.testing.assert_allclose(slope["2.weight"], net[2].weight.grad, atol=1e-6)


def endless():
    class Endless(torch.utils.data.IterableDataset):
        def __iter__(self):
            yield from ()

    return Endless()


def test_training_and_measuring_at_once_do_not_disturb_each_other():
    net = torch.nn.Sequential(torch.nn.Linear(3, 8), torch.nn.BatchNorm1d(8), torch.nn.Dropout(), torch.nn.Linear(8, 1))
    x = torch.randn(4, 3, generator=torch.Generator().manual_seed(0))
    one = interop.local(net, torch.nn.functional.mse_loss, torch.utils.data.TensorDataset(x, x[:, :1]))
    start, rows = one.start(0), np.arange(4)
    expected, alone = one.gradient(start, rows, 7)[1], one.loss(start, rows[:1])
    with ThreadPoolExecutor(2) as pool:
        measured = pool.submit(
            lambda: [one.loss(start, rows[:1]) for _ in range(300)]
        )  # of one sample: not in training
        trained = pool.submit(lambda: [one.gradient(start, rows, 7)[1] for _ in range(100)])
    assert measured.result() == [alone] * 300
    for gradient in trained.result():
        jax.tree.map(np.testing.assert_array_equal, gradient, expected)


def chosen(rows, batches=None):
    data = torch.utils.data
    if batches:
        return data.DataLoader(samples(), batch_sampler=data.BatchSampler(chosen(rows).sampler, batches, False))
    return data.DataLoader(samples(), sampler=data.SubsetRandomSampler(rows))


@pytest.mark.parametrize(
    ("module", "data", "words"),
    [
        (lambda: torch.nn.BatchNorm1d(5, momentum=None), samples, "counts its batches"),
        (lambda: 3, samples, "expected a torch.nn.Module"),
        (3, samples, "the module is 3, which cannot be called without arguments"),
        (lambda n: mlp(), samples, "cannot be called without arguments .*, as in lambda: Net"),
        (lambda: torch.nn.Tanh(), samples, "no parameters"),
        (lambda: mlp().half(), samples, "float16"),
        (lambda: mlp().double(), doubles, "jax computes in float32"),
        (lambda: torch.nn.Linear(4, 3), samples, "check that module, loss and data fit"),
        (mlp, endless, "cannot be indexed"),
        (mlp, lambda: samples(slice(0, 0)), "empty"),
        (mlp, lambda: torch.utils.data.DataLoader(endless()), "cannot be indexed"),
        (mlp, lambda: chosen([1, 2]), r"by a SubsetRandomSampler of its own, .* torch.utils.data.Subset"),
        (mlp, lambda: chosen([1, 2], batches=2), "by a SubsetRandomSampler"),
        (mlp, lambda: torch.utils.data.DataLoader(samples(), batch_sampler=[[0, 1], [2]]), "by a list of its own"),
        (
            mlp,
            lambda: torch.utils.data.DataLoader(samples(), sampler=torch.utils.data.SequentialSampler(range(5))),
            "by a SequentialSampler of its own",
        ),
    ],
)
def test_what_cannot_work_is_refused_with_a_sentence(module, data, words):
    with pytest.raises(InputError, match=words):
        interop.problem(module, torch.nn.functional.cross_entropy, data())


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("x = 1", "defines no function agent"),
        ("def agent(data):\n    return 3", "returns int"),
        ("def agent(data):\n    return 1 / 0", r"mine\.py, line 2: agent\(\) fails \(ZeroDivisionError"),
        ("def agent(:", r"SyntaxError"),
        ("def agent():\n    return 3", "takes no data"),
    ],
)
def test_a_module_that_cannot_be_used_is_named(tmp_path, text, words):
    (tmp_path / "mine.py").write_text(text)
    with pytest.raises(InputError, match=words):
        load_problem(tmp_path / "mine.py", tmp_path / "data.npz")


def test_a_module_gives_one_agents_problem(tmp_path):
    np.savez(tmp_path / "mine.npz", features=FEATURES, labels=CLASSES)
    (tmp_path / "mine.py").write_text(
        textwrap.dedent(
            """
            import numpy as np, torch, pisco.interop.torch
            from torch.utils.data import DataLoader, TensorDataset

            def agent(data):
                arrays = np.load(data)
                samples = TensorDataset(torch.tensor(arrays["features"]), torch.tensor(arrays["labels"]))
                return pisco.interop.torch.problem(
                    lambda: torch.nn.Linear(5, 3), torch.nn.functional.cross_entropy, DataLoader(samples))
            """
        )
    )
    problem = load_problem(tmp_path / "mine.py", tmp_path / "mine.npz")
    assert (problem.num_agents, problem.num_samples) == (1, 24)
    with pytest.raises(InputError, match="no file"):
        load_problem(tmp_path / "nowhere.py")


def normed():
    return torch.nn.Sequential(torch.nn.Linear(5, 4), torch.nn.BatchNorm1d(4), torch.nn.Linear(4, 3))


def test_parts_of_a_torch_module():
    """A frozen layer stays in torch, running statistics are torch's own, and a head stays at home."""

    def frozen():
        made = normed()
        made[0].requires_grad_(False)
        return made

    agents = [interop.local(frozen, torch.nn.functional.cross_entropy, samples(rows)) for rows in PARTS]
    ours = pisco.interop.host.problem(*agents, parts={"local": "2.*"})
    rule, network = pisco.algorithms.dsgd(local_lr=0.1), pisco.Network.complete(len(agents), server=pisco.always())
    result = pisco.run(rule, ours, network, rounds=3, batch_size=8, eval_every=3)
    names = ["1.bias", "1.running_mean", "1.running_var", "1.weight", "2.bias", "2.weight"]
    assert sorted(result.params) == names
    assert np.ptp(result.params["1.weight"], axis=0).max() < 1e-6 < np.ptp(result.params["2.weight"], axis=0).max()
    assert np.abs(result.params["1.running_mean"]).min() > 0
    per_exchange = 4 * 16  # weight, bias, mean and variance of the norm
    assert result.history["bytes_server"][-1] == per_exchange * result.history["messages_server"][-1]
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        net = frozen()
    net.load_state_dict({k: torch.tensor(v[0]) for k, v in result.params.items()}, strict=False)
    net.eval()
    inputs, targets = torch.tensor(FEATURES[PARTS[0]]), torch.tensor(CLASSES[PARTS[0]])
    with torch.no_grad():
        value = float(torch.nn.functional.cross_entropy(net(inputs), targets))
    first = {name: leaf[0] for name, leaf in result.params.items()}
    assert ours.loss(first, rows_of(0), None) == pytest.approx(value, 1e-5)


def masked():
    """A buffer that is only read, and infinite, beside statistics that samples of zeros do not change."""

    class Masked(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.norm, self.out = torch.nn.BatchNorm1d(5), torch.nn.Linear(5, 3)
            self.register_buffer("mask", torch.tensor([0, 0, 0, 0, float("-inf")]))

        def forward(self, x):
            return self.out(torch.softmax(self.norm(x) + self.mask, -1))

    return Masked()


def test_buffers_that_are_only_read_are_frozen():
    empty = torch.utils.data.TensorDataset(torch.zeros(8, 5), torch.tensor(CLASSES[:8]))
    agents = [interop.local(masked, torch.nn.functional.cross_entropy, data) for data in (empty, samples())]
    ours = host.problem(*agents)
    assert (ours.kinds.of("buffers"), ours.kinds.of("frozen")) == (["norm.running_mean", "norm.running_var"], ["mask"])
    result = pisco.run(pisco.algorithms.dsgd(local_lr=0.1), ours, pisco.Network.path(2), rounds=2, batch_size=4)
    assert result.rounds == 2 and np.isfinite(result.history["loss"]).all()
    assert ours.model(result.params, 0)["mask"].tolist() == [0, 0, 0, 0, -np.inf]
    # One's own words stand beside what is found.
    for given in ("out.*", ["out.bias", "out.weight"], lambda name: name.startswith("out")):
        assert len(host.problem(agents[0], parts={"frozen": given}).kinds.of("frozen")) == 3
    part = host.problem(agents[0], parts={"buffers": "norm.running_mean"})
    assert part.kinds.of("buffers") == ["norm.running_mean", "norm.running_var"]
    # Both kinds may be called otherwise: what is only read stays as it is, and what is frozen is not renewed.
    part = host.problem(agents[0], parts={"local_buffers": ["norm.running_*", "mask"]})
    assert part.kinds.of("frozen") == []
    still = host.problem(agents[0], parts={"frozen": "norm.*"})
    assert np.isfinite(one_gradient(still, still.init(jax.random.key(0)), 0, 4)["out.weight"]).all()


def test_buffers_need_not_take_every_number():
    class Dropped(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.out = torch.nn.Linear(5, 3)
            self.register_buffer("chance", torch.tensor(0.5))

        def forward(self, x):
            return self.out(torch.nn.functional.dropout(x, float(self.chance), self.training))

    made = interop.problem(Dropped, torch.nn.functional.cross_entropy, samples())
    assert made.kinds.of("frozen") == ["chance"]


def test_buffers_that_some_samples_leave_as_they_are_are_renewed():
    """A running maximum of small numbers stands still once it is large."""

    class Peak(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.out = torch.nn.Linear(5, 3)
            self.register_buffer("peak", torch.zeros(()))

        def forward(self, x):
            if self.training:
                self.peak.copy_(torch.maximum(self.peak, x.abs().max()))
            return self.out(x)

    for scale in (0.01, 10):
        data = torch.utils.data.TensorDataset(scale * torch.tensor(FEATURES), torch.tensor(CLASSES))
        assert interop.problem(Peak, torch.nn.functional.cross_entropy, data).kinds.of("buffers") == ["peak"]


def test_agents_of_unlike_models_are_refused():
    """Layers that others lack would never be trained, and unlike ones take the shapes of agent 0."""

    def local(*layers):
        return interop.local(lambda: torch.nn.Sequential(*layers), torch.nn.functional.cross_entropy, samples())

    ours = local(torch.nn.Linear(5, 4))
    for its, words in (
        (
            local(torch.nn.Linear(5, 4), torch.nn.Linear(4, 3)),
            r"agent 1's model has float32\[3\] as 1.bias, and agent 0's has no such leaf",
        ),
        (
            local(torch.nn.Linear(5, 8)),
            r"agent 1's model has float32\[8\] as 0.bias, and agent 0's has float32\[4\]; give all",
        ),
    ):
        with pytest.raises(InputError, match=words):
            host.problem(ours, its)


PARTS = [slice(0, 8), slice(8, 16), slice(16, 24)]


def rows_of(agent):
    count = PARTS[agent].stop - PARTS[agent].start
    return {"agent": np.full(count, agent), "row": np.arange(count)}


def fragile(*tensors):
    """Samples that are gone from some moment on."""

    class Fragile(torch.utils.data.TensorDataset):
        gone = False

        def __getitem__(self, row):
            if self.gone:
                raise OSError("the disk is gone")
            return super().__getitem__(row)

    return Fragile(*tensors)


def test_parameters_are_handed_over_once_a_local_step_or_not_at_all(monkeypatch):
    """Where both share a GPU, torch works in the memory of JAX: here in the one that they always share."""
    monkeypatch.setattr(interop, "SHARED", ("cpu",))
    counted, tensors = [], interop._tensors
    monkeypatch.setattr(interop, "_tensors", lambda *given: counted.append(1) or tensors(*given))
    data = [fragile(torch.tensor(FEATURES[rows]), torch.tensor(CLASSES[rows])) for rows in PARTS]
    agents = [interop.local(mlp, torch.nn.functional.cross_entropy, each) for each in data]
    rule, network = pisco.algorithms.dsgd(local_lr=0.1, local_steps=2), pisco.Network.ring(3)

    def run(problem, rounds):
        before = len(counted)
        made = pisco.run(rule, problem, network, rounds=rounds, batch_size=4, eval_every=rounds)
        return made.params, len(counted) - before

    plain = host.problem(*agents)
    (_, first), (expected, second) = run(plain, 1), run(plain, 3)
    assert second - first == (3 - 1) * 2 * 3  # rounds, local steps, agents
    monkeypatch.setattr(host, "_shares_a_gpu", lambda agents: True)
    shared = host.problem(*agents)
    found, third = run(shared, 3)
    assert third == first - 2 * 3  # measurements alone
    for name, leaf in expected.items():
        np.testing.assert_allclose(found[name], leaf, atol=1e-6, err_msg=name)
    for problem in (plain, shared):
        data[1].gone = False
        step = jax.jit(jax.grad(agent_loss(problem, 4)), static_argnums=2)
        params = problem.init(jax.random.key(0))
        jax.block_until_ready(step(params, jax.random.key(0), 1))
        data[1].gone = True
        with problem.trouble.deferring() as met:
            jax.block_until_ready(step(params, jax.random.key(0), 1))
            with pytest.raises(InputError, match=r"agent 1's model or samples fail \(OSError: the disk is gone\)"):
                met()


def test_many_samples_pass_a_module_in_parts(monkeypatch):
    monkeypatch.setattr(interop, "PART", 10)
    sizes = []

    def loss(outputs, targets):
        sizes.append(len(targets))
        return torch.nn.functional.cross_entropy(outputs, targets)

    ours = interop.local(mlp, loss, samples())
    params, rows = ours.start(0), np.arange(24)
    value, slopes = ours.gradient(params, rows, 0)
    assert ours.loss(params, rows) == pytest.approx(value, rel=1e-6) and max(sizes) == 10
    monkeypatch.setattr(interop, "PART", 100)
    expected = ours.gradient(params, rows, 0)
    assert max(sizes) == 24 and value == pytest.approx(expected[0], rel=1e-6)
    for name, slope in slopes.items():
        np.testing.assert_allclose(slope, expected[1][name], atol=1e-6)
    with_norm = interop.local(normed, loss, samples())
    monkeypatch.setattr(interop, "PART", 10)
    with_norm.gradient(with_norm.start(0), rows, 1)
    assert sizes[-1] == 24  # a norm trains by whole batches


def test_samples_that_fail_at_once_are_told():
    data = fragile(torch.tensor(FEATURES), torch.tensor(CLASSES))
    data.gone = True
    with pytest.raises(InputError, match=r"the loss of the first samples fails \(OSError"):
        interop.problem(mlp, torch.nn.functional.cross_entropy, data)
    data.gone = False
    agent = interop.local(mlp, torch.nn.functional.cross_entropy, data)
    data.gone = True
    with pytest.raises(InputError, match=r"the model or samples fail \(OSError: the disk is gone\)"):
        host.problem(agent)
