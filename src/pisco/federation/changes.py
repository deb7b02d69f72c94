"""Changes of a plan's roster: what may be planned, and the epochs that follow."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from pisco.errors import InputError, choose
from pisco.federation.roster import OUTBOUND, Change, Epoch, Member, Triple
from pisco.settings.tables import NetworkTable, checked

if TYPE_CHECKING:
    from pisco.federation.plan import Federation
    from pisco.networks.network import Network


def epochs_of(plan: Federation) -> tuple[Epoch, ...]:
    """The founding roster, then one epoch for every round at which the roster changes."""
    members = {member.name: member for member in plan.roster}
    epochs = [Epoch(0, tuple(plan.roster), tuple(plan.weights), tuple(plan.push) if plan.push else None)]
    for change in plan.changes:
        if change.action == "remove":
            members.pop(change.name)
        else:
            own = members.get(change.name, change)  # who moves keeps its weight and certificate
            given = {"name": change.name, "index": change.index, "address": change.address, "reach": change.reach}
            members[change.name] = moved = Member(**given, weight=own.weight, certificate=own.certificate)
            if change.now:  # it is there already, in the rounds until then too
                epochs = [_at(epoch, moved) for epoch in epochs]
        present = tuple(sorted(members.values(), key=lambda member: member.index))
        if epochs[-1].start == change.round:
            epochs.pop()
        push = tuple(change.push) if change.push else None
        epochs.append(Epoch(change.round, present, tuple(change.weights), push))
    return tuple(epochs)


def _at(epoch: Epoch, moved: Member) -> Epoch:
    members = tuple(moved if member.name == moved.name else member for member in epoch.members)
    return dataclasses.replace(epoch, members=members)


def changed(
    plan: Federation,
    round_index: int,
    action: str,
    name: str,
    address: str | None,
    weight: float | None,
    certificate: str | None,
    *,
    now: bool,
) -> dict[str, Any]:
    """The tables of `Federation.change`."""
    choose("action", action, {"add": 1, "remove": 1, "move": 1})
    last = plan.epochs[-1]
    end = plan.rounds + now  # who is gone in the last round can still be done without
    if not max(1, last.start) <= round_index < end:
        raise InputError(
            f"a change at round {round_index} cannot be planned; take a round from {max(1, last.start)} "
            f"(the last change so far) to {end - 1} (the last round)"
        )
    if action == "add":
        if now:
            raise InputError(f"adding {name!r} takes time: it starts with the others' mean; leave out `now`")
        if name in plan.names:
            raise InputError(f"{name!r} is or was an agent of {plan.name!r}; add it under a name not used before")
        known = [member.index for member in plan.roster] + [change.index for change in plan.changes]
        index, present = max(known) + 1, {member.index for member in last.members}
        present.add(index)
    else:
        left = next((each for each in plan.changes if (each.name, each.action) == (name, "remove")), None)
        if left is not None:
            raise InputError(
                f"the plan removes {name!r} at round {left.round} already; while that round is ahead, "
                f"`pisco federation change cancel {name}` takes it back"
            )
        index, present = last.member(name).index, {member.index for member in last.members}
        if action == "remove":
            present.remove(index)
    if (address is None) != (action == "remove"):
        needs = "takes no address" if address else f'needs the address where the agent listens, or "{OUTBOUND}"'
        raise InputError(f"to {action} {name!r} {needs}, as in host:port")
    if address == OUTBOUND and not plan.relays:
        raise InputError(
            f"{name!r} cannot be outbound: the plan has no relay, and a federation that has begun takes none; plan one "
            "from the start, as in `pisco federation init --relay server=HOST:PORT`"
        )
    if weight is not None and action != "add":
        raise InputError(f"to {action} {name!r} takes no weight; an agent keeps the one that it came with")
    if certificate is not None and action != "add":
        raise InputError(f"to {action} {name!r} takes no certificate; an agent keeps the name that it came with")
    if not present:
        raise InputError(f"{name!r} is the last agent; a federation needs at least one")
    if action == "move":
        weights = {"weights": list(last.weights), "push": last.push and list(last.push)}
    else:
        links = checked(NetworkTable, plan.network.model_dump() | {"agents": len(present)}, "the new roster")
        weights = stored(links.build(), sorted(present))
    entry = {"round": round_index, "action": action, "name": name, "index": index}
    entry |= {"reach": address} if address == OUTBOUND else {"address": address}
    entry |= {"weight": weight, "certificate": certificate, "now": now or None} | weights
    tables = plan.model_dump(exclude_none=True)
    return tables | {"changes": [*tables["changes"], {k: v for k, v in entry.items() if v is not None}]}


def without_last(plan: Federation, name: str) -> dict[str, Any]:
    """The tables of `Federation.cancel`."""
    if not plan.changes:
        raise InputError("no change is planned, so there is none to cancel")
    last = plan.changes[-1]
    if last.name != name:
        raise InputError(
            f"the last change is to {last.action} {last.name!r} at round {last.round}; cancel that one first"
        )
    if last.now:
        raise InputError(f"the change to {last.action} {name!r} took effect at once, and cannot be cancelled any more")
    tables = plan.model_dump(exclude_none=True)
    return tables | {"changes": tables["changes"][:-1]}


def check_changes(plan: Federation) -> None:
    """Refuse changes that contradict each other or the rest of the plan."""
    present, rounds = {member.name for member in plan.roster}, [change.round for change in plan.changes]
    if rounds != sorted(rounds) or any(not 1 <= each.round < plan.rounds + bool(each.now) for each in plan.changes):
        raise InputError(f"changes take effect at rounds {rounds}; put them in order, from 1 to {plan.rounds - 1}")
    for change in plan.changes:
        if (change.name in present) == (change.action == "add"):
            state = "already" if change.action == "add" else "not"
            raise InputError(
                f"the change at round {change.round} would {change.action} {change.name!r}, "
                f"who is {state} a member then"
            )
        if (change.address is None and change.reach is None) != (change.action == "remove"):
            raise InputError(
                f"the change of {change.name!r} at round {change.round} needs an address; "
                "give one, or remove the member"
            )
        if change.now:
            _check_urgent(plan, change)
        (present.remove if change.action == "remove" else present.add)(change.name)


def _check_urgent(plan: Federation, change: Change) -> None:
    if change.action == "add":
        raise InputError(
            f"the change at round {change.round} adds {change.name!r} at once, but joining takes time; leave out `now`"
        )
    if plan.presence == "deadline":
        raise InputError(
            f'{change.name!r} cannot be changed at once: with presence = "deadline" nobody waits for it as long as '
            "there is a quorum, and below that all wait until enough are back; leave out `now`"
        )
    if change.action == "remove" and plan.server_sum:
        raise InputError(
            f"{change.name!r} cannot be removed at once: others may have masked a sum with it, and a second one "
            'without it would reveal its vector; with masks, use presence = "deadline"'
        )


def stored(network: Network, indices: Sequence[int]) -> dict[str, list[Triple] | None]:
    """A network's weights as a plan has them; None: there is nothing to push apart."""
    push = None if network.push is None else triples(network.push, indices)
    return {"weights": triples(network.weights, indices), "push": push}


def triples(weights: Any, indices: Sequence[int]) -> list[Triple]:
    """A sparse matrix as (row, column, value), by the agents' indices."""
    indices, entries = list(indices), weights.tocoo()
    found = zip(entries.row.tolist(), entries.col.tolist(), entries.data.tolist(), strict=True)
    return sorted((indices[row], indices[column], float(value)) for row, column, value in found)
