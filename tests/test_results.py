"""Results: saved, loaded, compared, exported."""

import json
import os

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import pisco

from test_engines import run


def test_save_and_load_keep_everything(tmp_path):
    result = run(seed=[0, 1])
    result.label = "mine"
    loaded = pisco.Result.load(result.save(tmp_path / "r", config={"name": "x"}))
    for name in result.history:
        np.testing.assert_array_equal(loaded.history[name], result.history[name])
    np.testing.assert_array_equal(loaded.params, result.params)
    assert (loaded.seeds, loaded.label, loaded.rounds) == ((0, 1), "mine", 30)
    summary = json.loads((tmp_path / "r" / "result.json").read_text())
    assert summary["versions"]["jax"] == jax.__version__ and summary["config"] == {"name": "x"}


def test_nested_parameters_come_back_nested(tmp_path):
    start = {"layers": [{"w": jnp.ones((2, 2))}, {"w": jnp.ones(2)}], "b": jnp.zeros(())}
    problem = pisco.Problem(
        lambda p, x, key: (x @ p["layers"][0]["w"] @ p["layers"][1]["w"] + p["b"]) ** 2,
        start,
        np.ones((3, 1, 2), np.float32),
    )
    result = pisco.run(pisco.algorithms.dsgd(local_lr=0.01), problem, pisco.Network.ring(3), rounds=1)
    loaded = pisco.Result.load(result.save(tmp_path))
    assert jax.tree.structure(loaded.params) == jax.tree.structure(result.params)


def test_any_leaf_comes_back(tmp_path):
    start = {"file": jnp.ones(2), "allow_pickle": jnp.zeros(1), "half": jnp.full(3, 0.1, jnp.bfloat16)}
    start |= {"half.npy": jnp.ones(1), "07": jnp.ones(1), "7": jnp.zeros(1)}
    problem = pisco.Problem(lambda p, x, key: x * p["file"].sum(), start, np.ones((3, 1), np.float32))
    result = pisco.run(pisco.algorithms.dsgd(local_lr=0.01), problem, pisco.Network.ring(3), rounds=1)
    loaded = pisco.Result.load(result.save(tmp_path))
    for name, leaf in result.params.items():
        assert loaded.params[name].dtype == leaf.dtype
        np.testing.assert_array_equal(np.asarray(loaded.params[name]), np.asarray(leaf))
    same = problem.model(loaded.params)
    assert same["half"].dtype == jnp.bfloat16


def test_a_list_with_a_frozen_leaf_in_it_comes_back_in_its_places(tmp_path):
    start, parts = [jnp.ones(2), jnp.full(2, 3.0), jnp.full(2, 5.0)], {"frozen": "1"}
    problem = pisco.Problem(lambda p, x, key: x * p[0].sum(), start, np.ones((3, 1), np.float32), parts=parts)
    result = pisco.run(pisco.algorithms.dsgd(local_lr=0.01), problem, pisco.Network.ring(3), rounds=1)
    loaded = pisco.Result.load(result.save(tmp_path))
    jax.tree.map(np.testing.assert_array_equal, problem.model(loaded.params), problem.model(result.params))


def test_a_result_equals_itself():
    first, second = run(rounds=1), run(rounds=1)
    assert first in [second, first] and [second, first].index(first) == 1 and first != second


def test_damaged_and_missing_results_say_so(tmp_path):
    with pytest.raises(pisco.InputError, match=r"holds no result: result\.json is missing"):
        pisco.Result.load(tmp_path)
    run().save(tmp_path)
    (tmp_path / "history.npz").write_bytes(b"rubbish")
    with pytest.raises(pisco.InputError, match=r"damaged result \(ValueError\); do the run again, in a folder of its"):
        pisco.Result.load(tmp_path)
    checkpoints = tmp_path / "checkpoints"
    checkpoints.mkdir()
    (checkpoints / "round-000000001.ckpt").touch()
    with pytest.raises(pisco.InputError, match=r"damaged result .*; `pisco run --resume .*` finishes the run"):
        pisco.Result.load(tmp_path)
    rows = run(rounds=1).history
    odd = {"shorter": rows | {"loss": rows["loss"][:1]}, "words": rows | {"loss": rows["loss"].astype(str)}}
    odd["seeds"] = {name: np.stack([column, column]) for name, column in rows.items()}
    odd["no rounds"] = {"loss": rows["loss"]}
    for history in odd.values():
        np.savez(tmp_path / "history.npz", **history)
        with pytest.raises(pisco.InputError, match="damaged result"):
            pisco.Result.load(tmp_path)
    np.savez_compressed(tmp_path / "history.npz", **rows)
    pisco.Result.load(tmp_path)
    whole = (tmp_path / "history.npz").read_bytes()
    (tmp_path / "history.npz").write_bytes(whole[:60] + bytes(byte ^ 255 for byte in whole[60:80]) + whole[80:])
    with pytest.raises(pisco.InputError, match="damaged result"):
        pisco.Result.load(tmp_path)
    (tmp_path / "history.npz").write_bytes(whole)
    summary = json.loads((tmp_path / "result.json").read_text())
    (tmp_path / "result.json").write_text(json.dumps(summary | {"columns": [1]}))
    with pytest.raises(pisco.InputError, match="damaged result"):
        pisco.Result.load(tmp_path)
    (tmp_path / "result.json").write_text("{")
    with pytest.raises(pisco.InputError, match="damaged result"):
        pisco.Result.load(tmp_path)


def test_targets_and_comparison():
    result = run(seed=[0, 1])
    reached = result.at_target("loss", at_most=float(result.history["loss"][:, 10].max()))
    assert np.all(reached <= 10)
    assert np.isnan(result.at_target("loss", at_most=-1.0)).all()
    record = pisco.compare([result], {"loss": 0.0})[0]
    assert record["rounds to loss"] is None and record["final loss"] > 0
    with pytest.raises(pisco.InputError, match="no column 'los'; did you mean 'loss'"):
        result.column("los")


def test_export(tmp_path):
    pandas = pytest.importorskip("pandas")
    result = run(seed=[0, 1], rounds=3)
    frame = result.to_pandas()
    assert list(frame["seed"]) == [0] * 4 + [1] * 4 and list(frame["round"]) == [0, 1, 2, 3] * 2
    result.history["bytes_gossip"] += 10**15 + 1  # what a large model sends
    read = pandas.read_csv(result.to_csv(tmp_path / "h.csv"))
    np.testing.assert_allclose(read["loss"], frame["loss"], rtol=1e-15)
    np.testing.assert_array_equal(read["bytes_gossip"], result.to_pandas()["bytes_gossip"])


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="no pipes with names here")
def test_what_is_no_file_is_not_replaced_by_one(tmp_path):
    """As `/dev/null` would be, by whoever may."""
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(pisco.InputError, match="pipe, which is a device or a pipe; give the path of a file"):
        run(rounds=1).to_csv(tmp_path / "pipe")
    assert (tmp_path / "pipe").is_fifo() and len(list(tmp_path.iterdir())) == 1
    with pytest.raises(pisco.InputError, match="which is a device"):
        run(rounds=1).to_csv("/dev/no-such-device.csv")


def test_running_mean_is_over_measured_rounds():
    history = run().history
    expected = np.cumsum(history["grad_norm_sq"]) / np.arange(1, 32)
    np.testing.assert_allclose(history["grad_norm_sq_mean"], expected, rtol=1e-12)
