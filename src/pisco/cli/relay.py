"""`pisco relay`: a machine through which agents without an open port are reached."""

from __future__ import annotations

import logging
import signal
import threading

from pisco.cli.agent import JsonLog, KitFolder, Listen, Metrics, StateFolder, speaking

log = logging.getLogger("pisco.federation")


def relay(
    kit: KitFolder, state: StateFolder = None, listen: Listen = None, metrics: Metrics = None, log_json: JsonLog = False
) -> None:
    """Pass on the traffic of agents that nobody can dial, until interrupted. It sees ciphertext only.

    Name it in the plan (`pisco federation init … --relay relay-1=HOST:PORT`) and give it a kit of its own. The server
    is a relay by itself where the plan says so.

    Example:

      pisco relay --kit kits/relay-1
    """
    from pisco.errors import InputError
    from pisco.federation.kits import Kit
    from pisco.federation.roster import SERVER
    from pisco.federation.runtime.exporter import RelayMetrics, serve_metrics
    from pisco.federation.runtime.news import Newsreader
    from pisco.federation.runtime.peers import Peer
    from pisco.federation.runtime.relay import Relay

    opened = Kit.load(kit)
    point = next((each for each in opened.federation.relays or () if each.name == opened.name), None)
    if point is None or opened.name == SERVER:
        what = "server" if opened.name == SERVER else "agent"
        raise InputError(f"{kit} is the kit of {opened.name!r}; start it with `pisco {what} --kit {kit}`")
    folder = state or kit / "state"
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    opened.remember(folder)
    stopping = threading.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda *_: stopping.set())
    with speaking(opened, log_json):
        made = Relay(opened, listen or point.address, opened.plan_now)
        log.info("relaying at %s", made.address)
        server = Peer(opened, SERVER, opened.federation.server_address)
        reader = Newsreader(opened, server.news)
        try:
            with serve_metrics(RelayMetrics(made), metrics):
                stopping.wait()
        finally:
            reader.close()
            server.close()
            made.close()
        log.info("relayed %s bytes", f"{made.bytes:,}")
