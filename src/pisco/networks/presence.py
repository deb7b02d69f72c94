"""Who takes part in round k: everybody, agents that come and go, a mask, or what a log says.

An absent agent keeps its whole state and sends nothing. In gossip the weight of a link to the absent stays with the one
who would have heard it, and the server averages those present for those present. So symmetric weights stay doubly
stochastic, and the mean over all agents is kept. `key` is a stream of its own: every process draws the same masks.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import jax
import jax.numpy as jnp
import numpy as np

from pisco.display import plural
from pisco.errors import InputError, check_number
from pisco.networks.files import MATRIX_FILES, read_matrix
from pisco.networks.schedules import as_structure, traced
from pisco.registry import Registry

__all__ = ["PRESENCE", "Presence", "churn", "everybody", "from_log", "present"]


class Presence(Protocol):
    """Who is there. A class of your own subclasses this, and gives `present`, or `start` and `decide` with a memory.

    Everything is traced, as in a `Schedule`.
    """

    def present(self, key: jax.Array, round_index: Any) -> Any:
        """A mask over agents."""
        raise InputError(f"{self!r} says neither who is present nor how to decide it; give it `present` or `decide`")

    def start(self, agents: int) -> Any:
        """The memory before the first round, a pytree of arrays; () where there is none."""
        return ()

    def decide(self, memory: Any, key: jax.Array, round_index: Any) -> tuple[Any, Any]:
        """The mask of this round, and the memory for the next."""
        return self.present(key, round_index), memory


@jax.tree_util.register_dataclass
@dataclass(frozen=True, repr=False)
class Churn(Presence):
    """A two-state Markov chain for every agent."""

    leave: Any  # float32, as the uniforms; of NumPy, since jax must not start before its processes have met
    back: Any

    def start(self, agents: int) -> jax.Array:
        return jnp.ones(agents, bool)

    def decide(self, memory: Any, key: jax.Array, round_index: Any) -> tuple[Any, Any]:
        uniform = jax.random.uniform(jax.random.fold_in(key, round_index), memory.shape, jnp.float32)
        now = jnp.where(memory, uniform >= self.leave, uniform < self.back)
        return now, now

    def __repr__(self) -> str:
        return f"churn({self.leave:g}, {self.back:g})"


@jax.tree_util.register_dataclass
@dataclass(frozen=True, repr=False)
class Masks(Presence):
    """A mask for every round; the last one stays."""

    rows: Any  # (rounds, n)

    def present(self, key: jax.Array, round_index: Any) -> Any:
        return jnp.asarray(self.rows)[jnp.minimum(round_index, self.rows.shape[0] - 1)]

    def __repr__(self) -> str:
        return f"masks of {plural(self.rows.shape[0], 'round')}"


@jax.tree_util.register_static
@dataclass(frozen=True, repr=False)
class ByRound(Presence):
    """A user's function of (key, round_index)."""

    function: Callable[[jax.Array, Any], Any]

    def present(self, key: jax.Array, round_index: Any) -> Any:
        return self.function(key, round_index)

    def __repr__(self) -> str:
        return f"present({getattr(self.function, '__name__', 'function')})"


def everybody() -> None:
    """All agents take part in every round, the default: None, as if nothing were said."""


def churn(leave: float, back: float) -> Presence:
    """Who is there leaves with probability `leave` a round, who is not comes back with probability `back`.

    Everybody is there before round 0. In the long run back/(leave + back) of the agents are.

    >>> churn(0.1, 0.3)
    churn(0.1, 0.3)
    """
    check_number("leave", leave, low=0, high=1)
    check_number("back", back, low=0, high=1)
    return Churn(np.float32(leave), np.float32(back))


def present(mask: Any) -> Presence:
    """The same agents in every round, one boolean for each; or those whom your traceable `mask(key, round)` names.

    >>> present([True, False, True]).present(None, 7).tolist()
    [True, False, True]
    """
    return ByRound(mask) if callable(mask) else _masks(f"presence {mask!r:.60}", [mask])


def from_log(file: Any) -> Presence:
    """What a file or an array says: row k is round k, one number an agent, 1 present and 0 absent; the last row stays.

    The file is a csv, a txt, an npy or an npz; in a text, numbers are apart by commas or spaces.
    """
    if isinstance(file, str | Path):
        return _masks(Path(file).name, read_matrix(Path(file)))
    return _masks("the log", file)


def _masks(what: str, rows: Any) -> Masks:
    rows = np.asarray(rows)
    if rows.ndim != 2 or not rows.size or not np.isin(rows, (0, 1)).all():
        raise InputError(f"{what} is no mask: give one number for every agent, 1 where it is present and 0 where not")
    return Masks(rows.astype(bool))


def as_presence(given: Any, agents: int) -> Presence | None:
    """A presence as it is, or made of a mask or a function; one for another number of agents is refused."""
    if given is None:
        return None
    made = as_structure("presence", given if hasattr(given, "decide") else present(given))
    who = traced(f"presence={made!r}", lambda key, k: made.decide(made.start(agents), key, k)[0])
    if who.dtype != bool or who.shape != (agents,):
        raise InputError(
            f"presence={made!r} gives {who.dtype}{list(who.shape)}, expected a boolean for each of the {agents} agents"
        )
    return made


PRESENCE = Registry[Callable[..., Any]](
    "presence",
    "pisco.presence",
    {"everybody": everybody, "churn": churn, "present": present},
    suffixes=MATRIX_FILES,
    read=from_log,
)
