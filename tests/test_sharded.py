"""The engine `sharded`: the same numbers as `scan` on devices and processes, and only what neighbours need travels."""

import json
import os
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import jax
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import pisco
from pisco.engines import checkpoint
from pisco.engines.cluster.processes import Rank, join, rank_here
from pisco.engines.cluster.rendezvous import meet
from pisco.engines.cluster.supervisor import free_port
from pisco.engines.sharded import ShardedEngine
from pisco.engines.sharded.transfers import FULLNESS, Blocks, _transfers, block_gossip
from pisco.networks import graphs, weights
from pisco.networks.varying import fixed
from pisco.problems.problem import Problem

from sharded_cases import CASES, NETWORKS, ROWS
from worlds import Quadratics

PROGRAM = Path(__file__).with_name("sharded_cases.py")
ENVIRONMENT = os.environ | {
    "JAX_PLATFORMS": "cpu",
    "PYTHONPATH": os.pathsep.join([str(PROGRAM.parent), str(Path(pisco.__file__).parent.parent)]),
}


def run_cases(cases, devices, processes=1):
    """The differences that the program of `sharded_cases` prints, from real processes."""
    port, started = free_port(), []
    for process in range(processes):
        place = [f"127.0.0.1:{port}", processes, process] if processes > 1 else None
        told = json.dumps({"cases": list(cases), "devices": devices, "place": place})
        command = [sys.executable, str(PROGRAM), told]
        pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
        started.append(subprocess.Popen(command, env=ENVIRONMENT, text=True, **pipes))
    ends = [process.communicate(timeout=7200) for process in started]
    assert all(process.returncode == 0 for process in started), ends[0][1][-3000:]
    return json.loads(ends[0][0].strip().splitlines()[-1])


def assert_close(found, cases):
    assert list(found) == list(cases)
    worst = {case: max(errors) for case, errors in found.items()}
    assert max(worst.values()) <= 1e-12, {case: error for case, error in worst.items() if error > 1e-12}


CUT = ["pisco-compressed", "tt-hf", "per agent", "one peer", "adaptive", "absent", "personal", "streamed", "poisoned"]
"""Rows and networks that together pass every kind of communication."""


@pytest.mark.parametrize("case", ["pisco-compressed", pytest.param("streamed, absent", marks=pytest.mark.slow)])
def test_some_of_the_cut_equals_scan_on_several_devices(case):
    assert_close(run_cases([case], [4]), [case])


@pytest.mark.slow
def test_a_cut_of_everything_equals_scan_on_several_devices():
    assert_close(run_cases(CUT, [4]), CUT)


@pytest.mark.slow
def test_two_processes_equal_scan():
    assert_close(run_cases(["pisco"], [1], processes=2), ["pisco"])


@pytest.mark.slow
def test_every_method_equals_scan_on_1_2_4_and_8_devices():
    assert_close(run_cases(ROWS, [1, 2, 4, 8]), ROWS)


@pytest.mark.slow
def test_every_network_equals_scan_whatever_the_number_of_devices():
    assert_close(run_cases(NETWORKS, [1, 3, 8]), NETWORKS)


@pytest.mark.slow
@pytest.mark.parametrize("processes", [2, 4])
def test_every_method_and_network_equals_scan_on_real_processes(processes):
    assert_close(run_cases(CASES, [1], processes), CASES)


@pytest.mark.slow
def test_several_devices_in_each_of_several_processes():
    assert_close(run_cases(CUT, [1, 3], processes=2), CUT)


# One device is what the test process has: the engine's other promises are checked on it.


def test_one_device_is_scan_bit_by_bit_and_compiles_once():
    traces = []

    def loss(params, batch, key):
        traces.append(1)
        return 0.5 * ((params - batch["b"]) ** 2).sum(axis=-1)

    data = {"b": Quadratics().minimizers[:, None].astype(np.float32)}
    problem = Problem(loss, np.zeros(4, np.float32), data)
    network = pisco.Network.ring(6, server=pisco.bernoulli(0.3))
    rule = pisco.algorithms.dsgd
    one = pisco.run(rule(local_lr=0.1), problem, network, rounds=10, engine="sharded")
    two = pisco.run(rule(local_lr=0.1), problem, network, rounds=10)
    np.testing.assert_array_equal(one.params, two.params)
    before = len(traces)
    other = network.with_server(pisco.bernoulli(0.9))
    pisco.run(rule(local_lr=0.2), problem, other, rounds=10, seed=7, engine="sharded")
    assert len(traces) == before


def test_agents_that_have_fewer_samples_than_are_measured_count_with_those():
    data = [{"b": np.arange(size, dtype=np.float32)} for size in (2, 5, 3)]
    problem = Problem(lambda x, batch, key: (x - batch["b"]) ** 2, np.float32(0), data, eval_samples=4)
    rule, network = pisco.algorithms.dsgd(local_lr=0.1), pisco.Network.ring(3)
    for engine in ("scan", "sharded"):
        result = pisco.run(rule, problem, network, rounds=1, engine=engine)
        assert result.history["loss"][0] == pytest.approx((1 / 2 + 14 / 4 + 5 / 3) / 3)


def test_half_precision_stays():
    start = {"w": np.ones(3, jax.numpy.bfloat16), "b": np.float32(1)}
    data = {"a": np.ones((6, 2, 3), np.float32)}
    problem = Problem(lambda p, batch, key: (batch["a"] @ p["w"] + p["b"]) ** 2, start, data)
    rule = pisco.algorithms.pisco(local_lr=0.01, local_steps=1)
    result = pisco.run(rule, problem, pisco.Network.ring(6, server=pisco.every(2)), rounds=4, engine="sharded")
    assert {name: str(leaf.dtype) for name, leaf in result.params.items()} == {"w": "bfloat16", "b": "float32"}


def test_checkpoints_go_from_scan_to_sharded_and_back(tmp_path, x64):
    world, network = Quadratics(), pisco.Network.ring(6, server=pisco.bernoulli(0.3))
    rule = pisco.algorithms.pisco(local_lr=0.02, local_steps=1)

    def run(rounds, engine, **options):
        return pisco.run(rule, world.problem(), network, rounds=rounds, engine=engine, chunk_rounds=5, **options)

    run(5, "scan", checkpoint=tmp_path)
    run(10, "sharded", checkpoint=tmp_path, resume=True)
    last = run(15, "scan", checkpoint=tmp_path, resume=True)
    np.testing.assert_allclose(last.params, run(15, "scan").params, rtol=0, atol=1e-12)


def test_more_devices_than_exist_are_refused():
    with pytest.raises(pisco.InputError, match="--devices is 99, but this process has"):
        ShardedEngine(99)


# What travels.


@given(st.integers(2, 40), st.integers(1, 9), st.floats(0, 1), st.integers(0, 5))
def test_transfers_deliver_what_is_needed_once_and_hardly_more(agents, devices, density, seed):
    rng = np.random.default_rng(seed)
    blocks = Blocks(agents, devices)
    edges = np.argwhere(rng.random((agents, agents)) < density)
    sources, targets = edges[:, 0], edges[:, 1]
    transfers, halo = _transfers(blocks, sources, targets)
    received = {}
    offset = 0
    for pairs, rows in transfers:
        senders, receivers = zip(*pairs, strict=True)
        assert len(set(senders)) == len(pairs) == len(set(receivers))  # a permutation
        for start, end in pairs:
            for place, row in enumerate(rows[start]):
                received[(end, offset + place)] = start * blocks.block + row
        offset += rows.shape[1]
    needed = {
        (t // blocks.block, s)
        for s, t in zip(sources.tolist(), targets.tolist(), strict=True)
        if s // blocks.block != t // blocks.block
    }
    assert set(halo) == needed
    assert all(received[(device, place)] == agent for (device, agent), place in halo.items())
    carried = sum(len(pairs) * rows.shape[1] for pairs, rows in transfers)
    assert carried * FULLNESS <= len(needed)


def test_a_ring_sends_two_rows_a_device_and_a_complete_graph_is_gathered():
    ring = block_gossip(pisco.Network.ring(12), Blocks(12, 4))
    assert [rows.shape for rows in ring.sent] == [(4, 1), (4, 1)] and not ring.gathers
    assert block_gossip(pisco.Network.complete(12), Blocks(12, 4)).gathers
    split = block_gossip(pisco.Network(graphs.clusters(4, 3, inner="ring")), Blocks(12, 4))
    assert not split.sent and not split.gathers  # every cluster on a device of its own: nothing travels
    own = pisco.Network.ring(12, varying=lambda graph, _: fixed(weights.metropolis(graph, lazy=True)))
    assert block_gossip(own, Blocks(12, 4)).gathers  # its weights are not those of the network
    assert block_gossip(pisco.Network.ring(12, varying=pisco.edge_dropout(0.5)), Blocks(12, 4)).edges is not None


# Who takes part.


@pytest.mark.parametrize(
    ("options", "environ", "expected"),
    [
        ((None, None, None), {}, None),
        (("h:1", 1, 0), {}, None),
        (("h:1", 3, 2), {}, Rank("h:1", 3, 2)),
        (
            (None, None, None),
            {"PISCO_COORDINATOR": "a:7", "PISCO_PROCESSES": "2", "PISCO_PROCESS_ID": "1"},
            Rank("a:7", 2, 1),
        ),
        (
            (None, None, None),
            {"SLURM_NTASKS": "8", "SLURM_PROCID": "3", "SLURM_STEP_NODELIST": "n[1-8]"},
            Rank(None, 8, 3),
        ),
        ((None, None, None), {"SLURM_NTASKS": "8"}, None),  # an allocation, not a step
    ],
)
def test_rank(options, environ, expected):
    assert rank_here(*options, environ) == expected


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        (("h:1", 2, None), "--process-id is missing"),
        (("h", 2, 0), "the coordinator is 'h', expected HOST:PORT"),
        (("h:x", 2, 0), "the coordinator is 'h:x'"),
        (("h:1", 0, 0), "--processes is 0"),
        (("h:1", 2, 2), "--process-id is 2, expected 0 to 1"),
    ],
)
def test_bad_membership_is_refused(options, sentence):
    with pytest.raises(pisco.InputError, match=sentence):
        rank_here(*options, {})


def test_a_coordinator_that_does_not_answer():
    with pytest.raises(pisco.InputError, match=r"does not answer \(waited 0.5 s.*start process 0 there"):
        join(Rank(f"127.0.0.1:{free_port()}", 2, 1), seconds=0.5)


def call_roll(*members, seconds=10):
    """What every process is told at the roll call, in threads instead of processes; None is to go on."""
    address = f"127.0.0.1:{free_port()}"

    def one(member):
        try:
            return meet(address, *member, seconds)
        except pisco.InputError as error:
            return str(error)

    with ThreadPoolExecutor() as pool:
        return list(pool.map(one, members))


def test_the_roll_call_names_who_is_missing_or_there_twice():
    assert call_roll((3, 0), (3, 1), (3, 2)) == [None, None, None]
    (told,) = call_roll((3, 0), seconds=0.3)
    assert "process 1 of 3 did not come to 127.0.0.1" in told and "(2 missing)" in told
    told = call_roll((3, 0), (3, 1), (3, 1))
    assert told[0] == "two processes say that they are process 1; give each its own --process-id"
    told = call_roll((2, 0), (3, 1))
    assert told[0] == told[1] and "--processes is 2 in process 0 and 3 in process 1" in told[0]


# Checkpoints in parts.


def write_parts(folder, round_index, value=1.0):
    rows = np.arange(12, dtype=np.float64).reshape(1, 6, 2) * value
    parts = [
        checkpoint.save_part(folder, round_index, (i, 2), 3 * i, {".x": rows[:, 3 * i : 3 * i + 3]}) for i in range(2)
    ]
    made = checkpoint.Checkpoint(round_index, {"a": 1}, {"rounds": np.arange(2)}, {})
    checkpoint.save(folder, made, parts)
    return rows


def test_parts_are_read_as_one(tmp_path):
    rows = write_parts(tmp_path, 5)
    found = checkpoint.latest(tmp_path)
    assert found.round == 5
    np.testing.assert_array_equal(found.leaves[".x"], rows)


@pytest.mark.parametrize("damage", ["missing", "cut", "of another time"])
def test_a_damaged_part_gives_way_to_the_checkpoint_before(tmp_path, damage):
    write_parts(tmp_path, 5)
    write_parts(tmp_path, 9)
    part = tmp_path / "round-000000009.part-1-of-2"
    if damage == "missing":
        part.unlink()
    elif damage == "cut":
        part.write_bytes(part.read_bytes()[:-5])
    else:
        checkpoint.save_part(tmp_path, 9, (1, 2), 3, {".x": np.zeros((1, 3, 2))})
    with pytest.warns(UserWarning, match="damaged checkpoint"):
        assert checkpoint.latest(tmp_path).round == 5


def test_parts_without_their_file_are_no_checkpoint_and_old_ones_go(tmp_path):
    for round_index in (1, 2, 3):
        write_parts(tmp_path, round_index)
    checkpoint.save_part(tmp_path, 4, (0, 2), 0, {".x": np.zeros((1, 3, 2))})
    assert checkpoint.latest(tmp_path).round == 3
    assert sorted({path.name.split(".")[0] for path in tmp_path.iterdir()}) == [
        "round-000000002",
        "round-000000003",
        "round-000000004",
    ]
