"""What a run leaves behind: parameters, history, settings; saved as a folder, compared, exported."""

from __future__ import annotations

import io
import json
import math
import platform
import zipfile
import zlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from shlex import quote
from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp
import numpy as np

from pisco._version import __version__
from pisco.costs import Prices
from pisco.display import card, plural
from pisco.errors import InputError, check_number, suggest, writing
from pisco.files import atomic_write, write_csv
from pisco.metrics import AGENTS, COST, METRICS, TRAINING, Metric
from pisco.parts import names_of, whole
from pisco.targets import PAID, SHOWN, USUAL, Target, Targets, reached

if TYPE_CHECKING:
    from matplotlib.figure import Figure
    from pandas import DataFrame

SUMMARY_FILE, HISTORY_FILE, PARAMS_FILE = "result.json", "history.npz", "params.npz"
AGENTS_FILE = "agents.npz"
AS_THEY_ARE = ("settings", "rounds", "interrupted", "diverged_at", "seconds", "label", "versions", "named")
"""What `result.json` holds under its own name."""
DAMAGED = (OSError, EOFError, ValueError, KeyError, TypeError, AttributeError, zipfile.BadZipFile, zlib.error)
"""What reading a file of a result ends in that was cut off, edited or overwritten."""


@dataclass(eq=False)  # arrays have no one answer to ==: a result equals itself
class Result:
    """One run, or the same run with several seeds (then seeds lead every array).

    Attributes:
      params: the final parameters, agents leading; None in the places of frozen ones (`Problem.model` fills them in).
      history: column name to one value per measured round (`metrics.METRICS`).
      seeds: the seeds that were run.
      settings: what was run.
      diverged_at: the round from which the loss only grew worse, if it blew up; one entry per seed for several.
      rounds: communication rounds done.
      interrupted: stopped early by Ctrl-C.
      asked_to_stop: whether Ctrl-C came, also where no round was left to do; it is not saved.
      seconds: wall-clock time.
      label: for tables and plots.
      agents: links, labels and, at some rounds of the first seed, ‖xᵢ − x̄‖² of every agent, for reports to draw;
        empty when they are too many or the result is an older one.
      metrics: what is known of columns that the problem's own metrics fill.
      named: whom a guard named: `agent`, `by`, `factor`, and the round from which it was `left_off`; a list for every
        seed where there are several.
    """

    params: Any
    history: dict[str, np.ndarray]
    seeds: tuple[int, ...]
    settings: dict[str, Any]
    diverged_at: Any = None
    rounds: int = 0
    interrupted: bool = False
    asked_to_stop: bool = False
    seconds: float = 0.0
    label: str = ""
    versions: dict[str, str] = field(default_factory=lambda: _versions())
    agents: dict[str, np.ndarray] = field(default_factory=dict)
    metrics: dict[str, Metric] = field(default_factory=dict)
    named: list[Any] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.params = whole(self.params)

    @property
    def stacked(self) -> bool:
        """Whether arrays lead with several seeds."""
        return self.history["round"].ndim == 2

    @property
    def diverged_seeds(self) -> dict[int, int]:
        """The seeds that diverged, each with the round from which it did."""
        found = self.diverged_at if isinstance(self.diverged_at, list) else [self.diverged_at]
        return {seed: at for seed, at in zip(self.seeds, found, strict=False) if at is not None}

    @property
    def diverged(self) -> bool:
        """Whether any seed diverged."""
        return bool(self.diverged_seeds)

    def column(self, name: str) -> np.ndarray:
        """A column as (seeds, rows), also for one seed."""
        if not isinstance(name, str) or name not in self.history:
            raise InputError(f"the result has no column {name!r}; {suggest(name, self.history)}")
        return np.atleast_2d(self.history[name])

    def metric(self, column: str) -> Metric:
        """What is known of a column: which way is better, its title, how it is drawn."""
        return self.metrics.get(column) or METRICS.get(column) or Metric(column, of=TRAINING)

    def at_target(
        self,
        name: str,
        wanted: str = "round",
        *,
        bound: float | None = None,
        at_most: float | None = None,
        at_least: float | None = None,
    ) -> np.ndarray:
        """For every seed, the value of column `wanted` when `name` first meets its bound; NaN if it never does.

        `bound` goes by the metric's own direction; `at_most` and `at_least` say one, whatever the metric's.

        >>> import pisco
        >>> problem = pisco.problems.quadratic([[[1.0]], [[1.0]]], [[0.0], [2.0]])
        >>> result = pisco.run(pisco.algorithms.dsgd(local_lr=0.1), problem, pisco.Network.path(2), rounds=50)
        >>> result.at_target("grad_norm_sq", bound=0.01)
        array([22.])
        """
        given = [value for value in (bound, at_most, at_least) if value is not None]
        if len(given) != 1:
            raise InputError(f"a target of {name!r} needs one bound; give bound, at_most or at_least")
        self.column(name)
        metric = self.metric(name)
        check_number(f"the target's bound of {name}", given[0])
        if bound is None:
            return Target(replace(metric, rising=at_least is not None), given[0]).at(self, wanted)
        return Target.of(name, bound, {name: metric}).at(self, wanted)

    def final(self, name: str) -> np.ndarray:
        """The last value of a column for every seed."""
        return self.column(name)[:, -1]

    def only(self, seeds: Sequence[int]) -> Result:
        """The same result with some of its seeds."""
        if not isinstance(seeds, Iterable) or not (seeds := tuple(seeds)):
            raise InputError(f"only() takes seeds of the result, as in result.only({list(self.seeds[:1])})")
        missing = set(seeds) - set(self.seeds)
        if missing or not self.stacked:
            raise InputError(f"the result has the seeds {list(self.seeds)}, not {sorted(missing) or 'several'}")
        rows = [self.seeds.index(seed) for seed in seeds]
        same_first = seeds[:1] == self.seeds[:1]
        return replace(
            self,
            params=jax.tree.map(lambda leaf: leaf[np.asarray(rows)], self.params),
            history={name: values[rows] for name, values in self.history.items()},
            seeds=seeds,
            diverged_at=[self.diverged_at[row] for row in rows],
            agents={n: a for n, a in self.agents.items() if same_first or not n.startswith("frame")},
            named=[self.named[row] for row in rows] if self.named else [],
        )

    def save(self, path: str | Path, *, config: Mapping[str, Any] | None = None) -> Path:
        """Write a folder: `result.json` (with `config`), `history.npz`, `params.npz` and, if known, `agents.npz`."""
        with writing(path):
            folder = Path(path)
        named = dict(zip(names_of(self.params), jax.tree.leaves(self.params), strict=True))
        summary = {name: getattr(self, name) for name in AS_THEY_ARE} | {
            "seconds": round(self.seconds, 3),
            "config": None if config is None else dict(config),
            "seeds": list(self.seeds),
            "columns": {name: self.metric(name).facts() for name in self.history},
        }
        told = json.dumps(summary, indent=2, default=_jsonable) + "\n"
        with writing(folder):
            folder.mkdir(parents=True, exist_ok=True)
            atomic_write(folder / HISTORY_FILE, npz(self.history))
            atomic_write(folder / PARAMS_FILE, npz(named))
            if self.agents:
                atomic_write(folder / AGENTS_FILE, npz(self.agents))
            atomic_write(folder / SUMMARY_FILE, told.encode())  # last: with a summary, a result is whole
        return folder

    @classmethod
    def load(cls, path: str | Path) -> Result:
        """Read a folder that `save` wrote. Parameters come back as nested dictionaries and lists of arrays."""
        if not isinstance(path, str | Path):
            raise InputError(f"the result is {path!r}, expected the folder of one, which `pisco run … --out` writes")
        folder = Path(path)
        if folder.is_file():
            raise InputError(f"{folder} is a file, expected the folder of a result, which `pisco run … --out` writes")
        try:
            summary = json.loads((folder / SUMMARY_FILE).read_text())
            known: dict[str, Any] = {name: summary[name] for name in AS_THEY_ARE if name in summary or name != "named"}
            if summary.get("config"):
                known["settings"] |= {"config": summary["config"]}
            return cls(
                **known,
                history=_whole(_read_npz(folder / HISTORY_FILE), len(summary["seeds"])),
                params=_nest(_read_npz(folder / PARAMS_FILE)),
                seeds=tuple(summary["seeds"]),
                agents=_read_npz(folder / AGENTS_FILE) if (folder / AGENTS_FILE).exists() else {},
                metrics={name: Metric(**facts) for name, facts in summary.get("columns", {}).items()},
            )
        except FileNotFoundError as error:
            name = Path(error.filename or "").name
            fix = _finishing(folder) or "`pisco run … --out` writes one"
            raise InputError(f"{folder} holds no result: {name} is missing; {fix}") from error
        except DAMAGED as error:
            fix = _finishing(folder) or "do the run again, in a folder of its own"
            raise InputError(f"{folder} holds a damaged result ({type(error).__name__}); {fix}") from error

    def to_pandas(self) -> DataFrame:
        """One row per seed and measured round."""
        import pandas as pd

        return pd.DataFrame(self._long())

    def to_csv(self, path: str | Path) -> Path:
        """The same table as a CSV file, every number to its last digit."""
        table = self._long()
        records = [dict(zip(table, row, strict=True)) for row in zip(*table.values(), strict=True)]
        with writing(path):
            write_csv(Path(path), records)
        return Path(path)

    def plot(self, path: str | Path | None = None) -> Figure:
        """The curves against rounds and bytes; saved when a path is given."""
        from pisco.report.plots import plot_results

        return plot_results([self], path=path)

    def report(self, path: str | Path) -> Path:
        """The page of `pisco report` about this result alone."""
        from pisco.report.html import write_page

        return write_page([self], path)

    def _long(self) -> dict[str, np.ndarray]:
        rows = self.column("round").shape[1]
        table = {"seed": np.repeat(np.asarray(self.seeds), rows)}
        return table | {name: self.column(name).reshape(-1) for name in self.history}

    def _repr_html_(self) -> str:
        from pisco.report.numbers import endings

        what = {name: self.settings[name] for name in ("algorithm", "problem", "network") if name in self.settings}
        if isinstance(rule := what.get("algorithm"), dict):
            chosen = (f"{name}={value}" for name, value in rule.items() if name != "name" and str(value) != "None")
            what["algorithm"] = f"{rule.get('name')}({', '.join(chosen)})"
        return card(repr(self), what | {"seeds": ", ".join(map(str, self.seeds))} | dict(endings(self)))

    def __repr__(self) -> str:
        state = "interrupted" if self.interrupted else "diverged" if self.diverged else "finished"
        loss = ", ".join(f"{value:.4g}" for value in self.final("loss")[:3])
        more = ", …" if len(self.seeds) > 3 else ""
        seeds = f"{len(self.seeds)} seed{'s' * (len(self.seeds) > 1)}"
        return f"Result({state} after {plural(self.rounds, 'round')}, {seeds}, loss {loss}{more})"


def compare(
    results: Sequence[Result],
    targets: Targets = USUAL,
    prices: Prices = Prices(),  # noqa: B008 (a tuple)
) -> list[dict[str, Any]]:
    """One record per result: medians over seeds of the rounds, bytes and price at every target, and their intervals.

    `targets` maps a column to its bound, to be reached from below where larger is better and else from above. Seeds
    that miss it are censored (`pisco.statistics`): what half of them never meet, or is not measured, is None.
    """
    check_results("compare", results)
    check_prices(prices)
    records, agents = [], [name for name, metric in measured(results).items() if metric.of == AGENTS]
    for result, found in zip(results, reached(results, targets), strict=True):
        record: dict[str, Any] = {"label": result.label or result.settings.get("network", "")}
        paid = {each.target.column: each.paid(prices) for each in found}
        arrived = {each.target.column: len(each.rounds) for each in found}
        for column in targets:
            known = paid.get(column, {})
            record[f"seeds to {column}"] = arrived.get(column)
            for what in PAID:
                record[f"{what} to {column}"] = _finite(known[what].value) if what in known else None
            for what in SHOWN:
                for end in ("low", "high"):
                    record[f"{what} to {column}, {end}"] = _finite(getattr(known[what], end)) if what in known else None
        for column in dict.fromkeys(("grad_norm_sq", "loss", *targets, *agents)):
            final = float(np.median(result.final(column))) if column in result.history else math.nan
            record[f"final {column}"] = _finite(final)
        records.append(record | {"diverged": result.diverged})
    return records


def check_results(who: str, results: Any) -> None:
    """Refuse what is no list of results, such as one result by itself."""
    if not isinstance(results, list | tuple) or not all(isinstance(result, Result) for result in results):
        raise InputError(f"{who} takes a list of results, as in {who}([result], …)")


def check_prices(prices: Any) -> None:
    """Refuse what is no prices, and prices that are negative or not finite."""
    if not isinstance(prices, Prices):
        raise InputError(f"prices is {prices!r}, expected Prices(server=10, gossip=1)")
    prices.check()


def _finite(value: float) -> float | None:
    return value if math.isfinite(value) else None


def measured(results: Sequence[Result], *, costs: bool = False) -> dict[str, Metric]:
    """Every column that some of the results hold, in the order in which they are shown; costs if asked for."""
    held = {name: result.metric(name) for result in results for name in result.history}
    ours = [*METRICS, *sorted(held.keys() - METRICS)]
    names = sorted(held, key=lambda name: (held[name].of == COST, ours.index(name)))
    return {name: held[name] for name in names if costs or held[name].of != COST}


def _finishing(folder: Path) -> str:
    """How a run is finished that left checkpoints; empty where it left none."""
    begun = any((folder / "checkpoints").glob("*"))
    return f"`pisco run --resume {quote(str(folder))}` finishes the run" if begun else ""


def _versions() -> dict[str, str]:
    return {
        "pisco": __version__,
        "jax": jax.__version__,
        "numpy": np.__version__,
        "python": platform.python_version(),
        "device": jax.devices()[0].device_kind,
    }


def _jsonable(value: Any) -> Any:
    if isinstance(value, np.generic | np.ndarray | jax.Array):
        return np.asarray(value).tolist()
    return str(value)


def npz(arrays: Mapping[str, Any]) -> bytes:
    """What `np.savez_compressed` writes, whose own keywords are no names for arrays."""
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, array in arrays.items():
            with archive.open(f"{name}.npy", "w", force_zip64=True) as file:
                np.lib.format.write_array(file, np.asarray(array), allow_pickle=False)
    return buffer.getvalue()


def _read_npz(path: Path) -> dict[str, np.ndarray]:
    # From memory: numpy leaves a damaged file open.
    with np.load(io.BytesIO(path.read_bytes()), allow_pickle=False) as stored:
        held = {name: stored[f"{name}.npy"] for name in stored.files}  # a name may itself end so
    # bfloat16 is no type of numpy's own: its files say no more than two bytes.
    return {name: array.view(jnp.bfloat16) if array.dtype == "V2" else array for name, array in held.items()}


def _whole(history: dict[str, np.ndarray], seeds: int) -> dict[str, np.ndarray]:
    """A history, if its columns are numbers and equally long, for so many seeds."""
    shape = history["round"].shape
    if len(np.atleast_2d(history["round"])) != seeds:
        raise ValueError(f"{seeds} seeds are named, and the rounds are of shape {shape}")
    for name, values in history.items():
        if values.shape != shape or values.dtype.kind not in "biuf":
            raise ValueError(f"{name} is {values.dtype} of shape {values.shape}, and the rounds of shape {shape}")
    return history


def _nest(flat: Mapping[str, np.ndarray]) -> Any:
    """Names such as `conv1/kernel` and `layers/0` back into dictionaries and lists."""
    if set(flat) == {"."}:
        return flat["."]
    tree: dict[str, Any] = {}
    for name, leaf in flat.items():
        *parents, last = name.split("/")
        branch = tree
        for parent in parents:
            branch = branch.setdefault(parent, {})
        branch[last] = leaf

    def listed(node: Any) -> Any:
        if not isinstance(node, dict):
            return node
        places = [str(place) for place in range(len(node))]
        if node.keys() == set(places):  # where some are missing, as frozen ones are, names say whose place is whose
            return [listed(node[place]) for place in places]
        return {key: listed(value) for key, value in node.items()}

    return listed(tree)
