"""Plans among all methods for cells of the benchmark whose task the list has not seen; prints a JSON object a cell.

Five methods come from the cells of the other tasks, pilots on the problem itself decide, as `pisco plan --algorithms
all` does; the planned setting then runs on the seeds with which the cells were judged, and its median price, by
messages, is set against the cheapest method that was measured there (below 1: the plan found weights, local steps or a
p that the suite does not try).

    python benchmarks/bench_all_methods.py a9a/ring-10 least-squares/split-10 --ratio 10 --seconds 120
"""

from __future__ import annotations

import argparse
import json
import math
from typing import Any

import numpy as np

from pisco.costs import Prices
from pisco.engines.run import sweep
from pisco.experiments.bench import learned
from pisco.experiments.bench.scores import by_setting, whole
from pisco.experiments.bench.store import bundled
from pisco.experiments.bench.suite import load
from pisco.experiments.bench.tasks import graph_of, problem_of
from pisco.networks.network import Network
from pisco.planning import plan
from pisco.planning.settings import can_plan


def one(name: str, ratio: float, seconds: float) -> dict[str, object]:
    """One cell: the list, the plan, and what it pays."""
    (place,) = load("full").places(f"{name}/pisco")
    task, graph = place.task, Network(graph_of(place.table)).graph
    problem, tables = problem_of(task, graph.num_agents), learned.tables_of(whole(by_setting(bundled())), "messages")
    here = tables[task.name, place.network]
    others = {at: table for at, table in tables.items() if at[0] != task.name}
    home = Network(graph)
    methods = learned.rank(
        others, here.place, ratio, usable=lambda m: learned.fits(m, graph) and can_plan(m, home)
    ).methods
    how: dict[str, Any] = {"batch_size": task.batch_size, "eval_every": task.eval_every, "rounds": task.rounds}
    found = plan(
        problem, home, target=task.target, prices=Prices(server=ratio), methods=methods, seconds=seconds, **how
    )
    chosen = found.setting
    network = chosen.on(Network(graph, weights=chosen.weights))
    point = [(chosen.algorithm, chosen.schedule(network))]
    (result,) = sweep(point, problem, network, seeds=range(task.judging.seeds), **how)
    column, bound = task.target
    paid = sum(
        price * result.at_target(column, f"messages_{kind}", bound=bound)
        for price, kind in ((ratio, "server"), (1.0, "gossip"))
    )
    prices = here.prices(ratio)
    return {
        "cell": name,
        "ratio": ratio,
        "listed": methods,
        "plan": chosen.describe(),
        "promised": found.price,
        "paid": float(np.median(np.where(np.isnan(paid), math.inf, paid))),
        "missed": int(np.isnan(paid).sum()),
        "cheapest": here.keys[int(np.argmin(prices))],
        "over the cheapest": float(np.median(np.where(np.isnan(paid), math.inf, paid)) / prices.min()),
        "seconds": round(found.seconds, 1),
        "cut short": found.interrupted,
    }


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("cells", nargs="+", help="as in a9a/ring-10")
    parser.add_argument("--ratio", type=float, default=10.0)
    parser.add_argument("--seconds", type=float, default=120.0)
    given = parser.parse_args()
    for cell in given.cells:
        print(json.dumps(one(cell, given.ratio, given.seconds)), flush=True)
