"""Guards: what a receiver does with messages that lie too far from its own vector, and who is named for them.

A message is judged by its *factor*: its distance from the receiver's own vector z, over the larger of two usual ones.
One is the largest distance that this receiver hears in the exchange, except the farthest quarter of the messages (at
least one). The other is how far its own vector moved since the round began, ‖z − x‖, or ‖z‖ where z is nothing like the
parameters x (a tracker, say). So honest agents with unlike data, whose vectors differ as far as they move, stay within
a few times.

The server has no vector of its own. It takes the message in the middle, the one whose median distance to the others is
smallest, and what members say of their own moves, again without the largest quarter.

What is no parameters adds up from round to round: a small push in every round is a large one in the end, and no round
shows it. So differences of such vectors are also added up over the rounds (as sketches, a few numbers each), and a sum
far above the others' is a strike too.

Only naming remembers: how a message is combined follows from the messages of its round alone.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Protocol

import jax
import jax.numpy as jnp

from pisco.errors import InputError, check_counts, check_number
from pisco.registry import Registry

__all__ = ["GUARDS", "Guard", "clip", "unguarded"]

AT_ONCE = 256
"""Guards compare every pair of agents; for more than this many a network refuses them."""


class Guard(Protocol):
    """How much of every message is taken. A class of your own subclasses this."""

    strikes: int
    """Rounds in a row with a message left out, after which its sender is named."""
    reports: int
    """Different members who must name somebody before it is left off; the server's word is enough. 0: never."""
    guard_server: bool
    """Whether the server judges what it is sent, which it must see for that."""

    def keep(self, factors: Any, xp: Any = jnp) -> Any:
        """The share of every message's difference that is taken, by its factor; 0 leaves the message out.

        xp: jax.numpy, or numpy between machines.
        """
        ...

    def sent(self, tree: Any, key: jax.Array, round_index: Any) -> Any:
        """What agents send in place of what they hold: the same, but in an experiment with an attacker."""
        return tree


@jax.tree_util.register_dataclass
@dataclass(frozen=True, repr=False)
class Clip(Guard):
    """Clipped up to a factor, left out beyond."""

    clip_at: Any
    leave_out_at: Any
    strikes: int = field(metadata={"static": True})
    reports: int = field(metadata={"static": True})
    guard_server: bool = field(metadata={"static": True})

    def keep(self, factors: Any, xp: Any = jnp) -> Any:
        clipped = xp.minimum(1.0, self.clip_at / xp.maximum(factors, self.clip_at))
        return xp.where(factors <= self.leave_out_at, clipped, 0.0)  # NaN is beyond

    def __repr__(self) -> str:
        return f"clip(clip_at={self.clip_at:g}, leave_out_at={self.leave_out_at:g})"


def clip(
    *, clip_at: float = 3.0, leave_out_at: float = 8.0, strikes: int = 3, reports: int = 2, guard_server: bool = True
) -> Guard:
    """Clip messages that are far from the receiver's vector, leave out those that are farther, and name their senders.

    x_i ← x_i + Σ_j w_ij·clip(x_j − x_i), where clip shortens a difference to `clip_at` times what is usual (see above),
    and to nothing beyond `leave_out_at`. Both PISCO exchanges are guarded, and who is left out of one exchange is left
    out of the rest of its round. Weights stay; what is not taken stays on one's own.

    Args:
      clip_at: the factor from which a message is shortened.
      leave_out_at: the factor from which it is not taken at all, which is a strike.
      strikes: strikes of one sender with one receiver, in rounds in a row, after which the receiver names it.
      reports: members who must name somebody before it is left off for good, or the server alone; then everybody's
        tracker starts again, as when a member leaves. 0 never leaves anybody off.
      guard_server: whether the server's averages are guarded too. Where it sees only masked sums it cannot, and False
        guards gossip alone.

    Clipped gossip is from L. He, S. P. Karimireddy and M. Jaggi, "Byzantine-Robust Decentralized Learning via
    ClippedGossip", 2022 (arXiv 2202.01545; we had only the abstract). The rule for the radius, leaving out and
    naming are ours.

    >>> clip(leave_out_at=20)
    clip(clip_at=3, leave_out_at=20)
    >>> clip().keep(jnp.array([1.0, 6.0, 1000.0])).tolist()
    [1.0, 0.5, 0.0]
    """
    check_number("clip_at", clip_at, low=1)
    check_number("leave_out_at", leave_out_at, low=clip_at)
    check_counts(strikes=strikes)
    check_number("reports", reports, low=0, integer=True)
    if not isinstance(guard_server, bool):
        raise InputError(f"guard_server is {guard_server!r}, expected True or False")
    return Clip(float(clip_at), float(leave_out_at), int(strikes), int(reports), guard_server)


def unguarded() -> None:
    """Every message is taken as it is, the default."""


GUARDS = Registry[Callable[..., "Guard | None"]]("guard", "pisco.guards", {"none": unguarded, "clip": clip})
