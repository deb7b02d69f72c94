"""The workloads' models as PyTorch modules with autograd, for the peers that train such modules."""

from __future__ import annotations

from collections.abc import Callable

import torch
import wire
from torch import nn


class Logistic(nn.Module):
    """Scores aᵀx, and the regulariser Σ x²/(1 + x²) beside them."""

    def __init__(self, inputs: int):
        super().__init__()
        self.x = nn.Parameter(torch.zeros(inputs))

    def forward(self, features: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        square = self.x * self.x
        return features.float() @ self.x, (square / (1 + square)).sum()


class LogisticLoss(nn.Module):
    """The mean of log(1 + exp(−y·aᵀx)), plus ρ times the regulariser."""

    def __init__(self, rho: float):
        super().__init__()
        self.rho = rho

    def forward(self, found: tuple[torch.Tensor, torch.Tensor], labels: torch.Tensor) -> torch.Tensor:
        scores, regulariser = found
        return nn.functional.softplus(-labels * scores).mean() + self.rho * regulariser


class Network(nn.Module):
    """One hidden layer of sigmoids, logits out."""

    def __init__(self, inputs: int, hidden: int, outputs: int, scale: float):
        super().__init__()
        self.scale = scale
        self.layers = nn.Sequential(nn.Linear(inputs, hidden), nn.Sigmoid(), nn.Linear(hidden, outputs))

    def forward(self, features: torch.Tensor) -> torch.Tensor:
        return self.layers(features.float() * self.scale)


def model_of(workload: wire.Workload) -> tuple[nn.Module, nn.Module]:
    """The module and its loss, from the same start in every process."""
    inputs = workload.features.shape[2]
    torch.manual_seed(0)
    if workload.hidden:
        outputs = int(workload.labels.max()) + 1
        return Network(inputs, workload.hidden, outputs, workload.scale), nn.CrossEntropyLoss()
    return Logistic(inputs), LogisticLoss(workload.rho)


def samples_of(workload: wire.Workload, agent: int) -> tuple[torch.Tensor, torch.Tensor]:
    """One agent's features, still small integers, and labels in the type its loss needs."""
    features = torch.from_numpy(workload.features[agent].copy())
    labels = torch.from_numpy(workload.labels[agent].copy())
    return features, labels.long() if workload.hidden else labels.float()


def draw(samples: tuple[torch.Tensor, torch.Tensor], batch_size: int) -> tuple[torch.Tensor, torch.Tensor]:
    """A mini-batch with replacement."""
    rows = torch.randint(len(samples[0]), (batch_size,))
    return samples[0][rows], samples[1][rows]


def fastest_threads(some_rounds: Callable[[], object]) -> int:
    """One thread or PyTorch's default, whichever is quicker here: small products and busy cores favour one."""
    times = {}
    for threads in dict.fromkeys([1, torch.get_num_threads()]):
        torch.set_num_threads(threads)
        some_rounds()  # warms up, compiles
        times[threads] = wire.repeated(some_rounds, 1, seconds=0.5)
    torch.set_num_threads(min(times, key=times.__getitem__))
    return torch.get_num_threads()
