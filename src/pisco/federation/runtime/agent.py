"""An agent: its rounds with its own data, its exchanges with neighbours and server, its memory on disk."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import jax
import numpy as np

from pisco.display import plural
from pisco.errors import InputError
from pisco.federation.kits import Kit
from pisco.federation.plan import Federation
from pisco.federation.roster import SERVER, Change, Epoch
from pisco.federation.runtime import membership, parting, reports, weighing
from pisco.federation.runtime.codec import MessageLayout, Where
from pisco.federation.runtime.exchanges import dial_ahead, one_exchange
from pisco.federation.runtime.guarding import Watcher
from pisco.federation.runtime.member import MemberProcess, wire
from pisco.federation.runtime.peers import Peer, Received
from pisco.federation.runtime.programs import START_SERVER, Mixing, Programs, sent_of
from pisco.federation.runtime.routes import GossipHop, Hop, Routes, pushing, without_gone
from pisco.federation.runtime.spending import FILE, START, Spending
from pisco.federation.runtime.sums import SUMS, Reporting
from pisco.federation.runtime.timing import Timing
from pisco.federation.runtime.updates import Compressing, Incoming, Outgoing, compress
from pisco.metrics import by_column
from pisco.problems.problem import Problem
from pisco.results import Result
from pisco.seeds import seed_key, streams

log = logging.getLogger("pisco.federation")


class Agent(MemberProcess):
    """One agent of a federation.

    Args:
      kit: who it is, and the plan.
      problem: its own data and the loss, a `pisco.Problem` with one agent.
      folder: where its state is kept; the same folder continues after any interruption.
      listen: the address to listen at, where it is another than the plan's (for example behind a gateway).
      durable: wait for the disk after every round, to survive a loss of power.
      progress: called after every round with the rounds done.
    """

    def __init__(
        self,
        kit: Kit,
        problem: Problem,
        folder: Path,
        *,
        listen: str | None = None,
        durable: bool = True,
        progress: Callable[[int], None] | None = None,
    ):
        if kit.name not in kit.federation.names:
            command = "server" if kit.name == SERVER else "relay"
            raise InputError(f"{kit.folder} is the {command}'s kit; start it with `pisco {command} --kit {kit.folder}`")
        self.algorithm = kit.federation.build_algorithm()
        membership.check(kit.federation)
        check_problem(problem, kit.federation.batch_size)
        super().__init__(kit, folder, listen=listen, durable=durable)
        self.progress = progress
        self.keys = streams(seed_key(self.plan.seed))
        self.watcher = Watcher(self.plan.guard)
        self.done = self.kept_rounds()
        self._heeded: set[tuple[str, int]] = set()
        self._check_past()
        self.enter(self._first_epoch())
        self.address = self.address_at(self.done)
        self.metrics = by_column(problem.metrics)
        self._problem, self.num_samples, self.spending = problem, problem.num_samples, self._protect(problem)
        if self.spending is not None:
            self._problem = self.spending.problem
        self.mean_samples: float | None = self.found.job.get("mean_samples") if self.found else None
        weighing.check_samples(self)
        self._build()
        self.outgoing = Outgoing()
        self.incoming = Incoming(self.programs.codecs)
        if "compressor" in self.algorithm.hyperparameters and not self.programs.codecs:
            log.info("vectors are sent whole: the compressor of %s cannot `encode` them", self.algorithm.name)
        self.sums = SUMS[self.plan.server_sum].agent(self)
        self.timing = self.mailroom.timing = Timing()
        self.history = reports.Rows.restore(self.found)
        self.state: Any = self.kept_state()
        self.joining = self.found is None and self.done > 0  # it has begun nothing: any plan that has it will do

    def _protect(self, problem: Problem) -> Spending | None:
        """The count of what private gradients spend; None where they are plain."""
        folder = self.store.folder
        try:
            if problem.privacy is not None:
                rounds = self.last_round(self.name) - self._first(self.name)
                settings: Any = {"batch_size": self.plan.batch_size, "rounds": rounds, "begun": self.found is not None}
                return Spending(folder, problem, self.algorithm, **settings)
            if (folder / FILE).exists():
                raise InputError(f"the state in {folder} was begun with privacy; give --privacy again")
        except InputError:
            self.store.close()
            raise
        return None

    def spend(self, place: int, *, starts: bool = False) -> None:
        """Count the gradients of a round, or of an attempt, before they are taken."""
        if self.spending is not None:
            self.spending.count(place, starts=starts)

    @property
    def hides(self) -> bool:
        """Whether noise hides our data: then nothing that is measured on them is told."""
        return self.spending is not None and self.spending.hides

    def _build(self) -> None:
        scale = self.plan.scale_of(self.name, self.num_samples, self.mean_samples)
        own = self._problem.scaled(scale)
        self.programs = Programs(self.algorithm, own, self.plan.batch_size, self.keys, self.index)
        self.programs.compile()

    def weigh(self) -> None:
        """Hear how much we count, where that goes by samples. (The programs are the same; a number in them is not.)"""
        if self.plan.weigh_by == "samples" and self.mean_samples is None:
            self.mean_samples = weighing.ask_mean(self, self.num_samples)
            self._build()

    def kept_rounds(self) -> int:
        """How many rounds are behind the state on disk, or before the first round of who joins."""
        return self.found.round if self.found else self._first(self.name)

    def kept_state(self) -> Any:
        """The state on disk, if there is one."""
        return self.found.state(self.programs.state_like) if self.found else None

    def _check_past(self) -> None:
        """Refuse a plan that differs in rounds that our state has already done."""
        past = self.found.job.get("plan") if self.found else None
        if past is not None and past != self.plan.hash_at(self.done - 1):
            self.store.close()
            raise InputError(
                f"the state in {self.store.folder} has done {self.done} rounds of a plan that differs from the one in "
                f"{self.kit.folder}; copy the coordinator's newest federation.toml there"
            )

    def address_at(self, k: int) -> str:
        """Where the plan lets us listen in round k, or in our last one."""
        return self.plan.epoch_at(min(k, self.last_round(self.name) - 1)).member(self.name).at

    def _first_epoch(self) -> Epoch:
        """A state kept at the end of an epoch has not crossed into the next one yet."""
        before = self.plan.epoch_at(self.done - 1)
        return before if self.found and self.name in before.names else self.plan.epoch_at(self.done)

    def enter(self, epoch: Epoch) -> None:
        """Take the links of an epoch."""
        self.epoch = epoch
        network = self.plan.network_of(epoch)
        self.routes = Routes(network, self.keys)
        self.place = epoch.names.index(self.name)
        self.index = epoch.member(self.name).index
        self.varies = network.varying is not None

    def why_not(self, name: str, round_: int, phase: int) -> str | None:
        epoch = self.plan.epoch_at(round_ - 1)
        return None if name == SERVER or name in self.partners(epoch) else "it is not a neighbour"

    def partners(self, epoch: Epoch) -> list[str]:
        """Who may exchange with us in an epoch: neighbours, or anybody where links change from round to round.

        (There, every message knows its own readers.)
        """
        if self.name not in epoch.names:
            return []
        known = epoch.names if self.varies else epoch.neighbours(self.name)
        return [name for name in known if name != self.name]

    @property
    def reached(self) -> int:
        return 0 if self.joining else self.done

    def adopt(self, plan: Federation) -> None:
        membership.check(plan)
        super().adopt(plan)
        if self._unheeded() or self.joining:
            self.mailroom.interrupt()

    def _unheeded(self) -> list[Change]:
        """Changes of members who are gone that we have not acted on."""
        urgent = self.plan.urgent
        return [each for each in urgent if each.round > self.done and (each.name, each.round) not in self._heeded]

    def heed(self) -> bool:
        """Act on such changes; whether there were any."""
        new = self._unheeded()
        if new:
            membership.heed(self, new)
            self._heeded |= {(each.name, each.round) for each in new}
        return bool(new)

    def there(self, k: int) -> np.ndarray | None:
        """Who takes part in round k, by place, where somebody is gone; None: everybody."""
        gone = self.plan.gone_at(k) & {name for name, _ in self._heeded}
        return np.array([name not in gone for name in self.epoch.names]) if gone else None

    def own_end(self) -> int:
        moved = [
            epoch.start
            for epoch in self.plan.epochs
            if epoch.start >= self.done and self.name in epoch.names and epoch.member(self.name).at != self.address
        ]
        return min([*moved, self.last_round(self.name)])

    # The rounds

    def run(self) -> Result:
        """All rounds to the end; raises `Stopped` with the state kept when it cannot go on."""
        began = time.perf_counter()
        if self.parted and not self.closes():
            self.close()  # nobody needs anything from us now
            return self.result(0.0)
        self.open(self.address, {})
        reporter = reports.Reporter(self)
        try:
            dial_ahead(self, max(reporter.sizes.whole, default=0))
            self.sums.begin()
            self.weigh()
            if self.state is None:
                self._begin()
            while self.done < self.last_round(self.name):
                self.look_for_plan()
                self.heed()
                if self.plan.epoch_at(self.done).start != self.epoch.start:
                    self._cross(self.plan.epoch_at(self.done))
                self._round(self.done)
            reporter.finish()
            self.look_for_plan()
            if self.closes():
                parting.close_average(self)
            self._save(parted=not parting.part(self, server_matters=reporter.server_matters))
        finally:
            reporter.stop()
            self.close()
        return self.result(time.perf_counter() - began)

    @property
    def parted(self) -> bool:
        """Whether we had said goodbye to everybody when we stopped."""
        return self.found is not None and bool(self.found.job.get("parted"))

    def closes(self) -> bool:
        """Whether the server waits for our parameters once more, now that all rounds are over."""
        given = self.found is not None and self.found.job.get("closed")
        return bool(self.plan.closing) and self.done == self.plan.rounds and not given

    def _begin(self) -> None:
        """X⁰ and what the algorithm makes of it."""
        if self.done == 0:
            self._phase, self._round_on_wire, self.k = 0, 0, 0
            self.spend(START, starts=True)
            self.state = self.programs.start(self._exchange)
            self._measure()
        else:
            self.spend(START, starts=True)
            self.state = self.programs.join(membership.mean_of_others(self), self.done)
        self._save()

    def _cross(self, epoch: Epoch) -> None:
        """Into the next epoch. Nothing is kept before the first round there is done: a restart crosses again."""
        self.state = membership.cross(self, epoch)
        self.enter(epoch)

    def _round(self, k: int) -> None:
        self._phase, self._round_on_wire, self.k = 0, wire(k), k
        there = self.there(k)
        self._hops, told = self.routes.hops(k, self.place, there), self.routes.told(k, self.place, there)
        self.spend(k)
        self.state = self.programs.round(self._exchange, self.state, k, told)
        self.done = k + 1
        if any(not isinstance(hop, GossipHop) for hop in self._hops):
            self.outbox.passed(SERVER, wire(k) + 1)  # the server keeps its average before it hands it out
        if self.done % self.plan.eval_every == 0 or self.done == self.plan.rounds:
            self._measure()
        self._save()
        self.timing.round_over()
        if self.progress:
            self.progress(self.done)

    def _measure(self) -> None:
        self.history.add(self.done, self.measured())

    def measured(self) -> dict[str, float]:
        """What we see at our own parameters, and what private gradients have spent."""
        found = self.programs.measure(self.state.params)
        return found if self.spending is None or not self.hides else found | {"epsilon": self.spending.epsilon}

    def _save(self, *, parted: bool = False) -> None:
        notes = {"parted": parted, "plan": self.plan.hash_at(self.done - 1), **weighing.notes(self)}
        notes["closed"] = parted and bool(self.plan.closing)
        self.store.save(self.done, self.state, outbox=self.outbox, history=self.history.arrays(), notes=notes)

    # The exchanges

    def _exchange(self, kind: Any, call: int, leaves: Sequence[Any]) -> list[np.ndarray]:
        if isinstance(kind, Compressing):
            difference, arrays = compress(kind, leaves)
            self.outgoing.add(difference)
            return arrays
        jax.block_until_ready(leaves)  # so that work counts as work
        self.timing.stop()
        arrays, mixes = [np.asarray(leaf) for leaf in leaves], isinstance(kind, Mixing)
        for step in range(len(self.hops_of(kind))):
            copies = (call, step) if mixes and self.programs.codecs else None
            where = self.where(self._round_on_wire, self._phase)
            arrays = one_exchange(
                self, where, lambda step=step: self.hops_of(kind)[step], arrays, copies, guarded=mixes
            )
            self._phase += 1
        self.timing.go()
        return arrays

    def hops_of(self, kind: Any) -> list[Hop]:
        """What an exchange of the round under way consists of; who is gone by now is not in it."""
        if isinstance(kind, Mixing):
            return pushing(self._hops, kind.pushed) if kind.pushed else self._hops
        there = self.there(self.k)
        if kind == START_SERVER:
            return [without_gone(self.routes.server_hop(None), there)]
        return [self.routes.gossip_hop(self.place, present=there)]

    def before(self) -> list[np.ndarray]:
        """The parameters that are sent, as they were when the round began."""
        return sent_of(self.state)

    def wanted(self, where: Where) -> bool:
        """Whether an exchange is still under way as it was when it began."""
        return not self._unheeded()

    def report(
        self, part: Reporting, arrays: Sequence[np.ndarray], updates: Any = None, pushed: Iterable[str] = ()
    ) -> None:
        """Offer our part in a server exchange; what changed is told of vectors that travel as they are alone."""
        layout, data = self.sums.message(part, arrays)
        updates = updates if layout == layout.plain else None
        self.offer(part.where.round, part.where.phase, layout, data, [SERVER], updates, pushed)

    def heed_again(self) -> bool:
        """Act on changes of who is gone in the middle of a round, which goes on without them."""
        found = self.heed()
        if found:
            self._hops = self.routes.hops(self.k, self.place, self.there(self.k))
        return found

    def pull(
        self,
        peers: Mapping[int, Peer],
        where: Where,
        layout: MessageLayout,
        copies: Hashable | None = None,
        **options: Any,
    ) -> dict[int, Received]:
        """Others' messages of one exchange, which look like ours."""
        if copies is not None:
            options["copies"] = (self.incoming, copies)
        options.setdefault("wanted", lambda: self.wanted(where))
        return self.mailroom.pull(peers, where, layout=layout, limit=layout.size, **options)

    # The end

    def closing_round(self) -> int:
        """The number of the round after the last, in messages."""
        return self.plan.rounds + 1

    def result(self, seconds: float) -> Result:
        """This agent's own result; its history is measured on its own data."""
        return Result(
            params=jax.tree.map(np.asarray, self.state.params),
            history=self.history.columns(),
            seeds=(self.plan.seed,),
            settings=reports.settings(self.plan) | {"agent": self.name},
            rounds=self.done,
            seconds=seconds,
            label=f"{self.plan.name}: {self.name}",
            metrics=self.metrics,
        )


def check_problem(problem: Problem, batch_size: int | None) -> None:
    """Refuse a problem that is not one agent's, or too small for the batches."""
    if problem.num_agents != 1:
        raise InputError(f"the problem has {problem.num_agents} agents, expected one, with its own data")
    if batch_size is not None and batch_size > problem.min_size:
        raise InputError(
            f"the federation's batch_size is {batch_size}, but this agent has only "
            f"{plural(problem.min_size, 'sample')}; "
            "bring more data, or agree on a smaller batch"
        )
