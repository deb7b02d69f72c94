"""Experiments as TOML files, the packaged ones, and the demo."""

from pisco.experiments.config import Config
from pisco.experiments.loading import load, presets

__all__ = ["Config", "load", "presets"]
