"""Figure `cnn`: the convolutional network on sorted CIFAR-10, a ring of 5."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

from pisco import algorithms
from pisco.data.dataset import Dataset
from pisco.data.registry import load
from pisco.experiments.paper.figure import Figure, Shown, loss_and_accuracy, records
from pisco.experiments.paper.study import (
    ACCURACY,
    SEEDS,
    SPREAD,
    WORST,
    Cell,
    Study,
    cell_of,
    larger_step,
    study,
    worst_agents,
)
from pisco.experiments.paper.verdict import Verdict, outcome, up_to
from pisco.experiments.paper.work import QUIET, Work
from pisco.experiments.tune import GRID, TUNING_SEEDS
from pisco.networks.network import Network
from pisco.problems.cnn import cnn
from pisco.problems.problem import Problem
from pisco.statistics import Estimate

PROBABILITIES = {"0": 0.0, "0.2": 0.2, "1/√5": 5**-0.5, "1": 1.0}
RULE = partial(algorithms.pisco, local_steps=4)
ROUNDS_AN_EPOCH = 100
"""50,000 samples over 5 agents × batches of 20 × (T_o + 1) gradients."""

EPOCHS, TUNING_EPOCHS = 12, 2

AT_ONCE = 20
"""Runs of one call: hours on a processor, a minute on an accelerator that several processes share."""


def _problem(quick: bool) -> Problem:
    dataset = load("cifar10")
    if quick:
        assert dataset.test_features is not None and dataset.test_labels is not None
        keep, few = slice(0, 1000), slice(0, 100)
        train = dataset.features[keep], dataset.labels[keep]
        dataset = Dataset("cifar10", *train, dataset.test_features[few], dataset.test_labels[few])
    samples = 20 if quick else 400
    problem = cnn(dataset, agents=5, partition="by_label", eval_samples=samples, compute="bfloat16")
    problem.eval_batch = 50  # many runs are measured at once, and so many activations have room
    return problem


def compute(quick: bool = False, work: Work = QUIET) -> Study:
    """Every p: T_o = 4, batches of 20, agent i holds labels i and i + 5; tuned on the first epochs."""
    few: dict[str, Any] = {"grid": (0.025,), "seeds": (0,), "tuning_seeds": (100,)}
    many: dict[str, Any] = {"grid": GRID, "seeds": SEEDS, "tuning_seeds": TUNING_SEEDS}
    every = 2 if quick else ROUNDS_AN_EPOCH
    return study(
        "CIFAR-10, ring of 5",
        RULE,
        PROBABILITIES,
        _problem(quick),
        Network.ring(5, weights="fdla"),
        targets={},
        work=work,
        tuning_rounds=2 if quick else TUNING_EPOCHS * ROUNDS_AN_EPOCH,
        rounds=2 if quick else EPOCHS * ROUNDS_AN_EPOCH,
        batch_size=20,
        eval_every=every,
        chunk_rounds=every,
        at_once=AT_ONCE,
        **(few if quick else many),
    )


def judge(found: Study) -> list[Verdict]:
    """Whether p = 1/√5 is enough and p = 0 the slowest, under both protocols."""
    epochs = f"{found.tuned[0].result.rounds / ROUNDS_AN_EPOCH:g} epochs"
    return [
        *_judge(found.common, f"one common η_l, {epochs}"),
        *_judge(found.tuned, f"η_l tuned for every p, {epochs}"),
    ]


def _judge(cells: Sequence[Cell], words: str) -> list[Verdict]:
    accuracy = {cell.label: cell.final(ACCURACY) for cell in cells}
    seeds, percent = len(cells[0].result.seeds), "{:.1%}".format
    gap = Estimate(*(100 * each for each in accuracy["1/√5"].below(accuracy["1"])[:3]))
    worst = min(("0.2", "1/√5", "1"), key=lambda label: accuracy[label].median.value)
    behind = accuracy["0"].below(accuracy[worst])
    return [
        Verdict(
            f"p = 1/√5 performs like p = 1 ({words})",
            "median final test accuracy of p = 1 minus that of p = 1/√5, in points (within 4)",
            f"{gap.words('{:.2f}'.format)} points{worst_agents(cell_of(cells, '1/√5'), cell_of(cells, '1'))}",
            up_to(gap, 4, 8),
            larger_step(cell_of(cells, "1"), cell_of(cells, "1/√5")),
            seeds=seeds,
        ),
        Verdict(
            f"p = 0 is the slowest ({words})",
            "median final test accuracy of p = 0 against the least of the others",
            f"{accuracy['0'].median.words(percent)} against {accuracy[worst].median.words(percent)}",
            outcome(behind.low > 0, behind.value > 0),
            seeds=seeds,
        ),
    ]


def present(found: Study) -> Shown:
    """Loss and accuracy, a row for either protocol."""
    labels, rows, table = tuple(PROBABILITIES), [], []
    for words, cells in (("tuned", found.tuned), ("common", found.common)):
        rows.append(loss_and_accuracy(cells, labels, words, "epochs", per_x=ROUNDS_AN_EPOCH))
        table += records(cells, ("loss", ACCURACY, WORST, SPREAD), labels, protocol=words)
    return Shown(rows, table, judge(found), found.settings())


CNN = Figure("cnn", "the convolutional network on CIFAR-10, ring of 5", compute, present, "cifar10")
