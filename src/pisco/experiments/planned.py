"""Plans for experiment files: an experiment in, the cheapest way to run it out, as an experiment."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from pisco import registry
from pisco.algorithms.optimizers import Optimizer
from pisco.costs import Prices, uncounted
from pisco.experiments.config import Config
from pisco.experiments.loading import replace
from pisco.metrics import GRADIENT
from pisco.networks.network import Network
from pisco.networks.weights import WEIGHTS
from pisco.planning.diagnosis import Diagnosis, diagnose
from pisco.planning.formulas import Outlook, outlook
from pisco.planning.planner import Plan, plan
from pisco.planning.settings import PISCO, PROBABILITIES, Setting, can_plan, is_plain
from pisco.report.panels import COLOURS, GOSSIP, SERVER, Bars, Curve, Level, Panel
from pisco.report.picture import draw
from pisco.targets import Target
from pisco.theory.paper import network_dependency


class Planned(NamedTuple):
    """A plan, and the experiment that it makes."""

    plan: Plan
    config: Config


def plan_config(
    config: Config,
    *,
    target: tuple[str, float],
    prices: Prices | None = None,
    methods: Sequence[str] | None = None,
    probabilities: Sequence[float] = PROBABILITIES,
    seconds: float = 60.0,
    tell: Callable[[str], None] = lambda words: None,
) -> Planned:
    """Find the cheapest way to run an experiment: with PISCO, or with its own method where PISCO cannot run, or others.

    Without prices, an experiment that has a clock is planned for seconds.
    """
    problem, network = config.problem_and_network()
    found = plan(
        problem,
        network,
        rounds=config.run.rounds,
        batch_size=config.run.batch_size,
        target=target,
        prices=prices or Prices(),
        clock=None if config.clock is None or prices else config.clock.build(),
        methods=methods or _usual_methods(config, network, probabilities),
        eval_every=config.run.eval_every or 1,
        local_steps=_local_steps(config),
        probabilities=probabilities,
        seconds=seconds,
        tell=tell,
    )
    return Planned(found, planned_config(config, found.setting, network.weights_name))


def _usual_methods(config: Config, network: Network, probabilities: Sequence[float]) -> Sequence[str]:
    """PISCO; the experiment's own method where PISCO cannot run, as where only a sample reports."""
    return PISCO if can_plan(PISCO[0], network, probabilities) else [config.algorithm.name]


def outlook_of(config: Config, goal: tuple[str, float]) -> Outlook:
    """What the theory says about an experiment; ε² is the goal's bound where the goal is ‖∇f(x̄)‖²."""
    column, bound = goal
    problem, network = config.problem_and_network()
    Target.of(column, bound, problem.columns)
    return outlook(
        problem,
        network,
        rounds=config.run.rounds,
        batch_size=config.run.batch_size,
        local_steps=_local_steps(config),
        epsilon=math.sqrt(bound if column in GRADIENT else 0.05),
    )


def diagnose_config(config: Config, *, samples: int = 5_000) -> Diagnosis:
    """What will pay in an experiment, with as many gradients between exchanges as it has."""
    problem, network = config.problem_and_network()
    algorithm = (config.algorithm.with_step(1.0) if config.algorithm.is_auto else config.algorithm).build()
    steps = _local_steps(config)
    steps += uncounted(algorithm, problem.params_like, steps)
    sizes: Any = {"rounds": config.run.rounds, "batch_size": config.run.batch_size, "samples": samples}
    direction = algorithm.hyperparameters.get("direction")
    direction = direction if isinstance(direction, Optimizer) else None  # another method may call so what it likes
    return diagnose(problem, network, **sizes, local_steps=steps, direction=direction)


def _local_steps(config: Config) -> int:
    """The experiment's T_o, where its method has one."""
    return max(1, int(config.algorithm.taken_by("name").get("local_steps", 1)))


def planned_config(config: Config, setting: Setting, own_weights: str) -> Config:
    """The experiment with a setting put in place; weights with their own options stay as they are."""
    tables = config.to_dict()
    tables["run"].setdefault("eval_every", 1)  # as it was planned
    tables["algorithm"] = {"name": setting.method, "local_lr": float(f"{setting.local_lr:.4g}")}
    if setting.local_steps is not None:
        tables["algorithm"]["local_steps"] = setting.local_steps
    p = float(f"{setting.server_prob:.4g}")
    server: dict[str, Any] = {"server": "bernoulli", "server_prob": p}
    if setting.periodic:
        server = {"server": setting.published["server"], "period": round(1 / setting.server_prob)}
    elif p in (0.0, 1.0):
        server = {"server": "always" if p else "never"}
    if setting.knows_prob:
        tables["algorithm"]["server_prob"] = p
    weights = {} if setting.weights == own_weights else {"weights": setting.weights}
    if weights:  # as in the pilots: without what the experiment tells a rule of its own, such as `lazy`
        for name in config.network.taken_by("weights").keys() & registry.options(WEIGHTS[setting.weights]):
            del tables["network"][name]
    replace(tables, {"network": server | weights | _ways(config, setting)})
    tables["name"] = f"{config.name}-planned"
    tables["description"] = f"planned: {setting.describe()}"
    return Config.from_dict(tables, "the plan")


def _ways(config: Config, setting: Setting) -> dict[str, Any]:
    """How the method uses the network beyond what the experiment says (`Network.used_as`)."""
    usual = {"gossip_steps": 1, "varying": "none", "reporters": None, "gossip_before_server": False}
    own = {name for name, value in usual.items() if getattr(config.network, name) == value}
    own |= {"receivers"} & setting.published.keys() if "reporters" in own else set()
    return {name: value for name, value in setting.published.items() if name in own}


def panels(planned: Planned) -> list[Panel]:
    """What the best setting for each p costs, by kind of link, and what the theory expects of the network."""
    found, words = planned.plan, planned.plan.unit
    known = [choice for choice in found.by_probability if math.isfinite(choice.price)]
    kinds = list(known[0].parts) if known else [words]
    parts = {kind: np.array([choice.parts[kind] for choice in known]) for kind in kinds}
    labels = [f"{choice.setting.server_prob:.3g}" + " *" * (not choice.measured) for choice in known]
    probs = np.geomspace(1e-3, 1, 61)
    network = planned.config.network.build()
    made = [
        Panel(
            f"{words} of the best setting for each p,\nto {found.target}",
            "p (* predicted, not measured)",
            words,
            bars=Bars(labels, parts, (GOSSIP, SERVER, COLOURS[3])) if known else None,
            levels=[Level("the plan", found.price, COLOURS[0])] if math.isfinite(found.price) else [],
        )
    ]
    if is_plain(network) and network.push is None:
        curve = Curve("network dependency", probs, network_dependency(network.mixing_rate, probs)[None], 2)
        made.append(
            Panel(
                "what the theory expects of the network",
                "p",
                "network dependency λ_p⁻²",
                [curve],
                log_x=True,
                log_y=True,
            )
        )
    return made


def plot(planned: Planned, path: Path) -> None:
    """Draw the panels to a picture, or to an interactive page where the name ends in .html."""
    draw([panels(planned)], path, title=f"Plan for {planned.config.name.removesuffix('-planned')}")
