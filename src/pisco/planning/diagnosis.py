"""What will pay on a problem and a network: tracking, local steps, more server rounds, compression.

Noise, how agents differ, curvature and mixing are measured. The errors that theory expects of each choice are compared,
each at its own best step size. Nothing is trained.
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax.tree_util import tree_map_with_path

from pisco.algorithms.optimizers import Optimizer
from pisco.engines.job import check_kinds
from pisco.errors import InputError, check_batch_size, check_counts
from pisco.networks.network import Network
from pisco.networks.spectral import expected_mixing_rate
from pisco.parts import LOCAL, LOCAL_BUFFERS, Parted, name_of, names_of, whole
from pisco.planning.settings import PROBABILITIES
from pisco.problems.problem import Problem
from pisco.theory.estimates import agent_curvatures, coordinates, unlike_curvature
from pisco.theory.expected import Facts, least_error
from pisco.theory.spread import Spread, adam_scale, descent, gradient_spread
from pisco.trouble import heeded

STEPS = (1, 2, 4, 8, 16, 32)
"""Local steps that are compared."""

CONSENSUS = 0.3
"""`consensus_lr` of compressed methods: mixing slows down by that, and by what messages leave out."""

CLEARLY, HARDLY = 0.8, 1.25
"""An error below this share of another is better; up to this many times as large it is about the same."""

PLAIN = "local-dsgd"
METHODS = {PLAIN: "none", "pisco": "last gradient", "pisco-vr": "averaged"}
"""What is compared, and what the correction of each rests on."""


class Answer(NamedTuple):
    """An answer to one question."""

    question: str
    pays: bool
    ratio: float
    """The error with it over the error without, as theory expects them."""
    words: str


class Diagnosis(NamedTuple):
    """What was measured, and what follows."""

    facts: Facts
    mixing_rate: float
    """λ_w."""
    expected_mixing_rate: float
    """λ_p, at the network's own p."""
    server_prob: float
    local_steps: int
    """T: gradient steps between two exchanges."""
    method: str
    """The method with the least error among those that track and gossip SGD with local steps."""
    verdicts: tuple[Answer, ...]
    through: str = ""
    """The optimizer in whose scale all was measured; none for plain steps."""
    kept: str = ""
    """Leaves of an agent's own: noise and differences are those of the others, which are averaged and tracked."""

    @property
    def pays(self) -> dict[str, bool]:
        """The answers alone, by question."""
        return {verdict.question: verdict.pays for verdict in self.verdicts}


def diagnose(
    problem: Problem,
    network: Network,
    *,
    rounds: int,
    batch_size: int | None = None,
    local_steps: int = 2,
    params: Any = None,
    samples: int = 5_000,
    seed: int = 0,
    direction: Any = None,
) -> Diagnosis:
    """Measure noise, how agents differ, curvature and mixing, and say what will pay.

    Args:
      problem: loss and data.
      network: graph, weights and server; its p counts.
      rounds: K of the run to come.
      batch_size: samples per gradient, None for all.
      local_steps: T, gradient steps between two exchanges (T_o + 1 for PISCO).
      params: where to measure, the model of one agent, as in a run's mean; None descends from x⁰ first, which takes
        some hundred gradients of f. Where agents have leaves of their own, the `params` of a run as they are.
      samples: on how many samples of all agents together to look at the curvature, and to descend.
      seed: of x⁰ and the batches.
      direction: the optimizer of the local steps. Through one that normalises, such as "adam", all is measured in the
        scale in which plain steps are Adam's (`theory.adam_scale`).

    >>> import numpy as np, pisco
    >>> alike = pisco.problems.quadratic(np.stack([np.eye(2)] * 4), np.ones((4, 2)))
    >>> diagnose(alike, pisco.Network.ring(4), rounds=100).pays["tracking"]
    False
    >>> apart = pisco.problems.quadratic(np.stack([c * np.eye(2) for c in (1, 2, 3, 4)]), np.arange(8.0).reshape(4, 2))
    >>> diagnose(apart, pisco.Network.ring(4), rounds=1000).pays["tracking"]
    True
    """
    check_kinds(problem=problem, network=network)
    check_counts(rounds=rounds, local_steps=local_steps)
    check_batch_size(batch_size)
    p = network.server.probability
    if p is None:
        raise InputError(
            f"server={network.server!r} has no single probability; diagnose with bernoulli(p), as in server_prob = 0.1"
        )
    optimizer = Optimizer.read(direction)
    through = optimizer.text if optimizer.normalises else ""
    # A tracker of the newest gradient carries too much noise for an optimizer that normalises.
    methods = {method: rests for method, rests in METHODS.items() if not (through and rests == "last gradient")}
    start = 0.0
    if params is None:
        params, gap = descent(problem, samples=samples, seed=seed)
        start = agent_curvatures(problem, samples=samples, seed=seed).max()  # steps have to be stable there too
    else:
        params = _everybodys(problem, params) if problem.personal else params
        flat, where = coordinates(problem, params)
        value = heeded(jax.jit(lambda problem, where, flat: where.objective(problem, flat)))
        gap = float(value(problem, where, flat))  # losses end at 0 or above
    sizes: Any = {"batch_size": batch_size, "samples": samples, "seed": seed}
    scale = adam_scale(problem, params, **sizes) if through else None
    spread = gradient_spread(problem, params, **sizes, scale=scale)
    curvature = float(agent_curvatures(problem, params=params, samples=samples, seed=seed, scale=scale).max())
    curvature = curvature if through else max(curvature, float(start))
    # Adam's steps are far beyond what the steepest directions allow, and these bend with them: no limit through it.
    unlike = 0.0 if through else unlike_curvature(problem, params=params, samples=samples, seed=seed)
    if not all(map(math.isfinite, (*spread, curvature, gap, unlike))):
        raise InputError("the loss or a gradient is not finite where it was measured; give params of a sound model")
    facts = Facts(problem.num_agents, rounds, curvature, gap, spread, unlike)
    rate = network.mixing_rate
    if expected_mixing_rate(rate, p) <= 1e-9:
        raise InputError(network.problem_with_reach or "agents never agree on this network; use other weights or p > 0")

    def error(method: str, steps: int = local_steps, p: float = p) -> float:
        mixing = expected_mixing_rate(rate, p)
        return least_error(facts, tracking=METHODS[method], steps=steps, mixing_rate=mixing)[0]

    errors = {method: error(method) for method in methods}
    method = min(errors, key=errors.__getitem__)
    # Compressed methods take small steps, so both sides are compared there: at larger ones these terms expect too much
    # harm of the slow mixing of what is left out (docs/planning.md).
    small: Any = {"steps": local_steps, "largest": 1 / (max(curvature, 1e-30) * local_steps)}

    def cautious(method: str, mixing: float) -> float:
        return least_error(facts, tracking=METHODS[method], mixing_rate=mixing, **small)[0]

    mixing = expected_mixing_rate(rate, p)
    whole_vectors = cautious(method, mixing)
    compressed = cautious(method, CONSENSUS * spread.top_tenth * mixing)
    compressed += (1 - spread.top_tenth) * (cautious(PLAIN, mixing) - whole_vectors)  # what is left out is not tracked
    verdicts = (
        _tracking(facts, errors, through),
        _local_steps({steps: error(method, steps) for steps in STEPS}),
        _server({each: error(method, p=each) for each in sorted({p, *PROBABILITIES}) if each >= p}, p),
        _compression(compressed / max(whole_vectors, 1e-300), spread),
    )
    kept = "" if problem.kinds is None else ", ".join(problem.kinds.of(LOCAL) + problem.kinds.of(LOCAL_BUFFERS))
    return Diagnosis(facts, rate, expected_mixing_rate(rate, p), p, local_steps, method, verdicts, through, kept)


def _everybodys(problem: Problem, params: Any) -> Parted:
    """A run's parameters as they are measured: every agent's own leaves, and the mean of the others."""
    params = whole(params)
    held = dict(zip(names_of(params), jax.tree.leaves(params), strict=True))
    like = problem.params_like

    def leaf(path: Any, one: Any) -> Any:
        name, shape = name_of(path[1:]), (problem.num_agents, *one.shape)
        found = held.get(name)
        if found is None or jnp.shape(found) != shape:
            given = "is missing" if found is None else f"has shape {jnp.shape(found)}"
            raise InputError(
                f"{name} of params {given}, expected {shape}; where agents have leaves of their own give the params of "
                "a run, of all agents"
            )
        return jnp.asarray(found) if path[0].name in (LOCAL, LOCAL_BUFFERS) else jnp.mean(found, axis=0)

    return tree_map_with_path(leaf, like)


def _tracking(facts: Facts, errors: dict[str, float], through: str) -> Answer:
    best = min(errors.keys() - {PLAIN}, key=lambda method: (errors[method], method))
    ratio = errors[best] / max(errors[PLAIN], 1e-300)
    spread = facts.spread
    why = (
        f"agents' gradients differ by ζ² = {spread.heterogeneity:.2g}, an agent's batches by σ²/b = {spread.noise:.2g}"
    )
    if ratio < CLEARLY:
        best += f" through {through}, with steps that decay" if through else ""
        words = f"yes, take {best}: {why}, and the agents' difference would stay; expect {ratio:.2g} of the error"
    elif ratio < HARDLY:
        words = f"it hardly matters: {why}, and neither moves the mean gradient much; {PLAIN} sends half as much"
    else:
        words = f"no: {why}, and trackers carry noise; expect {ratio:.2g} times the error of {PLAIN}"
    return Answer("tracking", ratio < CLEARLY, ratio, words)


def _local_steps(errors: dict[int, float]) -> Answer:
    least = min(errors.values())
    best = min(steps for steps, error in errors.items() if error <= least * 1.1)
    ratio = errors[best] / max(errors[1], 1e-300)
    if best > 1 and ratio < CLEARLY:
        words = f"yes, up to about {best} gradients between exchanges: expect {ratio:.2g} of the error at equal rounds"
    else:
        words = "no: at equal rounds more gradients between exchanges do not lower the error, since steps must shrink"
    return Answer("local steps", best > 1 and ratio < CLEARLY, ratio, words)


def _server(errors: dict[float, float], now: float) -> Answer:
    if now >= 1:
        return Answer("more server rounds", False, 1.0, "no: the server is reached in every round")
    ratio = errors[1.0] / max(errors[now], 1e-300)
    if ratio >= CLEARLY:
        words = f"no: with the server in every round the error would be {ratio:.2g} of that at p = {now:g}"
        return Answer("more server rounds", False, ratio, words)
    enough = min(p for p, error in errors.items() if error <= HARDLY * errors[1.0])
    ratio = errors[enough] / errors[now]
    words = (
        f"yes, p = {enough:g} instead of {now:g}: expect {ratio:.2g} of the error; beyond that little is left to gain"
    )
    return Answer("more server rounds", True, ratio, words)


def _compression(ratio: float, spread: Spread) -> Answer:
    held = f"the largest tenth of the entries holds {spread.top_tenth:.0%} of a gradient's square"
    if ratio < HARDLY:
        words = f"yes, top-k of a tenth: {held}; expect {ratio:.2g} times the error at equal rounds"
    else:
        words = (
            f"not top-k of a tenth: {held}, and mixing slows down; expect {ratio:.2g} times the error at equal rounds"
        )
    return Answer("compression", ratio < HARDLY, ratio, words)
