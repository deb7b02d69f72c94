"""What the attacks are given of a recorded run: the first gradient of an agent, and the model at the end."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from pisco.costs import message_sizes
from pisco.engines.feeder import drawn_keys
from pisco.errors import InputError, check_number
from pisco.experiments.folders import CONFIG_FILE
from pisco.experiments.loading import load
from pisco.privacy.gradients import clipped
from pisco.problems.gradient import agent_gradient
from pisco.problems.problem import Problem
from pisco.problems.sampling import batch_indices
from pisco.results import Result
from pisco.seeds import seed_key, streams
from pisco.tree import stack_agents
from pisco.types import Params, StartMix


class Observed(NamedTuple):
    """An agent's first gradient, taken at the start that everybody knows, and what it was made of."""

    problem: Problem
    start: Params
    gradient: Params
    rows: np.ndarray
    """The samples of its batch, in the numbering of all agents' samples."""
    own: np.ndarray
    """All samples of the agent."""
    end: Params
    """The agents' mean at the end of the run."""
    agent: int
    again: Callable[[int], tuple[Params, np.ndarray]]
    """Another draw of batch and noise at the same place: its gradient and its rows."""

    def samples(self, rows: np.ndarray) -> Any:
        """Samples by their numbers."""
        return jax.tree.map(lambda leaf: leaf[rows], self.problem.data)

    @property
    def clip(self) -> float | None:
        """The largest norm of a sample's gradient; None where nothing is clipped."""
        protection = self.problem.protection
        return None if protection is None else float(protection.clip[self.agent])


def sample_gradient(problem: Problem, params: Params, sample: Any, clip: float | None) -> Params:
    """The gradient of one sample, clipped as the agent does it, which is no secret."""
    found = jax.grad(problem.batch_loss)(params, jax.tree.map(lambda leaf: leaf[None], sample))
    if clip is None or problem.privacy is None:
        return found
    return clipped(found, jnp.asarray(clip), problem.privacy.smooth)


def observe(folder: Path, *, agent: int = 0, batch_size: int | None = None) -> Observed:
    """Take the first gradient of an agent again, from the folder of a run; on batches of another size, if one is given.

    Somebody who hears its messages has it: x⁰ is known, and without local steps the first one is x⁰ − η_l·g.
    """
    if not (folder / CONFIG_FILE).is_file():
        raise InputError(f"{folder} holds no run: {CONFIG_FILE} is missing; `pisco run … --out` makes one")
    config, result = load(folder / CONFIG_FILE), Result.load(folder)
    rule, problem, network = config.build()
    check_number("agent", agent, low=0, high=problem.num_agents - 1, integer=True)
    if not (isinstance(problem.data, dict) and {"features", "labels"} <= problem.data.keys()):
        raise InputError(f"{problem.name} has no features and labels to find; attack a run on labelled samples")
    if problem.privacy is not None:
        problem = problem.private(problem.privacy, noise=np.asarray(result.settings["privacy"]["noise"], float))
    size = config.run.batch_size if batch_size is None else batch_size
    if size is not None:
        check_number("batch size", size, low=1, high=int(problem.sizes[agent]), integer=True)
    keys = streams(seed_key(result.seeds[0]))
    start = problem.init(keys.start)
    key = _first_key(rule, stack_agents(start, problem.num_agents), keys, network.num_agents)
    first = int(problem.offsets[agent])
    own, gradient_of = first + np.arange(int(problem.sizes[agent])), jax.jit(agent_gradient(problem, size))

    def drawn(key: jax.Array) -> tuple[Params, np.ndarray]:
        rows = own if size is None else first + np.asarray(batch_indices(key, agent, problem.sizes[agent], size))
        return gradient_of(start, key, agent), rows

    gradient, rows = drawn(key)
    params = result.params if not result.stacked else jax.tree.map(lambda leaf: leaf[0], result.params)
    leaves = [np.asarray(leaf).mean(axis=0) for leaf in jax.tree.leaves(params)]
    end = jax.tree.unflatten(jax.tree.structure(start), [jnp.asarray(leaf) for leaf in leaves])
    return Observed(
        problem, start, gradient, rows, own, end, agent, lambda trial: drawn(jax.random.fold_in(key, trial))
    )


def _first_key(rule: Any, params: Params, keys: Any, num_agents: int) -> jax.Array:
    """The key of the first gradient: at the start, or in the first round."""
    if sum(message_sizes(rule, params, num_agents).start_work):
        return keys.batch_key(-1)
    silent = StartMix(lambda tree: tree, lambda tree: tree)
    state = jax.eval_shape(lambda p: rule.init(p, keys.start, lambda q, k: q, silent), params)
    words = drawn_keys(rule, state, num_agents)(keys.batch_key(0))
    return jax.random.wrap_key_data(words[0], impl="threefry2x32")
