"""The roll call before the start: who is missing is said in a sentence. jax itself would end in a stack trace."""

from __future__ import annotations

import contextlib
import socket
import time

from pisco.errors import InputError

GO = b"go\n"


def roll_call(coordinator: str, processes: int, process: int, seconds: float) -> None:
    """Wait until all processes are there, at the address where jax's coordinator will listen next."""
    host, _, port = coordinator.rpartition(":")
    until = time.monotonic() + seconds
    if process == 0:
        _call(coordinator, int(port), processes, until, seconds)
    else:
        _answer(coordinator, host.strip("[]"), int(port), processes, process, until, seconds)


def _call(coordinator: str, port: int, processes: int, until: float, seconds: float) -> None:
    """Process 0: note who comes, and send them on together."""
    present: dict[int, socket.socket] = {}
    try:
        listener = socket.create_server(("", port), backlog=processes)
    except OSError as error:
        raise InputError(
            f"process 0 cannot listen on port {port} of {coordinator} ({error.strerror or error}); "
            "is it in use? take another port"
        ) from error
    with contextlib.ExitStack() as lines:
        lines.enter_context(listener)
        while len(present) < processes - 1:
            listener.settimeout(max(0.01, until - time.monotonic()))
            try:
                caller = lines.enter_context(listener.accept()[0])
                caller.settimeout(2)
                with caller.makefile("rb") as said:
                    words = said.readline().decode(errors="replace").split()
            except OSError:
                caller, words = None, []
            if caller is not None and len(words) == 3 and words[0] == "pisco":
                number, count = int(words[1]), int(words[2])
                trouble = ""
                if count != processes:
                    trouble = f"--processes is {processes} in process 0 and {count} in process {number}"
                elif number in present:
                    trouble = f"two processes say that they are process {number}"
                if trouble:
                    for waiting in [caller, *present.values()]:
                        waiting.sendall(f"{trouble}; give each its own --process-id\n".encode())
                    raise InputError(f"{trouble}; give each its own --process-id")
                present[number] = caller
            elif time.monotonic() > until:
                missing = sorted(set(range(1, processes)) - set(present))
                raise InputError(
                    f"process {missing[0]} of {processes} did not come to {coordinator} within {seconds:g} s "
                    f"({len(missing)} missing); start all processes, with the same coordinator"
                )
        for caller in present.values():
            caller.sendall(GO)
        for caller in present.values():
            caller.recv(1)  # they hang up first, so that the port is free at once


def _answer(
    coordinator: str, host: str, port: int, processes: int, process: int, until: float, seconds: float
) -> None:
    """The others: come to process 0, and wait for the word to go on."""
    told = b""
    cause = "nobody listens"
    while time.monotonic() < until and not told:
        try:
            with socket.create_connection((host, port), timeout=2) as line:
                line.settimeout(max(0.01, until - time.monotonic()))
                line.sendall(f"pisco {process} {processes}\n".encode())
                with line.makefile("rb") as said:
                    told = said.readline()
        except OSError as error:
            cause = str(error.strerror or error)
        if not told:
            time.sleep(0.2)
    if not told:
        raise InputError(
            f"the coordinator {coordinator} does not answer (waited {seconds:g} s: {cause}); "
            "start process 0 there, and check the address and the firewall"
        )
    if told != GO:
        raise InputError(told.decode(errors="replace").strip())
