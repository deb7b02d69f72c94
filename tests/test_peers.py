"""The benchmark against peers: what can be checked without their environments."""

import subprocess
import sys
from pathlib import Path

DRIVER = Path(__file__).parents[1] / "benchmarks" / "peers" / "run.py"


def _run(*arguments):
    return subprocess.run([sys.executable, str(DRIVER), *arguments], capture_output=True, text=True, check=False)


def test_the_driver_lists_its_peers_and_what_they_need():
    listed = _run("--list")
    assert listed.returncode == 0
    assert [line.split()[0] for line in listed.stdout.splitlines()] == [
        "torch",
        "torch-tuned",
        "torch-compile",
        "fedjax",
        "pfl",
        "flower",
        "nvflare",
    ]
    assert "nvflare>=2.9,<2.10" in listed.stdout


def test_an_unknown_peer_is_named_with_those_that_exist():
    refused = _run("flour")
    assert refused.returncode == 2
    assert "no peer 'flour'" in refused.stderr and "flower" in refused.stderr
