"""One question to the server from somebody who is not in a round: where everybody stands, or why one cannot start."""

from __future__ import annotations

from pathlib import Path

from pisco.errors import InputError
from pisco.federation.kits import Kit, Refused
from pisco.federation.roster import NAME, SERVER
from pisco.federation.runtime.ledger import FILE
from pisco.federation.runtime.lines import printable
from pisco.federation.runtime.peers import Peer
from pisco.federation.runtime.transport import grpc
from pisco.federation.runtime.wire_pb2 import Overview, Question, Report
from pisco.files import read_json


def overview(kit: Kit, timeout: float = 5.0) -> Overview:
    """Where everybody stands, as the server sees it."""
    plan = kit.federation
    peer = Peer(kit, SERVER, plan.server_address)
    try:
        return _plain(peer.overview(Question(federation=bytes.fromhex(plan.hash)), timeout), plan.name)
    except (OSError, Refused, grpc.RpcError) as error:
        reason = printable((error.details() or "") if isinstance(error, grpc.Call) else str(error))
        raise InputError(
            f"the server at {plan.server_address} does not answer ({reason}); is `pisco server` running?"
        ) from None
    finally:
        peer.close()


def _plain(found: Overview, federation: str) -> Overview:
    """An overview fit for a terminal, whoever the server is: names that are none become a question mark."""
    for agent in found.agents:
        agent.name = agent.name if NAME.fullmatch(agent.name) else "?"
        agent.waiting_for = agent.waiting_for if NAME.fullmatch(agent.waiting_for) else "?" * bool(agent.waiting_for)
        agent.trouble = printable(agent.trouble)
    found.federation_name = federation
    found.held_by = found.held_by if NAME.fullmatch(found.held_by) else "?" * bool(found.held_by)
    found.held_why = printable(found.held_why)
    return found


def samples_told(kit: Path) -> dict[str, int]:
    """The samples that agents told the server of: asked there, else as its kit has them on this machine's disk."""
    try:
        return {agent.name: agent.samples for agent in overview(Kit.load(kit), timeout=3.0).agents if agent.samples}
    except InputError:
        kept = kit / "state" / FILE
        return read_json(kept, "bring it back from a copy").get("samples", {}) if kept.is_file() else {}


def tell_trouble(kit: Kit, why: str) -> bool:
    """Tell the server why we cannot take part, so that the others hear of it; whether it took it."""
    plan = kit.federation
    peer = Peer(kit, SERVER, plan.server_address)
    try:
        peer.report(Report(federation=bytes.fromhex(plan.hash_at(0)), trouble=why), 5.0)
        return True
    except (OSError, Refused, grpc.RpcError):
        return False
    finally:
        peer.close()
