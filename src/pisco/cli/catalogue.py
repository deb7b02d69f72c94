"""`pisco list` and `pisco data`: what there is, and where."""

from __future__ import annotations

import importlib
import inspect
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Annotated, Any

import typer

from pisco.cli.console import picture, print_table, say, say_json, size


def list_names(
    kind: Annotated[
        str | None,
        typer.Argument(help="algorithms, graphs, … (default: all kinds).", autocompletion=lambda: list(KINDS)),
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print as JSON.")] = False,
) -> None:
    """List what experiments can name: algorithms, graphs, weights, schedules, partitions, problems, …

    Example:

      pisco list algorithms
    """
    from pisco.errors import choose

    listed = KINDS if kind is None else {kind: choose("list", kind, KINDS)}
    found = {name: rows() for name, rows in listed.items()}
    if as_json:
        say_json(found)
        return
    for name, rows in found.items():
        print_table(name, ("name", "what it is"), rows.items())
    say('Your own: "my_file.py:function" in place of a name, or a package with entry points.')


def _first_line(thing: Any) -> str:
    lines = (inspect.getdoc(thing) or "").splitlines()
    return lines[0].rstrip(".:") if lines else ""


def _registry(module: str, name: str, *taken: str) -> Callable[[], dict[str, str]]:
    """The rows of a registry with their settings, except those that are `taken` by others."""

    def rows() -> dict[str, str]:
        from pisco.errors import InputError
        from pisco.registry import options

        found, listed = getattr(importlib.import_module(f"pisco.{module}"), name), {}
        for row in found:
            try:
                thing = found[row]
            except InputError as error:  # of another package
                listed[row] = str(error)
                continue
            known = options(thing) if callable(thing) else getattr(thing, "hyperparameters", ())
            settings = ", ".join(option for option in known if option not in taken)
            words = getattr(thing, "summary", None) or getattr(thing, "title", None) or _first_line(thing)
            listed[row] = "; ".join(filter(None, [words, settings and f"settings: {settings}"]))
        return listed

    return rows


def _datasets() -> dict[str, str]:
    own = {"FILE": "your own table (.csv, .tsv, .parquet), LIBSVM text, or .npz with features and labels"}
    return _registry("data.registry", "DATASETS")() | own


def _presets() -> dict[str, str]:
    from pisco.experiments import load, presets

    return {name: load(name).description for name in presets()}


def _engines() -> dict[str, str]:
    from pisco.engines.run import ENGINES

    return {name: _first_line(engine) for name, engine in ENGINES.items()}


def _metrics() -> dict[str, str]:
    from pisco.metrics import METRICS

    return {name: metric.title for name, metric in METRICS.items()} | _registry("metrics", "NAMED")()


_DATA = ("dataset", "agents", "partition", "partition_options", "dtype")
KINDS: dict[str, Callable[[], dict[str, str]]] = {
    "algorithms": _registry("algorithms.registry", "ALGORITHMS"),
    "compressors": _registry("algorithms.compressors", "COMPRESSORS"),
    "optimizers": _registry("algorithms.optimizers", "OPTIMIZERS"),
    "graphs": _registry("networks.graphs", "GRAPHS", "agents"),
    "weights": _registry("networks.weights", "WEIGHTS", "graph"),
    "schedules": _registry("networks.schedules", "SCHEDULES"),
    "varying": _registry("networks.varying", "VARYING"),
    "presence": _registry("networks.presence", "PRESENCE"),
    "guards": _registry("networks.guards", "GUARDS"),
    "partitions": _registry("data.partition", "PARTITIONS", "labels", "agents", "groups"),
    "problems": _registry("problems.registry", "PROBLEMS", *_DATA),
    "datasets": _datasets,
    "presets": _presets,
    "engines": _engines,
    "metrics": _metrics,
}


def data(
    name: Annotated[str | None, typer.Argument(help="A dataset, or your own file (default: all).")] = None,
    partition: Annotated[str | None, typer.Option(help="Split it, and say who holds which labels.")] = None,
    agents: Annotated[int, typer.Option(min=1, help="Agents to split it over.")] = 10,
    options: Annotated[
        list[str] | None, typer.Option("--option", metavar="KEY=VALUE", help="Option of the partition.")
    ] = None,
    dataset_options: Annotated[
        list[str] | None,
        typer.Option("--dataset-option", metavar="KEY=VALUE", help="Option of the dataset, as in label=outcome."),
    ] = None,
    out: Annotated[
        Path | None, typer.Option("--out", "-o", help="File for the picture of the split (default: labels.png).")
    ] = None,
) -> None:
    """Say which datasets are here, where, and how to get the rest; or draw who holds which labels.

    Examples:

      pisco data

      pisco data a9a --partition sorted --agents 10 --out labels.png
    """
    from pisco.errors import InputError

    if partition is None and (options or out):
        raise InputError("--option and --out are about a split; name one as well, as in --partition sorted")
    if partition is not None and name is None:
        raise InputError(f"there is no dataset to split; name one, as in `pisco data a9a --partition {partition}`")
    if name is None:
        _where()
        return
    from pisco.cli.console import key_values
    from pisco.data import load
    from pisco.data.partition import deal
    from pisco.display import span
    from pisco.report.setup_plots import plot_labels

    dataset = load(name, **key_values(dataset_options))
    say(repr(dataset))
    if partition is not None:
        parts = deal(dataset, partition, agents, **key_values(options))
        classes = dataset.classes if dataset.num_classes == len(set(dataset.labels.tolist())) else None
        title = f"{dataset.name}, partition {partition}"
        sizes = [len(part) for part in parts]
        each = "1 sample" if max(sizes) == 1 else f"{span(min(sizes), max(sizes))} samples"
        say(f"{agents} agents hold {each} each" if agents > 1 else f"1 agent holds {each}")
        picture(out, "labels.png", partial(plot_labels, dataset.labels, parts, classes=classes, title=title))


def _where() -> None:
    from pisco.data import available
    from pisco.data.storage import cache_folder

    rows = [(each.name, str(each.found or "not here"), size(each.size), each.how) for each in available()]
    print_table("datasets", ("name", "where", "size", "how"), rows, right=(2,))
    say(f"Searched: the folder that PISCO_DATA names, then {cache_folder()}; `pisco data NAME` gets one.")
    say("Your own: a table (.csv, .tsv, .parquet), LIBSVM text, an .npz of features and labels, a folder of texts.")
