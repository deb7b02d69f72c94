"""Figure `cnn`: the convolutional network on sorted CIFAR-10, a ring of 5."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any, NamedTuple

from pisco import algorithms
from pisco.data.dataset import Dataset
from pisco.data.registry import load
from pisco.experiments.paper.figure import Figure, Shown, loss_and_accuracy, records
from pisco.experiments.paper.study import ACCURACY, Cell, Study, cell_of, larger_step, study
from pisco.experiments.paper.verdict import Verdict, outcome, up_to
from pisco.experiments.paper.work import QUIET, Work
from pisco.networks.network import Network
from pisco.problems.cnn import cnn
from pisco.problems.problem import Problem
from pisco.statistics import Estimate

PROBABILITIES = {"0": 0.0, "0.2": 0.2, "1/√5": 5**-0.5, "1": 1.0}
RULE = partial(algorithms.pisco, local_steps=4)
GRID = (0.01, 0.02, 0.05)
"""Not the grid of the others: a run of 8 epochs takes minutes of an accelerator."""

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


def compute(quick: bool = False, work: Work = QUIET) -> ShortAndLong:
    """Every p and step size with short runs, then long ones of every p at the common step size."""
    short = study(
        "CIFAR-10, ring of 5",
        RULE,
        PROBABILITIES,
        grid=(0.02,) if quick else GRID,
        tuning_seeds=(100,),
        targets={},
        work=work,
        **_setup(quick, long=False),
    )
    local_lr = short.common[0].local_lr
    long = study(
        "CIFAR-10, ring of 5, the common step size",
        RULE,
        PROBABILITIES,
        grid=(),
        tuning_seeds=(),
        targets={},
        fixed=[(label, local_lr) for label in PROBABILITIES],
        work=work,
        **_setup(quick, long=True),
    )
    return ShortAndLong(short, long.fixed)


def judge(found: ShortAndLong) -> list[Verdict]:
    """Whether p = 1/√5 is enough and p = 0 the slowest, under both protocols."""
    return [
        *_judge(found.long, f"one common η_l, {_epochs(found.long)} epochs"),
        *_judge(found.short.tuned, f"tuned, {_epochs(found.short.tuned)} epochs"),
    ]


def _epochs(cells: Sequence[Cell]) -> str:
    return f"{cells[0].result.rounds / ROUNDS_AN_EPOCH:g}"


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
            f"{gap.words('{:.2f}'.format)} points",
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


def present(found: ShortAndLong) -> Shown:
    """Tuned and short above, the common step size and long below."""
    labels, rows, table = tuple(PROBABILITIES), [], []
    for words, cells in (("tuned", found.short.tuned), ("common", found.long)):
        rows.append(loss_and_accuracy(cells, labels, words, "epochs", per_x=ROUNDS_AN_EPOCH))
        table += records(cells, ("loss", ACCURACY), labels, protocol=words)
    settings = found.short.settings() | {"long run": found.long[0].result.settings}
    return Shown(rows, table, judge(found), settings)


CNN = Figure("cnn", "the convolutional network on CIFAR-10, ring of 5", compute, present, "cifar10")
