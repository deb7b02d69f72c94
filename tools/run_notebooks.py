"""Execute the notebooks in examples/ from top to bottom, each in an empty folder; they are not written to.

A notebook names what it needs beyond pisco in its metadata (`pisco.needs`); without that it is skipped, and said so.
"""

import argparse
import importlib.util
import sys
import tempfile
import time
from pathlib import Path

import nbformat
from nbclient import NotebookClient
from nbclient.exceptions import CellExecutionError

EXAMPLES = Path(__file__).parents[1] / "examples"


def found(module: str) -> bool:
    """Whether a module can be imported, `torch` as well as `pisco.planning`."""
    try:
        return importlib.util.find_spec(module) is not None
    except ModuleNotFoundError:
        return False


def execute(path: Path) -> None:
    """Run all cells; the first error is raised."""
    notebook = nbformat.read(path, as_version=4)
    nbformat.validate(notebook)
    with tempfile.TemporaryDirectory() as folder:
        NotebookClient(notebook, timeout=600, resources={"metadata": {"path": folder}}).execute()


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("notebooks", nargs="*", type=Path, help="all in examples/ unless named")
    failed = 0
    for path in parser.parse_args().notebooks or sorted(EXAMPLES.glob("*.ipynb")):
        metadata = nbformat.read(path, as_version=4).metadata
        missing = [module for module in metadata.get("pisco", {}).get("needs", []) if not found(module)]
        if missing:
            print(f"{path.name}: skipped, {', '.join(missing)} is not installed", flush=True)
            continue
        began = time.perf_counter()
        try:
            execute(path)
            print(f"{path.name}: ran in {time.perf_counter() - began:.0f} s", flush=True)
        except CellExecutionError as error:
            print(f"{path.name}: failed\n{error}", file=sys.stderr, flush=True)
            failed += 1
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
