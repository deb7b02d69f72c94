"""Shared fixtures."""

import os

# One XLA thread pool per pytest-xdist worker is plenty; must be set before jax is imported.
os.environ.setdefault("JAX_PLATFORMS", "cpu")

import jax
import pytest
from hypothesis import settings

settings.register_profile("pisco", deadline=None, max_examples=12, derandomize=True)
settings.load_profile("pisco")


QUICK = {"api", "checkpoint", "compressors", "config", "costs", "data", "graphs", "inputs", "layering", "metrics"}
QUICK |= {"partition", "results", "sizes", "targets", "theory", "twins", "weights"}
"""Files of tests that together take a minute on two cores: what `make check` runs."""


def pytest_collection_modifyitems(items):
    for item in items:
        if item.path.stem.removeprefix("test_") in QUICK:
            item.add_marker("quick")


@pytest.fixture
def x64():
    """Double precision for one test."""
    with jax.enable_x64(True):
        yield


@pytest.fixture(autouse=True)
def single_precision_again():
    """An experiment in float64 switches jax for good; the next test starts in float32 again."""
    yield
    jax.config.update("jax_enable_x64", False)
