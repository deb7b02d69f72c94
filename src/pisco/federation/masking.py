"""What a plan must be like whose server learns only sums (`server_sum = "masked"`)."""

from __future__ import annotations

from typing import Any

from pisco.errors import InputError
from pisco.privacy.summing import FEWEST


def check(plan: Any) -> None:
    """Refuse a plan with an exchange whose sum would tell a member's vector; its networks refuse more (`summing`)."""
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
    for before, after in zip(plan.epochs, plan.epochs[1:], strict=False):
        stay, join = set(before.names) & set(after.names), set(after.names) - set(before.names)
        if join and len(stay) < FEWEST and plan.presence == "all":
            raise InputError(
                f"{', '.join(sorted(join))} would join at round {after.start} with the mean of {len(stay)} agents, and "
                f'server_sum = "masked" needs at least {FEWEST}; plan the change while more of them stay'
            )
