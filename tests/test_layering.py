"""The house keeps its shape: imports point one way, inside packages too, and the core needs jax and numpy alone."""

import ast
import contextlib
import functools
import graphlib
import importlib
import io
import re
import subprocess
import sys
import textwrap
import tokenize
from pathlib import Path
from types import ModuleType

import pytest

import pisco

SOURCE = Path(pisco.__file__).parent
ROOT = Path(__file__).parent.parent
REST = "*"
"""The modules of a package that its order does not name; among each other they may not go in circles."""

ORDER = {
    "pisco": [
        {"_version", "display", "errors", "jaxprs", "seeds", "statistics"},
        {"files", "trouble"},
        {"registry", "memory", "parts"},
        {"types", "tree"},
        {"guarding", "privacy"},
        {"algorithms", "networks", "data", "convolutions"},
        {"metrics"},
        {"problems"},
        {"costs", "theory", "settings"},
        {"targets", "clock"},
        {"results"},
        {"interop"},
        {"engines"},
        {"federation"},
        {"planning"},
        {"report"},
        {"experiments"},
        {"attacks"},
        {"testing"},
        {"cli"},
        {"__main__"},
    ],
    "pisco.algorithms": [{"packing"}, {"compressors", "optimizers"}, REST, {"registry"}],
    "pisco.networks": [{"graph", "spectral"}, {"mixing"}, REST, {"rounds"}, {"network"}, {"facts"}],
    "pisco.data": [{"dataset", "storage"}, REST, {"registry"}],
    "pisco.problems": [{"sampling"}, {"blocks", "checks"}, {"problem"}, REST, {"registry"}],
    "pisco.guarding": [{"apart"}, {"watch"}],
    "pisco.clock": [{"clock"}, {"stopwatch"}],
    "pisco.engines": [
        {"checkpoint"},
        {"process_group"},
        {"job"},
        REST,
        {"driver"},
        {"scan"},
        {"debug"},
        {"cluster"},
        {"sharded"},
        {"run"},
    ],
    "pisco.planning": [{"settings"}, REST, {"pilot"}, {"track"}, {"search"}, {"planner"}, {"formulas"}],
    "pisco.federation": [
        {"roster", "keyfiles"},
        {"signers"},
        {"authority"},
        {"naming", "contract", "masking", "changes"},
        {"consistency", "shared_problem"},
        {"plan"},
        {"signed"},
        {"kits", "models"},
        {"rolls"},
        {"audit"},
        {"runtime"},
    ],
    "pisco.federation.runtime": [
        {"wire_pb2", "keys_pb2", "routes", "cut", "buffers"},
        {"chunks"},
        {"codec"},
        REST,
        {"member", "asking"},
        {"parting", "timely"},
        {"membership"},
        {"agent", "server"},
        {"rolled", "roll_call"},
        {"attendance"},
        {"rolled_agent", "rolled_server", "replay"},
    ],
    "pisco.report": [REST, {"html"}, {"live", "playground", "federation"}],
    "pisco.experiments": [{"config", "tune"}, {"loading"}, REST, {"paper", "bench"}],
    "pisco.experiments.bench": [
        {"suite"},
        {"tasks"},
        {"cells"},
        {"runner"},
        {"scores"},
        {"store"},
        {"map", "learned", "page"},
        {"__main__"},
    ],
    "pisco.experiments.paper": [{"work", "verdict", "pieces"}, {"study"}, REST, {"figures"}],
    "pisco.attacks": [{"observed"}, REST],
    "pisco.cli": [{"console"}, REST, {"main"}],
}
"""What stands in a package, from below; modules of one set do not know each other."""

EXCEPTIONS = {
    ("results", "report"): "a result opens its report when somebody asks for a plot",
    ("networks", "theory"): "weights that PISCO's theory makes are a row among the others",
}
"""Rooms that know one above them, and why."""


def dotted(path):
    parts = ("pisco", *path.relative_to(SOURCE).with_suffix("").parts)
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


MODULES = {dotted(path): path for path in sorted(SOURCE.rglob("*.py"))}
NAMED = MODULES.keys() - {"pisco"}
STARTS = re.compile(r"^\['pisco'|'-m', 'pisco'")


def is_text(node):
    """Whether a node is a docstring."""
    return isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)


@functools.cache
def parsed(name):
    return ast.parse(MODULES[name].read_text())


def known(name):
    """Every pisco module that a module imports, at its top or in a function, or names to have it imported or started.

    Not for typing alone, and not in docstrings.
    """
    path, nodes = MODULES[name], [parsed(name)]
    while nodes:
        node = nodes.pop()
        if is_text(node):
            continue
        typing = isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING"
        nodes += node.orelse if typing else ast.iter_child_nodes(node)
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names if alias.name.split(".")[0] == "pisco")
        elif isinstance(node, ast.ImportFrom) and (node.module or "").split(".")[0] == "pisco":
            longer = [f"{node.module}.{alias.name}" for alias in node.names]
            yield from (name if name in MODULES else node.module for name in longer)
        elif isinstance(node, ast.ImportFrom):
            assert not node.level, f"{path.name}, line {node.lineno}: write the whole path, from pisco.… import"
        elif isinstance(node, ast.Constant) and (named := str(node.value).partition(":")[0]) in NAMED:
            if named.split(".")[1:2] != name.split(".")[1:2]:  # a room may start itself
                yield named  # as in [sys.executable, "-m", "pisco.cli.main"], or "pisco.theory.step_weights:pisco_step"
        elif isinstance(node, ast.List | ast.Tuple) and STARTS.search(ast.unparse(node)):
            yield "pisco.cli.main"  # as in subprocess.run(["pisco", "run"])


def rooms(one, other):
    """The package where the paths of two modules part, and the room of each in it."""
    one, other = one.split("."), other.split(".")
    at = next((i for i, (a, b) in enumerate(zip(one, other, strict=False)) if a != b), min(len(one), len(other)))
    return ".".join(one[:at]), *(".".join(parts[at : at + 1]) for parts in (one, other))


def place(package, room):
    """The level of a room in its package, and whether it is one of the rest."""
    order = ORDER.get(package, [REST])
    named = [level for level, names in enumerate(order) if names != REST and room in names]
    assert named or REST in order, f"{package}.{room} is new: give it a place in ORDER"
    return (named[0], False) if named else (order.index(REST), True)


@functools.cache
def graph():
    """What every module knows. Not read before a test asks: every worker imports every file of tests."""
    return {name: set(known(name)) for name in NAMED}


def excused(name, other):
    package, *two = rooms(name, other)
    return package == "pisco" and tuple(two) in EXCEPTIONS


@pytest.mark.parametrize("own", sorted({name.split(".")[1] for name in NAMED}))
def test_imports_point_downwards(own):
    place("pisco", own)
    edges = [(name, other) for name in NAMED if name.split(".")[1] == own for other in graph()[name]]
    for name, other in edges:
        package, room, its = rooms(name, other)
        if not room or excused(name, other):
            continue  # a package's own __init__ shows what its modules have
        assert its, f"{name} imports the package it stands in"
        (level, rest), (below, also) = place(package, room), place(package, its)
        assert below < level or (rest and also), f"{name} knows {other}, which does not stand below it"


def test_nothing_goes_in_circles():
    known = {name: [o for o in others if not excused(name, o)] for name, others in graph().items()}
    graphlib.TopologicalSorter(known).prepare()


def types_in(name):
    """The classes of a module and what it writes for a longer type: `Key = jax.Array`."""
    for node in parsed(name).body:
        if isinstance(node, ast.ClassDef):
            yield node.name
        elif isinstance(node, ast.Assign):
            yield from (to.id for to in node.targets if isinstance(to, ast.Name) and re.match("[A-Z]+[a-z]", to.id))


def test_no_two_types_share_a_name():
    found = [(each, name) for name in MODULES if not name.endswith("_pb2") for each in types_in(name)]
    places = {name: [module for one, module in found if one == name] for name, _ in found}
    assert not {name: modules for name, modules in places.items() if len(modules) > 1}


EMPTY = {tokenize.COMMENT, tokenize.NL, tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT, tokenize.ENDMARKER}
CORE = {"algorithms", "networks", "problems", "engines"}
"""What a researcher reads, beside the modules at the root."""


def lines_of_code(name):
    """Lines that say something to Python: no comments, no docstrings."""
    tokens = tokenize.generate_tokens(io.StringIO(MODULES[name].read_text()).readline)
    lines = {line for each in tokens if each.type not in EMPTY for line in range(each.start[0], each.end[0] + 1)}
    texts = [node for node in ast.walk(parsed(name)) if is_text(node)]
    return len(lines - {line for node in texts for line in range(node.lineno, node.end_lineno + 1)})


def test_the_core_stays_small():
    """Whatever is built around it. A module of more than 400 lines is two."""
    package = {name: ("pisco", *path.relative_to(SOURCE).parts[:-1]) for name, path in MODULES.items()}
    core = [name for name, where in package.items() if len(where) == 1 or (len(where) == 2 and where[1] in CORE)]
    assert sum(map(lines_of_code, core)) < 8000
    lines = {name: path.read_text().count("\n") for name, path in MODULES.items() if not name.endswith("_pb2")}
    assert not {name: count for name, count in lines.items() if count > 400}


def test_every_exception_is_needed():
    used = {rooms(name, other)[1:] for name, others in graph().items() for other in others}
    assert set(EXCEPTIONS) <= used, f"nobody needs {set(EXCEPTIONS) - used}: delete it"


def test_the_core_needs_jax_and_numpy_alone():
    """The import tries nothing heavy, and a run works without."""
    program = textwrap.dedent(
        """
        import sys

        class Absent:
            def find_spec(self, name, path=None, target=None):
                if name.split(".")[0] in BLOCKED:
                    tried.append(name)
                    raise ModuleNotFoundError(name)

        BLOCKED = {"networkx", "cvxpy", "clarabel", "matplotlib", "pandas", "pooch", "pydantic", "rich", "typer"}
        BLOCKED |= {"cryptography", "google", "grpc", "torch"}
        tried = []
        sys.meta_path.insert(0, Absent())
        import pisco
        tried += [name for name in sys.modules if name.split(".")[0] in BLOCKED or name == "scipy.sparse.linalg"]
        assert not tried, tried
        problem = pisco.problems.logistic(pisco.data.load("a9a"), agents=10)
        net = pisco.Network.ring(10, weights="fdla", server=pisco.bernoulli(0.1))
        rule = pisco.algorithms.pisco(local_lr=0.02, local_steps=1)
        print(pisco.run(rule, problem, net, rounds=3, batch_size=32))
        """
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=900)
    assert done.returncode == 0, done.stderr
    assert "finished after 3 rounds" in done.stdout


def test_benchmarks_and_tools_use_what_there_is():
    """Nothing else runs them all: a name of pisco that was moved or dropped must not break them unseen."""
    gone = []
    for path in [*(ROOT / "benchmarks").rglob("*.py"), *(ROOT / "tools").glob("*.py")]:
        tree, modules = ast.parse(path.read_text()), {}
        for node in ast.walk(tree):
            if isinstance(node, ast.ImportFrom) and (node.module or "").partition(".")[0] == "pisco":
                for name in node.names:
                    found = found_in(node.module, name.name)
                    gone += [f"{path.name}: {node.module}.{name.name}"] if found is None else []
                    modules[name.asname or name.name] = found
        for node in ast.walk(tree):
            if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name):
                module = modules.get(node.value.id)
                if isinstance(module, ModuleType) and found_in(module.__name__, node.attr) is None:
                    gone.append(f"{path.name}: {module.__name__}.{node.attr}")
    assert not gone


def found_in(module, name):
    """A module's name or submodule; None where there is none."""
    with contextlib.suppress(AttributeError):
        return getattr(importlib.import_module(module), name)
    with contextlib.suppress(ModuleNotFoundError):
        return importlib.import_module(f"{module}.{name}")
