"""The theory made visible: path graphs, contraction towards consensus, speed-up by agents and local steps, the rate."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from pisco import algorithms
from pisco.engines.run import sweep
from pisco.experiments.paper.figure import Figure, Shown
from pisco.experiments.paper.network_dependency import slope
from pisco.experiments.paper.speed_up import MOVE, USUAL, mean_gradient, noise_floor
from pisco.experiments.paper.study import SEEDS
from pisco.experiments.paper.verdict import Verdict, outcome
from pisco.experiments.paper.work import QUIET, Work, uncut
from pisco.experiments.tune import TUNING_SEEDS
from pisco.networks import graphs
from pisco.networks.network import Network
from pisco.networks.schedules import bernoulli
from pisco.networks.spectral import expected_mixing_rate
from pisco.problems.problem import Problem
from pisco.problems.quadratic import quadratic
from pisco.report.panels import Curve, Panel
from pisco.statistics import Sample

STEPS = tuple(2.0**-k for k in range(1, 14))
ACCURACY = 1e-6
"""‖∇f(x̄)‖² against its start. A running mean, as in the theorems, takes 1/ACCURACY rounds on any network."""

NETWORKS = {
    "ring of 10, FDLA": lambda: Network.ring(10, weights="fdla"),
    "path of 16, Metropolis": lambda: Network.path(16),
    "disconnected, Metropolis": lambda: Network(graphs.erdos_renyi(10, 0.1, 0)),
}


class Measured(NamedTuple):
    """Rounds on paths: (seeds,) per (n, p = 1/n?); contraction: (seeds, p) per network; noise floors: (seeds,)."""

    paths: dict[tuple[int, bool], tuple[float, np.ndarray]]
    contraction: dict[str, tuple[float, np.ndarray]]
    probabilities: np.ndarray
    by_agents: dict[int, np.ndarray]
    by_steps: dict[int, np.ndarray]
    rates: dict[str, dict[int, np.ndarray]]
    """The mean of ‖∇f(x̄)‖² over K rounds, (seeds,) per value of n, T_o + 1 and K."""


def _slope_problem(n: int) -> Problem:
    """Curvatures and minimizers that change along the path, so that the far ends need each other's values."""
    along = np.linspace(-1, 1, n)
    curvature = np.stack([1 + 0.5 * along, 1 - 0.5 * along], 1)
    return quadratic(curvature[:, :, None] * np.eye(2), np.stack([1 + along, along**2], 1), init=np.full(2, 3.0))


def _settled(values: np.ndarray) -> np.ndarray:
    """The round from which every seed stays within the accuracy; NaN where it does not.

    >>> _settled(np.array([[1.0, 1e-7, 0.1, 1e-8, 0.0], [1.0, 1.0, 1.0, 1.0, 1.0]]))
    array([ 3., nan])
    """
    within = values <= ACCURACY * values[:, :1]
    above = within.shape[1] - np.argmax(~within[:, ::-1], axis=1)
    return np.where(within[:, -1], above, np.nan)


def _paths(
    n: int, helped: bool, rounds: int, seeds: tuple[int, ...], tuning_seeds: tuple[int, ...], progress: Any
) -> tuple[float, np.ndarray]:
    """The step size with the fewest mean rounds on the path, over tuning seeds, and its rounds for every seed."""

    def settled(steps: Sequence[float], seeds: tuple[int, ...]) -> list[np.ndarray]:
        results = sweep(
            [(algorithms.pisco(local_lr=lr, local_steps=1), bernoulli(1 / n if helped else 0.0)) for lr in steps],
            _slope_problem(n),
            Network.path(n),
            rounds=rounds,
            seeds=seeds if helped else seeds[:1],  # full gradients: without the coin nothing is random
            eval_every=1,
            chunk_rounds=1000,
            progress=progress,
        )
        return [_settled(result.column("grad_norm_sq")) for result in uncut(results)]

    tried = [np.inf if np.isnan(taken).any() else float(np.mean(taken)) for taken in settled(STEPS, tuning_seeds)]
    best = STEPS[int(np.argmin(tried))]
    return best, settled([best], seeds)[0]


def _contraction(network: Network, probabilities: np.ndarray, draws: int, seeds: int) -> np.ndarray:
    """E‖W^k x − x̄‖²/‖x − x̄‖² for the slowest x, over drawn rounds."""
    n = network.num_agents
    matrix = network.weights.toarray()
    _, _, right = np.linalg.svd(matrix - 1 / n)
    slowest = right[0]
    after = {True: 0.0, False: float(np.sum((matrix @ slowest - np.mean(slowest)) ** 2))}
    out = np.empty((seeds, len(probabilities)))
    for seed in range(seeds):
        keys = jax.random.split(jax.random.key(seed), draws)
        for index, p in enumerate(probabilities):
            reached = jax.vmap(bernoulli(p).participants, (0, None))(keys, jnp.int32(0))
            out[seed, index] = np.mean(np.where(np.asarray(reached), after[True], after[False]))
    return out


def compute(quick: bool = False, work: Work = QUIET) -> Measured:
    """Everything in float64; quick takes shorter paths and fewer rounds."""
    sizes, seeds = ((8, 12, 16), (0, 1)) if quick else ((8, 12, 16, 24, 32, 48, 64), SEEDS)
    length, floor_rounds = (1500, 2000) if quick else (20000, 6000)
    paths, by_agents, by_steps, contraction, rates = {}, {}, {}, {}, {}
    probabilities = np.array([0.0, 0.05, 0.1, 0.2, 0.4, 0.7, 1.0])
    with jax.enable_x64(True):
        for n in sizes:
            for helped in (False, True):
                with work.stage(f"path of {n}, p = {f'1/{n}' if helped else 0}", length) as progress:
                    paths[n, helped] = _paths(n, helped, length, seeds, TUNING_SEEDS[: len(seeds)], progress)
        for name, make in NETWORKS.items():
            network = make()
            contraction[name] = network.mixing_rate, _contraction(network, probabilities, 4000, len(SEEDS))
        for n in (4, 16) if quick else (4, 8, 16, 32):
            with work.stage(f"noise with {n} agents", floor_rounds) as progress:
                by_agents[n] = noise_floor(n, 1, floor_rounds, seeds, progress)
        for steps in (1, 7) if quick else (1, 3, 7, 15):
            with work.stage(f"noise with T_o = {steps}", floor_rounds) as progress:
                by_steps[steps + 1] = noise_floor(8, steps, floor_rounds, seeds, progress)
        varied = {"n": (4, 8, 16, 32), "T_o + 1": (2, 4, 8, 16), "K": (250, 1000, 4000, 16000)}
        for name, values in varied.items():
            for value in values[: 3 if quick else 4]:
                with work.stage(f"rate with {name} = {value}", USUAL["K"] if name != "K" else value) as progress:
                    rates.setdefault(name, {})[value] = mean_gradient(seeds, progress, **{name: value})
    return Measured(paths, contraction, probabilities, by_agents, by_steps, rates)


def _record(part: str, x: Any, values: np.ndarray, *, local_lr: str = "", predicted: str = "") -> dict[str, Any]:
    """A row of the CSV."""
    record = {"part": part, "x": x, "local_lr": local_lr, "median": f"{np.median(values):.5g}"}
    record |= {"min": f"{np.min(values):.5g}", "max": f"{np.max(values):.5g}", "predicted": predicted}
    return record


def present(found: Measured) -> Shown:
    """Four panels: rounds on paths, contraction, noise, rate."""
    verdicts, lines, table = [], [], []
    sizes = np.array(sorted({n for n, _ in found.paths}))
    exponents, rounds = {}, {}
    for index, helped in enumerate((False, True)):
        label = "path, p = 1/n" if helped else "path, p = 0"
        middle = rounds[helped] = np.array([np.median(found.paths[n, helped][1]) for n in sizes])
        exponents[helped] = slope(sizes, middle)
        lines.append(Curve(label, sizes, middle[None], index, points=True))
        for n in sizes:
            lr, taken = found.paths[n, helped]
            table.append(_record(label, n, taken, local_lr=f"{lr:g}"))
    rates = {n: Network.path(int(n)).mixing_rate for n in sizes}
    against = {
        helped: slope([1 / expected_mixing_rate(rates[n], helped / n) for n in sizes], rounds[helped])
        for helped in (False, True)
    }
    last = Sample.of(found.paths[int(sizes[-1]), True][1])
    ratio = last.over(Sample.of(np.full(len(last.values), rounds[False][-1])))
    verdicts.append(
        Verdict(
            "path graph: the network dependency grows like n⁴ with p = 0 and like n² with p = 1/n",
            f"fitted exponents of the rounds to {ACCURACY:g} of ‖∇f(x⁰)‖², η_l tuned, n = {sizes[0]} … {sizes[-1]}",
            f"{exponents[False]:.2f} and {exponents[True]:.2f}; at n = {sizes[-1]} "
            f"{rounds[False][-1]:.4g} and {last.median} rounds; "
            f"exponents against 1/λ_p {against[False]:.2f} and {against[True]:.2f}",
            outcome(
                abs(exponents[False] - 4) < 0.5 and abs(exponents[True] - 2) < 0.5,
                exponents[False] > 1.3 * exponents[True] and rounds[False][-1] > rounds[True][-1],
            ),
            "the paper gives upper bounds: with tuned steps the rounds grow about like 1/λ_p, not its square",
            seeds=len(last.values),
        )
    )
    verdicts.append(
        Verdict(
            "path graph: p = 1/n needs fewer rounds than p = 0",
            f"median rounds of p = 1/n over those of p = 0 at n = {sizes[-1]}",
            str(ratio),
            outcome(ratio.high < 1),
            seeds=len(last.values),
        )
    )
    contracted, off = [], []
    for index, (name, (rate, measured)) in enumerate(found.contraction.items()):
        predicted = (1 - rate) * (1 - found.probabilities)
        off.append(np.abs(measured.mean(axis=0) - predicted).max())
        contracted.append(Curve(name, predicted, measured, 3 + index, points=True))
        for p, value, each in zip(found.probabilities, predicted, measured.T, strict=True):
            table.append(_record(f"contraction, {name}", f"{p:g}", each, predicted=f"{value:.5g}"))
    contracted.append(Curve("as predicted", np.array([0.0, 1.0]), np.array([[0.0, 1.0]]), 6))
    verdicts.append(
        Verdict(
            "a round contracts the consensus error by 1 − λ_p in the mean",
            "greatest distance of the measured factor from 1 − λ_p: 3 networks, 7 p, slowest mode, 20 × 4000 rounds",
            f"{max(off):.2g}",
            outcome(max(off) < 0.02),
        )
    )
    noise = []
    for index, (words, floors) in enumerate((("agents n", found.by_agents), ("T_o + 1", found.by_steps))):
        noise.append(_curve(f"noise against {words}", floors, index))
        table += [_record(f"noise, {words}", n, values) for n, values in floors.items()]
        each = Sample.of(_exponents(floors)).median
        verdicts.append(
            Verdict(
                f"linear speed-up in {words} where the noise dominates",
                f"fitted exponent of the noise in ‖∇f(x̄)‖² at η_l(T_o + 1) = {MOVE:g}; batches of 1 (−1 predicted)",
                str(each),
                outcome(each.low > -1.2 and each.high < -0.8, each.high < -0.5),
                seeds=len(next(iter(floors.values()))),
            )
        )
    rate, fits = [], {}
    for index, (words, means) in enumerate(found.rates.items()):
        rate.append(_curve(f"against {words}", means, index))
        table += [_record(f"rate, {words}", x, values) for x, values in means.items()]
        fits[words] = Sample.of(_exponents(means)).median
    off = max(abs(end + 0.5) for each in fits.values() for end in (each.low, each.high))
    verdicts.append(
        Verdict(
            "the mean of ‖∇f(x̄)‖² falls like 1/√(nT_oK) with mini-batches",
            "fitted exponents over n, T_o + 1 and K at Corollary 1's η_l with η_c = 1; batches of 1 (−0.5 predicted)",
            ", ".join(f"{words}: {each}" for words, each in fits.items()),
            outcome(off < 0.1, off < 0.25),
            "the corollary promises it from 21 million rounds on; its conditions are enough, not needed",
            seeds=len(next(iter(found.by_agents.values()))),
        )
    )
    panels = [
        Panel("rounds on path graphs", "agents n", "rounds", lines, log_x=True, log_y=True),
        Panel("contraction of the consensus error", "predicted: 1 − λ_p", "measured", contracted),
        Panel("noise left in ‖∇f(x̄)‖²", "n, or T_o + 1", "‖∇f(x̄)‖²", noise, log_x=True, log_y=True),
        Panel("mean of ‖∇f(x̄)‖² over K rounds", "n, T_o + 1, or K", "mean", rate, log_x=True, log_y=True),
    ]
    settings = {
        "precision": "float64",
        "step sizes tried on paths": list(STEPS),
        "weights": "Metropolis unless named",
        "T_o on paths": 1,
        "speed-up": {"η_l(T_o + 1)": MOVE, "batch_size": 1, "network": "ring, Metropolis, p = 0.3"},
        "rate": USUAL | {"η_l(T_o + 1)": "√(n(T_o + 1)/(2K))", "batch_size": 1},
    }
    return Shown([panels], table, verdicts, settings)


def _curve(label: str, found: dict[int, np.ndarray], color: int) -> Curve:
    return Curve(label, np.array(list(found)), np.array(list(found.values())).T, color, points=True)


def _exponents(found: dict[int, np.ndarray]) -> np.ndarray:
    """The fitted exponent for every seed."""
    return np.array([slope(list(found), seed) for seed in np.array(list(found.values())).T])


THEORY = Figure("theory", "path graphs, contraction towards consensus, linear speed-up, the rate", compute, present)
