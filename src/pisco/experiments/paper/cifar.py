"""Figure `cnn`: the convolutional network on sorted CIFAR-10, a ring of 5."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np

from pisco import algorithms
from pisco.data.dataset import Dataset
from pisco.data.registry import load
from pisco.engines.driver import Progress
from pisco.engines.run import sweep
from pisco.experiments.paper.study import ACCURACY, Cell, Study, study
from pisco.experiments.paper.verdict import Verdict, outcome, spread
from pisco.networks.network import Network
from pisco.networks.schedules import bernoulli
from pisco.problems.cnn import cnn
from pisco.problems.problem import Problem
from pisco.types import Algorithm

PROBABILITIES = {"0": 0.0, "0.2": 0.2, "1/√5": 5**-0.5, "1": 1.0}
ROUNDS_AN_EPOCH = 100
"""50,000 samples over 5 agents × batches of 20 × (T_o + 1) gradients."""


def _rule(local_lr: float) -> Algorithm:
    return algorithms.pisco(local_lr=local_lr, local_steps=4)


class Found(NamedTuple):
    """Every p and step size for some epochs, and the common step size for more of them."""

    short: Study
    long: list[Cell]


def rounds(quick: bool, *, long: bool) -> int:
    """8 epochs to choose the step sizes, 24 to see the curves separate."""
    return 2 if quick else (24 if long else 8) * ROUNDS_AN_EPOCH


def _problem(quick: bool) -> Problem:
    dataset = load("cifar10")
    if quick:
        assert dataset.test_features is not None and dataset.test_labels is not None
        keep, few = slice(0, 1000), slice(0, 100)
        train = dataset.features[keep], dataset.labels[keep]
        dataset = Dataset("cifar10", *train, dataset.test_features[few], dataset.test_labels[few])
    return cnn(dataset, agents=5, partition="by_label", eval_samples=20 if quick else 1000)


def compute(*, quick: bool = False, progress: Callable[[Progress], None] | None = None) -> Study:
    """Four values of p, T_o = 4, batches of 20, agent i holds labels i and i + 5."""
    every = rounds(quick, long=False) if quick else ROUNDS_AN_EPOCH
    return study(
        "CIFAR-10, ring of 5",
        _rule,
        PROBABILITIES,
        _problem(quick),
        Network.ring(5, weights="fdla"),
        grid=(0.02,) if quick else (0.01, 0.02, 0.05),
        rounds=rounds(quick, long=False),
        batch_size=20,
        seeds=(0,) if quick else (0, 1, 2),
        tuning_seeds=(100,),
        targets={},
        eval_every=every,
        chunk_rounds=every,
        progress=progress,
    )


def compute_long(
    local_lr: float, *, quick: bool = False, progress: Callable[[Progress], None] | None = None
) -> list[Cell]:
    """The same with one step size for every p, on the reported seeds."""
    every = rounds(quick, long=True) if quick else ROUNDS_AN_EPOCH
    results = sweep(
        [(_rule(local_lr), bernoulli(p)) for p in PROBABILITIES.values()],
        _problem(quick),
        Network.ring(5, weights="fdla"),
        rounds=rounds(quick, long=True),
        batch_size=20,
        seeds=(0,) if quick else (0, 1, 2),
        eval_every=every,
        chunk_rounds=every,
        progress=progress,
    )
    return [
        Cell(label, p, local_lr, result)
        for (label, p), result in zip(PROBABILITIES.items(), results, strict=True)
    ]


def judge(found: Found) -> list[Verdict]:
    """Whether p = 1/√5 is enough and p = 0 the slowest, under both protocols."""
    return [
        *_judge(found.long, f"one common η_l, {_epochs(found.long)} epochs"),
        *_judge(found.short.tuned, f"tuned, {_epochs(found.short.tuned)} epochs"),
    ]


def _epochs(cells: Sequence[Cell]) -> str:
    return f"{cells[0].result.rounds / ROUNDS_AN_EPOCH:g}"


def _judge(cells: Sequence[Cell], words: str) -> list[Verdict]:
    def accuracy(label: str) -> np.ndarray:
        return 100 * next(c for c in cells if c.label == label).result.final(ACCURACY)

    gap = np.mean(accuracy("1")) - accuracy("1/√5")
    others = min(np.mean(accuracy(label)) for label in ("0.2", "1/√5", "1"))
    steps = {cell.label: cell.local_lr for cell in cells}
    larger = steps["1"] > steps["1/√5"]
    return [
        Verdict(
            f"p = 1/√5 performs like p = 1 ({words})",
            "final test accuracy of p = 1 minus that of p = 1/√5, in points (within 4)",
            spread(gap, " points"),
            outcome(bool(np.mean(gap) <= 4), bool(np.mean(gap) <= 8)),
            f"the server in every round allows η_l = {steps['1']:g} instead of {steps['1/√5']:g}"
            if larger
            else "",
            depends_on_size=True,
        ),
        Verdict(
            f"p = 0 is the slowest ({words})",
            "final test accuracy of p = 0 against the least mean of the others",
            f"{spread(accuracy('0'), '%')} against {others:.3g}%",
            outcome(bool(np.mean(accuracy("0")) < others)),
            depends_on_size=True,
        ),
    ]
