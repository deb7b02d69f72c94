"""Figure `different-topology`: a one-hidden-layer network on sorted MNIST, connected and disconnected graphs of 10."""

from __future__ import annotations

from functools import partial

import numpy as np

from pisco import algorithms
from pisco.data.registry import load
from pisco.experiments.paper.figure import Figure, Shown, Stage, loss_and_accuracy, quiet, records
from pisco.experiments.paper.study import ACCURACY, FEW, PROBABILITIES, Study, cell_of, larger_step, study
from pisco.experiments.paper.verdict import Verdict, outcome, spread, up_to
from pisco.networks import graphs
from pisco.networks.network import Network
from pisco.problems.mlp import mlp

GRAPHS = {
    "connected Erdős–Rényi (0.3)": lambda: graphs.erdos_renyi(10, 0.3, 12),  # λ_w = 0.381 with FDLA weights
    "disconnected Erdős–Rényi (0.1)": lambda: graphs.erdos_renyi(10, 0.1, 0),
}


def compute(quick: bool = False, stage: Stage = quiet) -> list[Study]:
    """Both graphs with four values of p, T_o = 10, batches of 100; agent i holds label i."""
    rounds, found = 60 if quick else 600, []
    for kind, graph in GRAPHS.items():
        with stage(f"MNIST, {kind}", rounds) as progress:
            found.append(
                study(
                    f"MNIST, {kind}",
                    partial(algorithms.pisco, local_steps=10),
                    {label: PROBABILITIES[label] for label in FEW},
                    mlp(load("mnist"), agents=10, partition="by_label", hidden=32),
                    Network(graph(), weights="fdla"),
                    grid=(0.02, 0.1) if quick else (0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5),
                    rounds=rounds,
                    batch_size=100,
                    seeds=(0,) if quick else (0, 1, 2),
                    tuning_seeds=(100,) if quick else (100, 101),
                    targets={},  # none is stated: the step size with the lowest loss at the end is taken
                    eval_every=20 if quick else 10,
                    progress=progress,
                )
            )
    return found


def judge(connected: Study, disconnected: Study) -> list[Verdict]:
    """Whether a small p is enough, and what happens without a connection, under both protocols."""
    alone = 100 * cell_of(disconnected.tuned, "0").result.final(ACCURACY)
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
                small, full = (cell_of(getattr(found, words), each) for each in (label, "1"))
                best = np.mean(full.result.final(ACCURACY))
                gap = 100 * (best - small.result.final(ACCURACY))
                verdicts.append(
                    Verdict(
                        f"{kind}: p = {label} performs like p = 1 ({words} η_l)",
                        "final test accuracy of p = 1 minus that of the smaller p, in points (within 5)",
                        f"{spread(gap, ' points')}; p = 1 has {100 * best:.3g}%",
                        up_to(gap, 5, 10),
                        larger_step(full, small),
                        depends_on_size=True,
                    )
                )
    return verdicts


def present(found: list[Study]) -> Shown:
    """A row of panels per graph, the two protocols side by side."""
    rows, table = [], []
    for kind, each in zip(("connected", "disconnected"), found, strict=True):
        row = []
        for protocol in ("tuned", "common"):
            cells = getattr(each, protocol)
            row += loss_and_accuracy(cells, FEW, f"{kind}, {protocol}", "rounds")
            table += records(cells, ("loss", ACCURACY), FEW, graph=kind, protocol=protocol)
        rows.append(row)
    return Shown(rows, table, judge(*found), {each.name: each.settings() for each in found})


TOPOLOGY = Figure(
    "different-topology", "MNIST on a connected and a disconnected Erdős–Rényi graph", compute, present, "mnist"
)
