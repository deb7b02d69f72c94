"""FedAvg in Flower's simulation (Ray): every round all agents take T_o + 1 local steps, then the server averages.

No evaluation. One simulation per process: `flower_fedavg.py workload.npz rounds`.
"""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path

import flower_agent
import torch_models
import wire
from flwr.app import ArrayRecord, Context, Message
from flwr.clientapp import ClientApp
from flwr.serverapp import Grid, ServerApp
from flwr.serverapp.strategy import FedAvg
from flwr.simulation import run_simulation

WARMUP = 3


class TimedAverage(FedAvg):
    """FedAvg as it is, with the time at which every round begins."""

    def __init__(self, agents: int):
        self.agents = agents
        super().__init__(fraction_evaluate=0.0, min_train_nodes=agents, min_available_nodes=agents)
        self.stamps: list[float] = []

    def configure_train(self, server_round, arrays, config, grid):
        self.stamps.append(time.perf_counter())
        return super().configure_train(server_round, arrays, config, grid)

    def aggregate_train(self, server_round, replies):
        replies = list(replies)
        failed = [reply.error.reason for reply in replies if reply.has_error()]
        # Flower goes on without the agents that failed, and such rounds are quick.
        if failed or len(replies) < self.agents:
            raise RuntimeError(f"{self.agents - len(replies) + len(failed)} agents failed: {failed[:1]}")
        return super().aggregate_train(server_round, replies)


def simulate(path: str, rounds: int) -> float:
    """Seconds per round as the server sees it."""
    workload = wire.load(path)
    agents = len(workload.weights)
    strategy = TimedAverage(agents)
    server, app = ServerApp(), ClientApp()

    @server.main()
    def main(grid: Grid, context: Context) -> None:
        model, _ = torch_models.model_of(workload)
        strategy.start(grid=grid, initial_arrays=ArrayRecord(model.state_dict()), num_rounds=rounds + WARMUP + 1)  # pyright: ignore

    @app.train()
    def local_steps(message: Message, context: Context) -> Message:
        return flower_agent.train(message, path, int(context.node_config["partition-id"]))

    run_simulation(server, app, agents, backend_config={"client_resources": {"num_cpus": 1, "num_gpus": 0.0}})
    return wire.slope(strategy.stamps, WARMUP)


if __name__ == "__main__":
    here = str(Path(__file__).parent)
    os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, [here, os.environ.get("PYTHONPATH")]))
    path, rounds = str(Path(sys.argv[1]).resolve()), int(sys.argv[2])
    wire.serve(["flwr", "ray", "torch", "numpy"], lambda: simulate(path, rounds))
