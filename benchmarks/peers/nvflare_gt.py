"""NVFlare's peer-to-peer gradient tracking (GTExecutor) in its simulator: one process per agent.

Its round is one gradient and one message with X and Y to either neighbour, so ours is DSGT here. The executor evaluates
its loss whenever the loader ends; the loader below never does within the run. One simulation per process:
`nvflare_gt.py workload.npz rounds`.
"""

from __future__ import annotations

import json
import os
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import torch
import torch_models
import wire
from nvflare.app_opt.p2p.controllers import DistOptController
from nvflare.app_opt.p2p.executors import GTExecutor
from nvflare.app_opt.p2p.types import Config, Neighbor, Network, Node
from nvflare.job_config.api import FedJob

WARMUP = 5


class Batches:
    """As many mini-batches as asked for, in the form of a data loader."""

    def __init__(self, samples: tuple[torch.Tensor, torch.Tensor], batch_size: int, count: int):
        self.dataset, self.batch_size, self.count = samples[0][: batch_size * count], batch_size, count
        self.samples = samples

    def __iter__(self) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
        return (torch_models.draw(self.samples, self.batch_size) for _ in range(self.count))


class TimedTracking(GTExecutor):
    """Gradient tracking as it is, with the time at which every round changes X."""

    def __init__(self, path: str, agent: int, rounds: int, stamps_path: str):
        torch.set_num_threads(1)  # ten processes share the cores
        self.path, self.agent, self.rounds, self.stamps_path = path, agent, rounds, stamps_path
        workload = wire.load(path)
        model, loss = torch_models.model_of(workload)
        samples = torch_models.samples_of(workload, agent)
        super().__init__(
            model=model,
            loss=loss,
            train_dataloader=Batches(samples, workload.batch_size, rounds + 1),  # pyright: ignore
            test_dataloader=Batches(samples, workload.batch_size, 1),  # pyright: ignore
        )
        self.sync_timeout = 120  # a busy machine must not end the run
        self.stamps: list[float] = []

    def _update_local_state(self, stepsize: float) -> None:
        self.stamps.append(time.perf_counter())
        super()._update_local_state(stepsize)

    def _post_algorithm_run(self, *args: object, **kwargs: object) -> None:
        if self.agent == 0:
            Path(self.stamps_path).write_text(json.dumps(self.stamps))


def simulate(path: str, rounds: int) -> float:
    """Seconds per round as agent 0 sees it."""
    workload = wire.load(path)
    agents, total = len(workload.weights), WARMUP + 1 + rounds
    names = [f"site-{agent + 1}" for agent in range(agents)]
    nodes = [
        Node(
            names[i],
            [
                Neighbor(names[j], float(workload.weights[j, i]))
                for j in range(agents)
                if j != i and workload.weights[j, i]
            ],
        )
        for i in range(agents)
    ]
    with tempfile.TemporaryDirectory() as folder:
        stamps = Path(folder) / "stamps.json"
        job = FedJob(name="tracking")
        extra = {"iterations": total, "stepsize": wire.LEARNING_RATE}
        job.to_server(DistOptController(config=Config(network=Network(nodes), extra=extra)))
        for agent, name in enumerate(names):
            job.to(TimedTracking(path, agent, total, str(stamps)), name)
        job.simulator_run(str(Path(folder) / "workspace"), threads=agents, log_config="concise")
        times = json.loads(stamps.read_text())
    if len(times) < total:
        raise RuntimeError(f"Error: the simulation ended after {len(times)} of {total} rounds")
    return wire.slope(times, WARMUP)


if __name__ == "__main__":
    here = str(Path(__file__).parent)
    os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, [here, os.environ.get("PYTHONPATH")]))
    path, rounds = str(Path(sys.argv[1]).resolve()), int(sys.argv[2])
    wire.serve(["nvflare", "torch", "numpy"], lambda: simulate(path, rounds))
