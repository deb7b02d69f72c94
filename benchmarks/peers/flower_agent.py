"""What an agent of `flower_fedavg.py` does; a module of its own, because Ray's processes import it."""

from __future__ import annotations

from functools import cache

import torch
import torch_models
import wire
from flwr.app import ArrayRecord, Message, MetricRecord, RecordDict


@cache
def kept(path: str) -> tuple:
    """The workload, model and loss, read and built once per process, not once per round."""
    torch.set_num_threads(1)  # Ray runs one agent per core
    workload = wire.load(path)
    return workload, *torch_models.model_of(workload)


@cache
def samples_of(path: str, agent: int) -> tuple[torch.Tensor, torch.Tensor]:
    """The agent's samples, kept in the process."""
    return torch_models.samples_of(kept(path)[0], agent)


def train(message: Message, path: str, agent: int) -> Message:
    """The agent's local steps from the server's parameters."""
    workload, model, loss = kept(path)
    samples = samples_of(path, agent)
    model.load_state_dict(message.content["arrays"].to_torch_state_dict())  # pyright: ignore
    optimizer = torch.optim.SGD(model.parameters(), lr=wire.LEARNING_RATE)
    for _ in range(workload.gradients):
        features, labels = torch_models.draw(samples, workload.batch_size)
        optimizer.zero_grad()
        loss(model(features), labels).backward()
        optimizer.step()
    content = RecordDict(
        {"arrays": ArrayRecord(model.state_dict()), "metrics": MetricRecord({"num-examples": len(samples[0])})}
    )
    return Message(content=content, reply_to=message)
