"""What a site's private gradients have spent: counted on disk before anything made of them can be sent.

Batches and noise come from words that the site alone knows, as everybody knows the plan's seed: without them others
could subtract the noise. They are kept with the count, so that a round done again after a kill sends the same numbers
and spends nothing more. An attempt that did not count for the federation was sent, and counts here. What others
answered in a round is noted too: with other answers the same noise would hide two gradients, and their difference is
plain.
"""

from __future__ import annotations

import hashlib
import json
import secrets
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp
import numpy as np

from pisco.costs import message_sizes
from pisco.errors import InputError
from pisco.federation.runtime.peers import Stopped
from pisco.files import atomic_write, read_json
from pisco.privacy.accounting import curve, most, noise_for, spent
from pisco.problems.problem import Problem
from pisco.tree import stack_agents

if TYPE_CHECKING:
    from pisco.types import Algorithm

FILE = "privacy.json"
START = -1
"""The place of what is done before the first round."""
ROLLS = -1
"""In place of a phase: the rolls that call us to an attempt, which say from which state and with whom."""


class Spending:
    """The noise, the secret and the count of one site, in its state folder; `problem` has them.

    Args:
      folder: of the state.
      problem: with the owner's `privacy`.
      algorithm: whose gradients are counted.
      batch_size: of the plan.
      rounds: that the site is to take part in, for which the noise of an ε alone must be enough.
      begun: whether there is a state in the folder already.
    """

    def __init__(
        self, folder: Path, problem: Problem, algorithm: Algorithm, *, batch_size: int | None, rounds: int, begun: bool
    ):
        privacy = problem.privacy
        assert privacy is not None
        self.path, self.batch_size, self.samples = folder / FILE, batch_size, problem.num_samples
        self.delta = float(np.max(privacy.delta))
        if self.delta >= 1 / self.samples:
            raise InputError(
                f"delta is {self.delta:g} for {self.samples} samples; give one well below 1/{self.samples}"
            )
        like = jax.eval_shape(lambda key: stack_agents(problem.init(key), 1), jax.random.key(0))
        sizes = message_sizes(algorithm, like, 1)
        if sizes.shares_key:
            raise InputError(
                f"{algorithm.name} takes two gradients of one batch, which cannot be accounted for; this site cannot "
                "be private in this plan"
            )
        self.start, self.work, self._table = sum(sizes.start_work), sizes.gradients, np.zeros(1)
        self._rounds, budget = rounds, privacy.of_agents("epsilon", 1)
        self.budget = None if budget is None else float(budget[0])
        privacy.protection(1)  # one number of each
        fixed = {name: privacy.facts()[name] for name in ("clip", "delta", "smooth")}
        if self.path.exists():
            self._reopen(fixed, privacy.of_agents("noise", 1))
        elif begun:
            raise InputError(f"the state in {folder} was begun without privacy; leave --privacy out")
        else:
            noise = privacy.of_agents("noise", 1)
            total = self.start + self.work * rounds
            sigma = noise[0] if noise is not None else None
            if sigma is None:
                assert self.budget is not None
                sigma = noise_for(self.budget, self.samples, batch_size, total, self.delta)
            words = [secrets.randbits(32), secrets.randbits(32)]
            self.kept: dict[str, Any] = {"settings": fixed, "noise": float(sigma), "secret": words}
            self.kept |= {"samples": self.samples, "gradients": 0, "last": START - 1}
            self._write()
        self.noise = float(self.kept["noise"])
        secret = jnp.asarray(self.kept["secret"], jnp.uint32)
        self.problem = problem.private(privacy, noise=self.noise, secret=secret)
        self._allowed = self._most()

    def _reopen(self, fixed: dict[str, Any], noise: Any) -> None:
        fix = "bring it back from a copy: without its count and its secret this site cannot go on in private"
        self.kept = read_json(self.path, fix)
        given = fixed | {"samples": self.samples} | ({} if noise is None else {"noise": float(noise[0])})
        for name, value in given.items():
            before = self.kept["settings"].get(name, self.kept.get(name))
            if before != value:
                raise InputError(
                    f"{self.path.parent} was begun with {name} = {before}, not {value}; only epsilon may change"
                )

    def _most(self) -> float:
        """How many gradients the budget allows."""
        budget = self.budget
        if budget is None or not self.hides:
            return np.inf
        high = max(2 * (self.start + self.work * self._rounds), 2 * int(self.kept["gradients"]), 1)

        def fits(count: int) -> bool:
            return spent(self.noise, self.samples, self.batch_size, count, self.delta) <= budget

        return most(fits, high)

    def count(self, place: int, *, starts: bool = False) -> None:
        """Note that the gradients of a round are taken, before they are; `Stopped` where the budget does not allow it.

        `place` says which round it is, or which attempt; a place seen before spends nothing, as it sends the same. Who
        `starts` takes those of the start as well.
        """
        self._place = place
        if place <= self.kept["last"]:
            return
        after = self.kept["gradients"] + (0 if place == START else self.work) + (self.start if starts else 0)
        if after > self._allowed:
            spent = (
                f"is spent ({self.epsilon:.4g} by now)" if self.kept["gradients"] else "is less than one round takes"
            )
            raise Stopped(
                f"the budget of epsilon = {self.budget:g} {spent}, so this site stops here with its state kept; ask "
                "the coordinator to remove it, or start it with a larger epsilon, or with more noise"
            )
        before = {name: each for name, each in self._heard.items() if name.split()[0] == str(self.kept["last"])}
        self.kept |= {"gradients": after, "last": place, "heard": before}  # of two, as states are kept
        self._write()

    @property
    def last(self) -> int:
        """The newest place that was counted: noise of earlier ones may be used, and what was answered forgotten."""
        return self.kept["last"]

    @property
    def _heard(self) -> dict[str, str]:
        return self.kept.get("heard", {})

    def heard(self, phase: int, arrays: Sequence[np.ndarray]) -> None:
        """Note what an exchange brought, before a gradient is made of it; refuse another answer than before."""
        if not self.hides:
            return
        where = f"{self._place} {phase}"
        hashed = hashlib.sha256()
        for array in arrays:
            hashed.update(np.ascontiguousarray(array).reshape(-1).view(np.uint8).data)
        digest, known = hashed.hexdigest(), self._heard.get(where)
        if known not in (None, digest):
            raise Stopped(
                "others answer differently than before this site was started again, and the noise of this round cannot "
                "hide a second gradient; the site stops here: ask the coordinator to remove it"
            )
        if known is None:
            self.kept |= {"heard": self._heard | {where: digest}}
            self._write()

    @property
    def hides(self) -> bool:
        """Whether there is noise at all."""
        return self.noise > 0

    @property
    def epsilon(self) -> float:
        """What was spent by now."""
        count = int(self.kept["gradients"])
        if count >= len(self._table):
            usual = self.start + self.work * self._rounds
            counts = np.arange(max(usual, 2 * count) + 1)
            self._table = curve(self.noise, self.samples, self.batch_size, counts, self.delta)
        return float(self._table[count])

    def _write(self) -> None:
        atomic_write(self.path, json.dumps(self.kept).encode(), private=True)
