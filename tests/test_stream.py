"""Data that stays where it is: the same bits as in memory, gathered ahead, and failures that lose nothing."""

import os
import subprocess
import sys
import textwrap

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import pisco
from pisco.data.stream import Stream, _Items
from pisco.engines.run import ENGINES
from pisco.planning import diagnose, plan
from pisco.privacy import accounting
from pisco.problems.gradient import agent_loss
from pisco.problems.subsample import subsample
from pisco.problems.transforms import random_crop, random_flip
from pisco.theory.estimates import estimate

N, M = 3, 12
RNG = np.random.default_rng(0)
ARRAYS = {"a": RNG.normal(size=(N, M, 3)).astype(np.float32), "y": RNG.normal(size=(N, M)).astype(np.float32)}
RING = pisco.Network.ring(N, server=pisco.bernoulli(0.3))
RULE = pisco.algorithms.pisco(local_lr=0.05, local_steps=2)


def loss(x, batch, key):
    return (batch["a"] @ x - batch["y"]) ** 2


class Samples:
    """One agent's samples one by one; from a moment on, something is wrong with them."""

    def __init__(self, agent, wrong=None):
        self.agent, self.wrong, self.given, self.after = agent, wrong, 0, 0

    def __len__(self):
        return M

    def __getitem__(self, row):
        self.given += 1
        sample = {name: array[self.agent, row] for name, array in ARRAYS.items()}
        if self.wrong is not None and self.given > self.after:
            return self.wrong(sample)
        return sample


class Many(Samples):
    """The same as Hugging Face and PyTorch offer it: several at once."""

    def __getitems__(self, rows):
        samples = [self[row] for row in rows]
        return [{"a": sample["a"].tolist(), "y": float(sample["y"])} for sample in samples]


class Fewer(Many):
    """Some get lost on the way."""

    def __getitems__(self, rows):
        return super().__getitems__(rows)[1:]


class Batches:
    """A loader, such as PyTorch's: no sample can be asked for by its number."""

    def __len__(self):
        return 1

    def __iter__(self):
        yield {name: array[0] for name, array in ARRAYS.items()}


def on_disk(folder):
    for name, array in ARRAYS.items():
        np.save(folder / f"{name}.npy", array)
    return {name: np.load(folder / f"{name}.npy", mmap_mode="r") for name in ARRAYS}


def many(folder):
    return [Many(i) for i in range(N)]


def run(data, rule=RULE, rounds=4, **options):
    problem = data if isinstance(data, pisco.Problem) else pisco.Problem(loss, np.zeros(3, np.float32), data)
    usual = {"eval_every": 2, "batch_size": 5, "chunk_rounds": 2}  # two rounds are one program, however many there are
    return pisco.run(rule, problem, RING, rounds=rounds, **(usual | options))


def same(one, two):
    np.testing.assert_array_equal(one.params, two.params)
    for name in one.history:
        np.testing.assert_array_equal(one.history[name], two.history[name], err_msg=name)


@pytest.fixture
def asked(monkeypatch):
    """How often a batch was not there when training asked for it."""
    found = []
    rows = Stream._rows

    def watched(self, numbers, training=False):
        found.append(training)
        return rows(self, numbers, training)

    monkeypatch.setattr(Stream, "_rows", watched)
    return lambda: sum(found)


@pytest.mark.slow
def test_private_gradients_of_a_stream_have_the_same_bits(tmp_path, asked, monkeypatch):
    monkeypatch.setattr(accounting, "GRID", 500)  # ε a little too large, in both
    privacy = pisco.Privacy(clip=0.5, noise=1.0, delta=1e-3)
    expected, streamed = (
        run(pisco.Problem(loss, np.zeros(3, np.float32), data, privacy=privacy)) for data in (ARRAYS, on_disk(tmp_path))
    )
    same(streamed, expected)
    assert expected.history["epsilon"][-1] > 0 and asked() == 1  # the start's


@pytest.mark.parametrize("held", [on_disk, pytest.param(many, marks=pytest.mark.slow)])
def test_memmaps_and_data_sets_give_the_same_bits(tmp_path, asked, held):
    same(run(held(tmp_path)), run(ARRAYS))
    assert asked() == 1  # the start's; all others were gathered ahead


def test_whole_data_give_the_same_bits(tmp_path):
    disk = on_disk(tmp_path)
    lists = [{name: array[i] for name, array in disk.items()} for i in range(N)]
    same(run(lists, batch_size=None, rounds=2), run(ARRAYS, batch_size=None, rounds=2))


@pytest.mark.parametrize(
    ("name", "options"),
    [("pisco-vr", {"local_steps": 2}), pytest.param("pisco-compressed", {"local_steps": 1}, marks=pytest.mark.slow)],
)
def test_what_other_methods_draw_is_known_beforehand(asked, name, options):
    rule = pisco.algorithms.build(name, local_lr=0.02, **options)
    network = pisco.Network.ring(N)
    problems = [pisco.Problem(loss, np.zeros(3, np.float32), d) for d in (ARRAYS, [Many(i) for i in range(N)])]
    options = {"rounds": 2, "eval_every": 2, "batch_size": 4}
    expected, found = (pisco.run(rule, problem, network, **options) for problem in problems)
    same(found, expected)
    assert asked() <= 1  # the start's, if there is one


LONG = pytest.param("debug", marks=pytest.mark.slow)


@pytest.mark.parametrize("engine", [LONG, *sorted(set(ENGINES) - {"scan", "debug"})])
def test_other_engines(engine):
    expected, found = (run(data, engine=engine, rounds=2) for data in (ARRAYS, [Samples(i) for i in range(N)]))
    np.testing.assert_allclose(found.params, expected.params, atol=1e-6)
    np.testing.assert_allclose(found.history["loss"], expected.history["loss"], rtol=1e-5)


def test_an_agent_alone_draws_the_same_batch():
    """As a federation's agents do, whose data has one agent."""
    for agent in range(N):
        alone = {name: array[agent : agent + 1] for name, array in ARRAYS.items()}
        memory, stream = (pisco.Problem(loss, np.ones(3, np.float32), data) for data in (alone, [Samples(agent)]))
        key = jax.random.key(3)
        values = [jax.jit(agent_loss(p, 4, place=0))(jnp.ones(3), key, agent) for p in (memory, stream)]
        assert values[0] == values[1]
    few = subsample(pisco.Problem(loss, np.zeros(3), [Samples(i) for i in range(N)]), 6)
    assert few.eval_samples == 2 and np.isfinite(few.objective(jnp.ones(3)))


def shorter(sample):
    raise IndexError("list index out of range")


def broken(sample):
    raise OSError("the disk is gone")


def other(sample):
    return sample | {"a": np.zeros(4, np.float32)}


def not_finite(sample):
    return sample | {"a": np.array([0.0, np.nan, 0.0], np.float32)}


WRONG = [
    (shorter, r"agent 1's data fail at sample \d+ of 12 \(IndexError: list index out of range\)"),
    (broken, r"agent 1's data fail .*the disk is gone"),
    (other, r"agent 1's data (give float32\(4,\), .* and gave float32\(3,\)|fail .* must have the same shape)"),
    (not_finite, r"agent 1's data hold NaN or infinity at sample \d+; give"),
]


def planned(problem):
    how = {"rounds": 20, "batch_size": 4, "target": ("loss", 1e-9), "methods": ["dsgd"], "probabilities": (1.0,)}
    plan(problem, RING, **how)


def diagnosed(problem):
    diagnose(problem, RING, rounds=9, batch_size=4)


@pytest.mark.parametrize(
    ("look", "after"),  # not at the start: while the programs run, and in the pilots of a plan
    [(estimate, 40), (diagnosed, 40), pytest.param(planned, 4000, marks=pytest.mark.slow)],
)
def test_a_loader_that_fails_while_something_is_estimated_is_one_sentence(look, after):
    data = [Samples(0), Samples(1, broken), Samples(2)]
    data[1].after = after
    test = None if look is planned else Samples(0)
    with pytest.raises(pisco.InputError, match=WRONG[1][1] + r".*; fix them$"):  # there is no checkpoint to go on from
        look(pisco.Problem(loss, np.zeros(3, np.float32), data, test=test))


def test_a_problem_of_fewer_samples_fails_as_one():
    few = subsample(pisco.Problem(loss, np.zeros(3, np.float32), [Samples(0)], test=Samples(0)), samples=6)
    assert few.trouble is few.test.stream.trouble  # whoever waits for either hears of both


@pytest.mark.parametrize(
    ("wrong", "sentence"), [WRONG[0], *(pytest.param(*w, marks=pytest.mark.slow) for w in WRONG[1:])]
)
def test_a_loader_that_fails_in_the_middle_loses_nothing(tmp_path, wrong, sentence):
    data = [Samples(0), Samples(1, wrong), Samples(2)]
    data[1].after = 200  # counted in samples: after the start, in a later chunk
    problem = pisco.Problem(loss, np.zeros(3, np.float32), data)
    options = {"rounds": 12, "chunk_rounds": 2, "checkpoint": tmp_path}
    with pytest.warns(UserWarning, match=sentence) as told:
        result = run(problem, **options)
    assert len(told) == 1 and "\n" not in str(told[0].message)
    assert str(told[0].message).endswith("rounds, and can go on from its last checkpoint")
    assert result.interrupted and 0 < result.rounds < 12
    expected = run(ARRAYS, rounds=12, chunk_rounds=2)
    kept = len(result.history["loss"])
    np.testing.assert_array_equal(result.history["loss"], expected.history["loss"][:kept])
    data[1].wrong = None
    same(run(problem, resume=True, **options), expected)


def test_a_loader_that_fails_at_once_and_other_nonsense():
    with pytest.raises(pisco.InputError, match="agent 1's data give"):
        run([Samples(0), Samples(1, other), Samples(2)])
    for wrong, sentence in WRONG:
        stream = Stream([_Items(Samples(0)), _Items(Samples(1, wrong))])
        with pytest.raises(pisco.InputError, match=sentence):
            stream.gather(np.array([3, 15]))
    late = [Samples(0), Samples(1, broken), Samples(2)]
    late[1].after = 1
    with pytest.raises(pisco.InputError, match="the disk is gone"):
        run(late)
    with pytest.raises(pisco.InputError, match="some agents' data are arrays and others' are not"):
        run([Samples(0), {name: array[1] for name, array in ARRAYS.items()}, Samples(2)])
    with pytest.raises(pisco.InputError, match="expected numbers"):
        run([Samples(0, lambda sample: sample | {"y": "cat"})])
    for data, sentence in (
        (Samples(0), "data is one Samples, expected a list"),
        ([Samples(0, lambda sample: None)], "a sample of the data holds no numbers"),
        (
            [Samples(0, lambda sample: sample | {"y": 2**40})],
            "samples hold 1099511627776, which does not fit into int32",
        ),
        ([Fewer(0)], "returned 0 samples, expected 1"),
        ([Batches()], "data holds a Batches, which makes its own batches"),
        ([Rows({"y": []}), Samples(0)], "agent 0's data have no samples"),
    ):
        with pytest.raises(pisco.InputError, match=sentence):
            run(data)
    with pytest.raises(pisco.InputError, match="the test data have no samples"):
        with_test(Rows({"y": []}))


def flipped(batch, key):
    coins = jax.random.bernoulli(key, shape=batch["y"].shape)
    return batch | {"a": jnp.where(coins[:, None], -batch["a"], batch["a"])}


def test_transformations_are_for_training_alone():
    plain, changed, streamed = (
        pisco.Problem(loss, np.zeros(3, np.float32), data, transform=transform)
        for data, transform in ((ARRAYS, None), (ARRAYS, flipped), ([Samples(i) for i in range(N)], flipped))
    )
    one, two = run(plain, rounds=2), run(changed, rounds=2)
    assert one.history["loss"][0] == two.history["loss"][0] and not np.array_equal(one.params, two.params)
    same(two, run(streamed, rounds=2))
    assert plain.objective(jnp.ones(3)) == changed.objective(jnp.ones(3))
    for bad, sentence in (
        (lambda batch, key: {"a": batch["a"][:2], "y": batch["y"][:2]}, "return as many as it is given"),
        (lambda batch, key: {"y": batch["y"]}, "the loss of what it returns does"),
        (lambda batch: batch, "fails on 7 samples"),
    ):
        with pytest.raises(pisco.InputError, match=sentence):
            pisco.Problem(loss, np.zeros(3), ARRAYS, transform=bad)


def test_crops_and_flips():
    images, key = RNG.normal(size=(20, 6, 5, 2)), jax.random.key(1)
    for image, found in zip(images, np.asarray(random_flip(images, key)), strict=True):
        assert np.allclose(found, image, atol=1e-6) or np.allclose(found, image[:, ::-1], atol=1e-6)
    padded = np.pad(images, [(0, 0), (2, 2), (2, 2), (0, 0)])
    seen = set()
    for image, found in zip(padded, np.asarray(random_crop(images, key, padding=2)), strict=True):
        fits = [
            (r, c) for r in range(5) for c in range(5) if np.allclose(found, image[r : r + 6, c : c + 5], atol=1e-6)
        ]
        assert fits
        seen.add(fits[0])
    assert len(seen) > 5


@pytest.mark.slow
def test_memory_stays_bounded_by_a_third_of_the_file(tmp_path):
    program = textwrap.dedent(
        f"""
        import threading, time, numpy as np, pisco
        shape = (4, 750_000, 100)  # 1.2 GB
        data = np.lib.format.open_memmap({str(tmp_path / "x.npy")!r}, "w+", np.float32, shape)
        data[:, ::1000] = 1
        rule, ring = pisco.algorithms.pisco(local_lr=0.01, local_steps=3), pisco.Network.ring(4)

        def held():  # what is the process's own: pages of the file can be dropped at any time
            text = open("/proc/self/status").read()
            return int(text.split("RssAnon:")[1].split()[0]) / 1e3

        most, before = 0, held()
        def watch():
            global most
            while True:
                most = max(most, held())
                time.sleep(0.01)
        threading.Thread(target=watch, daemon=True).start()
        problem = pisco.Problem(lambda x, batch, key: (batch @ x - 1) ** 2, np.zeros(100, np.float32), data)
        result = pisco.run(rule, problem, ring, rounds=60, batch_size=4000, eval_every=30)
        print(result.history["loss"][-1], most - before)
        """
    )
    # What is freed goes back to the system. Else every thread keeps some, and how many threads the work is spread over
    # depends on how busy the cores are: that much is neither bounded nor in use.
    environment = os.environ | {"MALLOC_MMAP_THRESHOLD_": "1000000"}
    command = [sys.executable, "-c", program]
    done = subprocess.run(command, capture_output=True, text=True, timeout=1800, check=False, env=environment)
    assert done.returncode == 0, done.stderr
    final, grown = map(float, done.stdout.split())
    assert np.isfinite(final) and grown < 400, f"grew by {grown} MB"


def test_files_and_data_sets_that_get_shorter(tmp_path):
    """Reading behind the end of a mapped file would end the process."""
    disk = on_disk(tmp_path)
    problem = pisco.Problem(loss, np.zeros(3, np.float32), disk)
    kept = (tmp_path / "a.npy").read_bytes()
    with (tmp_path / "a.npy").open("r+b") as file:
        file.truncate(len(kept) // 2)
    with pytest.raises(pisco.InputError, match=r"agent 0's data fail .*shorter"):
        problem.data.gather(np.arange(3))
    with (tmp_path / "a.npy").open("r+b") as file:
        file.write(kept)
    assert len(problem.data.gather(np.arange(3))["a"]) == 3
    fewer = Samples(0)
    stream = Stream([_Items(fewer)])
    fewer.__class__ = type("Shorter", (Samples,), {"__len__": lambda self: 5})
    with pytest.raises(pisco.InputError, match=r"of 12 \(there are 5 samples now, and there were 12 before\)"):
        stream.gather(np.arange(3))


class Rows:
    """Test samples one by one."""

    def __init__(self, arrays):
        self.arrays, self.gone = arrays, False

    def __len__(self):
        return len(self.arrays["y"])

    def __getitem__(self, row):
        if self.gone:
            raise OSError("the disk is gone")
        return {name: array[row] for name, array in self.arrays.items()}


def scores(x, batch):
    return {"score": batch["a"] @ x, "positive": batch["y"] > 0}


def pairs_in_order(values):
    """The area under the curve: it needs all samples at once."""
    before = values["score"][:, None] > values["score"]
    pairs = values["positive"][:, None] & ~values["positive"]
    return (before & pairs).sum() / pairs.sum()


METRICS_OF_TEST = [
    pisco.Metric("error", lambda x, batch: (batch["a"] @ x - batch["y"]) ** 2),
    pisco.Metric("auc", scores, reduce=pairs_in_order),
]


def with_test(test, data=ARRAYS):
    return pisco.Problem(loss, np.ones(3, np.float32), data, test=test, metrics=METRICS_OF_TEST)


@pytest.mark.parametrize("engine", ["scan", pytest.param("sharded", marks=pytest.mark.slow)])
def test_test_data_stay_where_they_are(tmp_path, monkeypatch, engine):
    held = {"a": RNG.normal(size=(50, 3)).astype(np.float32), "y": RNG.normal(size=50).astype(np.float32)}
    for name, array in held.items():
        np.save(tmp_path / f"{name}.npy", array)
    maps = {name: np.load(tmp_path / f"{name}.npy", mmap_mode="r") for name in held}
    expected = run(with_test(held), rounds=2)
    assert expected.history["test_auc"].min() > 0
    few = Rows(held)
    for problem in (with_test(maps), with_test(few, [Samples(i) for i in range(N)])):
        assert problem.num_test == 50 and problem.trouble is problem.test.stream.trouble
        same(run(problem, rounds=2), expected)
    assert subsample(problem, 20).num_test == 20
    most, gather = [], Stream.gather
    monkeypatch.setattr(Stream, "gather", lambda self, rows: most.append(len(rows)) or gather(self, rows))
    monkeypatch.setattr("pisco.problems.blocks.STREAM_BYTES", 16 * 8)  # eight samples
    blocks = with_test(few)
    found = run(blocks, rounds=2, engine=engine, eval_every=2)
    assert max(most) == 8
    for name in ("test_error", "test_auc", "loss"):
        np.testing.assert_allclose(found.history[name], expected.history[name], rtol=1e-5, err_msg=name)
    few.gone = True
    with pytest.raises(pisco.InputError, match=r"the test data fail at sample 0 of 50 \(OSError"):
        run(blocks, rounds=2, engine=engine)
