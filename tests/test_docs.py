"""The documentation holds: its Python runs, its commands and files exist, its tables agree with the code."""

import os
import re
import runpy
import shlex
import subprocess
import sys
from pathlib import Path

import pytest
import typer

import pisco
from pisco.algorithms import ALGORITHMS
from pisco.cli.main import app
from pisco.engines.job import Job, Run, carry_shapes
from pisco.experiments import load

import needs

ROOT = Path(__file__).parents[1]
DOCS = ROOT / "docs"
if not (ROOT / "mkdocs.yml").is_file():
    pytest.skip("only a checkout has the documentation", allow_module_level=True)
TOP = [ROOT / name for name in ("README.md", "CHANGELOG.md", "CONTRIBUTING.md")]
PAGES = [*TOP, *sorted(DOCS.glob("*.md"))]
EXAMPLES = sorted((ROOT / "examples").glob("*.py"))
FENCE = re.compile(r"^```(\w+)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
SLOW = {"compare_schedules.py", "karate_club.py", "plan_network.py", "algorithms.md", "performance.md"}  # many programs
SLOW |= {"planning.md", "networks.md", "time.md", "models.md", "getting-started.md"}
SLOW |= {"parts_torch.py", "federate_torch.py", "federate_jax.py", "own_loss.py"}
SLOW |= {"privacy.md", "guards.md"}
SLOW |= {"index.md", "quickstart.py"}  # what README.md runs
AGAIN = {"extend.md"}  # whose Python runs in make test as the module that its experiment file names
NEEDS = {"federate_torch.py": ("torch", "torch"), "parts_torch.py": ("torch", "torch")}
LIBRARIES = {"parts_flax.py": "flax", "parts_equinox.py": "equinox"}  # which no extra for tests brings


def leaves(group, before=""):
    """Every command by its words, those of groups included."""
    for name, command in group.commands.items():
        words = f"{before} {name}".strip()
        yield from leaves(command, words) if hasattr(command, "commands") else [(words, command)]


COMMANDS = dict(leaves(typer.main.get_command(app)))


def named(path):
    return str(path.relative_to(ROOT))


def run_here(paths, slow=SLOW):
    """One test for each file, marked where it takes long."""
    return [pytest.param(path, marks=[pytest.mark.slow] * (path.name in slow), id=named(path)) for path in paths]


def blocks(page, language):
    """The fenced blocks of a language, each with the line it starts on."""
    text = page.read_text()
    return [
        (text.count("\n", 0, found.start()) + 2, found[2]) for found in FENCE.finditer(text) if found[1] == language
    ]


WITH_PYTHON = [page for page in PAGES if blocks(page, "python")]


@pytest.mark.parametrize("page", run_here(WITH_PYTHON, SLOW | AGAIN))
def test_python_blocks_run(page, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    namespace = {"__name__": f"docs_{page.stem}"}
    for line, code in blocks(page, "python"):
        # Padded, so that a traceback points at the line of the page.
        exec(compile("\n" * (line - 1) + code, str(page), "exec"), namespace)


@pytest.mark.parametrize("example", run_here(EXAMPLES))
def test_examples_run(example, tmp_path, monkeypatch, capsys):
    if example.name in NEEDS:
        needs.module(*NEEDS[example.name])
    if example.name in LIBRARIES:
        pytest.importorskip(LIBRARIES[example.name])
    if example.name not in SLOW:  # in this process: to start one and import everything takes as long
        monkeypatch.chdir(tmp_path)
        runpy.run_path(str(example), run_name="__main__")
        assert capsys.readouterr().out.strip()
        return
    done = subprocess.run(
        [sys.executable, "-W", "error", example],
        cwd=tmp_path,
        env=os.environ | {"JAX_PLATFORMS": "cpu"},
        capture_output=True,
        text=True,
        timeout=900,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip()


@pytest.mark.slow
@pytest.mark.parametrize("name", ["cifar_resnet", "shakespeare_characters", "speeches"])
def test_large_examples_run_in_small(name, tmp_path):
    """What `--out` writes is what the picture reads."""
    here = {each.name for each in pisco.data.available() if each.found}
    if missing := {"shakespeare_characters": {"shakespeare"}, "speeches": {"sotu"}}.get(name, set()) - here:
        pytest.skip(f"{missing} is not here")
    folder = ROOT / "examples" / "large"
    common: dict = {"env": os.environ | {"JAX_PLATFORMS": "cpu"}, "capture_output": True, "text": True, "timeout": 900}
    out, picture = tmp_path / "runs.jsonl", tmp_path / "picture.png"
    command = [sys.executable, folder / f"{name}.py", "--tiny", "--methods", "central,noloco", "--out", out]
    done = subprocess.run(command, check=False, **common)
    assert done.returncode == 0, done.stderr
    assert len(out.read_text().splitlines()) == 2
    done = subprocess.run([sys.executable, folder / "plot.py", out, picture], check=False, **common)
    assert done.returncode == 0 and picture.is_file(), done.stderr


def test_every_algorithm_has_an_entry():
    headings = re.findall(r"^## `(.+)`$", (DOCS / "algorithms.md").read_text(), re.MULTILINE)
    assert sorted(headings) == sorted(ALGORITHMS)


def test_every_command_has_an_entry():
    headings = re.findall(r"^## `pisco (.+)`$", (DOCS / "cli.md").read_text(), re.MULTILINE)
    assert sorted(headings) == sorted(COMMANDS)


@pytest.mark.parametrize("page", [page for page in PAGES if blocks(page, "bash")], ids=named)
def test_shell_blocks_name_real_commands_and_options(page):
    for line, text in blocks(page, "bash"):
        for words in (shlex.split(each, comments=True) for each in text.splitlines()):
            if words[:1] != ["pisco"] or words[1].startswith("-"):
                continue
            where = f"{page.name}, block at line {line}: {' '.join(words)}"
            named = next((w for w in (" ".join(words[1:3]), words[1]) if w in COMMANDS), None)
            assert named, where
            meant = [named, "run"] if named == "launch" else [named]  # a launch is followed by a run
            known = {flag for name in meant for option in COMMANDS[name].params for flag in option.opts}
            assert {word for word in words if word.startswith("-")} <= known | {"--help"}, where


WITH_FILES = [page for page in PAGES if blocks(page, "toml")]


def experiments(page, folder):
    """The experiments of a page, for one round."""
    own = "".join(code for _, code in blocks(page, "python"))
    (folder / "my_things.py").write_text(own)  # what a page defines, its files may name
    for _, text in blocks(page, "toml"):
        (folder / "mine.toml").write_text(text)
        yield load(folder / "mine.toml", ["run.rounds=1"])


@pytest.mark.parametrize("page", run_here(WITH_FILES))
def test_experiment_files_run(page, tmp_path):
    for config in experiments(page, tmp_path):
        if config.problem.dataset == "a9a":  # other data may not be on this machine
            assert config.execute().rounds == 1


def test_experiment_files_make_what_they_name(tmp_path):
    """Of pages whose files run in the slow tests."""
    given = [config for page in WITH_FILES if page.name in SLOW for config in experiments(page, tmp_path)]
    given = [config for config in given if config.problem.dataset == "a9a"]
    assert len(given) == 3
    for config in given:
        rule, problem, network = config.build()
        shapes = carry_shapes(Job(problem, network, (Run(rule, network.server, 0),), config.run.batch_size))
        assert shapes.state.params.shape == (config.network.agents, 124)
        assert config.clock is None or config.clock.build()


def _anchors(page):
    """The anchors of a page's headings, as the site makes them."""
    titles = re.findall(r"^#+ (.+)$", FENCE.sub("", page.read_text()), re.MULTILINE)
    plain = [re.sub(r"[^\w\s-]", "", title.lower()).strip() for title in titles]
    return {re.sub(r"[-\s]+", "-", title) for title in plain}


@pytest.mark.parametrize("page", PAGES, ids=named)
def test_links_and_pictures_exist(page):
    text = re.sub(r"`[^`\n]*`", "", FENCE.sub("", page.read_text()))
    for target in re.findall(r"\]\(([^)\s]+)\)", text):
        if target.startswith(("http://", "https://")):
            continue
        path, _, anchor = target.partition("#")
        linked = (page.parent / path).resolve() if path else page
        assert linked.exists(), target
        assert not anchor or anchor in _anchors(linked), target


def test_pictures_are_small():
    for picture in (DOCS / "images").iterdir():
        assert picture.stat().st_size <= 200_000, picture.name


def test_algorithm_1_is_quoted_from_the_code():
    text = (DOCS / "paper-to-code.md").read_text()
    section = text.split("## Algorithm 1, line by line")[1].split("\n## ")[0]
    rows = re.findall(r"^\| [\d, XGY]+ \|.*\| `(.+)` \| `(.+\.py)` \|$", section, re.MULTILINE)
    assert len(rows) == 11
    for quoted, file in rows:
        source = (ROOT / "src" / "pisco" / file).read_text()
        assert "".join(quoted.split()) in "".join(source.split()), f"{file} has no {quoted}"


def test_changelog_and_citation_name_this_version():
    assert f"## [{pisco.__version__}]" in (ROOT / "CHANGELOG.md").read_text()
    assert f"\nversion: {pisco.__version__}\n" in (ROOT / "CITATION.cff").read_text()


def test_every_page_is_in_the_navigation():
    listed = re.findall(r"^ +- .+: (.+\.md)$", (ROOT / "mkdocs.yml").read_text(), re.MULTILINE)
    assert sorted(listed) == sorted(str(page.relative_to(DOCS)) for page in DOCS.rglob("*.md"))
