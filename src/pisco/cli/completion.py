"""What a shell offers at the tab key (`pisco --install-completion`)."""

from __future__ import annotations

from pathlib import Path


def experiments(incomplete: str) -> list[str]:
    """Presets, and TOML files."""
    from pisco.experiments.loading import presets

    return [*presets(), *_files(incomplete)]


def benchmarks(*views: str):
    """Completes by suites of the benchmark, its views, and TOML files."""

    def names(incomplete: str) -> list[str]:
        from pisco.experiments.bench.suite import suites

        return [*suites(), *views, *_files(incomplete)]

    return names


def _files(incomplete: str) -> list[str]:
    """TOML files where the word may be a path."""
    folder = incomplete[: incomplete.rfind("/") + 1]
    return [f"{folder}{path.name}" for path in Path(folder or ".").glob("*.toml")]


def listed(kind: str):
    """Completes by the names that `pisco list KIND` shows, also the last of several with commas between them."""

    def names(incomplete: str) -> list[str]:
        from pisco.cli.catalogue import KINDS

        return [f"{incomplete[: incomplete.rfind(',') + 1]}{name}" for name in KINDS[kind]()]

    return names
