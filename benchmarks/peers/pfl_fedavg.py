"""FedAvg in pfl with PyTorch models: every round all agents take T_o + 1 local steps, then the server averages.

pfl takes the batches of an agent in order from the start of its data, which is less work than drawing them.
`pfl_fedavg.py workload.npz rounds`.
"""

from __future__ import annotations

import sys
import time

import torch
import torch_models
import wire
from pfl.aggregate.simulate import SimulatedBackend
from pfl.algorithm.base import NNAlgorithmParams
from pfl.algorithm.federated_averaging import FederatedAveraging
from pfl.callback.base import TrainingProcessCallback
from pfl.data.dataset import Dataset
from pfl.data.federated_dataset import FederatedDataset
from pfl.data.sampling import get_user_sampler
from pfl.hyperparam import NNTrainHyperParams
from pfl.metrics import Metrics
from pfl.model.pytorch import PyTorchModel

WARMUP = 3


class Stamps(TrainingProcessCallback):
    """The time at which every round ends."""

    def __init__(self):
        self.stamps: list[float] = []

    def after_central_iteration(self, aggregate_metrics, model, *, central_iteration):
        self.stamps.append(time.perf_counter())
        return False, Metrics()


def main(path: str, rounds: int) -> None:
    workload = wire.load(path)
    agents = len(workload.weights)
    module, loss = torch_models.model_of(workload)
    module.loss = lambda features, labels: loss(module(features), labels)
    module.metrics = lambda features, labels: {}
    model = PyTorchModel(module, torch.optim.SGD, torch.optim.SGD(module.parameters(), lr=1.0))
    kept = [Dataset(list(torch_models.samples_of(workload, agent))) for agent in range(agents)]
    data = FederatedDataset(lambda agent: kept[agent], get_user_sampler("minimize_reuse", range(agents)))
    backend = SimulatedBackend(training_data=data, val_data=data)
    local = NNTrainHyperParams(
        local_batch_size=workload.batch_size,
        local_num_epochs=None,
        local_num_steps=workload.gradients,
        local_learning_rate=wire.LEARNING_RATE,
    )

    def measure(rounds: int = rounds) -> float:
        stamps = Stamps()
        FederatedAveraging().run(
            NNAlgorithmParams(
                central_num_iterations=rounds + WARMUP + 1,
                evaluation_frequency=10**9,  # round 0 is evaluated whatever this says; it is left out
                train_cohort_size=agents,
                val_cohort_size=0,
            ),
            backend,
            model,
            local,
            callbacks=[stamps],
            send_metrics_to_platform=False,
        )
        return wire.slope(stamps.stamps, WARMUP)

    threads = torch_models.fastest_threads(lambda: measure(1))
    wire.serve(["pfl", "torch", "numpy"], measure, note=f"{threads} threads")


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]))
