"""Several processes as one: how they find each other, and what they agree on while they run."""

from __future__ import annotations

import contextlib
import json
import os
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NamedTuple, NoReturn

import jax
import numpy as np

from pisco.engines import checkpoint
from pisco.engines.checkpoint import Checkpoint
from pisco.engines.cluster.rendezvous import meet
from pisco.errors import InputError

JOIN_SECONDS = 60
"""How long a process waits for the others at the start."""

PART_SECONDS = 20
"""How long process 0 waits for the others to end, where all end with bad input."""

HEARTBEAT_SECONDS = 100
"""A process that is silent for so long is given up. Longer than any pause that should be waited for."""


class Rank(NamedTuple):
    """One of several processes; no coordinator leaves it to jax to find one (SLURM, Open MPI)."""

    coordinator: str | None
    processes: int
    process: int


_VARIABLES = (
    ("PISCO_COORDINATOR", "PISCO_PROCESSES", "PISCO_PROCESS_ID"),
    ("JAX_COORDINATOR_ADDRESS", "JAX_NUM_PROCESSES", "JAX_PROCESS_ID"),
)
_CLUSTERS = (("SLURM_NTASKS", "SLURM_PROCID", "SLURM_STEP_NODELIST"),)
_CLUSTERS += (("OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_RANK", "OMPI_MCA_orte_hnp_uri"),)


def rank_here(
    coordinator: str | None, processes: int | None, process: int | None, environ: Mapping[str, str]
) -> Rank | None:
    """Which process this is: as told, or as the environment says; None when it is the only one.

    >>> rank_here(None, None, None, {"MASTER_ADDR": "h1", "MASTER_PORT": "29500", "WORLD_SIZE": "4", "RANK": "2"})
    Rank(coordinator='h1:29500', processes=4, process=2)
    >>> rank_here("h1:29500", 4, None, {})
    Traceback (most recent call last):
    ...
    pisco.errors.InputError: --coordinator, --processes and --process-id belong together; --process-id is missing
    """
    given = {"--coordinator": coordinator, "--processes": processes, "--process-id": process}
    if any(value is not None for value in given.values()):
        missing = [name for name, value in given.items() if value is None]
        if missing:
            raise InputError(f"--coordinator, --processes and --process-id belong together; {missing[0]} is missing")
        return _checked(str(coordinator), int(processes or 0), int(process or 0))
    for where, count, which in _VARIABLES:
        if all(name in environ for name in (where, count, which)):
            return _checked(environ[where], _number(environ, count), _number(environ, which))
    if all(name in environ for name in ("MASTER_ADDR", "MASTER_PORT", "WORLD_SIZE", "RANK")):
        address = f"{environ['MASTER_ADDR']}:{environ['MASTER_PORT']}"
        return _checked(address, _number(environ, "WORLD_SIZE"), _number(environ, "RANK"))
    for count, which, sign in _CLUSTERS:
        if all(name in environ for name in (count, which, sign)) and _number(environ, count) > 1:
            return Rank(None, _number(environ, count), _number(environ, which))
    return None


def _number(environ: Mapping[str, str], name: str) -> int:
    if not environ[name].isdecimal():
        raise InputError(f"the variable {name} is {environ[name]!r}, expected a whole number")
    return int(environ[name])


def _checked(coordinator: str, processes: int, process: int) -> Rank | None:
    host, colon, port = coordinator.rpartition(":")
    if not host or not colon or not port.isdecimal() or not 0 < int(port) < 65536:
        raise InputError(f"the coordinator is {coordinator!r}, expected HOST:PORT, as in 10.0.0.1:29500")
    if processes < 1:
        raise InputError(f"--processes is {processes}, expected at least 1")
    if not 0 <= process < processes:
        raise InputError(f"--process-id is {process}, expected 0 to {processes - 1} for {processes} processes")
    return Rank(coordinator, processes, process) if processes > 1 else None


def join(rank: Rank, seconds: float = JOIN_SECONDS) -> Processes:
    """Meet the other processes, before anything else is asked of jax; returns when all are there."""
    limits: Any = {"initialization_timeout": int(seconds), "heartbeat_timeout_seconds": HEARTBEAT_SECONDS}
    if rank.coordinator is not None:
        meet(rank.coordinator, rank.processes, rank.process, seconds)
    try:
        if rank.coordinator is None:
            jax.distributed.initialize(**limits)
        else:
            jax.distributed.initialize(rank.coordinator, rank.processes, rank.process, **limits)
    except (RuntimeError, ValueError) as error:
        where = rank.coordinator or "the address that the cluster gives"
        raise InputError(
            f"process {rank.process} of {rank.processes} could not join at {where} within {seconds:g} s "
            f"({str(error).splitlines()[0]}); start all processes, with the same coordinator"
        ) from error
    group = Processes()
    group.agree(False)
    return group


class Processes:
    """The `ProcessGroup` of several processes. Every call is collective."""

    def __init__(self) -> None:
        self.index, self.count = jax.process_index(), jax.process_count()
        self.leads = self.index == 0

    def agree(self, *flags: bool) -> tuple[bool, ...]:
        return tuple(_gather(np.asarray(flags, np.uint8)).max(axis=0).astype(bool).tolist())

    def check_same(self, facts: Callable[[], dict[str, Any]]) -> None:
        said = [json.loads(text) for text in self.everybody_says(json.dumps(facts(), default=str))]
        for index, other in enumerate(said):
            for name in sorted(said[0].keys() | other.keys()):
                if said[0].get(name) != other.get(name):
                    raise InputError(
                        f"the processes were given different experiments: {name} is {said[0].get(name)!r} in process 0 "
                        f"and {other.get(name)!r} in process {index}; start all with the same settings"
                    )

    def everybody_says(self, text: str) -> list[str]:
        """What every process said, in their order."""
        own = np.frombuffer(text.encode(), np.uint8)
        lengths = _gather(np.asarray([len(own)], np.int32))[:, 0]
        padded = np.zeros(int(lengths.max()), np.uint8)
        padded[: len(own)] = own
        every = _gather(padded)
        return [bytes(row[:length]).decode() for row, length in zip(every, lengths, strict=True)]

    def leader_does(self, work: Callable[[], str]) -> str:
        """What process 0 answers, told to all; bad input is bad input for all."""
        answer = ""
        if self.leads:
            try:
                answer = "1" + work()
            except InputError as error:
                answer = f"0{error}"
        told = self.everybody_says(answer)[0]
        if told.startswith("0"):
            raise InputError(told[1:])
        return told[1:]

    def latest(self, folder: Path) -> Checkpoint | None:
        found: Checkpoint | None = None

        def newest() -> str:
            nonlocal found
            found = checkpoint.latest(folder)
            return "" if found is None else str(found.round)

        told = self.leader_does(newest)
        if not told:
            return None
        trouble = ""
        if found is None:
            try:
                found = checkpoint.read(folder / f"round-{int(told):09d}.ckpt")
            except (OSError, InputError) as error:
                trouble = str(error)
        for index, complaint in enumerate(self.everybody_says(trouble)):
            if complaint:
                raise InputError(
                    f"process {index} cannot read the checkpoint of round {told} in {folder} ({complaint}); "
                    "put the folder on a disk that all hosts share"
                )
        return found

    def save(self, folder: Path, made: Checkpoint, engine: Any, states: Any) -> None:
        # The engine is the sharded one: it alone runs in several processes, and knows of this module.
        first, own, common = engine.own_rows(states)
        written: dict[str, Any] = {"error": "it was interrupted"}
        try:
            part = (self.index, self.count)
            written = checkpoint.save_part(folder, made.round, part, first, checkpoint.named_leaves(own))
        except OSError as error:
            written = {"error": str(error)}
        parts = [json.loads(text) for text in self.everybody_says(json.dumps(written))]
        for index, part in enumerate(parts):
            if "error" in part:
                raise OSError(f"process {index}: {part['error']}")
        if self.leads:
            checkpoint.save(folder, made._replace(leaves=checkpoint.named_leaves(common)), parts)

    def part(self, seconds: float = PART_SECONDS) -> None:
        """Before all end with bad input: process 0 goes last, since jax aborts those who lose its coordinator.

        A process that found nothing wrong says nothing, so the wait for it has an end.
        """
        from jax._src.distributed import global_state  # jax names no public way to its store of keys

        keys: Any = global_state.client
        until = time.monotonic() + seconds
        with contextlib.suppress(Exception):  # it ends one way or the other
            if not self.leads:
                keys.key_value_set(f"pisco/parts/{self.index}", "1")
                return
            for other in range(1, self.count):
                left = max(1, int(1000 * (until - time.monotonic())))
                keys.blocking_key_value_get(f"pisco/parts/{other}", left)
            time.sleep(0.5)  # from their word to their end


def _gather(row: np.ndarray) -> np.ndarray:
    """Every process's row, stacked."""
    from jax.experimental.multihost_utils import process_allgather

    return np.asarray(process_allgather(row)).reshape(jax.process_count(), *row.shape)


def leave(code: int) -> NoReturn:
    """End this process at once: jax would wait for the others at a normal exit, and they may wait for this one."""
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)
