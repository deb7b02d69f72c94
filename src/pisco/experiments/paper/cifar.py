"""Figure `cnn`: the convolutional network on sorted CIFAR-10, a ring of 5."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any, NamedTuple

import numpy as np

from pisco import algorithms
from pisco.data.dataset import Dataset
from pisco.data.registry import load
from pisco.engines.run import sweep
from pisco.experiments.paper.figure import Figure, Shown, Stage, loss_and_accuracy, quiet, records
from pisco.experiments.paper.study import ACCURACY, Cell, Study, cell_of, larger_step, study
from pisco.experiments.paper.verdict import Verdict, outcome, spread, up_to
from pisco.networks.network import Network
from pisco.networks.schedules import bernoulli
from pisco.problems.cnn import cnn
from pisco.problems.problem import Problem

PROBABILITIES = {"0": 0.0, "0.2": 0.2, "1/√5": 5**-0.5, "1": 1.0}
RULE = partial(algorithms.pisco, local_steps=4)
ROUNDS_AN_EPOCH = 100
"""50,000 samples over 5 agents × batches of 20 × (T_o + 1) gradients."""


class ShortAndLong(NamedTuple):
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


def _setup(quick: bool, *, long: bool) -> dict[str, Any]:
    """T_o = 4, batches of 20, agent i holds labels i and i + 5."""
    every = rounds(quick, long=long) if quick else ROUNDS_AN_EPOCH
    return {
        "problem": _problem(quick),
        "network": Network.ring(5, weights="fdla"),
        "rounds": rounds(quick, long=long),
        "batch_size": 20,
        "seeds": (0,) if quick else (0, 1, 2),
        "eval_every": every,
        "chunk_rounds": every,
    }


def compute(quick: bool = False, stage: Stage = quiet) -> ShortAndLong:
    """Every p and step size with short runs, then long ones of every p at the common step size."""
    with stage("CIFAR-10, every step size", rounds(quick, long=False)) as progress:
        short = study(
            "CIFAR-10, ring of 5",
            RULE,
            PROBABILITIES,
            grid=(0.02,) if quick else (0.01, 0.02, 0.05),
            tuning_seeds=(100,),
            targets={},
            progress=progress,
            **_setup(quick, long=False),
        )
    local_lr = short.common[0].local_lr
    with stage("CIFAR-10, the common step size", rounds(quick, long=True)) as progress:
        points = [(RULE(local_lr=local_lr), bernoulli(p)) for p in PROBABILITIES.values()]
        results = sweep(points, progress=progress, **_setup(quick, long=True))
    cells = zip(PROBABILITIES.items(), results, strict=True)
    return ShortAndLong(short, [Cell(label, p, local_lr, result) for (label, p), result in cells])


def judge(found: ShortAndLong) -> list[Verdict]:
    """Whether p = 1/√5 is enough and p = 0 the slowest, under both protocols."""
    return [
        *_judge(found.long, f"one common η_l, {_epochs(found.long)} epochs"),
        *_judge(found.short.tuned, f"tuned, {_epochs(found.short.tuned)} epochs"),
    ]


def _epochs(cells: Sequence[Cell]) -> str:
    return f"{cells[0].result.rounds / ROUNDS_AN_EPOCH:g}"


def _judge(cells: Sequence[Cell], words: str) -> list[Verdict]:
    def accuracy(label: str) -> np.ndarray:
        return 100 * cell_of(cells, label).result.final(ACCURACY)

    gap = np.mean(accuracy("1")) - accuracy("1/√5")
    others = min(np.mean(accuracy(label)) for label in ("0.2", "1/√5", "1"))
    return [
        Verdict(
            f"p = 1/√5 performs like p = 1 ({words})",
            "final test accuracy of p = 1 minus that of p = 1/√5, in points (within 4)",
            spread(gap, " points"),
            up_to(gap, 4, 8),
            larger_step(cell_of(cells, "1"), cell_of(cells, "1/√5")),
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


def present(found: ShortAndLong) -> Shown:
    """Tuned and short above, the common step size and long below."""
    labels, rows, table = tuple(PROBABILITIES), [], []
    for words, cells in (("tuned", found.short.tuned), ("common", found.long)):
        rows.append(loss_and_accuracy(cells, labels, words, "epochs", per_x=ROUNDS_AN_EPOCH))
        table += records(cells, ("loss", ACCURACY), labels, protocol=words)
    settings = found.short.settings() | {"long run": found.long[0].result.settings}
    return Shown(rows, table, judge(found), settings)


CNN = Figure("cnn", "the convolutional network on CIFAR-10, ring of 5", compute, present, "cifar10")
