"""Experiments as TOML files, the packaged ones, the demo, comparisons and the paper's figures.

Names are loaded when they are asked for: the figures of the paper compute with jax and numpy alone.
"""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pisco.experiments.config import Config
    from pisco.experiments.folders import resume
    from pisco.experiments.loading import load, presets

__all__ = ["Config", "load", "presets", "resume"]


def __getattr__(name: str) -> Any:
    import importlib

    homes = {"Config": "config", "load": "loading", "presets": "loading", "resume": "folders"}
    if name not in homes:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(f"{__name__}.{homes[name]}"), name)
