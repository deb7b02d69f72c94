"""`pisco reproduce`: every figure in its quick form through the real code, and what must hold at any size."""

import csv
import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from typer.testing import CliRunner

from pisco.cli import reproduce as command
from pisco.cli.main import app
from pisco.errors import InputError
from pisco.experiments.paper.figures import FIGURES
from pisco.experiments.paper.speed_up import mean_gradient, noise_floor
from pisco.experiments.paper.tables import Setup, complexities
from pisco.experiments.paper.verdict import HOLDS

DATA = bool(os.environ.get("PISCO_DATA"))
WITHOUT_DATA = [name for name, figure in FIGURES.items() if not figure.needs]
IMAGES = [name for name, figure in FIGURES.items() if figure.needs]


def pisco(*words):
    return CliRunner().invoke(app, list(words), catch_exceptions=False)


@pytest.fixture(autouse=True)
def no_cache(monkeypatch):
    monkeypatch.setattr(command, "use_compilation_cache", lambda: None)


def quick(name, folder):
    """Run the command, check its files, and give the verdicts."""
    done = pisco("reproduce", name, "--quick", "--out", str(folder))
    assert done.exit_code == 0, done.output
    verdicts = json.loads((folder / f"{name}-verdicts.json").read_text())
    assert verdicts
    for verdict in verdicts:
        assert verdict["claim"] and verdict["statistic"] and verdict["measured"]
        if not verdict["depends_on_size"]:
            assert verdict["outcome"] == HOLDS or name.startswith("table"), verdict
    settings = json.loads((folder / f"{name}-settings.json").read_text())
    assert settings["quick"] is True and settings["settings"]
    with (folder / f"{name}.csv").open() as file:
        assert list(csv.DictReader(file))
    if name.startswith("table"):
        assert (folder / f"{name}.md").read_text().startswith("| method |")
    else:
        assert (folder / f"{name}.png").read_bytes().startswith(b"\x89PNG")
        page = (folder / f"{name}.html").read_text()
        assert "plotly" in page and 'src="http' not in page
    return verdicts


LONG = {"different-p", "iter-p", "theory"}


@pytest.mark.parametrize("name", [pytest.param(n, marks=pytest.mark.slow) if n in LONG else n for n in WITHOUT_DATA])
def test_quick_form(name, tmp_path):
    quick(name, tmp_path)


@pytest.mark.slow
@pytest.mark.skipif(not DATA, reason="MNIST and CIFAR-10 are found through PISCO_DATA, which is not set")
@pytest.mark.parametrize("name", IMAGES)
def test_quick_form_with_images(name, tmp_path):
    quick(name, tmp_path)


def test_list_and_unknown_names():
    listed = pisco("reproduce", "--list")
    assert listed.exit_code == 0
    assert all(name in listed.stdout for name in FIGURES)
    wrong = pisco("reproduce", "iterp")
    assert wrong.exit_code == 2 and "iter-p" in wrong.stderr
    assert pisco("reproduce").exit_code == 2


def test_missing_data_alone_and_in_all(tmp_path, monkeypatch):
    def missing(name):
        raise InputError(f"put {name} there")

    some = {name: FIGURES[name] for name in ("different-topology", "table-semi-ml")}
    monkeypatch.setattr("pisco.experiments.paper.figures.FIGURES", some)
    monkeypatch.setattr("pisco.data.load", missing)
    alone = pisco("reproduce", "different-topology", "--quick", "--out", str(tmp_path))
    assert alone.exit_code == 2 and "put mnist there" in alone.stderr
    everything = pisco("reproduce", "all", "--quick", "--out", str(tmp_path))
    assert everything.exit_code == 0
    assert "skipped different-topology: put mnist there" in everything.stderr
    assert (tmp_path / "table-semi-ml.csv").exists()


def test_the_speed_up_is_measured_in_every_round():
    """Its means leave out the first rounds by their number, and are NaN where rows are fewer."""
    assert np.isfinite(noise_floor(4, 1, 60, (0,), None)).all()
    assert np.isfinite(mean_gradient((0,), None, n=4, K=60)).all()


def test_complexities_at_the_ends():
    setup = Setup(10, 5, 0.3)
    assert complexities(setup, 0.0)["pisco"][0] == 0
    assert complexities(setup, 1.0)["pisco"][1] == 0
    n, steps, e = 10, 5, setup.epsilon
    expected = 1 / (n * steps * e**4) + 1 / (0.3**2 * e**3) + 1 / (n * e**2)
    assert np.isclose(complexities(setup, 0.0)["pisco"][1], expected)


def test_computing_needs_jax_and_numpy_alone():
    program = (
        "import sys\n"
        "from pisco.experiments.paper import figures\n"
        "heavy = ('matplotlib', 'plotly', 'pydantic', 'rich', 'typer', 'cvxpy', 'networkx')\n"
        "print([m for m in heavy if m in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=900)
    assert done.stdout.strip() == "[]", done.stdout + done.stderr


def test_committed_results_are_small_and_of_these_figures():
    folder = Path(__file__).parents[1] / "docs" / "reproduction"
    if not folder.is_dir():
        pytest.skip("only a checkout has the documentation")
    for path in folder.iterdir():
        assert path.stat().st_size <= 200_000, path.name
    for name in FIGURES:
        for ending in (".csv", "-settings.json", "-verdicts.json"):
            assert (folder / f"{name}{ending}").is_file()
        assert f"pisco reproduce {name}" in (folder / "index.md").read_text()
