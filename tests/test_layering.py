"""The house keeps its shape: imports point one way, and the core needs jax and numpy alone."""

import ast
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

import pisco

SOURCE = Path(pisco.__file__).parent
ORDER = [
    {"_version", "errors", "files"},
    {"types", "tree"},
    {"algorithms", "networks", "data"},
    {"problems"},
    {"metrics", "costs", "theory", "settings"},
    {"interop"},
    {"engines", "results"},
    {"federation"},
    {"planning"},
    {"report"},
    {"experiments"},
    {"cli"},
]
LEVEL = {room: level for level, rooms in enumerate(ORDER) for room in rooms}
SIBLINGS_ALLOWED = {
    ("engines", "results"),
    ("results", "engines"),
    ("types", "errors"),
    ("networks", "theory"),
}


def imports(path):
    """Every pisco room a module imports at module level or inside functions, but not for typing alone."""
    tree = ast.parse(path.read_text())
    typing_only = {
        id(child)
        for node in ast.walk(tree)
        if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test)
        for child in ast.walk(node)
    }
    for node in ast.walk(tree):
        if (
            isinstance(node, ast.ImportFrom)
            and id(node) not in typing_only
            and (node.module or "").startswith("pisco")
        ):
            parts = node.module.split(".")
            yield from [parts[1]] if len(parts) > 1 else [alias.name for alias in node.names]


MODULES = sorted(p for p in SOURCE.rglob("*.py") if p != SOURCE / "__init__.py")


@pytest.mark.parametrize("path", MODULES, ids=lambda p: str(p.relative_to(SOURCE)))
def test_imports_point_downwards(path):
    room = path.relative_to(SOURCE).parts[0].removesuffix(".py")
    assert room in LEVEL, f"{room} is a new room: give it a place in ORDER"
    for other in imports(path):
        if other == room or other not in LEVEL or (room, other) in SIBLINGS_ALLOWED:
            continue
        # The report is opened from a result only when somebody asks for a plot.
        if (room, other) == ("results", "report"):
            continue
        assert LEVEL[other] < LEVEL[room], f"{room} imports {other}"


def test_the_core_needs_jax_and_numpy_alone():
    program = textwrap.dedent(
        """
        import sys

        class Absent:
            def find_spec(self, name, path=None, target=None):
                if name.split(".")[0] in BLOCKED:
                    raise ModuleNotFoundError(name)

        BLOCKED = {"networkx", "cvxpy", "clarabel", "matplotlib", "pandas", "pooch", "pydantic", "rich", "typer"}
        BLOCKED |= {"cryptography", "google", "grpc", "torch"}
        sys.meta_path.insert(0, Absent())
        import pisco
        problem = pisco.problems.logistic(pisco.data.load("a9a"), agents=10)
        net = pisco.Network.ring(10, weights="fdla", server=pisco.bernoulli(0.1))
        rule = pisco.algorithms.pisco(local_lr=0.02, local_steps=1)
        print(pisco.run(rule, problem, net, rounds=3, batch_size=32))
        """
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    assert "finished after 3 rounds" in done.stdout


def test_import_loads_nothing_heavy():
    heavy = [
        "networkx",
        "cvxpy",
        "matplotlib",
        "pandas",
        "pooch",
        "pydantic",
        "rich",
        "typer",
        "cryptography",
        "grpc",
        "torch",
        "scipy.sparse.linalg",
    ]
    program = f"import sys, pisco; print([m for m in {heavy!r} if m in sys.modules])"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60)
    assert done.stdout.strip() == "[]", done.stdout + done.stderr
