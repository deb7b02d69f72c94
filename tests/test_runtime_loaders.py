"""Samples and models that fail in the middle of a federation: one sentence, the state kept, and on after a mend."""

import os
import re
import subprocess
import sys

import numpy as np
import pytest

import pisco
from pisco.interop import host

from federations import Running, make_kits, plan_for
from waiting import outcome

N, M = 2, 12
RNG = np.random.default_rng(0)
FEATURES = RNG.normal(size=(N, M, 3)).astype(np.float32)
TARGETS = RNG.normal(size=(N, M)).astype(np.float32)


def loss(x, batch, key):
    return (batch["a"] @ x - batch["y"]) ** 2


class Samples:
    """One agent's samples; `wrong` is what they come to after so many of them."""

    def __init__(self, agent, after=sys.maxsize, wrong=None):
        self.agent, self.after, self.wrong, self.given = agent, after, wrong, 0

    def __len__(self):
        return M

    def __getitem__(self, row):
        self.given += 1
        sample = {"a": FEATURES[self.agent, row], "y": TARGETS[self.agent, row]}
        return self.wrong(sample) if self.given > self.after else sample


def broken(sample):
    raise OSError("the disk is gone")


def shorter(sample):
    raise IndexError("list index out of range")


def other(sample):
    return sample | {"a": np.zeros(4, np.float32)}


def expected(plan):
    problem = pisco.Problem(loss, np.zeros(3, np.float32), {"a": FEATURES, "y": TARGETS})
    network = plan.network_of(plan.epochs[0])
    options = {"rounds": plan.rounds, "batch_size": plan.batch_size, "seed": plan.seed}
    return pisco.run(plan.build_algorithm(), problem, network, **options).params


def mended_and_finished(home, plan, problems, sentence, mend, said):
    """Agent 1 fails, alone and with a sentence; after a mend the federation ends as if nothing had been."""
    running = Running(home, plan, lambda index: problems[index])
    running.wait(lambda: "agent-1" in running.errors)
    failure = running.errors.pop("agent-1")
    assert isinstance(failure, pisco.InputError), failure
    assert "\n" not in str(failure)

    assert re.search(sentence, str(failure)), failure
    assert not running.errors and 0 < running.members["agent-1"].done < plan.rounds
    assert "Traceback" not in said()
    mend()
    running.start("agent-1")
    return running.join().params()


@pytest.mark.parametrize(
    "wrong", [broken, *(pytest.param(wrong, marks=pytest.mark.slow) for wrong in (shorter, other))]
)
def test_a_loader_that_fails(tmp_path, capfd, caplog, wrong):
    plan = plan_for(N, rounds=8, batch_size=4)
    own = [Samples(i) for i in range(N)]
    problems = [pisco.Problem(loss, np.zeros(3, np.float32), [each]) for each in own]
    own[1].given, own[1].after, own[1].wrong = 0, 60, wrong

    def mend():
        own[1].after = sys.maxsize

    def said():
        return caplog.text + "".join(capfd.readouterr())

    found = mended_and_finished(tmp_path, plan, problems, r"the data (fail|give)", mend, said)
    np.testing.assert_allclose(found, expected(plan), atol=1e-6)


@pytest.mark.slow
def test_a_model_of_another_framework_that_fails(tmp_path, capfd, caplog):
    plan = plan_for(N, rounds=6, batch_size=4)
    asked, fails = [0], [True]

    def local(agent):
        a, y = FEATURES[agent], TARGETS[agent]

        def value(params, rows):
            return float(((a[rows] @ params - y[rows]) ** 2).mean())

        def gradient(params, rows, seed):
            asked[0] += agent == 1
            if fails[0] and agent == 1 and asked[0] > 5:
                raise RuntimeError("CUDA error: out of memory\nmore")
            left = a[rows] @ params - y[rows]
            return value(params, rows), (2 / len(rows) * left @ a[rows]).astype(np.float32)

        return host.Local(lambda seed: np.zeros(3, np.float32), gradient, value, M)

    problems = [host.problem(local(i)) for i in range(N)]

    def said():
        return caplog.text + "".join(capfd.readouterr())

    sentence = r"the model or samples fail \(RuntimeError: CUDA error: out of memory\)"
    found = mended_and_finished(tmp_path, plan, problems, sentence, lambda: fails.__setitem__(0, False), said)
    np.testing.assert_allclose(found, expected(plan), atol=1e-6)


MODULE = """
import numpy as np, pisco
from pathlib import Path

RNG = np.random.default_rng(0)

class Samples:
    given = 0

    def __init__(self, folder):
        self.folder = folder

    def __len__(self):
        return 12

    def __getitem__(self, row):
        self.given += 1
        if self.given > 60 and self.folder.name == "agent-1" and not (self.folder / "mended").exists():
            raise OSError("the disk is gone")
        return {"a": np.float32(row), "y": np.float32(1)}

def agent(data):
    return pisco.Problem(lambda x, b, key: (x * b["a"] / 12 - b["y"]) ** 2, np.zeros((), np.float32), [Samples(data)])
"""


@pytest.mark.slow
def test_the_command_says_it_and_goes_on(tmp_path):
    plan = plan_for(2, rounds=12, batch_size=4)
    make_kits(tmp_path, plan)
    (tmp_path / "model.py").write_text(MODULE)
    for name in plan.names:
        (tmp_path / name).mkdir()

    def start(command, name, *words):
        full = [
            sys.executable,
            "-m",
            "pisco.cli.main",
            command,
            "--kit",
            str(tmp_path / "kits" / name),
            *map(str, words),
        ]
        environment = os.environ | {"JAX_PLATFORMS": "cpu"}
        return subprocess.Popen(full, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, env=environment)

    def agent(name):
        return start("agent", name, "--module", tmp_path / "model.py", "--data", tmp_path / name)

    others = [start("server", "server"), agent("agent-0")]
    try:
        code, said, _ = outcome(agent("agent-1"), tmp_path)
        assert code == 2 and "Traceback" not in said, said
        (told,) = [line for line in said.splitlines() if line.startswith("error")]  # gRPC may log lines of its own
        assert told.startswith("error: the data fail at sample 1") and "the disk is gone" in told
        (tmp_path / "agent-1" / "mended").touch()
        for process in [*others, agent("agent-1")]:
            code, said, _ = outcome(process, tmp_path)
            assert code == 0, said
    finally:
        for process in others:
            process.kill()
    results = [pisco.Result.load(tmp_path / "kits" / name / "result").rounds for name in plan.names]
    assert results == [12, 12]
