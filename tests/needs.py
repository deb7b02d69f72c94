"""What some tests need beyond the extra `test`: without it they are skipped, but where CI is set they fail."""

import importlib
import os
import shutil

import pytest


def module(name, extra):
    """A module that an extra brings."""
    if os.environ.get("CI"):
        return importlib.import_module(name)
    return pytest.importorskip(name, reason=f"the extra `{extra}` is not installed")


def chromium():
    """The path of a Chromium: PISCO_CHROMIUM, or one on the path."""
    names = ("chromium", "chromium-browser", "google-chrome")
    found = os.environ.get("PISCO_CHROMIUM") or next(filter(None, map(shutil.which, names)), None)
    if found is None and os.environ.get("CI"):
        pytest.fail("CI is set, but there is no Chromium on this machine", pytrace=False)
    return found or pytest.skip("there is no Chromium on this machine")
