"""Time per round against peers, side by side on this machine: JSON rows, then a table.

Every peer has its own environment in .peers/ (built on first use) and its own process. Ours and the peer take turns
on the same exported samples with the same model, batch size and number of gradients per round. Starting up, compiling
and the first rounds are never counted. Ratio: the peer's time over ours, so above 1 ours is faster.

    python benchmarks/peers/run.py                     # everybody
    python benchmarks/peers/run.py torch --workload a9a
    python benchmarks/peers/run.py --list
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

import wire
from runner import Failed, Runner

HERE = Path(__file__).resolve().parent
HOME = HERE.parents[1] / ".peers"
LOOP_ROUNDS = {"a9a": 100, "mnist": 3, "million": 1}
OUR_ROUNDS = {"a9a": 100, "mnist": 10, "million": 4}


@dataclass(frozen=True)
class Peer:
    """How to run a peer: rounds per measurement for every workload, and how often to ask."""

    title: str
    environment: str
    script: str
    rounds: dict[str, int]
    repeats: int = 4
    options: tuple[str, ...] = ()
    rule: str = "pisco"  # ours beside it


PEERS = {
    "torch": Peer("PyTorch loop, torch.func", "torch", "torch_loop.py", LOOP_ROUNDS, options=("plain",)),
    "torch-tuned": Peer("PyTorch loop, tuned", "torch", "torch_loop.py", LOOP_ROUNDS, options=("tuned",)),
    "torch-compile": Peer(
        "PyTorch loop, tuned and compiled", "torch", "torch_loop.py", LOOP_ROUNDS, options=("compiled",)
    ),
    "fedjax": Peer("fedjax FedAvg", "fedjax", "fedjax_fedavg.py", {"a9a": 3, "mnist": 2, "million": 1}, 3),
    "pfl": Peer("pfl FedAvg", "pfl", "pfl_fedavg.py", {"a9a": 30, "mnist": 10, "million": 3}, 3),
    "flower": Peer("Flower FedAvg", "flower", "flower_fedavg.py", {"a9a": 30, "mnist": 10, "million": 3}, repeats=1),
    "nvflare": Peer(
        "NVFlare gradient tracking",
        "nvflare",
        "nvflare_gt.py",
        {"a9a": 100, "mnist": 50, "million": 10},
        repeats=1,
        rule="dsgt",
    ),
}


def environment(name: str) -> Path:
    """The Python of a peer's own environment, built or renewed when its requirements changed."""
    wanted = HERE / "requirements" / f"{name}.txt"
    folder = HOME / name
    stamp, python = folder / "installed.txt", folder / "bin" / "python"
    if python.exists() and stamp.exists() and stamp.read_text() == wanted.read_text():
        return python
    print(f"building {folder} …", file=sys.stderr, flush=True)
    steps = [
        [sys.executable, "-m", "venv", str(folder)],
        [str(python), "-m", "pip", "install", "--quiet", "--requirement", str(wanted)],
    ]
    for step in steps:
        done = subprocess.run(step, capture_output=True, text=True, check=False)
        if done.returncode:
            said = [line for line in done.stderr.splitlines() if line.startswith("ERROR")] or ["unknown reason"]
            raise Failed(f"its environment could not be built: {said[-1]}")
    stamp.write_text(wanted.read_text())
    return python


def surroundings(folder: str) -> tuple[dict[str, str], dict[str, str]]:
    """Environment variables of our process and of a peer's: CPU only, nothing sent home, one place for clutter."""
    common = os.environ | {
        "CUDA_VISIBLE_DEVICES": "",
        "JAX_PLATFORMS": "cpu",
        "TMPDIR": folder,
        "RAY_TMPDIR": folder,
        "FLWR_HOME": f"{folder}/flwr",
        "FLWR_TELEMETRY_ENABLED": "0",
        "RAY_USAGE_STATS_ENABLED": "0",
        "PYTHONUNBUFFERED": "1",
    }
    # PyTorch asks malloc for every temporary; giving the pages back each time made its loop up to five times slower.
    keep = {"MALLOC_MMAP_MAX_": "0", "MALLOC_TRIM_THRESHOLD_": str(2**33)}
    return common, {name: value for name, value in (common | keep).items() if name != "PYTHONPATH"}


class Bench:
    """Ours and the peers on one workload after the other."""

    def __init__(self, folder: str, timeout: float):
        self.ours_env, self.peer_env = surroundings(folder)
        self.timeout = timeout
        self.kept: dict[tuple[str, str], Runner] = {}
        for needed in ("data", "logs"):
            (HOME / needed).mkdir(parents=True, exist_ok=True)

    def ours(self, data: Path, rule: str) -> Runner:
        """Our process for a workload and a rule, kept until the workload is done."""
        key = (data.stem, rule)
        if key not in self.kept:
            command = [sys.executable, str(HERE / "ours.py"), str(data), rule, str(OUR_ROUNDS[data.stem])]
            log = HOME / "logs" / f"ours-{data.stem}-{rule}.log"
            self.kept[key] = Runner(command, log, self.ours_env, self.timeout)
        return self.kept[key]

    def close(self) -> None:
        """End our processes."""
        while self.kept:
            self.kept.popitem()[1].close()

    def row(self, data: Path, name: str) -> dict:
        """Ours and the peer in turns; the shortest time of each counts."""
        peer, workload = PEERS[name], wire.load(str(data))
        row = {
            "workload": describe(workload, peer.rule),
            "ours": None,
            "reference": None,
            "ratio": None,
            "unit": "ms per round",
            "peer": peer.title,
            "versions": {},
        }
        theirs = None
        try:
            python = environment(peer.environment)
            command = [str(python), str(HERE / peer.script), str(data), str(peer.rounds[data.stem]), *peer.options]
            ours = self.ours(data, peer.rule)
            theirs = Runner(command, HOME / "logs" / f"{name}-{data.stem}.log", self.peer_env, self.timeout)
            row["versions"] = theirs.about["versions"]
            if theirs.about["note"]:
                row["note"] = theirs.about["note"]
            mine, other = [ours.measure()], []
            for _ in range(peer.repeats):
                other.append(theirs.measure())
                mine.append(ours.measure())
            (ours_time, our_cores), (their_time, their_cores) = min(mine), min(other)
            row |= {
                "ours": round(1e3 * ours_time, 4),
                "reference": round(1e3 * their_time, 4),
                "ratio": round(their_time / ours_time, 2),
                # Well below 1 means that other work took the cores: measure again on a quiet machine.
                "cores": {"ours": round(our_cores, 2), "reference": round(their_cores, 2)},
            }
        except Failed as why:
            row["skipped"] = str(why)
        finally:
            if theirs:
                theirs.close()
        return row


def describe(workload: wire.Workload, rule: str) -> str:
    """The workload in words; `rule` says what ours runs."""
    agents = len(workload.weights)
    model = {"a9a": "a9a logistic", "mnist": "MNIST network", "million": "1 M-parameter network"}[workload.name]
    taken = "DSGT, 1 gradient" if rule == "dsgt" else f"T_o={workload.local_steps}, {workload.gradients} gradients"
    return f"{model}, n={agents}, b={workload.batch_size}, {taken} a round"


def table(rows: list[dict]) -> str:
    """The rows for people."""
    lines = [("workload", "peer", "ours ms", "peer ms", "ratio")]
    for row in rows:
        found = [f"{row[k]:.3g}" if row[k] is not None else "-" for k in ("ours", "reference")]
        last = "skipped: " + row["skipped"] if "skipped" in row else f"{row['ratio']:.3g}"
        lines.append((row["workload"], row["peer"], *found, last))
    widths = [max(len(line[i]) for line in lines) for i in range(4)]
    return "\n".join(
        "  ".join([*(cell.ljust(width) for cell, width in zip(line, widths, strict=False)), line[4]]) for line in lines
    )


def arguments() -> argparse.Namespace:
    """What to run."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("peers", nargs="*", metavar="PEER", help=f"among {', '.join(PEERS)}; all unless given")
    parser.add_argument("--workload", action="append", choices=list(OUR_ROUNDS), help="may be repeated")
    parser.add_argument("--timeout", type=float, default=240, help="seconds to wait for one measurement")
    parser.add_argument("--list", action="store_true", help="say what there is and end")
    options = parser.parse_args()
    unknown = [name for name in options.peers if name not in PEERS]
    if unknown:
        parser.error(f"no peer {unknown[0]!r}; there are {', '.join(PEERS)}")
    return options


def main() -> int:
    options = arguments()
    if options.list:
        for name, peer in PEERS.items():
            wanted = (HERE / "requirements" / f"{peer.environment}.txt").read_text().split()
            print(f"{name:<14} {peer.title:<32} {' '.join(wanted)}")
        return 0
    from workloads import WORKLOADS

    signal.signal(signal.SIGTERM, signal.default_int_handler)  # ended from outside, clean up all the same
    rows: list[dict] = []
    interrupted = False
    with tempfile.TemporaryDirectory(
        prefix="peers", dir="/tmp" if Path("/tmp").is_dir() else None, ignore_cleanup_errors=True
    ) as folder:
        bench = Bench(folder, options.timeout)
        try:
            for name in options.workload or WORKLOADS:
                data = HOME / "data" / f"{name}.npz"
                WORKLOADS[name]().save(data)
                for peer in options.peers or PEERS:
                    print(f"{name}: {PEERS[peer].title} …", file=sys.stderr, flush=True)
                    rows.append(bench.row(data, peer))
                    print(json.dumps(rows[-1], ensure_ascii=False), flush=True)
                bench.close()
        except KeyboardInterrupt:
            print("interrupted; what was measured so far:", file=sys.stderr)
            interrupted = True
        finally:
            bench.close()
            (HOME / "results.json").write_text(json.dumps(rows, indent=1))
    print("\n" + table(rows))
    return 130 if interrupted else 0 if any(row["ratio"] for row in rows) else 1


if __name__ == "__main__":
    sys.exit(main())
