"""A whole federation on this machine, as real processes with real certificates: for a first try, and for tests."""

from __future__ import annotations

import contextlib
import os
import secrets
import socket
import subprocess
import sys
import time
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from pisco.data.partition import PARTITIONS
from pisco.data.registry import load as load_dataset
from pisco.errors import InputError
from pisco.federation import kits
from pisco.federation.authority import Authority
from pisco.federation.plan import Federation
from pisco.federation.roster import SERVER
from pisco.federation.runtime.ledger import Ledger
from pisco.results import Result

HOST = "127.0.0.1"
MOST_CLAIMED = 256
_CLAIMED: deque[int] = deque()


def free_ports(count: int) -> list[int]:
    """Ports that nobody listens on right now, below those that the system gives to outgoing connections."""
    ports: set[int] = set()
    while len(ports) < count:
        port = secrets.randbelow(22_000) + 10_000
        with contextlib.suppress(OSError):
            socket.create_server((HOST, port)).close()
            _claim(port)
            ports.add(port)
    return list(ports)


def _claim(port: int) -> None:
    """Keep another federation here from the port for as long as this process lives, also while a member restarts."""
    if sys.platform.startswith("linux"):
        with socket.socket(socket.AF_UNIX) as mark:
            mark.bind(f"\0pisco port {port}")  # a name without a file, which ends with the process
            _CLAIMED.append(mark.detach())
        if len(_CLAIMED) > MOST_CLAIMED:
            os.close(_CLAIMED.popleft())


def plan_here(name: str, agents: int, **settings: Any) -> Federation:
    """A plan whose members all live on this machine."""
    first, *ports = free_ports(agents + 1)
    addresses = {f"agent-{i}": f"{HOST}:{port}" for i, port in enumerate(ports)}
    return Federation.create(name, agents=addresses, server_address=f"{HOST}:{first}", **settings)


def share_out(dataset: str, plan: Federation, folder: Path) -> dict[str, Path]:
    """One file of samples for every agent, sorted by label, as if each had always had its own."""
    data = load_dataset(dataset)
    parts = PARTITIONS["sorted"](data.labels, agents=len(plan.names))
    files = {name: folder / f"{name}.npz" for name in plan.names}
    folder.mkdir(parents=True, exist_ok=True)
    test = {}
    if data.test_features is not None:
        test = {"test_features": data.test_features, "test_labels": data.test_labels}
    for file, rows in zip(files.values(), parts, strict=True):
        np.savez(file, features=data.features[rows], labels=data.labels[rows], **test)
    return files


@dataclass
class Loopback:
    """The processes of one federation under a folder: kits, states, logs and results."""

    folder: Path
    plan: Federation
    data: Mapping[str, Path]  # every agent's samples
    processes: dict[str, subprocess.Popen[bytes]] = field(default_factory=dict)

    def kit(self, name: str) -> Path:
        return self.folder / "kits" / name

    def start(self) -> None:
        """Certificates, kits and a process for everybody."""
        Authority.create(self.folder / "authority", self.plan.name)
        self.plan.save(self.folder / "federation.toml")
        for name in (SERVER, *self.plan.names):
            kits.issue(self.folder, self.plan, name, self.kit(name))
            command = ["server"] if name == SERVER else ["agent", "--data", str(self.data[name])]
            command = [sys.executable, "-m", "pisco.cli.main", *command, "--kit", str(self.kit(name))]
            with (self.folder / f"{name}.log").open("ab") as log:
                self.processes[name] = subprocess.Popen(
                    command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, env=_environment()
                )

    def wait(self, seconds: float, watch: Callable[[], None] = lambda: None) -> None:
        """Until all have ended; the first that ends badly is an `InputError` with its last line."""
        end = time.monotonic() + seconds
        while True:
            codes = {name: process.poll() for name, process in self.processes.items()}
            for name, code in codes.items():
                if code not in (None, 0):
                    raise InputError(f"{name} ended with code {code}: {self.last_line(name)}")
            if all(code == 0 for code in codes.values()):
                return
            if time.monotonic() > end:
                late = ", ".join(name for name, code in codes.items() if code is None)
                raise InputError(f"{late} did not finish in {seconds:g} s; their logs are in {self.folder}")
            watch()
            time.sleep(0.1)

    def last_line(self, name: str) -> str:
        lines = (self.folder / f"{name}.log").read_text(errors="replace").strip().splitlines()
        return lines[-1] if lines else "it said nothing"

    def stop(self) -> None:
        """End whatever still runs."""
        for process in self.processes.values():
            if process.poll() is None:
                process.terminate()
        for process in self.processes.values():
            try:
                process.wait(5)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()

    def result(self, seconds: float) -> Result:
        """One result of the whole: the server's history, and every agent's parameters, agents leading."""
        import jax

        own = [Result.load(self.kit(name) / "result").params for name in self.plan.names]
        params = jax.tree.map(lambda *leaves: np.concatenate(leaves), *own)
        return Ledger(self.plan, self.kit(SERVER) / "state").result(seconds, params)


def _environment() -> dict[str, str]:
    """Many small processes on few cores: one thread each for their arithmetic."""
    return os.environ | {
        "XLA_FLAGS": (os.environ.get("XLA_FLAGS", "") + " --xla_cpu_multi_thread_eigen=false").strip(),
        "OMP_NUM_THREADS": "1",
        "OPENBLAS_NUM_THREADS": "1",
        "JAX_PLATFORMS": "cpu",
    }
