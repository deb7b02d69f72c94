"""PISCO by hand in PyTorch: agents stacked on a leading axis, batched products, no other software.

Batches of many rounds are drawn at once, features are kept as the small integers they are and cast after the gather,
and the state is updated in place. `torch_loop.py workload.npz rounds plain|tuned|compiled`: gradients by torch.func,
written out by hand, or the latter through torch.compile.
"""

from __future__ import annotations

import sys
from collections.abc import Callable

import torch
import torch_models
import wire

Params = list[torch.Tensor]
Gradient = Callable[[Params, torch.Tensor, torch.Tensor], Params]  # every agent's, agents leading


def tuned_gradient(workload: wire.Workload) -> Gradient:
    """Written out: no graph is recorded, and rows rather than columns, for which products are far quicker."""
    batch_size, rho, scale = workload.batch_size, workload.rho, workload.scale

    def logistic(params: Params, features: torch.Tensor, labels: torch.Tensor) -> Params:
        (x,) = params  # (agents, 1, inputs)
        features = features.float()
        margins = (features * x).sum(2).mul_(labels)
        slopes = torch.sigmoid(margins.neg_()).mul_(labels).mul_(-1 / batch_size)
        square = (x * x).add_(1)
        regulariser = (x * (2 * rho)).div_(square.mul_(square))
        return [torch.baddbmm(regulariser, slopes[:, None], features)]

    def network(params: Params, features: torch.Tensor, labels: torch.Tensor) -> Params:
        w1, c1, w2, c2 = params  # the biases are (agents, 1, width)
        features = features * scale
        hidden = torch.baddbmm(c1, features, w1).sigmoid_()
        errors = torch.softmax(torch.baddbmm(c2, hidden, w2), 2)
        errors.scatter_add_(2, labels[:, :, None], errors.new_full((1, 1, 1), -1).expand(*labels.shape, 1))
        errors.mul_(1 / batch_size)
        back = torch.bmm(errors, w2.transpose(1, 2)).mul_(hidden).mul_(1 - hidden)
        return [
            torch.bmm(features.transpose(1, 2), back),
            back.sum(1, keepdim=True),
            torch.bmm(hidden.transpose(1, 2), errors),
            errors.sum(1, keepdim=True),
        ]

    return network if workload.hidden else logistic


def plain_gradient(workload: wire.Workload) -> Gradient:
    """As most would write it: the loss of one agent, differentiated and mapped over agents by torch.func."""
    functional = torch.nn.functional

    def logistic(params: Params, features: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        x = params[0][0]
        square = x * x
        losses = functional.softplus(-labels * (features.float() @ x))
        return losses.mean() + workload.rho * (square / (1 + square)).sum()

    def network(params: Params, features: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        w1, c1, w2, c2 = params
        hidden = torch.sigmoid(features * workload.scale @ w1 + c1)
        return functional.cross_entropy(hidden @ w2 + c2, labels)

    return torch.func.vmap(torch.func.grad(network if workload.hidden else logistic))


def start_of(workload: wire.Workload) -> Params:
    """The same start for every agent: zeros for logistic regression, Glorot for the network."""
    agents, _, inputs = workload.features.shape
    if not workload.hidden:
        return [torch.zeros(agents, 1, inputs)]
    hidden, outputs = workload.hidden, int(workload.labels.max()) + 1

    def glorot(rows: int, columns: int) -> torch.Tensor:
        limit = (6 / (rows + columns)) ** 0.5
        return torch.empty(rows, columns).uniform_(-limit, limit).repeat(agents, 1, 1)

    biases = torch.zeros(agents, 1, hidden), torch.zeros(agents, 1, outputs)
    return [glorot(inputs, hidden), biases[0], glorot(hidden, outputs), biases[1]]


class Loop:
    """PISCO's state (X, Y, G) and the agents' samples."""

    def __init__(self, workload: wire.Workload, style: str):
        self.workload = workload
        agents, self.samples, inputs = workload.features.shape
        self.features = torch.from_numpy(workload.features.reshape(-1, inputs).copy())
        labels = torch.from_numpy(workload.labels.reshape(-1).copy())
        self.labels = labels.long() if workload.hidden else labels.float()
        self.offsets = (torch.arange(agents) * self.samples).reshape(1, agents, 1)
        self.gossip = torch.from_numpy(workload.weights.T.copy()).float()
        self.mean = torch.full((agents, agents), 1 / agents)
        self.gradient = plain_gradient(workload) if style == "plain" else tuned_gradient(workload)
        if style == "compiled":
            self.gradient = torch.compile(self.gradient, dynamic=False)
        self.params = start_of(workload)
        rows = self.draw(1)[0]
        self.grads = self.gradient(self.params, *self.batch(rows[0]))
        self.tracker = [g.clone() for g in self.grads]

    def draw(self, rounds: int) -> torch.Tensor:
        """Rows of the samples of so many rounds: (rounds, gradients, agents · batch)."""
        work = self.workload
        shape = (rounds * work.gradients, self.offsets.shape[1], work.batch_size)
        return (torch.randint(self.samples, shape) + self.offsets).reshape(rounds, work.gradients, -1)

    def batch(self, rows: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Features (agents, batch, inputs) and labels (agents, batch)."""
        agents = self.offsets.shape[1]
        features = self.features.index_select(0, rows).reshape(agents, self.workload.batch_size, -1)
        return features, self.labels.index_select(0, rows).reshape(agents, -1)

    def mix(self, matrix: torch.Tensor, tree: Params) -> Params:
        """Wᵀ on the agents' axis."""
        return [torch.mm(matrix, leaf.flatten(1)).view_as(leaf) for leaf in tree]

    def step(self, rows: torch.Tensor) -> None:
        """A gradient at X, and the tracker corrected with it."""
        grads = self.gradient(self.params, *self.batch(rows))
        track(self.tracker, grads, self.grads)
        self.grads = grads

    def round(self, rows: torch.Tensor, server: bool) -> None:
        """T_o local steps, then X and Y exchanged in turn."""
        for local in rows[:-1]:
            torch._foreach_add_(self.params, self.tracker, alpha=-wire.LEARNING_RATE)
            self.step(local)
        matrix = self.mean if server else self.gossip
        torch._foreach_add_(self.params, self.tracker, alpha=-wire.LEARNING_RATE)
        self.params = self.mix(matrix, self.params)
        self.step(rows[-1])
        self.tracker = self.mix(matrix, self.tracker)

    @torch.inference_mode()
    def run(self, rounds: int) -> None:
        """Rounds whose batches and coins are drawn together."""
        servers = (torch.rand(rounds) < self.workload.server_prob).tolist()
        for rows, server in zip(self.draw(rounds), servers, strict=True):
            self.round(rows, server)


def track(tracker: Params, grads: Params, old: Params) -> None:
    """Y ← Y + G' − G, in place."""
    torch._foreach_add_(tracker, grads)
    torch._foreach_sub_(tracker, old)


def main(path: str, rounds: int, style: str) -> None:
    with torch.inference_mode():
        loop = Loop(wire.load(path), style)
    threads = torch_models.fastest_threads(lambda: loop.run(rounds))
    wire.serve(["torch", "numpy"], lambda: wire.repeated(lambda: loop.run(rounds), rounds), note=f"{threads} threads")


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), sys.argv[3])
