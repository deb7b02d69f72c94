"""Figure `different-topology`: a one-hidden-layer network on sorted MNIST, connected and disconnected graphs of 10."""

from __future__ import annotations

from functools import partial
from typing import Any

from pisco import algorithms
from pisco.data.registry import load
from pisco.experiments.paper.figure import Figure, Shown, loss_and_accuracy, records
from pisco.experiments.paper.study import (
    ACCURACY,
    FEW,
    PROBABILITIES,
    SPREAD,
    WORST,
    Study,
    cell_of,
    larger_step,
    study,
    worst_agents,
)
from pisco.experiments.paper.verdict import Verdict, outcome, up_to
from pisco.experiments.paper.work import QUIET, Work
from pisco.networks import graphs
from pisco.networks.network import Network
from pisco.problems.mlp import mlp
from pisco.statistics import Estimate

GRAPHS = {
    "connected Erdős–Rényi (0.3)": lambda: graphs.erdos_renyi(10, 0.3, 12),  # λ_w = 0.381 with FDLA weights
    "disconnected Erdős–Rényi (0.1)": lambda: graphs.erdos_renyi(10, 0.1, 0),
}


def compute(quick: bool = False, work: Work = QUIET) -> list[Study]:
    """Both graphs with four values of p, T_o = 10, batches of 100; agent i holds label i."""
    few: dict[str, Any] = {"grid": (0.025, 0.1), "seeds": (0,), "tuning_seeds": (100,)}
    how: dict[str, Any] = few if quick else {}
    return [
        study(
            f"MNIST, {kind}",
            partial(algorithms.pisco, local_steps=10),
            {label: PROBABILITIES[label] for label in FEW},
            mlp(load("mnist"), agents=10, partition="by_label", hidden=32),
            Network(graph(), weights="fdla"),
            targets={},  # none is stated: the step size with the lowest loss at the end is taken
            work=work,
            rounds=60 if quick else 600,
            batch_size=100,
            eval_every=20 if quick else 10,
            **how,
        )
        for kind, graph in GRAPHS.items()
    ]


def judge(connected: Study, disconnected: Study) -> list[Verdict]:
    """Whether a small p is enough, and what becomes of no server at all, under both protocols."""
    seeds = len(connected.seeds)
    alone = cell_of(disconnected.tuned, "0").final(ACCURACY).median
    verdicts = [
        Verdict(
            "disconnected: p = 0 breaks down (both protocols)",
            "median final test accuracy of p = 0 (below 60%)",
            alone.words("{:.1%}".format),
            outcome(alone.high < 0.6),
            "eight parts of the graph never hear of each other's labels",
            seeds=seeds,
        )
    ]
    for words in ("tuned", "common"):
        for kind, found in (("connected", connected), ("disconnected", disconnected)):
            for label in ("0", "0.1", "10^-0.5") if kind == "connected" else ("0.1", "10^-0.5"):
                small, full = (cell_of(getattr(found, words), each) for each in (label, "1"))
                best, own = (cell.final(ACCURACY) for cell in (full, small))
                gap = Estimate(*(100 * each for each in own.below(best)[:3]))
                verdicts.append(
                    Verdict(
                        f"{kind}: p = {label} performs like p = 1 ({words} η_l)",
                        "median final test accuracy of p = 1 minus that of the smaller p, in points (within 5)",
                        f"{gap.words('{:.2f}'.format)} points; {own.median.words('{:.1%}'.format)} against "
                        f"{best.median.words('{:.1%}'.format)}{worst_agents(small, full)}",
                        up_to(gap, 5, 10),
                        larger_step(full, small),
                        seeds=seeds,
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
            table += records(cells, ("loss", ACCURACY, WORST, SPREAD), FEW, graph=kind, protocol=protocol)
        rows.append(row)
    return Shown(rows, table, judge(*found), {each.name: each.settings() for each in found})


TOPOLOGY = Figure(
    "different-topology", "MNIST on a connected and a disconnected Erdős–Rényi graph", compute, present, "mnist"
)
