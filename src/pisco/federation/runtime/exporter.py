"""Metrics of one process of a federation for Prometheus, on an address of one's own choice."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Protocol

from pisco.errors import InputError
from pisco.federation.roster import SERVER, check_address, host_of
from pisco.federation.runtime.holdup import QUIET

if TYPE_CHECKING:
    from pisco.federation.runtime.member import MemberProcess
    from pisco.federation.runtime.relay import Relay


class Collected(Protocol):
    """What is known of a process at the moment it is asked."""

    def collect(self) -> Iterator[Any]:
        """Every metric once."""
        ...


@contextmanager
def serve_metrics(metrics: Collected, address: str | None) -> Iterator[None]:
    """Answer Prometheus at `address`, host:port, while this lasts; None: nobody is answered."""
    if address is None:
        yield
        return
    try:
        from prometheus_client import CollectorRegistry, start_http_server
    except ImportError:
        raise InputError("--metrics needs prometheus-client; run pip install 'pisco-fl[metrics]'") from None
    port = int(check_address(address).rpartition(":")[2])
    registry = CollectorRegistry()
    registry.register(metrics)
    try:
        server, thread = start_http_server(port, addr=host_of(address), registry=registry)
    except OSError as error:
        raise InputError(
            f"cannot listen at {address} ({error.strerror or error}); give --metrics a free port"
        ) from None
    try:
        yield
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


class MemberMetrics:
    """What an agent or the server knows."""

    def __init__(self, member: MemberProcess):
        self.member = member

    def collect(self) -> Iterator[Any]:
        """Every metric once."""
        from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily

        member = self.member
        yield GaugeMetricFamily("pisco_round", "Rounds done, or the furthest that is known.", member.reached)
        yield GaugeMetricFamily("pisco_rounds", "Rounds of the plan.", member.plan.rounds)
        yield CounterMetricFamily("pisco_refusals", "Requests refused.", member.door.refusals)
        moved = CounterMetricFamily("pisco_bytes", "Bytes of vectors.", labels=["direction"])
        moved.add_metric(["sent"], member.bytes_sent)
        moved.add_metric(["received"], member.mailroom.bytes_received)
        yield moved
        if member.name == SERVER:
            yield from self._of_members()
        elif member.mailroom.timing is not None:
            spent = CounterMetricFamily("pisco_seconds", "Seconds spent, by phase.", labels=["phase"])
            for phase, seconds in member.mailroom.timing.spent.items():
                spent.add_metric([phase], seconds)
            yield spent

    def _of_members(self) -> Iterator[Any]:
        from prometheus_client.core import GaugeMetricFamily

        found = self.member.ledger.overview()  # type: ignore[attr-defined]
        front = max((agent.round for agent in found.agents), default=0)
        told = {
            "pisco_member_round": ("Rounds done, as the member reports.", lambda a: a.round),
            "pisco_member_lag": ("Rounds behind the furthest, as members report.", lambda a: front - a.round),
            "pisco_member_loss": ("The newest loss, as the member reports.", lambda a: a.loss),
            "pisco_member_silence_seconds": ("Since it was heard; -1: never.", lambda a: a.last_contact),
            "pisco_member_present": ("Whether it was heard just now.", lambda a: float(0 <= a.last_contact <= QUIET)),
            "pisco_member_holds_up": ("Whether it holds the run up.", lambda a: float(a.name == found.held_by)),
        }
        for name, (title, value) in told.items():
            family = GaugeMetricFamily(name, title, labels=["member"])
            for agent in found.agents:
                family.add_metric([agent.name], value(agent))
            yield family


class RelayMetrics:
    """What a relay knows."""

    def __init__(self, relay: Relay):
        self.relay = relay

    def collect(self) -> Iterator[Any]:
        """Every metric once."""
        from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily

        relay, there = self.relay, self.relay.connected
        yield CounterMetricFamily("pisco_relay_bytes", "Bytes passed on, as they came.", relay.bytes)
        yield GaugeMetricFamily("pisco_relay_connections", "Connections passed through now.", relay.passing)
        yield CounterMetricFamily("pisco_refusals", "Connections refused.", relay.door.refusals)
        members = GaugeMetricFamily("pisco_relay_member_present", "Whether it stays connected.", labels=["member"])
        for name in sorted(relay.plan().hidden):
            members.add_metric([name], float(name in there))
        yield members
