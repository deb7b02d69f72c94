"""The notebooks in examples/: kept without outputs, and able to run."""

import ast
import json
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
NOTEBOOKS = sorted((ROOT / "examples").glob("*.ipynb"))
if not NOTEBOOKS:
    pytest.skip("only a checkout has the examples", allow_module_level=True)


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.name)
def test_kept_without_outputs_and_well_formed(path):
    cells = json.loads(path.read_text(encoding="utf-8"))["cells"]
    assert cells[0]["cell_type"] == "markdown" and cells[0]["source"][0].startswith("# ")
    for cell in cells:
        if cell["cell_type"] == "code":
            assert cell["outputs"] == [] and cell["execution_count"] is None
            ast.parse("".join(line for line in cell["source"] if not line.startswith("%%")))


@pytest.mark.slow
def test_they_run():
    for package in ("nbclient", "ipykernel"):
        pytest.importorskip(package, reason="the extra `notebooks` is not installed")
    command = [sys.executable, str(ROOT / "tools" / "run_notebooks.py")]
    done = subprocess.run(command, capture_output=True, text=True, timeout=7200, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "1-quickstart.ipynb: ran" in done.stdout
