"""The command as a user meets it: what it prints, its exit codes, its files, and what survives a kill."""

import io
import json
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
from typer.testing import CliRunner

from pisco import InputError, Result, __version__
from pisco.cli import console
from pisco.cli import run as run_command
from pisco.cli.main import app
from pisco.experiments import load

from worlds import TINY_EXPERIMENT as TINY


@pytest.fixture(scope="module")
def compiled(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where the processes of these tests keep their programs, as those of users do."""
    return tmp_path_factory.mktemp("cache")


@pytest.fixture
def tiny(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, compiled: Path) -> Path:
    """A small experiment in an empty current folder."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PISCO_CACHE", str(compiled))
    monkeypatch.setattr(run_command, "use_compilation_cache", lambda: None)
    generator = np.random.default_rng(0)
    features = generator.normal(size=(40, 3)).astype(np.float32)
    labels = (features[:, 0] > 0).astype(int)
    np.savez("points.npz", features=features, labels=labels, test_features=features, test_labels=labels)
    Path("tiny.toml").write_text(TINY)
    return tmp_path


def pisco(*words: str):
    """Run a command in this process."""
    return CliRunner().invoke(app, list(words), catch_exceptions=False)


def fails(*words: str, saying: str) -> list[str]:
    """The command ends with one sentence on stderr and exit code 2, and prints nothing else; the lines on stderr."""
    done = pisco(*words)
    assert done.exit_code == 2, done.output
    lines = done.stderr.strip().splitlines()
    assert lines[-1].startswith("error: ") and saying in lines[-1], done.stderr
    assert not done.stdout and "Traceback" not in done.stderr
    return lines


def shell(*words: str, **options) -> subprocess.CompletedProcess:
    """Run a command as a process of its own."""
    return subprocess.run(
        [sys.executable, "-m", "pisco", *words], capture_output=True, text=True, timeout=900, **options
    )


def test_mistakes_are_one_line_of_the_words_that_were_typed(tiny):
    for words, sentence in (
        (("run", "tiny.toml", "--set", "problem.dataset=nowhere"), "unknown dataset 'nowhere'"),
        (("run", "tiny.toml", "--set", "network.reporters=99"), "reporters is 99"),
        (("compare", "tiny.toml", "--algorithms", "dsgd,dsgd"), "dsgd is named more than once; name every algorithm"),
        (("plan", "tiny.toml", "--algorithms", "dsgd,dsgd"), "dsgd is named more than once; name every algorithm"),
        (("tune", "tiny.toml", "--grid", "0.1,0.1"), "0.1 is named more than once; name every step size once"),
        (("check", "[a]:b:c"), "unknown algorithm '[a]:b:c'"),
    ):
        (line,) = fails(*words, saying=sentence)
        assert line.isascii()


# ------------------------------------------------------------------------------------------------ run


def test_run_saves_a_whole_result_and_says_what_is_next(tiny):
    done = pisco("run", "tiny.toml", "--out", "here", "--seeds", "2", "--set", "network.server_prob=0.25")
    assert done.exit_code == 0, done.output
    assert "saved in here" in done.stdout and "next: pisco report here" in done.stdout
    result = Result.load("here")
    assert result.rounds == 20 and result.seeds == (0, 1) and result.label == "tiny"
    assert load(Path("here/config.toml")).network.schedule().probability == 0.25
    assert result.settings["config"]["network"]["server_prob"] == 0.25


def test_run_json_is_one_object_and_nothing_else(tiny):
    done = pisco("run", "tiny.toml", "--json")
    record = json.loads(done.stdout)
    assert record["rounds"] == 20 and record["seeds"] == [0] and record["diverged_at"] is None
    assert Path(record["folder"]).parent == Path("results") and Path(record["folder"], "result.json").exists()
    assert record["config"]["run"]["batch_size"] == 2 and record["final"]["round"] == [20]


def test_results_are_not_overwritten_but_can_be_extended(tiny):
    assert pisco("run", "tiny.toml", "--out", "here").exit_code == 0
    fails("run", "tiny.toml", "--out", "here", saying="already holds a result")
    again = pisco("run", "--resume", "here")
    assert again.exit_code == 0 and "here is complete" in again.stderr
    fails("run", "--resume", "here", "--set", "algorithm.local_lr=0.2", saying="cannot change algorithm.local_lr")
    assert pisco("run", "--resume", "here", "--set", "run.rounds=30").exit_code == 0
    assert pisco("run", "tiny.toml", "--out", "straight", "--set", "run.rounds=30").exit_code == 0
    assert_same_result("here", "straight")


def assert_same_result(first: str | Path, second: str | Path) -> None:
    one, two = Result.load(first), Result.load(second)
    assert one.history.keys() == two.history.keys()
    for name in one.history:
        np.testing.assert_array_equal(one.history[name], two.history[name], err_msg=name)
    np.testing.assert_array_equal(one.params, two.params)


def test_default_folders_do_not_collide(tiny):
    folders = {json.loads(pisco("run", "tiny.toml", "--json").stdout)["folder"] for _ in range(3)}
    assert len(folders) == 3


def test_engines_by_name(tiny):
    assert pisco("run", "tiny.toml", "--engine", "sharded", "--set", "run.rounds=1", "-o", "x").exit_code == 0
    fails("run", "tiny.toml", "--engine", "scam", saying="unknown engine 'scam'; did you mean 'scan'?")


def test_divergence_is_visible_and_no_error(tiny):
    settings = ["--set", "algorithm.name=dsgd", "--set", "algorithm.local_lr=1e30"]
    done = pisco("run", "tiny.toml", "--out", "x", *settings, "--set", "problem.rho=0", "--set", "run.eval_every=1")
    assert done.exit_code == 0 and Result.load("x").diverged
    assert "warning: the run diverged (seed 0 from round 1)" in done.stderr
    assert "smaller algorithm.local_lr" in done.stderr and "pisco-one-exchange" not in done.stderr


def test_a_loss_that_grew_is_pointed_out(tiny):
    far = ("run", "tiny.toml", "--set", "algorithm.local_lr=500", "--set", "run.rounds=5", "--no-check", "--out")
    done = pisco(*far, "x")
    assert done.exit_code == 0 and "warning: the loss ended above its start" in done.stderr
    # What to try is what the experiment does not do already: its weights are Metropolis's.
    assert "algorithm.local_lr, algorithm.name=pisco-one-exchange or a larger network.server_prob" in done.stderr
    done = pisco(*far, "y", "--set", "algorithm.name=pisco-one-exchange", "--set", "network.weights=fdla")
    assert "algorithm.local_lr, network.weights=metropolis or a larger network.server_prob" in done.stderr
    done = pisco(*far, "z", "--set", "network.server=never")  # which takes no server_prob
    assert "pisco-one-exchange or a network.server that is reached more often\n" in done.stderr


def test_disconnected_network_warns_in_one_line(tiny):
    done = pisco(
        *("run", "tiny.toml", "--out", "x", "--set", "network.graph=clusters", "--set", "network.clusters=2"),
        *("--set", "network.server=never"),
    )
    assert done.exit_code == 0
    (line,) = [line for line in done.stderr.splitlines() if line.startswith("warning: ")]
    assert "2 components" in line


def test_own_libsvm_file(tiny):
    rows = [f"{'+1' if i % 2 else '-1'} 1:{i % 5} 3:{i / 40}" for i in range(40)]
    Path("mine.txt").write_text("\n".join(rows) + "\n")
    done = pisco("run", "tiny.toml", "--set", "problem.dataset=mine.txt", "--out", "x")
    assert done.exit_code == 0, done.output
    assert Result.load("x").rounds == 20


# ------------------------------------------------------------------------------------------ bad input


@pytest.mark.parametrize(
    ("settings", "sentence"),
    [
        (["network.server_prob=-0.1"], "server_prob is -0.1, expected a number at least 0 and at most 1"),
        (["network.server_prob=1.5"], "server_prob is 1.5"),
        (["algorithm.name=picso"], "unknown algorithm 'picso'; did you mean 'pisco'?"),
        (["network.graph=rnig"], "unknown graph 'rnig'; did you mean 'ring'?"),
        (["network.weights=fdal"], "unknown weights 'fdal'; did you mean 'fdla'?"),
        (["network.sever_prob=1"], "did you mean 'server_prob'?"),
        (["run.batch_size=11"], "batch_size is 11, but an agent has only 10 samples"),
        (["network.agents=41"], "41 agents cannot share 40 samples"),
        (["problem.dataset=nowhere.npz"], "there is no file"),
    ],
)
def test_bad_settings(tiny, settings, sentence):
    fails("run", "tiny.toml", "--out", "x", *[w for s in settings for w in ("--set", s)], saying=sentence)
    assert not Path("x").exists()


def test_compare_refuses_seeds_that_it_would_not_use(tiny):
    fails("compare", "tiny.toml", "--set", "run.seeds=2", saying="run.seeds is not used here")


def test_bad_files(tiny):
    fails("run", "quik", saying="did you mean 'quick'?")
    fails("run", "nowhere.toml", saying="there is no file nowhere.toml")
    Path("empty.toml").write_text("")
    fails("run", "empty.toml", saying="empty.toml is empty")
    Path("bad.toml").write_text("[run]\nrounds = = 3")
    fails("run", "bad.toml", saying="line 2")
    np.savez("nan.npz", features=np.full((40, 2), np.nan), labels=np.arange(40) % 2)
    fails("run", "tiny.toml", "--set", "problem.dataset=nan.npz", saying="not finite at row 0")
    Path("mine.txt").write_text("+1 1:x\n")
    fails("run", "tiny.toml", "--set", "problem.dataset=mine.txt", saying="line 1 of")
    fails("run", saying="nothing to run")
    fails("run", "--resume", "nowhere", saying="nowhere holds no run to resume")
    fails("run", "tiny.toml", "--resume", "x", saying="leave out the experiment")


def test_folder_that_cannot_be_written_is_noticed_before_computing(tiny, monkeypatch):
    monkeypatch.setattr("pisco.experiments.Config.execute", lambda *_, **__: pytest.fail("computed"))
    Path("file").write_text("")
    fails("run", "tiny.toml", "--out", "file/x", saying="cannot write to file/x (Not a directory)")
    fails("demo", "--out", "file/x", saying="cannot write to file/x")


def test_full_disk_at_the_end_keeps_the_result_elsewhere(tiny, monkeypatch):
    monkeypatch.setenv("TMPDIR", str(tiny))
    monkeypatch.setattr("tempfile.tempdir", None)
    real = Result.save

    def full(self, path, **options):
        if Path(path).name == "x":
            raise OSError(28, "No space left on device", str(path))
        return real(self, path, **options)

    monkeypatch.setattr(Result, "save", full)
    fails("run", "tiny.toml", "--out", "x", saying="No space left on device); the result was kept in")
    (spare,) = tiny.glob("pisco-*")
    assert Result.load(spare).rounds == 20


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="no /dev/full here")
def test_output_to_a_full_disk():
    with Path("/dev/full").open("w") as full:
        words = [sys.executable, "-m", "pisco.cli.main", "list", "engines"]
        done = subprocess.run(words, stdout=full, stderr=subprocess.PIPE, text=True, timeout=900)
    assert done.returncode == 2 and "Traceback" not in done.stderr, done.stderr
    assert done.stderr.startswith("error: No space left on device")


def test_a_reader_that_went_away_is_no_error(monkeypatch):
    reader, writer = os.pipe()
    os.close(reader)
    with os.fdopen(writer, "w") as nobody:
        monkeypatch.setattr("sys.stdout", nobody)
        with pytest.raises(BrokenPipeError):  # which `main` takes for the end; rich would exit with an error
            console.say("answer")
        console.drop_stdout()


@pytest.mark.parametrize("words", [("run", "--help"), ("federation", "--help")])
def test_nor_is_one_who_reads_the_first_line_of_a_help(words):
    reader, writer = os.pipe()
    os.close(reader)
    command = [sys.executable, "-m", "pisco", *words]
    done = subprocess.run(command, stdout=writer, stderr=subprocess.PIPE, text=True, timeout=120)
    os.close(writer)
    assert done.returncode == 0 and done.stderr == ""


# ------------------------------------------------------------------------------------ kill and Ctrl-C

LONG = ["--set", "run.rounds=30000", "--set", "run.chunk_rounds=500", "--set", "run.eval_every=500"]


def start(*words: str) -> subprocess.Popen:
    command = [sys.executable, "-m", "pisco.cli.main", "run", *words]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def after_a_checkpoint(process: subprocess.Popen, folder: Path, number: int) -> str:
    """Send a signal once there is a checkpoint that was not there, and give what the process said."""
    before = set((folder / "checkpoints").glob("round-*.ckpt"))
    while process.poll() is None and not set((folder / "checkpoints").glob("round-*.ckpt")) - before:
        time.sleep(0.005)
    process.send_signal(number)
    return process.communicate(timeout=900)[1]


def test_after_kill_9_and_ctrl_c_a_resumed_run_is_bit_identical(tiny):
    """Ctrl-C keeps what was computed and says how to go on; what was killed has its checkpoints."""
    for attempt in range(5):
        folder = tiny / f"stopped-{attempt}"
        killed = start("tiny.toml", *LONG, "--out", str(folder))
        after_a_checkpoint(killed, folder, signal.SIGKILL)
        if killed.returncode != -signal.SIGKILL or (folder / "result.json").exists():
            continue  # it had ended
        stopped = start("--resume", str(folder))
        said = after_a_checkpoint(stopped, folder, signal.SIGINT)
        if stopped.returncode:
            break
    else:
        pytest.fail("no signal fell into a run")
    assert stopped.returncode == 130, said
    assert f"pisco run --resume {folder}" in said and "Traceback" not in said
    result = Result.load(folder)
    assert result.interrupted and 0 < result.rounds < 30000
    assert json.loads(pisco("run", "--resume", str(folder), "--json").stdout)["rounds"] == 30000
    assert pisco("run", "tiny.toml", *LONG, "--out", "straight").exit_code == 0
    assert_same_result(folder, "straight")


# ----------------------------------------------------------------------------------------------- tables


def printed(monkeypatch: pytest.MonkeyPatch, width: int, columns, rows, terminal: bool = True) -> list[str]:
    """The lines of a table, in a terminal of this width or in a file."""
    from rich.console import Console

    shown = Console(file=io.StringIO(), force_terminal=terminal, color_system=None, width=width)
    monkeypatch.setattr(console, "out", lambda: shown)
    console.print_table("title", columns, rows)
    return shown.file.getvalue().splitlines()


@pytest.mark.parametrize("width", [40, 80, 200])
def test_a_table_neither_breaks_nor_drops_a_number_however_narrow_the_terminal(monkeypatch, width):
    """Eight results in a terminal of 80 columns once broke 100 over two lines; one in 40 columns lost its values."""
    results = [f"r{at}" for at in range(8)]
    rows = [
        ("the folder that holds the result of a run", *results),
        ("rounds", *("100" for _ in results)),
        ("bytes from agent to agent, all in all", *("1.09 MB" for _ in results)),
    ]
    lines = printed(monkeypatch, width, ("", *results), rows)
    text = "\n".join(lines)
    assert max(map(len, lines)) <= width
    assert text.count("100") == text.count("1.09 MB") == 8
    assert sorted(word for word in text.split() if word in results) == sorted(2 * results)


def test_a_table_in_a_file_is_as_wide_as_it_needs(monkeypatch):
    words = "a sentence that is much longer than forty signs, and stays on one line"
    lines = printed(monkeypatch, 40, ("name", "what it is"), [("scan", words)], terminal=False)
    assert any("scan" in line and words in line for line in lines)


# --------------------------------------------------------------------------------------- other commands


LOST = """
import gc, signal, time
from pisco.cli.console import keep_interrupts

def _xla_gc_callback(*_):  # whatever is raised in a callback of the collector is printed and forgotten
    gc.callbacks.clear()
    signal.raise_signal(signal.SIGINT)
    for _ in range(9): pass  # Python looks for signals between steps

signal.signal(signal.SIGINT, signal.default_int_handler)
keep_interrupts()
gc.callbacks[:] = [_xla_gc_callback]
try:
    gc.collect()
    for _ in range(400):
        time.sleep(0.1)
except KeyboardInterrupt:
    print("interrupted")
"""


def test_a_ctrl_c_is_not_lost_while_garbage_is_collected():
    done = subprocess.run([sys.executable, "-c", LOST], capture_output=True, text=True, timeout=50)
    assert done.stdout == "interrupted\n", done.stderr


IMPORTED = """
import gc
seen = []
gc.callbacks.append(lambda *_: seen.append(1))
import pisco
print(len(seen) < 50 and gc.isenabled())  # some who are imported collect on purpose
"""


def test_nor_while_pisco_is_imported_when_nobody_looks_after_it_yet():
    done = subprocess.run([sys.executable, "-c", IMPORTED], capture_output=True, text=True, timeout=50)
    assert done.stdout == "True\n", done.stderr


def test_a_ctrl_c_before_the_command_begins_is_one_line():
    early = "from pisco.cli import main; main.app = lambda: (_ for _ in ()).throw(KeyboardInterrupt); main.main()"
    done = subprocess.run([sys.executable, "-c", early], capture_output=True, text=True, timeout=50)
    assert (done.returncode, done.stderr) == (130, "interrupted; type the command again\n")


def test_a_ctrl_c_while_the_command_is_imported_is_one_line():
    early = (
        "import os, threading, pisco_start; threading.Timer({}, os.kill, (os.getpid(), 2)).start(); pisco_start.main()"
    )
    for seconds in (0.01, 0.3):
        program = [sys.executable, "-c", early.format(seconds), "run", "quick", "--set", "run.rounds=9999999"]
        done = subprocess.run(program, capture_output=True, text=True, timeout=100)
        assert (done.returncode, done.stderr) == (130, "interrupted; type the command again\n")


def test_plot_show_and_export(tiny):
    for folder, step in (("a", 0.1), ("b", 0.2)):
        assert pisco("run", "tiny.toml", "--out", folder, "--set", f"algorithm.local_lr={step}").exit_code == 0
    assert pisco("plot", "a", "b", "-o", "x.png").exit_code == 0 and Path("x.png").stat().st_size > 10_000
    shown = pisco("show", "a", "b")
    assert shown.exit_code == 0 and "rounds to grad norm sq mean ≤ 0.05" in shown.stdout
    assert re.search(r"measured every +\S+ round", shown.stdout)
    assert "seconds to" not in shown.stdout  # no clock
    assert pisco("run", "tiny.toml", "--out", "c", "--set", "algorithm.name=local-dsgd").exit_code == 0
    odd = pisco("show", "a", "c", "--targets", "loss=-1,tracking_error=0.1").stdout
    assert re.search(r"rounds to tracking error ≤ 0.1 +\d+ +not measured", odd)
    assert re.search("rounds to loss ≤ -1 +not reached +not reached", odd)
    assert len(json.loads(pisco("show", "a", "b", "--json").stdout)) == 2
    assert pisco("export", "a", "-o", "a.csv").exit_code == 0
    assert Path("a.csv").read_text().startswith("seed,round,")
    fails("plot", "nowhere", saying="nowhere holds no result")
    fails("plot", "a", "--column", "los", saying="did you mean 'loss'?")
    fails("plot", "a", "--column", "loss", "-o", "x.nonsense", saying="cannot write the picture x.nonsense")
    fails("export", "a", "-o", "nowhere/a.csv", saying="No such file or directory")
    Path("a/history.npz").write_bytes(b"broken")
    fails("show", "a", saying="a holds a damaged result")


def test_network(tiny):
    done = pisco("network", "ring", "--agents", "10", "--weights", "fdla", "--out", "ring.png")
    assert done.exit_code == 0 and "0.318278" in done.stdout and "-0.825665" in done.stdout
    assert Path("ring.png").stat().st_size > 5_000
    numbers = json.loads(pisco("network", "torus", "-n", "16", "--rows", "4", "--json").stdout)
    assert numbers["edges"] == 32 and numbers["mixing_rate"] == pytest.approx(0.64)
    assert numbers["expected_mixing_rate"]["1"] == 1
    Path("ring-4.png").mkdir()  # as little to be written as in a folder of others
    unasked = pisco("network", "ring", "-n", "4")
    assert unasked.exit_code == 0 and "mixing rate" in unasked.stdout and "picture" not in unasked.stdout
    assert unasked.stderr.startswith("warning: cannot write the picture ring-4.png") and unasked.stderr.count("\n") == 1
    asked = pisco("network", "ring", "-n", "4", "--out", "ring-4.png")
    assert asked.exit_code == 2 and asked.stderr.startswith("error: cannot write the picture ring-4.png")
    apart = pisco("network", "clusters", "-n", "6", "--option", "clusters=2")
    assert apart.exit_code == 0 and "warning: " in apart.stderr and "2 components" in apart.stderr
    fails("network", "rnig", saying="unknown graph 'rnig'; did you mean 'ring'?")
    fails("network", "ring", "--prob", "0.3", saying="network.prob does not go with graph = 'ring'")
    fails("network", "erdos-renyi", "--prob", "1.5", saying="prob is 1.5, expected a number at least 0 and at most 1")
    fails("network", "ring", "--agents", "0", saying="agents is 0, expected a whole number at least 1")


def test_lists_name_everything(tiny):
    from pisco.cli.catalogue import KINDS

    everything = json.loads(pisco("list", "--json").stdout)
    assert everything.keys() == KINDS.keys()
    assert all(words for kind in everything.values() for words in kind.values())
    assert "quick" in everything["presets"] and "erdos-renyi" in everything["graphs"]
    assert "bernoulli" in pisco("list", "schedules").stdout
    engines = everything["engines"]
    assert all(word in engines["sharded"] for word in ("devices", "hosts")) and "carry" not in engines["scan"]
    fails("list", "graph", saying="did you mean 'graphs'?")


def test_data(tiny):
    where = pisco("data")
    assert where.exit_code == 0 and "a9a" in where.stdout and "PISCO_DATA" in where.stdout
    done = pisco("data", "points.npz", "--partition", "sorted", "--agents", "4", "--out", "labels.png")
    assert done.exit_code == 0 and "4 agents hold 10 samples each" in done.stdout and Path("labels.png").exists()
    Path("pets.csv").write_text("pet,kilos\n" + "cat,4\ndog,30\n" * 5)
    Path("labels.png").unlink()
    Path("labels.png").mkdir()
    unasked = pisco("data", "points.npz", "--partition", "sorted", "--agents", "4")
    assert unasked.exit_code == 0 and "hold" in unasked.stdout and unasked.stderr.startswith("warning: cannot write")
    alone = pisco("data", "points.npz", "--partition", "sorted", "--agents", "1", "--out", "one.png")
    assert "1 agent holds 40 samples" in alone.stdout
    table = pisco("data", "pets.csv", "--dataset-option", "label=pet", "--dataset-option", "test=0.2")
    assert table.exit_code == 0 and "8 samples of shape (1,) int8, 2 for testing, 2 classes" in table.stdout
    fails("data", "pets.csv", "--dataset-option", "label=pit", saying="did you mean 'pet'?")
    fails("data", "mnits", saying="did you mean 'mnist'?")
    fails("data", "points.npz", "--out", "labels.png", saying="name one as well, as in --partition sorted")
    fails("data", "--partition", "sorted", saying="there is no dataset to split; name one")
    misspelt = pisco("data", "points.npz", "--partition", "dirichlet", "--option", "alhpa=1")
    assert misspelt.exit_code == 2 and "has no option 'alhpa'; did you mean 'alpha'?" in misspelt.stderr
    crowded = pisco("data", "points.npz", "--partition", "iid", "--agents", "41")
    assert crowded.exit_code == 2 and "41 agents cannot share 40 samples" in crowded.stderr


def test_surprises_are_one_line_too(monkeypatch):
    monkeypatch.setattr("pisco.data.available", lambda: 1 / 0)
    done = pisco("data")
    assert done.exit_code == 1 and done.stderr.startswith("error: ZeroDivisionError: division by zero")
    wrong = pisco("run", "--sett", "x=1")
    assert wrong.exit_code == 2 and "--sett" in wrong.stderr
    assert pisco("rnu").exit_code == 2


def test_every_command_has_help_with_an_example():
    listed = pisco("--help")
    assert listed.exit_code == 0
    for command in ("demo", "run", "network", "plot", "show", "export", "list", "data"):
        assert command in listed.stdout
        shown = pisco(command, "--help")
        assert shown.exit_code == 0 and f"pisco {command}" in shown.stdout.split("Example", 1)[1]
    narrow = CliRunner().invoke(app, ["compare", "--help"], env={"COLUMNS": "80"}).stdout.splitlines()
    assert " the experiment's. With a clock, as in `--set clock.preset=campus`, seconds to" in map(str.rstrip, narrow)


def test_a_short_demo(tiny, monkeypatch):
    monkeypatch.setattr("pisco.cli.demo.use_compilation_cache", lambda: None)
    done = pisco("demo", "--rounds", "25", "--seeds", "1", "--out", "d", "--json")
    assert done.exit_code == 0, done.output
    record = json.loads(done.stdout)
    assert [point["p"] for point in record["points"]] == ["0", "10^-1.25", "0.1", "10^-0.5", "1"]
    assert record["points"][-1]["rounds"] == 13 and record["points"][0]["rounds"] is None
    assert Path("d/demo.png").stat().st_size > 10_000 and Result.load("d/p-0.1").rounds == 25
    agents = Result.load("d/p-0.1").agents  # what a report draws the network from
    assert agents["frame_errors"].shape == (26, 10) and agents["label_counts"].shape == (10, 2)


def test_as_a_process(tmp_path, monkeypatch):
    wrong = shell("run", "quick", "--set", "network.server_prob=2", cwd=tmp_path)
    assert wrong.returncode == 2 and wrong.stderr.startswith("error: ") and wrong.stderr.count("\n") == 1
    version = pisco("--version")
    assert version.stdout.strip() == f"pisco {__version__}" and version.exit_code == 0
    monkeypatch.setenv("PISCO_TRACEBACK", "1")
    with pytest.raises(InputError, match="did you mean 'quick'"):
        pisco("run", "quik")


# ---------------------------------------------------------------------------- going on from a folder


def test_a_damaged_result_is_made_again_from_whole_checkpoints(tiny):
    assert pisco("run", "tiny.toml", "--out", "whole").exit_code == 0
    assert pisco("run", "tiny.toml", "--out", "cut").exit_code == 0
    history = Path("cut/history.npz")
    history.write_bytes(history.read_bytes()[:100])
    again = pisco("run", "--resume", "cut")
    assert again.exit_code == 0, again.output
    assert "damaged result" in again.stderr and "going on from its checkpoints" in again.stderr
    assert "compiling" not in again.stderr  # all was there
    assert_same_result("cut", "whole")
    summary = Path("cut/result.json").rename("aside.json")
    fails("show", "cut", saying="result.json is missing; `pisco run --resume cut` finishes the run")
    summary.rename("cut/result.json")
    for checkpoint in Path("cut/checkpoints").iterdir():
        checkpoint.unlink()
    history.write_bytes(b"rubbish")
    fails("run", "--resume", "cut", saying="cut holds a damaged result")


def test_a_folder_is_resumed_from_python(tiny):
    from pisco.experiments import resume

    assert pisco("run", "tiny.toml", "--out", "here").exit_code == 0
    assert resume("here").rounds == 20  # complete: read, not computed
    seen = []
    longer = resume("here", rounds=30, progress=lambda news: seen.append(news.done))
    assert longer.rounds == 30 and seen == [25, 30] and load(Path("here/config.toml")).run.rounds == 30
    assert pisco("run", "tiny.toml", "--out", "straight", "--set", "run.rounds=30").exit_code == 0
    assert_same_result("here", "straight")
    with pytest.raises(InputError, match=r"here has got to round 30 already; give run\.rounds=30 or more"):
        resume("here", rounds=25)
    with pytest.raises(InputError, match="nowhere holds no run to resume"):
        resume("nowhere")
    with pytest.raises(InputError, match=r"run\.rounds is True, expected a whole number"):
        resume("here", rounds=True)


def test_a_file_that_is_no_result_is_called_a_file(tiny):
    for command in ("report", "show", "plot"):
        fails(command, "tiny.toml", saying="tiny.toml is a file, expected the folder of a result")


# -------------------------------------------------------------------------------------- what is printed


@pytest.mark.parametrize("encoding", ["cp1252", pytest.param("ascii", marks=pytest.mark.slow)])
def test_a_poor_encoding_loses_signs_and_nothing_else(tiny, encoding):
    """And the first run of a user leaves its programs for the next ones."""
    environment = os.environ | {"PYTHONIOENCODING": encoding, "PISCO_CACHE": str(tiny / "cache")}
    done = subprocess.run(
        [sys.executable, "-m", "pisco.cli.main", "run", "tiny.toml", "--out", "x"],
        capture_output=True,
        timeout=120,
        env=environment,
    )
    assert done.returncode == 0 and b"Traceback" not in done.stderr, done.stderr
    assert "saved in x" in done.stdout.decode(encoding) and Result.load("x").rounds == 20
    assert (tiny / "cache" / "xla").is_dir()


@pytest.mark.parametrize("encoding", ["cp1252", pytest.param("ascii", marks=pytest.mark.slow)])
def test_stdout_carries_the_answer_alone(tiny, encoding):
    """In any encoding; what a library writes to the file below it, and what users' own code prints, is on stderr."""
    Path("noisy.py").write_text(
        "import os\n"
        "from pisco.cli import catalogue\n"
        "from pisco.cli.main import main\n"
        "say_json = catalogue.say_json\n"
        "def noisy(value):\n"
        "    os.write(1, b'a library greets\\n')\n"
        "    print('a user prints')\n"
        "    say_json(value)\n"
        "catalogue.say_json = noisy\n"
        "main()\n"
    )
    done = subprocess.run(
        [sys.executable, "noisy.py", "list", "metrics", "--json"],
        capture_output=True,
        timeout=120,
        env=os.environ | {"PYTHONIOENCODING": encoding},
    )
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout.decode(encoding))["metrics"]["grad_norm_sq"] == "‖∇f(x̄)‖²"
    assert b"a library greets" in done.stderr and b"a user prints" in done.stderr
