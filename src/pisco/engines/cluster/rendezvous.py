"""Processes meet before the start: who is missing is said in a sentence.

`jax.distributed.initialize` (0.10.2) aborts the process from C++, with a stack trace that names nobody, when a process
does not come, two come with one number, or the address is wrong; that they disagree about their number it overlooks.
"""

from __future__ import annotations

import contextlib
import socket
import time

from pisco.errors import InputError

GO = "go"


def meet(coordinator: str, processes: int, process: int, seconds: float) -> None:
    """Wait until all processes are there, at the address where jax's coordinator will listen next."""
    host, _, port = coordinator.rpartition(":")
    if process == 0:
        _call(coordinator, int(port), processes, seconds)
        return
    told, cause, until = "", "nobody listens", time.monotonic() + seconds
    while not told and time.monotonic() < until:
        try:
            with socket.create_connection((host.strip("[]"), int(port)), timeout=2) as line:
                line.sendall(f"pisco {process} {processes}\n".encode())
                told = _hear(line, until - time.monotonic())
        except OSError as error:
            cause = str(error.strerror or error)
        time.sleep(0 if told else 0.2)
    if not told:
        raise InputError(
            f"the coordinator {coordinator} does not answer (waited {seconds:g} s: {cause}); "
            "start process 0 there, and check the address and the firewall"
        )
    if told != GO:
        raise InputError(told)


def _call(coordinator: str, port: int, processes: int, seconds: float) -> None:
    """Process 0: note who comes, and send them on together."""
    present, until = {}, time.monotonic() + seconds
    with contextlib.ExitStack() as lines:
        try:
            listener = lines.enter_context(socket.create_server(("", port), backlog=processes))
        except OSError as error:
            raise InputError(
                f"process 0 cannot listen on port {port} of {coordinator} ({error.strerror or error}); "
                "is it in use? take another port"
            ) from error
        while len(present) < processes - 1:
            listener.settimeout(max(0.01, until - time.monotonic()))
            try:
                caller = lines.enter_context(listener.accept()[0])
            except OSError:
                missing = sorted(set(range(1, processes)) - set(present))
                raise InputError(
                    f"process {missing[0]} of {processes} did not come to {coordinator} within {seconds:g} s "
                    f"({len(missing)} missing); start all processes, with the same coordinator"
                ) from None
            match _hear(caller, 2).split():
                case ["pisco", number, count] if count != str(processes):
                    trouble = f"--processes is {processes} in process 0 and {count} in process {number}"
                case ["pisco", number, _] if number in map(str, present):
                    trouble = f"two processes say that they are process {number}"
                case ["pisco", number, _]:
                    present[int(number)] = caller
                    continue
                case _:  # a stranger
                    continue
            for waiting in [caller, *present.values()]:
                waiting.sendall(f"{trouble}; give each its own --process-id\n".encode())
            raise InputError(f"{trouble}; give each its own --process-id")
        for caller in present.values():
            caller.sendall(f"{GO}\n".encode())
        for caller in present.values():
            caller.recv(1)  # they hang up first, so that the port is free at once


def _hear(line: socket.socket, seconds: float) -> str:
    """One line, or nothing where none comes in time."""
    line.settimeout(max(0.01, seconds))
    with contextlib.suppress(OSError), line.makefile("rb") as said:
        return said.readline().decode(errors="replace").strip()
    return ""
