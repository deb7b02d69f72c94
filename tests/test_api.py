"""Public is what `__all__` of a documented module names: docs/api.md has all of it, and nothing else."""

import ast
import functools
import importlib
import inspect
import pkgutil
import re
from pathlib import Path

import pytest

import pisco

PAGE = Path(__file__).parent.parent / "docs" / "api.md"
if not PAGE.is_file():
    pytest.skip("the documentation is not here", allow_module_level=True)
ENTRY = re.compile(r"^::: (\S+)(?:\n    options:\n      members: \[(.+)\])?", re.MULTILINE)


@functools.cache
def at(path):
    """The object at a path of the source; modules before attributes, as in pisco.algorithms.dsgd.dsgd."""
    parent, _, name = path.rpartition(".")
    return importlib.import_module(path) if path in MODULES else getattr(at(parent), name)


MODULES = {"pisco", *(each.name for each in pkgutil.walk_packages(pisco.__path__, "pisco."))}
PUBLIC = [name for name in sorted(MODULES) if "\n__all__ = " in Path(inspect.getfile(at(name))).read_text()]


def entries():
    """What the page shows, one by one: paths and objects."""
    for path, members in ENTRY.findall(PAGE.read_text()):
        shown = [f"{path}.{each}" for each in members.split(", ")] if members else []
        if inspect.ismodule(at(path)):
            assert shown, f"name the members of {path}"
            yield from ((each, at(each)) for each in shown)
        else:
            yield path, at(path)
            assert all(hasattr(at(path), each.rpartition(".")[2]) for each in shown), shown


def test_every_entry_exists_and_is_public():
    public = [getattr(at(module), name) for module in PUBLIC for name in at(module).__all__]
    for path, thing in entries():
        assert any(thing is each for each in public), f"{path} is in no __all__"


@pytest.mark.parametrize("module", PUBLIC)
def test_every_public_name_is_documented(module):
    shown = dict(entries())
    for name in at(module).__all__:
        thing = getattr(at(module), name)
        if inspect.ismodule(thing):
            assert any(path.startswith(f"{thing.__name__}.") for path in shown), f"{name} has no entry"
        elif name != "__version__":
            assert any(thing is each for each in shown.values()), f"{name} has no entry in docs/api.md"
            assert inspect.getdoc(thing), f"{name} has no docstring"


def told():
    """What readers are shown: the blocks of the documentation, and the examples."""
    root = PAGE.parents[1]
    for page in (root / "README.md", *(root / "docs").rglob("*.md")):
        yield from ((page.name, block) for block in re.findall(r"```python\n(.*?)```", page.read_text(), re.DOTALL))
    yield from ((path.name, path.read_text()) for path in (root / "examples").rglob("*.py"))


def test_readers_are_shown_public_names_alone():
    public = [getattr(at(module), name) for module in PUBLIC for name in at(module).__all__]
    private = set()
    for where, text in told():
        for node in ast.walk(ast.parse(text)):
            if isinstance(node, ast.ImportFrom) and (node.module or "").split(".")[0] == "pisco":
                named = {f"{node.module}.{alias.name}": at(f"{node.module}.{alias.name}") for alias in node.names}
            elif isinstance(node, ast.Attribute) and re.fullmatch(r"pisco(\.\w+)+", path := ast.unparse(node)):
                parent = at(path.rpartition(".")[0])
                named = {path: getattr(parent, node.attr)} if inspect.ismodule(parent) else {}
            else:
                continue
            for path, thing in named.items():
                if not inspect.ismodule(thing) and not any(thing is each for each in public):
                    private.add((where, path))
    assert not private, "name them in `__all__` and in docs/api.md, or show something else"
