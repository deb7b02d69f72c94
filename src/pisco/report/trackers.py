"""A run's history in the tracker a team already uses, written by that tracker's own library.

Each seed is a run of its own, and the steps are communication rounds.
"""

from __future__ import annotations

import os
import time
import warnings
from collections.abc import Callable, Mapping, Sequence
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np

from pisco.errors import InputError, brief, choose

if TYPE_CHECKING:
    from pisco.engines.driver import Progress
    from pisco.results import Result

__all__ = ["Log"]


SHARE, LEAST_SECONDS = 20, 2.0


class Tracker(Protocol):
    """Where the rows of one seed go; opened with a name, the settings by dotted name, and the result's folder."""

    look: str
    """How to look at it."""

    def rows(self, rounds: Sequence[int], columns: Mapping[str, np.ndarray]) -> None:
        """Write new rows: every column has one value per round."""
        ...

    def close(self, state: str) -> None:
        """No more will come; `state` is finished, interrupted or failed."""
        ...


class TensorBoard:
    """Event files below the result's folder: `tensorboard --logdir FOLDER/tensorboard`."""

    def __init__(self, name: str, settings: Mapping[str, Any], folder: Path):
        self.look = f"tensorboard --logdir {folder / 'tensorboard'}"
        summary = _module("tensorboard.summary.writer.event_file_writer", "tensorboard")
        self.writer = summary.EventFileWriter(str(folder / "tensorboard" / name))
        event, proto, tensor = (
            _module(f"tensorboard.compat.proto.{part}_pb2", "tensorboard") for part in ("event", "summary", "tensor")
        )
        self.event, self.proto = event.Event, proto
        text = "\n".join(["| setting | value |", "| --- | --- |", *(f"| {k} | {v} |" for k, v in settings.items())])
        shown = tensor.TensorProto(dtype=7, string_val=[text.encode()])  # 7 is a string
        plugin = proto.SummaryMetadata(plugin_data=proto.SummaryMetadata.PluginData(plugin_name="text"))
        self._add(0, proto.Summary.Value(tag="settings", tensor=shown, metadata=plugin))

    def rows(self, rounds: Sequence[int], columns: Mapping[str, np.ndarray]) -> None:
        for at, round_index in enumerate(rounds):
            values = [self.proto.Summary.Value(tag=n, simple_value=float(v[at])) for n, v in columns.items()]
            self._add(int(round_index), *values)
        self.writer.flush()

    def close(self, state: str) -> None:
        self.writer.close()

    def _add(self, step: int, *values: Any) -> None:
        event = self.event(step=step, wall_time=time.time(), summary=self.proto.Summary(value=list(values)))
        self.writer.add_event(event)


class MLflow:
    """A run of the experiment `pisco` on the server that MLFLOW_TRACKING_URI names, or in FOLDER's parent."""

    def __init__(self, name: str, settings: Mapping[str, Any], folder: Path):
        mlflow = _module("mlflow", "mlflow")
        entities = _module("mlflow.entities", "mlflow")
        self.metric = entities.Metric
        where = os.environ.get("MLFLOW_TRACKING_URI") or f"sqlite:///{(folder.parent / 'mlflow.db').resolve()}"
        self.look = where if where.startswith("http") else f"mlflow ui --backend-store-uri {where}"
        self.client = mlflow.MlflowClient(tracking_uri=where)
        chosen = os.environ.get("MLFLOW_EXPERIMENT_NAME", "pisco")
        found = self.client.get_experiment_by_name(chosen)
        experiment = found.experiment_id if found else self.client.create_experiment(chosen)
        tags = {"mlflow.runName": f"{folder.name}/{name}"}
        self.run = self.client.create_run(experiment, tags=tags).info.run_id
        params = [entities.Param(key, str(value)[:500]) for key, value in settings.items()]
        self.client.log_batch(self.run, params=params)

    def rows(self, rounds: Sequence[int], columns: Mapping[str, np.ndarray]) -> None:
        now = int(1000 * time.time())
        metrics = [
            self.metric(name, float(values[at]), now, int(round_index))
            for at, round_index in enumerate(rounds)
            for name, values in columns.items()
        ]
        for first in range(0, len(metrics), 1000):  # the most that a call may carry
            self.client.log_batch(self.run, metrics=metrics[first : first + 1000])

    def close(self, state: str) -> None:
        status = {"finished": "FINISHED", "interrupted": "KILLED"}.get(state, "FAILED")
        self.client.set_terminated(self.run, status)


class WandB:
    """A run of the project `pisco` (WANDB_PROJECT and WANDB_MODE apply)."""

    def __init__(self, name: str, settings: Mapping[str, Any], folder: Path):
        wandb = _module("wandb", "wandb")
        self.run = wandb.init(
            project=os.environ.get("WANDB_PROJECT", "pisco"),
            group=folder.name,
            name=f"{folder.name}/{name}",
            config=dict(settings),
            dir=str(folder),
            reinit="create_new",
        )
        self.look = self.run.url or f"wandb sync {folder / 'wandb'}/offline-run-*"

    def rows(self, rounds: Sequence[int], columns: Mapping[str, np.ndarray]) -> None:
        for at, round_index in enumerate(rounds):
            self.run.log({name: float(values[at]) for name, values in columns.items()}, step=int(round_index))

    def close(self, state: str) -> None:
        self.run.finish(exit_code=0 if state == "finished" else 1)


TRACKERS: dict[str, Callable[[str, Mapping[str, Any], Path], Tracker]] = {
    "tensorboard": TensorBoard,
    "mlflow": MLflow,
    "wandb": WandB,
}


class Log:
    """Follows one run: call it with every `Progress`, then `finish` or `close` it.

    Rows are written between two chunks of rounds, for at most a twentieth of the time. A tracker that fails on the way
    is given up with a warning: the run matters more.
    """

    def __init__(self, tracker: str, seeds: Sequence[int], settings: Mapping[str, Any], folder: Path):
        start = choose("log", tracker, TRACKERS)
        self.name, self.written, self.next_time = tracker, 0, 0.0
        self.trackers: list[Tracker] = []
        try:
            for seed in seeds:
                self.trackers.append(start(f"seed-{seed}", dict(settings) | {"seed": seed}, folder))
        except InputError:
            raise
        except Exception as error:
            raise InputError(f"--log {tracker} could not be started ({brief(error)[:200]})") from error

    def __call__(self, progress: Progress) -> None:
        """Take news from the run."""
        now = time.monotonic()
        if now >= self.next_time and self.trackers:
            self.add(progress.so_far())
            self.next_time = time.monotonic() + max(LEAST_SECONDS, SHARE * (time.monotonic() - now))

    def add(self, result: Result) -> None:
        """Write the rows that have not been written yet."""
        rounds = result.column("round")[0, self.written :].tolist()
        names = [name for name in result.history if name != "round"]
        try:
            for at, tracker in enumerate(self.trackers):
                tracker.rows(rounds, {n: result.column(n)[at, self.written :] for n in names})
            self.written += len(rounds)
        except Exception as error:
            warnings.warn(f"--log {self.name} failed ({brief(error)[:200]}); the run goes on without it", stacklevel=2)
            self.trackers = []

    def finish(self, result: Result) -> None:
        """The run has ended: the last rows, and how it went."""
        self.add(result)
        self.close("interrupted" if result.interrupted else "finished")

    def close(self, state: str = "failed") -> None:
        """No more will come."""
        trackers, self.trackers = self.trackers, []
        for tracker in trackers:
            try:
                tracker.close(state)
            except Exception as error:
                warnings.warn(f"--log {self.name} was not closed ({brief(error)[:200]})", stacklevel=2)


def _module(name: str, extra: str) -> Any:
    try:
        return import_module(name)
    except ModuleNotFoundError as error:
        raise InputError(
            f"--log {extra} needs the package {error.name}; install it with `pip install 'pisco-fl[{extra}]'`"
        ) from error
