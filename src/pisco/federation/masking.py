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
