"""Figure `cnn`: the convolutional network on sorted CIFAR-10, a ring of 5."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from pisco import algorithms
from pisco.data.dataset import Dataset
from pisco.data.registry import load
from pisco.engines.driver import Progress
from pisco.experiments.paper.study import ACCURACY, Study, study
from pisco.experiments.paper.verdict import Verdict, outcome, spread
from pisco.networks.network import Network
from pisco.problems.cnn import cnn
from pisco.types import Algorithm

PROBABILITIES = {"0": 0.0, "0.2": 0.2, "1/√5": 5**-0.5, "1": 1.0}
ROUNDS_AN_EPOCH = 100
"""50,000 samples over 5 agents × batches of 20 × (T_o + 1) gradients."""


def _rule(local_lr: float) -> Algorithm:
    return algorithms.pisco(local_lr=local_lr, local_steps=4)


def compute(*, quick: bool = False, epochs: int = 16, progress: Callable[[Progress], None] | None = None) -> Study:
    """Four values of p, T_o = 4, batches of 20, agent i holds labels i and i + 5."""
    dataset = load("cifar10")
    if quick:
        keep = slice(0, 2000)
        dataset = Dataset(
            "cifar10", dataset.features[keep], dataset.labels[keep], dataset.test_features[:500], dataset.test_labels[:500]
        )
    return study(
        "CIFAR-10, ring of 5",
        _rule,
        PROBABILITIES,
        cnn(dataset, agents=5, partition="by_label", eval_samples=1000),
        Network.ring(5, weights="fdla"),
        grid=(0.02,) if quick else (0.01, 0.02, 0.05),
        rounds=4 if quick else epochs * ROUNDS_AN_EPOCH,
        batch_size=20,
        seeds=(0,) if quick else (0, 1, 2),
        tuning_seeds=(0,) if quick else (100,),
        targets={},
        eval_every=4 if quick else ROUNDS_AN_EPOCH,
        chunk_rounds=4 if quick else ROUNDS_AN_EPOCH,
        progress=progress,
    )


def judge(found: Study) -> list[Verdict]:
    """Whether p = 1/√5 is enough, and p = 0 the slowest."""

    def accuracy(label: str) -> np.ndarray:
        return 100 * next(c for c in found.tuned if c.label == label).result.final(ACCURACY)

    gap = np.mean(accuracy("1")) - accuracy("1/√5")
    others = min(np.mean(accuracy(label)) for label in ("0.2", "1/√5", "1"))
    return [
        Verdict(
            "p = 1/√5 performs like p = 1",
            "final test accuracy of p = 1 minus that of p = 1/√5, in points (within 4)",
            spread(gap, " points"),
            outcome(bool(np.mean(gap) <= 4), bool(np.mean(gap) <= 8)),
            depends_on_size=True,
        ),
        Verdict(
            "p = 0 is the slowest",
            "final test accuracy of p = 0 against the least of the others",
            f"{spread(accuracy('0'), '%')} against {others:.3g}%",
            outcome(bool(np.mean(accuracy("0")) < others)),
            depends_on_size=True,
        ),
    ]
