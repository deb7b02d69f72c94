"""Plans for experiment files: an experiment in, the cheapest way to run it with PISCO out, as an experiment."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from pisco.costs import LinkTimes, Prices
from pisco.errors import InputError
from pisco.experiments.config import Config
from pisco.experiments.loading import replace
from pisco.networks.network import Network
from pisco.planning.planner import USUAL_PRICES, Plan, plan
from pisco.planning.settings import PROBABILITIES, Setting
from pisco.problems.problem import Problem
from pisco.report.plan_plot import PlannedCost


class Planned(NamedTuple):
    """A plan, the experiment that it makes, and what it was made for."""

    plan: Plan
    config: Config
    problem: Problem
    network: Network


def plan_config(
    config: Config,
    *,
    target: tuple[str, float],
    prices: Prices | LinkTimes = USUAL_PRICES,
    probabilities: Sequence[float] = PROBABILITIES,
    seconds: float = 60.0,
    tell: Callable[[str], None] = lambda words: None,
) -> Planned:
    """Find the cheapest way to run an experiment with PISCO."""
    table = config.network
    odd = {
        "varying": table.varying != "none",
        "reporters": table.reporters is not None,
        "gossip_steps": table.gossip_steps != 1,
        "gossip_before_server": table.gossip_before_server,
    }
    for name, set_here in odd.items():
        if set_here:
            raise InputError(
                f"network.{name} = {getattr(table, name)!r} cannot be planned for: plans are for fixed links and a "
                "server that averages everybody; leave it out"
            )
    problem, network = config.problem_and_network()
    column, _ = target
    if column.startswith("test_") and column not in {f"test_{name}" for name, _ in problem.metrics}:
        raise InputError(f"the problem does not measure {column} (has it test data?); give another --target")
    found = plan(
        problem,
        network,
        rounds=config.run.rounds,
        batch_size=config.run.batch_size,
        target=target,
        prices=prices,
        eval_every=config.run.eval_every,
        local_steps=_local_steps(config),
        probabilities=probabilities,
        seconds=seconds,
        tell=tell,
    )
    return Planned(found, planned_config(config, found.setting, network.weights_name), problem, network)


def _local_steps(config: Config) -> int:
    """The experiment's T_o, where its method has one."""
    steps = config.algorithm.taken_by("name").get("local_steps", 1)
    return int(steps) if config.algorithm.name.startswith("pisco") else 1


def planned_config(config: Config, setting: Setting, own_weights: str) -> Config:
    """The experiment with a setting put in place; weights with options of their own stay as they are."""
    tables = config.to_dict()
    tables["algorithm"] = {
        "name": "pisco-one-exchange" if setting.one_exchange else "pisco",
        "local_lr": float(f"{setting.local_lr:.4g}"),
        "local_steps": setting.local_steps,
    }
    p = float(f"{setting.server_prob:.4g}")
    server: dict[str, Any] = {"server": "bernoulli", "server_prob": p}
    if p in (0.0, 1.0):
        server = {"server": "always" if p else "never"}
    weights = {} if setting.weights == own_weights else {"weights": setting.weights}
    replace(tables, {"network": server | weights})
    tables["name"] = f"{config.name}-planned"
    tables["description"] = f"planned: {setting.describe()}"
    return Config.from_dict(tables, "the plan")


def cost_rows(planned: Planned, prices: Prices | LinkTimes) -> list[PlannedCost]:
    """For every p the price of its best setting, split by kind of link."""
    rows = []
    for choice in planned.plan.by_probability:
        sent, p = choice.setting.sent(planned.problem), choice.setting.server_prob
        each = prices.of_round(sent, planned.network.graph)
        unit = each.expected(p)
        rounds = choice.price / unit if unit else math.inf
        rows.append(PlannedCost(p, rounds * (1 - p) * each.gossip, rounds * p * each.server, choice.measured))
    return rows
