"""What must fit together in a plan, and the sentence for what does not."""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING

import numpy as np

from pisco.display import plural
from pisco.errors import InputError
from pisco.federation import masking
from pisco.federation.changes import check_changes
from pisco.federation.roster import RESERVED, Epoch, check_relays

if TYPE_CHECKING:
    from pisco.federation.plan import Federation


def check(plan: Federation) -> None:
    """Refuse a plan that contradicts itself."""
    if plan.network.agents != len(plan.roster):
        raise InputError(f"network.agents is {plan.network.agents}, but the roster has {len(plan.roster)} agents")
    if plan.network.presence != "everybody":
        raise InputError(
            f"network.presence = {plan.network.presence!r} is for simulations; leave it out, or let members miss "
            'rounds with presence = "deadline"'
        )
    if (plan.presence == "deadline") != (plan.deadline is not None):
        raise InputError(
            f'presence = "{plan.presence}" with deadline = {plan.deadline} does not fit; give both presence = '
            '"deadline" and deadline, the seconds that a round may take, or neither'
        )
    if plan.quorum is not None and (plan.presence == "all" or plan.quorum > len(plan.roster)):
        raise InputError(
            f'quorum = {plan.quorum} cannot be used; it goes with presence = "deadline" and is at most '
            f"{len(plan.roster)}, the number of agents"
        )
    if plan.weigh_by and any(member.weight is not None for epoch in plan.epochs for member in epoch.members):
        raise InputError(
            f'weigh_by = "{plan.weigh_by}" and weights in the roster do not go together; leave one of them out'
        )
    if plan.wire and "compressor" in plan.algorithm.build().hyperparameters:
        raise InputError(
            f'wire = "{plan.wire}" does not go with {plan.algorithm.name!r}, which compresses its messages itself; '
            "leave one of them out"
        )
    if plan.closing and plan.presence == "deadline" and plan.server_sum:
        # A second sum, without somebody who is missing, would reveal its vector.
        raise InputError(
            'closing = true with server_sum = "masked" does not go with presence = "deadline", which does not wait for '
            "everybody; leave closing out, and give `pisco federation collect` everybody's result if the last round "
            "does not reach the server"
        )
    check_changes(plan)
    check_relays(plan.relays or [], plan.server_address, plan.epochs)
    _check_certificates(plan)
    if plan.network.server_sum:
        raise InputError("network.server_sum is for simulations; write server_sum at the top of the plan instead")
    if plan.server_sum:
        masking.check(plan)
    for epoch in plan.epochs:
        _check_epoch(plan, epoch)
    for before, after in itertools.pairwise(plan.epochs):
        _check_joining(plan, before, after)


def _check_joining(plan: Federation, before: Epoch, after: Epoch) -> None:
    """Who joins starts from the mean of those who stay: without enough of them the round never begins."""
    there, join = set(after.names) - plan.gone_at(after.start), set(after.names) - set(before.names)
    stay, who = len(there - join), ", ".join(sorted(there & join))
    if not who or stay >= plan.fewest_reporters:
        return
    if not plan.server_sum:
        raise InputError(
            f"{who} would join at round {after.start} with the mean of those who stay, and nobody stays; "
            "let somebody leave in a later round"
        )
    raise InputError(
        f"{who} would join at round {after.start} with the mean of {plural(stay, 'agent')}, and "
        f'server_sum = "masked" needs at least {plan.fewest_reporters}; plan the change while more of them stay'
    )


def _check_certificates(plan: Federation) -> None:
    named, everybody = plan.certificates, (*plan.helpers, *plan.names)
    without = [name for name in everybody if name not in named]
    if named and without:
        raise InputError(
            f"{without[0]!r} has no certificate named, but others have; give a DNS name for everybody, the server too "
            "(server_certificate), or for nobody"
        )
    for name, dns in named.items():
        other = next((each for each in named if named[each] == dns), name)
        if other != name:
            raise InputError(f"{other!r} and {name!r} both have the certificate for {dns}; give each its own")


def _check_epoch(plan: Federation, epoch: Epoch) -> None:
    for what in ("name", "index", "address"):
        seen = [getattr(member, what) for member in epoch.members if getattr(member, what) is not None]
        twice = next((each for each in seen if seen.count(each) > 1), None)
        if twice is not None:
            raise InputError(f"two agents have the {what} {twice!r}; give each its own")
    without = [member.name for member in epoch.members if member.weight is None]
    if 0 < len(without) < len(epoch.members):
        raise InputError(f"{without[0]!r} has no weight, but others have; give every agent one, or none")
    names, indices = epoch.names, [member.index for member in epoch.members]
    for taken, whose in RESERVED.items():
        if taken in names:
            raise InputError(f"an agent is called {taken!r}, which is {whose}; take another")
    if indices != sorted(indices):
        raise InputError("the roster is not in the order of its indices; sort it")
    if plan.server_address in [member.address for member in epoch.members]:
        raise InputError(f"the server and an agent both have the address {plan.server_address}; give each its own")
    # What members who are absent rule out, those who are gone do too.
    network = plan.network_of(epoch, np.ones(len(names), bool) if plan.gone_at(epoch.start) else None)
    if network.problem_with_reach:
        raise InputError(f"from round {epoch.start} on, {network.problem_with_reach}")
