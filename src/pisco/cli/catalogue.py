"""`pisco list` and `pisco data`: what there is, and where."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Annotated, Any

import typer

from pisco.cli.console import print_table, say, say_json, size


def list_names(
    kind: Annotated[str | None, typer.Argument(help="algorithms, graphs, … (default: all kinds).")] = None,
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


def _algorithms() -> dict[str, str]:
    from pisco.algorithms.registry import ALGORITHMS

    return {
        name: f"{method.summary}; settings: {', '.join(method.hyperparameters)}"
        for name, method in ALGORITHMS.items()
    }


def _with_settings(kind: str, documents: Mapping[str, Callable[..., Any]]) -> dict[str, str]:
    from pisco.settings.options import CHOICES

    rows = next(choice.rows for choice in CHOICES if choice.kind == kind)
    out = {}
    for name, parameters in rows.items():
        settings = f"settings: {', '.join(parameters)}" if parameters else ""
        out[name] = "; ".join(filter(None, [_first_line(documents[name]), settings]))
    return out


def _first_line(thing: Callable[..., Any]) -> str:
    lines = (inspect.getdoc(thing) or "").splitlines()
    return lines[0].rstrip(".:") if lines else ""


def _graphs() -> dict[str, str]:
    from pisco.networks import graphs

    documented = {name: getattr(graphs, name.replace("-", "_")) for name in graphs.GRAPHS}
    return _with_settings("graph", documented)


def _weights() -> dict[str, str]:
    from pisco.networks.weights import WEIGHTS

    return _with_settings("weights", WEIGHTS)


def _schedules() -> dict[str, str]:
    from pisco.networks.schedules import SCHEDULES

    return _with_settings("server", SCHEDULES)


def _problems() -> dict[str, str]:
    from pisco.problems.registry import PROBLEMS

    return _with_settings("problem", PROBLEMS)


def _partitions() -> dict[str, str]:
    from pisco.data import PARTITIONS

    return {name: _first_line(split) for name, split in PARTITIONS.items()}


def _datasets() -> dict[str, str]:
    from pisco.data import DATASETS

    own = {"FILE": "your own LIBSVM text or .npz with features and labels"}
    return {name: _first_line(load) for name, load in DATASETS.items()} | own


def _presets() -> dict[str, str]:
    from pisco.experiments import load, presets

    return {name: load(name).description for name in presets()}


def _engines() -> dict[str, str]:
    from pisco.engines.run import ENGINES

    return {name: _first_line(engine) for name, engine in ENGINES.items()}


def _metrics() -> dict[str, str]:
    from pisco import costs, metrics

    return metrics.DESCRIPTIONS | costs.DESCRIPTIONS


KINDS: dict[str, Callable[[], dict[str, str]]] = {
    "algorithms": _algorithms,
    "graphs": _graphs,
    "weights": _weights,
    "schedules": _schedules,
    "partitions": _partitions,
    "problems": _problems,
    "datasets": _datasets,
    "presets": _presets,
    "engines": _engines,
    "metrics": _metrics,
}


def data(
    name: Annotated[str | None, typer.Argument(help="A dataset, or your own file (default: all).")] = None,
    partition: Annotated[str | None, typer.Option(help="Split it, and say who holds which labels.")] = None,
    agents: Annotated[int, typer.Option(help="Agents to split it over.")] = 10,
    options: Annotated[
        list[str] | None, typer.Option("--option", metavar="KEY=VALUE", help="Option of the partition.")
    ] = None,
    picture: Annotated[Path, typer.Option("--out", "-o", help="File for the picture of the split.")] = Path(
        "labels.png"
    ),
) -> None:
    """Say which datasets are here, where, and how to get the rest; or draw who holds which labels.

    Examples:

      pisco data

      pisco data a9a --partition sorted --agents 10 --out labels.png
    """
    if name is None:
        _where()
        return
    from pisco.cli.console import key_values
    from pisco.data import PARTITIONS, load
    from pisco.errors import choose
    from pisco.report.setup_plots import plot_labels

    dataset = load(name)
    say(repr(dataset))
    if partition is not None:
        split = choose("partition", partition, PARTITIONS)
        parts = split(dataset.labels, agents=agents, **key_values(options))
        plot_labels(dataset.labels, parts, picture, title=f"{dataset.name}, partition {partition}")
        sizes = [len(part) for part in parts]
        say(f"{agents} agents hold {min(sizes)} to {max(sizes)} samples each")
        say(f"picture: {picture}")


def _where() -> None:
    from pisco.data import available
    from pisco.data.storage import cache_folder

    rows = [(each.name, str(each.found or "not here"), size(each.size), each.how) for each in available()]
    print_table("datasets", ("name", "where", "size", "how"), rows, right=(2,))
    say(f"Searched: the folder that PISCO_DATA names, then {cache_folder()}; `pisco data NAME` gets one.")
    say("Your own: a LIBSVM text file, or an .npz with arrays features and labels, by its path.")
