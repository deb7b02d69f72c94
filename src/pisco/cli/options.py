"""Arguments and options that several commands share."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from pisco.experiments import Config

Experiment = Annotated[str, typer.Argument(help="A TOML file, or a preset (`pisco list presets`).")]
Set = Annotated[
    list[str] | None, typer.Option("--set", help="Replace a setting, as in network.server_prob=0.2.")
]
Rounds = Annotated[int | None, typer.Option(min=1, help="Rounds of every run, instead of the experiment's.")]
Json = Annotated[bool, typer.Option("--json", help="Print the table as JSON.")]
PriceServer = Annotated[float, typer.Option(min=0, help="Price of a message to or from the server.")]
PriceGossip = Annotated[float, typer.Option(min=0, help="Price of a message between agents.")]


def load_experiment(experiment: str, settings: list[str] | None, rounds: int | None) -> Config:
    """The experiment with settings replaced."""
    from pisco.experiments.loading import load

    extra = [] if rounds is None else [f"run.rounds={rounds}"]
    return load(experiment, [*(settings or ()), *extra])
