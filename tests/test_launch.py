"""Supervised processes, with real processes and real signals: what dies is started again, what ends leaves nothing."""

import json
import os
import signal
import subprocess
import sys
import textwrap
import time
from pathlib import Path

import numpy as np
import pytest

import pisco
from pisco.cli.launch import _prepare
from pisco.engines.cluster.supervisor import Supervisor, free_port

from waiting import outcome, wait_until, written
from worlds import TINY_EXPERIMENT

# Children of a process that has used jax get their death signal between fork and exec; they never touch jax there.
pytestmark = pytest.mark.filterwarnings("ignore:os.fork:RuntimeWarning")

ENVIRONMENT = os.environ | {
    "JAX_PLATFORMS": "cpu",
    "PYTHONPATH": os.pathsep.join([str(Path(__file__).parent), str(Path(pisco.__file__).parent.parent)]),
}


def running(pid):
    """Whether a process is there and not only waiting to be collected."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] != "Z"
    except OSError:
        return False


# The supervisor alone: its processes are a few lines of Python.


def supervised(program, *, count=2, max_failures=1):
    """The exit code of a job of small programs, what the supervisor said, and how often it started each."""
    said, starts = [], []

    def command(start, process, coordinator):
        starts.append((start, process))
        return [sys.executable, "-c", textwrap.dedent(program), str(process), str(start)]

    code = Supervisor(command, count, max_failures=max_failures, say=said.append).run()
    return code, said, starts


def test_a_job_that_ends_well_is_left_alone():
    assert supervised("pass") == (0, [], [(0, 0), (0, 1)])


def test_a_dead_process_starts_all_again():
    program = """
        import os, signal, sys, time
        process, start = map(int, sys.argv[1:])
        if start == 0 and process == 1:
            os.kill(os.getpid(), signal.SIGKILL)
        time.sleep(600 if start == 0 else 0)
    """
    began = time.monotonic()
    code, said, starts = supervised(program)
    assert code == 0 and starts == [(0, 0), (0, 1), (1, 0), (1, 1)]
    assert said[0] == "process 1 was killed by SIGKILL" and "again from the last checkpoint" in said[1]
    assert time.monotonic() - began < 300


def test_it_gives_up_after_so_many_failures():
    code, said, starts = supervised("import sys; sys.exit('the cause') if sys.argv[1] == '1' else None")
    assert code == 1 and len(starts) == 4
    assert said[0] == "process 1 failed with exit code 1:\nthe cause"
    assert said[-1] == "gave up after 2 failures; the checkpoints are kept"


def test_bad_input_is_not_tried_again():
    program = "import sys, time; sys.exit(2) if sys.argv[1] == '0' else time.sleep(600)"
    code, said, starts = supervised(program)
    assert (code, said, len(starts)) == (2, [], 2)


LAUNCHER = """
import sys
from pisco.engines.cluster.supervisor import Supervisor
program = '''
import os, pathlib, signal, sys, time
try:
    pathlib.Path(sys.argv[1]).write_text(str(os.getpid()))
    time.sleep(600)
except KeyboardInterrupt:
    sys.exit(130)
'''
def command(start, process, coordinator):
    return [sys.executable, "-c", program, f"{sys.argv[1]}/{start}-{process}"]
sys.exit(Supervisor(command, 3, max_failures=0, say=print).run())
"""


@pytest.fixture
def launcher(tmp_path):
    """A launcher in a process of its own, and the numbers of the processes that it started."""
    process = subprocess.Popen([sys.executable, "-c", LAUNCHER, str(tmp_path)], env=ENVIRONMENT)
    files = [tmp_path / f"0-{index}" for index in range(3)]
    wait_until(lambda: all(file.exists() and file.read_text() for file in files))
    pids = [int(file.read_text()) for file in files]
    yield process, pids
    for pid in [process.pid, *pids]:
        if running(pid):
            os.kill(pid, signal.SIGKILL)
    process.wait()


def test_a_killed_launcher_leaves_nothing_not_even_a_stopped_process(launcher):
    process, pids = launcher
    os.kill(pids[1], signal.SIGSTOP)
    process.kill()
    wait_until(lambda: not any(running(pid) for pid in pids))


@pytest.mark.parametrize("sign", [signal.SIGINT, pytest.param(signal.SIGTERM, marks=pytest.mark.slow)])
def test_ctrl_c_reaches_every_process_once(launcher, sign):
    process, pids = launcher
    process.send_signal(sign)
    assert process.wait(timeout=900) == 130
    assert not any(running(pid) for pid in pids)


# `pisco launch` on an experiment.


@pytest.fixture
def experiment(tmp_path):
    """A small experiment in double precision, long enough to be disturbed."""
    rng = np.random.default_rng(0)
    features = rng.normal(size=(80, 3)).astype(np.float32)
    np.savez(tmp_path / "points.npz", features=features, labels=np.sign(features[:, 0] + 0.1))
    (tmp_path / "tiny.toml").write_text(TINY_EXPERIMENT + 'dtype = "float64"\neval_every = 10\n')
    return tmp_path / "tiny.toml"


def pisco_command(*arguments, start=("-m", "pisco"), **options):
    command = [sys.executable, *start, *map(str, arguments)]
    return subprocess.Popen(
        command, env=ENVIRONMENT, text=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE, **options
    )


def children(pid):
    """Process index to process number of a launcher's children."""
    found = {}
    for folder in Path("/proc").iterdir():
        try:
            parent = int((folder / "stat").read_text().rsplit(")", 1)[1].split()[1])
            words = (folder / "cmdline").read_bytes().split(b"\0")
        except (OSError, IndexError, ValueError):
            continue
        if parent == pid and b"--process-id" in words:
            found[int(words[words.index(b"--process-id") + 1])] = int(folder.name)
    return found


def wait_for_checkpoint(launcher, folder):
    found = lambda: list((folder / "checkpoints").glob("*.ckpt"))  # noqa: E731
    wait_until(lambda: found() or launcher.poll() is not None, lambda: written(folder.parent))
    assert found(), launcher.communicate()[1]


def assert_close(one, two, atol=1e-12):
    for name in one.history:
        np.testing.assert_allclose(one.history[name], two.history[name], rtol=0, atol=atol, err_msg=name)
    np.testing.assert_allclose(one.params, two.params, rtol=0, atol=atol)


def in_one_process(experiment, rounds):
    folder = experiment.parent
    alone = pisco_command("run", experiment, "-s", f"run.rounds={rounds}", "-o", folder / "scan")
    code, _, err = outcome(alone, folder)
    assert code == 0, err
    return pisco.Result.load(folder / "scan")


def disturbed(experiment, processes, victim, sign, rounds):
    """A launched run of which one process got a signal after the first checkpoint."""
    folder = experiment.parent / f"{sign.name}-{victim}"
    launcher = pisco_command(
        "launch", "--processes", processes, "run", experiment, "-s", f"run.rounds={rounds}", "--out", folder
    )
    try:
        wait_for_checkpoint(launcher, folder)
        started = children(launcher.pid)
        os.kill(started[victim], sign)
        if sign == signal.SIGSTOP:
            time.sleep(40)
            assert children(launcher.pid) == started
            os.kill(started[victim], signal.SIGCONT)
        code, _, err = outcome(launcher, experiment.parent)
    finally:
        launcher.kill()
    assert code == 0, err
    assert not any(running(pid) for pid in started.values())
    return pisco.Result.load(folder), err


@pytest.mark.parametrize("option", ["resume", "folder"])
def test_the_folder_of_a_run_is_a_path_also_where_typer_gives_a_text(experiment, option):
    given = {"engine": None, "resume": None, "folder": None, "experiment": str(experiment), "settings": None}
    assert _prepare(given | {option: "kept"}, [])[0] == Path("kept")


@pytest.mark.slow
def test_a_killed_process_does_not_change_the_result(experiment):
    result, err = disturbed(experiment, 2, 1, signal.SIGKILL, rounds=1500)
    assert "process 1 was killed by SIGKILL" in err and "again from the last checkpoint" in err
    assert_close(result, in_one_process(experiment, 1500))


@pytest.mark.slow
@pytest.mark.parametrize("victim", [0, 1, 2, 3])
def test_any_process_may_be_killed(experiment, victim):
    result, _ = disturbed(experiment, 4, victim, signal.SIGKILL, rounds=1500)
    undisturbed = experiment.parent / "undisturbed"
    rounds = ["-s", "run.rounds=1500"]
    launcher = pisco_command("launch", "--processes", 4, "run", experiment, *rounds, "-o", undisturbed)
    code, _, err = outcome(launcher, experiment.parent)
    assert code == 0, err
    assert_close(result, pisco.Result.load(undisturbed), atol=0)  # bit by bit
    assert_close(result, in_one_process(experiment, 1500))


@pytest.mark.slow
@pytest.mark.parametrize("victim", [0, 1])
def test_a_straggler_of_40_seconds_is_waited_for(experiment, victim):
    result, err = disturbed(experiment, 2, victim, signal.SIGSTOP, rounds=4000)
    assert "again from the last checkpoint" not in err
    assert_close(result, in_one_process(experiment, 4000))


@pytest.mark.slow
def test_an_interrupted_run_goes_on_with_other_numbers(experiment):
    folder = experiment.parent / "out"
    rounds = ["-s", "run.rounds=3000"]
    launcher = pisco_command("launch", "--processes", 3, "run", experiment, *rounds, "--out", folder)
    wait_for_checkpoint(launcher, folder)
    launcher.send_signal(signal.SIGINT)
    code, _, err = outcome(launcher, experiment.parent)
    assert code == 130 and "interrupted after" in err, err
    again = pisco_command("launch", "--processes", 2, "run", "--resume", folder, "--devices", 2, "--json")
    code, out, err = outcome(again, folder)
    assert code == 0 and json.loads(out)["rounds"] == 3000, err
    assert_close(pisco.Result.load(folder), in_one_process(experiment, 3000))


@pytest.mark.slow
def test_a_killed_launcher_leaves_a_run_to_go_on_with(experiment):
    folder = experiment.parent / "out"
    rounds = ["-s", "run.rounds=3000"]
    launcher = pisco_command("launch", "--processes", 2, "run", experiment, *rounds, "--out", folder)
    wait_for_checkpoint(launcher, folder)
    started = children(launcher.pid)
    launcher.kill()
    launcher.communicate()
    wait_until(lambda: not any(running(pid) for pid in started.values()))
    again = pisco_command("run", "--resume", folder, "--engine", "sharded", "--devices", 3)
    code, _, err = outcome(again, folder)
    assert code == 0, err
    assert_close(pisco.Result.load(folder), in_one_process(experiment, 3000))


def test_processes_with_different_settings_are_refused(experiment):
    """The second takes a second to say why, as on a busy machine; jax aborts it if the first is gone by then."""
    slow = """if True:
        import sys, time
        from pisco.cli import main, processes
        say = processes.note
        processes.note = lambda text: (time.sleep(1), say(text))
        main.main()
    """
    address = f"127.0.0.1:{free_port()}"
    place = ["--engine", "sharded", "--coordinator", address, "--processes", 2, "--process-id"]
    run = ["run", experiment, "-o", experiment.parent / "o", *place]
    first = pisco_command(*run, 0, "-s", "run.rounds=20")
    second = pisco_command(*run, 1, "-s", "run.rounds=21", start=["-c", slow])
    for code, _, err in [outcome(process, experiment.parent) for process in (first, second)]:
        assert code == 2, err
        assert "run.rounds is 20 in process 0 and 21 in process 1; start all with the same settings" in err
    assert not (experiment.parent / "o").exists()


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["launch"], "there is nothing to launch"),
        (["launch", "--processes", "2", "demo"], "there is 'demo' to launch; write a run"),
        (["launch", "--processes", "0", "run", "quick"], "--processes is 0"),
        (["launch", "run", "quikc"], "unknown experiment 'quikc'"),
        (["launch", "run", "quick", "--engine", "scan"], "only the engine sharded runs on several processes"),
        (["launch", "run", "quick", "--process-id", "1"], "--process-id is for runs without a launcher"),
        (["run", "quick", "--devices", "2"], "the engine scan runs on one device in one process; add --engine sharded"),
        (["run", "quick", "--engine", "sharded", "--devices", "0"], "--devices is 0"),
    ],
)
def test_bad_input_is_one_sentence(arguments, sentence, tmp_path, monkeypatch):
    from typer.testing import CliRunner

    from pisco.cli.main import app

    monkeypatch.chdir(tmp_path)
    done = CliRunner().invoke(app, arguments)
    assert done.exit_code == 2 and sentence in done.stderr, done.stderr
    assert not list(tmp_path.iterdir())
