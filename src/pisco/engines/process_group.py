"""The processes that run a job together: what they must agree on. Most jobs run in one."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from pisco.engines import checkpoint
from pisco.engines.checkpoint import Checkpoint

if TYPE_CHECKING:
    from pisco.engines.job import Engine


class ProcessGroup(Protocol):
    """Every process calls these in the same order with the same arguments, except the flags and facts of its own.

    As it stands there is one.
    """

    leads: bool = True
    """Whether this process speaks for all: it writes results and talks to the user."""

    def agree(self, *flags: bool) -> tuple[bool, ...]:
        """For every flag, whether any process has raised it."""
        return flags

    def check_same(self, facts: Callable[[], dict[str, Any]]) -> None:
        """Refuse to go on when the processes' facts differ, naming the first difference."""

    def latest(self, folder: Path) -> Checkpoint | None:
        """The newest whole checkpoint, the same one for all."""
        return checkpoint.latest(folder)

    def save(self, folder: Path, made: Checkpoint, engine: Engine, states: Any) -> None:
        """Write the checkpoint of a round, to which each adds the leaves that it holds."""
        leaves = checkpoint.named_leaves(engine.pack(states))
        checkpoint.save(folder, made._replace(leaves=leaves))


class Alone(ProcessGroup):
    """One process."""
