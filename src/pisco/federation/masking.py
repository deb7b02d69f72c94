"""What a plan must be like whose server learns only sums (`server_sum = "masked"`)."""

from __future__ import annotations

from typing import Any

from pisco.errors import InputError

FEWEST = 3
"""Members in a sum: of two, either would know the other's vector from it, and so would a server that has one's help."""


def check(plan: Any) -> None:
    """Refuse a plan with an exchange whose sum would tell a member's vector."""
    refuse_masks(plan.guard)
    small = next((epoch for epoch in plan.epochs if len(epoch.members) < FEWEST), None)
    if small is not None:
        raise InputError(
            f'server_sum = "masked" hides a vector among at least {FEWEST}, and round {small.start} has '
            f"{len(small.members)} agents; add agents, or leave it out"
        )
    if plan.quorum is not None and plan.quorum < FEWEST:
        raise InputError(
            f'quorum = {plan.quorum} is too small for server_sum = "masked", which hides a vector among at least '
            f"{FEWEST}; take quorum = {FEWEST} or more"
        )
    for epoch in plan.epochs:
        network = plan.network_of(epoch)
        if network.splits_rounds:
            raise InputError(
                'server_sum = "masked" needs rounds that reach the server for all agents or for none, since one alone '
                "could not hide; use server_prob or server_every"
            )
        reporters = len(epoch.members) if network.sampling is None else int(sum(network.sampling.quotas))
        if reporters < FEWEST:
            raise InputError(
                f'server_sum = "masked" hides a vector among at least {FEWEST}, and {reporters} agents report in a '
                "server round; sample more of them"
            )
    for before, after in zip(plan.epochs, plan.epochs[1:], strict=False):
        stay, join = set(before.names) & set(after.names), set(after.names) - set(before.names)
        if join and len(stay) < FEWEST and plan.presence == "all":
            raise InputError(
                f"{', '.join(sorted(join))} would join at round {after.start} with the mean of {len(stay)} agents, and "
                f'server_sum = "masked" needs at least {FEWEST}; plan the change while more of them stay'
            )


def refuse_masks(guard: Any) -> None:
    """Refuse a guard at a server that sees only masked sums."""
    if guard is not None and guard.guard_server:
        raise InputError(
            f"guard = {guard!r} judges every member's vector, and a server that sees only masked sums has none; set "
            "network.guard_server = false, which guards gossip alone"
        )
