"""FedAvg in fedjax: every round all agents take T_o + 1 local steps. `fedjax_fedavg.py workload.npz rounds`."""

from __future__ import annotations

import sys

import fedjax
import jax
import jax.numpy as jnp
import numpy as np
import wire
from fedjax.algorithms import fed_avg


def loss_of(workload: wire.Workload):
    """The mean loss over a batch."""

    def logistic(params, batch):
        margins = batch["y"].astype(jnp.float32) * (batch["x"].astype(jnp.float32) @ params)
        square = params * params
        return jax.nn.softplus(-margins).mean() + workload.rho * jnp.sum(square / (1 + square))

    def network(params, batch):
        features = batch["x"].astype(jnp.float32) * workload.scale
        hidden = jax.nn.sigmoid(features @ params["w1"] + params["c1"])
        chances = jax.nn.log_softmax(hidden @ params["w2"] + params["c2"])
        return -jnp.take_along_axis(chances, batch["y"][:, None].astype(jnp.int32), 1).mean()

    return network if workload.hidden else logistic


def start_of(workload: wire.Workload):
    """Zeros for logistic regression, small random weights for the network."""
    inputs = workload.features.shape[2]
    if not workload.hidden:
        return jnp.zeros(inputs)
    outputs = int(workload.labels.max()) + 1
    first, second = jax.random.split(jax.random.PRNGKey(0))
    return {
        "w1": 0.05 * jax.random.normal(first, (inputs, workload.hidden)),
        "c1": jnp.zeros(workload.hidden),
        "w2": 0.05 * jax.random.normal(second, (workload.hidden, outputs)),
        "c2": jnp.zeros(outputs),
    }


def main(path: str, rounds: int) -> None:
    workload = wire.load(path)
    loss = loss_of(workload)
    batches = fedjax.ShuffleRepeatBatchHParams(
        batch_size=workload.batch_size, num_epochs=None, num_steps=workload.gradients, drop_remainder=True
    )
    rule = fed_avg.federated_averaging(
        lambda params, batch, key: jax.grad(loss)(params, batch),
        fedjax.optimizers.sgd(wire.LEARNING_RATE),
        fedjax.optimizers.sgd(1.0),
        batches,
    )
    datasets = [
        fedjax.ClientDataset({"x": features, "y": labels})
        for features, labels in zip(workload.features, workload.labels, strict=True)
    ]
    # The keys are for models with randomness, so they may stay the same.
    keys = np.asarray(jax.random.split(jax.random.PRNGKey(1), len(datasets)))
    agents = [(b"%d" % i, data, key) for i, (data, key) in enumerate(zip(datasets, keys, strict=True))]
    state = rule.init(start_of(workload))

    def some_rounds() -> None:
        nonlocal state
        for _ in range(rounds):
            state, _ = rule.apply(state, agents)
        jax.block_until_ready(state.params)

    some_rounds()  # compiles
    wire.serve(["fedjax", "jax", "numpy"], lambda: wire.repeated(some_rounds, rounds))


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]))
