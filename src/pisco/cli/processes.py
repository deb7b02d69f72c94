"""`pisco run` as one of several processes, or on several devices: joining, and which process prints."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pisco.cli.console import answers, note, wants_traceback

if TYPE_CHECKING:
    from pisco.engines.cluster.processes import Processes, Rank
    from pisco.engines.job import Engine
    from pisco.experiments import Config

LOST_TOUCH = 75
"""The exit code of a process whose companions are gone: try again."""


class Together:
    """The processes of a run; alone, all of this is plain."""

    def __init__(self, rank: Rank | None):
        self.rank = rank
        self.group: Processes | None = None

    @property
    def leads(self) -> bool:
        """Whether this process writes the result and talks to the user."""
        return self.rank is None or self.rank.process == 0

    def engine(self, config: Config, devices: int | None) -> Engine | str:
        """The engine of the configuration; joins the others when it is spread over processes."""
        from pisco.engines.cluster.processes import join
        from pisco.engines.sharded import ShardedEngine
        from pisco.errors import InputError

        if config.run.engine != ShardedEngine.name:
            if self.rank is not None or devices is not None:
                raise InputError(
                    f"the engine {config.run.engine} runs on one device in one process; add --engine sharded"
                )
            return config.run.engine
        _make_devices(devices)
        if self.rank is not None:
            _silence_libraries()
            self.group = join(self.rank)
            self.group.check_same(lambda: _facts(config))
        return ShardedEngine(devices)

    def leader_does(self, work: Callable[[], Path]) -> Path:
        """A path that one process chooses for all."""
        return work() if self.group is None else Path(self.group.leader_does(lambda: str(work())))

    @contextmanager
    def working(self, engine: Engine | str) -> Iterator[None]:
        """Around a run: data wait in the host's memory, where each accelerator takes its own."""
        import jax

        if isinstance(engine, str) or jax.default_backend() == "cpu":
            yield
            return
        with jax.default_device(jax.local_devices(backend="cpu")[0]):
            yield

    @contextmanager
    def exits(self) -> Iterator[None]:
        """How a process with companions ends: reported once, without waiting for those that may be gone."""
        from pisco.engines.cluster.processes import leave
        from pisco.errors import InputError

        try:
            yield
        except InputError as error:
            if self.rank is None or self.group is None:
                raise
            note(f"error: {error}")
            self.group.part()
            leave(2)
        except RuntimeError as error:
            if self.group is None or wants_traceback():
                raise
            what = str(error).splitlines()[0][:200]
            note(
                f"process {self.group.index} lost touch with the others ({what}); "
                "what was saved is kept, go on with --resume"
            )
            leave(LOST_TOUCH)


def together(engine: str, coordinator: str | None, processes: int | None, process: int | None) -> Together:
    """Who takes part, from options and environment; an engine of one process does not look at the environment."""
    from pisco.engines.cluster.processes import rank_here

    return Together(rank_here(coordinator, processes, process, os.environ if engine == "sharded" else {}))


def _silence_libraries() -> None:
    """Gloo greets on stdout, whenever it connects; answers have a way of their own (`console.keep_stdout`)."""
    if answers().fileno() != 1:
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)


def _make_devices(devices: int | None) -> None:
    """Where the devices are CPUs, make as many as asked for; others must exist."""
    import jax

    if devices is not None and devices > 0:
        try:
            jax.config.update("jax_num_cpu_devices", devices)
        except RuntimeError:  # jax has started; the engine checks how many there are
            return


def _facts(config: Config) -> dict[str, Any]:
    """What must be the same in all processes, before any of them computes."""
    import jax

    from pisco._version import __version__

    settings = {name: value for name, value in config.flat().items() if "." in name}
    return settings | {"the version of pisco": __version__, "the version of jax": jax.__version__}
