"""Checkpoints: bit-identical continuation, atomic writes, damage noticed, other experiments refused."""

import tracemalloc

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import pisco
from pisco.engines import checkpoint as files
from pisco.networks.varying import cycle
from pisco.problems.logistic import LogisticLoss

from test_engines import PROBLEM, RULE, assert_same, ring

HALF = (np.eye(4) + np.eye(4)[::-1]) / 2


def run(folder=None, **changes):
    options = {"rounds": 40, "batch_size": 5, "seed": [0, 1], "chunk_rounds": 10, "eval_every": 1} | changes
    return pisco.run(RULE, PROBLEM, ring(), checkpoint=folder, **options)


class Killed(Exception):
    pass


def killed_after(rounds):
    def progress(update):
        if update.done > rounds:
            raise Killed

    return progress


@pytest.fixture(autouse=True)
def every_chunk(monkeypatch):
    """A checkpoint after every chunk."""
    monkeypatch.setattr("pisco.engines.driver.CHECKPOINT_SECONDS", -1.0)


@pytest.mark.parametrize("eval_every", [1, pytest.param(4, marks=pytest.mark.slow), 25])
@pytest.mark.parametrize("stop", [10, 30])
def test_a_stopped_run_continues_as_if_nothing_had_happened(tmp_path, stop, eval_every):
    whole = run(eval_every=eval_every)
    with pytest.raises(Killed):
        run(tmp_path, eval_every=eval_every, progress=killed_after(stop))
    assert files.latest(tmp_path).round > 0
    assert_same(run(tmp_path, eval_every=eval_every, resume=True), whole)


def test_resuming_a_finished_run_computes_nothing_and_may_extend_it(tmp_path):
    first = run(tmp_path, rounds=20)
    seen = []
    assert_same(run(tmp_path, rounds=20, resume=True, progress=seen.append), first)
    assert not seen
    assert_same(run(tmp_path, rounds=40, resume=True), run())


def test_the_end_of_a_shorter_run_leaves_no_row_in_the_longer_one(tmp_path):
    assert run(tmp_path, rounds=15, eval_every=10).history["round"][0].tolist() == [0, 10, 15]
    longer, straight = run(tmp_path, eval_every=10, resume=True), run(eval_every=10)
    for name, values in straight.history.items():
        np.testing.assert_allclose(longer.history[name], values, rtol=1e-6)


def test_a_folder_that_cannot_be_used_is_refused_before_anything_is_computed(tmp_path):
    run(tmp_path / "used", rounds=20)
    with pytest.raises(pisco.InputError, match="checkpoints up to round 20 of an earlier run"):
        run(tmp_path / "used", rounds=20)
    with pytest.raises(pisco.InputError, match="has got to round 20 already"):
        run(tmp_path / "used", rounds=10, resume=True)
    (tmp_path / "file").write_text("")
    with pytest.raises(pisco.InputError, match="is a file; give a folder"):
        run(tmp_path / "file")


def test_resuming_without_a_checkpoint_starts_at_the_beginning(tmp_path):
    assert_same(run(tmp_path / "new", resume=True), run())


def damage_cut(path):
    path.write_bytes(path.read_bytes()[:-100])


def damage_flip(path):
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(bytes(content))


def damage_empty(path):
    path.write_bytes(b"")


@pytest.mark.parametrize("damage", [damage_cut, damage_flip, damage_empty])
def test_a_damaged_checkpoint_gives_way_to_the_one_before(tmp_path, damage):
    with pytest.raises(Killed):
        run(tmp_path, progress=killed_after(30))
    newest = sorted(tmp_path.glob("*.ckpt"))[-1]
    before = files.latest(tmp_path).round
    damage(newest)
    with pytest.warns(UserWarning, match="damaged checkpoint"):
        assert files.latest(tmp_path).round < before
    with pytest.warns(UserWarning, match="damaged checkpoint"):
        resumed = run(tmp_path, resume=True)
    assert_same(resumed, run())


def test_only_two_are_kept_and_no_temporary_file_stays(tmp_path):
    run(tmp_path)
    assert [p.name for p in sorted(tmp_path.iterdir())] == ["round-000000030.ckpt", "round-000000040.ckpt"]


@pytest.mark.parametrize(
    ("changes", "named"),
    [({"seed": [0, 2]}, "seeds"), ({"batch_size": 6}, "batch_size"), ({"eval_every": 2}, "eval_every")],
)
def test_a_checkpoint_of_another_experiment_is_refused(tmp_path, changes, named):
    run(tmp_path, rounds=10)
    with pytest.raises(pisco.InputError, match=f"another experiment: {named} was"):
        run(tmp_path, resume=True, **changes)


def test_other_data_or_weights_are_noticed(tmp_path):
    run(tmp_path, rounds=10)
    other = pisco.Problem(
        PROBLEM.loss, jnp.zeros(3), {k: np.asarray(v).reshape(4, 30, *v.shape[1:]) * 2 for k, v in PROBLEM.data.items()}
    )
    options = {"rounds": 10, "batch_size": 5, "seed": [0, 1], "eval_every": 1, "checkpoint": tmp_path, "resume": True}
    with pytest.raises(pisco.InputError, match="another experiment: data was"):
        pisco.run(RULE, other, ring(), **options)
    with pytest.raises(pisco.InputError, match="another experiment: weights was|another experiment: network was"):
        pisco.run(RULE, PROBLEM, pisco.Network.ring(4, weights="max-degree", server=ring().server), **options)


def test_another_loss_start_or_metric_is_noticed(tmp_path):
    shards = {"features": np.ones((2, 5, 3), np.float32), "labels": np.ones((2, 5), np.int8)}
    net, test = pisco.Network.path(2), {name: values[0] for name, values in shards.items()}

    def train(rho=0.1, start=0.0, metrics=None, **options):
        problem = pisco.Problem(
            LogisticLoss(rho), jnp.full(3, start), shards, test=test, metrics=metrics or {"one": one}
        )
        pisco.run(RULE, problem, net, rounds=2, checkpoint=tmp_path, **options)

    def one(params, batch):
        return jnp.ones(batch["labels"].shape)

    train()
    train(resume=True)
    for named, changes in {"loss": {"rho": 0.2}, "start": {"start": 1.0}, "metrics": {"metrics": {"two": one}}}.items():
        with pytest.raises(pisco.InputError, match=f"another experiment: {named} was"):
            train(resume=True, **changes)


DETAILS = {
    "gossip steps": ({}, {"gossip_steps": 2}),
    "gossip first": ({}, {"gossip_before_server": True}),
    "p_i": tuple({"server": pisco.per_agent(p)} for p in ([0.1, 0.2, 0.3, 0.1], [0.1, 0.3, 0.2, 0.1])),
    "warm-up": tuple({"server": pisco.adaptive(4, warmup=warmup)} for warmup in (0, 3)),
    "digits": tuple({"varying": pisco.edge_dropout(p)} for p in (0.2, 0.2000001)),
    "matrices": tuple({"varying": cycle([np.eye(4), HALF][::step])} for step in (1, -1)),
    "strikes": tuple({"guard": pisco.clip(strikes=strikes)} for strikes in (3, 4)),
}
"""Two networks that differ in what neither graph, weights nor a rounded number shows."""


@pytest.mark.parametrize("name", DETAILS)
def test_another_network_is_noticed_in_every_detail(tmp_path, name):
    one, other = DETAILS[name]

    def train(how, **options):
        pisco.run(RULE, PROBLEM, pisco.Network.ring(4, **how), rounds=2, checkpoint=tmp_path, chunk_rounds=1, **options)

    train(one)
    train(one, resume=True)  # made anew, it is the same
    with pytest.raises(pisco.InputError, match="another experiment: network (in detail )?was"):
        train(other, resume=True)


class Half:
    """A compressor of a user's own, whose text holds an address."""

    def __call__(self, tree, key):
        return jax.tree.map(lambda x: x / 2, tree)

    def message_bytes(self, tree):
        return 4


def test_a_compressor_of_ones_own_goes_on(tmp_path):
    def train(**options):
        rule = pisco.algorithms.compressed(inner=pisco.algorithms.dsgd(local_lr=0.1), compressor=Half())
        return pisco.run(rule, PROBLEM, ring(), eval_every=1, **options)

    train(rounds=2, checkpoint=tmp_path)
    assert_same(train(rounds=4, checkpoint=tmp_path, resume=True), train(rounds=4))


def test_a_full_disk_does_not_end_the_run(tmp_path, monkeypatch):
    def full(path, *pieces, durable):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(files, "atomic_write", full)
    with pytest.warns(UserWarning, match="No space left on device; the run goes on"):
        result = run(tmp_path)
    assert_same(result, run())


def test_states_of_another_shape_are_refused(tmp_path):
    leaves = {"['x']": np.zeros((2, 3), jnp.bfloat16)}
    files.save(tmp_path, files.Checkpoint(3, {"a": 1}, {"rounds": np.arange(2)}, leaves))
    found = files.latest(tmp_path)
    assert found.round == 3 and found.leaves["['x']"].dtype == jnp.bfloat16
    with pytest.raises(pisco.InputError, match=r"\['x'\] is bfloat16\(2, 3\) in the checkpoint, expected"):
        found.state({"x": np.zeros((2, 4))})
    with pytest.raises(pisco.InputError, match="another state"):
        found.state({"y": np.zeros((2, 3))})


def test_saving_does_not_copy_the_state_and_clears_what_a_kill_left(tmp_path):
    left = tmp_path / ".round-000000002.ckpt.12345.tmp"
    left.write_bytes(b"cut off")
    state = {"x": np.ones(2_000_000)}
    tracemalloc.start()
    try:
        files.save(tmp_path, files.Checkpoint(3, {}, {}, files.named_leaves(state)))
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < state["x"].nbytes / 4
    assert [file.name for file in tmp_path.iterdir()] == ["round-000000003.ckpt"]
    np.testing.assert_array_equal(files.latest(tmp_path).state(state)["x"], state["x"])
