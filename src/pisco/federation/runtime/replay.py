"""A federation again, on one machine, from its log: the same rounds among the same members.

Whoever has everybody's data can check a run. `replay` takes every agent through the rounds that it was called to, with
the programs and the sums of the federation itself. So the parameters are the same to the bit on one backend. `scan`
runs the same presence in the engine that simulates, which adds up in another order.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import jax
import numpy as np

from pisco.costs import message_sizes
from pisco.engines.run import run
from pisco.errors import InputError
from pisco.federation.plan import Federation
from pisco.federation.rolls import Roll, counted, plan_mark
from pisco.federation.roster import Epoch
from pisco.federation.runtime.cut import Steps
from pisco.federation.runtime.guarding import guarded_gossip, guarded_mean, moves
from pisco.federation.runtime.ledger import FILE
from pisco.federation.runtime.programs import START_SERVER, Mixing, Programs, sent_of
from pisco.federation.runtime.rolled import crossings, rolled_hops, rolled_told
from pisco.federation.runtime.routes import GossipHop, Hop, Routes, ServerHop, gossip, pushing
from pisco.federation.runtime.sums import SUMS
from pisco.federation.runtime.updates import Compressing, compress
from pisco.files import read_json
from pisco.networks.guards import Guard
from pisco.networks.presence import Masks
from pisco.parts import whole
from pisco.problems.problem import Problem
from pisco.results import Result
from pisco.seeds import seed_key, streams

Mean = Callable[[Mapping[int, Sequence[np.ndarray]], ServerHop], list[np.ndarray]]
AfterRound = Callable[[int, dict[str, Any]], None]


def replay(
    plan: Federation,
    problems: Mapping[str, Problem],
    rolls: Sequence[Roll],
    watch: AfterRound | None = None,
    mean_samples: float | None = None,
) -> dict[str, Any]:
    """The state of every agent after the rounds that count.

    Args:
      plan: of the federation.
      problems: every agent's own data and loss, as it gave them to its `pisco agent`; of who never took part, none.
      rolls: the log (`pisco.federation.rolls.read`), or `everybody(plan)`.
      watch: called after every round with its number and the states so far.
      mean_samples: of the founders who told theirs, where agents count by samples; None: of all `problems`.
    """
    took_part = counted(rolls)
    missing = [name for name in plan.names if name not in problems and _needed(plan, name, took_part)]
    if missing:
        raise InputError(f"the data of {', '.join(missing)} is missing; a replay needs that of all who took part")
    again = _Again(plan, problems, mean_samples)
    again.start()
    for roll in took_part:
        again.round(roll)
        if watch:
            watch(roll.round, dict(again.states))
    return again.states


def everybody(plan: Federation) -> list[Roll]:
    """The rolls of a plan with presence = "all", as far as it tells who took part in every round."""
    gone = [change.name for change in plan.urgent if change.action == "remove"]
    if gone:
        raise InputError(
            f"{gone[0]} was removed when it was gone, and no log has its last round; such a run cannot be repeated"
        )
    rolls = [
        Roll(k, 0, plan_mark(plan, k), tuple(sorted(member.index for member in plan.epoch_at(k).members)))
        for k in range(plan.rounds)
    ]
    return [*rolls, Roll(plan.rounds, 0, plan_mark(plan, plan.rounds), ())]


def _needed(plan: Federation, name: str, rolls: Sequence[Roll]) -> bool:
    """Whether an agent took part in a round, or in an exchange before the first."""
    sizes = message_sizes(plan.build_algorithm(), jax.ShapeDtypeStruct((1, 1), "float32"), 1)
    at_start = name in plan.epochs[0].names and bool(sizes.start_kinds)
    return at_start or any(plan.indices[name] in roll.present for roll in rolls)


def scan(
    plan: Federation,
    problems: Mapping[str, Problem],
    rolls: Sequence[Roll],
    mean_samples: float | None = None,
    **options: Any,
) -> Result:
    """The same presence in engine `scan`; for a roster that does not change."""
    objection = why_not_scan(plan, rolls, problems)
    if objection:
        raise InputError(f"{objection}, which `scan` does not know; leave it out")
    epoch, own = plan.epoch_at(0), list(weighed(plan, problems, mean_samples).values())
    masks = np.stack([epoch.places(roll.present) for roll in counted(rolls)])
    network = plan.network_of(epoch, Masks(masks) if plan.presence == "deadline" else None)
    settings = {"rounds": len(masks), "batch_size": plan.batch_size, "seed": plan.seed} | options
    return run(plan.build_algorithm(), together(own), network, **settings)


def why_not_scan(plan: Federation, rolls: Sequence[Roll], problems: Mapping[str, Problem]) -> str | None:
    """What happened in a run that `scan` cannot do again; None: nothing."""
    if any(own.streams or own.trouble or own.kinds or own.transform for own in problems.values()):
        return "agents bring models in parts, or what is computed or read outside of jax"  # `together` takes arrays
    if set(plan.names) - set(problems):
        return "somebody without data took part in no round"
    if len(plan.epochs) > 1:
        return "the roster changes during the run"
    if any(roll.expelled for roll in rolls):
        return "a member was expelled during the run"
    routes = Routes(plan.network_of(plan.epoch_at(0)), streams(seed_key(plan.seed)))
    alone = [roll for roll in counted(rolls) if not plan.tries_server(roll.attempt)]
    found = next((roll.round for roll in alone if routes.told(roll.round, 0).server.any()), None)
    return None if found is None else f"round {found} was attempted without the server"


def weighed(plan: Federation, problems: Mapping[str, Problem], mean: float | None = None) -> dict[str, Problem]:
    """Everybody's problem as much as it counts."""
    own = {name: problems[name] for name in plan.names if name in problems}
    samples = {name: each.num_samples for name, each in own.items()}
    mean = mean or plan.mean_samples(samples)
    return {name: each.scaled(plan.scale_of(name, samples[name], mean)) for name, each in own.items()}


def together(problems: Sequence[Problem]) -> Problem:
    """Problems of one agent each as one of them all."""
    first = problems[0]
    scales = [1.0 if each.scales is None else float(each.scales[0]) for each in problems]
    weights = None if first.scales is None else [scale / sum(scales) for scale in scales]
    return Problem(
        first.loss,
        first.start,
        [each.data for each in problems],
        test=first.test,
        metrics=first.metrics,
        weights=weights,
        eval_batch=first.eval_batch,
        name=first.name,
    )


def mean_told(log: Path | None, plan: Federation) -> float | None:
    """The mean samples that the server told founders, beside its log: one who never told its own is not in it."""
    file = log.with_name(FILE) if log else None
    if plan.weigh_by != "samples" or file is None or not file.exists():
        return None
    return read_json(file, "bring it back from a copy").get("mean_samples")


def furthest(stacked: Any, own: Sequence[Any]) -> float:
    """How far the parameters of some agents, each with its own, are at most from those where all lead."""
    shapes, others = ([x.shape[1:] for x in jax.tree.leaves(whole(tree))] for tree in (own[0], stacked))
    if shapes != others:
        raise InputError(f"the parameters to compare have the shapes {others}, not {shapes}; give those of this model")
    joined = [np.concatenate(leaves) for leaves in zip(*(jax.tree.leaves(whole(tree)) for tree in own), strict=True)]
    each = zip(jax.tree.leaves(stacked), joined, strict=True)
    return max(float(np.abs(np.asarray(a) - b).max(initial=0.0)) for a, b in each)


class _Again:
    """Everybody's programs and states, taken from exchange to exchange together."""

    def __init__(self, plan: Federation, problems: Mapping[str, Problem], mean_samples: float | None):
        self.plan, self.keys, self.algorithm = plan, streams(seed_key(plan.seed)), plan.build_algorithm()
        self.mean = SUMS[plan.server_sum].mean
        self.states: dict[str, Any] = {}
        self.rounds: dict[str, int] = {}  # the last round of each
        self.expelled: tuple[int, ...] = ()
        self.programs: dict[str, Programs] = {}
        own = weighed(plan, problems, mean_samples)
        for name in own:
            self.programs[name] = Programs(self.algorithm, own[name], plan.batch_size, self.keys, plan.indices[name])
        self.enter(plan.epochs[0])

    def enter(self, epoch: Epoch) -> None:
        self.epoch, self.routes = epoch, Routes(self.plan.network_of(epoch), self.keys)

    def start(self) -> None:
        def hops(kind: str, place: int) -> list[Hop]:
            return [self.routes.server_hop(None) if kind == START_SERVER else self.routes.gossip_hop(place)]

        names = self.epoch.names
        nobody = _Eyes(None, {}, self.mean)
        steps = {i: self.programs[name].start_steps() for i, name in enumerate(names) if name in self.programs}
        made = _in_step(steps, hops, nobody)
        self.states = {names[place]: state for place, state in made.items()}
        self.rounds = dict.fromkeys(self.states, -1)

    def round(self, roll: Roll) -> None:
        k, plan, epoch = roll.round, self.plan, self.plan.epoch_at(roll.round)
        if epoch.start != self.epoch.start:
            self.enter(epoch)
        present, names = epoch.places(roll.present), epoch.names
        there = np.flatnonzero(present).tolist()
        stay = [place for place in there if names[place] in self.states]
        for name in names:  # the absent too: they do it when they are back, and nothing else happens to them until then
            changed = roll.expelled != self.expelled or (name in self.states and crossings(plan, self.rounds[name], k))
            if name in self.states and changed:
                assert self.algorithm.rebase is not None
                self.states[name], self.rounds[name] = self.algorithm.rebase(self.states[name]), k
        self.expelled = roll.expelled
        for place in set(there) - set(stay):
            leaves = {i: sent_of(self.states[names[i]]) for i in stay}
            program = self.programs[names[place]]
            averaged = self.mean(leaves, ServerHop(None, tuple(stay), ()))
            if plan.guard is not None and plan.guard.guard_server:
                averaged = guarded_mean(plan.guard, leaves, stay, {}, set())[0]
            self.states[names[place]] = program.join(program.params_of(averaged), k)
        if plan.presence == "all":
            present = None  # as its members have it
        told = {i: rolled_told(self.plan, self.routes, roll, i, present) for i in there}
        steps = {i: self.programs[names[i]].round_steps(self.states[names[i]], k, told[i]) for i in there}
        hops = {i: rolled_hops(self.plan, self.routes, roll, i, present) for i in there}
        starts = {i: sent_of(self.states[names[i]]) for i in there}
        eyes = _Eyes(plan.guard, starts, self.mean)
        for place, state in _in_step(steps, lambda kind, place: hops[place], eyes).items():
            self.states[names[place]], self.rounds[names[place]] = jax.tree.map(np.asarray, state), k


def _in_step(steps: dict[int, Steps], hops_of: Callable[[str, int], list[Hop]], eyes: _Eyes) -> dict[int, Any]:
    """Take programs from exchange to exchange, all at once; what each returns, by place."""
    received: dict[int, Any] = dict.fromkeys(steps)
    while True:
        asked, ended = {}, {}
        for place, each in steps.items():
            try:
                asked[place] = each.send(received[place])
            except StopIteration as end:
                ended[place] = end.value
        if ended:
            return ended
        if any(isinstance(kind, Compressing) for kind, _, _ in asked.values()):
            received = {place: compress(kind, leaves)[1] for place, (kind, _, leaves) in asked.items()}
            continue
        arrays = {place: [np.asarray(leaf) for leaf in leaves] for place, (_, _, leaves) in asked.items()}
        hops = {place: hops_of(kind, place) for place, (kind, _, _) in asked.items()}
        pushed = {kind.pushed for kind, _, _ in asked.values() if isinstance(kind, Mixing)}
        for leaves in pushed:  # everybody's are the same
            hops = {place: pushing(each, leaves) for place, each in hops.items()}
        for at in range(max(len(each) for each in hops.values())):
            arrays = {place: eyes.mixed(hops[place][at], place, arrays) for place in arrays}
        received = arrays


class _Eyes:
    """Everybody's guard in one round: each agent's and the server's, as they were in the federation."""

    def __init__(self, guard: Guard | None, starts: Mapping[int, Sequence[np.ndarray]], mean: Mean):
        self.guard, self.starts, self.mean = guard, starts, mean
        self.struck: dict[int | None, set[int]] = {}

    def mixed(self, hop: Hop, place: int, arrays: Mapping[int, Sequence[np.ndarray]]) -> list[np.ndarray]:
        """What the agent at a place has after a hop."""
        if isinstance(hop, GossipHop):
            if self.guard is None:
                return gossip(arrays, hop, place)
            struck = self.struck.setdefault(place, set())
            return guarded_gossip(self.guard, arrays, hop, place, self.starts[place], struck)[0]
        if self.guard is None or not self.guard.guard_server:
            return self.mean(arrays, hop)
        told = {each: moves(arrays[each], self.starts[each]) for each in hop.reporters}
        return guarded_mean(self.guard, arrays, hop.reporters, told, self.struck.setdefault(None, set()))[0]
