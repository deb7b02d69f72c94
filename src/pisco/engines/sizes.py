"""What a run will need, from sizes alone: whether it fits, and how often measuring it is worth its cost."""

from __future__ import annotations

import math

import jax

from pisco.costs import message_sizes
from pisco.engines.job import Carry, Job, Run, carry_shapes, check_kinds
from pisco.errors import InputError, check_number
from pisco.memory import check_fits, host_memory
from pisco.networks.network import Network
from pisco.parts import only
from pisco.problems.problem import Problem
from pisco.tree import num_bytes
from pisco.types import Algorithm

COUNTS_UP_TO = 2**31 - 1
"""Rounds, and messages between two looks from Python, are counted in 32 bits."""

ROW_BYTES, RUN_BYTES = 1000, 200
"""A measured round in the history, and what each run adds to it."""

KEY_BYTES = 24
"""For every gradient of a round: its random key, and what it is made from."""


def usual_eval_every(algorithm: Algorithm, problem: Problem, network: Network, batch_size: int | None = None) -> int:
    """Rounds between two measurements such that measuring looks at no more samples than training does.

    A measurement looks at every training sample that is measured and every test sample, a round at a batch of every
    agent for each gradient of the method. The quotient is rounded up to 1, 2, 5, 10, 20, 50, …

    >>> import pisco
    >>> problem = pisco.problems.logistic(pisco.data.load("a9a"), agents=10)      # 32,560 + 16,281 samples
    >>> rule = pisco.algorithms.pisco(local_lr=0.1, local_steps=1)                # 2 gradients a round
    >>> usual_eval_every(rule, problem, pisco.Network.ring(10), batch_size=256)   # 48,841 / (10 · 256 · 2) = 9.5
    10
    """
    check_kinds(algorithm=algorithm, problem=problem, network=network)
    job = Job(problem, network, (Run(algorithm, network.server, 0),), batch_size)
    gradients = message_sizes(algorithm, carry_shapes(job).state.params, problem.num_agents).gradients
    drawn = problem.num_samples if batch_size is None else problem.num_agents * batch_size
    ratio = problem.num_measured / max(1, gradients * drawn)
    power = 10 ** math.floor(math.log10(max(ratio, 1)))
    return next(step * power for step in (1, 2, 5, 10) if step * power >= ratio)


def check_sizes(job: Job, shapes: Carry, gradients: int, rounds: int, eval_every: int, chunk_rounds: int) -> None:
    """Refuse a run that cannot fit, in one sentence with the numbers, before anything is computed.

    `gradients` are those that an agent takes in a round.
    """
    check_number("rounds", rounds, high=COUNTS_UP_TO)
    agents, runs, params = job.problem.num_agents, len(job.runs), num_bytes(shapes.state.params)
    rows, stride = rounds // eval_every, min(eval_every, chunk_rounds)
    # All devices of all processes together: a bound, however the run is spread over them.
    found = [device.memory_stats() or {} for device in jax.local_devices()]
    room = jax.process_count() * (sum(stats.get("bytes_limit", 0) for stats in found) or host_memory())
    state = f"{runs} × {agents:,} agents with {params // agents:,} bytes of parameters each"
    fewer = f"measure less often, with eval_every={eval_every * math.ceil(rows / 10_000):,} say"
    check_fits(state, num_bytes(shapes) * runs + params, "use fewer agents or seeds, or a smaller model", room)
    steps = f"a round of {gradients:,} gradients"
    check_fits(steps, KEY_BYTES * gradients * runs, "take fewer local steps", room)
    check_fits(f"a history of {rows:,} measured rounds", rows * (ROW_BYTES + RUN_BYTES * runs), fewer)
    chunk, sent = chunk_rounds // stride, num_bytes(only(shapes.state.params))
    noted = chunk * (sent / agents + params - sent)  # the mean of what is sent, and what agents have of their own
    check_fits(f"a chunk of {chunk:,} measured rounds", noted, "make chunk_rounds smaller", room)
    messages = stride * max(2 * job.network.graph.num_edges * job.network.gossip_steps, agents)
    if messages > COUNTS_UP_TO:
        raise InputError(
            f"{stride:,} rounds in one go send up to {messages:,} messages, more than are counted; make chunk_rounds "
            f"at most {max(1, stride * COUNTS_UP_TO // messages):,}"
        )
