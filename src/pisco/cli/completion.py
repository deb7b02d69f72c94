"""What a shell offers when somebody presses the tab key (`pisco --install-completion`)."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path


def experiments(incomplete: str) -> list[str]:
    """Presets, and TOML files where the word may be a path."""
    from pisco.experiments.loading import presets

    folder = incomplete[: incomplete.rfind("/") + 1]
    files = (f"{folder}{path.name}" for path in Path(folder or ".").glob("*.toml"))
    return [name for name in (*presets(), *files) if name.startswith(incomplete)]


def listed(kind: str) -> Callable[[str], list[str]]:
    """The names that `pisco list KIND` shows, also for the last of several with commas between them."""

    def names(incomplete: str) -> list[str]:
        from pisco.cli.catalogue import KINDS

        before, comma, last = incomplete.rpartition(",")
        return [f"{before}{comma}{name}" for name in KINDS[kind]() if name.startswith(last)]

    return names
