"""The scan and debug engines, the driver around them, and what they promise: seeds, chunks, divergence, Ctrl-C."""

import os
import signal
import threading

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import pisco
from pisco.engines.job import Segment, even_chunk, next_segment
from pisco.engines.scan import ScanEngine

from worlds import Quadratics


def noisy_problem(agents=4, samples=30):
    rng = np.random.default_rng(1)
    data = {"a": rng.normal(size=(agents, samples, 3)), "y": rng.normal(size=(agents, samples))}
    return pisco.Problem(
        lambda x, batch, key: (batch["a"] @ x - batch["y"]) ** 2, jnp.zeros(3), jax.tree.map(np.float32, data)
    )


PROBLEM = noisy_problem()
RULE = pisco.algorithms.pisco(local_lr=0.02, local_steps=1)


def ring(p=0.3):
    return pisco.Network.ring(4, server=pisco.bernoulli(p))


def run(**changes):
    options = {"rounds": 30, "batch_size": 5, "seed": 0, "eval_every": 1} | changes
    return pisco.run(RULE, PROBLEM, ring(), **options)


def assert_same(one, two, seed=None):
    for name in one.history:
        left = one.history[name] if seed is None else one.history[name][seed]
        np.testing.assert_array_equal(left, two.history[name], err_msg=name)
    np.testing.assert_array_equal(one.params if seed is None else one.params[seed], two.params)


def test_stacked_seeds_equal_single_runs_bit_by_bit():
    together = run(seed=[3, 4, 5])
    assert together.params.shape == (3, 4, 3) and together.history["loss"].shape == (3, 31)
    for index, seed in enumerate((3, 4, 5)):
        assert_same(together, run(seed=seed), index)


def test_batched_runs_agree_with_looped_ones(x64):
    data = Quadratics()
    options = {"rounds": 20, "seed": [0, 1]}
    batched = pisco.run(RULE, data.problem(), pisco.Network.ring(6), engine=ScanEngine(batched=True), **options)
    looped = pisco.run(RULE, data.problem(), pisco.Network.ring(6), engine=ScanEngine(batched=False), **options)
    np.testing.assert_allclose(batched.params, looped.params, atol=1e-12)
    np.testing.assert_allclose(batched.history["loss"], looped.history["loss"], atol=1e-12)


def test_a_sweep_equals_its_single_runs():
    points = [(pisco.algorithms.dsgd(local_lr=lr), pisco.bernoulli(p)) for lr, p in ((0.01, 0.1), (0.02, 0.6))]
    results = pisco.sweep(points, PROBLEM, ring(), rounds=15, batch_size=5, seeds=[0, 7], eval_every=1)
    for (rule, server), result in zip(points, results, strict=True):
        alone = pisco.run(rule, PROBLEM, ring().with_server(server), rounds=15, batch_size=5, seed=[0, 7], eval_every=1)
        assert_same(result, alone)
    with pytest.raises(pisco.InputError, match="differ in numbers only"):
        pisco.sweep([(RULE, pisco.never()), (RULE, pisco.bernoulli(0.5))], PROBLEM, ring(), rounds=2)


@pytest.mark.parametrize("chunk", [1, 7, 30, 1000])
def test_chunks_do_not_change_the_trajectory(chunk):
    assert_same(run(), run(chunk_rounds=chunk))


def test_measuring_seldom_gives_the_same_rows():
    often, seldom = run(), run(eval_every=7)
    np.testing.assert_array_equal(seldom.history["round"], [0, 7, 14, 21, 28, 30])
    rows = seldom.history["round"]
    np.testing.assert_array_equal(often.history["server_rounds"][rows], seldom.history["server_rounds"])
    np.testing.assert_allclose(often.history["loss"][rows], seldom.history["loss"], rtol=1e-6)
    assert seldom.history["server"].sum() == often.history["server"].sum()


def test_measuring_more_seldom_than_the_chunks():
    sparse = run(eval_every=25, chunk_rounds=4)
    np.testing.assert_array_equal(sparse.history["round"], [0, 25, 30])
    np.testing.assert_array_equal(sparse.history["bytes_server"][-1], run().history["bytes_server"][-1])
    np.testing.assert_allclose(sparse.params, run().params, rtol=1e-5)


@pytest.mark.parametrize("rounds", [1, 5, 37, 100])
@pytest.mark.parametrize("eval_every", [1, 3, 50, 200])
@pytest.mark.parametrize("chunk", [1, 10, 100])
def test_segments_cover_every_round_once_and_measure_where_they_should(rounds, eval_every, chunk):
    chunk, done, measured = even_chunk(rounds, eval_every, chunk), 0, []
    while done < rounds:
        segment = next_segment(done, rounds, eval_every, chunk)
        if segment.measured:
            measured += [done + segment.stride * (i + 1) for i in range(segment.evals)]
        done += segment.rounds
    assert done == rounds
    assert measured == sorted({*range(eval_every, rounds + 1, eval_every), rounds})


@pytest.mark.slow
def test_debug_engine_gives_the_same_history():
    fast, slow = run(rounds=4), run(rounds=4, engine="debug")
    assert fast.history.keys() == slow.history.keys()
    for name in fast.history:
        np.testing.assert_allclose(fast.history[name], slow.history[name], rtol=1e-4, atol=1e-6, err_msg=name)


def test_debug_engine_shows_concrete_values():
    seen = []

    def loss(x, batch, key):
        if key is not None:
            seen.append(float(jax.lax.stop_gradient(batch).sum()))
        return jnp.sum((x - batch) ** 2, axis=-1)

    problem = pisco.Problem(loss, jnp.zeros(2), np.ones((3, 4, 2), np.float32))
    pisco.run(RULE, problem, pisco.Network.ring(3), rounds=1, batch_size=2, engine="debug")
    assert len(seen) > 2 * 3 and set(seen[-3:]) == {4.0}


def test_divergence_is_a_field_with_the_round_it_began():
    world = Quadratics()
    rule = pisco.algorithms.dsgd(local_lr=3.0)
    result = pisco.run(rule, world.problem(), pisco.Network.ring(6), rounds=2000, chunk_rounds=50)
    assert result.diverged and result.diverged_at is not None and result.diverged_at <= 3
    assert result.rounds < 2000  # nobody waits for NaNs
    assert (
        pisco.run(pisco.algorithms.dsgd(local_lr=0.1), world.problem(), pisco.Network.ring(6), rounds=5).diverged_at
        is None
    )


def test_one_diverging_seed_does_not_stop_the_others():
    points = [(pisco.algorithms.dsgd(local_lr=lr), pisco.never()) for lr in (0.05, 5.0)]
    fine, wild = pisco.sweep(points, Quadratics().problem(), pisco.Network.ring(6), rounds=300)
    assert fine.rounds == 300 and not fine.diverged and wild.diverged


def test_ctrl_c_keeps_what_was_computed():
    calls, before = [], signal.getsignal(signal.SIGINT)

    def progress(update):
        calls.append(update.done)
        if update.done == 20:
            os.kill(os.getpid(), signal.SIGINT)

    assert threading.current_thread() is threading.main_thread()
    result = run(rounds=1000, chunk_rounds=10, progress=progress)
    assert result.interrupted and result.rounds == 20 == calls[-1]
    assert_same(result, run(rounds=20, chunk_rounds=10))
    assert signal.getsignal(signal.SIGINT) is before


def test_ctrl_c_in_the_last_chunk_loses_nothing_and_is_told():
    """A loop over short runs, each a single chunk, could not be stopped otherwise."""

    def progress(update):
        os.kill(os.getpid(), signal.SIGINT)

    result = run(chunk_rounds=30, progress=progress)
    assert result.asked_to_stop and not result.interrupted and result.rounds == 30
    assert_same(result, run())
    assert not run().asked_to_stop


def test_progress_reports_every_chunk():
    seen = []
    run(
        chunk_rounds=10, progress=lambda update: seen.append((update.done, update.rounds, float(update.row["loss"][0])))
    )
    assert [(done, rounds) for done, rounds, _ in seen] == [(10, 30), (20, 30), (30, 30)]


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"batch_size": 31}, "batch_size is 31, but an agent has only 30 samples"),
        ({"batch_size": 0}, "batch_size is 0"),
        ({"rounds": 0}, "rounds is 0"),
        ({"eval_every": 0}, "eval_every is 0"),
        ({"seed": -1}, "seed is -1"),
        ({"seed": []}, "at least one seed"),
        ({"engine": "scna"}, "unknown engine 'scna'; did you mean 'scan'"),
        ({"resume": True}, "resume needs the folder"),
        ({"checkpoint": 3}, "checkpoint is 3, expected the path of a folder"),
        ({"seed": 1.5}, "seed is 1.5, expected a whole number"),
        ({"seed": [0, 1.7]}, "seed is 1.7, expected a whole number"),
        ({"seed": "12"}, "seed is '12', expected a whole number"),
        ({"engine": ScanEngine}, "expected one of scan, debug, sharded, or an engine object"),
    ],
)
def test_bad_settings_are_refused(changes, sentence):
    with pytest.raises(pisco.InputError, match=sentence):
        run(**changes)


def test_mismatched_agents_are_refused():
    with pytest.raises(pisco.InputError, match="the problem has 4 agents and the network 5"):
        pisco.run(RULE, PROBLEM, pisco.Network.ring(5), rounds=1)
    with pytest.raises(pisco.InputError, match="algorithm is 3"):
        pisco.run(3, PROBLEM, ring(), rounds=1)
    with pytest.raises(pisco.InputError, match="problem is Network"):
        pisco.run(RULE, ring(), PROBLEM, rounds=1)


def test_points_of_a_sweep_are_checked_all():
    points = [(pisco.algorithms.scaffold(local_lr=0.1, local_steps=1), pisco.bernoulli(p)) for p in (1.0, 0.5)]
    with pytest.raises(pisco.InputError, match="needs the server in every round"):
        pisco.sweep(points, PROBLEM, ring(), rounds=1)
    with pytest.raises(pisco.InputError, match="is no pair of an algorithm and a schedule"):
        pisco.sweep([(RULE, 0.1)], PROBLEM, ring(), rounds=1)
    with pytest.raises(pisco.InputError, match="give at least one point"):
        pisco.sweep([], PROBLEM, ring(), rounds=1)
    found = pisco.sweep(((RULE, pisco.bernoulli(p)) for p in (0.1, 0.9)), PROBLEM, ring(), rounds=2)
    assert len(found) == 2


@pytest.mark.parametrize(
    "changes", [{"local_lr": 0}, {"local_lr": -1}, {"local_steps": -1}, {"local_steps": 1.5}, {"comm_lr": float("inf")}]
)
def test_bad_hyperparameters_are_refused(changes):
    name = next(iter(changes))
    with pytest.raises(pisco.InputError, match=f"{name} is"):
        pisco.algorithms.pisco(**({"local_lr": 0.1, "local_steps": 1} | changes))


@pytest.mark.slow
def test_many_rounds_do_not_grow_memory():
    """Resident memory after 30,000 rounds is within 5% of that after 3,000."""
    psutil_free = resident()
    assert psutil_free > 0
    run(rounds=3000, eval_every=100, chunk_rounds=300)
    early = resident()
    run(rounds=30_000, eval_every=1000, chunk_rounds=300)
    assert resident() < 1.05 * early


def resident():
    """Resident bytes of this process, from the kernel."""
    with open("/proc/self/statm") as file:  # noqa: PTH123
        return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def test_a_segment_is_what_it_says():
    assert Segment(3, 5, measured=True).rounds == 15


@pytest.mark.parametrize("name", ["dsgd", pytest.param("pisco", marks=pytest.mark.slow)])
def test_a_step_of_one_is_left_out_of_a_program_unless_others_are_swept_with_it(name):
    """And the numbers are the same, left out or not."""
    made = [getattr(pisco.algorithms, name)(local_lr=0.02, local_steps=2, comm_lr=size) for size in (1.0, 0.5)]
    assert [len(jax.tree.leaves(one)) for one in made] == [1, 2]
    points = [(one, pisco.bernoulli(0.3)) for one in made]
    for (one, server), found in zip(points, pisco.sweep(points, PROBLEM, ring(), rounds=4), strict=True):
        alone = pisco.run(one, PROBLEM, ring().with_server(server), rounds=4, seed=[0])
        jax.tree.map(np.testing.assert_array_equal, alone.params, found.params)
