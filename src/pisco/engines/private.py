"""Runs with private gradients: the noise that an ε asks for, the rounds that it allows, and what was spent by when."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np

from pisco.costs import MessageSizes
from pisco.engines.job import Job, attendance
from pisco.errors import InputError
from pisco.privacy.accounting import curve, most, noise_for, spent


class _Alike(NamedTuple):
    """Agents that spend the same for the same gradients, or less: `samples` are those of the smallest."""

    noise: float
    delta: float
    samples: int
    agents: np.ndarray


def prepared(job: Job, sizes: MessageSizes, rounds: int) -> tuple[Job, int]:
    """The job with its noise known, and how many of its rounds may be run; as they are where nothing is private."""
    problem, privacy = job.problem, job.problem.privacy
    if privacy is None:
        return job, rounds
    n, smallest = problem.num_agents, np.asarray(problem.sizes)
    delta, epsilon = privacy.of_agents("delta", n), privacy.of_agents("epsilon", n)
    noisy = problem.protection is None or bool((np.asarray(problem.protection.noise) > 0).any())
    if noisy and sizes.shares_key:
        name = job.runs[0].algorithm.name
        raise InputError(f"{name} takes two gradients of one batch, which cannot be accounted for; take another method")
    assert delta is not None
    if noisy and (delta >= 1 / smallest).any():
        agent = int(np.argmax(delta * smallest))
        raise InputError(
            f"delta is {delta[agent]:g}, and agent {agent} has {smallest[agent]} samples; give one well below "
            f"{1 / smallest[agent]:g}"
        )
    start, work = sum(sizes.start_work), sizes.gradients
    if problem.protection is None:  # one noise for all that ask for the same, enough for the smallest of them
        assert epsilon is not None
        noise = np.zeros(n)
        for wish in {(float(e), float(d)) for e, d in zip(epsilon, delta, strict=True)}:
            mine = (epsilon == wish[0]) & (delta == wish[1])
            few = int(smallest[mine].min())
            noise[mine] = noise_for(wish[0], few, job.batch_size, start + work * rounds, wish[1])
        return replace(job, problem=problem.private(privacy, noise=noise)), rounds
    if epsilon is not None:
        for each in _alike(job, apart=True):
            budget = float(epsilon[each.agents].min())

            def fits(k: int, each: _Alike = each, budget: float = budget) -> bool:
                return spent(each.noise, each.samples, job.batch_size, start + work * k, each.delta) <= budget

            allowed = most(fits, rounds)
            if not allowed:
                raise InputError(
                    f"the first round spends more than epsilon = {budget:g}; give more noise, or a larger epsilon"
                )
            if allowed < rounds:
                agent, rounds = int(each.agents[np.argmin(epsilon[each.agents])]), allowed
                warnings.warn(
                    f"epsilon = {budget:g} of agent {agent} is spent after round {rounds}, so this is the last one",
                    stacklevel=4,
                )
    return job, rounds


def epsilons(job: Job, sizes: MessageSizes, rounds: list[int]) -> dict[str, np.ndarray]:
    """The column `epsilon`: what the worst agent has spent after these rounds, runs first."""
    protection = job.problem.protection
    if protection is None or not (np.asarray(protection.noise) > 0).any():
        return {}
    start, work, at = sum(sizes.start_work), sizes.gradients, np.asarray(rounds, np.int64)
    presence, last = job.network.presence, int(at.max(initial=1))
    there = None
    if presence is not None:  # of every run, until every row, of every agent
        seen = [attendance(job.network, rounds=max(last, 1), seed=run.seed) for run in job.runs]
        there = np.stack([np.concatenate([np.zeros_like(s[:1], int), np.cumsum(s, axis=0)])[at] for s in seen])
    worst = np.zeros((len(job.runs), len(at)))
    for each in _alike(job, apart=there is not None):
        done = np.broadcast_to(at, worst.shape) if there is None else there[..., each.agents].max(axis=-1)
        found = curve(each.noise, each.samples, job.batch_size, start + work * done, each.delta)
        worst = np.maximum(worst, found)
    return {"epsilon": worst}


def facts(job: Job) -> dict[str, Any]:
    """What a result keeps of it: the settings, and the noise that was used."""
    problem = job.problem
    if problem.privacy is None or problem.protection is None:
        return {}
    noise = [float(each) for each in np.asarray(problem.protection.noise)]
    return {"privacy": problem.privacy.facts() | {"noise": noise[0] if len(set(noise)) == 1 else noise}}


def _alike(job: Job, *, apart: bool) -> Iterator[_Alike]:
    """The kinds of agents; by size too where `apart`, as those who differ in size then differ in what they may do."""
    problem = job.problem
    assert problem.privacy is not None and problem.protection is not None
    noise, delta = np.asarray(problem.protection.noise, float), problem.privacy.of_agents("delta", problem.num_agents)
    samples = np.asarray(problem.sizes)
    told = samples if apart and job.batch_size is not None else np.zeros_like(samples)
    keys = np.stack([noise, delta, told], axis=1)  # type: ignore[list-item]
    for key in np.unique(keys, axis=0):
        mine = np.flatnonzero((keys == key).all(axis=1))
        yield _Alike(float(key[0]), float(key[1]), int(samples[mine].min()), mine)
