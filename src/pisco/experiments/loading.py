"""Finding and reading experiments: files, packaged ones, and settings replaced from the command line."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from pisco.data.registry import DATASETS
from pisco.errors import InputError, suggest
from pisco.experiments.config import Config
from pisco.settings import options, toml

PRESETS = Path(__file__).parent / "presets"


def presets() -> dict[str, Path]:
    """The packaged experiments by name."""
    return {path.stem: path for path in sorted(PRESETS.glob("*.toml"), key=lambda path: path.stem)}


def load(path_or_preset: str | Path, overrides: Sequence[str] = ()) -> Config:
    """Read an experiment file or a packaged one, with settings replaced as in `network.server_prob=0.2`.

    >>> load("quick", ["network.server_prob=0.2"]).network.schedule()
    bernoulli(0.2)
    >>> load("quick", ["network.sever_prob=0.2"])
    Traceback (most recent call last):
    ...
    pisco.errors.InputError: network.sever_prob is not a setting; did you mean 'server_prob'?
    """
    if not isinstance(path_or_preset, str | Path):
        raise InputError(f"the experiment is {path_or_preset!r}, expected the name of a preset or a file")
    path = _find(path_or_preset)
    tables = _read(path)
    tables.setdefault("name", path.stem)
    return Config.from_dict(_overridden(tables, overrides), str(path_or_preset))


def _read(path: Path, above: tuple[Path, ...] = ()) -> dict[str, Any]:
    """The tables of a file; `base` names another one whose settings it changes."""
    tables = _located(toml.read(path), path.parent)
    named = tables.pop("base", None)
    if named is None:
        return tables
    if not isinstance(named, str):
        raise InputError(f"base is {named!r}, expected the name of a preset or a file")
    below = _find(named if named in presets() else path.parent / named)
    above = (*above, path.resolve())
    if below.resolve() in above:
        raise InputError(f"{path} is its own base; name another preset or file")
    merged = _read(below, above)
    merged.pop("name", None)
    replace(merged, tables)
    return merged


def replace(tables: dict[str, Any], changes: Mapping[str, Any]) -> None:
    """Put other settings in place, and drop those that only the earlier choices took."""
    for name, value in changes.items():
        if isinstance(value, dict) and isinstance(tables.get(name), dict):
            before, tables[name] = tables[name], tables[name] | value
            if any(choice.key in value for choice in options.choices(name)):
                options.drop_stale(name, tables[name], before, set(value))
        else:
            tables[name] = value


def _find(path_or_preset: str | Path) -> Path:
    known, path = presets(), Path(path_or_preset)
    if str(path_or_preset) in known:
        return known[str(path_or_preset)]
    if path.is_dir():
        raise InputError(f"{path} is a folder; give the TOML file, or `--resume {path}` for a run that was cut short")
    if path.exists():
        return path
    if path.suffix == ".toml" or len(path.parts) > 1:
        raise InputError(f"there is no file {path}; check the path, or take a preset: {', '.join(known)}")
    raise InputError(f"unknown experiment {str(path)!r}, neither a file nor a preset; {suggest(str(path), known)}")


def _overridden(tables: dict[str, Any], overrides: Sequence[str]) -> dict[str, Any]:
    changed: dict[str, set[str]] = {}
    before = {name: dict(table) if isinstance(table, dict) else {} for name, table in tables.items()}
    for text in overrides:
        where, equals, value = text.partition("=")
        *parents, last = [part.strip() for part in where.split(".")]
        if not equals or not last or not all(parents):
            raise InputError(f"{text!r} sets nothing; write table.key=value, as in network.server_prob=0.2")
        table = tables
        for parent in parents:
            table = table.setdefault(parent, {})
            if not isinstance(table, dict):
                raise InputError(f"{where.strip()} cannot be set: {parent} is a value, not a table")
        table[last] = toml.value(value.strip())
        changed.setdefault(parents[0] if parents else "", set()).add(parents[1] if len(parents) > 1 else last)
    tables = _located(tables, Path.cwd()) if changed else tables
    for table, keys in changed.items():
        if any(choice.key in keys for choice in options.choices(table)):
            options.drop_stale(table, tables[table], before.get(table, {}), keys)
        for key in ("dataset", "partition"):
            if table == "problem" and key in keys and f"{key}_options" not in keys:
                tables[table].pop(f"{key}_options", None)
    return tables


def _located(tables: dict[str, Any], folder: Path) -> dict[str, Any]:
    """Make the paths of files absolute: a stored configuration may be read from another folder."""
    tables = options.moved(tables, lambda path: (folder / path.expanduser()).resolve())
    problem = tables.get("problem")
    named = problem.get("dataset") if isinstance(problem, dict) else None
    if isinstance(problem, dict) and isinstance(named, str) and named and named not in DATASETS:
        path = (folder / Path(named).expanduser()).resolve()
        if path.exists() or len(Path(named).parts) > 1 or path.suffix:
            problem["dataset"] = str(path)
    return tables
