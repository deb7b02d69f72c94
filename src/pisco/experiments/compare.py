"""Methods side by side on one problem: each tuned on one grid, on the network it is published on, with the same costs.

Methods without a network of their own (PISCO and its forms) take the experiment's. What is finished is kept in the
folder by its configuration, so a comparison that was cut short continues, and another method is only added.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from pisco._version import __version__
from pisco.algorithms.registry import ALGORITHMS, build
from pisco.costs import Prices, uncounted
from pisco.engines.driver import Progress
from pisco.engines.job import check_needs
from pisco.engines.run import SEEDS_UP_TO
from pisco.errors import InputError, check_number
from pisco.experiments.config import Config
from pisco.experiments.loading import replace
from pisco.experiments.tune import GRID, TUNING_SEEDS, Trial, Tuned, tune
from pisco.files import atomic_write, write_csv
from pisco.registry import check_apart, is_reference, label, move
from pisco.report.panels import Curve, Panel
from pisco.report.picture import draw
from pisco.report.plots import column_panel
from pisco.results import Result, compare, measured
from pisco.settings import options
from pisco.targets import USUAL as USUAL_TARGETS
from pisco.targets import Targets

__all__ = ["compare_methods"]

USUAL = ("pisco", "pisco-one-exchange", "kgt", "scaffold", "gossip-pga", "dsgt", "dsgd", "fedavg", "beer")


class Entry(NamedTuple):
    """One method of a comparison: its settings, how it was tuned, and its result on the reported seeds."""

    method: str
    config: Config
    tuned: Tuned
    result: Result

    def spent(self, prices: Prices) -> np.ndarray:
        """The price paid by every row, seeds first."""
        return prices.paid(self.result.column, self.result.history)

    def record(self, targets: Targets, prices: Prices) -> dict[str, Any]:
        """The row of the table: medians over seeds at every target, None where half of them missed it."""
        (row,) = compare([self.result], targets, prices)
        tuning = {"local_lr": self.tuned.local_lr, "tuning seeds that failed": self.tuned.failed}
        return {"method": self.method} | tuning | row


def write(
    entries: Sequence[Entry], folder: Path, targets: Targets, prices: Prices
) -> tuple[list[dict[str, Any]], Path]:
    """Write `compare.csv` and `compare.png`; the records of the table, and where the picture is."""
    records, picture = [entry.record(targets, prices) for entry in entries], folder / "compare.png"
    write_csv(folder / "compare.csv", records)
    draw(panels(entries, targets, prices), picture, size=(5.0, 4.0), dpi=110)
    return records, picture


def panels(entries: Sequence[Entry], targets: Targets, prices: Prices) -> list[list[Panel]]:
    """Training, test accuracy and the targets, where they are known; against rounds, megabytes, price and seconds."""
    against: dict[str, Callable[[Entry], np.ndarray]] = {
        "communication rounds": lambda entry: entry.result.column("round"),
        "MB sent by all": lambda entry: (
            (entry.result.column("bytes_server") + entry.result.column("bytes_gossip")) / 1e6
        ),
        "price paid": lambda entry: entry.spent(prices),
    }
    if all("seconds" in entry.result.history for entry in entries):
        against["seconds by the clock"] = lambda entry: entry.result.column("seconds")
    rows, known = [], measured([entry.result for entry in entries])
    for column in dict.fromkeys((*USUAL_TARGETS, *targets)):
        row = []
        for x_title, x in against.items():
            curves = [
                Curve(entry.method, x(entry), entry.result.column(column).astype(float), index)
                for index, entry in enumerate(entries)
                if column in entry.result.history
            ]
            if curves:
                row.append(column_panel(known[column], curves, x_title)._replace(log_x=True))
        if row:
            rows.append(row)
    return rows


def method_config(base: Config, method: str, *, own_network: bool = True) -> Config:
    """The experiment with another method: shared hyperparameters stay, the rest are the method's own."""
    row, tables = ALGORITHMS[method], base.to_dict()
    tables["run"].setdefault("eval_every", 1)  # targets are met in the very round
    kept = {k: v for k, v in tables["algorithm"].items() if k in row.hyperparameters}
    if "local_steps" in row.hyperparameters:
        steps, trial = tables["algorithm"].get("local_steps"), kept | {"local_lr": 1.0, "local_steps": 2}
        if steps is not None:
            own = base.algorithm.with_step(1.0) if base.algorithm.is_auto else base.algorithm
            like = base.build_problem().params_like  # without the weights, which may take minutes
            steps += uncounted(own.build(), like, steps) - uncounted(build(method, **trial), like, 2)
        kept["local_steps"] = 1 if steps is None else steps
    name = move(method, lambda path: path.expanduser().resolve()) if is_reference(method) else method
    tables["algorithm"] = {"name": name} | kept
    if tables["algorithm"].get("local_lr", "auto") == "auto" and "local_lr" in row.hyperparameters:
        tables["algorithm"]["local_lr"] = 0.1  # replaced by tuning
    if own_network:
        replace(tables, {"network": dict(row.network)})
    tables["name"] = label(method)
    return Config.from_dict(tables, f"{label(method)} on {base.name or 'the experiment'}")


def compare_methods(
    base: Config,
    methods: Sequence[str] = USUAL,
    *,
    folder: Path,
    targets: Targets = USUAL_TARGETS,
    grid: Sequence[float] = GRID,
    seeds: Sequence[int] = tuple(range(20)),
    tuning_seeds: Sequence[int] = TUNING_SEEDS,
    own_network: bool = True,
    started: Callable[[str, str], None] = lambda method, stage: None,
    progress: Callable[[Progress], None] | None = None,
) -> list[Entry]:
    """Tune and run every method; finished ones are read back from the folder.

    `started(method, stage)` is called before each piece of work ("tuning", "running", "kept"). After Ctrl-C the
    methods finished so far come back, fewer than were asked for.
    """
    if isinstance(methods, str) or not methods:
        raise InputError(f"methods is {methods!r}; name algorithms, as in ['pisco', 'dsgd']")
    if not isinstance(base, Config):
        raise InputError(f"the experiment is {base!r}, expected one that is loaded, as in load('a9a')")
    check_number("seeds", len(seeds), low=1, high=SEEDS_UP_TO)
    check_apart("algorithm", methods)
    for bound in targets.values():
        check_number("a target", bound)
    configs = {method: method_config(base, method, own_network=own_network) for method in methods}
    for config in configs.values():
        check_needs(config.algorithm.with_step(1.0).build(), config.network.build())
    entries = []
    for method, config in configs.items():
        place = folder / label(method).replace(":", "-")
        config = config.model_copy(update={"run": config.run.model_copy(update={"seeds": list(seeds)})})
        key = _key(config, targets, grid, tuning_seeds)
        entry = _kept(place, key, label(method), config)
        if entry is None:
            started(method, "tuning")
            try:
                tuned = tune(config, grid=grid, targets=targets, seeds=tuning_seeds, progress=progress)
            except KeyboardInterrupt:
                break
            started(method, "running")
            chosen = config.model_copy(update={"algorithm": config.algorithm.with_step(tuned.local_lr)})
            result = chosen.execute(progress=progress)
            if result.interrupted:
                break
            entry = Entry(label(method), chosen, tuned, result)
            _keep(place, key, entry)
            if result.asked_to_stop:
                return [*entries, entry]
        else:
            started(method, "kept")
        entries.append(entry)
    return entries


def _key(config: Config, targets: Targets, grid: Sequence[float], tuning_seeds: Sequence[int]) -> str:
    tables = config.to_dict()
    tables["algorithm"].pop("local_lr")
    facts = [__version__, tables, list(options.files(tables).values())]
    facts += [dict(targets), list(grid), list(tuning_seeds)]
    return hashlib.sha256(json.dumps(facts, sort_keys=True, default=str).encode()).hexdigest()[:16]


def _keep(folder: Path, key: str, entry: Entry) -> None:
    entry.result.save(folder, config=entry.config.to_dict())
    trials = [trial._asdict() for trial in entry.tuned.trials]
    note = {"key": key, "local_lr": entry.tuned.local_lr, "trials": trials}
    atomic_write(folder / "tuning.json", (json.dumps(note, indent=2) + "\n").encode())


def _kept(folder: Path, key: str, method: str, config: Config) -> Entry | None:
    """What an earlier comparison with the same configuration left, if it is whole."""
    try:
        note = json.loads((folder / "tuning.json").read_text())
        if note["key"] != key:
            return None
        tuned = Tuned(note["local_lr"], tuple(Trial(**trial) for trial in note["trials"]))
        chosen = config.model_copy(update={"algorithm": config.algorithm.with_step(tuned.local_lr)})
        return Entry(method, chosen, tuned, Result.load(folder))
    except (OSError, ValueError, KeyError, TypeError, EOFError):
        return None
