"""Figure `different_topology`: a one-hidden-layer network on sorted MNIST, connected and disconnected graphs of 10."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from pisco import algorithms
from pisco.data.registry import load
from pisco.engines.driver import Progress
from pisco.experiments.paper.study import ACCURACY, PROBABILITIES, Cell, Study, study
from pisco.experiments.paper.verdict import Verdict, outcome, spread
from pisco.networks import graphs
from pisco.networks.network import Network
from pisco.problems.mlp import mlp
from pisco.types import Algorithm

GRAPHS = {
    "connected Erdős–Rényi (0.3)": lambda: graphs.erdos_renyi(10, 0.3, 12),  # λ_w = 0.381 with FDLA weights
    "disconnected Erdős–Rényi (0.1)": lambda: graphs.erdos_renyi(10, 0.1, 0),
}
CONNECTED, DISCONNECTED = GRAPHS
FEW = ("0", "0.1", "10^-0.5", "1")


def _rule(local_lr: float) -> Algorithm:
    return algorithms.pisco(local_lr=local_lr, local_steps=10)


def compute(
    kind: str,
    *,
    quick: bool = False,
    weights: Any = "fdla",
    progress: Callable[[Progress], None] | None = None,
) -> Study:
    """Four values of p, T_o = 10, batches of 100, agent i holds label i."""
    return study(
        f"MNIST, {kind}",
        _rule,
        {label: PROBABILITIES[label] for label in FEW},
        mlp(load("mnist"), agents=10, partition="by_label", hidden=32),
        Network(GRAPHS[kind](), weights=weights),
        grid=(0.02, 0.1) if quick else (0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5),
        rounds=60 if quick else 600,
        batch_size=100,
        seeds=(0,) if quick else (0, 1, 2),
        tuning_seeds=(100,) if quick else (100, 101),
        targets={},  # none is stated: the step size with the lowest training loss at the end is taken
        eval_every=20 if quick else 10,
        progress=progress,
    )


def judge(connected: Study, disconnected: Study) -> list[Verdict]:
    """Whether a small p is enough, and what happens without a connection, under both protocols."""
    alone = 100 * _cell(disconnected.tuned, "0").result.final(ACCURACY)
    verdicts = [
        Verdict(
            "disconnected: p = 0 breaks down (both protocols)",
            "final test accuracy of p = 0 (below 60%)",
            spread(alone, "%"),
            outcome(bool(np.mean(alone) < 60)),
            "eight parts of the graph never hear of each other's labels",
        )
    ]
    for words in ("tuned", "common"):
        for kind, found in (("connected", connected), ("disconnected", disconnected)):
            for label in ("0.1", "10^-0.5"):
                small, full = (_cell(getattr(found, words), each) for each in (label, "1"))
                gap = 100 * (np.mean(full.result.final(ACCURACY)) - small.result.final(ACCURACY))
                why = f"p = 1 takes η_l = {full.local_lr:g}, p = {label} only {small.local_lr:g}"
                verdicts.append(
                    Verdict(
                        f"{kind}: p = {label} performs like p = 1 ({words} η_l)",
                        "final test accuracy of p = 1 minus that of the smaller p, in points (within 5)",
                        spread(gap, " points")
                        + f"; p = 1 has {100 * np.mean(full.result.final(ACCURACY)):.3g}%",
                        outcome(bool(np.mean(gap) <= 5), bool(np.mean(gap) <= 10)),
                        why if full.local_lr > small.local_lr else "",
                        depends_on_size=True,
                    )
                )
    return verdicts


def _cell(cells: list[Cell], label: str) -> Cell:
    return next(each for each in cells if each.label == label)
