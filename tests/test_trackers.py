"""`--log`: what a tracker was told is read back with its own library."""

import subprocess
import sys
import warnings

import numpy as np
import pytest
from typer.testing import CliRunner

from pisco import Result
from pisco.cli.main import app
from pisco.report import trackers

from worlds import TINY_EXPERIMENT


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """A folder with a small experiment, and the working one."""
    monkeypatch.chdir(tmp_path)
    rng = np.random.default_rng(0)
    np.savez("points.npz", features=rng.normal(size=(16, 3)), labels=np.arange(16) % 2)
    (tmp_path / "tiny.toml").write_text(TINY_EXPERIMENT)
    return tmp_path


def run(*options):
    # Trackers bring warnings of their own.
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return CliRunner().invoke(app, ["run", "tiny.toml", "--out", "here", *options])


def test_tensorboard_reads_it_back(folder):
    pytest.importorskip("tensorboard", reason="the extra `tensorboard` is not installed")
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    done = run("--seeds", "2", "--log", "tensorboard")
    assert done.exit_code == 0 and "tensorboard --logdir here/tensorboard" in done.output, done.output
    result = Result.load(folder / "here")
    for at in range(2):
        events = EventAccumulator(str(folder / "here" / "tensorboard" / f"seed-{at}"), {"scalars": 0})
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            events.Reload()
        assert set(events.Tags()["scalars"]) == set(result.history) - {"round"}
        assert "settings" in events.Tags()["tensors"]
        for name in ("loss", "bytes_server"):
            read = events.Scalars(name)
            assert [each.step for each in read] == result.column("round")[at].tolist()
            np.testing.assert_allclose([each.value for each in read], result.column(name)[at], rtol=1e-6)


def test_mlflow_reads_it_back(folder, monkeypatch):
    pytest.importorskip("mlflow", reason="the extra `mlflow` is not installed")
    pytest.importorskip("sqlalchemy", reason="the extra `mlflow` is not installed")
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    done = run("--log", "mlflow")
    assert done.exit_code == 0 and "mlflow ui" in done.output, done.output
    result = Result.load(folder / "here")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        from mlflow import MlflowClient

        client = MlflowClient(tracking_uri=f"sqlite:///{folder / 'mlflow.db'}")
        experiment = client.get_experiment_by_name("pisco")
        (kept,) = client.search_runs([experiment.experiment_id])
        read = client.get_metric_history(kept.info.run_id, "loss")
    assert kept.info.status == "FINISHED" and kept.info.run_name == "here/seed-0"
    assert kept.data.params["algorithm.local_lr"] == "0.1"
    assert [each.step for each in read] == result.history["round"].tolist()
    np.testing.assert_allclose([each.value for each in read], result.history["loss"], rtol=1e-12)


@pytest.mark.slow
def test_wandb_writes_offline(folder, monkeypatch):
    pytest.importorskip("wandb", reason="the extra `wandb` is not installed")
    monkeypatch.setenv("WANDB_MODE", "offline")
    # A process of its own: wandb's helper writes its file when the process ends.
    command = [sys.executable, "-m", "pisco.cli.main", "run", "tiny.toml", "--out", "here", "--log", "wandb"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0 and "wandb sync" in done.stdout, done.stderr
    (kept,) = (folder / "here" / "wandb").glob("offline-run-*/run-*.wandb")
    assert b"grad_norm_sq_mean" in kept.read_bytes()


@pytest.mark.parametrize("name", ["tensorboard", "mlflow", "wandb"])
def test_a_missing_package_is_one_sentence(folder, monkeypatch, name):
    for module in [name, *(loaded for loaded in sys.modules if loaded.startswith(f"{name}."))]:
        monkeypatch.setitem(sys.modules, module, None)
    done = run("--log", name)
    assert done.exit_code == 2
    assert f"pip install 'pisco-fl[{name}]'" in done.output
    assert not (folder / "here").exists()


def test_an_unknown_tracker_is_one_sentence(folder):
    done = run("--log", "tensorbored")
    assert done.exit_code == 2 and "did you mean 'tensorboard'?" in done.output


def test_a_tracker_that_fails_does_not_stop_the_run(folder, monkeypatch):
    class Broken:
        look = "nowhere"

        def __init__(self, name, settings, folder):
            pass

        def rows(self, rounds, columns):
            raise OSError("the disk is full")

        def close(self, state):
            raise AssertionError("given up, so not closed")

    monkeypatch.setitem(trackers.TRACKERS, "broken", Broken)
    done = CliRunner().invoke(app, ["run", "tiny.toml", "--out", "here", "--log", "broken"])
    assert done.exit_code == 0 and Result.load(folder / "here").rounds == 20
    assert "--log broken failed (OSError: the disk is full); the run goes on without it" in done.output
